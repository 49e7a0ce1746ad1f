"""Every column of the ledger, worked out by hand on a few short rows."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from rollout_traces.capture.host_copy import capture
from rollout_traces.ledger.build import (
    MAX_NAMES,
    SHORT,
    build_ledger,
    complete_from_transcripts,
    normalise_stop_reason,
    turn_numbers,
)
from rollout_traces.ledger.columns import COLUMNS, NULL_INT, Ledger, pack, unpack
from rollout_traces.metrics import rollout_metrics
from rollout_traces.model.batch import RolloutBatch
from rollout_traces.model.spans import read_packed, unpacked
from rollout_traces.settings.run_settings import RunSettings
from tests.builders import make_packed_batch, make_transcript

NAN = math.nan


def two_rows(**fields):
    """Row 0: prompt of 2, turn of 2, tool text of 1, turn of 1. Row 1: prompt of 1, turn of 3."""
    return make_packed_batch([[1, 2, 3, 4, 5, 6], [1, 7, 8, 9]], [[0, 0, 1, 1, 0, 1], [0, 1, 1, 1]], **fields)


def track(*values: float) -> np.ndarray:
    return np.asarray(values, np.float32)


class TestIdentity:
    def test_a_row_is_named_by_its_hand_over_and_its_number(self):
        ledger = build_ledger(two_rows())
        assert ledger.get("uid").tolist() == ["0123456789ab-0", "0123456789ab-1"]
        assert ledger.get("step").tolist() == [3, 3]
        assert ledger.get("split").tolist() == ["rollout", "rollout"]

    def test_rows_of_one_group_are_numbered_in_the_order_handed_over(self):
        batch = make_packed_batch([[1, 2]] * 5, [[0, 1]] * 5, group_ids=np.asarray([4, 9, 4, 9, 4]))
        assert build_ledger(batch).get("sample").tolist() == [0, 0, 1, 1, 2]

    def test_rows_of_unknown_group_are_put_together_by_their_prompt(self):
        rows = [[1, 2, 50], [1, 3, 50], [1, 2, 51], [9, 9, 9]]
        groups = np.asarray([-1, -1, -1, 6])
        ledger = build_ledger(make_packed_batch(rows, [[0, 0, 1]] * 4, group_ids=groups))
        assert ledger.get("group").tolist() == [7, 8, 7, 6]

    def test_a_group_numbered_zero_is_a_known_one(self):
        rows = [[1, 50], [2, 50], [3, 50], [3, 51]]
        batch = make_packed_batch(rows, [[0, 1]] * 4, group_ids=np.asarray([0, 0, -1, -1]))
        ledger = build_ledger(batch)
        assert ledger.get("group").tolist() == [0, 0, 1, 1]
        assert ledger.get("sample").tolist() == [0, 1, 0, 1]

    def test_only_rows_of_an_episode_keep_their_sample_id(self):
        ledger = build_ledger(two_rows(row_lists={"episode_ids": ["e", None], "sample_ids": ["a", "b"]}))
        assert ledger.get("sample_id").tolist() == ["a", None]
        assert "sample_id" not in build_ledger(two_rows(row_lists={"sample_ids": ["a", "b"]})).columns

    def test_the_callers_prompt_keys_come_before_the_hash_of_the_prompt(self):
        keys = build_ledger(two_rows(row_lists={"prompt_keys": ["task-1", None]})).get("prompt_key")
        assert keys[0] == "task-1" and len(keys[1]) == 16


class TestLossMaskAndResponseMaskThatDiffer:
    """The first sampled token of each row is outside the loss: what speaks of the loss must not count it."""

    @pytest.fixture
    def batch(self):
        batch = make_packed_batch(
            [[1, 2, 3, 4], [5, 6, 7, 8]],
            [[0, 1, 1, 1], [0, 1, 1, 1]],
            tracks={
                "advantages": track(0, 9, 1, 1, 0, 9, -3, -3),
                "logprobs": np.log(track(1, 0.5, 0.5, 0.5, 1, 0.5, 0.5, 0.5)),
                "prox_logprobs": np.log(track(1, 0.5, 0.5, 0.5, 1, 0.5, 0.5, 0.5)),
                "new_logprobs": np.log(track(1, 0.9, 0.9, 0.5, 1, 0.9, 0.5, 0.5)),
            },
        )
        batch.loss_mask[:] = [False, False, True, True] * 2
        return batch

    def test_the_advantage_is_the_mean_over_loss_tokens(self, batch):
        ledger = build_ledger(batch)
        assert ledger.get("advantage").tolist() == [1, -3]
        assert ledger.get("advantage_abs_max").tolist() == [1, 3]

    def test_the_share_of_the_update_is_that_of_loss_tokens(self, batch):
        assert build_ledger(batch).get("update_share") == pytest.approx([0.25, 0.75])

    def test_the_clipped_share_is_that_of_loss_tokens(self, batch):
        settings = RunSettings(clip_low=0.2, clip_high=0.2)
        assert build_ledger(batch, settings).get("clip_share").tolist() == [0.5, 0]

    def test_metrics_of_the_loss_do_not_count_it_either(self, batch):
        settings = RunSettings(clip_low=0.2, clip_high=0.2)
        found = rollout_metrics(batch, keys="full", settings=settings)
        assert found["rollout/clip_share_high"] == 0.25 and found["rollout/clip_share_low"] == 0
        assert found["rollout/advantage/max"] == 1
        assert found["rollout/advantage/mean"] == -1

    def test_lengths_count_what_was_sampled(self, batch):
        assert build_ledger(batch).get("n_sampled").tolist() == [3, 3]


class TestLengths:
    def test_prompt_sampled_and_environment_add_up_to_the_row(self):
        ledger = build_ledger(two_rows())
        assert ledger.get("n_prompt").tolist() == [2, 1]
        assert ledger.get("n_sampled").tolist() == [3, 3]
        assert ledger.get("n_environment").tolist() == [1, 0]

    def test_a_row_without_a_sampled_token_is_all_prompt(self):
        ledger = build_ledger(make_packed_batch([[1, 2], [3]], [[0, 0], [1]]))
        assert ledger.get("n_prompt").tolist() == [2, 0]
        assert ledger.get("n_turns").tolist() == [0, 1]

    def test_turns_are_runs_of_sampled_tokens(self):
        assert build_ledger(two_rows()).get("n_turns").tolist() == [2, 1]

    def test_turn_ids_part_turns_that_touch(self):
        turns = np.asarray([-1, -1, 0, 0, -1, 1, -1, 0, 0, 1], np.int32)
        assert build_ledger(two_rows(tracks={"turn_ids": turns})).get("n_turns").tolist() == [2, 2]

    def test_a_row_that_starts_sampled_does_not_continue_the_row_before(self):
        assert build_ledger(make_packed_batch([[1, 2], [3, 4]], [[0, 1], [1, 1]])).get(
            "n_turns"
        ).tolist() == [
            1,
            1,
        ]

    def test_a_row_of_one_token_begins_a_turn_of_its_own(self):
        ledger = build_ledger(make_packed_batch([[1, 2], [3], [4, 5]], [[1, 1], [1], [1, 1]]))
        assert ledger.get("n_turns").tolist() == [1, 1, 1]

    def test_every_token_lies_in_a_turn_or_behind_one(self):
        assert turn_numbers(two_rows()).tolist() == [0, 0, 0, 0, 0, 1, 0, 0, 0, 0]

    def test_turns_of_rows_without_tokens_are_those_of_their_conversation(self):
        chat = [{"role": role, "content": "x"} for role in ("user", "assistant", "user", "assistant")]
        batch = make_packed_batch(
            [[1, 2], []],
            [[0, 1], []],
            has_tokens=np.asarray([True, False]),
            n_tokens=np.asarray([2, 900]),
            row_lists={"messages": [None, chat]},
        )
        assert build_ledger(batch).get("n_turns").tolist() == [1, 2]

    def test_rows_whose_tokens_were_left_behind_have_unknown_lengths(self):
        batch = make_packed_batch(
            [[1, 2], []], [[0, 1], []], has_tokens=np.asarray([True, False]), n_tokens=np.asarray([2, 900])
        )
        ledger = build_ledger(batch)
        for name in ("n_prompt", "n_sampled", "n_environment", "n_turns", "trained"):
            assert ledger.get(name)[1] == NULL_INT, name
        assert ledger.get("prompt_key")[1] is None

    def test_rows_without_tokens_have_the_characters_of_their_texts(self):
        asked = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "6 x 7?"}]
        answered = {"role": "assistant", "content": "42", "reasoning_content": "easy"}
        chats = [
            [*asked, answered, {"role": "user", "content": "sure?"}, {**answered, "content": "Yes."}],
            asked,
        ]
        ledger = build_ledger(capture([RolloutBatch.from_messages(chats)], step=1, split="rollout"))
        assert ledger.get("prompt_characters").tolist() == [15, 15]
        assert ledger.get("written_characters").tolist() == [14, 0]
        assert not {"prompt_characters", "written_characters"} & set(build_ledger(two_rows()).columns)


class TestOutcome:
    def test_rewards_components_and_sample_metrics_pass_through(self):
        ledger = build_ledger(
            two_rows(
                row_floats={"rewards": np.asarray([1.0, NAN]), "raw_rewards": np.asarray([2.0, 3.0])},
                reward_components={"format": np.asarray([0.5, 0.25])},
                sample_metrics={"calls": np.asarray([4.0, 5.0])},
            )
        )
        assert ledger.row(0)["reward"] == 1.0 and ledger.row(1)["reward"] is None
        assert ledger.get("raw_reward").tolist() == [2.0, 3.0]
        assert ledger.get("component/format").tolist() == [0.5, 0.25]
        assert ledger.get("sample/calls").tolist() == [4.0, 5.0]

    def test_success_is_what_the_trainer_says(self):
        ledger = build_ledger(two_rows(row_lists={"successes": [True, None]}))
        assert ledger.row(0)["success"] == 1 and ledger.row(1)["success"] is None

    def test_a_declared_threshold_stands_in_for_it(self):
        batch = two_rows(row_floats={"rewards": np.asarray([0.5, NAN])})
        assert "success" not in build_ledger(batch).columns
        ledger = build_ledger(batch, RunSettings(success_threshold=0.5))
        assert ledger.get("success").tolist() == [1, NULL_INT]

    def test_an_answer_is_known_to_be_missing_only_where_answers_are_given(self):
        assert "answered" not in build_ledger(two_rows()).columns
        ledger = build_ledger(two_rows(row_lists={"parsed_answers": ["42", None]}))
        assert ledger.get("answered").tolist() == [1, 0]

    @pytest.mark.parametrize(
        ("given", "normal"),
        [
            ("max_new_tokens", "length"),
            ("MAX_TOKENS", "length"),
            ("eos", "stop"),
            ("end-turn", "stop"),
            ("Abort", "abort"),
        ],
    )
    def test_stop_reasons_get_one_name(self, given, normal):
        assert normalise_stop_reason(given) == normal

    def test_a_discarded_row_is_not_trained_and_says_why(self):
        loss_mask = np.asarray([0, 0, 1, 1, 0, 1, 0, 0, 0, 0], bool)
        ledger = build_ledger(
            two_rows(row_lists={"discard_reasons": ["too_long", None]}, loss_mask=loss_mask)
        )
        assert ledger.get("discard_reason").tolist() == ["too_long", None]
        assert ledger.get("trained").tolist() == [0, 0]
        assert build_ledger(two_rows()).get("trained").tolist() == [1, 1]


class TestPolicies:
    def test_versions_and_staleness_speak_of_sampled_tokens_alone(self):
        versions = np.asarray([9, -1, 4, 5, -1, 5, -1, 3, 3, 3], np.int32)
        ledger = build_ledger(two_rows(tracks={"versions": versions}, train_version=6))
        assert ledger.get("version_min").tolist() == [4, 3]
        assert ledger.get("version_max").tolist() == [5, 3]
        assert ledger.get("staleness_max").tolist() == [2, 3]

    def test_sampled_tokens_of_unknown_version_are_left_out(self):
        versions = np.asarray([-1, -1, 4, -1, -1, 5, -1, -1, -1, -1], np.int32)
        ledger = build_ledger(two_rows(tracks={"versions": versions}, train_version=6))
        for name, expected in (("version_min", 4), ("version_max", 5), ("staleness_max", 2)):
            assert ledger.get(name).tolist() == [expected, NULL_INT], name

    def test_without_a_train_version_staleness_is_unknown(self):
        versions = np.full(10, 4, np.int32)
        assert "staleness_max" not in build_ledger(two_rows(tracks={"versions": versions})).columns

    def test_mismatch_is_over_the_sampled_tokens_where_both_logprobs_are_finite(self):
        rollout = track(0, 0, -1, -2, 0, -1, 0, NAN, -1, -1)
        prox = track(5, 5, -1.5, -1, 5, -1, 5, -1, -1, -np.inf)
        row = build_ledger(two_rows(tracks={"logprobs": rollout, "prox_logprobs": prox})).row(0)
        d = np.asarray([-0.5, 1.0, 0.0])
        assert row["mean_logprob"] == pytest.approx(-4 / 3)
        assert row["mismatch_k1"] == pytest.approx(-d.mean())
        assert row["mismatch_k3"] == pytest.approx(np.mean(np.exp(d) - d - 1))
        assert row["mismatch_abs_max"] == 1.0
        assert row["log_ratio_sum"] == pytest.approx(0.5)
        other = build_ledger(two_rows(tracks={"logprobs": rollout, "prox_logprobs": prox})).row(1)
        assert other["mismatch_abs_max"] == 0.0 and other["mean_logprob"] == -1.0

    def test_a_log_ratio_is_clamped_so_that_one_token_cannot_hide_the_rest(self):
        batch = make_packed_batch(
            [[1, 2]], [[1, 1]], tracks={"logprobs": track(-90, -1), "prox_logprobs": track(-1, -1)}
        )
        assert build_ledger(batch).row(0)["mismatch_abs_max"] == 20.0

    def test_clip_share_is_gated_by_the_sign_of_the_advantage(self):
        ratios = np.asarray([1.5, 1.5, 0.5, 0.5, 1.0, 1.0])
        batch = make_packed_batch(
            [[1] * 6],
            [[1] * 6],
            tracks={
                "prox_logprobs": np.zeros(6, np.float32) - 3,
                "new_logprobs": (np.log(ratios) - 3).astype(np.float32),
                "advantages": track(1, -1, 1, -1, 1, -1),
            },
        )
        assert "clip_share" not in build_ledger(batch).columns  # bounds are not declared
        clipped = build_ledger(batch, RunSettings(clip_low=0.2, clip_high=0.2)).row(0)["clip_share"]
        assert clipped == pytest.approx(2 / 6)  # 1.5 with A > 0, and 0.5 with A < 0

    def test_a_ratio_or_an_advantage_on_the_edge_is_not_clipped(self):
        d = track(0, 0, -0.5, -0.5, 0.5, 0.5, -0.5, 0.5)
        tracks = {
            "prox_logprobs": np.zeros(8, np.float32) - 3,
            "new_logprobs": d - 3,
            "advantages": track(0.5, -0.5, 0.5, -0.5, 0.5, -0.5, 0, 0),
        }
        batch = make_packed_batch([[1] * 8], [[1] * 8], tracks=tracks)
        assert build_ledger(batch, RunSettings(clip_low=0.0, clip_high=0.0)).row(0)["clip_share"] == 2 / 8
        assert build_ledger(batch, RunSettings(clip_low=1.0, clip_high=0.0)).row(0)["clip_share"] == 1 / 8


class TestUpdateShare:
    def test_it_is_advantage_times_one_minus_p_over_the_batch(self):
        half, certain = math.log(0.5), 0.0
        batch = make_packed_batch(
            [[1, 2], [3, 4]],
            [[1, 1], [1, 1]],
            tracks={"logprobs": track(half, certain, half, half), "advantages": track(1, 100, -2, 1)},
        )
        shares = build_ledger(batch).get("update_share")
        assert shares == pytest.approx([0.5 / 2.0, 1.5 / 2.0])

    def test_loss_weights_and_importance_weights_count_and_p_is_the_updated_policys(self):
        batch = make_packed_batch(
            [[1], [2]],
            [[1], [1]],
            tracks={
                "logprobs": track(math.log(0.25), math.log(0.5)),
                "prox_logprobs": track(math.log(0.5), math.log(0.5)),
                "loss_weights": track(3, 1),
                "advantages": track(1, 1),
            },
        )
        first, second = 3 * 2 * 0.5, 1 * 1 * 0.5
        assert build_ledger(batch).get("update_share")[0] == pytest.approx(first / (first + second))

    def test_advantages_of_rows_serve_as_well(self):
        batch = two_rows(
            tracks={"logprobs": np.full(10, math.log(0.5), np.float32)},
            row_floats={"advantages": np.asarray([1.0, -3.0])},
        )
        ledger = build_ledger(batch)
        assert ledger.get("update_share") == pytest.approx([0.25, 0.75])
        assert ledger.get("advantage").tolist() == [1.0, -3.0]

    def test_each_row_takes_the_logprobs_and_weights_that_it_came_with(self):
        half, quarter = math.log(0.5), math.log(0.25)
        batch = make_packed_batch(
            [[1, 2], [3, 4], [5, 6]],
            [[0, 1], [0, 1], [0, 1]],
            tracks={
                "logprobs": track(0, quarter, 0, half, 0, NAN),
                "prox_logprobs": track(0, half, 0, NAN, 0, NAN),
                "loss_weights": track(0, NAN, 0, -3, 0, NAN),
            },
            row_floats={"advantages": np.asarray([1.0, 1.0, NAN])},
            not_given={
                "tracks/logprobs": np.asarray([False, False, True]),
                "tracks/prox_logprobs": np.asarray([False, True, True]),
                "tracks/loss_weights": np.asarray([True, False, True]),
            },
        )
        shares = build_ledger(batch).get("update_share")
        first, second = 2 * 0.5, 3 * 0.5
        assert shares[:2] == pytest.approx([first / (first + second), second / (first + second)])
        assert np.isnan(shares[2])

    def test_discarded_rows_carry_nothing(self):
        batch = two_rows(
            tracks={"logprobs": np.full(10, -1, np.float32)},
            row_floats={"advantages": np.asarray([1.0, 1.0])},
            row_lists={"discard_reasons": [None, "canceled"]},
        )
        assert build_ledger(batch).get("update_share").tolist() == [1.0, 0.0]

    def test_a_step_that_updates_nothing_has_no_shares(self):
        batch = two_rows(
            tracks={"logprobs": np.full(10, -1, np.float32)}, row_floats={"advantages": np.zeros(2)}
        )
        assert "update_share" not in build_ledger(batch).columns


class TestShape:
    def test_columns_that_are_unknown_throughout_are_left_out(self):
        columns = set(build_ledger(two_rows()).columns)
        assert not columns & {"reward", "source", "version_min", "mean_logprob", "discard_reason", "success"}

    def test_every_column_is_one_of_the_schema_and_survives_packing(self):
        batch = two_rows(
            tracks={"logprobs": track(*[-0.5] * 10), "versions": np.full(10, 3, np.int32)},
            row_floats={"rewards": np.asarray([1.0, 0.0]), "advantages": np.asarray([1.0, -1.0])},
            row_lists={"sources": ["math", None], "reward_statuses": ["OK", "timeout"]},
            train_version=4,
        )
        ledger = build_ledger(batch)
        names = [column.name for column in COLUMNS]
        assert set(ledger.columns) <= set(names)
        read = unpack(pack(ledger))
        assert [read.row(b) for b in range(2)] == [ledger.row(b) for b in range(2)]

    def test_a_batch_without_rows_gives_an_empty_ledger(self):
        empty = make_packed_batch([], [], group_ids=np.zeros(0, np.int64))
        assert build_ledger(empty).n_rows == 0


class TestCompleteFromTranscripts:
    def test_traced_rows_get_what_only_text_tells_and_the_others_stay_unknown(self):
        transcript = make_transcript(
            [("user", "Hi"), ("assistant", "a"), ("tool", "Error: no such flight"), ("assistant", "done")],
            thinking="let me see",
            calls=[("search", {"q": "x"})],
        )
        ledger = complete_from_transcripts(build_ledger(two_rows()), {1: transcript})
        assert ledger.get("n_turns").tolist() == [2, 2]
        assert ledger.get("n_tool_calls").tolist() == [NULL_INT, 1]
        assert ledger.get("n_tool_errors").tolist() == [NULL_INT, 1]
        assert ledger.get("n_thinking")[0] == NULL_INT

    def test_thinking_tokens_are_those_whose_text_lies_inside_it(self):
        transcript = make_transcript([("user", "Hi"), ("assistant", "done")], thinking="abcde abcde")
        turn = transcript.turns[1]
        texts = list(transcript.token_texts())[turn.start : turn.stop]
        at = turn.raw.index("abcde abcde")
        ends = np.cumsum([len(text) for text in texts])
        starts = ends - [len(text) for text in texts]
        expected = int(((starts >= at) & (starts < at + 11)).sum())
        ledger = complete_from_transcripts(build_ledger(two_rows()), {0: transcript})
        assert ledger.get("n_thinking")[0] == expected > 0

    def test_without_transcripts_nothing_changes(self):
        ledger = build_ledger(two_rows())
        assert complete_from_transcripts(ledger, {}) is ledger


def ledger_of(n: int = 3, **columns: Any) -> Ledger:
    ones = np.ones((n, 2), int)
    batch = RolloutBatch(input_ids=ones, attention_mask=ones, loss_mask=ones, **columns)
    return build_ledger(capture([batch], step=1, split="rollout"))


class TestTexts:
    def test_engines_answers_and_ground_truths_are_columns(self):
        """Seen once: engine_ids were shown nowhere."""
        ledger = ledger_of(
            engine_ids=["a", None, 2], parsed_answers=["4", 5, None], ground_truths=[4, "5", None]
        )
        assert ledger.get("engine").tolist() == ["a", None, "2"]
        assert ledger.get("answer").tolist() == ["4", "5", None]
        assert ledger.get("ground_truth").tolist() == ["4", "5", None]

    def test_long_texts_are_cut(self):
        cut = ledger_of(ground_truths=["x" * 1000] * 3).get("ground_truth")[0]
        assert len(cut) == SHORT and cut.endswith("…")

    def test_what_was_not_given_has_no_column(self):
        assert not {"engine", "answer", "ground_truth"} & set(ledger_of().columns)


class TestNamedValues:
    def test_timings_of_single_turns_take_no_column(self):
        ledger = ledger_of(timings=[{"turn/0": 2.0, "tool/0": 1.0, "generate": 3.0}, None, None])
        assert [name for name in ledger.columns if name.startswith("timing/")] == ["timing/generate"]

    def test_timings_are_seconds_and_unknown_where_a_row_has_none(self):
        ledger = ledger_of(timings=[{"generate": 2, "tool": 0.5}, None, {"generate": "soon"}])
        assert np.array_equal(ledger.get("timing/generate"), [2.0, np.nan, np.nan], equal_nan=True)
        assert ledger.get("timing/tool")[0] == 0.5

    def test_extras_are_numbers_where_all_of_them_are_and_texts_elsewhere(self):
        ledger = ledger_of(extras=[{"level": 3, "topic": "sets"}, {"level": True}, {"topic": 7}])
        assert np.array_equal(ledger.get("extra/level"), [3.0, 1.0, np.nan], equal_nan=True)
        assert ledger.get("extra/topic").tolist() == ["sets", None, "7"]

    def test_whole_numbers_that_no_float_holds_stay_as_they_are(self):
        far = 2**60 + 3
        ledger = unpack(pack(ledger_of(extras=[{"seed": far}, {"seed": 7}, {}])))
        assert [ledger.row(b).get("extra/seed") for b in range(3)] == [far, 7, None]

    def test_a_number_is_written_alike_among_texts_whatever_step_it_is_of(self):
        odd = [{"level": value} for value in (True, 1.0, 2.5, float("inf"), 10**15, "x")]
        together = ledger_of(6, extras=odd).get("extra/level").tolist()
        assert together == ["1", "1", "2.5", "Infinity", "1000000000000000", "x"]

    def test_an_infinite_number_is_one_and_not_unknown(self):
        ledger = unpack(
            pack(
                ledger_of(rewards=[float("inf")] * 3, extras=[{"x": float("-inf")}, {}, {"x": float("nan")}])
            )
        )
        assert ledger.row(0)["reward"] == float("inf")
        assert [ledger.row(b)["extra/x"] for b in range(3)] == [float("-inf"), None, None]

    def test_there_are_only_so_many_names(self):
        ledger = ledger_of(extras=[{f"x{i}": i for i in range(100)}] * 3)
        assert sum(name.startswith("extra/") for name in ledger.columns) == MAX_NAMES

    def test_both_kinds_of_extras_survive_packing(self):
        ledger = ledger_of(extras=[{"level": 3, "topic": "sets"}, {}, None])
        again = unpack(pack(ledger))
        assert np.array_equal(again.get("extra/level"), ledger.get("extra/level"), equal_nan=True)
        assert again.get("extra/topic").tolist() == ["sets", None, None]
        assert again.row(0)["extra/level"] == 3.0 and again.row(1)["extra/level"] is None


class TestEqualCompletions:
    def test_the_first_row_of_the_group_with_the_same_tokens(self):
        ids = np.asarray([[1, 5, 6], [1, 5, 6], [1, 5, 7], [1, 5, 6], [1, 5, 6]])
        sampled = np.tile([0, 1, 1], (5, 1))
        batch = RolloutBatch(
            input_ids=ids,
            attention_mask=np.ones((5, 3), int),
            loss_mask=sampled,
            group_ids=[0, 0, 0, 1, 1],
        )
        ledger = build_ledger(capture([batch], step=1, split="rollout"))
        assert ledger.get("equal_to").tolist() == [0, 0, 2, 0, 0]

    def test_a_row_without_sampled_tokens_is_equal_to_none(self):
        ledger = ledger_of(n=2, response_mask=[[1, 1], [0, 0]], group_ids=[0, 0])
        assert [ledger.row(row)["equal_to"] for row in range(2)] == [0, None]


class TestSpans:
    SPANS = (
        {"kind": "generate", "start": 1000.0, "end": 1002.0, "turn": 0},
        {"kind": "tool", "start": 1002.0, "end": 1002.5, "turn": 0, "name": "search"},
        {"kind": "score", "start": 1004.0, "end": 1005.0, "name": "judge"},
    )

    def test_their_sums_are_columns_and_they_themselves_one_text(self):
        ledger = ledger_of(timings=[list(self.SPANS), list(self.SPANS[:1]), None])
        assert ledger.get("timing/generate")[:2].tolist() == [2.0, 2.0]
        assert ledger.get("timing/tool")[0] == 0.5 and np.isnan(ledger.get("timing/tool")[1])
        assert ledger.get("timing/start")[0] == 1000.0
        assert ledger.get("timing/score/judge")[0] == 1.0
        assert [one["kind"] for one in read_packed(ledger.get("timings")[0])] == ["generate", "tool", "score"]
        assert ledger.get("timings")[2] is None

    def test_a_step_of_many_rollouts_holds_fewer_of_each(self, monkeypatch):
        monkeypatch.setattr("rollout_traces.model.spans.MOST_OF_A_STEP", 40)
        many = [{"kind": "tool", "start": float(at), "end": at + 1.0 + at % 3} for at in range(30)]
        ledger = ledger_of(timings=[many] * 3)
        read = unpacked(ledger.get("timings")[0])
        assert (read.start, read.n, read.n_held) == (0.0, 30, 16)
        assert ledger.get("timing/tool")[0] == sum(one["end"] - one["start"] for one in many)
