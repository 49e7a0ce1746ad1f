"""Rollouts that loop: a short period at the end, and stretches of any length written several times in a row."""

from __future__ import annotations

import numpy as np
import pytest

from rollout_traces.ledger.tokens import MaskedTokens
from rollout_traces.metrics.loops import (
    GRAM,
    REACH,
    Loop,
    _hashed_grams,
    _smallest_around,
    longest_loops,
    repetitions,
)
from tests.builders import make_packed_batch
from tests.metrics.builders import of_batch, sampled_rows


def tail_of(row: list[int]) -> int:
    return covered_by_row(sampled_rows(row)).get(0, 0)


def covered_by_row(batch) -> dict[int, int]:
    return {row: loop.covered for row, loop in repetitions(MaskedTokens.sampled(batch)).items()}


class TestRepetition:
    def test_a_loop_at_the_end_is_measured_with_the_tokens_that_started_it(self):
        noise = list(range(1000, 1300))
        assert tail_of(noise + [1, 2, 3] * 50) == 150
        assert of_batch(sampled_rows(noise + [1, 2, 3] * 50, noise))["repetition_share"] == 0.5

    def test_the_shortest_period_is_the_one_that_is_named(self):
        noise = list(range(1000, 1300))
        (loop,) = repetitions(MaskedTokens.sampled(sampled_rows(noise + [1, 2, 3] * 50))).values()
        assert (loop.period, loop.covered, loop.start, loop.stop) == (3, 150, 300, 450)

    def test_it_is_at_most_the_window(self):
        assert tail_of([5] * 2000) == 256

    def test_less_than_half_of_the_window_is_not_repetition(self):
        assert of_batch(sampled_rows(list(range(300)) + [7] * 100))["repetition_share"] == 0.0

    def test_periods_longer_than_64_do_not_count(self):
        assert tail_of(list(range(65)) * 10) == 0
        assert tail_of(list(range(64)) * 10) == 256

    def test_text_that_reuses_few_words_without_a_period_is_not_repetition(self):
        rng = np.random.default_rng(0)
        assert tail_of(rng.integers(0, 20, 2000).tolist()) == 0

    def test_environment_text_between_turns_does_not_hide_a_loop(self):
        ids = [4, 4, 99, 4, 4, 98] * 100
        sampled = [1, 1, 0, 1, 1, 0] * 100
        batch = make_packed_batch([ids], [sampled])
        assert covered_by_row(batch) == {0: 256}
        (loop,) = repetitions(MaskedTokens.sampled(batch)).values()
        assert (loop.period, loop.stop) == (1, len(ids) - 1)
        assert np.count_nonzero(sampled[loop.start : loop.stop]) == 256

    def test_many_rows_at_once_give_what_each_gives_alone(self):
        rng = np.random.default_rng(1)
        rows = [
            [
                *rng.integers(0, 5000, int(rng.integers(0, 400))).tolist(),
                *([3, 8] * int(rng.integers(0, 130))),
            ]
            for _ in range(40)
        ]
        rows = [row for row in rows if row]
        together = covered_by_row(sampled_rows(*rows))
        assert [together.get(index, 0) for index in range(len(rows))] == [tail_of(row) for row in rows]
        assert together

    def test_of_one_token_and_of_two_alternating_ones(self):
        noise = list(range(1000, 1300))
        (loop,) = repetitions(MaskedTokens.sampled(sampled_rows([*noise, *[5] * 130]))).values()
        assert (loop.period, loop.covered, loop.start, loop.stop) == (1, 130, 300, 430)
        (loop,) = repetitions(MaskedTokens.sampled(sampled_rows([*noise, *[5, 6] * 66]))).values()
        assert (loop.period, loop.covered) == (2, 132)

    def test_it_begins_at_half_of_the_window_and_one_token(self):
        noise = list(range(1000, 1300))
        assert tail_of([*noise, *[5] * 128]) == 0 and tail_of([*noise, *[5] * 129]) == 129
        assert tail_of([5] * 129) == 129 and tail_of([5] * 128) == 0

    def test_a_break_ends_it_and_the_longest_stretch_counts(self):
        assert tail_of([*[5] * 100, 9, *[5] * 140, 8, *[5] * 14]) == 140

    def test_a_period_has_to_come_round_twice(self):
        sampled = MaskedTokens.sampled(sampled_rows([*range(60), *range(39)]))
        assert repetitions(sampled, window=100, longest_period=64, filled=0.5) == {}
        sampled = MaskedTokens.sampled(sampled_rows([*range(49), *range(49)]))
        (loop,) = repetitions(sampled, window=100, longest_period=64, filled=0.5).values()
        assert (loop.period, loop.covered) == (49, 98)


def loops_of(*rows: list[int], rounds: int = 3, min_tokens: int = 192) -> dict[int, Loop]:
    return longest_loops(MaskedTokens.sampled(sampled_rows(*rows)), rounds=rounds, min_tokens=min_tokens)


def noise(n: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(10_000, 2**30, n).tolist()


class TestLongestLoops:
    @pytest.mark.parametrize("period", [1, 2, 3, 7, 8, 9, 32, 33, 64, 65, 100, 200])
    def test_any_period_is_found_where_it_begins_and_ends(self, period):
        rounds = max(3, 192 // period + 1)
        row = [*noise(50, 1), *list(range(1, period + 1)) * rounds, *noise(40, 2)]
        assert loops_of(noise(20, 3), row) == {1: Loop(1, period, 50, 50 + period * rounds)}

    def test_a_round_that_is_broken_off_counts_as_far_as_it_goes(self):
        row = [*noise(5), *list(range(1, 101)) * 3, *range(1, 41), *noise(9, 1)]
        (loop,) = loops_of(row).values()
        assert (loop.period, loop.start, loop.stop, loop.covered) == (100, 5, 345, 340)

    def test_the_longest_of_several_is_told(self):
        row = [*[1, 2, 3] * 70, *noise(30), *[4, 5] * 130, *noise(30, 1), *[6] * 200]
        assert loops_of(row) == {0: Loop(0, 2, 240, 500)}

    def test_as_many_rounds_and_tokens_are_needed_as_are_asked_for(self):
        three, two = list(range(1, 101)) * 3, list(range(1, 201)) * 2
        assert loops_of(three) and not loops_of(two) and loops_of(two, rounds=2)
        assert not loops_of(three, rounds=4) and not loops_of(three[:-1], rounds=3)
        assert loops_of(three, min_tokens=300) and not loops_of(three, min_tokens=301)

    def test_every_row_has_its_own_and_text_between_turns_does_not_hide_it(self):
        assert set(loops_of([1] * 200, noise(300), [2] * 199, [1] * 191)) == {0, 2}
        ids, sampled = [4, 4, 99, 4, 4, 98] * 60, [1, 1, 0, 1, 1, 0] * 60
        batch = make_packed_batch([[7], ids], [[1], sampled])
        found = longest_loops(MaskedTokens.sampled(batch), rounds=3, min_tokens=192)
        assert found == {1: Loop(1, 1, 0, 240)}

    def test_rows_of_nothing_have_none(self):
        assert loops_of([], [1]) == {} == loops_of([1] * GRAM, min_tokens=1)


class TestGrams:
    def test_equal_stretches_have_one_hash_and_others_another(self):
        tokens = np.asarray([*range(GRAM), 99, *range(GRAM), 5, *range(GRAM - 1), 77], np.uint32)
        hashes = _hashed_grams(tokens)
        assert len(hashes) == len(tokens) - GRAM + 1
        assert hashes[0] == hashes[GRAM + 1] != hashes[2 * GRAM + 2]
        assert len(set(hashes.tolist())) == len(hashes) - 1

    @pytest.mark.parametrize("n", [1, 2, REACH, REACH + 1, 2 * REACH, 2 * REACH + 1, 100])
    def test_the_smallest_is_looked_up_on_either_side(self, n):
        values = np.random.default_rng(n).integers(0, 1000, n).astype(np.uint32)
        expected = [values[max(at - REACH, 0) : at + REACH + 1].min() for at in range(n)]
        assert _smallest_around(values).tolist() == expected
