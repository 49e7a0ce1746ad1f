"""Flips: which prompts two evaluations solved differently.

Sources: McNemar 1947, exact (binomial on the discordant prompts); the percentile bootstrap over prompts
(Efron and Tibshirani 1993), paired; the interval of a difference of two shares by Newcombe 1998, method 10.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import numpy as np

from rollout_traces.analysis.compare import CONFIDENCE, CONFIDENCE_Z
from rollout_traces.analysis.diagnosis import Diagnosis
from rollout_traces.analysis.relations import (
    Relations,
    RolloutColumns,
    as_arrays,
    current,
    describe,
    known_reward,
    quoted,
    written,
)
from rollout_traces.analysis.selections import Selection
from rollout_traces.errors import StoreError
from rollout_traces.model.text import lines, table, titled

DRAWS = 10_000
ENOUGH = 10
"""Shared prompts from which on the interval of a difference can be trusted."""
MOST_IDS = 8
"""Rollouts of a prompt that are listed."""
AS_LONG = 0.2
"""Part by which numbers differ that are said to."""
Outcome = Literal["lost", "won", "unsure", "kept", "never"]
SAID = ("stop_reason", "n_sampled", "n_turns", "n_tool_calls", "n_tool_errors")
"""Columns in which the rollouts of a lost or won prompt are compared."""


@dataclass(frozen=True)
class Flip:
    """One prompt in both evaluations.

    Attributes:
        prompt_key: the prompt.
        prompt: its preview, None where no trace shows it.
        solved_a: trials of A that solved it.
        trials_a: trials of A.
        solved_b: trials of B that solved it.
        trials_b: trials of B.
        outcome: from A to B: lost, won, kept (the solved share is the same and above 0), never; with several trials
            `unsure` where the interval of the difference holds 0 and the shares differ.
        low: lower end of the 95 % interval of B minus A.
        high: upper end.
        differs: what else differs between its rollouts: column -> (in A, in B).
        ids_a: rollouts of A.
        ids_b: rollouts of B.
    """

    prompt_key: str
    prompt: str | None
    solved_a: int
    trials_a: int
    solved_b: int
    trials_b: int
    outcome: Outcome
    low: float
    high: float
    differs: Mapping[str, tuple[Any, Any]]
    ids_a: tuple[str, ...]
    ids_b: tuple[str, ...]

    @property
    def difference(self) -> float:
        """Solved share of B minus that of A."""
        return self.solved_b / self.trials_b - self.solved_a / self.trials_a


@dataclass(frozen=True, repr=False)
class Flips:
    """Two evaluations over their shared prompts.

    Attributes:
        a: A's name.
        b: B's name.
        score_a: mean solved share over A's prompts, over all of them.
        score_b: of B.
        error_a: standard error of `score_a` over prompts.
        error_b: of `score_b`.
        difference: mean of B minus A over the shared prompts.
        low: lower end of its 95 % interval, paired bootstrap over prompts.
        high: upper end.
        p: exact McNemar's p over prompts with one trial on both sides; None where there are several trials.
        counts: outcome -> prompts.
        prompts: every shared prompt, lost ones first.
        only_a: prompts that A alone asked.
        only_b: prompts that B alone asked.
        keyless: rollouts without a prompt key, which cannot be matched.
        solved_by: what counts as solved, in words.
        remarks: what limits the answer, in words.
        query: a SELECT that gives scores, errors, the difference and the counts again.
    """

    a: str
    b: str
    score_a: float
    score_b: float
    error_a: float
    error_b: float
    difference: float
    low: float
    high: float
    p: float | None
    counts: Mapping[str, int]
    prompts: tuple[Flip, ...]
    only_a: int
    only_b: int
    keyless: int
    solved_by: str
    remarks: tuple[str, ...] = ()
    query: str = ""

    def __repr__(self) -> str:
        counted = ", ".join(f"{n} {name}" for name, n in self.counts.items() if n)
        return f"<Flips {self.a} → {self.b}: {self.difference:+.3f} [{self.low:+.3f}, {self.high:+.3f}]; {counted}>"

    def _repr_html_(self) -> str:
        rows = [
            (
                each.outcome,
                f"{each.solved_a}/{each.trials_a}",
                f"{each.solved_b}/{each.trials_b}",
                each.prompt,
            )
            for each in self.prompts
            if each.outcome in ("lost", "won")
        ]
        scores = (
            f"{self.score_a:.3f} ± {self.error_a:.3f} → {self.score_b:.3f} ± {self.error_b:.3f}, difference "
            f"{self.difference:+.3f} [{self.low:+.3f}, {self.high:+.3f}]"
        )
        counted = ", ".join(f"{n} {name}" for name, n in self.counts.items() if n)
        said = lines([scores, counted, *self.remarks])
        return titled(f"{self.a} → {self.b}", said, table(("", "A", "B", "prompt"), rows))


def flips(
    relations: Relations,
    a: Selection,
    b: Selection,
    *,
    threshold: float | None = None,
    seed: int = 0,
    columns: RolloutColumns | None = None,
) -> Flips:
    """Matches two evaluations on their prompts.

    Args:
        relations: where to read.
        a: the earlier evaluation, or one run's.
        b: the later, or the other run's.
        threshold: a rollout is solved when its reward is at least this; `success` counts where it is not given,
            and the best reward of both where no success is known.
        seed: of the bootstrap.
        columns: what `rollouts` has.

    Raises:
        StoreError: no prompt keys, neither success nor reward, or no shared prompt.
    """
    known = columns or describe(relations)
    solved, said = solved_sql(relations, known, a, b, threshold)
    sides = [_trials(relations, known, side, solved) for side in (a, b)]
    for side, found in zip((a, b), sides, strict=True):
        if not len(found["key"]):
            raise StoreError(f"flips: {side.name} has no rollouts with a prompt key and a known outcome.")
    keyless = sum(_keyless(relations, known, side) for side in (a, b))
    keys_a, keys_b = set(sides[0]["key"].tolist()), set(sides[1]["key"].tolist())
    shared = keys_a & keys_b
    if not shared:
        raise StoreError(
            f"flips: {a.name} and {b.name} share no prompt: {len(keys_a)} against {len(keys_b)} prompts."
        )
    index = [{k: i for i, k in enumerate(side["key"].tolist())} for side in sides]
    ordered = sorted(shared)
    at = [np.asarray([index[s][k] for k in ordered]) for s in (0, 1)]
    n = [sides[s]["n"].astype(float)[at[s]] for s in (0, 1)]
    k = [sides[s]["solved"].astype(float)[at[s]] for s in (0, 1)]
    outcomes, low, high = _outcomes(k[0], n[0], k[1], n[1])
    difference = k[1] / n[1] - k[0] / n[0]
    ends = bootstrap(difference, seed)
    one = bool((n[0] == 1).all() and (n[1] == 1).all())
    scores = [side["solved"].astype(float) / side["n"].astype(float) for side in sides]
    extra = _further(
        relations, known, a, b, [ordered[i] for i in np.flatnonzero(np.isin(outcomes, ["lost", "won"]))]
    )
    prompts = [
        Flip(
            key,
            extra.get(key, _NOTHING).prompt,
            int(k[0][i]),
            int(n[0][i]),
            int(k[1][i]),
            int(n[1][i]),
            outcomes[i],
            float(low[i]),
            float(high[i]),
            extra.get(key, _NOTHING).differs,
            extra.get(key, _NOTHING).ids[0],
            extra.get(key, _NOTHING).ids[1],
        )
        for i, key in enumerate(ordered)
    ]
    order = {outcome: place for place, outcome in enumerate(get_args(Outcome))}
    prompts.sort(key=lambda f: (order[f.outcome], f.difference, f.prompt_key))
    counts = {name: int((outcomes == name).sum()) for name in order}
    remarks = []
    if keys_a != keys_b:
        remarks.append(
            f"The sets differ: {len(shared)} shared prompts of {len(keys_a)} in A and {len(keys_b)} in B; the scores speak of "
            "all prompts of each, the difference of the shared ones."
        )
    if keyless:
        remarks.append(f"{keyless} rollouts have no prompt key and are left out.")
    if len(shared) < ENOUGH:
        remarks.append(f"Fewer than {ENOUGH} shared prompts: the interval of the difference is rough.")
    return Flips(
        a.name,
        b.name,
        float(scores[0].mean()),
        float(scores[1].mean()),
        _error(scores[0]),
        _error(scores[1]),
        float(difference.mean()),
        ends[0],
        ends[1],
        _mcnemar(counts["lost"], counts["won"]) if one else None,
        counts,
        tuple(prompts),
        len(keys_a - keys_b),
        len(keys_b - keys_a),
        keyless,
        said,
        tuple(remarks),
        _scores_query(known, a, b, solved),
    )


def bootstrap(differences: np.ndarray, seed: int) -> tuple[float, float]:
    """95 % percentile interval of a mean over prompts.

    Args:
        differences: float [K], one a prompt.
        seed: of the draws.
    """
    rng = np.random.default_rng(seed)
    values, counts = np.unique(differences, return_counts=True)
    drawn = rng.multinomial(len(differences), counts / len(differences), DRAWS) @ values / len(differences)
    low, high = np.quantile(drawn, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return float(low), float(high)


def newcombe(
    k_a: np.ndarray, n_a: np.ndarray, k_b: np.ndarray, n_b: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """95 % interval of a difference of shares, B minus A (Newcombe 1998, method 10, from Wilson's)."""
    p_a, p_b = k_a / n_a, k_b / n_b
    (low_a, high_a), (low_b, high_b) = _wilson(p_a, n_a), _wilson(p_b, n_b)
    low = p_b - p_a - np.sqrt((p_b - low_b) ** 2 + (high_a - p_a) ** 2)
    high = p_b - p_a + np.sqrt((high_b - p_b) ** 2 + (p_a - low_a) ** 2)
    return low, high


def _wilson(p: np.ndarray, n: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    z2 = CONFIDENCE_Z**2
    middle = (p + z2 / (2 * n)) / (1 + z2 / n)
    half = CONFIDENCE_Z / (1 + z2 / n) * np.sqrt(p * (1 - p) / n + z2 / (4 * n**2))
    return middle - half, middle + half


def _outcomes(
    k_a: np.ndarray, n_a: np.ndarray, k_b: np.ndarray, n_b: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    low, high = newcombe(k_a, n_a, k_b, n_b)
    single = (n_a == 1) & (n_b == 1)
    lost = np.where(single, k_a > k_b, high < 0)
    won = np.where(single, k_b > k_a, low > 0)
    same = k_a / n_a == k_b / n_b
    out = np.full(len(k_a), "unsure", object)
    out[same & (k_a > 0)] = "kept"
    out[same & (k_a == 0)] = "never"
    out[lost] = "lost"
    out[won] = "won"
    return out, low, high


def _mcnemar(lost: int, won: int) -> float:
    from scipy.stats import binomtest

    return float(binomtest(lost, lost + won, 1 / 2).pvalue) if lost + won else 1.0


def _error(scores: np.ndarray) -> float:
    return float(scores.std(ddof=1) / np.sqrt(len(scores))) if len(scores) > 1 else float("nan")


def solved_sql(
    relations: Relations, columns: RolloutColumns, a: Selection, b: Selection, threshold: float | None
) -> tuple[str, str]:
    """SQL for whether a rollout is solved (NULL unknown), and the same in words."""
    if not columns.has("prompt_key"):
        raise StoreError(
            "flips: no rollout has a prompt key, so prompts cannot be matched. Log `prompt_keys`."
        )
    if threshold is not None:
        if not columns.has("reward"):
            raise StoreError("flips: a threshold was given and no rewards are known.")
        return _at_least(columns, threshold), f"reward at least {threshold:g}"
    scopes = [side.condition(columns) for side in (a, b)]
    where = " or ".join(f"({scope})" for scope, _ in scopes)
    params = [p for _, given in scopes for p in given]
    if columns.has("success"):
        count = relations.sql(f"select count(success) as n from rollouts where {where}", params).to_pydict()[
            "n"
        ][0]
        if count:
            return "cast(success = 1 as int)", "success"
    if not columns.has("reward"):
        raise StoreError("flips: neither success nor reward is known. Log `successes` or `rewards`.")
    reward = known_reward(columns)
    query = f"select max({reward}) as high, min({reward}) as low from rollouts where ({where})"
    row = relations.sql(query, params).to_pylist()[0]
    if row["high"] is None:
        raise StoreError("flips: no rollout of either side has a known reward.")
    if row["high"] == row["low"]:
        raise StoreError(
            f"flips: all rewards are {row['high']:g}; give --threshold to say what counts as solved."
        )
    least = row["high"] - 1e-6 * max(1, abs(row["high"]))
    return _at_least(columns, least), f"the best reward, {row['high']:g}"


def _at_least(columns: RolloutColumns, threshold: float) -> str:
    return f"cast({known_reward(columns)} >= {float(threshold)!r} as int)"


def _trials(
    relations: Relations, columns: RolloutColumns, side: Selection, solved: str
) -> dict[str, np.ndarray]:
    return as_arrays(relations.sql(f"{_trials_query(columns, side, solved)} order by key"))


def _trials_query(columns: RolloutColumns, side: Selection, solved: str) -> str:
    scope, params = side.condition(columns)
    return written(
        f"select prompt_key as key, count({solved}) as n, sum({solved}) as solved from rollouts where {scope} "
        f"and prompt_key is not null group by prompt_key having count({solved}) > 0",
        params,
    )


def _scores_query(columns: RolloutColumns, a: Selection, b: Selection, solved: str) -> str:
    """The scores of both sides with their errors, the difference over shared prompts, and how many rose and fell."""
    sides = ", ".join(
        f"of_{name} as (select key, solved / n as score from ({_trials_query(columns, side, solved)}))"
        for name, side in (("a", a), ("b", b))
    )
    scores = ", ".join(
        f"(select avg(score) from of_{name}) as score_{name}, "
        f"(select stddev_samp(score) / sqrt(count(score)) from of_{name}) as error_{name}"
        for name in "ab"
    )
    return (
        f"with {sides} select {scores}, avg(of_b.score - of_a.score) as difference, count(of_a.score) as shared, "
        "count(of_a.score) filter (of_b.score < of_a.score) as fell, count(of_a.score) filter (of_b.score > of_a.score) as rose, "
        "count(of_a.score) filter (of_b.score = of_a.score and of_a.score > 0) as kept, "
        "count(of_a.score) filter (of_b.score = 0 and of_a.score = 0) as never from of_a join of_b using (key)"
    )


def _keyless(relations: Relations, columns: RolloutColumns, side: Selection) -> int:
    scope, params = side.condition(columns)
    query = f"select count(*) as n from rollouts where {scope} and prompt_key is null"
    return int(relations.sql(query, params).to_pydict()["n"][0])


@dataclass(frozen=True)
class _Further:
    prompt: str | None
    differs: Mapping[str, tuple[Any, Any]]
    ids: tuple[tuple[str, ...], tuple[str, ...]]


_NOTHING = _Further(None, {}, ((), ()))


def _further(
    relations: Relations, columns: RolloutColumns, a: Selection, b: Selection, keys: Sequence[str]
) -> dict[str, _Further]:
    """Names what else differs between the rollouts of some prompts."""
    if not keys:
        return {}
    there = [name for name in SAID if columns.has(name)]
    tags = [name for name in ("flags", "tool_names", "error_signatures") if columns.has(name)]
    parts = [f"any_value({columns.expression('prompt')}) as prompt"]
    parts += [
        f"mode({quoted(n)}) as {n}" if n in columns.texts else f"avg({quoted(n)}) as {n}" for n in there
    ]
    parts += [
        f"list_sort(list_distinct(flatten(list({n}) filter (where {n} is not null)))) as {n}" for n in tags
    ]
    ids = columns.expression("id")
    parts.append(
        f"list(cast({ids} as varchar) order by cast({ids} as varchar)) filter (where {ids} is not null) as ids"
    )
    rows = []
    for side in (a, b):
        scope, params = side.condition(columns)
        query = (
            f"select prompt_key as key, {', '.join(parts)} from rollouts where {scope} "
            "and list_contains(?, prompt_key) group by prompt_key"
        )
        rows.append({row["key"]: row for row in relations.sql(query, [*params, list(keys)]).to_pylist()})
    out = {}
    for key in keys:
        in_a, in_b = rows[0].get(key, {}), rows[1].get(key, {})
        differs = {
            n: (in_a.get(n), in_b.get(n)) for n in (*there, *tags) if _unlike(in_a.get(n), in_b.get(n))
        }
        listed = (tuple((in_a.get("ids") or [])[:MOST_IDS]), tuple((in_b.get("ids") or [])[:MOST_IDS]))
        out[key] = _Further(in_a.get("prompt") or in_b.get("prompt"), differs, listed)
    return out


def _unlike(first: Any, second: Any) -> bool:
    if isinstance(first, float) and isinstance(second, float):
        return abs(first - second) > AS_LONG * max(abs(first), abs(second), np.finfo(float).eps)
    return first != second and not (not first and not second)


def with_flips(relations: Relations, run: str, found: Sequence[Diagnosis]) -> list[Diagnosis]:
    """Entries, where an evaluation fell with its split and the two steps between which prompts were lost."""
    return [_linked(relations, run, entry) for entry in found]


def _linked(relations: Relations, run: str, entry: Diagnosis) -> Diagnosis:
    name = next((s.column for s in entry.series if s.column.startswith("eval") and "/" in s.column), "")
    if not name or entry.before is None or entry.after is None or entry.after >= entry.before:
        return entry
    split = name.split("/", 1)[0]
    query = f"select distinct step from rollouts where run = ? and split = ? and {current(describe(relations))} order by step"
    steps = relations.sql(query, [run, split]).column("step").to_pylist()
    before = [step for step in steps if step is not None and step < entry.step]
    if not before or entry.step not in steps:
        return entry
    return replace(entry, flips=(split, int(before[-1]), entry.step))
