"""The plan of a deletion: what goes with rollouts, worked out before anything is touched."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa

from rollout_traces.errors import StoreError
from rollout_traces.model.plain_values import from_json
from rollout_traces.store.asking import EVERYTHING, Steps
from rollout_traces.store.logged_tables import is_row_of_table
from rollout_traces.store.source import LocalSource
from rollout_traces.store.store import Store

Place = tuple[str, str, int]
"""Run id, split and step."""
Ids = tuple[str | None, str | None]
"""Uid and trace id of a rollout."""
_ASKED = ("run_id", "split", "step", "uid", "id")
PATH_KEY = "file_path"
"""Trackio's key of a file's path below its media folder, inside a stored image, table or recording."""


@dataclass(frozen=True)
class RemovalPlan:
    """The plan of what a deletion takes away.

    Attributes:
        runs: id -> name of runs of which nothing stays: their scalars, configuration and alerts go too.
        traces: ids of the traces that go, step summaries included.
        ledger_rows: id of a step summary that stays -> uids of the rollouts that leave its ledger.
        rollouts: rollouts that go, traced or not.
        traced: the traced ones among them.
        places: run, split and step they are of -> how many go.
        text_bytes: bytes of the traces that go, as stored.
        run_ids: ids of the runs that something goes from.
        labels: rollout -> labels and notes on it that go; those of a uid that another rollout shares stay.
        media: media files that go.
    """

    project: str
    runs: Mapping[str, str] = field(default_factory=dict)
    traces: frozenset[str] = frozenset()
    ledger_rows: Mapping[str, frozenset[str]] = field(default_factory=dict)
    rollouts: int = 0
    traced: int = 0
    places: Mapping[Place, int] = field(default_factory=dict)
    text_bytes: int = 0
    run_ids: frozenset[str] = frozenset()
    labels: Mapping[str, int] = field(default_factory=dict)
    media: tuple[Path, ...] = ()

    @property
    def is_empty(self) -> bool:
        """True when nothing goes."""
        return not (self.runs or self.traces or self.ledger_rows)


def plan_removal(
    store: Store,
    where: str = "",
    runs: Sequence[str] | None = None,
    splits: Sequence[str] | None = None,
    steps: Steps = EVERYTHING,
) -> RemovalPlan:
    """Plans the deletion of every rollout of a filter, traced or not, of every attempt.

    Args:
        store: a project of this machine.
        where: a filter.
        runs: ids or names of runs; all when None.
        splits: which splits; all when None.
        steps: first and last step, both included.

    Raises:
        StoreError: it is a server or an export, which nothing is deleted from.
        QueryError: the filter cannot be understood.
    """
    source = _local(store)
    wanted = _rollouts(store.rollouts(where, _ASKED, runs, splits, steps))
    whole = {}
    if not where and splits is None and steps == EVERYTHING:
        chosen = store.runs() if runs is None else [store.run(run) for run in runs]
        whole = {info.id: info.name for info in chosen}
    return _planned(store, source, wanted, whole)


def plan_retention(
    store: Store, older_than: timedelta | None = None, most_bytes: int | None = None
) -> RemovalPlan:
    """Plans a deletion after which nothing older stays, and the project's traces take no more than so many bytes.

    Whole steps go, the oldest first by when they were last written.

    Args:
        store: a project of this machine.
        older_than: age of the oldest step that stays.
        most_bytes: bytes of all traces and step summaries, as stored.

    Raises:
        StoreError: it is a server or an export, which nothing is deleted from.
    """
    source = _local(store)
    sizes = _sizes(store)
    ages: dict[Place, str] = {}
    taken: dict[Place, int] = {}
    for place, trace_id, _, _ in _docs(store):
        if is_row_of_table(trace_id):
            continue
        timestamp, size = sizes.get(trace_id, ("", 0))
        ages[place] = max(ages.get(place, ""), timestamp)
        taken[place] = taken.get(place, 0) + size
    left = sum(taken.values())
    limit = "" if older_than is None else (datetime.now(timezone.utc) - older_than).isoformat()
    going = set()
    for place in sorted(ages, key=lambda each: (ages[each], each)):
        if ages[place] < limit or (most_bytes is not None and left > most_bytes):
            going.add(place)
            left -= taken[place]
    rollouts = _rollouts(store.rollouts(columns=_ASKED))
    return _planned(store, source, {place: rollouts.get(place, []) for place in going}, {})


def _rollouts(table: pa.Table) -> dict[Place, list[Ids]]:
    """The rollouts of a table with the columns of `_ASKED`, by place."""
    found: dict[Place, list[Ids]] = {}
    for run_id, split, step, *ids in zip(*(c.to_pylist() for c in table.columns), strict=True):
        found.setdefault((run_id, split, step), []).append(tuple(ids))
    return found


def _local(store: Store) -> LocalSource:
    if not isinstance(store.source, LocalSource):
        raise StoreError(
            f"{store.source.label}: nothing is deleted from there. Delete on the machine that holds the project."
        )
    return store.source


def _planned(
    store: Store,
    source: LocalSource,
    wanted: Mapping[Place, Sequence[Ids]],
    whole_runs: Mapping[str, str],
) -> RemovalPlan:
    _refuse_rows_of_tables(wanted, whole_runs)
    rows_of = _rows_of(store)
    docs: dict[Place, list[tuple[str, str | None, str]]] = {}
    for place, trace_id, uid, kind in _docs(store):
        if place in wanted or place[0] in whole_runs:
            docs.setdefault(place, []).append((trace_id, uid, kind))
    traces: set[str] = set()
    ledgers: dict[str, frozenset[str]] = {}
    for place, there in docs.items():
        rows = wanted.get(place, ())
        uids = frozenset(uid for uid, _ in rows if uid is not None)
        ids = {trace_id for _, trace_id in rows if trace_id is not None}
        everything = place[0] in whole_runs or len(rows) >= rows_of.get(place, 0)
        for trace_id, uid, kind in there:
            if everything or trace_id in ids or (kind != "digest" and uid is not None and uid in uids):
                traces.add(trace_id)
            elif kind == "digest" and uids:
                ledgers[trace_id] = uids
    sizes = _sizes(store)
    names = {info.id: info.name for info in store.runs()}
    return RemovalPlan(
        project=store.project,
        runs=dict(whole_runs),
        traces=frozenset(traces),
        ledger_rows=ledgers,
        rollouts=sum(map(len, wanted.values())),
        traced=sum(trace_id is not None for rows in wanted.values() for _, trace_id in rows),
        places={(names[p[0]], *p[1:]): len(rows) for p, rows in sorted(wanted.items()) if rows},
        text_bytes=sum(sizes.get(trace_id, ("", 0))[1] for trace_id in traces),
        run_ids=frozenset({*whole_runs, *(place[0] for place, rows in wanted.items() if rows)}),
        labels=_labels(store, [row for rows in wanted.values() for row in rows]),
        media=media_of(source, traces, whole_runs),
    )


def _labels(store: Store, going: Sequence[Ids]) -> dict[str, int]:
    """Counts the labels and notes that go with some rollouts; none where a rollout of the same uid stays."""
    entries = store.labels.now().entries
    if not entries:
        return {}
    counts = Counter(uid or trace_id or "" for uid, trace_id in going)
    labelled = sorted(counts.keys() & entries.keys())
    columns = store.rollouts(columns=["uid", "id"]).columns if labelled else ()
    left = Counter(uid or i or "" for uid, i in zip(*(c.to_pylist() for c in columns), strict=True))
    return {key: len(entries[key]) for key in labelled if left[key] <= counts[key]}


def _refuse_rows_of_tables(wanted: Mapping[Place, Sequence[Ids]], whole_runs: Mapping[str, str]) -> None:
    rows = [i for place, ids in wanted.items() if place[0] not in whole_runs for _, i in ids]
    of_tables = sum(i is not None and is_row_of_table(i) for i in rows)
    if of_tables:
        raise StoreError(
            f"{of_tables} of the {len(rows)} rollouts are rows of tables that their trainer logged among its scalars. "
            "Single rows of a table are not deleted; delete their whole run, or leave it out."
        )


def _rows_of(store: Store) -> dict[Place, int]:
    """Counts the rollouts of each place."""
    counted = (
        "SELECT run_id, split, step, sum(n_rows) FROM parts JOIN places USING (place) JOIN runs USING (run)"
    )
    found = store.ask(
        lambda asking: asking.connection.execute(f"{counted} WHERE NOT dead GROUP BY place").fetchall()
    )
    return {(run_id, split, step): n for run_id, split, step, n in found}


def _docs(store: Store) -> list[tuple[Place, str, str | None, str]]:
    """Place, id, uid and kind of every trace, step summary and row of a table."""
    docs = (
        "SELECT run_id, split, step, id, uid, kind FROM docs JOIN places USING (place) JOIN runs USING (run)"
    )
    found = store.ask(lambda asking: asking.connection.execute(docs).fetchall())
    return [(tuple(place), trace_id, uid, kind) for *place, trace_id, uid, kind in found]


def _sizes(store: Store) -> dict[str, tuple[str, int]]:
    """When each trace was stored, and its bytes."""
    rows = store.source.select(
        "SELECT id, timestamp, length(messages) + length(metadata) + coalesce(length(spans), 0) FROM traces"
    )
    return {trace_id: (timestamp or "", size or 0) for trace_id, timestamp, size in rows}


def media_of(source: LocalSource, traces: Collection[str], runs: Mapping[str, str]) -> tuple[Path, ...]:
    """The files of some traces that no other trace of their steps names, and those of whole runs.

    Args:
        source: the project.
        traces: ids of traces that go.
        runs: id -> name of runs that go as a whole; files lie by a run's name, so where another run has
            the same one, theirs stay but for what their traces name.
    """
    own = source.media_folder()
    if not own.is_dir():
        return ()
    going: set[Path] = set()
    places: set[tuple[str, int]] = set()
    for chunk in source.pages(sorted(traces)):
        for name, step, *texts in source.select(f"{_NAMED} AND id IN ({', '.join('?' * len(chunk))})", chunk):
            files = set(_files_in(own, texts))
            going |= files
            if files:
                places.add((name, step))
    if going:
        for name, step in places:
            for trace_id, *texts in source.select(
                f"{_NAMED.replace('run_name, step', 'id')} AND run_name = ? AND step = ?", (name, step)
            ):
                if trace_id not in traces:
                    going -= set(_files_in(own, texts))
    for run_id, name in runs.items():
        others = source.select(
            "SELECT 1 FROM metrics WHERE run_name = ? AND run_id <> ? LIMIT 1", (name, run_id)
        )
        if not others:
            going |= set(_files_of_run(own, name))
    return tuple(sorted(path for path in going if path.is_file()))


_NAMED = (
    "SELECT run_name, step, messages, spans FROM traces"
    f" WHERE (instr(messages, '{PATH_KEY}') OR instr(spans, '{PATH_KEY}'))"
)


def _files_of_run(own: Path, name: str) -> Iterator[Path]:
    """Lists the files that Trackio saved for a run: a folder for each step."""
    folder = _inside(own, own / name)
    if folder is None or folder == own:
        return
    for step in folder.iterdir() if folder.is_dir() else ():
        if step.name.lstrip("-").isdigit() and step.is_dir() and not step.is_symlink():
            yield from (path for path in step.iterdir() if path.is_file() and not path.is_symlink())


def _files_in(own: Path, texts: Collection[str | bytes | None]) -> Iterator[Path]:
    for text in texts:
        for name in _paths(from_json(text or b"null")):
            path = _inside(own, own.parent / name)
            if path is not None:
                yield path


def _paths(value: Any) -> Iterator[str]:
    waiting = [value]
    while waiting:
        each = waiting.pop()
        if isinstance(each, dict):
            if isinstance(each.get(PATH_KEY), str):
                yield each[PATH_KEY]
            waiting += each.values()
        elif isinstance(each, list):
            waiting += each


def _inside(own: Path, path: Path) -> Path | None:
    """A path with its links followed; None where that leads out of the project's folder."""
    try:
        found = path.resolve()
        return found if found.is_relative_to(own.resolve()) else None
    except (OSError, ValueError):
        return None
