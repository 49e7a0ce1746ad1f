"""What a rollout wears: what is abnormal for its run. The other flags are said once, of the run or of the group.

A flag is usual for a run, a property of it, when more than a tenth of the rollouts in its first 20 steps carry it.
Several flags that are each below that can still mark every fifth row: the most frequent of them are usual as well,
until the shares of the rest add up to no more than a twentieth. Rows wear what is usual only while an incident of it
is open: when it rose. Flags of severity `error` are never usual.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from rollout_traces.alarms.counts import Counts
from rollout_traces.alarms.incidents import FIRST_STEPS, MARGIN, MIN_GROUPS, MIN_ROWS, Incident
from rollout_traces.alarms.signals import EVERYWHERE, StepSignals
from rollout_traces.flags import REGISTRY

WORN_BY = 0.05
"""Flags that are not usual are carried by no more of a run's first rollouts than this, in sum."""


@dataclass(frozen=True)
class Usual:
    """A flag that is a property of a run.

    Attributes:
        name: the flag.
        share: of the rollouts in the run's first steps.
        n: rollouts that this is a share of; those read at random for a flag that needs text.
        until: the last of those steps.
    """

    name: str
    share: float
    n: int
    until: int


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
        """What it wears, without what that explains."""
        return tuple(name for name, _ in self.worn)


def usual_flags(steps: Iterable[StepSignals]) -> dict[str, Usual]:
    """The flags that are properties of a run, by name.

    Args:
        steps: its first steps, ascending; no more than `FIRST_STEPS` are looked at.
    """
    counts: dict[str, Counts] = {}
    until = 0
    for _, step in zip(range(FIRST_STEPS), steps, strict=False):
        until = step.step
        for name, seen in step.carriers.items():
            counts[name] = counts.get(name, Counts()) + seen
    known = {
        name: seen
        for name, seen in counts.items()
        if REGISTRY[name].severity != "error" and seen.n >= MIN_ROWS and seen.n_groups >= MIN_GROUPS
    }
    worn_by = sum(seen.share for name, seen in known.items() if not REGISTRY[name].of_group)
    usual = {}
    for name, seen in sorted(known.items(), key=lambda item: -item[1].share):
        of_group = REGISTRY[name].of_group
        if seen.share > MARGIN or (worn_by > WORN_BY and not of_group):
            usual[name] = Usual(name, seen.share, int(seen.n), until)
            worn_by -= 0.0 if of_group else seen.share
    return usual


def worn(
    flags: Sequence[str],
    step: int,
    source: str | None,
    usual: Mapping[str, Usual],
    incidents: Collection[Incident],
) -> Worn:
    """Separates a row's flags.

    Args:
        flags: their names.
        step: the row's step.
        source: its source.
        usual: the run's properties.
        incidents: the run's, of the row's split.
    """
    children = nested(flags)
    explained = {child for names in children.values() for child in names}
    risen = risen_at(step, source, incidents)
    wearing, as_usual, of_group = [], [], []
    for name in dict.fromkeys(flags):
        spec = REGISTRY.get(name)
        if name in explained:
            continue
        if spec is not None and spec.of_group:
            of_group.append(name)
        elif name in usual and name not in risen:
            as_usual.append(name)
        else:
            wearing.append(name)
    wearing.sort(key=_rank)
    return Worn(tuple((name, children.get(name, ())) for name in wearing), tuple(as_usual), tuple(of_group))


def risen_at(step: int, source: str | None, incidents: Collection[Incident]) -> set[str]:
    """The flags of incidents that are open at a step, everywhere or for a source: what is usual rose there."""
    return {
        name
        for incident in incidents
        if incident.covers(step) and incident.source in (EVERYWHERE, source)
        for name in (incident.signal, *incident.children)
    }


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


def _rank(name: str) -> int:
    spec = REGISTRY.get(name)
    return ("error", "warn", "info").index(spec.severity) if spec is not None else 1
