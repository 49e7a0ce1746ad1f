"""No data makes a detector raise."""

from __future__ import annotations

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rollout_traces.capture.host_copy import capture
from rollout_traces.flags.detect import FlagErrors
from rollout_traces.model.batch import RolloutBatch
from tests.flags.conftest import decoder_of
from tests.flags.steps import find_flags
from tests.generator import tiny_tokenizer

NUMBERS = (0.0, -0.5, -30.0, 1e30, float("nan"), float("inf"), float("-inf"))
TEXTS = (
    "<|im_start|>user\nhi<|im_end|>\n",
    "<|im_start|>assistant\n",
    "<think>\nso",
    "</think>",
    '<tool_call>\n{"name": "x", "arguments": {}}\n</tool_call>',
    "<tool_call>",
    "<tool_response>\nError: no\n</tool_response>",
    "语言 привет \ufffd\ufffd",
    "<|im_end|>",
    "a b c " * 60,
)


@st.composite
def batches(draw):
    """Rows of markers, words and random ids under random masks, versions, numbers and row values."""
    tokenizer = tiny_tokenizer("qwen3")
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    rows = []
    for _ in range(draw(st.integers(1, 4))):
        pieces = draw(st.lists(st.sampled_from(TEXTS), max_size=6))
        ids = [i for piece in pieces for i in tokenizer.encode(piece, add_special_tokens=False)]
        rows.append([*ids, *draw(st.lists(st.integers(0, 2**31), max_size=3))])
    B, T = len(rows), max(1, *map(len, rows))
    attention = np.zeros((B, T), bool)
    ids = np.zeros((B, T), np.int64)
    for b, row in enumerate(rows):
        ids[b, : len(row)], attention[b, : len(row)] = row, True
    blocks = np.repeat(rng.integers(0, 2, (B, T // 5 + 1)), 5, axis=1)[:, :T]
    arrays = {
        "versions": np.where(blocks, rng.integers(-1, 5, (B, T)), -1),
        "response_mask": rng.integers(0, 2, (B, T)),
        "turn_ids": rng.integers(-1, 3, (B, T)),
        "rewards": rng.choice(NUMBERS, B),
        "stop_reasons": list(rng.choice(["length", "stop", "?"], B)),
        "extras": [
            {"trajectory": "t", "call": 1},
            None,
            {"trajectory": [1]},
            {"trajectory": "t", "call": "x"},
        ][:B],
        "discard_reasons": [None, "too_long", None, None][:B],
        "group_ids": rng.integers(0, 2, B),
    }
    for name in ("logprobs", "prox_logprobs", "advantages", "entropies", "loss_weights"):
        arrays[name] = rng.choice(NUMBERS, (B, T))
    given_keys = draw(st.sets(st.sampled_from(sorted(arrays))))
    loss = blocks if draw(st.booleans()) else rng.integers(0, 2, (B, T))
    batch = RolloutBatch(ids, attention, loss, train_version=3, **{key: arrays[key] for key in given_keys})
    return capture([batch], step=1, split=draw(st.sampled_from(["rollout", "eval-rollout"])))


class TestHostileData:
    @settings(max_examples=120, deadline=None, suppress_health_check=list(HealthCheck))
    @given(batches())
    def test_no_detector_raises_and_every_flag_lies_in_its_row(self, batch):
        found = find_flags(batch, decoder_of("tiny"), tiny_tokenizer("qwen3"), parameters={"stale.limit": 1})
        assert found.errors.counts == FlagErrors().counts, found.errors.first
        for row, flags in found.flags.items():
            n, turns = int(batch.n_tokens[row]), found.transcripts[row].turns
            for flag in flags:
                assert (flag.start is None) == (flag.stop is None)
                assert flag.start is None or 0 <= flag.start < flag.stop <= n, flag
                assert flag.turn is None or 0 <= flag.turn < len(turns), flag
                flag.message.encode()

    @settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
    @given(batches())
    def test_encoding_again_never_raises(self, batch):
        found = find_flags(batch, decoder_of("tiny"), tiny_tokenizer("qwen3"), only=["retokenized"])
        assert not found.errors.total, found.errors.first
