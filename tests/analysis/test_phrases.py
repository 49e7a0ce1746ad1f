"""Word n-grams of texts, by hand and by counting."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollout_traces.analysis import phrases as module
from rollout_traces.analysis.phrases import (
    FEWEST_TEXTS,
    LONGEST,
    MARKS,
    ends_of,
    enriched,
    ngrams_of,
    words_of,
)


class TestEnriched:
    def test_an_enriched_phrase_is_found_whole_and_once(self):
        rng = np.random.default_rng(0)
        words = [f"word{i}" for i in range(60)]
        texts = [" ".join(rng.choice(words, 12)) for _ in range(200)]
        in_a = np.arange(200) < 100
        for i in range(0, 60, 1):
            texts[i] += " I am quite sure"
        found = enriched(texts, in_a, np.arange(200), [str(i) for i in range(200)])
        assert [p.phrase for p in found] == ["i am quite sure"]
        assert (found[0].n_a, found[0].n_b) == (60, 0)

    @pytest.mark.parametrize("mark", ["---", "```", "✅"])
    def test_a_mark_that_is_no_word_is_found(self, mark):
        texts = [f"{mark} the sum is {i}" if i < 60 else f"the sum is {i}" for i in range(200)]
        assert [p.phrase for p in enriched(texts, np.arange(200) < 100, np.arange(200))] == [mark]

    def test_by_hand(self):
        texts = ["yes"] * 30 + ["no"] * 10 + ["yes"] * 10 + ["no"] * 30
        (found,) = enriched(texts, np.arange(80) < 40, np.arange(80))
        prior = 10 * 40 / 80
        odds = np.log((30 + prior) / (10 + 10 - prior)) - np.log((10 + prior) / (30 + 10 - prior))
        assert found.log_odds == pytest.approx(odds)

    def test_a_phrase_in_fewer_than_three_groups_is_not_told(self):
        texts = ["so it is"] * 20 + [f"a b{i}" for i in range(20)]
        assert enriched(texts, np.arange(40) < 20, np.r_[np.zeros(20, int), np.arange(20)]) == []

    def test_what_a_few_prompts_bring_along_is_no_phrase_however_many_rollouts_they_have(self):
        texts = [f"about trains {i}" if i < 96 else f"word{i % 7} word{i % 11}" for i in range(960)]
        groups = np.arange(960) // 16
        assert enriched(texts, np.arange(960) < 480, groups) == []
        apart = enriched(texts, np.arange(960) < 480, np.arange(960))
        assert [p.phrase for p in apart] == ["about trains"], "of independent rollouts it is"


class TestNgrams:
    @given(st.lists(st.text("ab A=c'!", max_size=30), min_size=1, max_size=25))
    def test_each_is_counted_once_a_text(self, texts):
        told = {}
        for text in texts:
            words = words_of(text)
            for gram in {
                " ".join(words[i : i + n]) for n in range(1, LONGEST + 1) for i in range(len(words) - n + 1)
            } | set(MARKS.findall(text.lower())):
                told[gram] = told.get(gram, 0) + 1
        found = ngrams_of(texts)
        counts = found.counts(np.ones(len(texts)))
        assert {found.name(i): int(counts[i]) for i in range(len(found))} == {
            gram: n for gram, n in told.items() if n >= FEWEST_TEXTS
        }

    def test_of_long_texts_both_ends_are_read(self, monkeypatch):
        monkeypatch.setattr(module, "MOST_CHARACTERS", 5_000)
        texts = [f"begins {'x ' * 4000} ends" for _ in range(5)]
        found = ngrams_of(texts)
        names = {found.name(i) for i in range(len(found))}
        assert {"begins", "ends"} <= names and len(found.words) < 5_000

    def test_a_word_that_is_cut_is_no_word(self):
        found = words_of(ends_of("Thursday is a longer day than Wednesday was", 32))
        assert found == ["thursday", "is", "a", "wednesday", "was"]

    def test_no_texts_and_no_words(self):
        assert len(ngrams_of([])) == len(ngrams_of(["", "!"])) == 0
        assert words_of("No, no! it’s (so) can't_do") == ["no", "no", "it’s", "so", "can't", "do"]


def test_what_one_side_never_writes_is_told_by_groups():
    """Seen once: a file's name in 37 of 720 answers and in none of the 792 before, and nothing said of it."""
    texts = [
        f"answer {n % 7} by hand" + (" with heuristics_cache" if n in range(0, 240, 12) else "")
        for n in range(480)
    ]
    in_a, groups = np.arange(480) < 240, np.arange(480) // 4
    assert "heuristics cache" in enriched(texts, in_a, groups)[0].phrase
    few = [text.replace(" with heuristics_cache", "") if n > 48 else text for n, text in enumerate(texts)]
    assert enriched(few, in_a, groups) == []


def test_groups_with_texts_of_both_sides_tell_no_more_by_their_number():
    texts = [f"answer {n % 7}" + (" now" if n % 2 and n < 12 else "") for n in range(240)]
    assert ngrams_of(texts).log_chance_of_groups(np.arange(240) % 2 == 1, np.arange(240) // 2).tolist() == [
        0.0
    ] * len(ngrams_of(texts))
