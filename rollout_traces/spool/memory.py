"""A spool that never touches the disk: for runs whose text must not be written there. It is lost with its process."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Any

from rollout_traces.spool.folder import FOR_TOKENS, SpoolFull
from rollout_traces.spool.record import Record, decode


class MemorySpool:
    """Writer and reader in one.

    Args:
        max_bytes: bytes of records that may wait at most.
    """

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.owner_is_gone = False
        self.spool = "memory"
        self._lock = threading.Lock()
        self._records: dict[str, bytes] = {}
        self._waiting = 0
        self._last_name = 0

    def append(self, buffers: Sequence[Any]) -> str:
        """Keeps a record.

        Raises:
            SpoolFull: there is no room for it.
        """
        data = b"".join(buffers)
        with self._lock:
            if self._waiting + len(data) > self.max_bytes:
                raise SpoolFull(f"spool in memory: {len(data)} bytes more would exceed its {self.max_bytes}.")
            self._last_name = max(time.time_ns(), self._last_name + 1)
            name = f"{self._last_name:020d}"
            self._records[name] = data
            self._waiting += len(data)
        return name

    def room(self) -> int:
        """Bytes of tokens that there is room for."""
        return max(int(self.max_bytes * FOR_TOKENS) - self._waiting, 0)

    def count_waiting(self) -> int:
        """Bytes of the records that wait."""
        return self._waiting

    def keep_ahead(self) -> None:
        """Does nothing: memory needs no files made ahead."""

    def close(self) -> None:
        """No more records will come."""
        self.owner_is_gone = True

    def names(self) -> list[str]:
        """The records that wait, oldest first."""
        with self._lock:
            return list(self._records)

    def has(self, name: str) -> bool:
        """True while a record waits."""
        return name in self._records

    def read(self, name: str) -> Record:
        """Reads a record."""
        data = self._records.get(name)
        if data is None:
            raise FileNotFoundError(f"record {name} is not there any more")
        return decode(data)

    def remove(self, name: str) -> None:
        """Removes a stored record."""
        with self._lock:
            self._waiting -= len(self._records.pop(name, b""))

    def take_all(self) -> list[Record]:
        """Removes every record that still waits."""
        with self._lock:
            records, self._records, self._waiting = self._records, {}, 0
        return [decode(data) for data in records.values()]

    def set_aside(self, name: str) -> None:
        """Removes a record that cannot be processed."""
        self.remove(name)
