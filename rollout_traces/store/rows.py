"""Plain rows: a trace as Trackio stores it, and what the store hands out."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from rollout_traces.model.text import WHOLE_SECONDS, table, titled, words

NO_STEP = -1
"""In place of a step that is no whole number."""
PLACE = ("id", "run_id", "run", "split", "step")
"""The columns that say where a row is."""
RUN_TABLE = ("run", "id", "started, UTC", "last step", "kept", "rollouts", "splits", "resumed at")
ROW_TABLE = words("uid run split step reward n_sampled stop_reason flags snippet prompt")
"""Columns that a table of runs, and one of rollouts, shows."""


@dataclass(frozen=True, slots=True)
class StoredTrace:
    """One row of Trackio's `traces` table.

    Attributes:
        rowid: its place in the order of arrival.
        trace_id: Trackio's id of it.
        run_id: the run's id.
        run_name: the run's name when it was logged.
        step: the step it was logged at.
        key: the key it was logged under.
        trace_index: its place in the list it was logged in, None for a single trace.
        timestamp: when Trackio stored it.
        messages: JSON text of the messages.
        metadata: JSON text of the metadata.
        spans: JSON text of the spans; None where they were not asked for.
    """

    rowid: int
    trace_id: str
    run_id: str
    run_name: str
    step: int
    key: str
    trace_index: int | None
    timestamp: str
    messages: str | bytes
    metadata: str | bytes
    spans: str | bytes | None

    def __post_init__(self) -> None:
        """SQLite keeps whatever was put into a column: a step that is no whole number becomes -1."""
        if type(self.step) is not int:
            object.__setattr__(self, "step", NO_STEP)

    def without_texts(self) -> StoredTrace:
        """The same trace, its texts let go."""
        return replace(self, messages=b"", metadata=b"", spans=None)


def run_cells(run: RunInfo) -> tuple[Any, ...]:
    """A run as a row of `RUN_TABLE`."""
    return (
        run.name,
        run.id,
        run.started[:WHOLE_SECONDS],
        run.last_step,
        run.n_traces,
        run.n_rollouts,
        run.splits,
        run.resumed_at,
    )


@dataclass(frozen=True, repr=False)
class RunInfo:
    """One run of a project.

    Attributes:
        id: Trackio's id of the run.
        name: its name; several runs may share one.
        started: when its first entry was stored, ISO 8601; empty when unknown.
        last_step: the highest step logged.
        n_traces: traces of rollouts in the store, superseded ones among them.
        n_rollouts: rollouts that the ledgers know of, traced or not, superseded or not; 0 without ledgers.
        splits: the splits it has traces or ledgers of.
        attempts: the attempts that its training rollouts name, oldest first, each with the first step it wrote.
    """

    id: str
    name: str
    started: str
    last_step: int
    n_traces: int
    n_rollouts: int
    splits: tuple[str, ...]
    attempts: tuple[tuple[str, int], ...] = ()

    def __repr__(self) -> str:
        return (
            f"<RunInfo {self.name!r}: {self.n_rollouts:,} rollouts, {self.n_traces:,} kept, to step {self.last_step}; "
            f"{', '.join(self.splits)}>"
        )

    def _repr_html_(self) -> str:
        return titled(f"Run {self.name}", table(RUN_TABLE, [run_cells(self)]))

    @property
    def resumed_at(self) -> tuple[int, ...]:
        """The steps at which it was resumed: the first step of every attempt but the first."""
        return tuple(step for _, step in self.attempts[1:])

    def is_superseded(self, attempt: str | None, step: int) -> bool:
        """Tells whether a later attempt trained a step, or one before it; what knows no attempt is older than all."""
        return any(first <= step for name, first in self.attempts if name > (attempt or ""))


@dataclass(frozen=True)
class StepInfo:
    """One step of a split.

    Attributes:
        step: the trainer's step.
        n_traces: traces kept; of rollouts that no later attempt superseded.
        n_rollouts: rollouts there were, from the ledger, likewise; None without one.
        digest_id: id of the step summary trace; None without one.
    """

    step: int
    n_traces: int
    n_rollouts: int | None
    digest_id: str | None


@dataclass(frozen=True)
class TraceRow:
    """One row of a query's result.

    Attributes:
        id: the trace's id; None for a rollout of the ledger that was not traced.
        run_id: the run's id.
        run: the run's name.
        step: the trainer's step.
        values: every other known column by name; lists of names as tuples.
    """

    id: str | None
    run_id: str
    run: str
    split: str
    step: int
    values: Mapping[str, Any] = field(default_factory=dict)

    def get(self, name: str, default: Any = None) -> Any:
        """A column's value, the default where it is unknown."""
        if name in PLACE:
            return getattr(self, name)
        return self.values.get(name, default)

    def __getitem__(self, name: str) -> Any:
        """A column's value, None where it is unknown."""
        return self.get(name)

    @property
    def known_reward(self) -> float | None:
        """The reward as means count it, see `known_reward`."""
        return known_reward(self.values)

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        place = {name: self.get(name) for name in PLACE}
        return place | {k: list(v) if isinstance(v, tuple) else v for k, v in self.values.items()}


def number_of(value: object) -> float | None:
    """A value as a number, None where it is none."""
    return float(value) if isinstance(value, int | float) else None


def known_reward(values: Mapping[str, Any]) -> float | None:
    """The reward among a row's values as means count it; None where it is unknown or not finite, or its function failed."""
    reward = number_of(values.get("reward"))
    counts = reward is not None and math.isfinite(reward) and (values.get("reward_status") or "ok") == "ok"
    return reward if counts else None


def mean_of(values: Iterable[float | None]) -> float | None:
    """The mean of the values that are known, None where none is."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


@dataclass(frozen=True, repr=False)
class RowPage:
    """Some rows of a query's result.

    Attributes:
        rows: the rows, in order.
        total: rows that match in all.
        next: the cursor behind the last row; None at the end.
    """

    rows: tuple[TraceRow, ...]
    total: int
    next: str | None

    def __repr__(self) -> str:
        return f"<RowPage: {len(self.rows)} of {self.total:,} rollouts>"

    def _repr_html_(self) -> str:
        known = [name for name in ROW_TABLE if any(row[name] is not None for row in self.rows)]
        cells = [[row[name] for name in known] for row in self.rows]
        return titled(f"{len(self.rows)} of {self.total:,} rollouts", table(known, cells))


@dataclass(frozen=True)
class Group:
    """The rollouts of one prompt in one step.

    Attributes:
        group: the group's number within the step; None for traces of tools that do not say.
        prompt_key: what makes rollouts of other steps answers to the same prompt; None when unknown.
        prompt: first words of the prompt; empty when none of the group was traced.
        traces: the traced rollouts, best reward first.
        rows: all its rollouts, in their order; the traced ones alone without a ledger.
        tied: all rewards are known and equal within 1e-6 x max(1, |reward|), with two or more.
        zero_advantage: all advantages are known and at most 1e-8 in size.
        from_ledger: the figures speak of all rollouts, not of the traced ones alone.
    """

    group: int | None
    prompt_key: str | None
    prompt: str
    traces: tuple[TraceRow, ...]
    rows: tuple[TraceRow, ...]
    tied: bool
    zero_advantage: bool
    from_ledger: bool

    @property
    def n_rollouts(self) -> int:
        """The number of its rollouts."""
        return len(self.rows)

    @property
    def rewards(self) -> tuple[float | None, ...]:
        """The rewards of its rollouts; unknown ones are None."""
        return tuple(number_of(row["reward"]) for row in self.rows)

    @property
    def reward_mean(self) -> float | None:
        """Mean of the rewards that count: see `TraceRow.known_reward`."""
        return mean_of(row.known_reward for row in self.rows)

    @property
    def n_not_counted(self) -> int:
        """The number of rewards that are there and do not count: infinite, or of a function that failed."""
        return sum(row["reward"] is not None and row.known_reward is None for row in self.rows)


@dataclass(frozen=True)
class StepGroups:
    """The groups of one step of a split.

    Attributes:
        run_id: the run's id.
        groups: the groups, by number.
        n_rollouts: rollouts there were; None without a ledger.
        n_traces: rollouts that were kept as traces.
        digest_id: id of the step summary trace; None without one.
        selected_by: how many were kept for which reason.
    """

    run_id: str
    split: str
    step: int
    groups: tuple[Group, ...]
    n_rollouts: int | None
    n_traces: int
    digest_id: str | None
    selected_by: Mapping[str, int]


@dataclass(frozen=True)
class ColumnInfo:
    """A column that a query can name.

    Attributes:
        kind: `number`, `text`, `tags` (lists of names) or `mixed`.
        meaning: one sentence; empty when it is not ours.
    """

    name: str
    kind: str
    meaning: str


@dataclass(frozen=True)
class Histogram:
    """Counts of a numeric column.

    Attributes:
        edges: n + 1 bin edges, ascending; the last bin includes its right edge.
        counts: n counts.
        unknown: rows without a value.
        infinite: infinite values and how many rows have each.
    """

    edges: tuple[float, ...]
    counts: tuple[int, ...]
    unknown: int
    infinite: tuple[tuple[float, int], ...] = ()


def every_row(store: Any, limit: int, **asked: Any) -> Iterator[TraceRow]:
    """The rows of a query, page after page.

    Args:
        store: where from.
        limit: rows of a page.
        **asked: further arguments of `Store.query`.
    """
    after = None
    while True:
        page = store.query(**asked, limit=limit, after=after)
        yield from page.rows
        after = page.next
        if after is None:
            return
