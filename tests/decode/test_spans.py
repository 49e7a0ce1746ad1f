"""Segments put on token edges, where a token straddles an edge."""

from __future__ import annotations

import numpy as np
import pytest

from rollout_traces.decode.segment import Segment
from rollout_traces.decode.spans import on_token_edges

STARTS = np.asarray([0, 3, 6, 10, 12])
"""Bytes at which four tokens begin, and their end."""


@pytest.mark.parametrize(
    ("body_start", "token"),
    [(0, 0), (3, 1), (4, 1), (5, 1), (6, 2), (9, 2), (10, 3), (11, 3), (12, 4)],
)
def test_a_body_begins_with_the_token_that_holds_its_first_byte(body_start, token):
    [span] = on_token_edges([Segment("assistant", 0, body_start, 12, 12)], STARTS)
    assert (span.start, span.body_start, span.stop) == (0, token, 4)


def test_a_token_that_two_turns_share_belongs_to_the_one_it_begins_in():
    first, second = Segment("user", 0, 0, 4, 4), Segment("assistant", 4, 7, 12, 12)
    spans = on_token_edges([first, second], STARTS)
    assert [(span.start, span.body_start, span.stop) for span in spans] == [(0, 0, 2), (2, 2, 4)]


def test_a_segment_that_owns_no_token_is_left_out():
    spans = on_token_edges(
        [Segment("user", 0, 0, 4, 4), Segment("tool", 4, 4, 5, 5), Segment("assistant", 5, 5, 12, 12)], STARTS
    )
    assert [(span.role, span.start, span.stop) for span in spans] == [("user", 0, 2), ("assistant", 2, 4)]
