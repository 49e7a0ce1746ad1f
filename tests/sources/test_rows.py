"""Rollouts as dumps have them: what prompts they answer, who they are, and the batch that they make."""

from __future__ import annotations

import math

import numpy as np
import pytest

from rollout_traces.model.model_calls import MergedRow
from rollout_traces.sources.rows import (
    RolloutRow,
    add_tokens,
    batch_of,
    call_of,
    identity_of,
    number,
    numbers,
    scalars,
)

ASKED = {"role": "user", "content": "6 x 7?"}
ANSWERED = {"role": "assistant", "content": "42"}


def key(**known: object) -> str | None:
    return RolloutRow(0, **known).key_of_prompt()


class TestThePromptsKey:
    def test_the_one_given_goes_before_all(self) -> None:
        assert key(prompt_key="p", prompt_text="a", messages=[ASKED]) == "p"

    def test_one_text_is_one_prompt(self) -> None:
        assert key(prompt_text="a") == key(prompt_text="a", messages=[ASKED]) != key(prompt_text="b")
        assert key(prompt_text="") is not None

    def test_messages_are_the_prompt_up_to_the_first_answer(self) -> None:
        other = {"role": "assistant", "content": "43"}
        assert (
            key(messages=[ASKED, ANSWERED])
            == key(messages=[ASKED, other])
            == key(messages=[ASKED])
            is not None
        )
        assert key(messages=[ASKED, ANSWERED, ASKED]) == key(messages=[ASKED])
        assert key(messages=[{**ASKED, "content": "other"}, ANSWERED]) != key(messages=[ASKED])

    def test_as_many_messages_as_the_dump_says_are_the_prompt(self) -> None:
        told = [ASKED, ANSWERED, {"role": "user", "content": "sure?"}]
        assert key(messages=told, n_prompt_messages=3) != key(messages=told, n_prompt_messages=1)
        assert key(messages=told, n_prompt_messages=1) == key(messages=told)

    def test_none_is_known_without_text_or_before_the_first_message(self) -> None:
        assert key() is None and key(messages=[]) is None and key(input_ids=[1, 2]) is None
        assert key(messages=[ANSWERED]) is None
        assert key(messages=[ASKED], n_prompt_messages=0) is None


class TestWhatExtrasName:
    def test_a_source_and_an_engine_are_taken_from_the_names_that_dumps_have_for_them(self) -> None:
        row = RolloutRow(0, extras={"data_source": "gsm8k", "engine": "vllm-1", "level": 3})
        assert (row.source, row.engine, row.extras) == ("gsm8k", "vllm-1", {"level": 3})

    def test_one_that_was_given_stays_and_what_says_the_same_goes(self) -> None:
        row = RolloutRow(0, source="math", extras={"data_source": "math", "dataset": "math-2", "engine": 4})
        assert (row.source, row.engine, row.extras) == ("math", None, {"dataset": "math-2", "engine": 4})


class TestTheConversation:
    def test_text_alone_is_a_question_and_an_answer(self) -> None:
        assert RolloutRow(0, prompt_text="6 x 7?", reply_text="42").conversation() == [ASKED, ANSWERED]
        assert RolloutRow(0, prompt_text="6 x 7?").conversation() == [ASKED]
        assert RolloutRow(0, reply_text="42").conversation() == [ANSWERED]

    def test_marked_text_is_the_messages_that_it_marks(self) -> None:
        marked = "<|im_start|>system\nBrief.<|im_end|>\n<|im_start|>user\n6 x 7?<|im_end|>\n<|im_start|>assistant\n"
        said = RolloutRow(0, prompt_text=marked, reply_text="42<|im_end|>").conversation()
        assert [(m["role"], m["content"]) for m in said] == [
            ("system", "Brief."),
            ("user", "6 x 7?"),
            ("assistant", "42"),
        ]

    def test_messages_go_before_text(self) -> None:
        assert RolloutRow(0, messages=[ASKED], prompt_text="other").conversation() == [ASKED]
        assert RolloutRow(0).conversation() is None


class TestTheIdentity:
    def test_is_what_the_writer_calls_it_and_then_one_of_a_kind(self) -> None:
        first, again = RolloutRow(0, identity="a", reward=1.0), RolloutRow(5, identity="a")
        assert identity_of(first) == identity_of(again)
        assert identity_of(first)[1] is False
        assert identity_of(RolloutRow(0, identity="b")) != identity_of(first)

    @pytest.mark.parametrize(
        "other",
        [
            {"step": 1},
            {"split": "eval-rollout"},
            {"group": 2},
            {"reward": 0.5},
            {"reply_text": "43"},
            {"input_ids": [2]},
        ],
    )
    def test_else_is_its_content_which_others_may_share(self, other: dict) -> None:
        known = {"step": 0, "group": 1, "reward": 1.0, "reply_text": "42", "input_ids": [1]}
        digest, shared = identity_of(RolloutRow(**known))
        assert shared and identity_of(RolloutRow(**known)) == (digest, True)
        assert identity_of(RolloutRow(**{**known, **other}))[0] != digest

    def test_content_that_json_cannot_write_has_one_too(self) -> None:
        deep: list = []
        for _ in range(300):
            deep = [deep]
        assert identity_of(RolloutRow(0, group=deep)) == identity_of(RolloutRow(0, group=deep))


class TestNumbers:
    @pytest.mark.parametrize(
        ("value", "read"),
        [(1, 1.0), (True, 1.0), (False, 0.0), ("0.5", 0.5), (" -1e-3 ", -0.001), (".5", 0.5), ("7.", 7.0)],
    )
    def test_are_read(self, value: object, read: float) -> None:
        assert number(value) == read

    @pytest.mark.parametrize("value", [None, "", "five", "0x10", "1_000", "1 2", [1], {}, 10**400])
    def test_what_is_none_is_none(self, value: object) -> None:
        assert number(value) is None

    def test_infinity_may_be_spelled(self) -> None:
        assert number("Infinity") == math.inf and number("-Infinity") == -math.inf

    def test_of_a_mapping_are_those_that_are_numbers(self) -> None:
        given = {"a": 1, "b": "x", "c": 0.5, "d": None, "e": True}
        assert numbers(given, but=("c",)) == {"a": 1.0, "e": 1.0}
        assert scalars(given, but=("c",)) == {"a": 1, "b": "x", "e": True}
        assert numbers(None) == scalars([1]) == {}


class TestCalls:
    def test_logprobs_are_known_where_there_is_one_for_each_id(self) -> None:
        known = call_of([1], [2, 3], [-0.5, None])
        assert known.logprobs[0] == -0.5 and math.isnan(known.logprobs[1])
        assert call_of([1], [2, 3], [-0.5]).logprobs is None
        assert call_of([1], [2, 3], None).logprobs is None

    def test_merged_ones_give_a_row_its_ids_its_mask_and_its_logprobs(self) -> None:
        row = RolloutRow(0)
        nan = float("nan")
        add_tokens(row, MergedRow([1, 2], [3, 4, 5], [1, 0, 1], logprobs=[-0.5, nan, -0.25]))
        assert row.input_ids == [1, 2, 3, 4, 5]
        assert row.response_mask == row.loss_mask == [0, 0, 1, 0, 1]
        assert row.tracks["logprobs"] == [None, None, -0.5, None, -0.25]

    def test_merged_ones_without_any_logprob_give_none(self) -> None:
        row = RolloutRow(0)
        add_tokens(row, MergedRow([1], [2], [1], logprobs=[float("nan")]))
        assert "logprobs" not in row.tracks


class TestTheBatch:
    def test_rows_are_padded_on_the_right(self) -> None:
        rows = [RolloutRow(0, input_ids=[5, 6, 7], response_mask=[0, 1, 1]), RolloutRow(0, input_ids=[8])]
        batch = batch_of([*rows, RolloutRow(0, reply_text="hi")], decodes_tokens=True)
        assert np.asarray(batch.input_ids).tolist() == [[5, 6, 7], [8, 0, 0], [0, 0, 0]]
        assert np.asarray(batch.attention_mask).astype(int).tolist() == [[1, 1, 1], [1, 0, 0], [0, 0, 0]]

    def test_each_mask_stands_in_for_the_other(self) -> None:
        rows = [
            RolloutRow(0, input_ids=[1, 2, 3], response_mask=[0, 1, 1], loss_mask=[0, 1, 0]),
            RolloutRow(0, input_ids=[1, 2, 3], response_mask=[0, 0, 1]),
            RolloutRow(0, input_ids=[1, 2, 3], loss_mask=[0, 1, 0]),
            RolloutRow(0, input_ids=[1, 2, 3]),
        ]
        batch = batch_of(rows, decodes_tokens=True)
        assert np.asarray(batch.loss_mask).astype(int).tolist() == [
            [0, 1, 0],
            [0, 0, 1],
            [0, 1, 0],
            [0, 0, 0],
        ]
        assert np.asarray(batch.response_mask).astype(int).tolist() == [
            [0, 1, 1],
            [0, 0, 1],
            [0, 1, 0],
            [0, 0, 0],
        ]
        assert batch_of(rows[2:], decodes_tokens=True).response_mask is None

    def test_messages_go_along_where_the_dump_has_them_or_nothing_else_is_known(self) -> None:
        own = RolloutRow(0, input_ids=[1], loss_mask=[1], messages=[ASKED])
        read = RolloutRow(0, input_ids=[1], loss_mask=[1], messages=[ANSWERED], messages_are_given=False)
        text = RolloutRow(0, prompt_text="6 x 7?")
        told = batch_of([own, read, text], decodes_tokens=True).messages
        assert list(told) == [[ASKED], None, [ASKED]]
        assert list(batch_of([own, read], decodes_tokens=False).messages) == [[ASKED], [ANSWERED]]

    def test_rows_of_one_prompt_are_a_group_unless_the_dump_has_groups(self) -> None:
        rows = [
            RolloutRow(0, prompt_text="a"),
            RolloutRow(0, prompt_text="b"),
            RolloutRow(0, prompt_text="a"),
            RolloutRow(0, input_ids=[1]),
            RolloutRow(0, prompt_text="a", group=0),
        ]
        first, second, third, unknown, given = batch_of(rows, decodes_tokens=True).group_ids
        assert first == third != second
        assert (unknown, given) == (-1, 0)

    def test_a_number_that_one_row_knows_is_unknown_of_the_others(self) -> None:
        rows = [
            RolloutRow(0, reply_text="a", reward=0.5, components={"style": 1.0}, metrics={"n": 2.0}),
            RolloutRow(0, reply_text="b", advantage=0.25, train_version=7, extras={"x": 1}),
        ]
        batch = batch_of(rows, decodes_tokens=True)
        assert np.ma.filled(batch.rewards, -9.0).tolist() == [0.5, -9.0] and batch.raw_rewards is None
        assert np.ma.filled(batch.advantages, -9.0).tolist() == [-9.0, 0.25]
        named = {**batch.reward_components, **batch.sample_metrics}
        assert {
            name: np.nan_to_num(np.asarray(values, float), nan=-9.0).tolist()
            for name, values in named.items()
        } == {
            "style": [1.0, -9.0],
            "n": [2.0, -9.0],
        }
        assert batch.train_version == 7 and list(batch.extras) == [None, {"x": 1}]

    def test_tracks_are_padded_with_what_says_unknown(self) -> None:
        rows = [
            RolloutRow(
                0, input_ids=[1, 2], tracks={"logprobs": [None, -0.5], "versions": [3, 4], "other": [1, 1]}
            ),
            RolloutRow(0, input_ids=[1, 2, 3]),
        ]
        batch = batch_of(rows, decodes_tokens=True)
        assert np.asarray(batch.versions).tolist() == [[3, 4, -1], [-1, -1, -1]]
        assert np.ma.getmaskarray(batch.logprobs).tolist() == [[False, False, True], [True, True, True]]
        assert np.isnan(batch.logprobs[0, 0]) and batch.logprobs[0, 1] == -0.5

    @pytest.mark.parametrize("ids", [[1.0, 2.5], [1.0, float("nan")], [1.0, float("inf")]])
    def test_ids_that_are_no_whole_numbers_are_refused(self, ids: list[float]) -> None:
        with pytest.raises(ValueError, match=r"input_ids: seen (2\.5|nan|inf), expected whole numbers"):
            batch_of([RolloutRow(0, input_ids=ids)], decodes_tokens=True)

    def test_whole_numbers_written_as_floats_are_ids(self) -> None:
        batch = batch_of([RolloutRow(0, input_ids=[1.0, 2.0])], decodes_tokens=True)
        assert np.asarray(batch.input_ids).tolist() == [[1, 2]]
