"""Phrases that were written: word n-grams, each counted once a text, that A has more often than B, or winners than losers.

Log-odds with an informative Dirichlet prior (Monroe, Colaresi and Quinn 2008, "Fightin' Words", equations 16
and 22); or by Fisher's exact test of groups, which alone tells of what one side has never. The background of the prior is all texts that are given; its mass is `PRIOR_MASS` texts.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rollout_traces.analysis.compare import DISCOVERY
from rollout_traces.analysis.kept_texts import EVERY_KEPT, read_texts
from rollout_traces.analysis.relations import Relations, RolloutColumns
from rollout_traces.analysis.selections import Selection

PRIOR_MASS = 10.0
"""Texts that the prior weighs."""
LEAST_REST = 1e-3
"""Least mass of the prior that is left for texts without an n-gram that nearly all hold."""
LONGEST = 4
"""Words of an n-gram."""
FEWEST_TEXTS, FEWEST_GROUPS = 5, 3
"""An n-gram counts where so many rollouts, of so many groups, hold it."""
MOST_CHARACTERS = 4_000_000
"""Characters of all texts together that are read; of longer ones as much of each text, from both of its ends ..."""
LEAST_OF_EACH = 1_000
"""... but never less of a text than this."""
ONE = 0.8
"""Two n-grams are one phrase where this part of the texts of either hold both."""
EXAMPLES = 5
MOST = 8
"""Phrases of an answer."""
MOST_COMPARED = 1_500
"""Rollouts of a side whose texts are read."""
WORDS = re.compile(r"[^\W_]+(?:['’][^\W_]+)?")
MARKS = re.compile(r"[!-/:-@\[-`{-~]{2,}|[\u2190-\u2bff\U0001f300-\U0001faff]|\b[^\W\d_]+[=:({\[<]")
"""Several signs in a row, as a rule between paragraphs, one symbol (an arrow, an emoji), or a word that opens something."""
_MIXED = np.uint64(0x9E3779B97F4A7C15)
"""Knuth's multiplicative constant, by which the codes of words are mixed to those of n-grams."""


@dataclass(frozen=True)
class Phrase:
    """An n-gram that one side has more often.

    Attributes:
        phrase: its words in lower case, one space between.
        n_a: rollouts of A that hold it.
        n_b: rollouts of B that hold it.
        share_a: their share of A.
        share_b: their share of B.
        log_odds: log-odds ratio under the prior.
        z: log-odds over its standard error.
        p: two-sided, of both tests, not yet for the number of n-grams.
        examples: ids of rollouts of A that hold it.
    """

    phrase: str
    n_a: int
    n_b: int
    share_a: float
    share_b: float
    log_odds: float
    z: float
    p: float
    examples: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class Ngrams:
    """The n-grams of some texts, each once a text; those in fewer than `FEWEST_TEXTS` left out.

    Attributes:
        n_texts: how many texts.
        text: int [K], the text of each occurrence.
        ngram: int [K], the n-gram of each, ascending.
        length: int [G], words of each n-gram.
        place: int [G], where one occurrence of it begins among all words.
        words: all words of all texts, then all marks.
    """

    n_texts: int
    text: np.ndarray
    ngram: np.ndarray
    length: np.ndarray
    place: np.ndarray
    words: list[str]

    def __len__(self) -> int:
        return len(self.length)

    def name(self, i: int) -> str:
        """The words of an n-gram."""
        return " ".join(self.words[self.place[i] : self.place[i] + self.length[i]])

    def texts(self, i: int) -> np.ndarray:
        """int: the texts that hold an n-gram."""
        first, last = np.searchsorted(self.ngram, [i, i + 1])
        return self.text[first:last]

    def counts(self, chosen: np.ndarray) -> np.ndarray:
        """float [G]: how many of some texts hold each n-gram; bool or weights [n_texts]."""
        return np.bincount(self.ngram, chosen[self.text].astype(float), len(self))

    def log_chance_of_groups(self, in_a: np.ndarray, groups: np.ndarray) -> np.ndarray:
        """float [G]: log of the chance that as many of the groups that hold each n-gram are A's (Fisher's exact test); 0 where groups have texts of both sides.

        Args:
            in_a: bool [n_texts].
            groups: int [n_texts].
        """
        from scipy.stats import hypergeom

        _, first, of_group = np.unique(groups, return_index=True, return_inverse=True)
        of_a = in_a[first]
        if (of_a[of_group] != in_a).any():
            return np.zeros(len(self))
        ngram, group = np.divmod(np.unique(self.ngram * len(first) + of_group[self.text]), len(first))
        held_by_a, held = (np.bincount(ngram, weights, len(self)) for weights in (of_a[group], None))
        return np.asarray(hypergeom.logsf(held_by_a - 1, len(first), int(of_a.sum()), held))

    def shared_by_groups(self, in_a: np.ndarray, groups: np.ndarray) -> np.ndarray:
        """float [G]: how much more the texts of groups vary in holding each n-gram than single texts do; 1 at least.

        The variance of A's share less B's over groups, by that of independent texts (Kish's design effect).

        Args:
            in_a: bool [n_texts].
            groups: int [n_texts].
        """
        n_a = np.count_nonzero(in_a)
        weight = np.where(in_a, 1 / n_a, -1 / (self.n_texts - n_a))
        of_group, n = np.unique(groups, return_inverse=True)[1], len(np.unique(groups))
        all_of_group = np.bincount(of_group, weight, n)
        pairs, which = np.unique(self.ngram * n + of_group[self.text], return_inverse=True)
        held, ngram = np.bincount(which, weight[self.text]), pairs // n
        share = self.counts(np.ones(self.n_texts)) / self.n_texts
        squares = share**2 * (all_of_group @ all_of_group)
        squares += np.bincount(ngram, held * (held - 2 * share[ngram] * all_of_group[pairs % n]), len(self))
        alone = share * (1 - share) * (1 / n_a + 1 / (self.n_texts - n_a))
        return np.where(alone > 0, np.maximum(squares / np.where(alone > 0, alone, 1), 1.0), 1.0)


def words_of(text: str) -> list[str]:
    """The words of a text in lower case."""
    return [word.lower() for word in WORDS.findall(text)]


def ends_of(text: str, most: int) -> str:
    """A text, or of a long one both ends; a word that is cut is no word."""
    if len(text) <= most:
        return text
    return f"{text[: most // 2].rsplit(None, 1)[0]} {text[-(most // 2) :].split(None, 1)[-1]}"


def ngrams_of(texts: Sequence[str]) -> Ngrams:
    """The n-grams of 1 to `LONGEST` words of some texts, and their marks."""
    total = sum(map(len, texts))
    most = (
        MOST_CHARACTERS
        if total <= MOST_CHARACTERS
        else max(MOST_CHARACTERS // max(len(texts), 1), LEAST_OF_EACH)
    )
    read = [ends_of(text, most) for text in texts]
    found = [words_of(text) for text in read]
    marks = [MARKS.findall(text.lower()) for text in read]
    words = [word for each in (*found, *marks) for word in each]
    n_words = sum(map(len, found))
    index: dict[str, int] = {}
    code = np.asarray([index.setdefault(word, len(index)) for word in words], np.uint64)
    owner = np.repeat(np.tile(np.arange(len(texts)), 2), [len(each) for each in (*found, *marks)])
    names, owners, places, lengths = [], [], [], []
    mixed = np.zeros(len(code), np.uint64)
    for n in range(1, LONGEST + 1):
        of = len(code) if n == 1 else n_words
        if of < n:
            break
        end = of - n + 1
        mixed = (mixed[:end] + code[n - 1 : of] + np.uint64(n)) * _MIXED
        mixed ^= mixed >> np.uint64(2 * len(index).bit_length() % 64 or 1)
        inside = owner[:end] == owner[n - 1 : of]
        names.append(mixed[inside])
        owners.append(owner[:end][inside])
        places.append(np.flatnonzero(inside))
        lengths.append(np.full(int(inside.sum()), n))
    if not names:
        empty = np.empty(0, np.int64)
        return Ngrams(len(texts), empty, empty, empty, empty, words)
    name, who, place, length = (np.concatenate(each) for each in (names, owners, places, lengths))
    _, first, which = np.unique(name, return_index=True, return_inverse=True)
    pairs = np.unique(which * len(texts) + who)
    ngram, text = pairs // len(texts), pairs % len(texts)
    often = np.bincount(ngram, minlength=len(first)) >= FEWEST_TEXTS
    kept = often[ngram]
    renamed = np.cumsum(often) - 1
    return Ngrams(
        len(texts), text[kept], renamed[ngram[kept]], length[first][often], place[first][often], words
    )


def compare_texts(relations: Relations, columns: RolloutColumns, a: Selection, b: Selection) -> list[Phrase]:
    """Phrases that A's rollouts kept at random hold more often than B's."""
    in_a, in_b = (read_texts(relations, columns, side, most=MOST_COMPARED) for side in (a, b))
    if in_a is None or in_b is None:
        return []
    return enriched(
        in_a.written + in_b.written,
        np.repeat([True, False], [len(in_a), len(in_b)]),
        np.concatenate([in_a.group, len(in_a) + in_b.group]),
        in_a.id + in_b.id,
    )


def winners_against_losers(relations: Relations, columns: RolloutColumns, a: Selection) -> list[Phrase]:
    """Phrases of the best rollouts of A's groups against the worst of the same groups.

    Conditional on the selection: best and worst ones are kept on purpose, so this says what winners of
    those groups wrote, not how often.
    """
    if not columns.has("reward"):
        return []
    found = read_texts(relations, columns, a, condition=EVERY_KEPT, most=MOST_COMPARED)
    if found is None or not np.isfinite(found.reward).any():
        return []
    found = found.some(np.isfinite(found.reward))
    size = int(found.group.max()) + 1
    high, low = np.full(size, -np.inf), np.full(size, np.inf)
    np.maximum.at(high, found.group, found.reward)
    np.minimum.at(low, found.group, found.reward)
    won, lost = (found.reward == each[found.group] for each in (high, low))
    ends = found.some(won != lost)
    return enriched(ends.written, ends.reward == high[ends.group], ends.group, ends.id)


def enriched(
    texts: Sequence[str], in_a: np.ndarray, groups: np.ndarray, ids: Sequence[str] = ()
) -> list[Phrase]:
    """n-grams that A has more often than B, surest first, contained ones left out.

    Args:
        texts: of A and B together, one a rollout.
        in_a: bool [N]; which are A's.
        groups: int [N]; what is independent: the groups of the rollouts.
        ids: [N]; ids for the examples.
    """
    from scipy.stats import false_discovery_control, norm

    n_a, n_b = int(in_a.sum()), int((~in_a).sum())
    found = ngrams_of(texts)
    if min(n_a, n_b) < FEWEST_TEXTS or not len(found):
        return []
    y_a, y_b = found.counts(in_a), found.counts(~in_a)
    log_odds, z = fighting_words(y_a, n_a, y_b, n_b)
    z /= np.sqrt(found.shared_by_groups(in_a, groups))
    z = np.maximum(z, norm.isf(np.exp(found.log_chance_of_groups(in_a, groups))))
    p = np.minimum(2 * 2 * norm.sf(np.abs(z)), 1.0)  # of two tests
    sure = (false_discovery_control(np.maximum(p, np.finfo(float).tiny)) <= DISCOVERY) & (z > 0)
    phrases: list[Phrase] = []
    ranked = [i for i in np.argsort(-z, kind="stable").tolist() if sure[i]]
    for i in distinct_phrases(found, ranked, y_a, MOST):
        mine = found.texts(i)[in_a[found.texts(i)]]
        if len(np.unique(groups[mine])) >= FEWEST_GROUPS:
            examples = tuple(ids[at] for at in mine[:EXAMPLES]) if len(ids) else ()
            n, figures = (int(y_a[i]), int(y_b[i])), (float(log_odds[i]), float(z[i]), float(p[i]))
            phrases.append(Phrase(found.name(i), *n, n[0] / n_a, n[1] / n_b, *figures, examples))
    return phrases


def fighting_words(y_a: np.ndarray, n_a: int, y_b: np.ndarray, n_b: int) -> tuple[np.ndarray, np.ndarray]:
    """Log-odds ratio under the prior and its z.

    Args:
        y_a: float [G], texts of A that hold each n-gram.
        n_a: texts of A.
        y_b: float [G], of B.
        n_b: texts of B.
    """
    prior = PRIOR_MASS * (y_a + y_b) / (n_a + n_b)
    rest = np.maximum(PRIOR_MASS - prior, LEAST_REST)
    cells = [(y_a + prior, n_a - y_a + rest), (y_b + prior, n_b - y_b + rest)]
    odds = [np.log(with_it) - np.log(without) for with_it, without in cells]
    error = np.sqrt(sum(1 / with_it + 1 / without for with_it, without in cells))
    return odds[0] - odds[1], (odds[0] - odds[1]) / error


def distinct_phrases(found: Ngrams, held: Sequence[int], weight: np.ndarray, most: int) -> list[int]:
    """The first of some n-grams, each as the longest that holds it in nearly all of its texts.

    Args:
        found: the n-grams.
        held: in order of importance.
        weight: float [G], in how many texts each matters.
        most: how many at most.
    """
    chosen: list[tuple[int, set[int]]] = []
    for i in held:
        mine = set(found.texts(i).tolist())
        beside = next((at for at, (_, other) in enumerate(chosen) if _one(mine, other)), None)
        if beside is None:
            if len(chosen) == most:
                continue
            chosen.append((i, mine))
            continue
        kept = chosen[beside][0]
        longer = f" {found.name(kept)} " in f" {found.name(i)} " and weight[i] >= ONE * weight[kept]
        if longer and found.length[i] > found.length[kept]:
            chosen[beside] = (i, chosen[beside][1])
    return [i for i, _ in chosen]


def _one(mine: set[int], other: set[int]) -> bool:
    return len(mine & other) >= ONE * min(len(mine), len(other))
