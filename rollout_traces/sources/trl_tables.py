"""TRL's `completions` tables as they lie in a Trackio project, and the rollouts that they show.

TRL logs a table behind each log of its scalars: the last generation batch, out of a queue. What was logged before
tells what the table itself does not: which of its columns are rewards, whether it was training or evaluation, and
which rows an earlier table has already. The run's configuration has the weights of the rewards.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rollout_traces.ledger.columns import COLUMNS
from rollout_traces.sources.base import EVAL, TRAIN
from rollout_traces.sources.formats.trl_parquet import OWN, n_repeated, row_of
from rollout_traces.sources.lines import loads
from rollout_traces.sources.rows import RolloutRow, number

Select = Callable[[str, Sequence[Any]], list[tuple[Any, ...]]]
"""Runs one SELECT on a Trackio project: a statement with `?` for its values, and the values."""

TABLE = "completions"
"""The key that TRL logs its tables under."""
_IS_TABLE = f"instr(metrics, '\"{TABLE}\"') AND instr(metrics, 'trackio.table')"
_ROWS_AT_ONCE = 10_000
"""Rows of logged scalars looked through in one SELECT."""
_LEDGER = frozenset(column.name for column in COLUMNS)
"""Names with a meaning of their own here; a column that a user named so is shown as an extra."""
_REWARD = re.compile(r"(train|eval)/rewards/(.+?)(?:/(?:mean|std))?")


@dataclass(frozen=True)
class LoggedTable:
    """One table of a run, without the rows that the table before it has.

    Attributes:
        number: id of the row of logged scalars that it lies in.
        run_id: Trackio's id of the run.
        run: the run's name.
        step: the step it was logged at, in Trackio's own counting.
        timestamp: when it was stored.
        split: `rollout` or `eval-rollout`.
        first: the place of the first of `records` in the stored table: those before it are rows of an earlier table.
        records: its rows.
        rewards: names of the columns that are rewards, in the trainer's order.
        weights: of each of `rewards`; empty where the run's configuration does not say.
    """

    number: int
    run_id: str
    run: str
    step: int
    timestamp: str
    split: str
    first: int = 0
    records: Sequence[Mapping[str, Any]] = ()
    rewards: Sequence[str] = ()
    weights: Sequence[float] = ()

    def rollouts(self) -> list[RolloutRow]:
        """The rollout of each of `records`; equal prompts of a step are a group, numbered in the table's order.

        A record that is none of TRL's is a rollout without a conversation.
        """
        groups: dict[Any, int] = {}
        found = []
        for n, record in enumerate(self.records):
            line = self.first + n + 1
            try:
                row = row_of(record, self.rewards, self.step, line, self.weights)
                row.group = groups.setdefault((row.step, row.key_of_prompt()), len(groups))
            except (TypeError, ValueError, KeyError, AttributeError, OverflowError, RecursionError):
                row = RolloutRow(step=self.step, line=line)
            row.split, row.run = self.split, self.run
            found.append(row)
        return found


@dataclass
class TableReader:
    """Reads the tables of a project in order.

    Attributes:
        select: asks the project.
    """

    select: Select
    _before: dict[str, list[Mapping[str, Any]]] = field(default_factory=dict)
    _weights: dict[str, tuple[float, ...]] = field(default_factory=dict)

    def numbers(self, after: int, up_to: int) -> Iterator[tuple[int, int]]:
        """The tables among the rows of logged scalars.

        Args:
            after: id of a row to start behind.
            up_to: id of the last row.

        Yields:
            The id of each row that holds a table, and its bytes.
        """
        for start in range(after, up_to, _ROWS_AT_ONCE):
            yield from self.select(
                f"SELECT id, length(metrics) FROM metrics WHERE id > ? AND id <= ? AND {_IS_TABLE} ORDER BY id",
                (start, min(start + _ROWS_AT_ONCE, up_to)),
            )

    def table(self, number: int) -> LoggedTable | None:
        """One table.

        Args:
            number: id of the row that holds it; asked in ascending order, no table is read twice.

        Returns:
            The table; None where the row is gone, damaged or holds something else.
        """
        found = self.select(
            "SELECT run_id, run_name, step, timestamp, metrics FROM metrics WHERE id = ?", (number,)
        )
        if not found:
            return None
        run_id, run, step, timestamp, text = found[0]
        stored = _records(text)
        if stored is None:
            return None
        before = self._before.get(run_id)
        if before is None:
            before = self._stored_before(run_id, number)
        split, rewards = self._logged_before(run_id, number)
        first = n_repeated(before, stored, whole_only=split == TRAIN)
        self._before[run_id] = stored
        rewards = rewards or _numeric(stored)
        weights = self._weights_of(run_id)
        return LoggedTable(
            number=number,
            run_id=run_id,
            run=run or "",
            step=step if isinstance(step, int) else 0,
            timestamp=timestamp or "",
            split=split,
            first=first,
            records=stored[first:],
            rewards=rewards,
            weights=weights if len(weights) == len(rewards) else (),
        )

    def forget(self) -> None:
        """Forgets the tables before, so that any one can be asked for next."""
        self._before.clear()

    def _stored_before(self, run_id: str, number: int) -> list[Mapping[str, Any]]:
        found = self.select(
            f"SELECT metrics FROM metrics WHERE run_id = ? AND id < ? AND {_IS_TABLE} ORDER BY id DESC LIMIT 1",
            (run_id, number),
        )
        return (_records(found[0][0]) or []) if found else []

    def _logged_before(self, run_id: str, number: int) -> tuple[str, list[str]]:
        """Split and reward functions, as the scalars say that were logged just before a table."""
        found = self.select(
            "SELECT metrics FROM metrics WHERE run_id = ? AND id < ? AND instr(metrics, '/rewards/')"
            " AND NOT instr(metrics, 'trackio.table') ORDER BY id DESC LIMIT 1",
            (run_id, number),
        )
        names = [m for key in _mapping(found[0][0]) if (m := _REWARD.fullmatch(key))] if found else []
        split = EVAL if names and all(name[1] == "eval" for name in names) else TRAIN
        return split, list(dict.fromkeys(name[2] for name in names))

    def _weights_of(self, run_id: str) -> tuple[float, ...]:
        if run_id not in self._weights:
            there = self.select(
                "SELECT name FROM sqlite_master WHERE type = 'table' AND name = 'configs'", ()
            )
            found = self.select("SELECT config FROM configs WHERE run_id = ?", (run_id,)) if there else []
            given = _mapping(found[0][0]).get("reward_weights") if found else None
            known = [number(weight) for weight in given] if isinstance(given, list) else []
            self._weights[run_id] = tuple(w for w in known if w is not None) if None not in known else ()
        return self._weights[run_id]


def row_metadata(row: RolloutRow, record: Mapping[str, Any]) -> dict[str, Any]:
    """Collects what a row of a table says beside its conversation: its numbers by their own names, and all of it by ours.

    Args:
        row: the rollout that it shows.
        record: the row.
    """
    left_out = _LEDGER | {"prompt", "completion"}
    return {
        **{k: v for k, v in record.items() if k not in left_out and isinstance(v, (int, float))},
        **{f"extra/{name}": value for name, value in row.extras.items()},
        "advantage": row.advantage,
        "reward": row.reward,
        **{f"rewards/{name}": value for name, value in row.components.items()},
        **{f"metrics/{name}": value for name, value in row.metrics.items()},
        "split": row.split,
        "step": row.step,
        "group_id": row.group,
        "prompt_messages": row.n_prompt_messages,
        "table_row": row.line,
        **({} if row.messages else {"unreadable": 1}),
    }


def _records(text: str | bytes) -> list[Mapping[str, Any]] | None:
    table = _mapping(text).get(TABLE)
    records = table.get("_value") if isinstance(table, dict) else None
    if not isinstance(records, list):
        return None
    found = [record for record in records if isinstance(record, Mapping)]
    return found if all("prompt" in record and "completion" in record for record in found) else None


def _numeric(records: Sequence[Mapping[str, Any]]) -> list[str]:
    names = dict.fromkeys(name for record in records for name in record)
    return [
        name
        for name in names
        if name not in OWN
        and any(number(r.get(name)) is not None and not isinstance(r[name], bool) for r in records)
    ]


def _mapping(text: str | bytes | None) -> dict[str, Any]:
    try:
        value = loads(text if isinstance(text, bytes) else str(text or "null").encode())
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
