"""The ledger: one row per rollout, for every rollout of every step, in columns.

Traces show a few rollouts; questions are about all of them. This module is the columns' schema, their
packing and unpacking; `ledger.build` fills them from a `PackedBatch`. Numpy only: the read side uses it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from operator import index
from typing import Any, Literal

import numpy as np

from rollout_traces.errors import StoreError
from rollout_traces.model import packed_arrays
from rollout_traces.model.plain_values import finite_or_text
from rollout_traces.model.text import BRIEF
from rollout_traces.model.units import LARGEST_EXACT

SCHEMA_VERSION = packed_arrays.SCHEMA_VERSION
MOST_ROWS = 2**20
"""Rollouts of one step."""
MOST_CELLS = 2**25
"""Rollouts of one step, times columns."""
NULL_INT = np.iinfo(np.int64).min
"""The number that stands for an unknown integer inside a column; it leaves this module as None."""

Kind = Literal["float", "int", "text", "tags"]


@dataclass(frozen=True)
class Column:
    """One column of the ledger.

    Attributes:
        name: its name; the part before a trailing `*` is a prefix shared by many columns.
        kind: `float` (NaN = unknown), `int` (`NULL_INT` = unknown), `text` (None = unknown) or `tags`
            (a tuple of names).
        meaning: one sentence with the unit.
    """

    name: str
    kind: Kind
    meaning: str


COLUMNS = (
    Column("uid", "text", "stable unique id of the rollout: batch id and row"),
    Column("split", "text", "rollout (training) or eval-rollout"),
    Column("step", "int", "the trainer's global step"),
    Column(
        "attempt",
        "text",
        "the run's attempt that logged it, ordered by time; unknown in what a trainer logged to Trackio itself",
    ),
    Column("late", "int", "1 when it came after its step was closed, 0 otherwise"),
    Column("group", "int", "rollouts of one prompt in this step share it"),
    Column("sample", "int", "position inside the group, in the order handed over"),
    Column("equal_to", "int", "first sample of its group with the very same sampled tokens, else its own"),
    Column("prompt_key", "text", "what makes rollouts of different steps answers to the same prompt"),
    Column("source", "text", "environment or data set"),
    Column("engine", "text", "the engine that sampled it"),
    Column(
        "episode", "text", "rows of one run of an environment share it: branches, compactions, sub-agents"
    ),
    Column("parent", "text", "sample id of the row of the same episode that this one left"),
    Column("sample_id", "text", "the trainer's id of the row, which `parent` names; kept for episodes alone"),
    Column(
        "origin", "text", "where an imported rollout was read from: its file, and the line or record in it"
    ),
    Column("trained", "int", "1 when the row has tokens in the loss and was not discarded"),
    Column("discard_reason", "text", "why the trainer left it out; unknown = used"),
    Column("reward", "float", "the reward"),
    Column("raw_reward", "float", "the reward before shaping or scaling"),
    Column("reward_status", "text", "ok, timeout or error"),
    Column("component/*", "float", "one reward component"),
    Column("advantage", "float", "mean advantage over the row's loss tokens, or the row's own"),
    Column("advantage_abs_max", "float", "largest |advantage| over the row's loss tokens"),
    Column("n_prompt", "int", "tokens before the first sampled one"),
    Column("n_sampled", "int", "tokens the policy sampled, over all turns"),
    Column("n_environment", "int", "unsampled tokens after the first sampled one"),
    Column("prompt_characters", "int", "characters of the prompt's messages, of a row without tokens"),
    Column(
        "written_characters",
        "int",
        "characters of content and thinking that the policy wrote, over all turns, of a row without tokens",
    ),
    Column("n_thinking", "int", "sampled tokens inside thinking; known for traced rows"),
    Column("n_turns", "int", "assistant turns: sampled runs of tokens, decoded turns for traced rows"),
    Column("n_tool_calls", "int", "tool calls; known for traced rows"),
    Column("n_tool_errors", "int", "tool results that say they failed; known for traced rows"),
    Column("success", "int", "1 solved, 0 not, where the trainer says"),
    Column("answered", "int", "1 where an answer was parsed, 0 where none was, where the trainer says"),
    Column("answer", "text", "what the trainer parsed as the answer, 200 characters at most"),
    Column("ground_truth", "text", "the expected answer, 200 characters at most"),
    Column("stop_reason", "text", "why sampling stopped, normalised"),
    Column("version_min", "int", "oldest policy version among sampled tokens"),
    Column("version_max", "int", "newest policy version among sampled tokens"),
    Column("staleness_max", "int", "version being trained minus the oldest version"),
    Column("mean_logprob", "float", "mean rollout logprob over sampled tokens, nats"),
    Column("mismatch_k1", "float", "mean rollout minus prox logprob over sampled tokens, nats"),
    Column("mismatch_k3", "float", "mean e^d - d - 1, d = prox minus rollout logprob"),
    Column("mismatch_abs_max", "float", "largest |d|, nats"),
    Column("log_ratio_sum", "float", "sum of d over the row, nats"),
    Column("clip_share", "float", "share of loss tokens whose PPO ratio is clipped"),
    Column("update_share", "float", "share of the step's update that the row carries"),
    Column("flags", "tags", "names of the flags raised on the row"),
    Column("selected_by", "text", "the selection's reason, for traced rows"),
    Column("selected_probability", "float", "chance of having been traced"),
    Column("trace_uid", "text", "id of the row's trace in the store; unknown = not traced"),
    Column("sample/*", "float", "one of the trainer's own metrics of a rollout"),
    Column(
        "timing/*",
        "float",
        "seconds of one of the trainer's timings of a rollout, or of its spans of one kind; `timing/start` when it began, "
        "seconds since the epoch; `timing/score/<name>` the row's part of a reward function's seconds",
    ),
    Column("timings", "text", "the rollout's spans of time, packed as below"),
    Column(
        "extra/*",
        "text",
        "a value that the trainer gave with the row; `float` where all of a step are numbers, `int` where they "
        "are whole ones that no float holds exactly; true and false are 1 and 0",
    ),
)

_KINDS: dict[str, Kind] = {"run": "text", **{column.name: column.kind for column in COLUMNS}}


def is_column(name: str) -> bool:
    """Tells whether a ledger may have a column of this name."""
    prefix, slash, _ = name.partition("/")
    return name in _KINDS if not slash else f"{prefix}/*" in _KINDS


def kind_of(name: str, column: np.ndarray | None = None) -> Kind:
    """The kind of a column.

    Args:
        name: a column's name, prefixed names included.
        column: its values, where they are at hand: an extra may be of numbers.

    Raises:
        StoreError: no such column.
    """
    if name in _KINDS:
        return _KINDS[name]
    prefix = name.split("/", 1)[0] + "/*"
    if "/" not in name or prefix not in _KINDS:
        raise StoreError(f"ledger: no column {name!r}. Columns: {', '.join(_KINDS)}.")
    if prefix == "extra/*" and column is not None and column.dtype.kind in "fi":
        return "float" if column.dtype.kind == "f" else "int"
    return _KINDS[prefix]


@dataclass(frozen=True, eq=False)
class Coded:
    """A column of texts or names as numbers, as it is packed.

    Attributes:
        codes: int64 [B], places in `values`.
        values: what each number stands for: a str, a tuple of names, or None.
    """

    codes: np.ndarray
    values: Sequence[Any]

    def decoded(self) -> np.ndarray:
        """The column as an object array [B]."""
        values = np.empty(len(self.values), object)
        values[:] = self.values
        return values[self.codes]


@dataclass(frozen=True, eq=False)
class Ledger:
    """Columns over B rollouts.

    Attributes:
        columns: name -> array [B]: float64, int64, or object (str or None; tuple of str for tags).
            A column that is unknown throughout may be absent.
    """

    columns: Mapping[str, np.ndarray]

    @property
    def n_rows(self) -> int:
        """Number of rollouts, B."""
        for column in self.columns.values():
            return len(column)
        return 0

    def get(self, name: str) -> np.ndarray:
        """A column; full of unknowns, and not to be written to, when it is absent.

        Args:
            name: the column.

        Returns:
            [B] array of the column's kind.
        """
        column = self.columns.get(name)
        return _unknown(kind_of(name), self.n_rows) if column is None else column

    def with_columns(self, **columns: np.ndarray) -> Ledger:
        """A ledger with columns added or replaced."""
        return replace(self, columns={**self.columns, **columns})

    def take(self, rows: np.ndarray) -> Ledger:
        """A ledger of the given rows, in their order."""
        return replace(self, columns={name: column[rows] for name, column in self.columns.items()})

    def row(self, b: int) -> dict[str, Any]:
        """Row b as plain Python values, None where unknown."""
        return {name: _plain(kind_of(name, column), column[b]) for name, column in self.columns.items()}


def any_known(name: str, column: np.ndarray) -> bool:
    """Tells whether a column knows any row."""
    kind = kind_of(name, column)
    if kind == "float":
        return not bool(np.isnan(column).all())
    if kind == "int":
        return bool((column != NULL_INT).any())
    return any(value is not None for value in column.tolist())


def number_text(value: float) -> str:
    """A number among texts: the same for 1, 1.0 and True, as JSON has it, infinities too."""
    if isinstance(value, float) and not value.is_integer():
        stated = finite_or_text(value)
        return stated if isinstance(stated, str) else repr(value)
    whole = int(value)
    return str(whole) if abs(whole) < LARGEST_EXACT or not isinstance(value, float) else repr(value)


def pack(ledger: Ledger) -> bytes:
    """Packs a ledger: integers in their smallest width, floats in 4 bytes where that is exact for all values of the column.

    Returns:
        The bytes, about 33 KB for 512 rows of 30 columns.
    """
    columns: list[dict[str, Any]] = []
    arrays: dict[str, np.ndarray] = {}
    for name, column in ledger.columns.items():
        kind = kind_of(name, column)
        entry, arrays[name] = _PACKED[kind](column)
        columns.append({"name": name, "kind": kind, **entry})
    return packed_arrays.pack({"rows": ledger.n_rows, "columns": columns}, arrays)


def unpack(data: bytes) -> Ledger:
    """Unpacks what `pack` made.

    Raises:
        StoreError: the bytes are damaged or of another schema.
    """
    _, columns = unpack_coded(data)
    return Ledger({n: c.decoded() if isinstance(c, Coded) else c for n, c in columns.items()})


def unpack_coded(data: bytes) -> tuple[int, dict[str, np.ndarray | Coded]]:
    """Unpacks what `pack` made, texts left as numbers.

    Returns:
        Number of rows B, and the columns: float64 [B], int64 [B], or `Coded`.

    Raises:
        StoreError: the bytes are damaged or of another schema.
    """
    head, arrays = packed_arrays.unpack(data, "ledger")
    with packed_arrays.damage_said("ledger"):
        n_rows = packed_arrays.check_count(head["rows"], MOST_ROWS)
        packed_arrays.check_count(n_rows * len(head["columns"]), MOST_CELLS)
        if wrong := [name for name, array in arrays.items() if len(array) != n_rows]:
            raise ValueError(f"{wrong[0][:BRIEF]}: {len(arrays[wrong[0]])} values of {n_rows} rows")
        return n_rows, {entry["name"]: _unpacked(entry, arrays[entry["name"]]) for entry in head["columns"]}


def _packed_ints(column: np.ndarray) -> tuple[dict[str, Any], np.ndarray]:
    known = column[column != NULL_INT]
    low = int(known.min()) if len(known) else 0
    # exact modulo 2 ** 64; 0 is unknown
    above = column.view(np.uint64) - np.asarray([low]).view(np.uint64)
    codes = np.where(column == NULL_INT, np.uint64(0), above + np.uint64(1))
    return {"low": low}, codes.astype(np.min_scalar_type(int(codes.max(initial=0))))


def _packed_floats(column: np.ndarray) -> tuple[dict[str, Any], np.ndarray]:
    with np.errstate(over="ignore"):
        narrow = column.astype(np.float32)
    exact = ((narrow == column) | (column != column)).all()
    return {}, narrow if exact else column.astype(np.float64)


def _packed_texts(column: np.ndarray) -> tuple[dict[str, Any], np.ndarray]:
    texts: dict[Any, int] = {}
    codes = [texts.setdefault(value, len(texts)) for value in column.tolist()]
    return {"values": list(texts)}, np.asarray(codes, np.min_scalar_type(len(texts)))


_PACKED = {"int": _packed_ints, "float": _packed_floats, "text": _packed_texts, "tags": _packed_texts}


def _unpacked(entry: Mapping[str, Any], values: np.ndarray) -> np.ndarray | Coded:
    kind = entry["kind"]
    if kind == "float":
        return values.astype(np.float64)
    if kind == "int":
        low = np.full(1, index(entry["low"]), np.int64).view(np.uint64)
        counted = values.astype(np.uint64)
        return np.where(counted == 0, NULL_INT, (counted - 1 + low).view(np.int64))
    known = [_stored_text(kind, value) for value in entry["values"]]
    codes = values.astype(np.int64)
    if len(codes) and not 0 <= codes.min() <= codes.max() < len(known):
        raise ValueError(f"a code of {codes.max()} for {len(known)} values")
    return Coded(codes, known)


def _stored_text(kind: str, value: Any) -> Any:
    """A text, or a tuple of names; raises ValueError on any other value."""
    if value is None or (kind == "text" and isinstance(value, str)):
        return value
    if kind == "tags" and isinstance(value, list) and all(isinstance(name, str) for name in value):
        return tuple(value)
    raise ValueError(f"{str(value)[:BRIEF]!r} in a column of kind {str(kind)[:BRIEF]!r}")


@lru_cache
def _unknown(kind: Kind, n: int) -> np.ndarray:
    """A column of unknowns; every ledger without the column shows the same, so nobody can write to it."""
    if kind == "float":
        column = np.full(n, np.nan)
    elif kind == "int":
        column = np.full(n, NULL_INT, np.int64)
    else:
        column = np.empty(n, object)
        if kind == "tags":
            for row in range(n):
                column[row] = ()
    column.flags.writeable = False
    return column


def _plain(kind: Kind, value: Any) -> Any:
    if kind == "float":
        return None if np.isnan(value) else float(value)
    if kind == "int":
        return None if value is np.ma.masked or value == NULL_INT else int(value)
    return list(value) if kind == "tags" else value
