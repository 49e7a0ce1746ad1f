"""What a part of a hand-over says of its rows, before anything is copied."""

from __future__ import annotations

import base64
from pathlib import Path

import numpy as np
import pytest

from rollout_traces.capture import part as part_module
from rollout_traces.capture.host_copy import capture
from rollout_traces.capture.part import CapturedPart, GroupNumbers, plain_images
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
