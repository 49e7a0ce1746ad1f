"""What rows of verifiers hold."""

from __future__ import annotations

import pytest

from rollout_traces.sources.formats.verifiers_results import _listed


@pytest.mark.parametrize(
    ("value", "expected"),
    [([1], [1]), ("[1, 2]", [1, 2]), ([], None), ("no JSON", None), ({"a": 1}, None), (None, None)],
)
def test_messages_of_verifiers_are_a_list_or_one_as_json(value, expected):
    assert _listed(value) == expected
