"""A diagnosis and what it is made from."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from rollout_traces.analysis.length_bias import LengthBias, length_bias
from rollout_traces.analysis.logged import logged_series
from rollout_traces.analysis.moved import LEVEL, Movements, movements
from rollout_traces.analysis.movement import Moved, Part
from rollout_traces.analysis.phrases import PhraseTrend, Texts, phrase_trends, texts_of
from rollout_traces.analysis.row_sample import RowSample, row_sample
from rollout_traces.analysis.seen import FirstSeen, first_seen
from rollout_traces.analysis.series import RunSeries, Series

Severity = Literal["error", "warn", "info"]
DATA, ENVIRONMENT, SAMPLER, UPDATE, OUTCOME, OTHER = range(6)
"""Tiers in causal order: what stands earlier can cause what stands later."""
TIERS = ("data and masks", "environment and reward", "sampler and weights", "update", "outcome", "other")


@dataclass(frozen=True)
class Diagnosis:
    """A statement about a run: what happened, since when, for whom, how sure, and what to do.

    Attributes:
        kind: what it is, greppable: `engine_off`.
        sentence: what was seen, with its figures.
        severity: error, warn or info.
        tier: its place in causal order, an index of `TIERS`.
        step: first step, None where it speaks of the whole run.
        last: last step, None where it lasts.
        part: the sources or engines it speaks of, None for all.
        figures: the numbers of the sentence by name.
        where: a filter in the query language that finds the rollouts.
        queries: SELECTs over `rollouts` and `metrics` that give the figures of the sentence again.
        advice: what to do next; empty for a consequence of something else.
        consequences: what began with it and follows from it.
    """

    kind: str
    sentence: str
    severity: Severity
    tier: int
    step: int | None = None
    last: int | None = None
    part: Part | None = None
    figures: Mapping[str, float] = field(default_factory=dict)
    where: str = ""
    queries: tuple[str, ...] = ()
    advice: str = ""
    consequences: tuple[Diagnosis, ...] = ()


@dataclass(eq=False)
class Evidence:
    """What rules look at: computed once a run, when first asked.

    Attributes:
        run: the run's series.
        level: nominal chance of any false change over the run.
    """

    run: RunSeries
    level: float = LEVEL

    @cached_property
    def movements(self) -> Movements:
        """What moved."""
        return movements(self.run, self.level)

    @property
    def moved(self) -> tuple[Moved, ...]:
        """What moved, steps ascending."""
        return self.movements.moved

    @cached_property
    def seen(self) -> list[FirstSeen]:
        """When values came and went."""
        return first_seen(self.run.relations, self.run.run, self.run.split, self.run.columns)

    @cached_property
    def logged(self) -> list[Series]:
        """Logged numbers."""
        return logged_series(self.run.relations, self.run.run)

    @cached_property
    def rows(self) -> RowSample:
        """The rollouts as arrays."""
        return row_sample(self.run)

    @cached_property
    def texts(self) -> Texts:
        """What the traced rollouts wrote."""
        return texts_of(self.run)

    @cached_property
    def phrases(self) -> list[PhraseTrend]:
        """Phrases whose share grew."""
        return phrase_trends(self.texts)

    @cached_property
    def length_bias(self) -> LengthBias | None:
        """Where reward and length began to go together."""
        return length_bias(self.run.length_correlation, self.movements.get("n_sampled"))

    def of(self, *columns: str) -> Iterator[Moved]:
        """Movements of some columns."""
        return (m for m in self.moved if m.column in columns)


Rule = Callable[[Evidence], Sequence[Diagnosis]]


def percent(value: float) -> str:
    """A share in words: `57 %`, `0.4 %`, `0`."""
    if value == 0:
        return "0 %"
    if abs(value) < 0.001:
        return "<0.1 %" if value > 0 else ">-0.1 %"
    return f"{100 * value:.1f} %" if abs(value) < 0.1 else f"{100 * value:.0f} %"


def number(value: float) -> str:
    """A number as a person reads it."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def since(step: int, last: int | None) -> str:
    """When, in words."""
    return f"since step {step}" if last is None else f"from step {step} to {last}"


def change_text(moved: Moved, *, shares: bool = False) -> str:
    """A movement in words: levels, part, what the other parts have, when."""
    form = percent if moved.value is not None or shares else number
    text = f"{form(moved.before)} to {form(moved.after)}"
    if moved.part is not None:
        text += f" on {moved.part}"
        if moved.elsewhere is not None:
            text += f", {form(moved.elsewhere)} elsewhere"
    return f"{text}, {since(moved.step, moved.last)}"


def figures(moved: Moved) -> dict[str, float]:
    """The numbers of a movement."""
    found = {"before": moved.before, "after": moved.after, "rows": moved.rows, "p": moved.p}
    if moved.elsewhere is not None:
        found["elsewhere"] = moved.elsewhere
    return found


def filter_of(moved: Moved, condition: str = "") -> str:
    """A filter in the query language for the rollouts of a movement.

    Args:
        moved: the movement.
        condition: what else they satisfy; by default that they have the value.
    """
    parts = []
    if condition:
        parts.append(condition)
    elif moved.value is not None:
        has = "has" if moved.column in ("flags", "tool_names", "error_signatures") else "="
        parts.append(f"{moved.column} {has} {literal(moved.value)}")
    if moved.part is not None:
        values = [f"{moved.part.column} = {literal(value)}" for value in moved.part.values]
        parts.append(values[0] if len(values) == 1 else f"({' or '.join(values)})")
    parts.append(f"step >= {moved.step}")
    if moved.last is not None:
        parts.append(f"step <= {moved.last}")
    return " and ".join(parts)


def literal(text: str) -> str:
    """A text as the query language writes it."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
