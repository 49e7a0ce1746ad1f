"""What tells winners from losers."""

from __future__ import annotations

from rollout_traces.inspector.pages.group import telling_phrases


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
