"""Figures, times, names, parts and filters in words; what a run named itself in quotes."""

from __future__ import annotations

import re

from rollout_traces.analysis.curves import Part, SeriesName
from rollout_traces.model.text import quoted

TAGS = ("flags", "tool_names", "error_signatures")
"""Columns of several values, which a filter asks with `has`."""
NAMED_BY_THE_RUN = ("component", "sample", "extra", "timing")
"""Columns `<one of these>/...` are named by the run behind the slash."""
NAMED_BY_US = ("group", "update")
"""Columns `<one of these>/...` are ours."""
OWN_VALUES = ("flags",)
"""Columns whose values are names of ours."""
NUMBERS = ("staleness_max",)
"""Columns of numbers by which rollouts are parted."""
MINUS = "\u2212"
PER_CENT = 100
DIGITS = 3
"""Digits of a number."""
WHOLE_FROM = 999.5
"""Numbers from here on, of which three digits say less than their whole part, are written without decimals."""
FEW_PER_CENT = 0.1
"""Shares below this are written with a decimal ..."""
HARDLY_ANY = 0.001
"""... and below this as less than it."""


def percent(value: float) -> str:
    """A share in words: `57%`, `0.4%`; `0%` and `100%` only of none and of all."""
    if value == 0:
        return "0%"
    if abs(value) < HARDLY_ANY:
        return "<0.1%" if value > 0 else f">{MINUS}0.1%"
    size = PER_CENT * value
    if abs(value) < 1 and round(abs(size)) == PER_CENT:
        return ">99%" if value > 0 else f"<{MINUS}99%"
    return _signed(f"{size:.1f}%" if abs(value) < FEW_PER_CENT else f"{size:.0f}%")


def number(value: float, digits: int = DIGITS) -> str:
    """A number as a person reads it."""
    text = f"{value:,.0f}" if abs(value) >= WHOLE_FROM else f"{value:.{digits}g}"
    return _signed(text.replace("e-0", "e-"))


def numbers_apart(one: float, other: float) -> tuple[str, str]:
    """Two numbers, with the digits that tell them apart, up to twice as many as usual."""
    for digits in range(DIGITS, 2 * DIGITS + 1):
        found = number(one, digits), number(other, digits)
        if found[0] != found[1]:
            break
    return found


def _signed(text: str) -> str:
    return MINUS + text[1:] if text.startswith("-") else text


def since(step: int, last: int | None) -> str:
    """When, in words."""
    if last is None:
        return f"since step {step}"
    return f"at step {step}" if last == step else f"from step {step} to {last}"


def part_text(part: Part | None) -> str:
    """A part in words; "" for all rows and for an unknown part."""
    if not part:
        return ""
    columns = dict.fromkeys(column for column, _ in part)
    return ", ".join(
        f"{column_text(column)} {' and '.join(value_text(column, value) for name, value in part if name == column)}"
        for column in columns
    )


def column_text(column: str) -> str:
    """A column's name in a sentence: ours as it is, in quotes what the run named: `component/“judge”`, `“train/loss”`."""
    split, slash, rest = column.partition("/")
    if slash and split in ("rollout", "eval-rollout"):
        return f"{split}/{column_text(rest)}"
    if slash and split in NAMED_BY_THE_RUN:
        return f"{split}/{quoted(rest)}"
    is_ours = split in NAMED_BY_US if slash else bool(re.fullmatch(r"[a-z][a-z0-9_]*", column))
    return column if is_ours else quoted(column)


def value_text(column: str, value: str) -> str:
    """A value of a column in a sentence: in quotes, but for names of flags."""
    return value if column.rpartition("/")[2] in OWN_VALUES else quoted(value)


def series_text(name: SeriesName) -> str:
    """Names in a sentence what a series is the figure of."""
    column = quoted(name.column) if name.statistic == "logged" else column_text(name.column)
    if name.statistic in ("covariance", "correlation"):
        return f"the {name.statistic} of reward and {column} inside groups"
    if name.statistic == "size":
        return f"the size of {column}"
    return column if name.value is None else f"{column} {value_text(name.column, name.value)}"


def literal(text: str) -> str:
    """A text as the query language writes it."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def part_filter(part: Part | None) -> str:
    """A filter in the query language for the rows of a part; "" for all."""
    conditions = []
    for column in dict.fromkeys(column for column, _ in part or ()):
        values = [
            f"{column} = {value if column in NUMBERS else literal(value)}"
            for name, value in part or ()
            if name == column
        ]
        conditions.append(values[0] if len(values) == 1 else f"({' or '.join(values)})")
    return " and ".join(conditions)


def value_filter(column: str, value: str) -> str:
    """A filter for the rows that have a value."""
    return f"{column} {'has' if column in TAGS else '='} {literal(value)}"


def steps_filter(step: int, last: int | None) -> str:
    """A filter for some steps."""
    if last == step:
        return f"step = {step}"
    return f"step >= {step}" + ("" if last is None else f" and step <= {last}")
