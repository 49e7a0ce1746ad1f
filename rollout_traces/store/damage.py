"""Stored data may be cut, overwritten or made up; whatever goes wrong in reading it is said as one error."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rollout_traces.errors import StoreError
from rollout_traces.ledger.declared import MADE_UP


@contextmanager
def damage_said(what: str) -> Iterator[None]:
    """Turns what goes wrong in reading stored data into a StoreError that names the data.

    Args:
        what: what is read, as the message calls it.

    Raises:
        StoreError: it is damaged.
    """
    try:
        yield
    except StoreError:
        raise
    except MADE_UP as error:
        raise StoreError(f"{what}: damaged ({type(error).__name__}: {error}).") from error
