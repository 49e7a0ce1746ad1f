"""Projects written with the real Trackio, for tests of what reads them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rollout_traces.ledger.columns import Ledger
from rollout_traces.model.transcript import Flag
from rollout_traces.trace.conversion import TraceRecord, rollout_trace, step_summary_trace
from tests.builders import make_transcript

PROJECT = "reading"
RUN, RUN_ID = "run-001", "1" * 32

_log_ids = itertools.count()


@contextmanager
def trackio_in(folder: Path) -> Iterator[None]:
    """Has Trackio write to a folder; it reads the environment only when it is imported."""
    import trackio.utils
    from trackio import sqlite_storage

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRACKIO_DIR", str(folder))
        for module in (trackio.utils, sqlite_storage):
            patch.setattr(module, "TRACKIO_DIR", folder)
        yield


def make_ledger(
    groups: Sequence[Sequence[float]],
    *,
    step: int,
    split: str = "rollout",
    batch: str = "b",
    traced: Sequence[int] = (),
    flags: Mapping[int, Sequence[str]] | None = None,
    **columns: Any,
) -> Ledger:
    """A ledger whose rows have the given rewards, group by group.

    Args:
        groups: rewards of each group's rollouts; NaN = unknown.
        step: the step.
        split: the split.
        batch: what its uids begin with.
        traced: rows that became traces.
        flags: row -> names.
        columns: further columns.
    """
    rewards = np.asarray([reward for group in groups for reward in group], np.float64)
    n = len(rewards)
    means = np.repeat([np.nanmean(group) for group in groups], [len(group) for group in groups])
    with np.errstate(invalid="ignore"):  # infinite rewards
        advantages = rewards - means
    names = np.empty(n, object)
    names[:] = [tuple((flags or {}).get(row, ())) for row in range(n)]
    return Ledger(
        {
            "uid": _texts(f"{batch}{step}-{row}" for row in range(n)),
            "split": _texts([split] * n),
            "step": np.full(n, step, np.int64),
            "group": np.repeat(np.arange(len(groups)), [len(group) for group in groups]).astype(np.int64),
            "sample": np.concatenate([np.arange(len(group)) for group in groups]).astype(np.int64),
            "prompt_key": _texts(f"prompt-{g}" for g, group in enumerate(groups) for _ in group),
            "reward": rewards,
            "advantage": advantages,
            "n_sampled": np.arange(n, dtype=np.int64) * 10 + 5,
            "flags": names,
            "selected_by": _texts("random" if row in traced else None for row in range(n)),
            "trace_uid": _texts(f"{batch}{step}-{row}" if row in traced else None for row in range(n)),
            **columns,
        }
    )


def step_records(
    ledger: Ledger, rows: Sequence[int], texts: Mapping[int, Sequence[tuple[str, str]]] | None = None
) -> list[TraceRecord]:
    """The traces of some rows of a ledger."""
    records = []
    for row in rows:
        turns = (texts or {}).get(row, (("user", f"question {row}"), ("assistant", f"answer {row}")))
        transcript = make_transcript(
            turns, logprobs=lambda n: np.full(n, -0.5, np.float32), versions=lambda n: np.full(n, 3, np.int32)
        )
        flags = [Flag(name, "warn", f"{name} was seen.") for name in ledger.get("flags")[row]]
        records.append(
            rollout_trace(transcript, ledger, row, flags=flags, extra={"n_tokens": len(transcript.tokens)})
        )
    return records


def write_step(
    ledger: Ledger,
    rows: Sequence[int],
    texts: Mapping[int, Sequence[tuple[str, str]]] | None = None,
    *,
    run: tuple[str, str] = (RUN, RUN_ID),
    project: str = PROJECT,
) -> None:
    """Stores a step's traces and its step summary."""
    step, split = int(ledger.get("step")[0]), str(ledger.get("split")[0])
    digest = step_summary_trace(
        ledger,
        summary=[{"role": "user", "content": f"step {step}"}],
        metadata={"step": step, "split": split, "population": ledger.n_rows},
    )
    payload = {f"{split}/trajectories": step_records(ledger, rows, texts), f"{split}/steps": [digest]}
    write_traces({k: v for k, v in payload.items() if v}, step=step, run=run, project=project)


def write_traces(
    payload: Mapping[str, Sequence[TraceRecord]],
    *,
    step: int,
    run: tuple[str, str] = (RUN, RUN_ID),
    project: str = PROJECT,
) -> None:
    """Stores traces under their keys."""
    import trackio

    store_values(
        {
            key: [
                trackio.Trace(list(r.messages), dict(r.metadata), list(r.spans))._to_dict(
                    project, run[0], step
                )
                for r in records
            ]
            for key, records in payload.items()
        },
        step=step,
        run=run,
        project=project,
    )


def write_resumed() -> None:
    """Stores a run of one prompt that was resumed at step 1: step 0, step 1 of two attempts, step 2 of the first alone.

    Of step 1 the second attempt has the rewards 1, infinity, 0 of a function that timed out, and 0.5, which came late; two
    rows of each step and attempt are traced.
    """
    anew = {"reward_status": _texts([None, None, "timeout", None]), "late": np.array([0, 0, 0, 1], np.int64)}
    for attempt, step, rewards, columns in (
        ("2026-01-01", 0, [1.0, 1.0, 0.0, 0.0], {}),
        ("2026-01-01", 1, [0.0] * 4, {}),
        ("2026-01-01", 2, [0.0] * 4, {}),
        ("2026-01-02", 1, [1.0, np.inf, 0.0, 0.5], anew),
    ):
        named = {"attempt": _texts([attempt] * 4), **columns}
        ledger = make_ledger([rewards], step=step, batch=f"{attempt}-", traced=(0, 1), **named)
        write_step(ledger, (0, 1))


def store_values(
    values: Mapping[str, Any], *, step: int, run: tuple[str, str] = (RUN, RUN_ID), project: str = PROJECT
) -> None:
    """What Trackio's sender does with one `log` call, at once."""
    from trackio.sqlite_storage import SQLiteStorage

    SQLiteStorage.bulk_log(
        project, run[0], [dict(values)], steps=[step], run_id=run[1], log_ids=[f"log-{next(_log_ids)}"]
    )


def conversation(key: str, messages: Sequence[Mapping[str, Any]], **metadata: Any) -> dict[str, Any]:
    """A trace as another tool logs it, under a key."""
    import trackio

    return {key: [trackio.Trace([dict(m) for m in messages], metadata)._to_dict(PROJECT, RUN, 0)]}


def database(folder: Path, project: str = PROJECT) -> Path:
    """Trackio's file of a project."""
    return folder / f"{project}.db"


def _texts(values: Any) -> np.ndarray:
    listed = list(values)
    column = np.empty(len(listed), object)
    column[:] = listed
    return column
