"""Series of what was written and what tools answered: phrases, scripts, languages, refusals, answer forms; of rollouts kept at random.

The texts are the whole ones, of at most `kept_texts.MOST_TEXTS` rollouts and `phrases.MOST_CHARACTERS` characters a run,
and of longer texts both ends.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from rollout_traces.analysis.compare import DISCOVERY
from rollout_traces.analysis.curves import SeriesName
from rollout_traces.analysis.kept_texts import KeptTexts, read_texts
from rollout_traces.analysis.phrases import (
    FEWEST_GROUPS,
    FEWEST_TEXTS,
    Ngrams,
    distinct_phrases,
    ngrams_of,
    words_of,
)
from rollout_traces.analysis.run_rows import MOST_PARTS, RowMeasure, RunRows
from rollout_traces.analysis.selections import RunScope, Selection

MOST_PHRASES = 12
"""Phrases that are followed over the run."""
BINS = 24
"""Stretches of the run between whose ends a phrase's share is looked at."""
READ = 4_000
"""Characters of a text by which its script, language and answer are told: of a longer one both ends."""
FEWEST_LETTERS = 20
NEARLY_ALL = 0.9
"""A text in Latin script has this part of its letters in it, else it is of two; one in another has Latin words and formulas beside it, and has half."""
FEWEST_HITS = 5
"""Texts of a kind, and texts of any other, below which its share is no series."""
LEAST_RISE = 0.03
"""A phrase is followed where its share in some stretch of the run differs by this from that of the rest."""
FEWEST_WORDS = 3
"""Words of a language that a text has to hold."""
LANGUAGES: Mapping[str, frozenset[str]] = {
    name: frozenset(words.split())
    for name, words in {
        "English": "the of and to is that it for with as this we be are",
        "Spanish": "el los las que por una con para es del como más pero se",
        "French": "le les des que une est pour dans qui avec sur pas nous ce",
        "German": "der die das und ist nicht ein eine mit für auf wir den von",
        "Portuguese": "os das que uma não com para por mais como mas dos ao são",
        "Italian": "il che di una per non con sono della è come più questo gli",
        "Dutch": "het een van en dat niet zijn voor met ook wij deze wordt naar",
    }.items()
}
"""The most frequent words of languages of Latin script: the one that a text holds most of is its language."""
LEAST_FUNCTION_WORDS = 0.05
"""Share of a text's words that are such, below which its language is unknown."""
REFUSAL = re.compile(
    r"\bI(?:['’]m| am) (?:sorry|unable|not able)\b|\bI (?:can(?:no|['’])t|won['’]t|must decline)\b|\bas an AI\b|\bI apologi[sz]e\b",
    re.IGNORECASE,
)
ANSWERS: Mapping[str, re.Pattern[str]] = {
    "boxed": re.compile(r"\\boxed\s*\{"),
    "answer tag": re.compile(r"<answer>", re.IGNORECASE),
    "final answer": re.compile(r"\b(?:final )?answer(?: is|:)", re.IGNORECASE),
    "code block": re.compile(r"```"),
    "JSON": re.compile(r"\{\s*\"[^\"]+\"\s*:[^{}]*\}\s*$"),
    "hashes": re.compile(r"####\s*\S"),
}
"""Forms in which answers are given; the first that a text has."""


def text_rows(
    run: RunScope, parts: Mapping[str, tuple[np.ndarray, list[str]]] | None = None
) -> RunRows | None:
    """The kept rollouts of a run with what was written as measures; None where no text is known: unobserved.

    Args:
        run: which rollouts.
        parts: column -> codes and values by which all rollouts of the run are parted; none by default.
    """
    which = Selection(run.run, run.split)
    texts = read_texts(run.relations, run.columns, which, parts=tuple(parts or ()))
    if texts is None:
        return None
    steps, at = np.unique(texts.step, return_inverse=True)
    rows = RunRows(steps, at, texts.group, {}, weight=texts.weight)
    for name, (_, values) in (parts or {}).items():
        place = {value: code for code, value in enumerate(values)}
        codes = np.asarray([place.get(value, -1) for value in texts.parts[name].tolist()])
        rows.parts[name] = codes, values
    shares = text_shares(texts, at) | given_shares(texts)
    rows.measures = [RowMeasure(name, _constant(held), drawn=True) for name, held in shares.items()]
    return rows


def _constant(values: np.ndarray) -> Callable[[], np.ndarray]:
    return lambda: values


def text_shares(texts: KeptTexts, at: np.ndarray) -> dict[SeriesName, np.ndarray]:
    """Series -> float [N], 1 for the texts that count for it, NaN for those of which it is unknown.

    Args:
        texts: of the kept rollouts of a run.
        at: int [N], the position of each one's step.
    """
    written = texts.written
    found: dict[SeriesName, np.ndarray] = {}
    for column, kinds in (
        ("written/script", [script_of(_ends(text)) for text in written]),
        ("written/language", [language_of(_ends(text)) for text in written]),
        ("written/refusal", ["refusal" if REFUSAL.search(_ends(text)) else "none" for text in written]),
        ("written/answer", [answer_of(_ends(text)) for text in written]),
    ):
        kind = np.asarray(kinds, object)
        known = kind != ""
        values = sorted(set(kind[known].tolist()), key=lambda value: int((kind == value).sum()))
        for value in values[: len(values) - 1] if len(values) == 2 else values:  # of two that add up, one
            held = kind == value
            if min(held.sum(), (known & ~held).sum()) >= FEWEST_HITS:
                found[SeriesName(column, value, "share")] = np.where(known, held.astype(float), np.nan)
    return found | _phrases(texts, "written", at) | _phrases(texts, "tool_results", at)


def _phrases(texts: KeptTexts, column: str, at: np.ndarray) -> dict[SeriesName, np.ndarray]:
    """The share of the texts of a column that hold a phrase, of those phrases whose share is not the same over the run; as `text_shares`."""
    known = np.flatnonzero([text is not None for text in texts.texts[column].tolist()])
    said = texts.texts[column][known].tolist()
    grams, plain = ngrams_of(said), [" ".join(text.lower().split()) for text in said]
    literal = lambda i: _is_literal(grams.name(i), [plain[at] for at in grams.texts(i)[:FEWEST_TEXTS]])  # noqa: E731
    found: dict[SeriesName, np.ndarray] = {}
    for i in moving(grams, at[known], _asked(texts, at)[known], literal):
        held = np.full(len(texts), np.nan)
        held[known] = 0.0
        held[known[grams.texts(i)]] = 1.0
        found[SeriesName(column, grams.name(i), "text")] = held
    return found


def _asked(texts: KeptTexts, at: np.ndarray) -> np.ndarray:
    """int [N], the same for the texts of a group, and of all groups of a prompt in a stretch of the run: what is asked again and again is answered alike."""
    prompts = np.unique(texts.prompt_key.astype(str), return_inverse=True)[1]
    stretch = at * BINS // (int(at.max()) + 1)
    is_known = np.asarray([key is not None for key in texts.prompt_key.tolist()])
    return np.where(is_known, prompts * BINS + stretch, -1 - texts.group)


def given_shares(texts: KeptTexts) -> dict[SeriesName, np.ndarray]:
    """The share of each system prompt and tool schema, and of conversations without one, where there are few; as `text_shares`."""
    found: dict[SeriesName, np.ndarray] = {}
    for column in ("system", "tools"):
        given = np.where(texts.texts[column] == None, NO_TEXT, texts.texts[column])  # noqa: E711
        known = np.asarray([text is not None for text in texts.texts["written"].tolist()])
        values, counts = np.unique(given[known].astype(str), return_counts=True)
        if not 2 <= len(values) <= MOST_PARTS:
            continue
        for value, count in zip(values.tolist(), counts.tolist(), strict=True):
            if count >= FEWEST_HITS:
                held = (given == value).astype(float)
                found[SeriesName(column, value, "text")] = np.where(known, held, np.nan)
    return found


NO_TEXT = "none"
"""Stands for the system prompt or tools of a conversation that has none."""


def _is_literal(phrase: str, texts: Sequence[str]) -> bool:
    """Tells whether texts hold a phrase as it is quoted: words with a mark between them cannot be found by it."""
    return sum(phrase in text for text in texts) > len(texts) / 2


def moving(
    grams: Ngrams, at: np.ndarray, groups: np.ndarray, literal: Callable[[int], bool] = lambda i: True
) -> list[int]:
    """The n-grams whose share is not the same over the run, under false discovery control, surest first.

    A scan over groups, each counted once: the largest departure of a share in any stretch between two of `BINS` places
    from what the whole run lets expect; p is hypergeometric, multiplied by the number of stretches. What is found is tested again, as a
    series.

    Args:
        grams: the n-grams.
        at: int [N], the position of each text's step.
        groups: int [N], what is independent, each of few steps.
        literal: whether an n-gram stands in its texts as it is quoted.
    """
    from scipy.stats import false_discovery_control, hypergeom

    if not len(grams):
        return []
    names, first_of, of_group = np.unique(groups, return_index=True, return_inverse=True)
    order = np.argsort(np.argsort(at[first_of], kind="stable"), kind="stable")
    bins = min(BINS, len(np.unique(at)))
    place = order * bins // len(names)
    pairs = np.unique(grams.ngram * len(names) + of_group[grams.text])
    ngram, group = pairs // len(names), pairs % len(names)
    hits = np.bincount(ngram * bins + place[group], minlength=len(grams) * bins).reshape(-1, bins)
    upto = np.concatenate([np.zeros((len(grams), 1)), np.cumsum(hits, axis=1)], axis=1)
    of = np.concatenate([[0.0], np.cumsum(np.bincount(place, minlength=bins))])
    total, n = upto[:, -1], of[-1]
    largest, rise, best, width = (np.zeros(len(grams)) for _ in range(4))
    for first in range(bins):
        for last in range(first + 1, bins + 1):
            inside = of[last] - of[first]
            if not 0 < inside < n:
                continue
            held = upto[:, last] - upto[:, first]
            error = np.sqrt(np.maximum(total / n * (1 - total / n), 1 / n) * inside * (1 - inside / n))
            z = np.abs(held - total / n * inside) / error
            better = z > largest
            largest = np.where(better, z, largest)
            rise = np.where(better, np.abs(held / inside - (total - held) / (n - inside)), rise)
            best, width = np.where(better, held, best), np.where(better, inside, width)
    tails = hypergeom.sf(best - 1, n, total, width), hypergeom.cdf(best, n, total, width)
    p = np.minimum(2 * np.minimum(*tails) * bins * (bins + 1) / 2, 1.0)
    sure = false_discovery_control(np.maximum(p, np.finfo(float).tiny)) <= DISCOVERY
    sure &= (rise >= LEAST_RISE) & (total >= FEWEST_GROUPS)
    listed = [i for i in np.argsort(-largest, kind="stable").tolist() if sure[i] and literal(i)]
    return distinct_phrases(grams, listed, total, MOST_PHRASES)


def _ends(text: str) -> str:
    return text if len(text) <= READ else f"{text[: READ // 2]}\n{text[-READ // 2 :]}"


def script_of(text: str) -> str:
    """The script of a text's letters, the two of most letters where there are several; "" for too few letters."""
    from rollout_traces.flags.text import NAMES, code_points, script_codes

    if text.isascii():
        return "Latin" if sum(map(str.isalpha, text)) >= FEWEST_LETTERS else ""
    counts = np.bincount(script_codes(code_points(text)), minlength=len(NAMES))[1:]
    if counts.sum() < FEWEST_LETTERS:
        return ""
    most, second = np.argsort(-counts)[:2].tolist()
    least = NEARLY_ALL if NAMES[most + 1] == "Latin" else 1 / 2
    names = (
        [NAMES[most + 1]] if counts[most] >= least * counts.sum() else [NAMES[i + 1] for i in (most, second)]
    )
    return " with ".join(names)


def language_of(text: str) -> str:
    """The language of a text in Latin script; "" where its words do not tell."""
    words = words_of(text)
    counts = {name: sum(word in known for word in words) for name, known in LANGUAGES.items()}
    name = max(counts, key=lambda each: counts[each])
    return name if counts[name] >= max(LEAST_FUNCTION_WORDS * len(words), FEWEST_WORDS) else ""


def answer_of(text: str) -> str:
    """The form in which a text gives its answer; "none" for none of those that are known."""
    return next((name for name, pattern in ANSWERS.items() if pattern.search(text)), "none")
