"""Columns of what the trainer says of a row beside its tokens and rewards: engine, answers, extras, timings."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from rollout_traces.ledger.columns import NULL_INT, number_text
from rollout_traces.model.packed_batch import PackedBatch
from rollout_traces.model.plain_values import INFINITE, INT64_MAX
from rollout_traces.model.spans import Span, as_seconds, checked, most_of_a_row, packed, seconds_of_scoring

SHORT = 200
"""Characters of a text that a column keeps; the trace of a row holds it whole."""
OF_A_TURN = re.compile(r"(turn|tool)/\d+")
"""Timings of single turns, which stay in the traces."""
MAX_NAMES = 32
"""Names of extras, and of timings, that get a column in a step; further ones stay in the traces."""


def row_value_columns(batch: PackedBatch) -> dict[str, np.ndarray | None]:
    """The columns `engine`, `answer`, `ground_truth`, `extra/<name>`, `timing/<name>` and `timings`.

    An extra is a column of numbers where all of its values in the step are numbers (whole ones that no float holds
    are kept as int64), else of texts, in which a number is written as `number_text` writes it.

    Args:
        batch: B rollouts.

    Returns:
        Name -> float64 [B], int64 [B], or object [B] of str or None; None for one that no row was given.
    """
    columns: dict[str, np.ndarray | None] = {
        "engine": given_texts(batch, "engine_ids", str),
        "answer": given_texts(batch, "parsed_answers", short_text),
        "ground_truth": given_texts(batch, "ground_truths", short_text),
    }
    extras = _by_name(batch.row_lists.get("extras") or ())
    columns |= {f"extra/{name}": _mixed(values) for name, values in extras.items()}
    return columns | _timings(batch)


def _timings(batch: PackedBatch) -> dict[str, np.ndarray | None]:
    """The columns `timing/<name>` in seconds, those of spans too, and `timings`, the spans."""
    given = batch.row_lists.get("timings") or ()
    spans: list[list[Span]] = [checked(row)[0] if isinstance(row, list) else [] for row in given]
    seconds = [
        row if isinstance(row, Mapping) else as_seconds(of) for row, of in zip(given, spans, strict=True)
    ]
    columns: dict[str, np.ndarray | None] = {
        f"timing/{name}": _numbers(values) for name, values in _by_name(seconds, OF_A_TURN).items()
    }
    if any(spans):
        scoring = [
            {f"score/{name}": value for name, value in row.items() if name}
            for row in seconds_of_scoring(spans)
        ]
        columns |= {f"timing/{name}": _numbers(values) for name, values in _by_name(scoring).items()}
        most = most_of_a_row(batch.n_rows)
        columns["timings"] = texts([packed(row, most) for row in spans])
    return columns


def given_texts(batch: PackedBatch, key: str, read: Callable[[Any], str]) -> np.ndarray | None:
    """As `text_column`; None where no row was given one."""
    return text_column(batch, key, read) if batch.row_lists.get(key) else None


def text_column(batch: PackedBatch, key: str, read: Callable[[Any], str]) -> np.ndarray:
    """object [B]: the values of a row list as texts, None where unknown."""
    values = batch.row_lists.get(key) or [None] * batch.n_rows
    return texts([None if value is None else read(value) for value in values])


def texts(values: Sequence[str | None]) -> np.ndarray:
    """object [B] of str or None."""
    column = np.empty(len(values), object)
    column[:] = values
    return column


def short_text(value: Any) -> str:
    """A value as a text of at most `SHORT` characters, with an ellipsis where it was cut."""
    text = str(value)
    return text if len(text) <= SHORT else f"{text[: SHORT - 1]}…"


def _by_name(given: Sequence[Any], left_out: re.Pattern[str] | None = None) -> dict[str, list[Any]]:
    """Name -> its B values, None in rows without it; names that match `left_out` have none."""
    rows = [
        {str(name): value for name, value in row.items()} if isinstance(row, Mapping) else {} for row in given
    ]
    found = dict.fromkeys(name for row in rows for name in row)
    names = [name for name in found if left_out is None or not left_out.fullmatch(name)][:MAX_NAMES]
    return {name: [row.get(name) for row in rows] for name in names}


def _numbers(values: Sequence[Any]) -> np.ndarray:
    return np.asarray([float(value) if _is_number(value) else math.nan for value in values], np.float64)


def _mixed(values: Sequence[Any]) -> np.ndarray:
    values = [INFINITE.get(value, value) if isinstance(value, str) else value for value in values]
    given = [value for value in values if value is not None]
    if all(map(_is_number, given)):
        return _whole(values) if any(map(_needs_int, given)) and all(map(_fits, given)) else _numbers(values)
    return texts([None if value is None else _as_text(value) for value in values])


def _as_text(value: Any) -> str | None:
    if isinstance(value, float) and math.isnan(value):
        return None
    return number_text(value) if _is_number(value) else short_text(value)


def _whole(values: Sequence[int | None]) -> np.ndarray:
    return np.asarray([NULL_INT if value is None else value for value in values], np.int64)


def _needs_int(value: float) -> bool:
    """Tells whether a number is a whole one that a float does not hold."""
    return isinstance(value, int) and int(float(value)) != value


def _fits(value: float) -> bool:
    """Tells whether a number is a whole one of 64 bits."""
    return isinstance(value, int) and NULL_INT < value <= INT64_MAX


def _is_number(value: Any) -> bool:
    return isinstance(value, float) or (isinstance(value, int) and abs(value) < 2**1000)
