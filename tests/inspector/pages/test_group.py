"""Where samples of a group share tokens and where they part, and what tells winners from losers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollout_traces.errors import StoreError
from rollout_traces.inspector.pages.group import (
    Action,
    Member,
    _phrases,
    actions,
    group,
    prefix_tree,
    telling_phrases,
    turns_of,
)
from rollout_traces.metrics.shapes import shared_length
from tests.builders import make_transcript

SEQUENCES = st.lists(st.lists(st.integers(0, 2), max_size=8), min_size=1, max_size=6)


def arrays(*sequences):
    return [np.asarray(sequence, np.int64) for sequence in sequences]


def leaves(branch, before=()):
    path = (*before, branch)
    ended = set(branch.members) - {member for child in branch.children for member in child.members}
    yield from ((member, path) for member in ended)
    for child in branch.children:
        yield from leaves(child, path)


class TestPrefixTree:
    def test_samples_part_where_their_tokens_do(self):
        root = prefix_tree(arrays([1, 2, 3, 4], [1, 2, 3, 5], [1, 2, 9]))
        assert (root.start, root.stop, root.members) == (0, 2, (0, 1, 2))
        assert [(child.members, child.start, child.stop) for child in root.children] == [
            ((0, 1), 2, 3),
            ((2,), 2, 3),
        ]

    def test_a_sample_that_ends_early_has_no_branch_of_its_own(self):
        root = prefix_tree(arrays([1, 2], [1, 2, 3]))
        assert root.stop == 2
        assert [child.members for child in root.children] == [(1,)]

    def test_equal_samples_never_part(self):
        root = prefix_tree(arrays([4, 5], [4, 5]), first=1)
        assert (root.start, root.stop, root.children) == (1, 2, ())

    @given(SEQUENCES)
    def test_every_sample_is_spelled_by_its_way_from_the_root(self, sequences):
        given_arrays = arrays(*sequences)
        found = dict(leaves(prefix_tree(given_arrays)))
        assert set(found) == set(range(len(sequences)))
        for member, path in found.items():
            assert path[-1].stop == len(sequences[member])
            for branch in path:
                spelled = {tuple(sequences[other][branch.start : branch.stop]) for other in branch.members}
                assert len(spelled) == 1

    @given(SEQUENCES)
    def test_what_all_share_is_a_common_prefix_and_the_longest(self, sequences):
        stop = shared_length(arrays(*sequences))
        assert len({tuple(sequence[:stop]) for sequence in sequences}) == 1
        longer = {tuple(sequence[: stop + 1]) for sequence in sequences}
        assert len(longer) > 1 or min(map(len, sequences)) == stop


class TestTellingPhrases:
    def test_a_phrase_of_one_side_is_found_with_its_shares(self):
        winners = ["so let me verify it", "first let me verify that", "it is 4"]
        losers = ["it is 5", "maybe it is 6"]
        won, lost = telling_phrases(winners, losers)
        assert won[0].text == "let me verify"
        assert (round(won[0].winners, 2), won[0].losers) == (0.67, 0.0)
        assert (lost[0].text, lost[0].losers) == ("it is", 1.0)

    def test_a_longer_phrase_stands_for_the_shorter_ones_in_it(self):
        won, _ = telling_phrases(["a b c"], ["d"])
        assert [phrase.text for phrase in won] == ["a b c"]

    def test_what_both_say_alike_tells_nothing(self):
        assert telling_phrases(["the same"], ["the same"]) == ((), ())

    def test_without_a_side_there_is_nothing_to_tell(self):
        assert telling_phrases([], ["x"]) == ((), ())

    def test_signs_alone_are_no_phrase(self):
        assert telling_phrases(["! ! !"], ["x"])[0] == ()


class TestTheAnswer:
    def test_has_every_sample_best_first_those_of_the_ledger_too(self, ask):
        found = ask(group, step=1, group=0)
        assert [member["values"]["reward"] for member in found["members"]] == [1.0, 0.5, 0.0, None]
        assert [member["sample"] for member in found["members"]] == [0, 2, 1, 3]
        assert [member["id"] is not None for member in found["members"]] == [True, False, True, False]
        assert (found["n_rollouts"], found["tied"], found["mean"], found["groups"]) == (4, False, 0.5, [0, 1])
        assert found["components"] == ["component/format"]

    def test_is_of_the_group_with_the_most_kept_where_none_is_named(self, ask):
        assert ask(group, step=1)["group"] == 0
        tied = ask(group, step=1, group=1)
        assert (tied["group"], tied["tied"], len(tied["members"])) == (1, True, 4)

    def test_a_group_that_there_is_not_is_refused(self, ask):
        with pytest.raises(StoreError, match="step 1 has no group 7"):
            ask(group, step=1, group=7)

    def test_its_tree_begins_where_the_prompt_ends_and_parts_where_answers_do(self, ask):
        tree = ask(group, step=1, group=0)["tree"]
        assert tree["prompt_tokens"] > 0 and tree["root"]["members"] == [0, 2]
        assert tree["root"]["mean"] == 0.5
        assert [child["mean"] for child in tree["root"]["children"]] == [1.0, 0.0]
        assert "boxed" in tree["root"]["children"][0]["text"]

    def test_its_phrases_are_of_those_above_its_mean_against_those_below(self, ask):
        phrases = ask(group, step=1, group=0)["phrases"]
        assert (phrases["n_winners"], phrases["n_losers"]) == (1, 1)
        assert any("boxed" in phrase["text"] for phrase in phrases["winners"])
        assert any("sorry" in phrase["text"] for phrase in phrases["losers"])

    def test_each_sample_that_was_kept_has_its_turns_and_what_it_did(self, ask):
        best = ask(group, step=1, group=0)["members"][0]
        assert [turn["role"] for turn in best["turns"]] == ["user", "assistant"]
        assert all(turn["n"] > 0 and not turn["failed"] for turn in best["turns"])
        assert [(action["kind"], action["turn"]) for action in best["actions"]] == [("answer", 1)]
        assert best["actions"][0]["text"] == "It is \\boxed{42}, I cannot be wrong."
        unkept = ask(group, step=1, group=0)["members"][1]
        assert unkept["turns"] == unkept["actions"] == []


def test_phrases_are_those_of_kept_samples_above_and_below_the_mean_of_all():
    def member(reward: float | None, said: str) -> Member:
        turns = [("user", "which?"), ("assistant", said)]
        return Member({"reward": reward}, "t", make_transcript(turns))

    members = [
        member(1.0, "the red door"),
        member(1.0, "a red house"),
        member(0.0, "the blue door"),
        member(None, "no colour"),
        member(0.5, "in between"),
        Member({"reward": 0.0}),
    ]
    found = _phrases(members, [0, 1, 2, 3, 4, 5])
    assert (found.n_winners, found.n_losers) == (2, 1)
    assert found.winners[0].text == "red" and found.winners[0].winners == 1.0
    assert _phrases(members, [0]).n_losers == 0 and _phrases([], []).n_winners == 0


class TestActions:
    made = make_transcript(
        [("user", "?"), ("assistant", "look"), ("tool", "17"), ("assistant", " done ")],
        calls=[("f", {"a": 1})],
    )

    def test_are_calls_and_the_last_answer(self):
        assert actions(self.made) == [
            Action("call", "f", '{"a":1}', False, 3),
            Action("answer", "answer", "done", False, 3),
        ]

    def test_long_texts_are_cut_with_a_mark_and_differ_where_the_whole_does(self):
        """Seen once: an answer began within a word, and calls that differ behind their beginning had one letter."""
        found = [
            actions(
                make_transcript(
                    [("user", "?"), ("assistant", end + "words " * 40)], calls=[("f", {"a": "b" * 200 + end})]
                )
            )
            for end in "xy"
        ]
        for call, answer in found:
            assert call.text.startswith('{"a":"bbb') and call.text.endswith("b…")
            assert answer.text.startswith("…") and answer.text.endswith("words")
        assert [a.text for a in found[0]] == [b.text for b in found[1]]
        assert all(a.whole and a.whole != b.whole for a, b in zip(*found, strict=True))

    def test_a_call_fails_with_its_result_or_where_it_was_not_understood(self):
        call = replace(self.made.turns[3].tool_calls[0], id="c1")
        turns = (
            self.made.turns[0],
            replace(
                self.made.turns[1],
                tool_calls=(call, replace(call, id="c2", name="", arguments=None, raw="f(")),
            ),
            replace(self.made.turns[2], tool_call_id="c1"),
            replace(self.made.turns[3], tool_calls=()),
        )
        made = replace(self.made, turns=turns)
        assert [(each.name, each.text, each.failed) for each in actions(made)] == [
            ("f", '{"a":1}', False),
            ("unparsed", "f(", True),
            ("answer", "done", False),
        ]
        assert [each.failed for each in actions(made, frozenset({2}))] == [True, True, False]
        member = Member({}, "t", made, frozenset({2}))
        assert [turn.failed for turn in turns_of(member)] == [False, True, True, False]
        assert turns_of(Member({})) == []


def test_a_group_is_of_one_attempt_and_its_mean_of_the_rewards_that_count(ask_resumed):
    found = ask_resumed(group, step=1, group=0)
    assert (found["mean"], found["n_rollouts"], found["n_not_counted"]) == (0.75, 4, 2)
    assert [member["values"]["reward"] for member in found["members"]] == ["Infinity", 1.0, 0.5, 0.0]
    assert ask_resumed(group, step=2, group=0)["n_rollouts"] == 4, (
        "a step that no newer attempt wrote is shown"
    )
