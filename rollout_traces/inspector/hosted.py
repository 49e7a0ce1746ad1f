"""The inspector on a host of its own, a Hugging Face Space or a container; set up by its environment.

`rollout-traces deploy` uploads an `app.py` that calls `serve_hosted()` and nothing else. Who may log to a Space is
what the Hub says.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from http import HTTPStatus

from rollout_traces.errors import ConfigError, RolloutTracesError
from rollout_traces.inspector.access import (
    LARGEST_PORT,
    NAMED,
    VARIABLE,
    checked_token,
    named_tokens,
    printable,
)
from rollout_traces.inspector.guard import ServerOptions
from rollout_traces.inspector.workspace import Workspace
from rollout_traces.model.text import listed
from rollout_traces.model.units import MINUTE
from rollout_traces.store.http_source import give_the_hub_up_after

PORT = 7860
"""The port on which a Space is expected to listen."""
HOSTS = "ROLLOUT_TRACES_HOSTS"
"""Host names that a container answers, separated by commas."""
PROXIES = "ROLLOUT_TRACES_PROXIES"
"""Addresses or networks of the proxies in front of a container, separated by commas."""
LABELS = "ROLLOUT_TRACES_LABELS"
"""1 where readers may put labels and mark incidents; they may not where it is not set."""
HUB = "https://huggingface.co"
"""The site that shows a Space in a frame."""
HUB_SECONDS = 10.0
"""Seconds that a Space waits for the Hub; a question holds a thread meanwhile."""
LOCKING = "TRACKIO_SQLITE_LOCKING_MODE"
"""On a Space Trackio locks a project's file for itself alone; the inspector reads the same file."""


def serve_hosted() -> None:
    """Serves every project in Trackio's folder until the process is asked to stop.

    Raises:
        ConfigError: a variable of its environment is missing or cannot be understood.
    """
    from rollout_traces.inspector.server import build_server, listen, serve

    options = hosted_options(os.environ)
    os.environ.setdefault(LOCKING, "NORMAL")
    give_the_hub_up_after(HUB_SECONDS)
    server = build_server(Workspace(may_label=takes_labels(os.environ)), options)
    print(f"Inspector on port {options.port}.", flush=True)
    if server.no_dashboard:
        print(f"Trackio's dashboard is not served: {server.no_dashboard}", flush=True)
    serve(server, listen(options.host, options.port))


def takes_labels(environment: Mapping[str, str]) -> bool:
    """Tells whether readers may put labels: only where `ROLLOUT_TRACES_LABELS` says so."""
    return environment.get(LABELS) == "1"


def hosted_options(environment: Mapping[str, str]) -> ServerOptions:
    """Reads from the environment how the inspector is served.

    Args:
        environment: `SYSTEM=spaces` with `SPACE_ID` and `SPACE_HOST` on a Space, else `ROLLOUT_TRACES_TOKEN`,
            `ROLLOUT_TRACES_TOKENS`, `ROLLOUT_TRACES_HOSTS`, `ROLLOUT_TRACES_PROXIES` and `TRACKIO_WRITE_TOKEN`; `PORT` on both.

    Raises:
        ConfigError: a variable is missing or cannot be understood.
    """
    return _space(environment) if environment.get("SYSTEM") == "spaces" else _container(environment)


def _space(environment: Mapping[str, str]) -> ServerOptions:
    """The Hub is in front: it lets nobody through to a private Space who may not read it."""
    space_id, hosts = environment.get("SPACE_ID", ""), listed(environment.get("SPACE_HOST", ""))
    if "/" not in space_id or not hosts:
        raise ConfigError(
            f"SPACE_ID: seen {space_id!r}, SPACE_HOST: seen {environment.get('SPACE_HOST')!r}. Expected both "
            "with SYSTEM=spaces; the Hub sets them."
        )
    for name in (VARIABLE, NAMED):
        if environment.get(name):
            raise ConfigError(
                f"{name} is set, and has no meaning on a Space: the Hub lets readers in. Make the Space private."
            )
    return ServerOptions(
        host="0.0.0.0",
        port=_port(environment),
        allow_hosts=hosts,
        trusted_proxies=("0.0.0.0/0", "::/0"),
        frame_ancestors=(HUB,),
        trackio_sql=True,
        hub_writer=HubWriters(space_id).may_write,
    )


def _container(environment: Mapping[str, str]) -> ServerOptions:
    token, write_token = environment.get(VARIABLE, ""), environment.get("TRACKIO_WRITE_TOKEN") or None
    for name, given in ((VARIABLE, token), ("TRACKIO_WRITE_TOKEN", write_token)):
        if given is not None:
            checked_token(name, given)
    return ServerOptions(
        host="0.0.0.0",
        port=_port(environment),
        token=token,
        named_tokens=named_tokens(environment, ServerOptions.owner),
        allow_hosts=listed(environment.get(HOSTS, "")),
        trusted_proxies=listed(environment.get(PROXIES, "")),
        trackio_sql=True,
        write_token=write_token,
    )


def _port(environment: Mapping[str, str]) -> int:
    given = environment.get("PORT") or str(PORT)
    if not given.isdecimal() or not 1 <= int(given) <= LARGEST_PORT:
        raise ConfigError(f"PORT: seen {printable(given)}. Expected 1 to {LARGEST_PORT}.")
    return int(given)


MOST_TOKENS = 256
"""Tokens that may write whose answers are kept, and as many that may not; the oldest goes first."""
MOST_QUESTIONS = 60
"""Questions in a minute of which the Hub has not said before that the token may write."""
ASKED_AGAIN = 5.0 * MINUTE
"""Seconds after which the Hub is asked again whether a token may write."""


MAY_NOT = (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN, HTTPStatus.NOT_FOUND)
"""Answers of the Hub that say that a token may not write."""


class AskedTooOften(RolloutTracesError):
    """More new tokens came within a minute than the Hub is asked about."""


class HubWriters:
    """The users who may log to a Space: whoever the Hub lets write to it.

    Strangers may send as many tokens as they like: they cannot make the Space ask more than `MOST_QUESTIONS` times
    a minute, and neither push out of memory who may write, nor keep the Space from asking about them again.

    Args:
        space_id: the Space, `user/name`.
        ask: whether a token may write, by the Hub; for tests.
        clock: seconds; for tests.
    """

    def __init__(
        self,
        space_id: str,
        ask: Callable[[str, str], bool] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._space_id = space_id
        self._ask = ask or _ask_the_hub
        self._clock = clock
        self._known: dict[bool, dict[str, float]] = {True: {}, False: {}}
        self._asked: deque[float] = deque()
        self._lock = threading.Lock()

    def may_write(self, token: str) -> bool:
        """Tells whether a token may write to the Space; the answer is kept for five minutes.

        Raises:
            AskedTooOften: the Hub was asked about too many other tokens within the last minute.
            Exception: the Hub gave no answer.
        """
        now = self._clock()
        with self._lock:
            for answer, known in self._known.items():
                if now - known.get(token, -ASKED_AGAIN) < ASKED_AGAIN:
                    return answer
            if token not in self._known[True]:
                self._count(now)
        allowed = self._ask(self._space_id, token)
        with self._lock:
            for known in self._known.values():
                known.pop(token, None)
            self._known[allowed][token] = now
            while len(self._known[allowed]) > MOST_TOKENS:
                self._known[allowed].pop(next(iter(self._known[allowed])))
        return allowed

    def _count(self, now: float) -> None:
        while self._asked and now - self._asked[0] >= MINUTE:
            self._asked.popleft()
        if len(self._asked) >= MOST_QUESTIONS:
            raise AskedTooOften(
                f"{MOST_QUESTIONS} new tokens were asked about within a minute. Try again in a minute."
            )
        self._asked.append(now)


def _ask_the_hub(space_id: str, token: str) -> bool:
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError

    try:
        HfApi().auth_check(space_id, repo_type="space", token=token, write=True)
    except HfHubHTTPError as error:
        if error.response is not None and error.response.status_code in MAY_NOT:
            return False
        raise
    return True
