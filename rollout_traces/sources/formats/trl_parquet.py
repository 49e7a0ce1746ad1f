"""TRL's `completions`, the last generation batch at each log: as a file, and as a table in a Trackio project.

The file is `<output_dir>/completions/completions_<step>.parquet`. A column that is neither text nor one of TRL's own is
a reward function or an extra. Which it was, and the weights of the rewards, are not in the file: their sum stands in for
the reward. TRL writes a batch again at each log, as often as it trains on it; what the file before has already is left
out. A checkpoint beside it tells at which steps an evaluation was logged last.

TRL logs the table behind each log of its scalars. What was logged before tells what the table itself does not: which of
its columns are rewards, whether it was training or evaluation, and which rows an earlier table has already.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from rollout_traces.errors import FileRefused, extra
from rollout_traces.ledger.columns import COLUMNS
from rollout_traces.model.bounded_reading import read, schema_of
from rollout_traces.model.units import LARGEST_EXACT
from rollout_traces.sources.base import EVAL, TRAIN, Claim, FileFormat, FileReading, Head, number_in
from rollout_traces.sources.chat import Record, messages_of
from rollout_traces.sources.lines import loads
from rollout_traces.sources.problems import said_of
from rollout_traces.sources.rows import NO_TOKENS, RolloutRow, number, numbers

OWN = ("step", "prompt", "completion", "advantage", "image", "images", "__index_level_0__")
"""Columns that are TRL's own, or made by pandas."""
_NAME = r"^completions_(\d+)\.parquet$"
_SPLIT = "whether it was training or evaluation (no checkpoint of its step lies beside it)"


class TrlParquet(FileFormat):
    """`step, prompt, completion`, a column a reward function, extras, `advantage`."""

    name = "trl"
    title = "TRL, log_completions parquet"

    def claim(self, head: Head) -> Claim | None:
        step = number_in(_NAME, head.path.name)
        if step is None:
            return None
        root = head.above("completions")
        lacks = [
            *NO_TOKENS,
            "weights of the rewards (their plain sum is the reward)",
            "groups (equal prompts are one)",
        ]
        if not _logs_of(root).tell_of(step):
            lacks.append(_SPLIT)
        return Claim(root, step, TRAIN, lacks)

    def read(self, reading: FileReading) -> Iterator[RolloutRow]:
        with extra("reading", "reading parquet"):
            import pyarrow  # noqa: F401
        claim = reading.found.claim
        step, logs = claim.step or 0, _logs_of(claim.root)
        if not logs.tell_of(step):
            text = (
                "no checkpoint lies beside its completions, or only older ones: nothing tells which are of an evaluation, and "
                "they count as training."
            )
            reading.problems.once(claim.root, "splits_not_told", text)
        try:
            numeric = [f.name for f in schema_of(reading.path) if _is_number(f.type) and f.name not in OWN]
            before, logged = _logged(reading.path)
            repeated = n_repeated(before, logged, whole_only=False)
            for n, value in enumerate(logged, 1):
                if n <= repeated:
                    continue
                row = row_of(value, numeric, step, n)
                row.split = EVAL if step in logs.evaluated else TRAIN
                yield row
        except (FileRefused, OSError) as error:
            reading.note("unreadable_files", said_of(reading.path, error))
            return
        if repeated:
            text = f"its first {repeated} rows are the last of the file before; they are passed over."
            reading.note("repeated_rows", text)


def row_of(
    value: Record, rewards: Sequence[str], step: int, line: int, weights: Sequence[float] = ()
) -> RolloutRow:
    """A rollout of a row of TRL's completions table.

    Args:
        value: the row.
        rewards: names of its columns that are rewards.
        step: the step where the row has none.
        line: its number.
        weights: of each of `rewards`; 1 each when empty.
    """
    prompt, completion = value.get("prompt"), value.get("completion")
    before = messages_of(_plain(prompt)) or []
    after = _plain(completion)
    reply = [{"role": "assistant", "content": after}] if isinstance(after, str) else messages_of(after) or []
    components = {name: number(value.get(name)) for name in rewards}
    weighted = zip(components.values(), weights or [1.0] * len(rewards), strict=True)
    known = [score * weight for score, weight in weighted if score is not None and score == score]
    others = {k: v for k, v in value.items() if k not in OWN and k not in components}
    return RolloutRow(
        step=_step(value.get("step"), step),
        line=line,
        messages=[*before, *reply] or None,
        n_prompt_messages=len(before),
        reward=sum(known) if known else None,
        components=components,
        metrics=numbers({k: v for k, v in others.items() if not isinstance(v, bool)}),
        advantage=number(value.get("advantage")),
        extras={name: item for name, item in others.items() if isinstance(item, (str, bool))},
    )


def _step(given: Any, otherwise: int) -> int:
    """A row's step, which older versions of TRL write as text."""
    try:
        step = otherwise if given is None else int(given)
    except (TypeError, ValueError, OverflowError):
        return otherwise
    return step if abs(step) < LARGEST_EXACT else otherwise


def _plain(value: Any) -> Any:
    """Messages out of structs: what a message, or a call's arguments, do not have is null there."""
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, Mapping):
        return {name: _plain(item) for name, item in value.items() if item is not None}
    return value


def n_repeated(before: Sequence[Record], now: Sequence[Record], *, whole_only: bool) -> int:
    """Counts the rows at the beginning of a table that are the last rows of the table before it.

    Args:
        before: rows of the table before.
        now: rows of the table.
        whole_only: all rows are, or none: a new generation batch takes the whole queue.
    """
    old, new = _without_step(before), _without_step(now)
    if old == new:
        return len(new)
    if whole_only or not new:
        return 0
    for start, record in enumerate(old):
        if record == new[0] and old[start:] == new[: len(old) - start]:
            return len(old) - start
    return 0


def _without_step(records: Sequence[Record]) -> list[dict[str, Any]]:
    return [{name: value for name, value in record.items() if name != "step"} for record in records]


def _logged(path: Path) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The rows of the file that was written before, and the file's own; a step's file is one generation batch."""
    step = number_in(_NAME, path.name) or 0
    others = {number_in(_NAME, other.name): other for other in path.parent.glob("completions_*.parquet")}
    earlier = [other for other in others if other is not None and other < step]
    before: list[dict[str, Any]] = []
    if earlier:
        with contextlib.suppress(FileRefused, OSError):  # damaged, which is said of that file itself
            before = read(others[max(earlier)]).to_pylist()
    return before, read(path).to_pylist()


@dataclass(frozen=True)
class _Logs:
    """The logs before a checkpoint, as its `trainer_state.json` tells of them.

    Attributes:
        until: the last step that it tells of; -1 where there is no checkpoint.
        evaluated: the steps whose last log was an evaluation's.
    """

    until: int = -1
    evaluated: frozenset[int] = frozenset()

    def tell_of(self, step: int) -> bool:
        """Tells whether it is known what a step's file was written by."""
        return step <= self.until


def _logs_of(root: Path) -> _Logs:
    """Reads what the newest checkpoint of a run tells."""
    states = [*root.glob("trainer_state.json"), *root.glob("checkpoint-*/trainer_state.json")]
    newest = max(states, key=lambda path: path.stat().st_mtime_ns, default=None)
    return _Logs() if newest is None else _read_logs(newest, newest.stat().st_mtime_ns)


@lru_cache
def _read_logs(path: Path, mtime_ns: int) -> _Logs:
    try:
        state = loads(path.read_bytes())
        of_evaluations = {e["step"] for e in state["log_history"] if any(k.startswith("eval_") for k in e)}
        return _Logs(int(state["global_step"]), frozenset(of_evaluations))
    except (OSError, ValueError, TypeError, KeyError):
        return _Logs()


def _is_number(kind: Any) -> bool:
    import pyarrow as pa

    return pa.types.is_floating(kind) or pa.types.is_integer(kind)


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
    records: Sequence[Record] = ()
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
    _before: dict[str, list[Record]] = field(default_factory=dict)
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

    def _stored_before(self, run_id: str, number: int) -> list[Record]:
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


def row_metadata(row: RolloutRow, record: Record) -> dict[str, Any]:
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


def _records(text: str | bytes) -> list[Record] | None:
    table = _mapping(text).get(TABLE)
    records = table.get("_value") if isinstance(table, dict) else None
    if not isinstance(records, list):
        return None
    found = [record for record in records if isinstance(record, Mapping)]
    return found if all("prompt" in record and "completion" in record for record in found) else None


def _numeric(records: Sequence[Record]) -> list[str]:
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
