"""Where samples of a group share tokens and where they part, and what tells winners from losers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollout_traces.inspector.pages.group import prefix_tree, shared_length, telling_phrases

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

    def test_no_sequence_is_refused(self):
        with pytest.raises(ValueError, match="no sequences"):
            prefix_tree([])

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
