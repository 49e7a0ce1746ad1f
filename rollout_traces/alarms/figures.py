"""Figures that a closed step adds to the series of its run, those that `explain` looks at, and which of the logged ones lie so far off that a look is worth it."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from rollout_traces.analysis.curves import UNKNOWN, SeriesName
from rollout_traces.analysis.group_shapes import group_rows
from rollout_traces.analysis.noise import DEVIATION, SMALLEST_ERROR
from rollout_traces.analysis.relations import NOT_COMPARED
from rollout_traces.analysis.run_rows import MOST_PARTS, RowMeasure, RunRows
from rollout_traces.analysis.scan import lengths
from rollout_traces.analysis.screen import FEWEST_STEPS
from rollout_traces.analysis.selections import NEIGHBOURS, OUTCOMES
from rollout_traces.flags import REGISTRY, needs_text
from rollout_traces.ledger.columns import NULL_INT, Ledger
from rollout_traces.model.plain_values import NOT_FINITE

NOTHING = ""
"""The value of a share that no row has: what a value that comes later had been before."""
PLACES = frozenset({"equal_to", "version_min", "version_max", "trained", "update_share"})
"""Numbers of the ledger that name rows, grow with the run, or add up to 1 at every step."""
FIELDS = ("mean", "rows", "squares", "mass", "spread")
"""Of a series at a step: its mean, rows behind it, the squares of its groups' sums around it, the squares of their sizes,
and the part of the groups' variance that is the mean's."""


@dataclass(frozen=True, eq=False)
class Figures:
    """The figures of one step.

    Attributes:
        step: the trainer's global step.
        names: S series.
        parents: S columns that they are computed from; "" for none.
        table: float [5, S], see `FIELDS`.
        faults: flags of severity error -> the rollouts that carry them.
        n_rows: rollouts of the step.
        prompts: the same for two steps that ask the same prompts; 0 where they are unknown.
        lost: logged numbers that are NaN or infinite.
    """

    step: int
    names: tuple[SeriesName, ...]
    parents: tuple[str, ...]
    table: np.ndarray
    faults: Mapping[str, int]
    n_rows: int
    prompts: int = 0
    lost: tuple[str, ...] = ()


def figures_of(ledger: Ledger, step: int, seen: Iterable[SeriesName] = ()) -> Figures:
    """The figures of a step's rollouts and groups.

    Args:
        ledger: all of them.
        step: the step.
        seen: series of the run: the share of a value that no row has any more is 0.
    """
    before: dict[str, set[str]] = {}
    for name in seen:
        if name.statistic == "share" and name.value:
            before.setdefault(name.column, set()).add(name.value)
    flagged = _flagged(ledger, before.get("flags", ()))
    rows = _rows(ledger, flagged, before)
    groups = group_rows(rows)
    both = [part for part in (rows, groups) if part is not None and part.measures]
    names = tuple(measure.name for part in both for measure in part.measures)
    parents = tuple(measure.parent for part in both for measure in part.measures)
    table = np.concatenate([_sums(part) for part in both], axis=1) if both else np.empty((len(FIELDS), 0))
    there = np.isfinite(table[0])
    kept = [at for at, known in enumerate(there.tolist()) if known]
    faults = {name: int(hit.sum()) for name, hit in flagged.items() if hit.any() and _is_fault(name)}
    return Figures(
        step,
        tuple(names[at] for at in kept),
        tuple(parents[at] for at in kept),
        table[:, there],
        faults,
        ledger.n_rows,
        _prompts(ledger),
    )


def _prompts(ledger: Ledger) -> int:
    keys = {key for key in ledger.get("prompt_key").tolist() if key is not None}
    return zlib.crc32("\0".join(sorted(keys)).encode()) if keys else 0


def scalar_figures(scalars: Mapping[str, object], step: int) -> Figures:
    """The figures of what a trainer logged at a step."""
    numbers = {key: number for key, value in scalars.items() if (number := _number(value)) is not None}
    known = {key: number for key, number in numbers.items() if np.isfinite(number)}
    table = np.zeros((len(FIELDS), len(known)))
    table[0], table[1] = list(known.values()), 1.0
    names = tuple(SeriesName(key, None, "logged") for key in known)
    lost = tuple(key for key in numbers if key not in known)
    return Figures(step, names, ("",) * len(names), table, {}, 1, lost=lost)


def _number(value: object) -> float | None:
    """What was logged as a number, NaN and infinities by their names too; None for all else."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    return float(value) if not isinstance(value, str) or value in NOT_FINITE else None


def _is_fault(name: str) -> bool:
    return name in REGISTRY and REGISTRY[name].severity == "error"


def _rows(ledger: Ledger, flagged: Mapping[str, np.ndarray], before: Mapping[str, set[str]]) -> RunRows:
    n = ledger.n_rows
    group = ledger.get("group")
    unit = np.unique(np.where(group == NULL_INT, -1 - np.arange(n), group), return_inverse=True)[1]
    kept = ~_unknown(ledger.get("trace_uid"))
    drawn = kept & (ledger.get("selected_by") == "random")
    chance = ledger.get("selected_probability")
    with np.errstate(divide="ignore", invalid="ignore"):
        weight = np.where(drawn, np.where(chance > 0, 1 / chance, 1.0), 0.0)
    rows = RunRows(np.zeros(1, np.int64), np.zeros(n, np.int64), unit, {}, weight=weight)
    rows.measures += [
        *_numbers(ledger),
        *_values(ledger, before),
        *_flags(flagged, bool(kept.all()), n),
    ]
    return rows


def _numbers(ledger: Ledger) -> Iterator[RowMeasure]:
    for name, column in ledger.columns.items():
        if column.dtype.kind not in "fi" or name in NOT_COMPARED or name in PLACES:
            continue
        values = column if column.dtype.kind == "f" else np.where(column == NULL_INT, np.nan, column)
        values = np.where(np.isfinite(values), values, np.nan)
        if name == "reward":
            status = ledger.get("reward_status")
            values = np.where((status == "ok") | _unknown(status), values, np.nan)
            yield _measure(SeriesName(name, UNKNOWN, "share"), np.isnan(values).astype(float))
        yield _measure(SeriesName(name), values)


def _values(ledger: Ledger, before: Mapping[str, set[str]]) -> Iterator[RowMeasure]:
    """Shares of how rollouts came out, among those that know it."""
    for name in sorted(OUTCOMES & ledger.columns.keys()):
        column = ledger.get(name)
        values = {value for value in column.tolist() if value is not None} | before.get(name, set())
        if values and len(values) <= MOST_PARTS:
            unknown = _unknown(column)
            for value in (NOTHING, *sorted(values)):
                held = np.where(unknown, np.nan, (column == value).astype(float))
                yield _measure(SeriesName(name, value, "share"), held)


def _flags(flagged: Mapping[str, np.ndarray], all_kept: bool, n: int) -> Iterator[RowMeasure]:
    """Shares of flags: of all rows, or of those traced at random for a flag that needs text."""
    for drawn in (False, True):
        yield _measure(nothing_of("flags", drawn), np.zeros(n), drawn)
    for name, hit in flagged.items():
        if not _is_fault(name):
            of_text = name in REGISTRY and needs_text(name) and not all_kept
            yield _measure(SeriesName("flags", name, "share"), hit.astype(float), of_text)


def nothing_of(column: str, drawn: bool) -> SeriesName:
    """The series of a value that no row has, among all rows or among those traced at random."""
    return SeriesName(column, NOTHING, "text" if drawn else "share")


def _flagged(ledger: Ledger, before: Iterable[str]) -> dict[str, np.ndarray]:
    found = {name: np.zeros(ledger.n_rows, bool) for name in before}
    for row, names in enumerate(ledger.get("flags").tolist()):
        for name in names or ():
            found.setdefault(name, np.zeros(ledger.n_rows, bool))[row] = True
    return found


def _unknown(column: np.ndarray) -> np.ndarray:
    return np.asarray([value is None for value in column.tolist()], bool)


def _measure(name: SeriesName, values: np.ndarray, drawn: bool = False) -> RowMeasure:
    def read() -> np.ndarray:
        return values

    return RowMeasure(name, read, drawn)


def _sums(rows: RunRows) -> np.ndarray:
    """float [5, M]: `FIELDS` of each measure, as `analysis.step_cells.StepCells` has them."""
    values = np.stack([measure.read() for measure in rows.measures])
    weight = np.stack([rows.weight if measure.drawn else np.ones(len(rows.at)) for measure in rows.measures])
    weight = np.where(np.isfinite(values), weight, 0.0)
    order = np.argsort(rows.unit, kind="stable")
    starts = np.flatnonzero(np.diff(rows.unit[order], prepend=-1))
    n_u = np.add.reduceat(weight[:, order], starts, axis=1)
    s_u = np.add.reduceat((np.nan_to_num(values) * weight)[:, order], starts, axis=1)
    n, many = n_u.sum(axis=1), (n_u > 0).sum(axis=1)
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = s_u.sum(axis=1) / n
        apart = np.where(n_u > 0, s_u - mean[:, None] * n_u, 0.0)
        squares = np.where(many > 1, (apart**2).sum(axis=1) * many / np.maximum(many - 1, 1), 0.0)
        mass = (n_u**2).sum(axis=1)
        return np.stack([mean, (weight > 0).sum(axis=1), squares, np.where(many > 1, mass, 0.0), mass / n**2])


TRAIL = 64
"""Steps that are remembered."""
REACH_OF_LOGGED = TRAIL // 2
"""Steps within which a movement of a logged number has to have begun: the other half of the trail says what was before."""
LENGTHS_OF_LOGGED = tuple(lengths(REACH_OF_LOGGED).tolist())
"""Steps of the windows of a logged number that are tried, and for which it is off when it is looked at again."""
BEYOND_MEMORY = 4.5
"""Errors by which the last steps of a logged number lie off for it to be looked at, against what each step takes from the one before: of jumps of five standard deviations two of 48 are lost, of eight none."""


def is_beyond_memory(values: np.ndarray) -> bool:
    """Tells whether the last steps of a number lie further off than it goes from one step to the next, by more than is worth a look.

    Least squares of each value on the one before it, with a leap and a level of the last steps and without them, against
    the median residual (Tsay 1988).

    Args:
        values: float [n].
    """
    n = len(values)
    values = values - np.median(values)
    at, now = np.arange(1, n), values[1:]
    usual = np.stack([np.ones(n - 1), values[:-1]], axis=1)
    rest = now - usual @ np.linalg.lstsq(usual, now)[0]
    floor = SMALLEST_ERROR * np.abs(values).max()
    for length in LENGTHS_OF_LOGGED:
        if n < length + FEWEST_STEPS - 1:
            break
        wider = np.column_stack([usual, at == n - length, at >= n - length])
        left = now - wider @ np.linalg.lstsq(wider, now)[0]
        scale = np.median(np.abs(left)) * DEVIATION + floor
        if rest @ rest - left @ left > (BEYOND_MEMORY * scale) ** 2:
            return True
    return False


def far_as_never(values_S_T: np.ndarray, seen: np.ndarray, ready: np.ndarray) -> dict[int, float]:
    """Finds the logged numbers whose last steps lie twice as far from the steps before them as any of the trail did, and how far.

    Args:
        values_S_T: float, the trail, the newest step last.
        seen: int [S], how many of its steps there were of each.
        ready: int [K], places of the numbers.
    """
    found: dict[int, float] = {}
    for n in np.unique(seen[ready]).tolist():
        at = ready[seen[ready] == n]
        values = values_S_T[at, TRAIL - n :]
        if n < NEIGHBOURS + 1:
            continue
        around = np.lib.stride_tricks.sliding_window_view(values, NEIGHBOURS, axis=1)
        before = np.partition(around, NEIGHBOURS // 2, axis=2)[..., NEIGHBOURS // 2]
        total = np.cumsum(values, axis=1)
        floor = SMALLEST_ERROR * np.abs(values).max(axis=1)
        for length in LENGTHS_OF_LOGGED:
            if n < FEWEST_STEPS + NEIGHBOURS + 2 * 2 * length:  # the longer, the more alike are neighbours
                break
            mean = (total[:, NEIGHBOURS + length - 1 :] - total[:, NEIGHBOURS - 1 : -length]) / length
            apart = mean - before[:, :-length]
            last, earlier = apart[:, -1], apart[:, :-length]
            beyond = (last > earlier.max(axis=1) + floor) | (last < earlier.min(axis=1) - floor)
            for i in np.flatnonzero(beyond).tolist():
                usual = np.median(earlier[i])
                if abs(last[i] - usual) > 2 * np.abs(earlier[i] - usual).max():
                    found.setdefault(int(at[i]), float(last[i] - usual))
    return found
