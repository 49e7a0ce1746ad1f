"""What AReaL sampled against what Trackio's database holds."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import numpy as np
import orjson
import torch

from rollout_traces.trace.conversion import TraceRecord, read_transcript


def rows_of(folder: Path, project: str, key: str) -> list[tuple[int, TraceRecord]]:
    """(step, trace) of a key."""
    with sqlite3.connect(folder / f"{project}.db") as db:
        query = "select step, messages, metadata, spans from traces where key = ? order by step"
        return [
            (s, TraceRecord(*(orjson.loads(p) for p in parts))) for s, *parts in db.execute(query, (key,))
        ]


def compare(folder: Path, project: str, batches: list, advantages: list | None = None) -> int:
    """Asserts that rows, groups, tokens, rewards, versions, logprobs, roles and steps equal the trainer's own.

    Args:
        folder: Trackio's.
        project: Trackio project.
        batches: each step's list of dicts of tensors, a dict a group.
        advantages: what `compute_advantages` made of each, rolled left by a token; None: not compared.

    Returns:
        The number of rows compared.
    """
    traces = rows_of(folder, project, "rollout/trajectories")
    assert sorted({step for step, _ in traces}) == list(range(len(batches)))
    compared = 0
    for step, batch in enumerate(batches):
        by_row = {int(t.metadata["uid"].split("-")[1]): t for s, t in traces if s == step}
        row = 0
        for group, item in enumerate(batch):
            for b in range(item["input_ids"].shape[0]):
                record, real = by_row[row], item["attention_mask"][b].bool()
                track = read_transcript(record).tokens
                np.testing.assert_array_equal(track.input_ids, item["input_ids"][b][real].numpy())
                np.testing.assert_array_equal(track.loss_mask, item["loss_mask"][b][real].bool().numpy())
                np.testing.assert_array_equal(track.tracks["versions"], item["versions"][b][real].numpy())
                sampled = item["loss_mask"][b][real].bool().numpy()
                given = item["logprobs"][b][real].numpy()
                np.testing.assert_allclose(track.tracks["logprobs"][sampled], given[sampled], atol=1e-3)
                if advantages is not None:
                    made = advantages[step][group]
                    whole = torch.roll(made["advantages"] * (made["loss_mask"] > 0), 1, -1)[b][real].numpy()
                    stored = track.tracks["advantages"][sampled]
                    np.testing.assert_allclose(stored, whole[sampled], atol=2e-3)
                assert abs(record.metadata["reward"] - item["rewards"][b].item()) < 1e-6
                assert record.metadata["group"] == group
                versions = item["versions"][b][real]
                assert record.metadata["version_min"] == versions[versions >= 0].min().item()
                row += 1
        assert len(by_row) == row
        compared += row
    roles = {message["role"] for _, record in traces for message in record.messages}
    assert roles == {"system", "user", "assistant"}, roles
    with sqlite3.connect(folder / f"{project}.db") as db:
        rows = db.execute("select step, metrics from metrics").fetchall()
    own = sorted({step for step, values in rows if "ppo_actor/loss" in orjson.loads(values)})
    assert own == list(range(len(batches))), own
    return compared
