"""What the trainer hands over arrives whole, without its padding, at the documented precision."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
import time

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rollout_traces.capture.host_copy import Capture, capture
from rollout_traces.capture.part import GroupNumbers
from rollout_traces.ledger.build import build_ledger
from rollout_traces.model.batch import RolloutBatch
from rollout_traces.model.packed_batch import ASSUMED_MASK, concatenate
from rollout_traces.spool.record import (
    Record,
    RecordError,
    batch_from_record,
    decode,
    encode,
)
from tests.capture.packing import batch_to_record

PADDING = ("right", "left", "both", "holes")


def make_mask(rng, B, T, padding):
    mask = np.zeros((B, T), bool)
    for b in range(B):
        n = int(rng.integers(0, T + 1))
        start = {"right": 0, "left": T - n, "both": int(rng.integers(0, T - n + 1))}.get(padding)
        if start is None:
            mask[b] = rng.random(T) < 0.5
        else:
            mask[b, start : start + n] = True
    return mask


def make_arrays(rng, B=3, T=20, padding="right"):
    return {
        "input_ids": rng.integers(0, 150_000, (B, T)),
        "attention_mask": make_mask(rng, B, T, padding),
        "loss_mask": rng.integers(0, 2, (B, T)),
        "versions": rng.integers(-1, 5, (B, T)),
        "logprobs": rng.normal(size=(B, T)).astype(np.float32),
        "rewards": rng.normal(size=B),
    }


def to_tensors(arrays, ids=torch.int64, masks=torch.int64, floats=torch.float32):
    dtypes = {"input_ids": ids, "versions": ids, "loss_mask": masks, "attention_mask": masks}
    return {
        key: torch.as_tensor(value).to(dtypes.get(key, floats)) if isinstance(value, np.ndarray) else value
        for key, value in arrays.items()
    }


def read(captured):
    return batch_from_record(decode(b"".join(bytes(part) for part in captured.buffers)))


def fastest(work, times=5):
    """Seconds of processor time of the fastest of some calls."""
    costs = []
    for _ in range(times):
        started = time.thread_time()
        work()
        costs.append(time.thread_time() - started)
    return min(costs)


class TestPadding:
    @pytest.mark.parametrize("padding", PADDING)
    def test_of_any_kind_is_left_behind(self, padding):
        rng = np.random.default_rng(0)
        parts = [make_arrays(rng, B, 17, padding) for B in (1, 4, 2)]
        host = capture([RolloutBatch(**part) for part in parts], step=3, split="rollout")
        for key, values in (
            ("input_ids", host.input_ids),
            ("loss_mask", host.loss_mask),
            ("versions", host.tracks["versions"]),
        ):
            expected = np.concatenate([part[key][part["attention_mask"]] for part in parts])
            np.testing.assert_array_equal(values, expected)
        lengths = np.concatenate([part["attention_mask"].sum(1) for part in parts])
        np.testing.assert_array_equal(np.diff(host.offsets), lengths)

    @pytest.mark.parametrize("ids", [torch.int32, torch.int64])
    @pytest.mark.parametrize("masks", [torch.bool, torch.uint8, torch.int64, torch.float32])
    @pytest.mark.parametrize("floats", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
    def test_tensors_of_any_dtype_say_the_same_as_arrays(self, ids, masks, floats):
        arrays = make_arrays(np.random.default_rng(1))
        one = capture([RolloutBatch(**arrays)], step=1, split="rollout")
        two = capture([RolloutBatch(**to_tensors(arrays, ids, masks, floats))], step=1, split="rollout")
        np.testing.assert_array_equal(one.input_ids, two.input_ids)
        np.testing.assert_array_equal(one.loss_mask, two.loss_mask)
        np.testing.assert_allclose(one.tracks["logprobs"], two.tracks["logprobs"], rtol=0.01, atol=0.01)

    def test_a_tensor_that_needs_a_gradient_or_is_not_contiguous_is_read_as_it_is(self):
        tensors = to_tensors(make_arrays(np.random.default_rng(1), 4, 6))
        tensors["logprobs"] = tensors["logprobs"].T.contiguous().T.requires_grad_()
        tensors["input_ids"] = tensors["input_ids"].repeat(1, 2)[:, ::2]
        host = capture([RolloutBatch(**tensors)], step=1, split="rollout")
        mask = tensors["attention_mask"].bool()
        np.testing.assert_array_equal(host.input_ids, tensors["input_ids"][mask].numpy())


class TestIndependence:
    def test_nothing_is_shared_with_the_trainers_memory(self):
        arrays = make_arrays(np.random.default_rng(2))
        batch = RolloutBatch(**to_tensors(arrays))
        captured = Capture().take([batch], step=1, split="rollout")
        before = read(captured)
        for value in (batch.input_ids, batch.loss_mask, batch.versions, batch.logprobs, batch.rewards):
            value.zero_()
        after = read(captured)
        np.testing.assert_array_equal(before.input_ids, after.input_ids)
        np.testing.assert_array_equal(before.row_floats["rewards"], arrays["rewards"].astype(np.float32))

    def test_the_same_memory_serves_larger_and_smaller_batches(self):
        rng = np.random.default_rng(3)
        taker = Capture()
        for B, T in ((2, 5), (30, 400), (1, 1), (100, 900), (3, 7)):
            arrays = make_arrays(rng, B, T)
            host = read(taker.take([RolloutBatch(**arrays)], step=1, split="rollout"))
            np.testing.assert_array_equal(host.input_ids, arrays["input_ids"][arrays["attention_mask"]])


class TestWholeNumbers:
    @pytest.mark.parametrize(
        ("highest", "stored"), [(127, np.int8), (128, np.int16), (32_767, np.int16), (32_768, np.int32)]
    )
    def test_take_no_more_bytes_than_their_values_need(self, highest, stored):
        parts = [make_arrays(np.random.default_rng(seed), 3, 30) for seed in range(3)]
        for part in parts:
            part["attention_mask"][:] = True
        parts[1]["versions"][1, 4] = highest
        captured = Capture().take([RolloutBatch(**part) for part in parts], step=1, split="rollout")
        record = decode(b"".join(bytes(part) for part in captured.buffers))
        expected = np.concatenate([part["versions"].ravel() for part in parts])
        assert record.arrays["track/versions"].dtype == stored
        np.testing.assert_array_equal(batch_from_record(record).tracks["versions"], expected)
        packed = batch_to_record(batch_from_record(record))
        assert packed.arrays["track/versions"].dtype == stored
        np.testing.assert_array_equal(batch_from_record(packed).tracks["versions"], expected)

    @pytest.mark.parametrize("version", [2**31, 1_764_530_000_000, 1_766_677_483_648, 2**53])
    @pytest.mark.parametrize("kind", [np.array, torch.tensor, list, np.float64])
    def test_beyond_32_bits_are_kept_as_they_are(self, version, kind):
        arrays = make_arrays(np.random.default_rng(0), 2, 4) | {"train_version": version}
        arrays["attention_mask"][:] = True
        arrays["versions"] = kind([[-1, version - 2, version - 1, version]] * 2)
        small = RolloutBatch(**make_arrays(np.random.default_rng(1), 3, 5))
        batch = capture([small, RolloutBatch(**arrays)], step=1, split="rollout")
        assert batch.tracks["versions"][-4:].tolist() == [-1, version - 2, version - 1, version]
        assert batch.response_mask[-4:].tolist() == [False, True, True, True]
        assert build_ledger(batch).get("version_max")[-1] == version

    def test_have_the_memory_that_wide_ones_need(self):
        arrays = make_arrays(np.random.default_rng(0), 64, 8000) | {"logprobs": None}
        arrays["attention_mask"][:] = True
        arrays["versions"] += 2**40
        arrays["turn_ids"] = arrays["versions"] + 1
        batch = capture([RolloutBatch(**arrays)], step=1, split="rollout")
        np.testing.assert_array_equal(batch.tracks["versions"], arrays["versions"].ravel())
        np.testing.assert_array_equal(batch.tracks["turn_ids"], arrays["turn_ids"].ravel())

    def test_that_are_no_numbers_are_minus_one(self):
        arrays = make_arrays(np.random.default_rng(0), 2, 4)
        arrays["attention_mask"][:] = True
        arrays["versions"] = [[None, np.nan, np.inf, 3]] * 2
        batch = capture([RolloutBatch(**arrays)], step=1, split="rollout")
        assert batch.tracks["versions"].tolist() == [-1, -1, -1, 3] * 2


class TestPrecision:
    def test_floats_keep_float16_precision_and_their_non_finites(self):
        arrays = make_arrays(np.random.default_rng(4), 2, 4)
        arrays["attention_mask"][:] = True
        arrays["logprobs"][0] = [np.nan, np.inf, -np.inf, -0.17456]
        logprobs = capture([RolloutBatch(**arrays)], step=1, split="rollout").tracks["logprobs"]
        assert np.isnan(logprobs[0]) and logprobs[1] == np.inf and logprobs[2] == -np.inf
        np.testing.assert_allclose(logprobs[3], -0.17456, rtol=1e-3)

    def test_a_finite_value_beyond_float16_keeps_the_whole_track_at_float32(self):
        arrays = make_arrays(np.random.default_rng(4), 1, 3)
        arrays["attention_mask"][:] = True
        arrays["logprobs"][0] = [70000.5, 1.0001, np.inf]
        logprobs = capture([RolloutBatch(**arrays)], step=1, split="rollout").tracks["logprobs"]
        np.testing.assert_array_equal(logprobs, arrays["logprobs"][0])

    def test_negative_placeholder_ids_survive(self):
        arrays = make_arrays(np.random.default_rng(4), 1, 3)
        arrays["attention_mask"][:] = True
        arrays["input_ids"][0] = [-200, 5, 151_935]
        host = capture([RolloutBatch(**arrays)], step=1, split="rollout")
        assert host.input_ids.tolist() == [-200, 5, 151_935]

    def test_rewards_are_exact(self):
        arrays = make_arrays(np.random.default_rng(5))
        host = capture([RolloutBatch(**arrays)], step=1, split="rollout")
        np.testing.assert_array_equal(host.row_floats["rewards"], arrays["rewards"])

    def test_token_rewards_add_up_to_the_reward_before_they_are_rounded(self):
        arrays = make_arrays(np.random.default_rng(6)) | {"rewards": None}
        arrays["token_rewards"] = np.random.default_rng(7).normal(size=(3, 20))
        host = capture([RolloutBatch(**arrays)], step=1, split="rollout")
        expected = np.where(arrays["attention_mask"], arrays["token_rewards"], 0).sum(1)
        np.testing.assert_allclose(host.row_floats["rewards"], expected, rtol=1e-12)

    def test_a_track_that_only_some_parts_have_is_unknown_in_the_others(self):
        rng = np.random.default_rng(8)
        one, two = make_arrays(rng, 1, 4), make_arrays(rng, 1, 4) | {"logprobs": None, "versions": None}
        one["attention_mask"][:] = two["attention_mask"][:] = True
        host = capture([RolloutBatch(**one), RolloutBatch(**two)], step=1, split="rollout")
        assert np.isnan(host.tracks["logprobs"][4:]).all()
        assert (host.tracks["versions"][4:] == -1).all()


class TestResponseMask:
    @pytest.mark.parametrize(
        ("given", "expected"),
        [
            ({"response_mask": np.array([[0, 1, 1]])}, ("given", [False, True, True])),
            ({"versions": np.array([[-1, -1, 2]])}, ("versions", [False, False, True])),
            ({}, ("loss_mask", [True, False, False])),
        ],
    )
    def test_comes_from_the_best_there_is(self, given, expected):
        batch = RolloutBatch(
            input_ids=np.ones((1, 3), int),
            attention_mask=np.ones((1, 3)),
            loss_mask=np.array([[1, 0, 0]]),
            **given,
        )
        host = capture([batch], step=1, split="rollout")
        assert (host.response_mask_source, host.response_mask.tolist()) == expected


class TestGroups:
    def test_a_list_without_ids_is_one_group_an_element(self):
        rng = np.random.default_rng(9)
        parts = RolloutBatch.from_any([RolloutBatch(**make_arrays(rng, B)) for B in (2, 3)])
        host = capture(parts, step=1, split="rollout", groups=GroupNumbers(10))
        assert host.group_ids.tolist() == [10, 10, 11, 11, 11]

    def test_a_batch_without_ids_is_a_group_a_row(self):
        batch = RolloutBatch(**make_arrays(np.random.default_rng(9), 2))
        host = capture([batch], step=1, split="rollout", groups=GroupNumbers(10))
        assert host.group_ids.tolist() == [10, 11]

    def test_ids_of_any_kind_become_numbers(self):
        batch = RolloutBatch(**make_arrays(np.random.default_rng(9)), group_ids=["b", "a", "b"])
        assert capture([batch], step=1, split="rollout").group_ids.tolist() == [0, 1, 0]

    def test_an_id_has_one_number_in_all_calls_of_a_step(self):
        rng, groups = np.random.default_rng(9), GroupNumbers()

        def numbers(**given):
            batch = RolloutBatch(**make_arrays(rng, 4), **given)
            return capture([batch], step=1, split="rollout", groups=groups).group_ids.tolist()

        assert numbers(group_ids=[4, 4, 5, 5]) == [4, 4, 5, 5]
        assert numbers() == [0, 1, 2, 3]
        assert numbers() == [6, 7, 8, 9], "rows without ids are told apart from all before"
        assert numbers(group_ids=["a", "a", "b", 4]) == [10, 10, 11, 4]
        assert numbers(group_ids=["b", 0, -1, 2**70]) == [11, 12, -1, 13]
        assert numbers(group_ids=[-7, -7, -9, -1]) == [14, 14, 15, -1]


class TestWhatIsHidden:
    def test_by_a_numpy_mask_is_not_sampled_and_no_token(self):
        arrays = make_arrays(np.random.default_rng(9), 2, 4)
        arrays["attention_mask"] = np.ma.masked_array(np.ones((2, 4), int), [[0, 0, 0, 1]] * 2)
        arrays["versions"] = np.ma.masked_array(np.full((2, 4), 3), [[1, 0, 0, 0]] * 2)
        arrays["advantages"] = np.ma.masked_array(np.ones((2, 4), int), [[0, 1, 0, 0]] * 2)
        host = capture([RolloutBatch(**arrays)], step=1, split="rollout")
        assert np.diff(host.offsets).tolist() == [3, 3]
        assert host.tracks["versions"].tolist() == [-1, 3, 3] * 2
        np.testing.assert_array_equal(host.tracks["advantages"], [1, np.nan, 1] * 2)


class TestBudget:
    """Tokens are left out of 4,096 x 8,192 (small budget, full spool): once the calling thread stood still for 67 s."""

    def make(self, n_groups=20):
        rng = np.random.default_rng(10)
        parts = []
        for _ in range(n_groups):
            arrays = make_arrays(rng, 4, 50)
            arrays["attention_mask"][:] = True
            parts.append(RolloutBatch(**arrays))
        return parts

    def test_leaves_tokens_of_whole_groups_behind_and_says_so(self):
        parts = self.make()
        captured = Capture(max_bytes=40_000).take(parts, step=1, split="rollout")
        host = read(captured)
        assert 0 < captured.n_without_tokens < 80
        for group in set(host.group_ids.tolist()):
            assert len(set(host.has_tokens[host.group_ids == group].tolist())) == 1
        assert f"{captured.n_without_tokens} of 80 rollouts were left out" in host.notes[0]

    def test_keeps_all_scalars_lengths_and_prompt_keys(self):
        parts = self.make()
        whole = capture(parts, step=1, split="rollout")
        host = read(Capture(max_bytes=40_000).take(parts, step=1, split="rollout"))
        np.testing.assert_array_equal(host.row_floats["rewards"], whole.row_floats["rewards"])
        np.testing.assert_array_equal(host.n_tokens, whole.n_tokens)
        assert host.prompt_keys() == whole.prompt_keys()

    def test_of_zero_leaves_every_token_behind(self):
        host = read(Capture().take(self.make(), step=1, split="rollout", room=0))
        assert not host.has_tokens.any() and len(host.input_ids) == 0

    @pytest.mark.parametrize("padding", PADDING)
    @pytest.mark.parametrize("sampled_by", ["versions", "response_mask", "loss_mask"])
    @pytest.mark.parametrize("first_sampled", [0, 1500, 3000])
    def test_keeps_the_prompt_keys_of_long_rows(self, padding, sampled_by, first_sampled):
        rng = np.random.default_rng(11)
        arrays = make_arrays(rng, 4, 3000, padding)
        arrays["input_ids"][2:] = arrays["input_ids"][1]
        after = np.broadcast_to(np.arange(3000) >= first_sampled, (4, 3000))
        arrays.pop("versions")
        arrays["loss_mask"] = after * 0.5
        if sampled_by == "versions":
            arrays["versions"] = np.where(after, 3, -1)
        elif sampled_by == "response_mask":
            arrays["response_mask"] = after.astype(np.float32)
        parts = [RolloutBatch(**arrays)]
        whole = capture(parts, step=1, split="rollout")
        none = read(Capture().take(parts, step=1, split="rollout", room=0))
        assert none.prompt_keys() == whole.prompt_keys()

    def test_hashes_a_bounded_number_of_prompt_tokens_and_says_which_prompts_are_unknown(self, monkeypatch):
        monkeypatch.setattr("rollout_traces.capture.host_copy.MAX_HASHED", 250)
        rng = np.random.default_rng(13)
        arrays = make_arrays(rng, 8, 100)
        arrays["attention_mask"][:] = True
        arrays["loss_mask"][:] = 0
        arrays.pop("versions")
        arrays["input_ids"][:4] = arrays["input_ids"][0]  # one prompt, hashed once
        parts = [RolloutBatch(**arrays)]
        whole = capture(parts, step=1, split="rollout")
        host = read(Capture().take(parts, step=1, split="rollout", room=0))
        known = build_ledger(host).get("prompt_key").tolist()
        assert known == [*whole.prompt_keys()[:6], None, None]
        assert "The prompts of 2 of them are unknown" in host.notes[1]

    def test_costs_no_more_than_taking_the_tokens(self):
        rng = np.random.default_rng(12)
        arrays = make_arrays(rng, 400, 1024)
        arrays["attention_mask"][:] = True
        arrays["versions"][:, :256] = -1
        parts = [RolloutBatch(**arrays)]
        kept, left_out = (
            fastest(lambda room=room: Capture(1 << 30).take(parts, step=1, split="rollout", room=room))
            for room in (None, 0)
        )
        assert left_out < 2 * kept

    def test_rows_that_are_kept_keep_their_own_tokens(self):
        parts = self.make()
        whole = capture(parts, step=1, split="rollout")
        host = read(Capture(max_bytes=40_000).take(parts, step=1, split="rollout"))
        for row in np.flatnonzero(host.has_tokens):
            np.testing.assert_array_equal(host.input_ids[host.row(row)], whole.input_ids[whole.row(row)])


class TestRecord:
    @settings(max_examples=50, deadline=None)
    @given(
        seed=st.integers(0, 2**32),
        B=st.integers(0, 6),
        T=st.integers(1, 30),
        padding=st.sampled_from(PADDING),
    )
    def test_a_host_batch_survives_packing(self, seed, B, T, padding):
        arrays = make_arrays(np.random.default_rng(seed), B, T, padding)
        host = capture([RolloutBatch(**arrays, stop_reasons=["stop"] * B)], step=1, split="rollout")
        back = batch_from_record(decode(b"".join(map(bytes, encode(batch_to_record(host))))))
        for field in dataclasses.fields(host):
            one, two = getattr(host, field.name), getattr(back, field.name)
            if isinstance(one, dict):
                assert set(one) == set(two)
                for key in one:
                    np.testing.assert_array_equal(one[key], two[key])
            else:
                np.testing.assert_array_equal(one, two)

    def test_another_kind_is_refused(self):
        with pytest.raises(RecordError, match="'scalars'"):
            batch_from_record(Record("scalars"))

    def test_an_empty_hand_over_is_a_batch_of_no_rows(self):
        assert capture([], step=1, split="rollout").n_rows == 0

    def test_reading_a_record_needs_no_torch(self):
        code = "import sys, rollout_traces.spool.record; sys.exit('torch' in sys.modules)"
        assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


class TestNotGiven:
    def make_part(self, **columns) -> RolloutBatch:
        mask = np.ones((2, 3), bool)
        return RolloutBatch(
            input_ids=np.arange(6).reshape(2, 3), attention_mask=mask, loss_mask=mask, **columns
        )

    def test_rows_of_a_part_without_a_key_are_known_after_the_spool(self):
        logprobs = np.full((2, 3), np.nan)
        parts = [
            self.make_part(logprobs=logprobs, rewards=[1.0, None]),
            self.make_part(token_rewards=np.ones((2, 3)), advantages=[0.5, -0.5]),
        ]
        batch = capture(parts, step=0, split="rollout")
        seen = {key: rows.tolist() for key, rows in batch.not_given.items()}
        assert seen == {
            "tracks/logprobs": [False, False, True, True],
            "tracks/token_rewards": [True, True, False, False],
            "row_floats/rewards": [False, True, False, False],
            "row_floats/advantages": [True, True, False, False],
        }
        assert batch.row_floats["rewards"].tolist()[2:] == [3.0, 3.0]
        again = batch_from_record(batch_to_record(batch))
        assert {key: rows.tolist() for key, rows in again.not_given.items()} == seen

    def test_what_all_parts_have_or_lack_is_not_spoken_of(self):
        parts = [self.make_part(logprobs=np.zeros((2, 3)), rewards=[np.nan, np.nan])] * 2
        assert capture(parts, step=0, split="rollout").not_given == {}

    def test_rows_keep_it_when_hand_overs_are_put_together(self):
        first = capture([self.make_part(rewards=[None, 1.0])], step=0, split="rollout")
        second = capture([self.make_part(raw_rewards=[1.0, 2.0])], step=0, split="rollout")
        both = concatenate([first, second])
        assert both.not_given["row_floats/rewards"].tolist() == [True, False, True, True]
        assert both.not_given["row_floats/raw_rewards"].tolist() == [True, True, False, False]


class TestWhatANumpyMaskHides:
    def batch(self, **more):
        ones = np.ones((2, 4), np.int64)
        return RolloutBatch(input_ids=ones, attention_mask=ones, loss_mask=ones, **more)

    def test_of_rewards_is_unknown_and_not_given(self):
        hidden = capture(
            [self.batch(rewards=np.ma.masked_array([1, 99], [False, True]))], step=1, split="rollout"
        )
        np.testing.assert_array_equal(hidden.row_floats["rewards"], [1.0, np.nan])
        assert hidden.not_given["row_floats/rewards"].tolist() == [False, True]

    def test_of_a_track_is_unknown(self):
        logprobs = np.ma.masked_array(np.full((2, 4), -7.0), [[True, False, False, False]] * 2)
        hidden = capture([self.batch(logprobs=logprobs)], step=1, split="rollout")
        np.testing.assert_array_equal(hidden.tracks["logprobs"][:4], [np.nan, -7, -7, -7])

    def test_of_token_rewards_makes_the_rows_reward_unknown(self):
        rewards = np.ma.masked_array(np.full((2, 4), 9.0), [[True] * 4, [False] * 4])
        hidden = capture([self.batch(token_rewards=rewards)], step=1, split="rollout")
        np.testing.assert_array_equal(hidden.row_floats["rewards"], [np.nan, 36.0])
        assert hidden.not_given["row_floats/rewards"].tolist() == [True, False]


@pytest.mark.parametrize("versions_first", [True, False])
def test_rows_whose_mask_is_assumed_are_noted_where_others_of_the_step_say_theirs(versions_first):
    rng = np.random.default_rng(0)
    said, assumed = make_arrays(rng, 2, 8), make_arrays(rng, 3, 8)
    del assumed["versions"]
    parts = [said, assumed] if versions_first else [assumed, said]
    batches = [RolloutBatch(**each) for each in parts]
    back = read(Capture().take(batches, step=1, split="rollout"))
    assert np.flatnonzero(back.not_given[ASSUMED_MASK]).tolist() == (
        [2, 3, 4] if versions_first else [0, 1, 2]
    )
