"""The media files that go with traces and runs."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import orjson

from rollout_traces.store.local_source import LocalSource

PATH_KEY = "file_path"
"""What Trackio calls a file's path below its media folder, inside a stored image, table or recording."""
_CHUNK = 500


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
    ids = sorted(traces)
    for at in range(0, len(ids), _CHUNK):
        chunk = ids[at : at + _CHUNK]
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


_OTHER_RUN = " UNION ALL ".join(
    f"SELECT 1 FROM (SELECT 1 FROM {table} WHERE run_name = ?1 AND run_id <> ?2 LIMIT 1)"
    for table in ("metrics", "configs", "traces")
)


def _files_of_run(own: Path, name: str) -> Iterator[Path]:
    """What Trackio saved for a run: a folder for each step."""
    folder = _inside(own, own / name)
    if folder is None or folder == own:
        return
    for step in folder.iterdir() if folder.is_dir() else ():
        if step.name.lstrip("-").isdigit() and step.is_dir() and not step.is_symlink():
            yield from (path for path in step.iterdir() if path.is_file() and not path.is_symlink())


def _files_in(own: Path, texts: Collection[str | bytes | None]) -> Iterator[Path]:
    for text in texts:
        try:
            read = orjson.loads(text or b"null")
        except orjson.JSONDecodeError:
            continue
        for name in _paths(read):
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
