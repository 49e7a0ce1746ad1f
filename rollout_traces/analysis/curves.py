"""Series, one figure per step, and the curves that a run is read by: of its rollouts, each one SELECT, and of what was logged."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import numpy as np

from rollout_traces.analysis.noise import REACH, of_neighbours
from rollout_traces.analysis.relations import Relations, as_arrays, failed, known_reward, known_value, unit
from rollout_traces.analysis.selections import RunScope
from rollout_traces.ledger.groups import TIED_SQL

Statistic = Literal["mean", "size", "share", "logged", "difference", "covariance", "correlation", "text"]
Part = tuple[tuple[str, str], ...]
"""Columns and values: () is all rows; several pairs of one column are any of these values."""


class SeriesName(NamedTuple):
    """Name of a series: the figure that it is of.

    Attributes:
        column: a ledger column, `group/...`, `eval-rollout/...`, or the key of a logged scalar.
        value: the value or flag whose share it is; None for a number.
        statistic: how the rows of a step became one figure.
    """

    column: str
    value: str | None = None
    statistic: Statistic = "mean"

    def __str__(self) -> str:
        return self.column if self.value is None else f"{self.column} {self.value}"

    @property
    def is_paid(self) -> bool:
        """Whether it is of a reward, a success or a component of the reward."""
        return self.column in PURPOSES or self.column.startswith("component/")

    @property
    def wanted(self) -> int:
        """Which way it goes as a policy learns: 1 for up, -1 for down, 0 where it may go either way."""
        column = self.column.rpartition("/")[2]
        if self.value is None:
            return WANTED.get(column, 0)
        is_fault = column in OF_FAULTS and self.value != "ok"
        return -1 if is_fault or self.value in ("tool_error", UNKNOWN) else 0

    @property
    def is_beyond(self) -> bool:
        """Whether it is of the few values of what is paid that lie beyond all others."""
        return self.is_paid and self.value is not None and self.value[:1] in BEYOND


UNKNOWN = "unknown"
"""The value of a number that a row does not have, as the name of a share."""
BEYOND = ("<", ">")
"""Signs before a value of a number, for those that lie on one side of it."""
PURPOSES = ("reward", "success")
"""What training is for."""
WANTED = {
    **dict.fromkeys(PURPOSES, 1),
    "n_tool_errors": -1,
    "tool_errors": -1,
    "staleness_max": -1,
}
"""Numbers that go one way alone as a policy learns ..."""
OF_FAULTS = ("error_signatures", "reward_status")
"""... and columns whose values it never learns to have more of."""
STEP_SIZE = SeriesName("rollouts of a step", None, "logged")
"""How many rollouts a step has: a number that somebody sets, as what the trainer logs."""


def size_of(split: str) -> SeriesName:
    """How many rollouts an evaluation has."""
    return SeriesName(f"{split}/{STEP_SIZE.column}", None, STEP_SIZE.statistic)


def is_size(name: SeriesName) -> bool:
    """Tells whether a number is how many rollouts a step or an evaluation has."""
    return name.column.endswith(STEP_SIZE.column)


@dataclass(frozen=True, eq=False)
class Series:
    """One figure per step.

    Attributes:
        name: what it is the figure of.
        part: the rows that it speaks of, () for all.
        steps: int [n], ascending, without repeats.
        values: float [n], as a person reads them; NaN where unknown.
        errors: float [n], standard error of each value with groups as units; NaN where unknown.
        rows: float [n], rollouts behind each value; empty for logged scalars.
        parent: the column that it is computed from, beside which it is no entry of its own; "" for none.
        about: what a sentence calls it; "" for its name.
    """

    name: SeriesName
    part: Part
    steps: np.ndarray
    values: np.ndarray
    errors: np.ndarray
    rows: np.ndarray = field(default_factory=lambda: np.empty(0))
    parent: str = ""
    about: str = ""


HEAVIEST = 3
"""Rollouts whose share of a step's update is followed ..."""
HEAVIEST_COLUMN = f"update/top{HEAVIEST}_share"
HEAVIEST_SQL = (
    f"case when count(update_share) > {HEAVIEST} "
    f"then list_sum(max(update_share, {HEAVIEST})) / nullif(sum(update_share), 0) end"
)
"""... and that share, of rows with `update_share >= 0`; of so few rows it is all of it, and is left out."""

FEWEST_BESIDE = 4
"""Steps at which a number was logged with its siblings, and at which they went on alone, at least: a newest step may lack it still."""


def mean_curves(scope: RunScope, names: Sequence[str]) -> Iterator[Series]:
    """The mean of some columns at each step, those that the run has.

    Args:
        scope: the run.
        names: columns.
    """
    there = [name for name in names if scope.columns.has(name)]
    if not there:
        return
    of = [known_value(scope.columns, name) for name in there]
    means = ", ".join(f"avg({each}) as v{i}, count({each}) as n{i}" for i, each in enumerate(of))
    found = as_arrays(
        scope.relations.sql(
            f"select step, {means} from rollouts where {scope.scope} group by step order by step",
            scope.params,
        )
    )
    for i, name in enumerate(there):
        yield from _curve(name, found["step"], found[f"v{i}"], found[f"n{i}"])


def tied_curve(scope: RunScope) -> Iterator[Series]:
    """The share of groups whose rewards are all equal."""
    if not scope.columns.has("reward"):
        return
    reward, c = known_reward(scope.columns), scope.columns
    inner = (
        f"select step, {unit(c)} as unit, count(*) as n, count({reward}) as known, sum({failed(c)}) as failed, "
        f"min({reward}) as low, max({reward}) as high from rollouts where {scope.scope} group by 1, 2"
    )
    query = (
        f"select step, avg(cast({TIED_SQL} as int)) filter (n >= 2) as v, count(*) as n from ({inner}) "
        "group by step order by step"
    )
    found = as_arrays(scope.relations.sql(query, scope.params))
    yield from _curve("group/tie_share", found["step"], found["v"], found["n"])


def heaviest_curve(scope: RunScope) -> Iterator[Series]:
    """The share of a step's update that its heaviest rollouts carry."""
    if not scope.columns.has("update_share"):
        return
    query = (
        f"select step, {HEAVIEST_SQL} as v, count(update_share) as n "
        f"from rollouts where {scope.scope} and update_share >= 0 group by step order by step"
    )
    found = as_arrays(scope.relations.sql(query, scope.params))
    yield from _curve(HEAVIEST_COLUMN, found["step"], found["v"], found["n"])


def evaluation_curve(scope: RunScope) -> Iterator[Series]:
    """The mean score of each evaluation: its successes, else its rewards."""
    score = "success" if scope.columns.has("success") else "reward"
    if not scope.columns.has(score, "split"):
        return
    rows = RunScope(scope.relations, scope.run, "eval%", scope.columns)
    condition = rows.scope.replace("split = ?", "split like ?")
    query = (
        f"select step, avg({known_value(scope.columns, score)}) as v, count(*) as n from rollouts where {condition} "
        "group by step order by step"
    )
    found = as_arrays(scope.relations.sql(query, rows.params))
    yield from _curve(score, found["step"], found["v"], found["n"])


def _curve(name: str, steps: np.ndarray, values: np.ndarray, rows: np.ndarray) -> Iterator[Series]:
    values = values.astype(float)
    there = np.isfinite(values)
    if there.any():
        yield Series(
            SeriesName(name),
            (),
            steps[there].astype(np.int64),
            values[there],
            np.zeros(there.sum()),
            rows[there].astype(float),
        )


def n_steps_and_rows(scope: RunScope) -> tuple[list[int], int]:
    """First and last step, empty without any, and how many rollouts there are."""
    query = f"select min(step) as a, max(step) as b, count(distinct step) as t, count(*) as n from rollouts where {scope.scope}"
    row = scope.relations.sql(query, scope.params).to_pylist()[0]
    return ([int(row["a"]), int(row["b"]), int(row["t"])], int(row["n"])) if row["n"] else ([], 0)


def logged_series(relations: Relations, run: str) -> list[Series]:
    """The run's logged numbers where they are finite.

    Args:
        relations: where to read.
        run: the run.
    """
    found = logged_numbers(relations, run).items()
    known = [(key, steps[np.isfinite(values)], values[np.isfinite(values)]) for key, (steps, values) in found]
    return [
        Series(SeriesName(key, None, "logged"), (), steps, values, np.zeros(len(values)))
        for key, steps, values in known
        if len(values)
    ]


def logged_numbers(relations: Relations, run: str) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """The run's logged numbers, the last attempt's value where a step was logged twice; superseded ones are left out.

    Args:
        relations: where to read.
        run: the run.

    Returns:
        Key -> steps, int [n], ascending, and values, float [n], NaN where it is no number.
    """
    query = """
        select coalesce(split, '') as split, key, step,
            arg_max(coalesce(cast(value as double), 'nan'), coalesce(attempt, '')) as value
        from metrics where run = ? and step is not null and not coalesce(superseded, false) and key not like 'phase/%'
        group by 1, 2, 3 order by 1, 2, 3"""
    found = as_arrays(relations.sql(query, [run]))
    names = np.asarray(
        [
            f"{s}/{k}" if s and not str(k).startswith(s) else str(k)
            for s, k in zip(found["split"], found["key"], strict=True)
        ]
    )
    if not len(names):
        return {}
    starts = np.flatnonzero(np.r_[True, names[1:] != names[:-1]])
    return {
        str(names[start]): (
            found["step"][start:stop].astype(np.int64),
            found["value"][start:stop].astype(float),
        )
        for start, stop in zip(starts, np.r_[starts[1:], len(names)], strict=True)
    }


def _with_siblings(at: Mapping[str, np.ndarray]) -> Iterator[tuple[str, np.ndarray]]:
    """Each key with the steps, int [n], at which any of its siblings is logged; keys up to a last `/` are siblings."""
    families: dict[str, list[str]] = {}
    for key in at:
        families.setdefault(key.rpartition("/")[0], []).append(key)
    for keys in families.values():
        together = np.unique(np.concatenate([at[key] for key in keys]))
        yield from ((key, together) for key in keys)


def ended_numbers(at: Mapping[str, np.ndarray]) -> dict[str, int]:
    """Numbers that were logged with their siblings and no more, while these go on, with the first step without them.

    Args:
        at: key -> its steps, int [n].
    """
    found = {}
    for key, together in _with_siblings(at):
        steps = together[together >= at[key][0]]
        there = np.isin(steps, at[key])
        n = int(there.sum())
        if there[:n].all() and min(n, len(steps) - n) >= FEWEST_BESIDE:
            found[key] = int(steps[n])
    return found


def missing_numbers(at: Mapping[str, np.ndarray]) -> dict[tuple[int, int, int], list[str]]:
    """Stretches in which numbers lack while their siblings are logged: first and last step and how many -> the keys.

    Args:
        at: key -> its steps, int [n].
    """
    found: dict[tuple[int, int, int], list[str]] = {}
    for key, together in _with_siblings(at):
        steps = together[(together >= at[key][0]) & (together <= at[key][-1])]
        edges = np.flatnonzero(np.diff(~np.isin(steps, at[key]))) + 1
        if 1 < len(edges) <= 2 * MOST_GAPS and np.diff([0, *edges, len(steps)]).min() >= FEWEST_LACKING:
            for start, stop in edges.reshape(-1, 2).tolist():
                found.setdefault((int(steps[start]), int(steps[stop - 1]), stop - start), []).append(key)
    return found


MOST_GAPS, FEWEST_LACKING = 3, 5
"""Gaps of a number that is logged at all other steps, and the steps that each of them, and what is between them, has at least: what is logged at times lacks nowhere."""


FEWEST_TIMES = 4
"""Steps at which something comes again, at least."""


def less_what_comes_again(values_T: np.ndarray) -> np.ndarray:
    """A number without what it is more or less at every so many steps, by more than its steps differ and than at any others but one, as a time is where checkpoints are written.

    Args:
        values_T: float [T], NaN where there is none.
    """
    places = np.flatnonzero(np.isfinite(values_T))
    known, n = values_T[places], len(places)
    if n < FEWEST_TIMES * FEWEST_TIMES:
        return values_T
    off = known - of_neighbours(known, 2 * FEWEST_TIMES + 1)
    least = REACH * float(np.median(np.abs(off)))
    for side in (off, -off):
        for furthest in np.argsort(-side)[:2].tolist():
            for period in range(FEWEST_TIMES, n // FEWEST_TIMES + 1):
                again = np.arange(furthest % period, n, period)
                lowest = side[again].min()
                if lowest > least and (side >= lowest).sum() <= len(again) + 1:
                    found = values_T.copy()
                    found[places[again]] -= np.median(off[again])
                    return found
    return values_T
