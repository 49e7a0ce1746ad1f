"""What a part of a hand-over says of its rows, before anything is copied."""

from __future__ import annotations

import numpy as np
import pytest

from rollout_traces.capture.host_copy import capture
from rollout_traces.capture.part import CapturedPart
from rollout_traces.model.batch import RolloutBatch

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
