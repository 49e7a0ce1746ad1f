"""tinker-cookbook's capture: every sampled sequence with its prompt, `capture.sqlite` of its store or `capture/sample.jsonl`.

A trajectory's calls lie apart, as they were answered; they are put together here, each branch of them a row. While
a store is open, trajectories of a run's newest iteration are left for a later import.
"""

from __future__ import annotations

import contextlib
import sqlite3
import tempfile
from collections.abc import Iterator, Mapping
from itertools import groupby
from pathlib import Path
from typing import Any

import orjson

from rollout_traces.model.model_calls import merge_calls
from rollout_traces.model.text import words
from rollout_traces.model.units import MINUTE
from rollout_traces.sources.base import (
    EVAL,
    SQLITE,
    TRAIN,
    Claim,
    FileFormat,
    FileReading,
    Found,
    Head,
    Record,
    read_only,
    split_of,
    were_written_within,
)
from rollout_traces.sources.lines import json_lines
from rollout_traces.sources.problems import NOT_UNDERSTOOD, Problems
from rollout_traces.sources.rows import RolloutRow, add_tokens, call_of, mapping_of

_PLACE = ("run_id", "run_attempt", "split", "iteration", "group_idx", "traj_idx")
_CALL = words("purpose sampling_session_id seq_id sample_idx policy_version prompt_tokens sampled_tokens")
_COLUMNS = (*_PLACE, *_CALL, "logprobs", "metadata")
_SELECT = (
    f"SELECT cursor, {', '.join(_COLUMNS)} FROM wire_rows "
    "ORDER BY run_id, run_attempt, iteration, split, group_idx, traj_idx, cursor"
)
_NEWEST = "SELECT run_id, run_attempt, max(iteration) FROM wire_rows GROUP BY run_id, run_attempt"
_QUIET_S = 10 * MINUTE
"""Seconds without a call after which no trajectory gets further ones."""


class TinkerCapture(FileFormat):
    """Rows of `wire_rows`, or `{kind: "sample", scope, prompt_tokens, samples: [{tokens, logprobs}]}`."""

    name = "tinker-capture"
    title = "tinker-cookbook, capture"
    tokens = "yes"

    def claim(self, head: Head) -> Claim | None:
        is_store = head.path.name == "capture.sqlite" and head.raw.startswith(SQLITE)
        if not is_store and not (head.has("kind", "scope", "samples") and b'"sample"' in head.raw):
            return None
        lacks = ("rewards", "advantages", "conversations (a tokenizer decodes them)")
        return Claim(head.above("capture"), None, TRAIN, lacks, run=_first_run(head))

    def is_final(self, found: Found) -> bool:
        return not _goes_on(found)

    def read(self, reading: FileReading) -> Iterator[RolloutRow]:
        try:
            with _store_of(reading.path, reading.problems) as store:
                calls = (dict(zip(("cursor", *_COLUMNS), row, strict=True)) for row in store.execute(_SELECT))
                newest = (
                    {place[:2]: place[2] for place in store.execute(_NEWEST)}
                    if _goes_on(reading.found)
                    else {}
                )
                n_left = 0
                for place, own in groupby(calls, lambda call: tuple(call[name] for name in _PLACE)):
                    records = list(own)
                    run, attempt, _, iteration, _, trajectory = place
                    if None not in (trajectory, iteration) and newest.get((run, attempt)) == iteration:
                        n_left += 1
                        continue
                    rows: list[RolloutRow] = []
                    with reading.refusing(records[0]["cursor"], "the trajectory"):
                        rows = list(_rows(dict(zip(_PLACE, place, strict=True)), records, reading))
                    yield from rows
                if n_left:
                    text = (
                        f"{n_left} trajectories of the newest iteration may get further calls; they are read when the next "
                        "has begun, the store is closed, or no call came for ten minutes."
                    )
                    reading.note("trajectories_not_ended", text)
        except (sqlite3.Error, *NOT_UNDERSTOOD) as error:
            text = f"cannot be read further ({error}); what came before is imported."
            reading.note("unreadable_files", text)


def _log_of(path: Path) -> Path:
    """The log of writes that lies beside a store while it is open."""
    return path.with_name(f"{path.name}-wal")


def _goes_on(found: Found) -> bool:
    """Tells whether a store may still get calls: it is open. Lines do not tell."""
    log = _log_of(found.path)
    with contextlib.suppress(FileNotFoundError):
        return log.stat().st_size > 0 and were_written_within([log], _QUIET_S)
    return False


def _first_run(head: Head) -> str | None:
    name = None
    if head.record is not None:
        name = mapping_of(head.record.get("scope")).get("run_id")
    else:
        with contextlib.suppress(sqlite3.Error), _store_of(head.path, Problems()) as store:
            (name,) = store.execute("SELECT min(run_id) FROM wire_rows").fetchone()
    return name if isinstance(name, str) else None


@contextlib.contextmanager
def _store_of(path: Path, problems: Problems) -> Iterator[sqlite3.Connection]:
    """The store of a capture, read only; what lies as lines is put into one that goes again."""
    if path.suffix == ".sqlite":
        how = "mode=ro" if _log_of(path).exists() else "immutable=1"  # without a log none is made
        with read_only(path, how) as store:
            yield store
        return
    with (
        tempfile.TemporaryDirectory(prefix="rollout-traces-") as folder,
        contextlib.closing(sqlite3.connect(Path(folder) / "capture.sqlite")) as store,
    ):
        store.execute(f"CREATE TABLE wire_rows (cursor INTEGER, {', '.join(_COLUMNS)})")
        places = ", ".join("?" * (len(_COLUMNS) + 1))
        for record in json_lines(path, problems):
            try:
                for call in _calls_of(record.value, path, record.number, problems):
                    values = [record.number, *(call.get(name) for name in _COLUMNS)]
                    store.execute(f"INSERT INTO wire_rows VALUES ({places})", values)
            except (sqlite3.Error, *NOT_UNDERSTOOD) as error:
                text = f"a call cannot be understood ({error}); it is passed over."
                problems.add(path, "rows_refused", text, record.number)
        yield store


def _calls_of(record: Record, path: Path, line: int, problems: Problems) -> Iterator[dict[str, Any]]:
    """Makes the rows that the store would keep of a record: one for each sampled sequence."""
    scope = mapping_of(record.get("scope"))
    samples = record.get("samples") if record.get("kind") == "sample" else None
    problems.mappings(path, line, "samples", samples)
    for n, sample in enumerate(samples if isinstance(samples, list) else ()):
        if not isinstance(sample, Mapping):
            continue
        yield {
            **{name: scope.get(name) for name in (*_PLACE, "purpose")},
            "sampling_session_id": record.get("sampling_session_id"),
            "seq_id": record.get("seq_id"),
            "sample_idx": n,
            "policy_version": record.get("model_path"),
            "prompt_tokens": orjson.dumps(record.get("prompt_tokens")).decode(),
            "sampled_tokens": orjson.dumps(sample.get("tokens")).decode(),
            "logprobs": orjson.dumps(sample.get("logprobs")).decode(),
            "metadata": orjson.dumps({"stop_reason": sample.get("stop_reason")}).decode(),
        }


def _rows(place: Record, own: list[dict[str, Any]], reading: FileReading) -> Iterator[RolloutRow]:
    """The rows of a trajectory, one a branch of its calls; calls of no trajectory are rows by themselves."""
    is_trajectory = place["traj_idx"] is not None
    known, calls = [], []
    for record in own:
        prompt, sampled = _list(record["prompt_tokens"]), _list(record["sampled_tokens"])
        if prompt is None or sampled is None:
            text = "a call has no prompt or no sampled tokens; it is left out."
            reading.note("calls_without_tokens", text, record["cursor"])
            continue
        known.append(record)
        calls.append(call_of(prompt, sampled, _list(record["logprobs"])))
    if is_trajectory:
        branches = [(row, [known[n] for n in row.calls]) for row in merge_calls(calls)]
    else:
        branches = [(merge_calls([call])[0], [record]) for call, record in zip(calls, known, strict=True)]
    name = "-".join(
        str(place[key]) for key in ("iteration", "group_idx", "traj_idx") if place[key] is not None
    )
    for n, (merged, records) in enumerate(branches):
        first, last = records[0], records[-1]
        split = str(place["split"] or last["purpose"] or "")
        key = (first["sampling_session_id"], first["seq_id"], first["sample_idx"])
        row = RolloutRow(
            step=place["iteration"] or 0,
            split=EVAL if split == "test" or split_of(split) == EVAL else TRAIN,
            line=last["cursor"],
            run=place["run_id"],
            attempt=max(int(place["run_attempt"] or 0), 0) + 1,
            group=place["group_idx"],
            sample_id=f"{name}/{n}" if n else name or None,
            parent=name if n and is_trajectory else None,
            episode=name if is_trajectory else None,
            identity=None if None in key else "/".join(map(str, key)),
            stop_reason=_mapping(last["metadata"]).get("stop_reason"),
            extras={"policy_version": version} if (version := last["policy_version"]) else {},
        )
        add_tokens(row, merged)
        yield row


def _list(text: Any) -> list[Any] | None:
    value = orjson.loads(text) if isinstance(text, str) else None
    return value if isinstance(value, list) else None


def _mapping(text: Any) -> Record:
    return mapping_of(orjson.loads(text) if isinstance(text, str) else None)
