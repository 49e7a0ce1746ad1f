"""A project of rollouts that were timed, failed, filtered and scored by functions: what Lanes shows.

python -m tests.inspector.make_lanes
"""

from __future__ import annotations

import random
from typing import Any

PROJECT = "lanes"
STEPS = 3
ROWS = 48
STOPS = ("stop", "length", "abort", "timeout", None)
REASONS = (None, None, None, "too_long", "zero_advantage")
HOSTILE = '<img src=x onerror="window.pwned=1">\u202e`judge`'


def rows_of(step: int) -> list[dict[str, Any]]:
    """The rollouts of a step as plain values."""
    rng = random.Random(step)
    return [_row(rng, step, at) for at in range(ROWS)]


def _row(rng: random.Random, step: int, at: int) -> dict[str, Any]:
    engine = ("engine-2", "engine-10", HOSTILE)[at % 3]
    begins = 1.76e9 + 60 * step + rng.random()
    stop = rng.choice(STOPS)
    failed = stop in ("abort", "timeout")
    reason = rng.choice(REASONS)
    last = at == ROWS - 1
    spans = _spans(rng, begins, engine, step, 30.0 if last else 0.0)
    return {
        "timings": None if at == 0 else spans,
        "engine": engine,
        "group": at // 4,
        "stop": stop,
        "status": rng.choice((None, "ok", "error")),
        "reason": reason,
        "reward": 0.0 if failed else rng.choice((0.0, 0.5, 1.0)),
        "format": rng.choice((0.0, 1.0)),
        "judge": rng.choice((None, 0.0, 0.25, rng.random(), rng.gauss(0, 0.02), 1000.0)),
        "advantage": rng.choice((0.0, -1.0, 1.0)),
        "n_sampled": rng.choice((0, 10, 200, None)),
        "staleness": rng.choice((0, 1, 3)),
        "trained": 0 if reason else rng.choice((0, 1, 1)),
        "reply": rng.choice(
            ("Error code: 429 - too many requests", "It is 4, no error.", "APITimeoutError: late")
        ),
    }


def _spans(rng: random.Random, at: float, engine: str, step: int, hangs: float) -> list[dict[str, Any]]:
    spans = []
    for turn in range(rng.randint(1, 4)):
        took = rng.uniform(0.2, 2.0)
        spans.append({"kind": "generate", "start": at, "end": at + took, "turn": turn, "engine": engine, "version": step + (turn > 2)})  # fmt: skip
        at += took
        took = rng.uniform(0.1, 1.0)
        spans.append({"kind": "tool", "start": at, "end": at + took, "turn": turn, "name": "search"})
        at += took
    if hangs:
        spans.append({"kind": "tool", "start": at, "end": at + hangs, "turn": 5, "name": "browse", "error": "TimeoutError"})  # fmt: skip
        at += hangs
    spans.append({"kind": "score", "start": at, "end": at + rng.uniform(0.01, 0.2), "name": "judge"})
    return spans


def log_lanes() -> None:
    """Logs the steps, every rollout kept of the last one."""
    import rollout_traces as rt

    logger = rt.RolloutLogger(
        project=PROJECT, name="a", max_rollout_traces_per_step=ROWS, selection="all", worker="thread"
    )
    for step in range(STEPS):
        rows = rows_of(step)
        known = [
            {"n_sampled": row["n_sampled"], "staleness_max": row["staleness"], "trained": row["trained"], "advantage_abs_max": abs(row["advantage"])}
            for row in rows
        ]  # fmt: skip
        conversations = [
            [{"role": "user", "content": "What is 2 + 2?"}, {"role": "assistant", "content": row["reply"]}]
            for row in rows
        ]
        batch = rt.RolloutBatch.from_messages(
            conversations,
            timings=[row["timings"] for row in rows],
            engine_ids=[row["engine"] for row in rows],
            group_ids=[row["group"] for row in rows],
            stop_reasons=[row["stop"] for row in rows],
            reward_statuses=[row["status"] for row in rows],
            discard_reasons=[row["reason"] for row in rows],
            rewards=[row["reward"] for row in rows],
            reward_components={name: [row[name] for row in rows] for name in ("format", "judge")},
            episode_ids=["one" if at < 3 else f"e{at}" for at in range(ROWS)],
            sample_ids=[f"s{at}" for at in range(ROWS)],
            known_columns=[
                {key: value for key, value in each.items() if value is not None} for each in known
            ],
        )
        logger.log_rollouts(batch, step=step)
        begins = 1.76e9 + 60 * step + 45
        logger.log_scalars({"phase/update/start": begins, "phase/update/end": begins + 5}, step=step)
        if step:
            logger.log_scalars({"funnel/prompts_loaded": 15}, step=step)
    logger.finish()


if __name__ == "__main__":
    log_lanes()
