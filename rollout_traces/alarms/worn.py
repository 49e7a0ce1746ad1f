"""Flags that a rollout wears: what is abnormal for its run. The other flags are said once, of the run or of the group.

A flag is usual for a run, a property of it, when more than a tenth of the rollouts in its first 20 steps carry it.
Several flags that are each below that can still mark every fifth row: the most frequent of them are usual as well,
until the shares of the rest add up to no more than a twentieth. Rows wear what is usual only while it is risen: where
the detector finds a movement of its share, up, for all rows or for the row's source, sure or perhaps noise that lasts. Flags
of severity `error` are never usual.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from rollout_traces.analysis.compete import span
from rollout_traces.analysis.curves import Part
from rollout_traces.analysis.detect import movements
from rollout_traces.analysis.detected_movement import Moved
from rollout_traces.analysis.panel import Parting
from rollout_traces.analysis.run_rows import RowMeasure, RunRows, read_rows
from rollout_traces.analysis.screen import FEWEST_STEPS, all_noise, all_screened, limits, shares_of
from rollout_traces.analysis.selections import RunScope
from rollout_traces.analysis.severity import is_expected
from rollout_traces.flags import REGISTRY

FIRST_STEPS = 20
"""Steps whose shares are usual for the run."""
FEWEST_ROWS = 20
"""Rollouts of them that are enough to tell."""
USUAL_FROM = 0.1
"""A flag that more of them carry is usual."""
WORN_BY = 0.05
"""Flags that are not usual are carried by no more of a run's first rollouts than this, in sum."""


@dataclass(frozen=True)
class Usual:
    """A flag that is a property of a run.

    Attributes:
        name: the flag.
        share: of the rollouts in the run's first steps.
        n: rollouts that this is a share of; those read at random for a flag that needs text.
    """

    name: str
    share: float
    n: int


@dataclass(frozen=True)
class Rise:
    """Steps at which more rollouts carry a usual flag.

    Attributes:
        name: the flag.
        first: the first of them.
        last: the last of them; None where it lasts.
        part: whose; () for all rows.
    """

    name: str
    first: int
    last: int | None
    part: Part = ()

    def covers(self, step: int, source: str | None) -> bool:
        """Tells whether it is there at a step of a source."""
        return (
            self.first <= step
            and (self.last is None or step <= self.last)
            and (not self.part or ("source", source) in self.part)
        )


@dataclass(frozen=True)
class Worn:
    """A row's flags, in kinds.

    Attributes:
        worn: abnormal for the run, the worst first; with the flags that each explains.
        usual: properties of the run.
        of_group: said of its group.
    """

    worn: tuple[tuple[str, tuple[str, ...]], ...] = ()
    usual: tuple[str, ...] = ()
    of_group: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """Their names alone, without what explains them."""
        return tuple(name for name, _ in self.worn)


def usual_flags(scope: RunScope) -> dict[str, Usual]:
    """The flags that are properties of a run, by name.

    Args:
        scope: the run and split.
    """
    query = f"select distinct step from rollouts where {scope.scope} order by step limit {FIRST_STEPS}"
    steps = scope.relations.sql(query, scope.params).column("step").to_pylist()
    if not steps or not scope.columns.has("flags"):
        return {}
    rows = _flagged(replace(scope, within=(int(steps[0]), int(steps[-1]))))
    known = {}
    for measure in rows.measures:
        name, values = str(measure.name.value), measure.read()
        weight = np.where(np.isfinite(values), rows.weight if measure.drawn else 1.0, 0.0)
        n = int((weight > 0).sum())
        if n >= FEWEST_ROWS and not _is_fault(name):
            known[name] = Usual(name, float(np.nansum(values * weight) / weight.sum()), n)
    return chosen(known)


def chosen(known: Mapping[str, Usual]) -> dict[str, Usual]:
    """Lists the flags of a run that are usual, the most frequent first.

    Args:
        known: all of them, with their shares.
    """
    usual = {}
    worn_by = sum(each.share for name, each in known.items() if not _of_group(name))
    for name, each in sorted(known.items(), key=lambda item: -item[1].share):
        if each.share > USUAL_FROM or (worn_by > WORN_BY and not _of_group(name)):
            usual[name] = each
            worn_by -= 0.0 if _of_group(name) else each.share
    return usual


def rises(scope: RunScope, names: Collection[str]) -> list[Rise]:
    """Finds the steps at which more rollouts carry a flag than usual.

    Args:
        scope: the run and split.
        names: the flags.
    """
    if not names:
        return []
    rows = _flagged(scope)
    if len(rows.steps) < FEWEST_STEPS:
        return []
    parting = Parting(rows)
    panels = [parting.panel(measure) for measure in rows.measures if measure.name.value in names]
    there = [panel for panel in panels if panel is not None]
    noises = all_noise(there)
    allowed, _ = limits(
        [log_p for log_p, _ in all_screened(there, noises)], [shares_of(each) for each in there]
    )
    return [
        Rise(str(panel.names[0].value), *span(found), found.chosen.values or ())
        for panel, noise, limit in zip(there, noises, allowed, strict=True)
        for found in movements(panel, noise, limit, limit)
        if found.located.z > 0 and not is_expected(found) and not _is_how_it_is(found)
    ]


def _is_how_it_is(found: Moved) -> bool:
    """Tells whether a movement lasts from so early on that few steps say what was usual before it."""
    return found.template.kind != "window" and found.template.start < FEWEST_STEPS


def _flagged(scope: RunScope) -> RunRows:
    """A run's rollouts with their flags, parted by source."""
    columns = scope.columns
    texts = tuple(name for name in columns.texts if name == "source")
    tags = tuple(name for name in columns.tags if name == "flags")
    rows = read_rows(replace(scope, columns=replace(columns, numbers=(), texts=texts, tags=tags)))
    return replace(rows, measures=list(_of_flags(rows)))


def _of_flags(rows: RunRows) -> Iterator[RowMeasure]:
    return (measure for measure in rows.measures if measure.name.column == "flags")


def worn(
    flags: Sequence[str],
    step: int,
    source: str | None,
    usual: Mapping[str, Usual],
    risen: Collection[Rise],
) -> Worn:
    """Separates a row's flags.

    Args:
        flags: their names.
        step: the row's step.
        source: its source.
        usual: the run's properties.
        risen: where more rollouts carry them.
    """
    children = nested(flags)
    explained = {child for names in children.values() for child in names}
    here = risen_at(step, source, risen)
    wearing, as_usual, of_group = [], [], []
    for name in dict.fromkeys(flags):
        if name in explained:
            continue
        if _of_group(name):
            of_group.append(name)
        elif name in usual and name not in here:
            as_usual.append(name)
        else:
            wearing.append(name)
    wearing.sort(key=_rank)
    return Worn(tuple((name, children.get(name, ())) for name in wearing), tuple(as_usual), tuple(of_group))


def risen_at(step: int, source: str | None, risen: Collection[Rise]) -> set[str]:
    """The flags that more rollouts of a source carry at a step than is usual."""
    return {rise.name for rise in risen if rise.covers(step, source)}


def nested(flags: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Cause -> the flags of the same row that it explains, at first or second hand; a cause is explained by none."""
    found: dict[str, tuple[str, ...]] = {}
    for name in dict.fromkeys(flags):
        cause, passed = _cause(name, flags), {name}
        while cause is not None and cause not in passed and (further := _cause(cause, flags)) is not None:
            passed.add(cause)
            cause = further
        if cause is not None and cause != name:
            found[cause] = (*found.get(cause, ()), name)
    return found


def _cause(name: str, flags: Sequence[str]) -> str | None:
    spec = REGISTRY.get(name)
    return next((known for known in (spec.explained_by if spec else ()) if known in flags), None)


def _of_group(name: str) -> bool:
    return name in REGISTRY and REGISTRY[name].of_group


def _is_fault(name: str) -> bool:
    return name in REGISTRY and REGISTRY[name].severity == "error"


def _rank(name: str) -> int:
    spec = REGISTRY.get(name)
    return ("error", "warn", "info").index(spec.severity) if spec is not None else 1
