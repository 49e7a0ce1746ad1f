"""prime-rl's episode stream: `<run>/monitors/file/traces/stream/NNNNN.jsonl`, sealed to `.zst`, and what was learned later.

An episode is written once, when it arrives. Which step trained on it, its advantages and the trainer's own logprobs
come afterwards, as annotations that name its traces; they are folded in when it is read, the newest winning. An
episode of a run that goes on, which no step has taken yet, or of which a producer of annotations has not spoken yet,
is left for a later import: only then is it known whether it was trained on, and how.
"""

from __future__ import annotations

import contextlib
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from rollout_traces.model.units import HOUR
from rollout_traces.sources.base import (
    EVAL,
    TRAIN,
    Claim,
    FileReading,
    Format,
    Found,
    Head,
    Record,
    were_written_within,
)
from rollout_traces.sources.formats.verifiers_trace import NOT_TRAINED, paths_of, rows_of_trace, spread
from rollout_traces.sources.lines import json_lines, loads, with_places
from rollout_traces.sources.problems import NOT_UNDERSTOOD, Problems
from rollout_traces.sources.rows import RolloutRow, number

_STREAMS = ("advantages", "trainer_logprobs", "entropies", "is_masked")
_WAITS = 2
"""Steps after the one that an episode is of in which it may still be trained in, or spoken of."""
_QUIET_S = HOUR
"""Seconds without a word after which a run whose chunks are not all sealed goes on no more: it was killed."""


class PrimeRl(Format):
    """Episodes as verifiers v1 records them, in chunks; `annotations/<producer>` and `live` beside them."""

    name = "prime-rl"
    title = "prime-rl, episode stream"
    tokens = "yes"
    behind = 8

    def claim(self, head: Head) -> Claim | None:
        folder = head.path.parent
        is_chunk = re.fullmatch(r"\d{5}\.jsonl(\.zst)?", head.path.name)
        if folder.name != "stream" or not is_chunk:
            return None
        is_stream = folder.with_name(
            "stream.index.jsonl"
        ).exists()  # also where a chunk's beginning is damaged
        if head.raw and not is_stream and not head.has("id", "traces"):
            return None
        above = [parent.name for parent in head.path.parents[1:4]]
        root = head.path.parents[4] if above == ["traces", "file", "monitors"] else folder.parent
        return Claim(root, None, TRAIN, ("policy versions of single tokens",))

    def is_final(self, found: Found) -> bool:
        return not _goes_on(found)

    def rows(self, reading: FileReading) -> Iterator[tuple[RolloutRow, int, int]]:
        folder = reading.path.parent.parent
        with contextlib.closing(_Annotations(folder, reading.problems)) as annotations:
            goes_on = _goes_on(reading.found)
            first_left: tuple[int, int] | None = None
            n_left = 0
            for record in reading.records():
                try:
                    rows = list(_rows(record.value, annotations, record.number))
                    is_decided = not goes_on or annotations.are_whole(record.value, rows)
                except NOT_UNDERSTOOD as error:
                    text = f"an episode cannot be understood ({error!r}); it is passed over."
                    reading.note("rows_refused", text, record.number)
                    continue
                if not is_decided:
                    n_left += 1
                    first_left = first_left or (record.offset, record.number - 1)
                    continue
                if not rows:
                    text = "the episode has no trace; it is passed over."
                    reading.note("episodes_without_trace", text, record.number)
                for row in rows:
                    yield row, *(first_left or (record.stop, record.number))
            if n_left:
                text = (
                    f"{n_left} episodes may still be trained on, or spoken of; they are read two steps later, or when the "
                    "run has ended or was silent for an hour."
                )
                reading.note("episodes_undecided", text)
            in_flight = len(list(folder.glob("live/*.jsonl"))) if goes_on else 0
            if in_flight:
                text = f"{in_flight} rollouts are in flight; they are read when they have ended."
                reading.problems.once(folder / "live", "rollouts_in_flight", text)


def _goes_on(found: Found) -> bool:
    """Tells whether the run may still write: a chunk is not sealed, and there was a word of late."""
    stream = found.path.parent
    plain = list(stream.glob("*.jsonl"))
    words = [*plain, *stream.parent.glob("annotations/*.index.jsonl")]
    return bool(plain) and were_written_within(words, _QUIET_S)


def _rows(episode: Record, annotations: _Annotations, line: int) -> Iterator[RolloutRow]:
    """The rows of an episode, with what was learned of it."""
    for trace in episode.get("traces") or []:
        updates = annotations.of(str(trace.get("id")))
        info: dict[str, Any] = dict(trace.get("info") or {})
        for update in updates:
            info = _merged(info, update.get("info") or {})
        work = (episode.get("run") or {}).get("work") or {}
        split = EVAL if (info.get("kind") or work.get("type")) == "eval" else TRAIN
        ship = info.get("ship") or {}
        arrived = info.get("arrival") or {}
        step = ship.get("step", arrived.get("step", work.get("step", 0)))
        claim = Claim(Path(), int(step), split)
        nodes, paths = _nodes_spoken_of(trace, updates)
        for path, row in zip(
            paths, rows_of_trace(episode, {**trace, "nodes": nodes}, claim, line), strict=True
        ):
            row.attempt = annotations.attempt_of(arrived, ship)
            row.advantage = number(info.get("advantage"))
            if split == TRAIN and not info.get("effective"):
                row.discard_reason = NOT_TRAINED
            if isinstance(info.get("policy_version"), int):
                row.extras["policy_version"] = info["policy_version"]
            masked = spread([nodes[n] for n in path], "is_masked")
            if any(masked):
                weights = row.tracks.get("loss_weights", [1.0] * len(masked))
                row.tracks["loss_weights"] = [
                    0.0 if value else weight for value, weight in zip(masked, weights, strict=True)
                ]
            yield row


def _nodes_spoken_of(
    trace: Record, updates: Sequence[Record]
) -> tuple[list[dict[str, Any]], list[list[int]]]:
    """A trace's messages with what updates say of their sampled tokens, and its branches.

    An update has a value for each token of a branch from its first on, and may end before it. What it says of a
    message whole replaces what was said before; of a message that it does not reach, that stays.
    """
    nodes = [dict(node) for node in trace.get("nodes") or ()]
    paths = paths_of(nodes)
    for streams in (streams for update in updates for streams in update.get("branches") or ()):
        index = streams.get("index")
        for key in _STREAMS if isinstance(index, int) and 0 <= index < len(paths) else ():
            values = streams.get(key) or []
            at = 0
            for node in (nodes[n] for n in paths[index]):
                end = at + len(node.get("token_ids") or ())
                given = [
                    v for v, sampled in zip(values[at:end], node.get("mask") or (), strict=False) if sampled
                ]
                is_known = any(v is not None for v in given) if key == "is_masked" else None not in given
                if given and is_known and end <= len(values):
                    node[key] = given
                at = end
    return nodes, paths


def _merged(old: Any, new: Any) -> Any:
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        return {**old, **{key: _merged(old.get(key), value) for key, value in new.items()}}
    return new


class _Annotations:
    """The notes that producers wrote on traces: where each record lies, read when its trace is."""

    def __init__(self, folder: Path, problems: Problems) -> None:
        self._problems = problems
        self._places: dict[str, list[tuple[int, int, int]]] = {}
        self._producers = sorted(path for path in folder.glob("annotations/*") if path.is_dir())
        self._files: dict[tuple[int, int], IO[bytes] | None] = {}
        ships: set[tuple[float, int]] = set()
        for at, producer in enumerate(self._producers):
            for row in self._index(producer):
                place = (at, int(row.get("chunk") or 0), int(row.get("offset") or 0))
                self._places.setdefault(str(row.get("trace_id")), []).append(place)
                ship = (row.get("info") or {}).get("ship") or {}
                if isinstance(ship.get("step"), int) and isinstance(ship.get("time"), (int, float)):
                    ships.add((ship["time"], ship["step"]))
        by_time = sorted(ships)
        self.newest_step = by_time[-1][1] if by_time else None
        self._restarts = [
            (stopped, before, again)
            for (stopped, before), (again, step) in itertools.pairwise(by_time)
            if step <= before
        ]

    def of(self, trace_id: str) -> list[dict[str, Any]]:
        """The updates of a trace in the order in which they were written."""
        found = []
        for at, chunk, offset in self._places.get(trace_id, ()):
            file = self._opened(at, chunk)
            if file is None:
                continue
            try:
                file.seek(offset)
                value = loads(file.readline())
            except (OSError, ValueError) as error:
                text = (
                    f"what lies at byte {offset:,} of chunk {chunk} cannot be read ({error}); it is left out."
                )
                self._problems.add(self._producers[at], "annotations_not_read", text)
                continue
            if isinstance(value, dict) and value.get("trace_id") == trace_id:
                found.append(value)
        return found

    def are_whole(self, episode: Record, rows: Sequence[RolloutRow]) -> bool:
        """Tells whether everything is known of an episode: it is too old for more, or each producer spoke of it."""
        if self.newest_step is not None and all(r.step + _WAITS <= self.newest_step for r in rows):
            return True
        return all(row.split == EVAL for row in rows) or all(
            len({place[0] for place in self._places.get(str(trace.get("id")), ())}) == len(self._producers)
            for trace in episode.get("traces") or ()
        )

    def attempt_of(self, arrived: Record, ship: Record) -> int:
        """The start of the run that an episode is of: a step that is shipped again is one of a later start.

        Between the last ship of a start and the first of the next, what arrived in a step that was shipped
        already is of the next.
        """
        time, step = ship.get("time", arrived.get("time")), ship.get("step", arrived.get("step"))
        if not isinstance(time, (int, float)) or not isinstance(step, int):
            return 1
        return 1 + sum(
            time >= again or (time > stopped and step <= before) for stopped, before, again in self._restarts
        )

    def close(self) -> None:
        """Closes the chunks that were opened."""
        for file in self._files.values():
            if file is not None:
                file.close()

    def _index(self, producer: Path) -> Iterator[Record]:
        index = producer.with_name(f"{producer.name}.index.jsonl")
        if index.is_file():
            yield from (line.value for line in json_lines(index, self._problems))
            return
        for chunk in sorted(producer.glob("*.jsonl*")):
            for line in json_lines(chunk, self._problems):
                yield {**line.value, "chunk": int(chunk.name.split(".")[0]), "offset": line.offset}

    def _opened(self, at: int, chunk: int) -> IO[bytes] | None:
        if (at, chunk) not in self._files:
            plain = self._producers[at] / f"{chunk:05d}.jsonl"
            paths = [path for path in (plain, plain.with_name(f"{plain.name}.zst")) if path.is_file()]
            if not paths:
                text = f"chunk {chunk} is not there; what it says is left out."
                self._problems.add(self._producers[at], "annotations_not_read", text)
            self._files[at, chunk] = None
            try:
                if paths:
                    self._files[at, chunk] = with_places(paths[0])
            except OSError as error:
                text = f"chunk {chunk} cannot be read ({error}); what it says is left out."
                self._problems.add(self._producers[at], "annotations_not_read", text)
        return self._files[at, chunk]
