"""What was written: word n-grams enriched in some rollouts against others.

Log-odds with an informative Dirichlet prior (Monroe, Colaresi and Quinn 2008, "Fightin' Words", equations 16
and 22), an n-gram counted once a rollout. The background of the prior is all texts that are given; its mass
is `PRIOR_MASS` rollouts. Only traced rollouts have text.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rollout_traces.analysis.ramps import ramp
from rollout_traces.analysis.relations import known_number, unit
from rollout_traces.analysis.series import RunSeries

PRIOR_MASS = 10.0
"""Rollouts that the prior weighs."""
LONGEST = 4
"""Words of an n-gram."""
FEWEST_ROLLOUTS = 5
FEWEST_GROUPS = 3
MOST_TEXTS = 4_000
"""Texts that are read; of more, evenly spaced ones."""
MOST_CHARACTERS = 2_000
"""Characters of a text that are read, from its end."""
DISCOVERY = 0.01
LATEST = 8
"""Last steps of a run over which the share of a phrase is taken."""
SPREAD = 0.15
"""A phrase of a run is followed when its share grew by at least this much."""
RARE_BEFORE = 0.01
"""A phrase is new where at most this share of the texts of a run's first third hold it ..."""
FREQUENT_AFTER = 0.06
"""... and at least this share of those of its last third."""
_WORD = re.compile(r"[^\W_]+(?:['’][^\W_]+)?")


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
        p: two-sided, normal, not yet for the number of n-grams.
        examples: ids of rollouts of A that hold it.
        query: a SELECT that gives the counts and z again; empty where none was made.
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
    query: str = ""


@dataclass(frozen=True)
class PhraseTrend:
    """An n-gram whose share grew over a run.

    Attributes:
        phrase: its words.
        step: where its share began to grow.
        before: its share before.
        after: its share in the last steps.
        reward_with: mean reward of rollouts with it, from `step` on.
        reward_without: mean reward of rollouts without it in the same steps, sources and success.
        z: of the difference between the two.
        examples: ids of rollouts that hold it.
    """

    phrase: str
    step: int
    before: float
    after: float
    reward_with: float
    reward_without: float
    z: float
    examples: tuple[str, ...]

    @property
    def pays(self) -> bool:
        """Whether rollouts with it are rewarded more than others like them."""
        return self.z >= 4 and self.reward_with > self.reward_without


def words(text: str) -> list[str]:
    """The words of a text in lower case."""
    return [word.lower() for word in _WORD.findall(text[-MOST_CHARACTERS:])]


def ngrams(text: str) -> set[str]:
    """The n-grams of a text, each once."""
    found = words(text)
    return {" ".join(found[i : i + n]) for n in range(1, LONGEST + 1) for i in range(len(found) - n + 1)}


def occurrences(texts: Sequence[str]) -> dict[str, np.ndarray]:
    """n-gram -> int [k], the texts that hold it; those of fewer than `FEWEST_ROLLOUTS` left out."""
    where: dict[str, list[int]] = defaultdict(list)
    for i, text in enumerate(texts):
        for ngram in ngrams(text):
            where[ngram].append(i)
    return {ngram: np.asarray(rows) for ngram, rows in where.items() if len(rows) >= FEWEST_ROLLOUTS}


def enriched(
    texts: Sequence[str], in_a: np.ndarray, groups: Sequence[object], ids: Sequence[str] = (), most: int = 20
) -> list[Phrase]:
    """n-grams that A has more often than B, surest first, contained ones left out.

    Args:
        texts: of A and B together, one a rollout.
        in_a: bool [N]; which are A's.
        groups: [N]; what is independent: the groups of the rollouts.
        ids: [N]; ids for the examples.
        most: how many at most.
    """
    from scipy.stats import false_discovery_control, norm

    n_a, n_b = int(in_a.sum()), int((~in_a).sum())
    if n_a < FEWEST_ROLLOUTS or n_b < FEWEST_ROLLOUTS:
        return []
    where = occurrences(texts)
    names = list(where)
    if not names:
        return []
    y_a = np.asarray([int(in_a[rows].sum()) for rows in where.values()], float)
    y = np.asarray([len(rows) for rows in where.values()], float)
    y_b = y - y_a
    prior = PRIOR_MASS * y / (n_a + n_b)
    rest = np.maximum(PRIOR_MASS - prior, 1e-3)
    log_odds = np.log((y_a + prior) / (n_a - y_a + rest)) - np.log((y_b + prior) / (n_b - y_b + rest))
    z = log_odds / np.sqrt(
        1 / (y_a + prior) + 1 / (n_a - y_a + rest) + 1 / (y_b + prior) + 1 / (n_b - y_b + rest)
    )
    p = 2 * norm.sf(np.abs(z))
    sure = false_discovery_control(np.maximum(p, 1e-300)) <= DISCOVERY
    order = [i for i in np.argsort(-z, kind="stable") if sure[i] and z[i] > 0]
    found: list[Phrase] = []
    taken: list[tuple[str, set[int]]] = []
    for i in order:
        rows = where[names[i]]
        held = rows[in_a[rows]]
        if len({groups[row] for row in held}) < FEWEST_GROUPS:
            continue
        mine = set(rows.tolist())
        if any(len(mine & other) >= 0.8 * min(len(mine), len(other)) for _, other in taken):
            continue
        best = _longest(names, y_a, y_b, i)
        taken.append((names[best], mine))
        found.append(
            Phrase(
                names[best], int(y_a[best]), int(y_b[best]), y_a[best] / n_a, y_b[best] / n_b, float(log_odds[best]),
                float(z[best]), float(p[best]), tuple(ids[row] for row in held[:5]) if len(ids) else (),
            )
        )  # fmt: skip
        if len(found) == most:
            break
    return found


def _longest(names: Sequence[str], y_a: np.ndarray, y_b: np.ndarray, i: int) -> int:
    """The longest n-gram that holds n-gram i, in most of its rollouts of A and in no larger part of B's."""
    best = i
    for j, name in enumerate(names):
        holds = f" {names[i]} " in f" {name} " and y_a[j] >= 0.8 * y_a[i] and y_b[j] <= y_b[i]
        if holds and (len(name.split()), y_a[j]) > (len(names[best].split()), y_a[best]):
            best = j
    return best


@dataclass(frozen=True, eq=False)
class Texts:
    """Traced rollouts with text.

    Attributes:
        text: [N].
        step: int [N].
        group: [N], unique over steps.
        reward: float [N].
        stratum: [N], step, source and success: what makes two rollouts comparable.
        ids: [N].
        random: bool [N], traced at random.
    """

    text: list[str]
    step: np.ndarray
    group: list[object]
    reward: np.ndarray
    stratum: list[object]
    ids: list[str]
    random: np.ndarray


def texts_of(run: RunSeries, condition: str = "true", params: Sequence[object] = ()) -> Texts:
    """The texts of a run's traced rollouts that satisfy a condition; evenly spaced ones of very many."""
    c = run.columns
    if not c.has("reply"):
        return Texts([], np.empty(0, int), [], np.empty(0), [], [], np.empty(0, bool))
    reward = known_number("reward") if c.has("reward") else "cast(null as double)"
    query = f"""
        select reply, step, {unit(c)} as unit, {reward} as reward, {c.expression("source")} as source,
            {c.expression("success")} as success, cast({c.expression("id")} as varchar) as id,
            coalesce({c.expression("selected_by")}, 'random') as why
        from rollouts where {run.scope} and reply is not null and ({condition}) order by step, id"""
    rows = run.relations.sql(query, [*run.params, *params]).to_pylist()
    if len(rows) > MOST_TEXTS:
        rows = [rows[i] for i in np.linspace(0, len(rows) - 1, MOST_TEXTS).astype(int)]
    return Texts(
        text=[row["reply"] for row in rows],
        step=np.asarray([row["step"] for row in rows], np.int64),
        group=[(row["step"], row["unit"]) for row in rows],
        reward=np.asarray([np.nan if row["reward"] is None else row["reward"] for row in rows], float),
        stratum=[(row["step"], row["source"], row["success"]) for row in rows],
        ids=[str(row["id"]) for row in rows],
        random=np.asarray([row["why"] == "random" for row in rows], bool),
    )


def new_ngrams(texts: Texts, most: int = 3) -> list[str]:
    """The longest n-grams of a run's last third that nearly nobody wrote in its first, the most frequent first.

    The log-odds under a prior are weak for what was never seen; so it is counts that decide here, and whoever
    uses them has to test when they began.

    Args:
        texts: of a run.
        most: how many at most.
    """
    chosen, late = _ends(texts)
    n_late, n_early = max(int(late.sum()), 1), max(int((~late).sum()), 1)
    found: list[tuple[float, str, set[int]]] = []
    for ngram, rows in occurrences([texts.text[i] for i in chosen]).items():
        n = int(late[rows].sum())
        groups = {texts.group[chosen[row]] for row in rows}
        if (
            n / n_late >= FREQUENT_AFTER
            and (len(rows) - n) / n_early <= RARE_BEFORE
            and len(groups) >= FEWEST_GROUPS
        ):
            found.append((n, ngram, set(rows.tolist())))
    found.sort(key=lambda each: (-each[0], -len(each[1].split()), each[1]))
    kept: list[tuple[str, set[int]]] = []
    for _, ngram, held in found:
        if not any(len(held & other) >= 0.8 * min(len(held), len(other)) for _, other in kept):
            kept.append((ngram, held))
    return [ngram for ngram, _ in kept[:most]]


def _ends(texts: Texts) -> tuple[np.ndarray, np.ndarray]:
    """Positions of the texts traced at random in the first and last third of the steps, and which are of the last."""
    steps = np.unique(texts.step)
    third = len(steps) // 3
    if not third:
        return np.empty(0, int), np.empty(0, bool)
    late, early = texts.step >= steps[-third], texts.step < steps[third]
    chosen = np.flatnonzero((late | early) & texts.random)
    return chosen, late[chosen]


def phrase_trends(texts: Texts, most: int = 5) -> list[PhraseTrend]:
    """Phrases whose share grew over a run, with what they earn.

    Args:
        texts: of the run.
        most: how many at most.
    """
    steps = np.unique(texts.step)
    if len(steps) < 12:
        return []
    chosen, late = _ends(texts)
    found = enriched([texts.text[i] for i in chosen], late, [texts.group[i] for i in chosen], most=4 * most)
    trends = []
    for phrase in found:
        if phrase.share_a - phrase.share_b < SPREAD:
            continue
        holds = np.asarray([f" {phrase.phrase} " in f" {' '.join(words(text))} " for text in texts.text])
        trends.append(_trend(phrase.phrase, holds, texts, steps))
        if len(trends) == most:
            break
    return trends


def _trend(phrase: str, holds: np.ndarray, texts: Texts, steps: np.ndarray) -> PhraseTrend:
    at = np.searchsorted(steps, texts.step)
    n = np.bincount(at, texts.random, len(steps))
    hits = np.bincount(at, texts.random & holds, len(steps))
    share = hits / np.maximum(n, 1)
    fit = ramp(np.arcsin(np.sqrt((hits + 0.1) / (n + 0.2))), 30)
    start = fit.at if fit is not None else 0
    after = texts.step >= steps[start]
    with_it, without, z = paid(
        holds[after], texts.reward[after], [s for s, a in zip(texts.stratum, after, strict=True) if a]
    )
    examples = tuple(texts.ids[i] for i in np.flatnonzero(holds & after)[:5])
    before = float(hits[:start].sum() / max(n[:start].sum(), 1))
    last = float(np.average(share[-LATEST:], weights=np.maximum(n[-LATEST:], 1e-9)))
    return PhraseTrend(phrase, int(steps[start]), before, last, with_it, without, z, examples)


def paid(holds: np.ndarray, reward: np.ndarray, strata: Sequence[object]) -> tuple[float, float, float]:
    """Mean reward with and without something among comparable rollouts, and z of the difference.

    The difference is taken inside strata and weighted by their information, n1 n0 / (n1 + n0).

    Args:
        holds: bool [N].
        reward: float [N], NaN where unknown.
        strata: [N]; only rollouts of one stratum are compared.

    Returns:
        With, without, z; NaN, NaN, 0 where no stratum has both.
    """
    known = np.isfinite(reward)
    if not known.any():
        return float("nan"), float("nan"), 0.0
    index: dict[object, int] = {}
    code = np.asarray([index.setdefault(s, len(index)) for s in strata])[known]
    r, h = reward[known], holds[known].astype(float)
    n1, n0 = np.bincount(code, h, len(index)), np.bincount(code, 1 - h, len(index))
    both = (n1 > 0) & (n0 > 0)
    if not both.any():
        return float("nan"), float("nan"), 0.0
    m1 = np.bincount(code, h * r, len(index)) / np.maximum(n1, 1)
    m0 = np.bincount(code, (1 - h) * r, len(index)) / np.maximum(n0, 1)
    weight = np.where(both, n1 * n0 / np.maximum(n1 + n0, 1), 0)
    difference = float((weight * (m1 - m0)).sum() / weight.sum())
    used = both[code]
    residual = r - np.where(h == 1, m1[code], m0[code])
    freedom = max(int(used.sum()) - 2 * int(both.sum()), 1)
    spread = float(np.sqrt((residual[used] ** 2).sum() / freedom))
    error = max(spread, 1e-9) / np.sqrt(weight.sum())
    without = float((weight * m0).sum() / weight.sum())
    return without + difference, without, difference / error
