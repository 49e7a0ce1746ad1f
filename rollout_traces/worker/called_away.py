"""How a thread that works on a step is called away from it."""

from __future__ import annotations


class CalledAway(BaseException):
    """Another thread takes over: what was begun is left as it was and is begun again there.

    No `Exception`: code that contains the failure of a part must not take this for one.
    """


def stay() -> None:
    """Never calls anybody away."""
