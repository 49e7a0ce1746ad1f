"""What rows of other tools are told apart by."""

from __future__ import annotations

import pytest

from rollout_traces.sources.formats.verifiers_results import _listed
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


@pytest.mark.parametrize(
    ("value", "expected"),
    [([1], [1]), ("[1, 2]", [1, 2]), ([], None), ("no JSON", None), ({"a": 1}, None), (None, None)],
)
def test_messages_of_verifiers_are_a_list_or_one_as_json(value, expected):
    assert _listed(value) == expected
