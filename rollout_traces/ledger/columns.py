"""The ledger: one row per rollout, for every rollout of every step, in columns.

Traces show a few rollouts; questions are about all of them. This module is the columns' schema, their
packing and unpacking; `ledger.build` fills them from a `PackedBatch`. Numpy only: the read side uses it.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Literal

import numpy as np
import orjson

from rollout_traces.errors import StoreError
from rollout_traces.ledger.byte_shuffle import decompress, from_planes, to_planes
from rollout_traces.ledger.declared import check_ledger_head, damaged_as
from rollout_traces.plain_values import finite_or_text

SCHEMA_VERSION = 1
NULL_INT = np.iinfo(np.int64).min
"""What stands for an unknown integer inside a column; it leaves this module as None."""
_MAX_INT = np.iinfo(np.int64).max
_EXACT = 2**53
"""Whole numbers up to which a float holds every one."""
_BYTE = np.dtype("u1")
_UNSIGNED = ((_BYTE, 2**8), *((np.dtype(f"u{size}"), 2 ** (8 * size)) for size in (2, 4, 8)))
"""dtype -> the first number that it does not hold."""
_SMALL = 4096
"""Bytes up to which a ledger is compressed with tables of its size: clearing those for more takes twice as long."""

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
    Column("timing/*", "float", "seconds of one of the trainer's timings of a rollout"),
    Column(
        "extra/*",
        "text",
        "a value that the trainer gave with the row; `float` where all of a step are numbers, `int` where they "
        "are whole ones that no float holds exactly; true and false are 1 and 0",
    ),
)

_KINDS: dict[str, Kind] = {"run": "text", **{column.name: column.kind for column in COLUMNS}}


def is_column(name: str) -> bool:
    """Whether a ledger may have a column of this name."""
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
        return Ledger({name: column[rows] for name, column in self.columns.items()})

    def row(self, b: int) -> dict[str, Any]:
        """Row b as plain Python values, None where unknown."""
        return {name: _plain(kind_of(name, column), column[b]) for name, column in self.columns.items()}


def any_known(name: str, column: np.ndarray) -> bool:
    """Whether a column knows any row; mostly it knows the first one."""
    if not len(column):
        return False
    kind, first = kind_of(name, column), column.item(0)
    if kind == "float":
        return first == first or not bool(np.isnan(column).all())
    if kind == "int":
        return bool(first != NULL_INT or (column != NULL_INT).any())
    return first is not None or any(value is not None for value in column.tolist())


def concatenate(ledgers: Sequence[Ledger]) -> Ledger:
    """Stacks ledgers; a column that only some have is unknown in the others.

    An extra that is of numbers in some and of texts in others is of texts; of whole numbers in some and of any
    in others, of floats.
    """
    names = list(dict.fromkeys(name for ledger in ledgers for name in ledger.columns))
    return Ledger({name: _stacked(name, ledgers) for name in names})


def _stacked(name: str, ledgers: Sequence[Ledger]) -> np.ndarray:
    having = [ledger.columns[name] for ledger in ledgers if name in ledger.columns]
    kinds = {kind_of(name, column) for column in having}
    kind: Kind = kinds.pop() if len(kinds) == 1 else "float" if kinds == {"int", "float"} else "text"
    return np.concatenate(
        [
            _as_kind(ledger.columns[name], kind) if name in ledger.columns else _unknown(kind, ledger.n_rows)
            for ledger in ledgers
        ]
    )


def _as_kind(column: np.ndarray, kind: Kind) -> np.ndarray:
    """A column as another kind that holds its values."""
    if kind == "float" and column.dtype.kind == "i":
        return np.where(column == NULL_INT, np.nan, column)
    if kind != "text" or column.dtype == object:
        return column
    texts = np.empty(len(column), object)
    unknown = (column == NULL_INT) | (column != column)
    texts[:] = [
        None if no else number_text(v) for v, no in zip(column.tolist(), unknown.tolist(), strict=True)
    ]
    return texts


def number_text(value: float) -> str:
    """A number among texts: the same for 1, 1.0 and True, as JSON has it, infinities too."""
    if isinstance(value, float) and not value.is_integer():
        stated = finite_or_text(value)
        return stated if isinstance(stated, str) else repr(value)
    whole = int(value)
    return str(whole) if abs(whole) < _EXACT or not isinstance(value, float) else repr(value)


def pack(ledger: Ledger) -> bytes:
    """Packs a ledger into compressed bytes.

    Integers take their smallest width, floats 4 bytes where that is exact for all values of the
    column, else 8; texts are numbered.

    Args:
        ledger: the ledger.

    Returns:
        The bytes, about 33 KB for 512 rows of 30 columns.
    """
    header: list[dict[str, Any]] = []
    body: list[bytes] = []
    kinds = {name: kind_of(name, column) for name, column in ledger.columns.items()}
    ints = _packed_ints({name: column for name, column in ledger.columns.items() if kinds[name] == "int"})
    for name, column in ledger.columns.items():
        kind = kinds[name]
        entry, data = ints[name] if kind == "int" else _pack_column(kind, column)
        header.append({"name": name, "kind": kind, "size": len(data), **entry})
        body.append(data)
    head = orjson.dumps({"schema": SCHEMA_VERSION, "rows": ledger.n_rows, "columns": header})
    raw = b"".join((len(head).to_bytes(4, "little"), head, *body))
    stream = zlib.compressobj(6, wbits=12, memLevel=5) if len(raw) <= _SMALL else zlib.compressobj(6)
    return stream.compress(raw) + stream.flush()


def unpack(data: bytes) -> Ledger:
    """Unpacks what `pack` made.

    Raises:
        StoreError: the bytes are damaged or of a newer schema.
    """
    _, columns = unpack_coded(data)
    return Ledger({n: c.decoded() if isinstance(c, Coded) else c for n, c in columns.items()})


def unpack_coded(data: bytes) -> tuple[int, dict[str, np.ndarray | Coded]]:
    """Unpacks what `pack` made, texts left as numbers.

    Returns:
        Number of rows B, and the columns: float64 [B], int64 [B], or `Coded`.

    Raises:
        StoreError: the bytes are damaged or of a newer schema.
    """
    try:
        raw = decompress(data)
        size = int.from_bytes(raw[:4], "little")
        head = orjson.loads(raw[4 : 4 + size])
    except (zlib.error, orjson.JSONDecodeError) as error:
        raise StoreError(f"ledger: damaged bytes ({error}).") from error
    with damaged_as("ledger: damaged bytes"):
        check_ledger_head(head)
    if head["schema"] > SCHEMA_VERSION:
        raise StoreError(
            f"ledger: schema {head['schema']}, this version reads up to {SCHEMA_VERSION}. Upgrade rollout-traces."
        )
    columns = {}
    at = 4 + size
    with damaged_as("ledger: damaged bytes"):
        for entry in head["columns"]:
            columns[entry["name"]] = _unpack_column(entry, raw[at : at + entry["size"]], head["rows"])
            at += entry["size"]
    return head["rows"], columns


def _packed_ints(columns: Mapping[str, np.ndarray]) -> dict[str, tuple[dict[str, Any], bytes]]:
    """What `pack` writes of columns of integers, all in one pass: a step of few rows has more columns than rows."""
    if not columns:
        return {}
    values_C_B = np.array(list(columns.values()))
    unknown = values_C_B == NULL_INT
    lows = np.where(unknown, _MAX_INT, values_C_B).min(axis=1, initial=_MAX_INT)
    lows[unknown.all(axis=1)] = 0
    # never below 0, and exact modulo 2 ** 64
    above_C_B = values_C_B.view(np.uint64) - lows.view(np.uint64)[:, None]
    codes_C_B = np.where(unknown, 0, above_C_B + 1)
    highest = codes_C_B.max(axis=1, initial=0).tolist()
    bytes_C_B = codes_C_B.astype(_BYTE)
    packed = {}
    for at, (name, low, high) in enumerate(zip(columns, lows.tolist(), highest, strict=True)):
        dtype = _unsigned(high)
        small = dtype is _BYTE
        data = bytes_C_B[at].tobytes() if small else to_planes(codes_C_B[at].astype(dtype, copy=False))
        packed[name] = {"dtype": dtype.str, "low": low}, data
    return packed


def _pack_column(kind: Kind, column: np.ndarray) -> tuple[dict[str, Any], bytes]:
    """What `pack` writes of a column of floats or texts."""
    if kind == "float":
        with np.errstate(over="ignore"):
            narrow = column.astype(np.float32)
        exact = ((narrow == column) | (column != column)).all()
        values = narrow if exact else column.astype(np.float64)
        return {"dtype": values.dtype.str}, to_planes(values)
    texts: dict[Any, int] = {}
    codes = [texts.setdefault(value, len(texts)) for value in column.tolist()]
    dtype = _unsigned(max(len(texts), 1))
    data = bytes(codes) if dtype.itemsize == 1 else to_planes(np.asarray(codes, dtype))
    return {"dtype": dtype.str, "values": list(texts)}, data


def _unsigned(highest: int) -> np.dtype[Any]:
    """The narrowest unsigned dtype that holds a number."""
    return next(dtype for dtype, end in _UNSIGNED if highest < end)


def _unpack_column(entry: Mapping[str, Any], data: bytes, n_rows: int) -> np.ndarray | Coded:
    values = from_planes(data, entry["dtype"], n_rows)
    if entry["kind"] == "float":
        return values.astype(np.float64)
    if entry["kind"] == "int":
        counted = values.astype(np.uint64)
        low = np.full(1, entry["low"], np.int64).view(np.uint64)
        return np.where(counted == 0, NULL_INT, (counted - 1 + low).view(np.int64))
    codes = values.astype(np.int64)
    known = [tuple(value) if isinstance(value, list) else value for value in entry["values"]]
    if len(codes) and not 0 <= codes.min() <= codes.max() < len(known):
        raise ValueError(f"{entry['name']}: a code of {codes.max()} for {len(known)} values")
    return Coded(codes, known)


@lru_cache(32)
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
        return None if value == NULL_INT else int(value)
    return list(value) if kind == "tags" else value
