"""What the better samples of a group say that the worse ones do not, and the other way round."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

LONGEST_TEXT = 40_000
"""Characters of a sample that are looked at."""
LENGTHS = (3, 2, 1)
"""Words of a phrase; a longer phrase stands for the shorter ones in it."""
MOST = 8
_WORD = re.compile(r"\w+|[^\w\s]", re.UNICODE)


@dataclass(frozen=True)
class ShownPhrase:
    """A phrase that one side uses more.

    Attributes:
        text: its words.
        winners: share of the winners that say it.
        losers: share of the losers that say it.
    """

    text: str
    winners: float
    losers: float


def telling_phrases(
    winners: Sequence[str], losers: Sequence[str]
) -> tuple[tuple[ShownPhrase, ...], tuple[ShownPhrase, ...]]:
    """The phrases whose shares differ most: those of the winners, those of the losers.

    Args:
        winners: what each of the better samples says.
        losers: what each of the worse ones says.

    Returns:
        At most eight each, the largest difference first; none where a side is empty. With the few samples
        of a group these are hints, not findings.
    """
    if not winners or not losers:
        return (), ()
    told_by = [Counter(phrase for text in side for phrase in _phrases(text)) for side in (winners, losers)]
    phrases = [
        ShownPhrase(phrase, told_by[0][phrase] / len(winners), told_by[1][phrase] / len(losers))
        for phrase in told_by[0].keys() | told_by[1].keys()
    ]
    return (
        _largest(phrases, lambda phrase: phrase.winners - phrase.losers),
        _largest(phrases, lambda phrase: phrase.losers - phrase.winners),
    )


def _phrases(text: str) -> set[str]:
    words = _WORD.findall(text[:LONGEST_TEXT].lower())
    return {
        " ".join(words[at : at + length])
        for length in LENGTHS
        for at in range(len(words) - length + 1)
        if any(word[0].isalnum() for word in words[at : at + length])
    }


def _largest(phrases: Iterable[ShownPhrase], by: Callable[[ShownPhrase], float]) -> tuple[ShownPhrase, ...]:
    ranked = sorted(
        (phrase for phrase in phrases if by(phrase) >= 0.5),
        key=lambda phrase: (-by(phrase), -len(phrase.text), phrase.text),
    )
    kept: list[ShownPhrase] = []
    for phrase in ranked:
        if not any(_within(phrase.text, other.text) or _within(other.text, phrase.text) for other in kept):
            kept.append(phrase)
        if len(kept) == MOST:
            break
    return tuple(kept)


def _within(part: str, whole: str) -> bool:
    return f" {part} " in f" {whole} "
