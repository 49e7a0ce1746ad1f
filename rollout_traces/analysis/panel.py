"""Series side by side: the figure of every measure at every step, over everything and over each part."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from rollout_traces.analysis.carriers import carried_by
from rollout_traces.analysis.curves import Part, Series, SeriesName, less_what_comes_again
from rollout_traces.analysis.group_shapes import OF_WHOLE_GROUPS
from rollout_traces.analysis.noise import OUTERMOST
from rollout_traces.analysis.run_rows import BY_OUTCOME, ROUNDING, RowMeasure, RunRows
from rollout_traces.analysis.step_cells import FEWEST_TOGETHER, StepCells, binomial, crowded

ALONE = 0.02
"""A part of fewer of the rows than this has no series: it cannot be told from chance."""
FEWEST_GROUPS = 2.0
"""Groups that a step has on average of a part by how rollouts came out, at least: of fewer it says what those groups are."""
LEAST_ERROR = 0.1
"""Error of a mean, of that of as many independent rows, at least: advantages add up to 0 in every group, and what they miss is nothing."""
FLOAT32 = np.finfo(np.float32).eps
"""Part of a number that its logged form need not carry: no mean is surer than this part of the largest value."""
HUGE = np.finfo(float).max ** (1 / 2 / 2)
"""A logged number beyond this, which no float32 holds, is taken for it: the squares of larger ones may be infinite."""
WIDE, FAR_LIKELIER = 10.0, 3.0
"""A logged scalar that is positive and differs by more than this factor is looked at as its logarithm, and one whose noise is by so much log
likelihood one of factors."""
AGAIN = 1 / 2
"""Part of the groups whose prompt is asked more than once, from which on prompts are told apart."""
ROUNDS = 3
"""Rounds in which steps and prompts are told apart, each beside the other."""


@dataclass(frozen=True)
class CarriedStep:
    """A step that a handful of rows carry.

    Attributes:
        n_rows: how many.
        level: of the step with them.
        log_p: log of the chance that as many lie as far out by themselves.
        apart: how far they lie from the middle of all rows, as a part of the step's mean, where they lie to both sides of
            it, so that the mean hardly shows them; 0 where they lie to one.
    """

    n_rows: int
    level: float
    log_p: float
    apart: float = 0.0


@dataclass(frozen=True, eq=False)
class Panel:
    """S series over the same T steps.

    Attributes:
        steps: int [T].
        names: S names.
        parts: S parts.
        values: float [S, T], NaN where there is none; the mix of sources and prompts is taken out.
        errors: float [S, T], variance of each value from its groups; 0 where it is not known.
        rows: float [S, T], rows behind each.
        groups: float [S, T], groups of those; as many as rows where none are known.
        parents: S columns, each what the series is computed from.
        source: the rows that it was made of; None for logged scalars.
        measure: the measure, where all series are of one.
        levels: float [S, T], as a person reads them.
        tails: float [S], degrees of freedom of the tails of a mean, by those of its groups; NaN where it is not known.
        carried: position of a step -> the rows that carry it, set aside in `values`.
        is_share: whether a row is 0 or 1, so that its mean is a share of rows.
        control: float [S], how much of what the rest of the rows did is taken off; 0 for all rows.
        is_centred: whether the mean over all rows, or their sum, is always the same, as that of advantages or of parts of an
            update is: what one part gains others lose.
    """

    steps: np.ndarray
    names: tuple[SeriesName, ...]
    parts: tuple[Part, ...]
    values: np.ndarray
    errors: np.ndarray
    rows: np.ndarray
    groups: np.ndarray
    parents: tuple[str, ...]
    levels: np.ndarray
    tails: np.ndarray = field(default_factory=lambda: np.empty(0))
    source: RunRows | None = None
    measure: RowMeasure | None = None
    carried: Mapping[int, CarriedStep] = field(default_factory=dict)
    is_share: bool = False
    control: np.ndarray = field(default_factory=lambda: np.empty(0))
    is_centred: bool = False

    @property
    def beside_rest(self) -> np.ndarray:
        """bool [S]: whether a series is, for the most, what a part did beside the rest, in which nothing is that all do."""
        return self.control > 1 / 2


@dataclass(frozen=True)
class _Values:
    """Values of a measure as they were read; arrays are float [N].

    Attributes:
        plain: values without the rows that carry a step.
        values: the same as they compare between steps, less what a mix of sources and prompts explains.
        of_all: those that the series over everything is of.
        weight: of each row, where rows are kept by chance.
        carried: position of a step -> the rows that carry it.
        is_share: whether all values are 0 or 1.
        is_centred: whether a step's mean or sum is always the same.
        between: variance between all rows.
        within: variance of rows around the mean of their group.
        rounding: variance of float32.
    """

    plain: np.ndarray
    values: np.ndarray
    of_all: np.ndarray
    weight: np.ndarray | None
    carried: Mapping[int, CarriedStep]
    is_share: bool
    is_centred: bool
    between: float
    within: float
    rounding: float


class Parting:
    """The ways in which rows are parted, each prepared once.

    Args:
        rows: the rows.
    """

    def __init__(self, rows: RunRows) -> None:
        self.rows = rows
        self._cells: dict[str, StepCells] = {}
        self.sources = rows.parts["source"][0] if "source" in rows.parts else None

    def cells(self, column: str = "") -> StepCells:
        """The cells of a way to part the rows."""
        if column not in self._cells:
            self._cells[column] = StepCells(self.rows, column, self.cells() if column else None)
        return self._cells[column]

    def panel(self, measure: RowMeasure) -> Panel | None:
        """The series of a measure over everything and over each part; None where no row knows it.

        Rows that carry a step are set aside: what a handful of them do is said of them, and of no part.

        Args:
            measure: the measure.
        """
        rows, read = self.rows, self._read(measure)
        left_out = {column for column in rows.parts if f"/{measure.name.column}".endswith(f"/{column}")}
        if left_out.difference(BY_OUTCOME) or measure.of == measure.name.column:
            left_out.update(BY_OUTCOME)  # who sampled a rollout does not follow from how it came out
        if self._is_of_groups(read):
            left_out.update(rows.cutting)
        found = [
            each
            for column in ("", *rows.parts)
            if column not in left_out
            for each in self._series(read, column)
        ]
        largest = _largest(read.plain)
        moving = [_moves(each[1], largest) for each in found]
        if not any(moving):
            return None
        found = [
            each if moves else (each[0], _still(each[1]), *each[2:])
            for each, moves in zip(found, moving, strict=True)
        ]
        size = len(found)
        parts = tuple(part for part, *_ in found)
        mean, variance, n, n_groups, level, tails, control = (
            np.stack([each[i] for each in found]) for i in range(1, 8)
        )
        return Panel(
            rows.steps,
            (measure.name,) * size,
            parts,
            mean,
            variance,
            n,
            n_groups,
            (measure.parent,) * size,
            level,
            tails,
            rows,
            measure,
            read.carried,
            read.is_share,
            control,
            read.is_centred,
        )

    def _is_of_groups(self, read: _Values) -> bool:
        """Tells whether all rollouts of a group have one value, as what says that its rewards are equal."""
        return read.within <= ROUNDING * read.between

    def _read(self, measure: RowMeasure) -> _Values:
        """The values of a measure without the rows that carry a step, and what is known of all of them."""
        rows = self.rows
        plain = measure.read()
        weight = rows.weight if measure.drawn else None
        known = _known(plain, np.isfinite(plain))
        between = float(np.var(known)) if len(known) else 0.0
        may_be_centred = not measure.drawn and measure.name.column not in OF_WHOLE_GROUPS
        is_centred, values = self._centred(plain, between) if may_be_centred else (False, plain)
        handful = carried_by(rows, measure, values)
        without = handful.rows
        carried = {}
        if len(without):
            whole = self.cells().means(plain, weight)[0]
            at, n_steps = rows.at[without], len(rows.steps)
            off = plain[without] - np.nanmedian(plain)
            above, below = np.bincount(at, off > 0, n_steps), np.bincount(at, off < 0, n_steps)
            far = np.bincount(at, np.abs(off), n_steps) / np.maximum(rows.per_step, 1.0)
            carried = {
                i: CarriedStep(
                    int(above[i] + below[i]),
                    float(whole[i]),
                    p,
                    float(far[i]) if above[i] and below[i] else 0.0,
                )
                for i, p in handful.log_p.items()
            }
            plain, values = plain.astype(float), values.astype(float)
            plain[without] = values[without] = np.nan
            known = _known(plain, np.isfinite(plain))
            between = float(np.var(known)) if len(known) else 0.0
        of_all = values
        if measure.name.column.rsplit("/", 1)[-1] != "source":
            values = self._less_mix(values, weight)
        return _Values(
            plain,
            values,
            of_all if is_centred else values,
            weight,
            carried,
            is_share=bool(((known == 0) | (known == 1)).all()),
            is_centred=is_centred,
            between=between,
            within=self._within(values),
            rounding=(float(FLOAT32) * _largest(values)) ** 2,
        )

    def _series(self, read: _Values, column: str) -> Iterator[tuple[Any, ...]]:
        """Of each part by a column, or of everything: the part, its values, variances, rows, groups, levels, tail and control."""
        cells = self.cells(column)
        sums = cells.sums(read.values if column else read.of_all, read.weight, read.within, read.between)
        value, variance, control = sums.mean, sums.variance, np.zeros(len(sums.mean))
        if column:
            inside = (
                None if read.is_centred else cells.inside_groups(sums, read.values, read.weight, read.within)
            )
            value, variance, control = inside or cells.beside_the_rest(sums, read.between)
        n, n_groups = sums.n, sums.n_groups.reshape(sums.n.shape)
        level = sums.mean if read.plain is read.values else cells.means(read.plain, read.weight)
        variance = np.maximum(variance, read.rounding + LEAST_ERROR**2 * read.between / np.maximum(n, 1.0))
        if read.is_share:
            more = crowded(sums.mean, n) if column else 1.0
            variance = np.maximum(variance * more, binomial(sums.mean, n))
        total = n.sum(axis=1)
        keep = total > (ALONE * total.sum() if column else 0)
        if column in BY_OUTCOME:
            keep &= n_groups.sum(axis=1) >= FEWEST_GROUPS * (n_groups > 0).sum(axis=1)
        for i in np.flatnonzero(keep).tolist():
            yield (
                cells.parts[i],
                value[i],
                variance[i],
                n[i],
                n_groups[i],
                level[i],
                sums.tails[i],
                control[i],
            )

    def _centred(self, values: np.ndarray, between: float) -> tuple[bool, np.ndarray]:
        """Tells whether a step's mean or sum is always the same, and float [N], the values as they compare between steps.

        Of what adds up to the same each is larger where there are few.

        Args:
            values: float [N].
            between: variance of all of them.
        """
        cells = self.cells()
        n, total = (np.bincount(cells.at, each, cells.n_steps) for each in cells.of_units(values, None))
        known, total = n[n > 0], total[n > 0]
        if not len(known):
            return False, values
        least = LEAST_ERROR**2 * between / known
        if _is_constant(total / known, least):
            return True, values
        if _is_constant(total, least * known**2):
            return True, values * (n / known.mean())[self.rows.at]
        return False, values

    def _within(self, values: np.ndarray) -> float:
        """The variance of rows around the mean of their group; 0 where no group has two."""
        n, total = self.cells().of_units(values, None)
        known = _known(values, np.isfinite(values))
        middle = float(known.mean()) if len(known) else 0.0
        apart, total = known - middle, total - n * middle
        freedom = np.maximum(n - 1, 0).sum()
        squares = float(np.einsum("i,i->", apart, apart))  # BLAS would start threads, which spin
        return max(squares - float((total**2 / np.maximum(n, 1)).sum()), 0.0) / freedom if freedom else 0.0

    def _less_mix(self, values: np.ndarray, weight: np.ndarray | None) -> np.ndarray:
        """float [N]: values less the usual level of their source and of their prompt, so that a mix is no movement."""
        values = values if weight is None else np.where(weight > 0, values, np.nan)
        if self.sources is not None and (self.sources >= 0).all():
            cells = self.cells("source")
            n, total = (np.bincount(cells.value, each) for each in cells.of_units(values, None))
            if n.any():
                usual = total / np.maximum(n, 1)
                values = values - (usual - np.average(usual, weights=n))[self.sources]
        return values - self._of_prompts(values)[self.rows.unit] if self._is_visited else values

    def _of_prompts(self, values: np.ndarray) -> np.ndarray:
        """float [U]: what the other visits of its prompt, net of their steps, say of each group (best linear prediction, Henderson 1975).

        No group is compared with itself, so that how groups differ still says how sure a mean of them is.

        Args:
            values: float [N], NaN where unknown.
        """
        at, prompt = self._visits
        n, total = self.cells().of_units(values, None)
        known = (n > 0) & (prompt >= 0)
        mean, weight = np.where(known, total / np.maximum(n, 1), 0.0), np.where(known, n, 0.0)
        expected = np.zeros(len(at))
        here = slice(None) if known.all() else known
        asked = prompt[here]
        if _is_given(mean[here], asked):
            return expected
        of_step = np.maximum(np.bincount(at, weight), 1)
        visits = np.bincount(asked, minlength=prompt.max() + 1)
        others, again = np.maximum(visits[prompt] - 1, 0), max(int(np.maximum(visits - 1, 0).sum()), 1)
        for _ in range(ROUNDS):
            apart = np.where(known, mean - (np.bincount(at, weight * (mean - expected)) / of_step)[at], 0.0)
            of_prompt = np.bincount(asked, apart[here], len(visits))
            squares = float((apart**2).sum())
            own = max(squares - float((of_prompt**2 / np.maximum(visits, 1)).sum()), 0.0) / again
            shared = max(squares / max(known.sum(), 1) - own, 0.0)
            reliable = shared / np.maximum(shared * np.maximum(others, 1) + own, np.finfo(float).tiny)
            expected = np.where(known & (others > 0), reliable * (of_prompt[prompt] - apart), 0.0)
        return expected

    @cached_property
    def _visits(self) -> tuple[np.ndarray, np.ndarray]:
        """int [U] each: the step and the prompt of each group."""
        rows = self.rows
        at, prompt = (np.zeros(int(rows.unit.max()) + 1, np.int64) for _ in range(2))
        at[rows.unit], prompt[rows.unit] = rows.at, rows.prompt
        return at, prompt

    @cached_property
    def _is_visited(self) -> bool:
        """Tells whether prompts come again often enough to say how they differ."""
        if not len(self.rows.prompt):
            return False
        prompt = self._visits[1]
        return bool((np.bincount(prompt[prompt >= 0])[prompt[prompt >= 0]] > 1).sum() > AGAIN * len(prompt))


def _largest(values: np.ndarray) -> float:
    known = _known(values, np.isfinite(values))
    return max(float(known.max(initial=0.0)), -float(known.min(initial=0.0)))


def _known(values: np.ndarray, there: np.ndarray) -> np.ndarray:
    return values if there.all() else values[there]


def _is_given(mean: np.ndarray, prompt: np.ndarray) -> bool:
    """Tells whether most visits of a prompt show what its first one did, float and int [U]: what a prompt is, as its length, says nothing of its other visits."""
    first = np.zeros(prompt.max(initial=0) + 1)
    first[prompt[::-1]] = mean[::-1]
    again = len(mean) - int((np.bincount(prompt) > 0).sum())
    return int((mean == first[prompt]).sum()) - (len(mean) - again) > again / 2


def _is_constant(values: np.ndarray, least: np.ndarray) -> bool:
    """Tells whether a series without gaps differs by less than the variance that its values have at least."""
    return bool(np.var(values) < np.median(least))


def _moves(values: np.ndarray, largest: float) -> bool:
    """Tells whether a series is more than one value and rounding."""
    known = values[np.isfinite(values)]
    return len(known) > 1 and bool(np.ptp(known) > ROUNDING * largest)


def _still(values: np.ndarray) -> np.ndarray:
    """A series that is one value and rounding, without the rounding."""
    known = np.isfinite(values)
    return np.where(known, np.median(values[known]) if known.any() else 0.0, np.nan)


def logged_panels(series: Iterable[Series]) -> list[Panel]:
    """Panels of series that are there already, those over the same steps together."""
    by_steps: dict[tuple[bytes, str], list[Series]] = {}
    for each in series:
        by_steps.setdefault((each.steps.tobytes(), each.name.statistic), []).append(each)
    return [_panel_of(same) for same in by_steps.values()]


def _panel_of(same: Sequence[Series]) -> Panel:
    values = np.stack([each.values for each in same]).astype(float)
    values = levels = np.clip(np.where(np.isfinite(values), values, np.nan), -HUGE, HUGE)
    low, high = np.nanmin(values, axis=1), np.nanmax(values, axis=1)
    by_factors = (low > 0) & ((high > WIDE * low) | _has_factors(values))
    values = np.where(by_factors[:, None], np.log(np.where(by_factors[:, None], values, 1.0)), values)
    if same[0].name.statistic == "logged":
        values = np.stack([less_what_comes_again(each) for each in values])
    errors = np.stack(
        [np.nan_to_num(each.errors) ** 2 if len(each.errors) else np.zeros(len(each.steps)) for each in same]
    )
    rows = np.stack([each.rows if len(each.rows) else np.ones(len(each.steps)) for each in same])
    return Panel(
        same[0].steps,
        tuple(s.name for s in same),
        tuple(s.part for s in same),
        values,
        errors,
        rows,
        rows,
        tuple(s.parent for s in same),
        levels,
        np.full(len(same), np.nan),
        control=np.zeros(len(same)),
        is_share=same[0].name.statistic == "share",
    )


def _has_factors(values_S_T: np.ndarray) -> np.ndarray:
    """bool [S]: whether what the steps of positive series lie from their neighbours is far likelier normal in their logarithms (Box and Cox 1964)."""
    found = np.zeros(len(values_S_T), bool)
    for i, values in enumerate(values_S_T):
        known = values[np.isfinite(values)]
        if len(known) < FEWEST_TOGETHER or known.min() <= 0:
            continue
        logs = np.log(known)
        plain, by_factors = (
            float(np.sort((each[1:-1] - (each[:-2] + each[2:]) / 2) ** 2)[:-OUTERMOST].mean())
            for each in (known, logs)
        )
        if min(plain, by_factors) > 0:
            gained = (np.log(plain) - 2 * logs.mean() - np.log(by_factors)) * len(known) / 2
            found[i] = gained > FAR_LIKELIER
    return found


NAMED = ("names", "parts", "parents")
FIGURES = ("values", "errors", "rows", "groups", "levels", "tails", "control")
"""Fields of a panel with one entry a series: tuples, and arrays."""


def one_of(panel: Panel, at: Sequence[int]) -> Panel:
    """Takes some of the series of a panel."""
    rows = np.asarray(at, np.int64)
    found: dict[str, Any] = {name: tuple(getattr(panel, name)[i] for i in at) for name in NAMED}
    found |= {name: getattr(panel, name)[rows] for name in FIGURES}
    return replace(panel, **found)


def stacked(panels: Sequence[Panel]) -> Panel:
    """Joins panels over the same steps; what else is known is the first one's."""
    found: dict[str, Any] = {
        name: tuple(each for panel in panels for each in getattr(panel, name)) for name in NAMED
    }
    found |= {name: np.concatenate([getattr(panel, name) for panel in panels]) for name in FIGURES}
    return replace(panels[0], **found)


def rows_of(rows: RunRows, part: Part) -> np.ndarray:
    """bool [N]: the rows of a part; values of one column are alternatives, columns go together."""
    held = np.ones(len(rows.at), bool)
    for column in dict.fromkeys(name for name, _ in part):
        codes, values = rows.parts[column]
        wanted = [values.index(value) for name, value in part if name == column]
        held &= np.isin(codes, wanted)
    return held
