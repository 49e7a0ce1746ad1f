"""The rows of all segments as Arrow columns: each is read when it is first asked for, and kept."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rollout_traces.store.columns import attempts
from rollout_traces.store.columns.cache import MOST_KEPT, Cache, size_of
from rollout_traces.store.columns.kinds import BYTES_OF_A_VALUE, Kind, cast, common_kind, type_of
from rollout_traces.store.columns.schema import ALWAYS, COMPUTED, LABELLED, PLACE, TRACE
from rollout_traces.store.columns.segments import ROW_GROUP, SegmentFile, read_columns
from rollout_traces.store.columns.side import SideColumns
from rollout_traces.store.labels.book import Labelled

FEW_GROUPS = 8
"""Groups of neighbouring rows that are read by themselves, each time anew."""
SMALL = 32 << 20
"""Bytes of columns that are read whole wherever rows are taken out of them: the next question finds them there."""

POSITION = "position"
"""A row's place among the rows of one state of the table, 0 ... N - 1."""


@dataclass(frozen=True)
class State:
    """What the manifest says at one moment.

    Attributes:
        stamp: changes with every change of the index.
        segments: the segments, in order of arrival.
        runs: run number -> (id, name).
        superseded: see `attempts.superseded_from`.
        labelled: labels and notes.
        side: columns of side tables.
    """

    stamp: tuple[int, ...]
    segments: tuple[SegmentFile, ...]
    runs: Mapping[int, tuple[str, str]]
    superseded: attempts.First = field(default_factory=dict)
    labelled: Labelled = field(default_factory=Labelled)
    side: SideColumns = field(default_factory=SideColumns)

    @cached_property
    def side_names(self) -> frozenset[str]:
        """The columns that come from side tables: those that the table has not by itself."""
        return frozenset(self.side.kinds) - set(self._own_kinds())

    @cached_property
    def kinds(self) -> dict[str, Kind]:
        """The kind of every column, those included that no row knows yet."""
        own = self._own_kinds()
        return own | {name: kind for name, kind in self.side.kinds.items() if name not in own}

    @cached_property
    def stored_names(self) -> frozenset[str]:
        """The columns that some segment has."""
        return frozenset(name for segment in self.segments for name in segment.kinds)

    def _own_kinds(self) -> dict[str, Kind]:
        found: dict[str, set[Kind]] = {}
        for segment in self.segments:
            for name, kind in segment.kinds.items():
                found.setdefault(name, set()).add(kind)
        fixed = {**PLACE, **TRACE, "from_ledger": "bool", **COMPUTED, **LABELLED, POSITION: "int"}
        known = {name: common_kind(kinds) for name, kinds in found.items()}
        return {**ALWAYS, **known, **fixed}


class Rows:
    """One state of the table.

    Args:
        state: what the manifest says.
        cache: columns that were read before.
    """

    def __init__(self, state: State, cache: Cache) -> None:
        self.state = state
        self.kinds = state.kinds
        self._side = state.side_names
        self._cache = cache
        self._alive = {s.number: cache.alive(s) for s in state.segments}
        self._sizes = [
            segment.n_rows if alive is None else int(alive.sum())
            for segment, alive in ((s, self._alive[s.number]) for s in state.segments)
        ]
        self.n_rows = sum(self._sizes)
        self._columns: OrderedDict[str, pa.ChunkedArray] = OrderedDict()
        self._lock = threading.Lock()
        self.computed: dict[str, pa.ChunkedArray] = {}
        """Columns that whoever asks computed from all rows, [N] each, kept as long as this state."""

    def arrow(self, names: Sequence[str]) -> pa.Table:
        """Some columns of all rows, [N], nulls where unknown; texts may be dictionaries of them.

        Args:
            names: which; each must be in `kinds`.
        """
        columns = self._whole(names)
        return pa.table({name: _undone(columns[name], self.kinds[name]) for name in names})

    def coded(self, names: Sequence[str]) -> pa.Table:
        """The same for statements: numbers, too, may be dictionaries, which take less memory and time."""
        columns = self._whole(names)
        return pa.table({name: columns[name] for name in names})

    @cached_property
    def in_order(self) -> bool:
        """Whether the rows lie in the order of their numbers."""
        numbers = self.arrow(["row"])["row"].to_numpy()
        return bool((numbers[1:] > numbers[:-1]).all())

    @cached_property
    def only_run(self) -> int | None:
        """The number of the run that all rows are of; None where there are several, or no rows."""
        ends = pc.min_max(self.arrow(["run_no"])["run_no"]).as_py()
        return ends["min"] if ends["min"] == ends["max"] else None

    @cached_property
    def all_traced(self) -> bool:
        """Whether every row has its conversation."""
        return self.arrow(["doc"])["doc"].null_count == 0

    @cached_property
    def _docs(self) -> np.ndarray:
        """The number of each row's conversation, 0 where it has none, int [N]."""
        return self.arrow(["doc"])["doc"].fill_null(0).to_numpy()

    def of_docs(self, docs: np.ndarray) -> np.ndarray:
        """Which rows have one of some conversations, bool [N].

        Args:
            docs: their numbers, int [K].
        """
        wanted = np.zeros(max(self._docs.max(initial=0), docs.max(initial=0)) + 1, bool)
        wanted[docs] = True
        wanted[0] = False
        return wanted[self._docs]

    def of_place(self, place: int) -> np.ndarray:
        """The positions of the rows of one step of a split of a run, int [K].

        Args:
            place: its number.
        """
        found: list[np.ndarray] = []
        start = 0
        for chunk in self.arrow(["place"])["place"].chunks:
            found.append(np.flatnonzero(chunk.to_numpy() == place) + start)
            start += len(chunk)
        return np.concatenate(found) if found else np.empty(0, np.int64)

    def nothing(self, names: Sequence[str]) -> pa.Table:
        """Some columns without rows, to know their types; nothing is read."""
        return pa.schema([(name, type_of(self.kinds[name])) for name in names]).empty_table()

    def take(self, positions: np.ndarray, names: Sequence[str]) -> pa.Table:
        """Some columns of some rows, in their order.

        What is not in memory is read around them alone; columns that are small, or whose rows lie scattered over a
        table which fits into memory, are brought there.

        Args:
            positions: int [K].
            names: which columns.
        """
        needed, inside, back = self._located(positions, names)
        parts = [self._take_from(segment, at, needed) for segment, at in inside]
        columns = parts[0] if len(parts) == 1 else self._joined(parts, needed)
        if back is not None:
            columns = _taken(columns, back)
        for name in names:
            if name not in columns:
                columns[name] = _plain(_computed(name, columns, self.state, positions), self.kinds[name])
        return pa.Table.from_arrays([columns[name] for name in names], [*names])

    def values(self, positions: np.ndarray, names: Sequence[str]) -> dict[str, list[Any]]:
        """The same as lists of Python's own values, None where unknown; much quicker where a page is small.

        Args:
            positions: int [K].
            names: which columns.
        """
        needed, inside, back = self._located(positions, names)
        parts = [self._values_in(segment, at, needed) for segment, at in inside]
        if len(parts) == 1:
            found = parts[0]
        else:
            quick = [name for name in needed if all(name in part for part in parts)]
            found = {name: [value for part in parts for value in part[name]] for name in quick}
        if back is not None:
            order = back.tolist()
            found = {name: [values[at] for at in order] for name, values in found.items()}
        for name in names:
            if name in COMPUTED and name not in found and all(s in found for s in self._stored_for([name])):
                computed = _computed_values(name, found, self.state, len(positions))
                found |= {} if computed is None else {name: computed}
        rest = [name for name in names if name not in found]
        taken = self.take(positions, rest) if rest else None
        return {
            name: found[name] if taken is None or name in found else taken[name].to_pylist() for name in names
        }

    def _located(
        self, positions: np.ndarray, names: Sequence[str]
    ) -> tuple[Sequence[str], list[tuple[SegmentFile, np.ndarray]], np.ndarray | None]:
        """The stored columns that some columns are made from, those that are small in memory, and `_places`."""
        needed = self._stored_for(names)
        self._bring_small(positions, needed)
        return needed, *self._places(positions)

    def _values_in(
        self, segment: SegmentFile, inside: np.ndarray, names: Sequence[str]
    ) -> dict[str, list[Any]]:
        """Values of those columns that are in memory, are of the table's own kind, and can be read where they lie."""
        found: dict[str, list[Any]] = {}
        for name, kept in self._cache.values(segment, names).items():
            if kept.read is not None and kept.kind == type_of(self.kinds[name]):
                found[name] = kept.read(inside)
        return found | {name: [None] * len(inside) for name in names if name not in segment.kinds}

    def _bring_small(self, positions: np.ndarray, names: Sequence[str]) -> None:
        """Brings columns to memory that are small, or whose rows lie scattered over a table which fits into it."""
        size = self.n_rows * len(names) * BYTES_OF_A_VALUE
        scattered = size > SMALL and len(np.unique(positions // ROW_GROUP)) > FEW_GROUPS
        if size <= SMALL or (scattered and size <= MOST_KEPT // 2):
            for segment in self.state.segments:
                self._cache.read(segment, self._alive[segment.number], names)

    def _places(
        self, positions: np.ndarray
    ) -> tuple[list[tuple[SegmentFile, np.ndarray]], np.ndarray | None]:
        """Which rows of which segments are at some positions, and where each is among those rows, if not in order."""
        if len(self._sizes) == 1 and len(positions):
            return [(self.state.segments[0], positions)], None
        edges = np.cumsum([0, *self._sizes])
        of = np.searchsorted(edges, positions, side="right") - 1
        numbers = np.unique(of).tolist()
        inside = [(self.state.segments[at], positions[of == at] - edges[at]) for at in numbers]
        if len(inside) <= 1:
            return inside, None
        back = np.empty(len(positions), np.int64)
        back[np.argsort(of, kind="stable")] = np.arange(len(positions))
        return inside, back

    def _joined(self, parts: Sequence[Mapping[str, pa.Array]], names: Sequence[str]) -> dict[str, pa.Array]:
        """Columns of rows that lie in several segments, or in none."""
        pieces = {name: [part[name] for part in parts] for name in names}
        return {
            name: pa.concat_arrays(each) if each else pa.array([], type_of(self.kinds[name]))
            for name, each in pieces.items()
        }

    def _take_from(
        self, segment: SegmentFile, inside: np.ndarray, names: Sequence[str]
    ) -> dict[str, pa.Array]:
        alive = self._alive[segment.number]
        raw = inside if alive is None else np.flatnonzero(alive)[inside]
        here = [name for name in names if name in segment.kinds]
        kept = self._cache.known(segment, here)
        cold = [name for name in here if name not in kept]
        found: dict[str, Any] = {name: pa.nulls(len(raw)) for name in names if name not in segment.kinds}
        if cold:
            groups = np.unique(raw // ROW_GROUP)
            read = read_columns(segment, cold, groups.tolist())
            first = {int(group): at * ROW_GROUP for at, group in enumerate(groups)}
            picked = np.array([first[int(row // ROW_GROUP)] + row % ROW_GROUP for row in raw], np.int64)
            found |= _taken({name: cast(read[name], self.kinds[name]) for name in cold}, picked)
        found |= _taken(kept, inside)
        return {name: _plain(found[name], self.kinds[name]) for name in names}

    def _stored_for(self, names: Sequence[str]) -> list[str]:
        """The stored columns that some columns are, or are computed from."""
        needed: list[str] = []
        for name in names:
            if name in self._side:
                needed.append("id")
            elif name != "superseded" or self.state.superseded:
                needed += _SOURCES.get(name, (name,))
        return list(dict.fromkeys(needed))

    def _load(self, names: Sequence[str]) -> dict[str, pa.ChunkedArray]:
        parts: dict[str, list[pa.Array]] = {name: [] for name in names}
        for segment in self.state.segments:
            alive = self._alive[segment.number]
            for name, column in self._cache.columns(segment, alive, names, self.kinds).items():
                parts[name] += column.chunks
        return {name: _chunked(parts[name], self.kinds[name]) for name in names}

    def _whole(self, names: Sequence[str]) -> dict[str, pa.ChunkedArray]:
        """Columns of all rows by name; those that were not asked for lately are let go where there are many."""
        with self._lock:
            found = {name: self._columns[name] for name in names if name in self._columns}
        missing = [name for name in names if name not in found]
        if missing:
            stored = self._load([name for name in self._stored_for(missing) if name not in found]) | found
            for name in missing:
                found[name] = stored[name] if name in stored else self._computed_whole(name, stored)
        with self._lock:
            for name in names:
                self._columns[name] = found[name]
                self._columns.move_to_end(name)
            size = sum(map(size_of, self._columns.values()))
            while size > MOST_KEPT and len(self._columns) > len(names):
                size -= size_of(self._columns.popitem(last=False)[1])
        return found

    def _computed_whole(self, name: str, stored: Mapping[str, pa.ChunkedArray]) -> pa.ChunkedArray:
        needed = {source: _undone(stored[source], self.kinds[source]) for source in self._stored_for([name])}
        computed = _computed(name, needed, self.state, np.arange(self.n_rows))
        return computed if isinstance(computed, pa.ChunkedArray) else pa.chunked_array([computed])


_SOURCES: Mapping[str, tuple[str, ...]] = {
    "run": ("run_no",),
    "run_id": ("run_no",),
    "traced": ("doc",),
    "late": ("late_part",),
    "superseded": ("run_no", "split", "attempt", "step"),
    POSITION: (),
    **dict.fromkeys(LABELLED, ("uid", "id")),
}
"""What computed columns are computed from."""


def _computed(name: str, stored: Mapping[str, Any], state: State, positions: np.ndarray) -> Any:
    n = len(positions)
    if name == POSITION:
        return pa.array(positions)
    if name in LABELLED:
        return state.labelled.column(name, stored["uid"], stored["id"])
    if name in state.side_names:
        return state.side.of(stored["id"], name)
    if name in ("run", "run_id"):
        numbers = sorted(state.runs)
        at = 0 if name == "run_id" else 1
        texts = pa.array([state.runs[number][at] for number in numbers], pa.string())
        codes = np.searchsorted(np.array(numbers, np.int64), stored["run_no"].to_numpy())
        return pa.DictionaryArray.from_arrays(pa.array(codes.astype(np.int32)), texts)
    if name == "traced":
        return pc.is_valid(stored["doc"])
    if name == "late":
        return pc.fill_null(pc.not_equal(stored["late_part"], 0), False)
    if not state.superseded:
        return pa.array(np.zeros(n, bool))
    return pa.array(
        attempts.mark(
            stored["run_no"].to_numpy(),
            stored["split"].to_pylist(),
            stored["attempt"].to_pylist(),
            stored["step"].to_numpy(),
            state.superseded,
        )
    )


def _computed_values(name: str, stored: Mapping[str, list[Any]], state: State, n: int) -> list[Any] | None:
    """What `_computed` gives, as Python's own values; None where it is computed by columns alone."""
    if name in ("run", "run_id"):
        return [state.runs[number][name == "run"] for number in stored["run_no"]]
    if name == "traced":
        return [doc is not None for doc in stored["doc"]]
    if name == "late":
        return [part is not None and part != 0 for part in stored["late_part"]]
    return None if state.superseded else [False] * n


def _chunked(chunks: Sequence[pa.Array], kind: Kind) -> pa.ChunkedArray:
    """Chunks as one column; dictionaries and plain values mix, as where one segment lacks a column."""
    wanted = type_of(kind)
    if not chunks:
        return pa.chunked_array([], wanted)
    types = {chunk.type for chunk in chunks}
    if len(types) > 1 and all(map(pa.types.is_dictionary, types)):
        chunks = [
            pa.DictionaryArray.from_arrays(chunk.indices.cast(pa.int32()), chunk.dictionary)
            for chunk in chunks
        ]
    elif len(types) > 1:
        chunks = [_plain(chunk, kind) for chunk in chunks]
    return pa.chunked_array(chunks)


def _taken(columns: Mapping[str, Any], at: np.ndarray) -> dict[str, pa.Array]:
    """Some rows of columns of one length; those in one piece are taken together, which is quicker."""
    rows = pa.array(at)
    whole = {
        name: c.chunk(0) if isinstance(c, pa.ChunkedArray) else c for name, c in columns.items() if _whole(c)
    }
    found = {name: column.take(rows) for name, column in columns.items() if name not in whole}
    if whole:
        batch = pa.RecordBatch.from_arrays([*whole.values()], [*whole]).take(rows)
        found |= dict(zip(whole, batch.columns, strict=True))
    return found


def _whole(column: pa.Array | pa.ChunkedArray) -> bool:
    return not isinstance(column, pa.ChunkedArray) or column.num_chunks == 1


def _undone(column: pa.ChunkedArray, kind: Kind) -> pa.ChunkedArray:
    """A column whose numbers are no dictionary of them; texts stay as they are."""
    wanted = type_of(kind)
    return column if column.type == wanted or wanted == pa.string() else column.cast(wanted)


def _plain(column: pa.Array | pa.ChunkedArray, kind: Kind) -> pa.Array:
    """A column of the kind's own type, in one piece."""
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    return column if column.type == type_of(kind) else column.cast(type_of(kind))
