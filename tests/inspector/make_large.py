"""Logs many small rollouts, or a long one, straight to the sink's records: for speed, not for realism.

Run as `python -m tests.inspector.make_large --traces 10000` or `--tokens 32000`, with TRACKIO_DIR set.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace

import numpy as np

from rollout_traces.ledger.columns import Ledger
from rollout_traces.model.transcript import Flag, Transcript
from rollout_traces.trace.conversion import TraceRecord, rollout_trace, step_summary_trace
from tests.builders import make_transcript

GROUP = 8
WIDE_GROUP = 16


def main() -> None:
    """Logs what the arguments ask for."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--project", default="large")
    parser.add_argument("--traces", type=int, default=0)
    parser.add_argument("--per-step", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=0)
    parser.add_argument("--characters", type=int, default=600)
    parser.add_argument(
        "--group-tokens", type=int, default=0, help="a group of 16 rollouts of so many tokens"
    )
    parser.add_argument(
        "--loss-tokens", type=int, default=0, help="a histogram of 512 x so many loss tokens beside it"
    )
    options = parser.parse_args()

    import trackio

    run = trackio.init(project=options.project, name="large-run")
    if options.tokens:
        write(run, 1, [long_rollout(options.tokens)], ledger_of(1, GROUP))
    if options.group_tokens:
        rows = ledger_of(1, WIDE_GROUP, group_size=WIDE_GROUP)
        records = [member(rows, row, options.group_tokens) for row in range(WIDE_GROUP)]
        write(run, 1, records, rows, histogram_of(512, options.loss_tokens))
    for step in range(1, options.traces // options.per_step + 1):
        rows = ledger_of(step, options.per_step)
        records = [small_rollout(rows, row, options.characters) for row in range(options.per_step)]
        write(run, step, records, rows)
        if step % 20 == 0:
            time.sleep(1.0)
    run.finish()


def write(
    run: object, step: int, records: list[TraceRecord], rows: Ledger, details: dict[str, object] | None = None
) -> None:
    """Logs one step: its traces, its step summary and a scalar."""
    import trackio

    def trace(record: TraceRecord) -> object:
        return trackio.Trace(
            messages=list(record.messages), metadata=dict(record.metadata), spans=list(record.spans)
        )

    digest = step_summary_trace(
        rows,
        summary=[{"role": "user", "content": f"step {step}"}],
        metadata={"step": step, "split": "rollout"},
        details=details or {},
    )
    mean = float(rows.get("reward").mean())
    run.log({"rollout/trajectories": [trace(record) for record in records]}, step=step)  # type: ignore[attr-defined]
    run.log({"rollout/steps": [trace(digest)], "rollout/reward/mean": mean}, step=step)  # type: ignore[attr-defined]


def ledger_of(step: int, n_rows: int, group_size: int = GROUP) -> Ledger:
    """A ledger of n rows, all of them kept."""
    rng = np.random.default_rng(step)
    texts = lambda values: np.asarray(values, object)  # noqa: E731
    flags = np.empty(n_rows, object)
    flags[:] = [("truncated",) if row % 11 == 0 else () for row in range(n_rows)]
    return Ledger(
        {
            "uid": texts([f"{step:06d}-{row}" for row in range(n_rows)]),
            "split": texts(["rollout"] * n_rows),
            "step": np.full(n_rows, step, np.int64),
            "group": np.arange(n_rows, dtype=np.int64) // group_size,
            "sample": np.arange(n_rows, dtype=np.int64) % group_size,
            "prompt_key": texts([f"prompt-{step % 50}-{row // GROUP}" for row in range(n_rows)]),
            "reward": rng.random(n_rows).round(3),
            "advantage": rng.normal(size=n_rows).round(3),
            "n_prompt": np.full(n_rows, 40, np.int64),
            "n_sampled": rng.integers(20, 900, n_rows),
            "stop_reason": texts(["length" if row % 11 == 0 else "stop" for row in range(n_rows)]),
            "flags": flags,
            "selected_by": texts(["random"] * n_rows),
            "trace_uid": texts([f"{step:06d}-{row}" for row in range(n_rows)]),
        }
    )


def small_rollout(rows: Ledger, row: int, characters: int) -> TraceRecord:
    """A short conversation of about so many characters."""
    answer = f"number {row} at step {int(rows.get('step')[row])} " + "lorem ipsum dolor " * (characters // 18)
    transcript = make_transcript([("user", f"What is {row} + {row}?"), ("assistant", answer)])
    tokens = transcript.tokens
    own = np.where(tokens.response_mask, tokens.input_ids + row, tokens.input_ids).astype(
        tokens.input_ids.dtype
    )
    transcript = replace(transcript, tokens=replace(tokens, input_ids=own))
    flags = [Flag(name, "warn", "The answer was cut by the token limit.") for name in rows.get("flags")[row]]
    return rollout_trace(transcript, rows, row, flags=flags, extra={"n_tokens": len(transcript.tokens)})


def long_rollout(n_tokens: int) -> TraceRecord:
    """One rollout of about so many tokens in several turns, with every track filled."""
    rows = ledger_of(1, GROUP)
    words = n_tokens // 6
    text = " ".join(f"w{i % 97}" + ("\n" if i % 14 == 13 else "") for i in range(words))
    turns = [("system", "You think at length."), ("user", "Go on.")]
    turns += [turn for _ in range(3) for turn in (("assistant", text), ("tool", text))]
    transcript = with_tracks(make_transcript(turns))
    return rollout_trace(transcript, rows, 0, extra={"n_tokens": len(transcript.tokens), "train_version": 9})


def member(rows: Ledger, row: int, n_tokens: int) -> TraceRecord:
    """A rollout of a group: tool calls and turns that it shares with others up to a point of its own."""
    rng = np.random.default_rng(row)
    words = n_tokens // 14
    text = " ".join(f"w{i % 97}" + ("\n" if i % 14 == 13 else "") for i in range(words))
    own = " ".join(f"o{v}" for v in rng.integers(0, 300, words))
    turns = [("system", "You solve it with tools."), ("user", "Go on.")]
    for turn in range(3):
        turns += [("assistant", text if turn < row % 3 else own), ("tool", text)]
    transcript = with_tracks(
        make_transcript([*turns, ("assistant", own)], calls=[("search", {"q": row % 4})])
    )
    return rollout_trace(
        transcript, rows, row, extra={"n_tokens": len(transcript.tokens), "train_version": 9}
    )


def histogram_of(n_rows: int, n_tokens: int) -> dict[str, object]:
    """The step summary's histogram of so many loss tokens, as the worker makes it."""
    from rollout_traces.ledger.loss_histogram import loss_histogram, pack
    from tests.steps.test_open_step import rows_of

    if not n_tokens:
        return {}
    rng = np.random.default_rng(0)
    batch = rows_of([n_tokens] * n_rows, [row // 8 for row in range(n_rows)])
    n = n_rows * n_tokens
    drift = rng.normal(0, 0.1, n)
    tracks = {
        "logprobs": np.full(n, -1.0, np.float32),
        "prox_logprobs": (-1 + drift).astype(np.float32),
        "new_logprobs": (-1 + drift + rng.normal(0, 0.1, n)).astype(np.float32),
        "advantages": rng.normal(size=n).astype(np.float32),
        "versions": rng.integers(5, 9, n).astype(np.int32),
    }
    sources = [f"source {row % 4}" for row in range(n_rows)]
    found = loss_histogram(replace(batch, tracks=tracks, train_version=9, row_lists={"sources": sources}))
    return {} if found is None else {"loss_histogram": pack(found)}


def with_tracks(transcript: Transcript) -> Transcript:
    """The transcript with a plausible value of every track at every token."""
    n = len(transcript.tokens)
    rng = np.random.default_rng(1)
    sampled = transcript.tokens.response_mask
    base = -rng.exponential(0.3, n)
    floats = {
        "logprobs": base,
        "prox_logprobs": base + rng.normal(0, 0.02, n),
        "new_logprobs": base + rng.normal(0, 0.05, n),
        "advantages": rng.normal(size=n),
        "entropies": rng.gamma(1.0, 0.4, n),
    }
    tracks: dict[str, np.ndarray] = {
        name: np.where(sampled, values, np.nan).astype(np.float32) for name, values in floats.items()
    }
    versions = np.where(np.arange(n) < n // 2, 7, 8)
    tracks["versions"] = np.where(sampled, versions, -1).astype(np.int32)
    return replace(transcript, tokens=replace(transcript.tokens, tracks=tracks))


if __name__ == "__main__":
    main()
