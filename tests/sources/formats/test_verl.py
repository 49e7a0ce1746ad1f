"""What rows of verl are told apart by."""

from __future__ import annotations

import pytest

from rollout_traces.sources.formats.verl import _group_and_episode


@pytest.mark.parametrize(
    ("uid", "group", "episode"),
    [
        ("ab12_3_0", "ab12", "ab12_3"),
        ("a_b_3_1", "a_b", "a_b_3"),
        ("ab12", "ab12", None),
        ("ab12_3", "ab12_3", None),
        ("a_b_c", "a_b_c", None),
        ("a_3_c", "a_3_c", None),
    ],
)
def test_outputs_of_one_rollout_of_verl_share_its_number(uid, group, episode):
    assert _group_and_episode(uid) == (group, episode)
