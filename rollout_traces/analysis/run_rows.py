"""The rollouts of a run as arrays: the step, group and parts of every row, and the measures whose series are looked at."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from rollout_traces.analysis.curves import BEYOND, UNKNOWN, SeriesName
from rollout_traces.analysis.relations import (
    KEPT_AT_RANDOM,
    known_text,
    known_value,
    quoted,
    unit_over_steps,
)
from rollout_traces.analysis.selections import OUTCOMES, RunScope
from rollout_traces.errors import StoreError
from rollout_traces.flags import REGISTRY, needs_text
from rollout_traces.ledger.columns import is_column

if TYPE_CHECKING:
    import pyarrow as pa

MOST_PARTS = 16
"""Values of a text column by which rollouts are parted, and whose shares are series; a column of more names things."""
MOST_SHARES = 24
"""Tags whose share is a series, the most frequent first."""
MOST = 1e30
"""Beyond any reward: what stands for the extremes of a group without one."""
ROUNDING = 1e-9
"""Part of the largest value below which two values are one."""
ENOUGH_ROWS = 1 << 16
"""Rows, evenly spaced over the run, that stand for all of them."""
FEW = 1 / 20
"""Part of the rows, up to which those that lie beyond all others are few."""
AT_POINT = 1 / 50
"""Part of the rows that have one value of a number of many values, from which on their share is a series."""
NOTHING = 0.05
"""Part of the sum of its sizes up to which the sum of a number is about 0."""
MOST_POINTS = 8
"""Values of a number up to which the share of each is a series."""
NO_MEASURES = ("trained", "equal_to")
"""Numbers whose mean says nothing: `equal_to` is a place in a group."""
FEWEST_HITS = 3
"""Rollouts that have a value in the whole run, below which its share is no series."""
NULL_BY_DEFINITION = ("update_share", "advantage")
"""Numbers that a row of a step without any advantage does not have: that they are unknown is no loss."""
TOGETHER = 6
"""Numeric columns that are read together."""
CUT_BY_NUMBER = ("staleness_max",)
"""Whole numbers by which rollouts are parted, as by a text."""
CUT_BY_OUTCOME = ("stop_reason",)
"""Outcomes by which rollouts are parted all the same: what is changed after it was sampled may hang on it."""
BY_OUTCOME = (*CUT_BY_NUMBER, *CUT_BY_OUTCOME)
"""Columns that part rollouts by how they came out, not by what they were given."""
OF_TRACES = ("tool_names", "error_signatures")
"""Tags that only a decoded rollout has."""
DERIVED = {
    "update_share": "advantage",
    "mismatch_k3": "mismatch_abs_max",
    "mismatch_k1": "mismatch_abs_max",
    "log_ratio_sum": "mismatch_abs_max",
    "clip_share": "mismatch_abs_max",
    "raw_reward": "reward",
    "n_tokens": "n_sampled",
    "group/tie_share": "reward",
    "group/wasted_tokens": "reward",
    "advantage": "reward",
    "group/reward_std_mean": "reward",
    **{f"flags {spec.name}": spec.given for spec in REGISTRY.values() if spec.given},
}
"""Column that is computed from another -> its parent."""


@dataclass(frozen=True, eq=False)
class RowMeasure:
    """A figure of a rollout whose mean over the rows of a step is a series.

    Attributes:
        name: the series that it makes.
        read: gives float [N], NaN where unknown.
        drawn: whether only rows that were traced at random count, weighted by 1 / probability.
        condition: a filter in the query language for the rows of which it is 1, where it is not the value's.
        of: the column that it is computed from, where `DERIVED` does not say it.
    """

    name: SeriesName
    read: Callable[[], np.ndarray]
    drawn: bool = False
    condition: str = ""
    of: str = ""

    @property
    def parent(self) -> str:
        """The column that it is computed from; "" for none."""
        return self.of or DERIVED.get(str(self.name), "")


@dataclass(eq=False)
class RunRows:
    """Rows that belong to steps: rollouts, or groups.

    Attributes:
        steps: int [T], ascending.
        at: int [N], the position of each row's step.
        unit: int [N], what is independent: the group, numbered over all steps.
        parts: text column -> (int [N], -1 where unknown, the values that the codes stand for).
        measures: what is known of each row.
        weight: float [N], 1 / probability of the rows traced at random, 0 for the others.
        prompt: int [N], the prompt, -1 where unknown; empty without prompt keys.
        of_prompts: text column -> whether it is the prompt's, as far as somebody asked.
    """

    steps: np.ndarray
    at: np.ndarray
    unit: np.ndarray
    parts: dict[str, tuple[np.ndarray, list[str]]]
    measures: list[RowMeasure] = field(default_factory=list)
    weight: np.ndarray = field(default_factory=lambda: np.empty(0))
    prompt: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))
    of_prompts: dict[str, bool] = field(default_factory=dict)

    @cached_property
    def per_step(self) -> np.ndarray:
        """float [T]: rows of each step."""
        return np.bincount(self.at, minlength=len(self.steps)).astype(float)

    @cached_property
    def first(self) -> np.ndarray:
        """int [U]: a row of each unit."""
        found = np.zeros(int(self.unit.max(initial=-1)) + 1, np.int64)
        found[self.unit[::-1]] = np.arange(len(self.unit))[::-1]
        return found

    @cached_property
    def cutting(self) -> list[str]:
        """The columns that cut through units, whose rows have several values of it."""
        parts = self.parts.items()
        return [name for name, (codes, _) in parts if (codes != codes[self.first][self.unit]).any()]

    def cut_by(self, column: str) -> RunRows:
        """The same rows, each unit cut into those with each value of a column, by which alone they are parted."""
        codes, values = self.parts[column]
        unit = distinct(self.unit * (len(values) + 1) + codes + 1)[1]
        return RunRows(self.steps, self.at, unit, {column: self.parts[column]}, self.measures, self.weight)


def distinct(numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The distinct ones of small numbers, int [U], ascending, and the place of each among them, int [N]; in time with no sort."""
    held = np.zeros(int(numbers.max(initial=-1)) + 1, bool)
    held[numbers] = True
    return np.flatnonzero(held), (np.cumsum(held) - 1)[numbers]


def read_rows(run: RunScope, prefix: str = "") -> RunRows:
    """Reads the rollouts of a run and split.

    Args:
        run: which.
        prefix: stands before every column's name: `eval-rollout/` for an evaluation.
    """
    c = run.columns
    numbers = _numbers(run)
    texts = _texts(run)
    drawn = KEPT_AT_RANDOM if c.has("traced", "selected_by") else "true"
    weight = "1.0 / selected_probability" if c.has("selected_probability") else "1.0"
    what = ["step", f"{unit_over_steps(c, one_run=True)} as unit"]
    what += [f"case when {drawn} then coalesce({weight}, 1.0) else 0.0 end as weight"]
    what += [f"{'traced' if c.has('traced') else 'true'} as kept"]
    prompt = quoted("prompt_key")
    what += (
        [f"case when {prompt} is not null then hash({prompt}) end as prompt"] if c.has("prompt_key") else []
    )
    what += [f"{known_text(name)} as t{i}" for i, name in enumerate(texts)]
    what += [f"{quoted(name)} as l{i}" for i, name in enumerate(c.tags)]
    found = run.relations.sql(f"select {', '.join(what)} from rollouts where {run.scope}", run.params)
    steps, at = np.unique(found.column("step").to_numpy().astype(np.int64), return_inverse=True)
    rows = RunRows(
        steps, at, _coded(found.column("unit"))[0], {}, weight=found.column("weight").to_numpy().astype(float)
    )
    if c.has("prompt_key"):
        prompts = _coded(found.column("prompt"))[0]
        rows.prompt = prompts if (prompts >= 0).any() else rows.prompt
    kept = found.column("kept").to_numpy(zero_copy_only=False).astype(bool)
    # steps that come while this reads are left out
    read = replace(run, within=run.within or (int(steps[0]), int(steps[-1]))) if len(steps) else run
    contents: set[bytes] = set()
    for name, kept_values in _columns_of(read, numbers, len(at)):
        floats = kept_values()
        if _is_repeated(name, floats, contents):
            continue
        known = np.isfinite(floats)
        seen = floats if known.all() else floats[known]
        of_traces = not kept.all() and not known[~kept].any()
        if not of_traces and name not in NULL_BY_DEFINITION and known.any() and not known.all():
            unknown = SeriesName(prefix + name, UNKNOWN, "share")
            rows.measures.append(RowMeasure(unknown, _unknown(known), condition=f"{name} is null"))
        if len(seen) and np.ptp(seen) > 0:
            rows.measures.append(RowMeasure(SeriesName(prefix + name), kept_values, of_traces))
        if _adds_up_to_nothing(seen, at if len(seen) == len(at) else at[known]):
            size = SeriesName(prefix + name, None, "size")
            rows.measures.append(RowMeasure(size, _size(kept_values), of_traces))
        for point in _points(seen) if name not in DERIVED else []:
            share = SeriesName(prefix + name, f"{point:g}", "share")
            rows.measures.append(
                RowMeasure(
                    share,
                    _held(kept_values, np.equal, point),
                    of_traces,
                    f"{name} = {point:g}",
                    prefix + name,
                )
            )
        for sign, least in (
            _bounds(seen, at if len(seen) == len(at) else at[known]) if SeriesName(name).is_paid else []
        ):
            few = SeriesName(prefix + name, f"{sign}{least:g}", "share")
            rows.measures.append(
                RowMeasure(
                    few,
                    _held(kept_values, np.greater if sign == ">" else np.less, least),
                    of_traces,
                    f"{name} {sign} {least:g}",
                    prefix + name,
                )
            )
        if name in CUT_BY_NUMBER and len(seen) and len(np.unique(seen[:ENOUGH_ROWS])) <= MOST_PARTS:
            lags, lag = np.unique(seen, return_inverse=True)
            if 2 <= len(lags) <= MOST_PARTS:
                held = np.full(len(at), -1)
                held[known] = lag
                rows.parts[name] = held, [f"{each:g}" for each in lags.tolist()]
    for i, name in enumerate(texts):
        codes, values = _coded(found.column(f"t{i}"))
        if _is_repeated(name, codes, contents, values):
            continue
        if (name not in OUTCOMES or name in CUT_BY_OUTCOME) and 2 <= len(values) <= MOST_PARTS:
            rows.parts[name] = codes, values
        if 1 <= len(values) <= MOST_PARTS:
            rows.measures += _shares(prefix + name, codes, values)
    for i, name in enumerate(c.tags):
        rows.measures += _tags(prefix + name, found.column(f"l{i}"), kept)
    return rows


def _is_further(name: str) -> bool:
    """Tells whether a column is one that a dump or a trainer has beside those of the ledger, under a name of its own."""
    return name.startswith(FURTHER) or not is_column(name)


def _is_repeated(name: str, values: np.ndarray, contents: set[bytes], texts: Sequence[str] = ()) -> bool:
    """Tells whether a further column has the values of one before it, or codes of the same texts, as a source that is there twice; and notes those of this one."""
    own = values[:: len(values) // ENOUGH_ROWS + 1].tobytes() + repr(texts).encode()
    if _is_further(name) and own in contents:
        return True
    contents.add(own)
    return False


FURTHER = ("extra/", "sample/")


def _numbers(run: RunScope) -> list[str]:
    """The numeric columns that some rollout knows."""
    names = [name for name in run.columns.numbers if name not in NO_MEASURES]
    if not names:
        return []
    names.sort(key=_is_further)
    counts = ", ".join(f"count({quoted(name)}) as c{i}" for i, name in enumerate(names))
    row = run.relations.sql(f"select {counts} from rollouts where {run.scope}", run.params).to_pylist()[0]
    return [name for i, name in enumerate(names) if row[f"c{i}"]]


def _columns_of(
    run: RunScope, names: Sequence[str], n_rows: int
) -> Iterator[tuple[str, Callable[[], np.ndarray]]]:
    """Numeric columns of a run's rows, each with what gives its values; a few at a time, since a run may have many rows.

    Raises:
        StoreError: rows of these steps came or went meanwhile.
    """
    c = run.columns
    for at in range(0, len(names), TOGETHER):
        part = names[at : at + TOGETHER]
        what = [known_value(c, name) for name in part]
        listed = ", ".join(f"{each} as n{i}" for i, each in enumerate(what))
        found = run.relations.sql(f"select {listed} from rollouts where {run.scope}", run.params)
        if found.num_rows != n_rows:
            raise StoreError(f"{n_rows:,} rollouts, then {found.num_rows:,}: the run went on. Ask again.")
        for i, name in enumerate(part):
            yield name, _kept(found.column(f"n{i}").to_numpy(zero_copy_only=False).astype(float, copy=False))


def _kept(values: np.ndarray) -> Callable[[], np.ndarray]:
    """Gives float64 [N]; in between they take half of that where it loses nothing, as what ledgers hold."""
    small, some = values.astype(np.float32), slice(MOST_PARTS)
    fits = all(np.array_equal(small[of], values[of], equal_nan=True) for of in (some, slice(None)))
    kept = small if fits else values
    return lambda: kept.astype(float, copy=False)


def _texts(run: RunScope) -> list[str]:
    """The text columns of few values: those that can part rollouts or whose shares can move."""
    names = sorted(run.columns.texts, key=_is_further)
    if not names:
        return []
    counts = ", ".join(f"approx_count_distinct({quoted(name)}) as d{i}" for i, name in enumerate(names))
    query = f"select {counts} from rollouts where {run.scope}"
    row = run.relations.sql(query, run.params).to_pylist()[0]
    return [name for i, name in enumerate(names) if 1 <= (row[f"d{i}"] or 0) <= 2 * MOST_PARTS]


def _points(values: np.ndarray) -> list[float]:
    """The round values that many rows have of a number that is measured: the most frequent one, as of a judge that gives up or a reward that is clamped; each where there are few, more than two. None of a count."""
    seen = values[:: len(values) // ENOUGH_ROWS + 1]
    if (seen == np.round(seen)).all():
        return []
    found, n = np.unique(seen, return_counts=True)
    kept = (
        np.arange(len(found))
        if 2 < len(found) <= MOST_POINTS
        else [n.argmax()]
        if len(found) > MOST_SHARES
        else []
    )
    often = [i for i in kept if n[i] >= AT_POINT * n.sum()]
    return [point + 0.0 for point in found[often].tolist() if float(f"{point:g}") == point]  # -0 is 0


def _bounds(values: np.ndarray, at: np.ndarray) -> Iterator[tuple[str, float]]:
    """The sides, `<` and `>`, on which a few rows of several steps lie further from all others than those from each other, each with a round number between.

    Args:
        values: float [N].
        at: int [N], the step of each.
    """
    few = int(FEW * len(values))
    if few < FEWEST_HITS:
        return
    for sign, way in zip(BEYOND, (-1, 1), strict=True):
        far = np.sort(np.partition(values * way, -few - 1)[-few - 1 :])[::-1]
        apart = np.flatnonzero(far[:-1] - far[1:] > far[1:] - (values * way).min())
        if len(apart) and len(np.unique(at[values * way >= far[apart[-1]]])) >= FEWEST_HITS:
            last, following = far[apart[-1]], far[apart[-1] + 1]
            half = float(last + following) / 2 * way
            rounded = float(f"{half:.2g}")
            yield sign, rounded if following < rounded * way < last else half


def _adds_up_to_nothing(values: np.ndarray, at: np.ndarray) -> bool:
    """Tells whether a number of both signs has a mean near 0 at most steps, as advantages have: it can move in its size alone.

    Args:
        values: float [N].
        at: int [N], the step of each.
    """
    if not len(values) or values.min() >= 0:
        return False
    total, size = (np.bincount(at, each) for each in (values, np.abs(values)))
    return bool(np.median(np.abs(total[size > 0]) / size[size > 0]) <= NOTHING) if size.any() else False


def _size(read: Callable[[], np.ndarray]) -> Callable[[], np.ndarray]:
    return lambda: np.abs(read())


def _held(read: Callable[[], np.ndarray], compare: np.ufunc, value: float) -> Callable[[], np.ndarray]:
    def held() -> np.ndarray:
        values = read()
        return np.where(np.isfinite(values), compare(values, value).astype(float), np.nan)

    return held


def _unknown(known: np.ndarray) -> Callable[[], np.ndarray]:
    return lambda: (~known).astype(float)


def _coded(column: pa.ChunkedArray) -> tuple[np.ndarray, list[Any]]:
    """A column as numbers, int [N], in the order in which its values come, -1 for unknown; and the values."""
    coded = column.combine_chunks().dictionary_encode()
    if hasattr(coded, "combine_chunks"):
        coded = coded.combine_chunks()
    codes = coded.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
    return codes, coded.dictionary.to_pylist()


def _shares(name: str, codes: np.ndarray, values: list[str]) -> Iterator[RowMeasure]:
    """The share of each value of a text column among the rows that know it; of two values that always add up, one."""
    counts = np.bincount(codes[codes >= 0], minlength=len(values))
    order = np.argsort(-counts, kind="stable")[:MOST_SHARES]
    if len(values) <= 2:
        order = order[-1:] if len(values) == 2 else order[:0]

    def indicator(code: int) -> Callable[[], np.ndarray]:
        return lambda: np.where(codes < 0, np.nan, (codes == code).astype(float))

    for code in order.tolist():
        if counts[code] >= FEWEST_HITS:
            yield RowMeasure(SeriesName(name, values[code], "share"), indicator(code))


def _tags(name: str, column: object, kept: np.ndarray) -> Iterator[RowMeasure]:
    """The share of the rows that carry a flag, tool or error."""
    import pyarrow.compute as pc

    lists = column.combine_chunks()  # type: ignore[attr-defined]
    lists = lists.chunk(0) if hasattr(lists, "num_chunks") else lists
    column_name = name.rsplit("/", 1)[-1]
    # a decoded rollout without a tool, or without an error, has none stored
    unknown = ~kept if column_name in OF_TRACES else lists.is_null().to_numpy(zero_copy_only=False)
    rows = pc.list_parent_indices(lists).to_numpy()
    codes, values = _coded(_chunked(pc.list_flatten(lists)))
    counts = np.bincount(codes[codes >= 0], minlength=len(values))

    def indicator(code: int) -> Callable[[], np.ndarray]:
        def read() -> np.ndarray:
            values = np.where(unknown, np.nan, 0.0)
            values[rows[codes == code]] = 1.0
            return values

        return read

    for code in np.argsort(-counts, kind="stable")[:MOST_SHARES].tolist():
        if counts[code] >= FEWEST_HITS:
            of_text = column_name in OF_TRACES or (column_name == "flags" and needs_text(values[code]))
            yield RowMeasure(
                SeriesName(name, values[code], "share"), indicator(code), of_text and not kept.all()
            )


def _chunked(array: object) -> object:
    import pyarrow as pa

    return pa.chunked_array([array])


def of_steps(rows: RunRows, measure: RowMeasure) -> np.ndarray | None:
    """float [T]: the one value that all rows of each step have of an extra number; None where they differ, or each step has one row."""
    if measure.name.statistic != "mean" or "/extra/" not in f"/{measure.name.column}":
        return None
    values, own = measure.read(), np.full(len(rows.steps), np.nan)
    own[rows.at] = values
    return own if len(values) > len(own) and (values == own[rows.at]).all() else None
