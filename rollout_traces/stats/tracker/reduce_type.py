"""How the values of a key become one."""

from __future__ import annotations

from enum import Enum, auto


class ReduceType(Enum):
    """How the values recorded under a key become what is exported."""

    AVG_MIN_MAX = auto()
    """`key/avg`, `key/min` and `key/max` over the tokens of the denominator."""
    AVG = auto()
    """The mean over the tokens of the denominator."""
    SUM = auto()
    """The sum over the tokens of the denominator."""
    MIN = auto()
    """The smallest value."""
    MAX = auto()
    """The largest value."""
    SCALAR = auto()
    """The mean of plain numbers, and how many there were under `key__count`."""
