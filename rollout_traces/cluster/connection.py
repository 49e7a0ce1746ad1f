"""A line between two nodes of a training job: one gloo group of two, made from the job's own store.

It is no group of the trainer's: `torch.distributed` does not know of it, no other rank takes part in making it,
and it works beside NCCL. It uses a connection of its own to the store, so that nothing it waits for holds up a
collective or a rendezvous of the trainer.
"""

from __future__ import annotations

import datetime
from typing import Any

import numpy as np
import orjson

CONNECT = 20.0
"""Seconds to wait for the other side when a line is made."""
SILENCE = 60.0
"""Seconds without a word after which the other side is given up."""
MAX_META = 1 << 20
MAX_BODY = 1 << 31
"""Bytes of one message that are believed."""


class NodeConnectionError(Exception):
    """The other side is gone, silent, or says what cannot be understood."""


def own_store(store: Any) -> Any | None:
    """A connection of our own to a job's store.

    Returns:
        None where torch cannot make one, or has no gloo: no line can be made then.
    """
    import torch.distributed as distributed

    if not distributed.is_gloo_available() or not hasattr(store, "clone"):
        return None
    try:
        return store.clone()
    except Exception:  # noqa: BLE001  a store that cannot be cloned is no error: the answer says so
        return None


class NodeConnection:
    """Two processes that take turns: one asks, the other answers.

    Args:
        store: `own_store`.
        key: where the two find each other; used once.
        side: 0 for rank 0, 1 for the other.

    Raises:
        NodeConnectionError: the other side did not come.
    """

    def __init__(self, store: Any, key: str, side: int) -> None:
        import torch.distributed as distributed

        self._other = 1 - side
        self._group: Any = None
        try:
            self._group = distributed.ProcessGroupGloo(
                distributed.PrefixStore(key, store), side, 2, datetime.timedelta(seconds=CONNECT)
            )
        except Exception as error:
            raise NodeConnectionError(f"no line to another node: {error}") from error

    def ask(self, meta: dict[str, Any], body: bytes = b"") -> dict[str, Any]:
        """Sends a message and waits for its answer.

        Raises:
            NodeConnectionError: as the class says.
        """
        self.send(meta, body)
        return self.receive()[0]

    def send(self, meta: dict[str, Any], body: bytes = b"") -> None:
        """Sends a message.

        Args:
            meta: JSON-safe values.
            body: bytes that go with it.

        Raises:
            NodeConnectionError: as the class says.
        """
        head = orjson.dumps(meta)
        self._send(np.asarray([len(head), len(body)], np.int64).view(np.uint8))
        self._send(np.frombuffer(head + body, np.uint8))

    def receive(self) -> tuple[dict[str, Any], memoryview]:
        """Waits for a message.

        Returns:
            Its values and its bytes.

        Raises:
            NodeConnectionError: as the class says.
        """
        n_meta, n_body = self._receive(16).view(np.int64).tolist()
        if not (0 < n_meta <= MAX_META and 0 <= n_body <= MAX_BODY):
            raise NodeConnectionError(f"a message of {n_meta} and {n_body} bytes is not believed")
        data = self._receive(n_meta + n_body)
        try:
            meta = orjson.loads(data[:n_meta].tobytes())
        except orjson.JSONDecodeError as error:
            raise NodeConnectionError(f"a message that is no JSON: {error}") from error
        return meta, data[n_meta:].data

    def close(self) -> None:
        """Hangs up: the other side's next word fails at once."""
        self._group = None

    def _send(self, values: np.ndarray) -> None:
        self._wait("send", values.copy())

    def _receive(self, n_bytes: int) -> np.ndarray:
        values = np.empty(n_bytes, np.uint8)
        self._wait("recv", values)
        return values

    def _wait(self, what: str, values: np.ndarray) -> None:
        import torch

        try:
            work = getattr(self._group, what)([torch.from_numpy(values)], self._other, 0)
            work.wait(datetime.timedelta(seconds=SILENCE))
        except Exception as error:
            raise NodeConnectionError(f"the line to another node broke: {error}") from error
