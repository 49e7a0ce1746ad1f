"""What a part of a hand-over says of its rows, before anything is copied."""

from __future__ import annotations

import base64
from pathlib import Path

import numpy as np
import pytest

from rollout_traces.capture import part as part_module
from rollout_traces.capture.host_copy import capture
from rollout_traces.capture.part import CapturedPart, GroupNumbers, find_rows, host_array, plain_images
from rollout_traces.errors import BatchError
from rollout_traces.model.batch import ListElement, RolloutBatch

IDS = np.asarray([[5, 6, 7, 8], [5, 9, 0, 0]])
ATTENDED = np.asarray([[1, 1, 1, 1], [1, 1, 0, 0]])
LOSS = np.asarray([[0, 0, 1, 1], [0, 1, 0, 0]])


def part(versions, loss_mask=LOSS) -> CapturedPart:
    return CapturedPart(
        RolloutBatch(
            input_ids=IDS, attention_mask=ATTENDED, loss_mask=loss_mask, versions=np.asarray(versions)
        )
    )


class TestWhereTheResponseMaskComesFrom:
    def test_versions_that_mark_the_prompts_tell_it(self):
        assert part([[-1, -1, 3, 3], [-1, 3, 0, 0]]).mask_source == "versions"

    @pytest.mark.parametrize("padding", [3, 0, -1])
    def test_versions_that_mark_no_prompt_leave_it_to_the_loss_mask(self, padding):
        filled = [[3, 3, 3, 3], [3, 3, padding, padding]]
        assert part(filled).mask_source == "loss_mask"
        batch = RolloutBatch(
            input_ids=IDS,
            attention_mask=ATTENDED,
            loss_mask=LOSS,
            versions=np.asarray(filled),
            rewards=[1.0, 0.0],
        )
        packed = capture([batch], step=0, split="rollout")
        assert packed.response_mask.astype(int).tolist() == [0, 0, 1, 1, 0, 1]
        assert packed.response_mask_source == "loss_mask"

    def test_rows_that_are_sampled_from_the_first_token_on_may_have_no_negative_version(self):
        assert part(np.full((2, 4), 3), loss_mask=ATTENDED).mask_source == "versions"

    def test_a_negative_version_anywhere_marks_what_was_not_sampled(self):
        assert part([[3, 3, -1, 3], [3, 3, 0, 0]]).mask_source == "versions"


def elements(call: str, *places: int) -> list[ListElement]:
    return [ListElement(call, place) for place in places]


class TestElementsOfAList:
    def test_a_dropped_element_does_not_shift_those_after_it(self):
        assert GroupNumbers().of(elements("a", 0, 0, 2, 3, 3)).tolist() == [0, 0, 2, 3, 3]

    def test_the_lists_of_two_calls_are_different_groups(self):
        numbers = GroupNumbers()
        first = numbers.of(elements("a", 0, 2))
        second = numbers.of(elements("b", 0, 1, 2))
        assert first.tolist() == [0, 2]
        assert len({*first.tolist(), *second.tolist()}) == 5

    def test_a_rank_counts_from_its_own_first_number(self):
        assert GroupNumbers(1000).of(elements("a", 0, 2)).tolist() == [1000, 1002]


class TestGroupIds:
    def test_numbers_are_their_own_where_they_are_free_and_others_are_made_up(self):
        numbers = GroupNumbers()
        assert numbers.of([5, "a", 0, "b", 5, "a", 2**62, -7, "c"]).tolist() == [5, 0, 1, 2, 5, 0, 3, 4, 6]
        assert numbers.of([1, 0, 2**62 - 1]).tolist() == [7, 1, 2**62 - 1]

    def test_an_unknown_one_stays_unknown_every_time(self):
        assert GroupNumbers().of([-1, 0, -1]).tolist() == [-1, 0, -1]

    def test_each_call_has_a_number(self):
        numbers = GroupNumbers(7)
        assert [numbers.call(), numbers.call()] == [1, 2] and numbers.of(["a", "b"]).tolist() == [7, 8]


class TestRowsOfAPaddedPart:
    def test_tokens_that_lie_together_are_two_numbers_a_row(self):
        rows = find_rows(np.asarray([[0, 1, 1, 0], [1, 1, 1, 1], [0, 0, 0, 0], [0, 0, 0, 2]]))
        assert (rows.starts, rows.lengths, rows.mask) == ([1, 0, 0, 3], [2, 4, 0, 1], None)
        assert rows.holes == (0, 0)
        values = np.arange(16).reshape(4, 4)
        assert [rows.tokens_of(values, b).tolist() for b in range(4)] == [[1, 2], [4, 5, 6, 7], [], [15]]
        assert rows.places([True, False, True, True]) == [
            ((0, slice(1, 3)), slice(0, 2)),
            ((2, slice(0, 0)), slice(2, 2)),
            ((3, slice(3, 4)), slice(2, 3)),
        ]

    def test_holes_between_tokens_are_counted_and_left_out(self):
        mask = np.asarray([[1, 0, 0, 1, 0], [0, 1, 1, 1, 0], [0, 0, 0, 0, 0], [0, 1, 0, 1, 1]], bool)
        rows = find_rows(mask)
        assert rows.holes == (2, 3)
        values = np.arange(20).reshape(4, 5)
        assert [rows.tokens_of(values, b).tolist() for b in range(4)] == [[0, 3], [6, 7, 8], [], [16, 18, 19]]
        ((first, where), place), ((last, _), behind) = rows.places([True, False, False, True])
        assert (first, last, place, behind) == (0, 3, slice(0, 2), slice(2, 5))
        assert where.tolist() == mask[0].tolist()

    def test_rows_of_no_width_have_none(self):
        rows = find_rows(np.zeros((2, 0), int))
        assert (rows.starts, rows.lengths, rows.holes) == ([0, 0], [0, 0], (0, 0))

    def test_a_mask_that_numbers_sequences_is_refused(self):
        with pytest.raises(BatchError, match=r"attention_mask: seen values up to 2"):
            CapturedPart(RolloutBatch(input_ids=IDS, attention_mask=ATTENDED * 2, loss_mask=LOSS))


class TestValues:
    def made(self, **more) -> CapturedPart:
        return CapturedPart(RolloutBatch(input_ids=IDS, attention_mask=ATTENDED, loss_mask=LOSS, **more))

    def test_of_kept_rows_are_put_end_to_end(self):
        found = self.made(logprobs=np.asarray([[0, -1, -2, -3], [-4, -5, 9, 9]], float))
        found.keep([True, True])
        ids, logprobs = np.zeros(6, np.int64), np.zeros(6, np.float32)
        found.gather("input_ids", ids, 0)
        found.gather("logprobs", logprobs, np.nan)
        assert found.n_kept == 6 and ids.tolist() == [5, 6, 7, 8, 5, 9]
        assert logprobs.tolist() == [0, -1, -2, -3, -4, -5]
        found.keep([False, True])
        assert found.n_kept == 2
        found.keep([False, False])
        assert found.n_kept == 0

    def test_that_the_part_lacks_are_filled_in(self):
        found = self.made(advantages=np.asarray([1.0, 2.0]))
        found.keep([True, True])
        out = np.zeros(6, np.float32)
        found.gather("advantages", out, np.nan)
        assert not found.has_track("advantages") and np.isnan(out).all()

    def test_masks_are_what_is_above_zero(self):
        found = CapturedPart(
            RolloutBatch(
                input_ids=IDS, attention_mask=ATTENDED, loss_mask=np.asarray([[-1, 0, 1, 2], [0.5, 0, 9, 9]])
            )
        )
        found.keep([True, True])
        out = np.zeros(6, bool)
        found.gather("loss_mask", out, False)
        assert out.tolist() == [False, False, True, True, True, False]

    def test_of_rows_are_rewards_else_the_sums_of_token_rewards(self):
        sums = np.ma.masked_array([[1.0, 2, 3, 4], [5.0, 6, 9, 9]])
        found = self.made(token_rewards=sums).row_values["rewards"]
        assert found.tolist() == [10.0, 11.0]
        given = self.made(token_rewards=sums, rewards=np.asarray([0.5, 0.25])).row_values
        assert given["rewards"].tolist() == [0.5, 0.25]
        hidden = np.ma.masked_array(sums, [[0, 0, 0, 1], [0, 0, 1, 1]])
        assert self.made(token_rewards=hidden).row_values["rewards"].tolist() == [None, 11.0]
        assert "advantages" not in self.made(advantages=np.zeros((2, 4))).row_values

    def test_hidden_values_are_replaced(self):
        whole = np.ma.masked_array([1, 2], [False, True])
        assert host_array(whole, hidden=0).tolist() == [1, 0]
        assert host_array(whole)[0] == 1.0 and np.isnan(host_array(whole)[1])
        assert host_array([1, 2]).tolist() == [1, 2]


def test_paths_stay_paths_and_bytes_become_base64():
    found = plain_images([["a.png", Path("/b/c.png")], b"xyz", None, [bytearray(b"x"), memoryview(b"y")]])
    assert found[0] == [{"path": str(Path.cwd() / "a.png")}, {"path": "/b/c.png"}]
    assert base64.b64decode(found[1][0]["data"]) == b"xyz"
    assert found[2] is None
    assert [base64.b64decode(each["data"]) for each in found[3]] == [b"x", b"y"]


def test_what_is_no_image_is_said_in_its_place():
    found = plain_images([[1, b"x"], {"a": 1}])
    assert "seen int" in found[0][0]["left_out"]
    assert "data" in found[0][1]
    assert "seen dict" in found[1][0]["left_out"]


def test_bytes_beyond_the_budget_and_images_beyond_the_limit_are_said(monkeypatch):
    monkeypatch.setattr(part_module, "MAX_IMAGE_BYTES", 5)
    monkeypatch.setattr(part_module, "MAX_IMAGES", 2)
    found = plain_images([[b"1234", b"56", b"7"]])[0]
    assert "data" in found[0]
    assert "Give paths" in found[1]["left_out"]
    assert "1 further" in found[2]["left_out"]
    whole, beyond = plain_images([[b"12345"], [b"", b"1"]])
    assert "data" in whole[0] and "data" in beyond[0] and "Give paths" in beyond[1]["left_out"]
