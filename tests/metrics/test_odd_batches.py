"""No family fails on batches that are odd but legal."""

from __future__ import annotations

import warnings

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from rollout_traces.ledger.build import build_ledger
from rollout_traces.ledger.columns import pack, unpack
from rollout_traces.metrics import rollout_metrics
from rollout_traces.model.packed_batch import PackedBatch
from rollout_traces.settings.run_settings import RunSettings
from tests.builders import make_packed_batch

SETTINGS = RunSettings(clip_low=0.2, clip_high=0.3, success_threshold=0.5, samples_per_prompt=2)
ODD_FLOATS = (0.0, -0.5, 1e30, -1e30, np.nan, np.inf, -np.inf)


def odd_batch(seed: int) -> PackedBatch:
    """Rows of 0 to 6 tokens with any mask, any subset of tracks, and odd values in them."""
    rng = np.random.default_rng(seed)
    n_rows = int(rng.integers(0, 7))
    lengths = rng.integers(0, 7, n_rows)
    has_tokens = rng.random(n_rows) < 0.8
    lengths = np.where(has_tokens, lengths, 0)
    N = int(lengths.sum())
    floats = {
        name: np.where(rng.random(N) < 0.4, rng.choice(ODD_FLOATS, N), -rng.random(N)).astype(np.float32)
        for name in (
            *("logprobs", "prox_logprobs", "new_logprobs", "ref_logprobs"),
            *("advantages", "entropies", "loss_weights"),
        )
        if rng.random() < 0.7
    }
    if rng.random() < 0.7:
        floats["versions"] = rng.integers(-1, 4, N).astype(np.int32)
    if rng.random() < 0.5:
        floats["turn_ids"] = rng.integers(-1, 3, N).astype(np.int32)

    def some(values):
        return [None if rng.random() < 0.3 else values[int(rng.integers(len(values)))] for _ in range(n_rows)]

    batch = make_packed_batch(
        [rng.integers(0, 5, n).tolist() for n in lengths],
        [rng.integers(0, 2, n).tolist() for n in lengths],
        group_ids=rng.integers(-1, 3, n_rows),
        tracks=floats,
        has_tokens=has_tokens,
        row_floats={"rewards": rng.choice([*ODD_FLOATS, 1.0, 1.0], n_rows)} if rng.random() < 0.8 else {},
        reward_components={"a/b": rng.choice(ODD_FLOATS, n_rows)},
        sample_metrics={"": rng.choice(ODD_FLOATS, n_rows)},
        row_lists={
            "stop_reasons": some(["eos", "length", "weird/\n reason", 3]),
            "discard_reasons": some(["too_long", "x" * 500]),
            "successes": some([True, False, float("nan"), 1]),
            "parsed_answers": some(["a", 1.5, {"k": [1]}, float("nan"), np.arange(3)]),
            "reward_statuses": some(["ok", "timeout", ""]),
            "sources": some(["math", "", "cøde/🚀"]),
        },
        train_version=int(rng.integers(0, 4)) if rng.random() < 0.7 else None,
    )
    return batch


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_every_value_is_finite_and_no_family_fails(seed):
    batch = odd_batch(seed)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ledger = build_ledger(batch, SETTINGS)
        found = rollout_metrics(batch, ledger, keys="full", settings=SETTINGS)
    assert "rollout/metrics_failed" not in found
    assert all(type(value) is float and np.isfinite(value) for value in found.values())
    assert all(key.isprintable() and " " not in key for key in found)
    read = unpack(pack(ledger))
    assert [read.row(b) for b in range(batch.n_rows)] == [ledger.row(b) for b in range(batch.n_rows)]
    assert rollout_metrics(None, ledger, keys="full", settings=SETTINGS).keys() <= found.keys()
