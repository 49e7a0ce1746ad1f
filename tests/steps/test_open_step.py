"""An open step keeps all its rows, and as many tokens as memory allows, with honest probabilities."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from rollout_traces.model.packed_batch import PackedBatch, StepKey
from rollout_traces.settings.run_settings import RunSettings
from rollout_traces.steps.judge import choose_rows
from rollout_traces.steps.open_step import OpenStep
from rollout_traces.steps.run_state import StepOptions, StoredStep

BYTES_PER_TOKEN = 8 + 1 + 1 + 4


def rows_of(lengths: list[int], groups: list[int], name: str = "x", step: int = 1) -> PackedBatch:
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    n = int(offsets[-1])
    mask = np.ones(n, bool)
    mask[offsets[:-1]] = False
    return PackedBatch(
        batch_id=name,
        step=step,
        split="rollout",
        offsets=offsets,
        input_ids=np.arange(n),
        loss_mask=mask,
        response_mask=mask,
        response_mask_source="given",
        tracks={"logprobs": np.full(n, -0.5, np.float32)},
        n_tokens=np.asarray(lengths),
        has_tokens=np.ones(len(lengths), bool),
        group_ids=np.asarray(groups),
        row_floats={"rewards": np.arange(len(lengths), dtype=float) % 2},
    )


def open_step(step: int = 1, max_tokens: int = 10**9, seed: int = 0) -> OpenStep:
    key = StepKey("a", step, "rollout")
    return OpenStep(key, RunSettings(), max_tokens * BYTES_PER_TOKEN, seed)


def calls(n_rows: int, n_calls: int, rng: np.random.Generator, step: int) -> list[PackedBatch]:
    """A step of groups of four rows of 5 to 60 tokens, in calls."""
    lengths = rng.integers(5, 60, n_rows)
    groups = np.arange(n_rows) // 4
    pieces = np.array_split(np.arange(n_rows), n_calls)
    return [
        rows_of(lengths[piece].tolist(), groups[piece].tolist(), f"c{step}-{call}", step)
        for call, piece in enumerate(pieces)
    ]


class TestWithinTheBudget:
    def test_nothing_is_given_up(self):
        step = open_step()
        step.add(rows_of([4, 5], [0, 0]))
        step.add(rows_of([6], [0], "y"))
        closed = step.closed()
        assert closed.parts == ("x", "y")
        assert (closed.batch.n_rows, closed.kept_probability, closed.given_up.any()) == (3, 1.0, False)
        assert closed.rows.get("sample").tolist() == [0, 1, 2]


class TestAboveIt:
    def full(self, **options) -> OpenStep:
        step = open_step(max_tokens=40, **options)
        for call in range(6):
            step.add(rows_of([10, 10], [call, call], f"c{call}"))
        return step

    def test_whole_groups_are_kept_and_all_rows_stay(self):
        closed = self.full().closed()
        assert closed.batch.n_rows == 12
        assert closed.batch.has_tokens.sum() == 4
        for group in range(6):
            assert len(set(closed.batch.has_tokens[closed.batch.group_ids == group])) == 1
        assert 0 < closed.kept_probability < 1
        assert "max_step_bytes" in closed.batch.notes[-1]

    def test_what_the_tokens_told_stays_in_the_ledger(self):
        closed = self.full().closed()
        assert closed.rows.get("n_sampled").tolist() == [9] * 12
        assert closed.rows.get("mean_logprob") == pytest.approx([-0.5] * 12)
        assert all(key is not None for key in closed.rows.get("prompt_key").tolist())

    def test_a_row_whose_tokens_were_given_up_is_no_candidate(self):
        closed = self.full().closed()
        options = StepOptions(max_rollout_traces_per_step=12, selection="all")
        chosen = choose_rows(closed, closed.rows, options, StoredStep(), {}, Counter())
        assert all(closed.batch.has_tokens[item.row] for item in chosen)

    def test_joins_find_the_tokens_that_are_left(self):
        step = self.full()
        step.join("c0", {"advantages": np.arange(20, dtype=np.float32)}, {})
        closed = step.closed()
        assert len(closed.batch.tracks["advantages"]) == len(closed.batch.input_ids)

    def test_a_join_of_another_length_is_refused(self):
        with pytest.raises(ValueError, match="has 3 tokens"):
            self.full().join("c0", {"advantages": np.zeros(3, np.float32)}, {})

    def test_the_order_of_the_calls_does_not_matter(self):
        kept = []
        for order in (range(6), reversed(range(6))):
            step = open_step(max_tokens=40)
            for call in order:
                step.add(rows_of([10, 10], [call, call], f"c{call}"))
            batch = step.closed().batch
            kept.append((set(batch.group_ids[batch.has_tokens].tolist()), step.closed().kept_probability))
        assert kept[0] == kept[1]


@pytest.mark.parametrize("n_calls", [1, 5, 19])
@pytest.mark.parametrize("max_tokens", [10**9, 900], ids=["memory for all", "memory for half"])
def test_weights_add_up_to_the_population_and_rows_are_chosen_alike(n_calls, max_tokens):
    n_rows, n_steps = 64, 60
    totals, counts = [], np.zeros(n_rows)
    options = StepOptions(max_rollout_traces_per_step=16, seed=7)
    for number in range(n_steps):
        step = open_step(number, max_tokens, seed=7)
        for batch in calls(n_rows, n_calls, np.random.default_rng(number), number):
            step.add(batch)
        closed = step.closed()
        chosen = choose_rows(closed, closed.rows, options, StoredStep(), {}, Counter())
        random = [item for item in chosen if item.selected_by == "random"]
        totals.append(sum(1 / item.probability for item in random))
        for item in random:
            counts[item.row] += 1 / item.probability
    error = np.std(totals) / np.sqrt(n_steps)
    assert abs(np.mean(totals) - n_rows) <= 4 * error + 1e-9
    thirds = counts.reshape(4, 16).sum(1) / n_steps
    assert thirds == pytest.approx([16] * 4, rel=0.4)
