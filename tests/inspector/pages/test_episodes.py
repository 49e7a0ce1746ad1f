"""Who left whom in an episode, and how, read off ids and tokens."""

from __future__ import annotations

import numpy as np
import pytest

from rollout_traces.decode.decoder import TranscriptDecoder
from rollout_traces.inspector.pages.episodes import (
    MOST_DIFFERING,
    _differing,
    _seconds,
    depths,
    leaving,
    parent_rows,
)
from rollout_traces.store.rows import TraceRow
from tests.generator import Conversation, encode, tiny_tokenizer
from tests.inspector.agents import ROWS, episode_conversations


class TestWhoLeftWhom:
    def test_rows_name_the_one_they_left_by_its_sample_id(self):
        assert parent_rows(["a", "b", "c"], [None, "a", "b"]) == [None, 0, 1]

    def test_an_unknown_one_and_a_circle_leave_none(self):
        assert parent_rows(["a", "b"], ["z", None]) == [None, None]
        found = parent_rows(["a", "b", "c"], ["b", "a", "a"])
        assert depths(found)
        assert len(depths(found)) == 3
        assert parent_rows(["a"], ["a"]) == [None]

    def test_of_rows_of_one_id_the_first_is_meant(self):
        assert parent_rows(["a", "a", "b"], [None, None, "a"]) == [None, None, 0]

    def test_the_tree_is_walked_parents_first(self):
        assert depths([None, 0, 1, 0, None]) == [(0, 0), (1, 1), (2, 2), (3, 1), (4, 0)]

    def test_a_long_chain_is_walked_too(self):
        chain = [None, *range(5000)]
        assert depths(chain)[-1] == (5000, 5000)


@pytest.fixture(scope="module")
def transcripts():
    tokenizer = tiny_tokenizer()
    decoder = TranscriptDecoder(tokenizer)
    decoded = {}
    for name, messages in zip(ROWS, episode_conversations("Porto", 1886), strict=True):
        row = encode(tokenizer, Conversation(tuple(messages)), tools=None)
        decoded[name] = decoder.decode(row.input_ids, loss_mask=row.sampled.astype(int))
    return decoded


class TestHowItLeft:
    @pytest.mark.parametrize(
        ("row", "kind", "left_at", "back_at"),
        [
            ("researcher", "sub_agent", 2, 3),
            ("branch", "branch", 4, None),
            ("retry", "retry", 2, None),
            ("compacted", "compaction", 4, None),
        ],
    )
    def test_the_tokens_tell(self, transcripts, row, kind, left_at, back_at):
        left = leaving(transcripts[row], transcripts["lead"])
        assert (left.kind, left.left_at, left.back_at) == (kind, left_at, back_at)

    def test_a_row_that_begins_with_all_of_the_other_goes_on(self, transcripts):
        lead = transcripts["lead"]
        ids = np.concatenate([lead.tokens.input_ids, lead.tokens.input_ids[-5:]])
        tokenizer = tiny_tokenizer()
        longer = TranscriptDecoder(tokenizer).decode(ids, loss_mask=np.ones(len(ids), int))
        assert leaving(longer, lead).kind == "continued"

    def test_without_the_tokens_of_both_it_is_unobserved(self, transcripts):
        assert leaving(None, transcripts["lead"]).kind == "unknown"
        assert leaving(transcripts["lead"], None).kind == "unknown"


@pytest.mark.parametrize(
    ("values", "seconds"),
    [
        (
            {"timing/generate": 1.5, "timing/tools": 2, "timing/start": 1e9, "reward": 3.0, "source": "web"},
            3.5,
        ),
        ({"timing/started": 1e9, "timing/note": "slow", "reward": 3.0}, None),
    ],
)
def test_the_seconds_of_a_row_are_its_timings_without_when_it_began(values, seconds):
    assert _seconds(TraceRow("a", "1", "r1", "rollout", 1, values)) == seconds


def test_rows_differ_by_what_the_trainer_says_of_them():
    def row(**values):
        named = {name.replace("_", "/", 1): value for name, value in values.items()}
        return TraceRow("a", "1", "r1", "rollout", 1, {"source": "web", "reward": 1.0, **named})

    assert _differing([]) == [] == _differing([row(extra_role="a")])
    rows = [row(extra_role="a", extra_same=1, engine="x"), row(extra_role="b", extra_same=1, engine="x")]
    assert _differing(rows) == ["extra/role"]
    rows[0].values["reward"] = 0.0
    rows[1].values["engine"] = "y"
    assert _differing(rows) == ["engine", "extra/role"]
    many = [row(**{f"extra_{n}": at for n in range(MOST_DIFFERING + 2)}) for at in range(2)]
    assert _differing(many) == sorted(f"extra/{n}" for n in range(MOST_DIFFERING + 2))[:MOST_DIFFERING]
