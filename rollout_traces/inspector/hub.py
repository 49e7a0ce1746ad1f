"""Who may log to a Space, which the Hugging Face Hub is asked."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable

from rollout_traces.errors import RolloutTracesError

MOST_TOKENS = 256
"""Tokens that may write whose answers are kept, and as many that may not; the oldest goes first."""
MOST_QUESTIONS = 60
"""Questions in a minute of which the Hub has not said before that the token may write."""
ASKED_AGAIN = 300.0
"""Seconds after which the Hub is asked again whether a token may write."""


class AskedTooOften(RolloutTracesError):
    """More new tokens came within a minute than the Hub is asked about."""


class HubWriters:
    """Who may log to a Space: whoever the Hub lets write to it.

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
        """Whether a token may write to the Space; the answer is kept for five minutes.

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
        while self._asked and now - self._asked[0] >= 60:
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
        if error.response is not None and error.response.status_code in (401, 403, 404):
            return False
        raise
    return True
