"""One figure per step of any series that an entry may name, for any rows.

Some of them judge entries only: how much three rollouts carry, the covariance inside groups, prompts that come again,
and the script, the form and the refusals of texts. No size is measured on these, so sizes are what they were.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator

import numpy as np

from tests.perturbations.change import Part
from tests.perturbations.group_shapes import group_figures
from tests.perturbations.logged import UNSIZED
from tests.perturbations.named import Figures, Series
from tests.perturbations.run import EVAL, TRAIN, Run
from tests.perturbations.tables import INTERNAL, TEXT_FLAGS, TRACED_ONLY
from tests.perturbations.text import prompts, truths, written
from tests.perturbations.text_shapes import PREFIX, text_shapes

TEXTS = ("written", "prompt", "system", "tools", "ground_truth")
HEAVIEST = 3
"""Rollouts whose part of the update is `update/top3_share`."""
UNKNOWN = ("null", "unknown", "none", "nan", "None", "NaN", "")


_CACHE: weakref.WeakKeyDictionary[Run, dict[object, object]] = weakref.WeakKeyDictionary()


def _remembered(run: Run) -> dict[object, object]:
    return _CACHE.setdefault(run, {})


def figures(run: Run, series: Series, part: Part, outside: bool = False) -> Figures | None:
    """A series over the steps, for the rows of a part or for those outside; None where it cannot be read.

    Args:
        run: a computed run.
        series: what is followed.
        part: its rows; () for all.
        outside: the rows that are not in the part instead.
    """
    memory = _remembered(run)
    key = (series, part, outside)
    if key not in memory:
        memory[key] = _figures(run, series, part, outside)
    return memory[key]  # type: ignore[return-value]


def _figures(run: Run, series: Series, part: Part, outside: bool) -> Figures | None:
    if series.column in run.logged:
        values = run.logged[series.column]
        if _asks_unknown(series):
            values = np.isnan(values).astype(float)
        return Figures(values, np.isfinite(values).astype(float))
    split, column = split_of(series.column)
    rows = run.rows_of(part) & run.kept & (run.train == (split == TRAIN))
    if outside:
        rows = ~run.rows_of(part) & run.kept & (run.train == (split == TRAIN))
    if column.startswith("group/") or series.statistic in ("covariance", "correlation"):
        return group_figures(run, series._replace(column=column), rows)
    if column == "update/top3_share":
        return _carried_by_few(run, rows) if series.value is None else None
    values = row_values(run, series._replace(column=column))
    if values is None:
        return None
    known = rows & np.isfinite(values)
    n = run.spec.n_steps
    count = np.bincount(run.c["step"][known], minlength=n).astype(float)
    total = np.bincount(run.c["step"][known], values[known], n)
    with np.errstate(invalid="ignore", divide="ignore"):
        return Figures(np.where(count > 0, total / count, np.nan), count)


def _carried_by_few(run: Run, rows: np.ndarray) -> Figures:
    """The part of some rows' update that the three heaviest of them carry; none of three rows or fewer."""
    with np.errstate(invalid="ignore"):
        known = np.flatnonzero(rows & (run.c["update_share"] >= 0))
    share, step, n = run.c["update_share"][known], run.c["step"][known], run.spec.n_steps
    order = np.lexsort((-share, step))
    share, step = share[order], step[order]
    place = np.arange(len(step)) - np.searchsorted(step, step)
    count = np.bincount(step, minlength=n).astype(float)
    heaviest = np.bincount(step, np.where(place < HEAVIEST, share, 0.0), n)
    total = np.bincount(step, share, n)
    shown = (count > HEAVIEST) & (total > 0)
    return Figures(np.where(shown, heaviest / np.where(shown, total, 1.0), np.nan), count)


def split_of(column: str) -> tuple[str, str]:
    """The split of whose rows a column speaks, and the column there."""
    for split in (EVAL, TRAIN):
        if column.startswith(f"{split}/"):
            bare = column.removeprefix(f"{split}/")
            return split, bare.removesuffix("/mean") if not bare.startswith("group/") else bare
    return TRAIN, column


def _asks_unknown(series: Series) -> bool:
    return series.statistic == "share" and series.value in UNKNOWN


def row_values(run: Run, series: Series) -> np.ndarray | None:
    """[N] what a series is the mean of; NaN where unknown, None where there is no such column."""
    memory = _remembered(run)
    key = ("rows", series)
    if key not in memory:
        memory[key] = _row_values(run, series)
    return memory[key]  # type: ignore[return-value]


def _row_values(run: Run, series: Series) -> np.ndarray | None:
    column, value, statistic = series
    if column.startswith(PREFIX):
        return text_shapes(_texts(run, "written"), column, value)
    if (column in TEXTS and column not in run.c) or statistic == "text":
        return _text_values(run, column, value)
    if column == "flags":
        return run.flags[value].astype(float) if value in run.flags else None
    if column not in run.c and column in ("version_min", "version_max"):
        numbers = (run.c["step"] - run.c["lag"]).astype(float)
    elif column not in run.c or (column in INTERNAL and column not in ("group", "sample")):
        return None
    elif column in run.values:
        return _coded_values(run, column, value)
    else:
        numbers = run.c[column]
    if _asks_unknown(series):
        return np.isnan(numbers).astype(float)
    if value is not None and statistic == "share":
        try:
            wanted = float(value)
        except ValueError:
            return None
        return np.where(np.isnan(numbers), np.nan, np.isclose(numbers, wanted, atol=1e-9))
    if statistic == "size":
        return np.abs(numbers.astype(float))
    return numbers.astype(float)


def _coded_values(run: Run, column: str, value: str | None) -> np.ndarray | None:
    codes = run.c[column]
    if value is None or value in UNKNOWN:
        return (codes < 0).astype(float)
    if value not in run.values[column]:
        return None
    return (codes == run.values[column].index(value)).astype(float)


def _text_values(run: Run, column: str, value: str | None) -> np.ndarray | None:
    if column not in TEXTS or value is None:
        return None
    memory = _remembered(run)
    if ("text", column) not in memory:
        memory["text", column] = [_plain(t) for t in _texts(run, column)]
    wanted = _plain(value)
    return np.asarray([wanted in text for text in memory["text", column]], float)  # type: ignore[attr-defined]


def _texts(run: Run, column: str) -> list[str]:
    memory = _remembered(run)
    if ("texts", column) not in memory:
        memory["texts", column] = _texts_of(run, column)
    return memory["texts", column]  # type: ignore[return-value]


def _texts_of(run: Run, column: str) -> list[str]:
    rows = np.arange(run.n)
    if column == "written":
        return written(run, rows)
    if column == "prompt":
        return prompts(run, rows)
    if column == "ground_truth":
        return [str(v) for v in truths(run)]
    return [run.values[column][code] if code >= 0 else "" for code in run.c[column]]


def _plain(text: str) -> str:
    """A text as it is compared: lower case, single blanks."""
    return " ".join(text.lower().split())


def of_traces(series: Series) -> bool:
    """Whether only traces know a series."""
    column = split_of(series.column)[1]
    of_text = column in TEXTS or column.startswith(PREFIX) or series.statistic == "text"
    return of_text or column in TRACED_ONLY or (column == "flags" and series.value in TEXT_FLAGS)


def thinned(run: Run, series: Series) -> float:
    """The share of rows that a series is read from: what only traces know is known of the cap's random part."""
    if not of_traces(series) or not run.spec.cap:
        return 1.0
    rows_per_step = run.train.sum() / run.spec.n_steps
    return float(min(1.0, max(run.spec.cap * 3 // 4, 1) / max(rows_per_step, 1)))


def series_of(run: Run) -> Iterator[Series]:
    """The series that a size is measured on: every column, flag, value, and scalar of its own."""
    splits = [""] + ([f"{EVAL}/"] if run.spec.evaluated_every else [])
    for prefix in splits:
        for column, values in run.c.items():
            if column in INTERNAL or column == "attempt":
                continue
            if column in run.values:
                for value in run.values[column]:
                    yield Series(prefix + column, value, "text" if column in TEXTS else "share")
            else:
                yield Series(prefix + column, None, "mean")
                if np.isnan(values).any():
                    yield Series(prefix + column, "unknown", "share")
        for flag in run.flags:
            yield Series(f"{prefix}flags", flag, "share")
        for phrase, _ in run.phrases:
            yield Series(f"{prefix}written", phrase, "text")
    for name in ("group/tie_share", "group/reward_std_mean", "group/size_mean"):
        yield Series(name, None, "mean")
    yield Series("n_sampled", None, "correlation")
    for key in run.logged:
        if run.kinds.get(key) in UNSIZED:
            continue
        yield Series(key, None, "logged")
        if np.isnan(run.logged[key]).any():
            yield Series(key, "unknown", "share")
