"""Relations that the analysis reads, two of them, `rollouts` and `metrics`, and which columns they have."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

if TYPE_CHECKING:
    import pyarrow as pa

NOT_COMPARED = frozenset(
    {
        *(
            "run",
            "run_id",
            "run_name",
            "project",
            "id",
            "uid",
            "trace_id",
            "trace_uid",
            "split",
            "step",
            "group",
        ),
        *(
            "sample",
            "prompt_key",
            "attempt",
            "episode",
            "parent",
            "sample_id",
            "late",
            "late_part",
            "superseded",
            "traced",
        ),
        *(
            "selected_by",
            "selected_probability",
            "prompt",
            "reply",
            "preview",
            "ground_truth",
            "text",
            "trained",
        ),
        *(
            "version_min",
            "version_max",
            "train_version",
            "timestamp",
            "started",
            "doc",
            "kind",
            "key",
            "trace_index",
        ),
        *("n_messages", "population", "group_size", "decoded_from", "response_mask_from", "status", "schema"),
        *("parsed_answer", "unreadable", "row", "place", "run_no", "from_ledger", "position", "timings"),
        *("timing/start", "timing/started", "timing/start_time"),
    }
)
"""Columns that name, place or count a rollout: no property that could have changed."""
EXPECTED = {
    "run": "varchar",
    "split": "varchar",
    "step": "bigint",
    "group": "bigint",
    "prompt_key": "varchar",
    "id": "varchar",
    "attempt": "varchar",
    "superseded": "boolean",
    "traced": "boolean",
    "selected_by": "varchar",
    "selected_probability": "double",
    "flags": "varchar[]",
    "tool_names": "varchar[]",
    "error_signatures": "varchar[]",
    "source": "varchar",
    "engine": "varchar",
    "reward": "double",
    "success": "bigint",
    "n_sampled": "bigint",
    "update_share": "double",
    "reward_status": "varchar",
    "stop_reason": "varchar",
    "version_max": "bigint",
    "reply": "varchar",
    "prompt": "varchar",
    "discard_reason": "varchar",
    "answer": "varchar",
}
"""Columns that queries may name; where one is absent it reads as unknown."""


_PLACEHOLDER = re.compile(r"'(?:[^']|'')*'|\"(?:[^\"]|\"\")*\"|\?")
"""A text or a name of a statement, in which nothing is a parameter, or a parameter."""


class Relations(Protocol):
    """Something that answers SQL over `rollouts` and `metrics`.

    It may load only the columns whose names occur in a statement, and take a free `*` for all of them: the
    analysis names its columns, and writes products without spaces.
    """

    def sql(self, query: str, params: Sequence[Any] = ()) -> pa.Table:
        """The rows of a SELECT, with `?` for each parameter; without ORDER BY, in the same order at every call."""
        ...

    def texts(self, uids: Sequence[str]) -> pa.Table:
        """Reads what some kept rollouts hold in full: `uid, written, tool_results, prompt, system, tools, ground_truth`; null for unknown."""
        ...


KEPT_AT_RANDOM = "traced and coalesce(selected_by, 'all') in ('all', 'random')"
"""The rollouts whose text was kept by no other reason than chance, or as all others were, so that they speak for all."""


@dataclass(frozen=True)
class RolloutColumns:
    """The columns of `rollouts` by what can be asked of them.

    Attributes:
        names: every column.
        numbers: numeric properties of a rollout.
        texts: properties with one of a few values.
        tags: properties with several values, such as flags.
        floats: the numbers that can be NaN.
    """

    names: frozenset[str]
    numbers: tuple[str, ...]
    texts: tuple[str, ...]
    tags: tuple[str, ...]
    floats: frozenset[str] = frozenset()

    def has(self, *names: str) -> bool:
        """Tells whether all of some columns are there."""
        return all(name in self.names for name in names)

    def expression(self, name: str) -> str:
        """A column in SQL; NULL of its type where the relation lacks it."""
        if name in self.names:
            return quoted(name)
        return f"cast(null as {EXPECTED.get(name, 'varchar')})"


def describe(relations: Relations) -> RolloutColumns:
    """The columns of `rollouts`; one that a trace repeats from `extra/*` counts once."""
    import pyarrow as pa

    schema = relations.sql("select * from rollouts limit 0").schema
    numbers, texts, tags, floats = [], [], [], []
    for field in schema:
        if field.name in NOT_COMPARED or f"extra/{field.name}" in schema.names:
            continue
        kind = field.type
        if pa.types.is_dictionary(kind):
            kind = kind.value_type
        if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind):
            numbers.append(field.name)
            if pa.types.is_floating(kind):
                floats.append(field.name)
        elif pa.types.is_string(kind) or pa.types.is_large_string(kind):
            texts.append(field.name)
        elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
            tags.append(field.name)
    return RolloutColumns(
        frozenset(schema.names), tuple(numbers), tuple(texts), tuple(tags), frozenset(floats)
    )


def quoted(name: str) -> str:
    """A column's name as SQL takes it."""
    return '"' + name.replace('"', '""') + '"'


def current(columns: RolloutColumns) -> str:
    """The condition that leaves out rows which a later attempt replaced."""
    return "superseded is not true" if columns.has("superseded") else "true"


def unit(columns: RolloutColumns) -> str:
    """SQL for what is independent inside a step, as a number: the group, else the prompt, else the rollout itself."""
    last = next((name for name in ("id", "uid") if columns.has(name)), None)
    cases = [
        f"when {quoted(n)} is not null then hash({quoted(n)})"
        for n in ("group", "prompt_key")
        if columns.has(n)
    ]
    if not cases:
        return f"hash({last})" if last else "hash(0)"
    return f"case {' '.join(cases)} else {f'hash({last})' if last else 'hash(0)'} end"


def unit_over_steps(columns: RolloutColumns, *, one_run: bool) -> str:
    """SQL for the same over steps, and over runs and splits where there are several."""
    parts = ["step", unit(columns)]
    if not one_run:
        parts += [name for name in ("run", "split") if columns.has(name)]
    return f"hash({', '.join(parts)})"


def failed(columns: RolloutColumns) -> str:
    """1 for a row whose reward function timed out or raised, so that its reward says nothing; else 0."""
    return f"cast(coalesce({columns.expression('reward_status')}, 'ok') <> 'ok' as int)"


def known_reward(columns: RolloutColumns) -> str:
    """The reward; NULL where it is unknown or the reward function failed, as `ledger.groups.known_rewards`."""
    if not columns.has("reward"):
        return "cast(null as double)"
    return f"case when {failed(columns)} = 0 then {known_number('reward')} end"


def known_text(name: str) -> str:
    """A text column; a rollout that was not discarded has no reason why."""
    return f"coalesce({quoted(name)}, 'none')" if name == "discard_reason" else quoted(name)


def known_number(name: str) -> str:
    """A numeric column with NaN and infinity read as unknown."""
    return f"case when isfinite(cast({quoted(name)} as double)) then cast({quoted(name)} as double) end"


def known_value(columns: RolloutColumns, name: str) -> str:
    """A numeric column as everything that is said of it counts it: only the reward is unknown too where its function failed."""
    return known_reward(columns) if name == "reward" else known_number(name)


def sql_text(text: str) -> str:
    """A text as SQL writes it."""
    return "'" + text.replace("'", "''") + "'"


def written(query: str, params: Sequence[Any]) -> str:
    """A statement with its parameters as literals, to be read and pasted."""
    values = iter(params)
    return _PLACEHOLDER.sub(lambda found: found[0] if found[0] != "?" else _literal(next(values)), query)


def _literal(value: Any) -> str:
    if isinstance(value, str):
        return sql_text(value)
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(_literal, value)) + "]"
    if isinstance(value, float) and not math.isfinite(value):
        return f"cast('{value}' as double)"
    return "null" if value is None else str(value)


def as_arrays(table: Any) -> dict[str, np.ndarray]:
    """An Arrow table as arrays by column: numbers with NaN for unknown, texts as objects with None."""
    import pyarrow as pa

    arrays = {}
    for name in table.column_names:
        column = table.column(name)
        kind = column.type
        if pa.types.is_decimal(kind) or pa.types.is_boolean(kind):
            column = column.cast(pa.float64())
            kind = column.type
        if pa.types.is_integer(kind) or pa.types.is_floating(kind):
            arrays[name] = column.to_numpy()
        else:
            arrays[name] = np.asarray(column.to_pylist(), dtype=object)
    return arrays
