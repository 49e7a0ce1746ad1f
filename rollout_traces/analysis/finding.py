"""Findings: columns in which two selections of rollouts differ, each with what is a plain consequence of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import NormalDist

import numpy as np

from rollout_traces.analysis.compare import Effect
from rollout_traces.analysis.curves import SeriesName
from rollout_traces.analysis.in_words import column_text, number, percent, series_text, value_text
from rollout_traces.flags import REGISTRY
from rollout_traces.model.text import quoted_each

OUTCOMES = ("reward", "success", "raw_reward")
"""Columns that a run is read by: with the components of the reward, half of the error of all comparisons is theirs."""


CAUSES = ("error_signatures", "n_tool_errors", "reward_status", "stop_reason", "discard_reason", "tool_names")
"""Columns that say what went wrong: with the flags that warn, they stand before others that are as sure."""
SUREST = 5.0
"""Standard errors from which on findings are equally sure, ..."""
SURE_P = 2 * NormalDist().cdf(-SUREST)
"""... and their p."""


@dataclass(frozen=True)
class PartOfRows:
    """Some values of one column.

    Attributes:
        column: such as `engine`.
        values: such as `vllm-1`.
    """

    column: str
    values: tuple[str, ...]

    def __str__(self) -> str:
        return f"{column_text(self.column)} {quoted_each(self.values)}"


@dataclass(frozen=True)
class Picture:
    """Two distributions on one axis.

    Attributes:
        edges: float, one more than bars.
        a: share of A in each bar.
        b: share of B in each bar.
    """

    edges: tuple[float, ...]
    a: tuple[float, ...]
    b: tuple[float, ...]


@dataclass(frozen=True)
class Detail:
    """Evidence of a finding.

    Attributes:
        part: the values of a column in which it happened, None for everywhere.
        a: level of A inside the part.
        b: level of B inside the part.
        n_a: rollouts of A inside the part that know the column.
        n_b: of B.
        elsewhere: level of A outside, None where there is no outside.
        elsewhere_rows: rollouts of A outside with the value.
        elsewhere_n: rollouts of A outside that know the column.
        median_a: median of A, None for a share.
        median_b: median of B.
        examples: ids of three rollouts of A that show it.
        picture: both distributions, None for a share.
        where: a filter in the query language for A's rollouts with it, beside A's own.
    """

    part: PartOfRows | None
    a: float
    b: float
    n_a: int
    n_b: int
    elsewhere: float | None
    elsewhere_rows: int
    elsewhere_n: int
    median_a: float | None
    median_b: float | None
    examples: tuple[str, ...]
    picture: Picture | None
    where: str


@dataclass(frozen=True)
class OneSided:
    """A column, or those of its values that take text, that one side alone knows.

    Attributes:
        column: which.
        side: `A` or `B`.
        rows: rollouts of that side that know it.
        of: all of that side.
        values: the most frequent values of a text, each with its rollouts and its share of those that know it, weighed by how likely each was kept; none for a number.
        at_random: whether it takes text, so that the rollouts kept at random speak for all; of flags those that take it.
        sentence: in words: `extra/“judge”: known of 16 of A's 32 rollouts, of none of B's; “gpt” 50% (8 of 16)`.
    """

    column: str
    side: str
    rows: int
    of: int
    values: tuple[tuple[str, int, float], ...] = ()
    at_random: bool = False
    sentence: str = field(default="", init=False)

    def __post_init__(self) -> None:
        other = "B" if self.side == "A" else "A"
        name = (
            "flags that need text" if self.column == "flags" and self.at_random else column_text(self.column)
        )
        whom = ", those kept at random, of none such" if self.at_random else ", of none"
        text = f"{name}: known of {self.rows:,} of {self.side}'s {self.of:,} rollouts{whom} of {other}'s"
        said = ", ".join(
            f"{value_text(self.column, value)} {percent(share)} ({n:,} of {self.rows:,})"
            for value, n, share in self.values
        )
        object.__setattr__(self, "sentence", f"{text}; {said}" if said else text)


@dataclass(frozen=True)
class Finding:
    """A column in which A and B differ.

    Attributes:
        column: the column, or the key of a logged number.
        value: the value whose share differs; None for a number.
        a: mean, or share, of A.
        b: of B.
        n_a: rollouts of A that know the column; steps, for a logged number.
        n_b: of B.
        rows_a: rollouts of A that have the value; `n_a` for a number.
        rows_b: of B.
        effect: how far they differ, with interval and p.
        new: the value occurs in A alone.
        logged: whether it is a number that the trainer logged, a value a step.
        detail: parts, examples and picture; None beyond the first ones, and for a logged number.
        consequences: what follows from it.
        query: a SELECT of its levels, shares and counts.
        part: the rollouts that alone are compared; None for all.
        is_sure: whether it is beyond chance among all that was compared; else the nearest to it, where nothing is.
        sentence: in words: `stop_reason “length”: 2% to 57% on engine “vllm-1”, 0 of 2,611 elsewhere`.
    """

    column: str
    value: str | None
    a: float
    b: float
    n_a: int
    n_b: int
    rows_a: int
    rows_b: int
    effect: Effect
    new: bool = False
    logged: bool = False
    detail: Detail | None = None
    consequences: tuple[Finding, ...] = ()
    query: str = ""
    part: PartOfRows | None = None
    is_sure: bool = True
    sentence: str = field(default="", init=False)

    @property
    def queries(self) -> tuple[str, ...]:
        """SELECTs of its levels, shares and counts, and of what follows from it."""
        return tuple(q for q in (self.query, *(q for each in self.consequences for q in each.queries)) if q)

    @property
    def is_outcome(self) -> bool:
        """Tells whether it is the reward, one of its components, or the success."""
        return self.column in OUTCOMES or self.column.startswith("component/")

    @property
    def name(self) -> str:
        """Column and value."""
        return self.column if self.value is None else f"{self.column} {self.value}"

    def __post_init__(self) -> None:
        d = self.detail
        form = percent if self.value is not None else number
        name = series_text(SeriesName(self.column, self.value, "logged" if self.logged else "mean"))
        if d is not None and d.part is not None:
            text = f"{name}: {form(d.b)} to {form(d.a)} on {d.part}"
            if d.elsewhere is not None:
                hits = (
                    f"{d.elsewhere_rows:,} of {d.elsewhere_n:,}"
                    if self.value is not None
                    else form(d.elsewhere)
                )
                text += f", {hits} elsewhere"
        else:
            text = f"{name}: {form(self.b)} to {form(self.a)}" + (f" on {self.part}" if self.part else "")
            if self.value is not None:
                text += f" ({self.rows_b:,} of {self.n_b:,} to {self.rows_a:,} of {self.n_a:,})"
        text += (", new" if self.new else "") + ("" if self.is_sure else ", perhaps by chance")
        object.__setattr__(self, "sentence", text)


def rank(f: Finding) -> tuple[bool, int, int, float, str]:
    """What findings are sorted by: new values, then the surest by its standard errors, then what is nearest to a cause, then the largest."""
    sure = NormalDist().inv_cdf(1 - max(f.effect.p, SURE_P) / 2)
    return not f.new, -round(sure), _from_cause(f), -abs(f.effect.effect), f.name


def _from_cause(f: Finding) -> int:
    """0 for what says that something went wrong, 2 for an outcome."""
    warns = f.column == "flags" and f.value in REGISTRY and REGISTRY[f.value].severity != "info"
    return 0 if warns or f.column in CAUSES else 2 if f.is_outcome else 1


SAME = 0.97
"""Two numbers whose group means correlate by this are one finding and its consequence."""
FEWEST = 8
"""Groups that know both."""
PARENTS: Mapping[str, tuple[str, ...]] = {
    "n_tokens": ("n_sampled",),
    "stop_reason length": ("n_sampled",),
    "stop_reason stop": ("stop_reason length",),
    "mismatch_k1": ("mismatch_k3",),
    "mismatch_abs_max": ("mismatch_k3",),
    "log_ratio_sum": ("mismatch_k1", "mismatch_k3"),
    "n_tool_errors": ("error_signatures *",),
    "reward_status ok": ("reward_status error", "reward_status timeout"),
    "n_turns": ("n_tool_calls",),
    "raw_reward": ("reward",),
    **{f"flags {spec.name}": spec.follows for spec in REGISTRY.values() if spec.follows},
}
"""Column (and value) -> what it is a plain consequence of; `*` stands for any value."""


def parents_of(name: str) -> frozenset[str]:
    """The columns that a column, or a column and value, is a plain consequence of."""
    return frozenset(parent.split(" ")[0] for parent in PARENTS.get(name, ()))


def nested(kept: Sequence[Finding], means: Mapping[str, np.ndarray]) -> list[Finding]:
    """Findings in their order, each with its consequences.

    Args:
        kept: ranked.
        means: float [G] by column, the means of each group.
    """
    heads: list[Finding] = []
    below: dict[str, list[Finding]] = {}
    for f in kept:
        head = _head(f, kept, heads, means)
        if head is None:
            heads.append(f)
        else:
            below.setdefault(head, []).append(f)
    return [replace(h, consequences=tuple(_below(h.name, below))) for h in heads]


def _below(name: str, below: dict[str, list[Finding]]) -> list[Finding]:
    """All that follows from a finding, also by way of another."""
    return [each for direct in below.pop(name, []) for each in (direct, *_below(direct.name, below))]


def _head(
    f: Finding, kept: Sequence[Finding], heads: Sequence[Finding], means: Mapping[str, np.ndarray]
) -> str | None:
    for parent in PARENTS.get(f.name, ()):
        for other in kept:
            if other is not f and _is(parent, other.name) and not _follows(other.name, f.name):
                return other.name
    if f.logged:
        return None
    if f.value is None:
        return next(
            (h.name for h in heads if h.column in means and _alike(means[h.column], means[f.column])), None
        )
    several = f.column in ("flags", "tool_names", "error_signatures")
    return None if several else next((h.name for h in heads if h.column == f.column), None)


def _is(parent: str, name: str) -> bool:
    return name == parent or (parent.endswith("*") and name.startswith(parent[:-1]))


def _follows(name: str, other: str) -> bool:
    return any(_is(parent, other) for parent in PARENTS.get(name, ()))


def _alike(x: np.ndarray, y: np.ndarray) -> bool:
    """Tells whether two numbers are one and the same up to scale, over the groups."""
    both = np.isfinite(x) & np.isfinite(y)
    if both.sum() < FEWEST or np.ptp(x[both]) == 0 or np.ptp(y[both]) == 0:
        return False
    return abs(float(np.corrcoef(x[both], y[both])[0, 1])) >= SAME
