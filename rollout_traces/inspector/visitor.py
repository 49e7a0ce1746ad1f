"""Who asks: the name under which a visitor writes, and whether the inspector is his."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

ANYBODY = "visitor"
"""The name of all who come where no token is asked for: nobody can tell them apart."""


@dataclass(frozen=True)
class Visitor:
    """Whoever a token belongs to.

    Attributes:
        name: what his labels and notes are signed with.
        owner: may take back what others wrote.
    """

    name: str
    owner: bool = False


_NOBODY = Visitor(ANYBODY)
_asking: ContextVar[Visitor] = ContextVar("visitor", default=_NOBODY)


@contextmanager
def asking(visitor: Visitor) -> Iterator[None]:
    """Whatever is answered inside is answered to this visitor, threads that are started for it included."""
    before = _asking.set(visitor)
    try:
        yield
    finally:
        _asking.reset(before)


def who_asks() -> Visitor:
    """The visitor of the request that is being answered; one without rights where none is."""
    return _asking.get()
