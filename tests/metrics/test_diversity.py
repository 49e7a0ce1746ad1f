"""Differences between completions, on tokens."""

from __future__ import annotations

import zlib

import numpy as np
import pytest

from tests.builders import make_packed_batch
from tests.metrics.builders import of_batch, sampled_rows


class TestDiversity:
    def test_by_hand(self):
        # group 0: [1 2 3] and [1 2 4]: 4 of 6 tokens, bigrams 12 23 12 24: 3 of 4, sets share 2 of 4
        # group 1: [7 7] and [7 7] and [7 7]: 1 of 6, 77 77 77: 1 of 3, distance 0
        batch = sampled_rows([1, 2, 3], [1, 2, 4], [7, 7], [7, 7], [7, 7], groups=[0, 0, 1, 1, 1])
        found = of_batch(batch)
        assert found["diversity/distinct_1"] == pytest.approx((4 / 6 + 1 / 6) / 2)
        assert found["diversity/distinct_1_micro"] == pytest.approx((2 * 4 / 6 + 3 * 1 / 6) / 5)
        assert found["diversity/distinct_2"] == pytest.approx((3 / 4 + 1 / 3) / 2)
        assert found["diversity/jaccard_distance"] == pytest.approx((0.5 + 0) / 2)

    def test_no_bigram_crosses_rollouts(self):
        batch = sampled_rows([1, 2], [2, 1])
        assert of_batch(batch)["diversity/distinct_2"] == 1.0  # 12 and 21, never 22

    def test_prompts_and_tokens_past_the_first_512_do_not_count(self):
        row = [3] * 512 + list(range(1000, 1100))
        batch = make_packed_batch([[9, *row], [8, *row]], [[0] + [1] * 612] * 2, group_ids=np.zeros(2, int))
        assert of_batch(batch)["diversity/distinct_1"] == pytest.approx(1 / 1024)

    def test_groups_of_one_and_rollouts_without_tokens_have_no_diversity(self):
        lone = sampled_rows([1, 2], [3, 4], groups=[0, 1])
        silent = make_packed_batch([[1, 2], [3]], [[0, 1], [0]], group_ids=np.zeros(2, int))
        for batch in (lone, silent):
            assert not [key for key in of_batch(batch) if key.startswith("diversity/")]

    def test_damaged_token_ids_cost_neither_memory_nor_a_bigram(self):
        big = 2**40
        batch = sampled_rows([big, -5, big + 1], [big, -5, big + 2])
        assert of_batch(batch)["diversity/distinct_2"] == 0.75

    @pytest.mark.parametrize("odd", [-5, 2**40, 2**20])
    def test_one_odd_token_id_is_one_more_word(self, odd):
        found = of_batch(sampled_rows([odd, 1], [odd, 2], [1, 2], groups=[0, 0, 0]))
        assert found["diversity/distinct_1"] == 0.5 and found["diversity/distinct_2"] == 1.0
        assert found["diversity/jaccard_distance"] == pytest.approx(2 / 3)

    def test_groups_of_one_between_others_and_rows_without_tokens_do_not_end_the_comparison(self):
        batch = sampled_rows([1], [2, 3], [], [4, 5], [4, 6], groups=[0, 1, 1, 2, 2])
        found = of_batch(batch)
        assert found["diversity/jaccard_distance"] == pytest.approx(2 / 3)
        assert found["diversity/distinct_1"] == 0.75

    def test_at_most_64_rollouts_of_a_group_are_compared(self):
        same, others = [[1]] * 64, [[2]] * 3
        assert of_batch(sampled_rows(*same, *others))["diversity/jaccard_distance"] == 0.0
        assert of_batch(sampled_rows(*same[1:], *others))["diversity/jaccard_distance"] == pytest.approx(
            63 / (64 * 63 / 2)
        )

    def test_repetition_compresses_and_short_rollouts_say_nothing(self):
        long, short = [7] * 600, [7] * 31
        found = of_batch(sampled_rows(long, short, long[:32]))
        sizes = [len(zlib.compress(np.full(n, 7, "<i4").tobytes())) for n in (512, 32)]
        assert found["diversity/compression_ratio"] == pytest.approx((2048 / sizes[0] + 128 / sizes[1]) / 2)
        assert "diversity/compression_ratio" not in of_batch(sampled_rows(short))

    def test_groups_with_one_answer_do_not_count(self):
        answers = {"parsed_answers": ["4", None, "5", "6", "6", "6", "6"]}
        batch = sampled_rows(*[[1]] * 7, row_lists=answers, groups=[0, 0, 1, 1, 2, 2, 2])
        assert of_batch(batch)["diversity/unique_answer_share"] == pytest.approx((1 + 1 / 3) / 2)

    def test_different_answers_of_a_group(self):
        batch = sampled_rows(
            [1], [2], [3], [4], row_lists={"parsed_answers": ["4", "4", "5", None]}, groups=[0] * 4
        )
        assert of_batch(batch)["diversity/unique_answer_share"] == pytest.approx(2 / 3)
