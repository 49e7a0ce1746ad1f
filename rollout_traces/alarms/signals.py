"""What is watched: for each step, how many rollouts carry each flag, by source, and the means that may move."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Literal

import numpy as np

from rollout_traces.alarms.counts import Counts, Grouped
from rollout_traces.flags import REGISTRY, FlagSpec, needs_text
from rollout_traces.flags.base import Severity
from rollout_traces.flags.registry import ALERT_ABOVE, alert_limits
from rollout_traces.ledger.columns import NULL_INT, Ledger

Direction = Literal["up", "both"]
EVERYWHERE = ""
"""The source that stands for all rows."""
TOOL_ERROR = "tool_error"
TRUNCATED = "truncated"
REWARD_FAILURE = "reward_failure"
MISMATCH = "mismatch"
ENTROPY = "entropy"
DRAWN = ("random", "fixed_prompts", "panel")
"""Reasons for which a row was kept that look at no outcome: at random, and prompts by their hash. They tell shares."""
SETTLING = frozenset({"stale", "mixed_versions"})
"""Flags that grow from nothing while a run fills its queue of rollouts: no version is older than the run itself."""
LEVEL_EFFECT = 0.3
"""A mean has to move by this part of what it was."""
MISMATCH_EFFECT = 1.0
"""The mismatch has to double: it is about half the mean square of d, so d itself grows by 1.4."""
_BROKEN_TEXT = ("empty_completion", "thinking_unclosed", "gibberish", "repetition", "loop")
FOLLOWS_IN_A_RUN: Mapping[str, tuple[str, ...]] = {
    "duplicate_completions": _BROKEN_TEXT,
    "tied_group": ("duplicate_completions", "truncated", "tool_call_unparsed", "no_end_marker"),
    MISMATCH: ("logprob_mismatch", "logprob_out_of_range"),
    ENTROPY: ("logprob_out_of_range",),
}
"""Signal -> signals whose incident tells it as well, beside the flags that explain it on a rollout: completions that
are broken in one way are alike, and alike ones are rewarded alike."""


@dataclass(frozen=True)
class Signal:
    """One thing that is watched.

    Attributes:
        name: a flag's name, or one of `reward_failure`, `mismatch`, `entropy`.
        severity: what its incidents have.
        meaning: a few words: what it counts or measures.
        limit: the share above which it is abnormal; None: only a change is.
        changes: whether a change against the steps before is looked for; `both` where a fall matters too.
        explained_by: signals whose open incident tells the same fact, at first or second hand.
        settles: it grows while the run begins, and is judged only after the run's first steps.
        effect: the part of what it was by which a mean has to move.
    """

    name: str
    severity: Severity
    meaning: str
    limit: float | None = None
    changes: Direction | None = None
    explained_by: tuple[str, ...] = ()
    settles: bool = False
    effect: float = LEVEL_EFFECT


@dataclass(frozen=True)
class Level:
    """A mean over rows.

    Attributes:
        n: rows.
        n_groups: groups that they come from.
        total: sum of their values.
    """

    n: int
    n_groups: int
    total: float

    def as_plain(self) -> list[float]:
        """The fields in order."""
        return [self.n, self.n_groups, self.total]

    @property
    def mean(self) -> float:
        """The mean; NaN of nothing."""
        return self.total / self.n if self.n else float("nan")


@dataclass(frozen=True)
class StepSignals:
    """What was seen in one step of one split.

    Attributes:
        step: the trainer's global step.
        shares: (signal, source) -> its counts; the source is `EVERYWHERE` for all rows.
        levels: signal -> its mean over all rows.
        n_raised: (signal, source) -> all rows that carry it, kept ones that were not drawn at random included.
        carriers: flag -> the rollouts that carry it, of all sources; of those read at random for a flag that
            needs text.
    """

    step: int
    shares: Mapping[tuple[str, str], Counts]
    levels: Mapping[str, Level] = field(default_factory=dict)
    n_raised: Mapping[tuple[str, str], int] = field(default_factory=dict)
    carriers: Mapping[str, Counts] = field(default_factory=dict)


def watched(parameters: Mapping[str, Any] | None = None) -> dict[str, Signal]:
    """All signals by name.

    Args:
        parameters: `<flag>.alert_above` over the flags' own limits; None there: that flag opens no incident.
    """
    limits = {key: value for key, value in (parameters or {}).items() if key.endswith(f".{ALERT_ABOVE}")}
    return dict(_watched(tuple(REGISTRY.values()), tuple(sorted(limits.items()))))


@lru_cache(16)
def _watched(
    specs: tuple[FlagSpec, ...], declared: tuple[tuple[str, float | None], ...]
) -> dict[str, Signal]:
    parameters = dict(declared)
    errors = {spec.name: 0.0 for spec in specs if spec.severity == "error"}
    silent = {spec.name for spec in specs if parameters.get(f"{spec.name}.{ALERT_ABOVE}", 0.0) is None}
    limits = {**errors, **alert_limits(parameters)}
    changing = {TOOL_ERROR, TRUNCATED}
    signals = {
        spec.name: Signal(
            spec.name,
            spec.severity,
            spec.meaning,
            limits.get(spec.name),
            "up" if spec.name in changing else None,
            _causes(spec.name),
            spec.name in SETTLING,
        )
        for spec in specs
        if spec.name not in silent
    }
    extra = (
        Signal(REWARD_FAILURE, "warn", "the reward function failed or timed out", None, "up"),
        Signal(
            MISMATCH, "warn", "mean e^d - d - 1 of the row, d = prox minus rollout logprob", None, "up",
            _causes(MISMATCH), effect=MISMATCH_EFFECT,
        ),
        Signal(ENTROPY, "warn", "mean -log p of the sampled tokens, nats", None, "both", _causes(ENTROPY)),
    )  # fmt: skip
    return signals | {signal.name: signal for signal in extra}


def _causes(name: str) -> tuple[str, ...]:
    """The signals that explain one, at first or second hand: a cause has fewer than what it explains."""
    found: dict[str, None] = {}
    left = [name]
    while left:
        one = left.pop()
        for cause in (*explained_by(one), *FOLLOWS_IN_A_RUN.get(one, ())):
            if cause not in found and cause != name:
                found[cause] = None
                left.append(cause)
    return tuple(found)


def unexplained(names: Sequence[str]) -> list[str]:
    """A row's flags without those that another one of the row explains."""
    present = set(names)
    return [name for name in names if not present & set(explained_by(name))]


def signals_of(ledger: Ledger, step: int) -> StepSignals:
    """Counts a step's rows.

    A flag that is found without text is counted among all rows. One that needs text is known of kept rows
    alone: it is counted among those drawn without a look at what came out (all rows, where all were kept).

    Args:
        ledger: all rollouts of the step and split.
        step: the step.
    """
    seen = _Seen(ledger)
    counted = _counted_flags(tuple(REGISTRY.values()))
    shares: dict[tuple[str, str], Counts] = {}
    n_raised: dict[tuple[str, str], int] = {}
    carriers: dict[str, Counts] = {}
    for source, rows in seen.sources.items():
        read = rows & seen.read
        of_all = Grouped(seen.groups[rows])
        of_read = Grouped(seen.groups[read]) if read.any() else None
        known = {
            name: (of_read if is_of_read else of_all).nothing  # type: ignore[union-attr]
            for name, is_of_read in counted
            if not is_of_read or of_read is not None
        }
        n_raised |= dict.fromkeys(((name, source) for name, _ in counted), 0)
        for name, hit in seen.flagged.items():
            n_raised[name, source] = int((hit & rows).sum())
            grouped, seen_rows = (of_read, read) if of_read_rows(name) else (of_all, rows)
            if grouped is not None:
                known[name] = grouped.count(hit[seen_rows])
        if source == EVERYWHERE:
            carriers = known
        shares |= {(name, source): counts for name, counts in known.items() if name != TOOL_ERROR}
        _add_others(shares, n_raised, seen, source, rows)
    return StepSignals(step, shares, _levels(seen), n_raised, carriers)


class _Seen:
    """A step's rows as arrays.

    Args:
        ledger: all rollouts of the step and split.
    """

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.groups = ledger.get("group")
        kept = np.asarray([uid is not None for uid in ledger.get("trace_uid").tolist()], bool)
        drawn = np.asarray([reason in DRAWN for reason in ledger.get("selected_by").tolist()], bool)
        self.read = kept if kept.all() else kept & drawn
        self.sources = _sources(ledger)
        self.flagged: dict[str, np.ndarray] = {}
        for row, flags in enumerate(ledger.get("flags").tolist()):
            for name in unexplained(flags) if flags else ():
                if name in REGISTRY:
                    self.flagged.setdefault(name, np.zeros(ledger.n_rows, bool))[row] = True


def _sources(ledger: Ledger) -> dict[str, np.ndarray]:
    """Source -> bool [B]; all rows first, and each source where there is more than one."""
    column = ledger.get("source")
    found = sorted({source for source in column.tolist() if source is not None})
    everywhere = {EVERYWHERE: np.ones(ledger.n_rows, bool)}
    return everywhere | ({source: column == source for source in found} if len(found) > 1 else {})


def _add_others(
    shares: dict[tuple[str, str], Counts],
    n_raised: dict[tuple[str, str], int],
    seen: _Seen,
    source: str,
    rows: np.ndarray,
) -> None:
    ledger = seen.ledger
    calls, errors = ledger.get("n_tool_calls"), ledger.get("n_tool_errors")
    known = rows & seen.read & (calls != NULL_INT) & (errors != NULL_INT)
    if (calls[known] > 0).any():
        shares[TOOL_ERROR, source] = Grouped(seen.groups[known], calls[known]).count(errors[known])
    status = ledger.get("reward_status")
    known = rows & np.asarray([value is not None for value in status.tolist()], bool)
    if known.any():
        failed = (status != "ok")[known]
        shares[REWARD_FAILURE, source] = Grouped(seen.groups[known]).count(failed)
        n_raised[REWARD_FAILURE, source] = int(failed.sum())


def _levels(seen: _Seen) -> dict[str, Level]:
    readers: dict[str, Callable[[Ledger], np.ndarray]] = {
        MISMATCH: lambda ledger: ledger.get("mismatch_k3"),
        ENTROPY: lambda ledger: -ledger.get("mean_logprob"),
    }
    found = {}
    for name, read in readers.items():
        values = read(seen.ledger)
        known = np.isfinite(values)
        if known.any():
            n_groups = len(set(seen.groups[known].tolist()))
            found[name] = Level(int(known.sum()), n_groups, float(values[known].sum()))
    return found


@lru_cache(16)
def _counted_flags(specs: tuple[FlagSpec, ...]) -> tuple[tuple[str, bool], ...]:
    """The names of flags, each with `of_read_rows`."""
    return tuple((spec.name, of_read_rows(spec.name)) for spec in specs)


def of_read_rows(name: str) -> bool:
    """Whether a flag's share is one of the rows that are read: it needs text, and one row of it is not enough."""
    return needs_text(name) and REGISTRY[name].severity != "error"


def explained_by(name: str) -> tuple[str, ...]:
    """The flags of the same row that explain a flag."""
    spec: FlagSpec | None = REGISTRY.get(name)
    return spec.explained_by if spec is not None else ()
