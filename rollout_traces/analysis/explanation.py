"""Explain: A against B, every column ranked by how far the two differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from rollout_traces.analysis.carried import Carried, who_carried
from rollout_traces.analysis.cells import Cells
from rollout_traces.analysis.compare import (
    LEAST_DELTA,
    LEAST_SHARE,
    Effect,
    between_steps,
    cliffs_delta,
    paired,
    shares_of_sums,
)
from rollout_traces.analysis.decompose import Decomposition, by_column, by_component
from rollout_traces.analysis.detail import detail_of, level_query
from rollout_traces.analysis.finding import Finding
from rollout_traces.analysis.phrases import Phrase
from rollout_traces.analysis.relations import Relations, RolloutColumns, describe, quoted
from rollout_traces.analysis.selections import Selection, undisturbed
from rollout_traces.analysis.sides import Groups, ShareSums, read_groups, read_shares
from rollout_traces.analysis.written import compare_texts, winners_against_losers

DISCOVERY = 0.01
"""False discovery rate over all columns (Benjamini and Hochberg 1995)."""
FEWEST_ROWS = 3
SHARED = 0.5
"""Groups or prompts are paired where at least this part of the smaller side's are in both."""
FEWEST_PAIRS = 5
SAME = 0.97
"""Two numbers whose group means correlate by this are one finding and its consequence."""
MOST = 12
"""Findings that get a sentence with parts, examples and a picture."""
CONSEQUENCES: Mapping[str, tuple[str, ...]] = {
    "n_tokens": ("n_sampled",),
    "flags truncated": ("stop_reason length",),
    "stop_reason length": ("n_sampled",),
    "stop_reason stop": ("stop_reason length",),
    "flags stale": ("staleness_max",),
    "flags mixed_versions": ("staleness_max",),
    "flags logprob_mismatch": ("mismatch_k3",),
    "mismatch_k1": ("mismatch_k3",),
    "mismatch_abs_max": ("mismatch_k3",),
    "log_ratio_sum": ("mismatch_k1", "mismatch_k3"),
    "flags tool_error": ("n_tool_errors", "error_signatures *"),
    "n_tool_errors": ("error_signatures *",),
    "reward_status ok": ("reward_status error", "reward_status timeout"),
    "n_turns": ("n_tool_calls",),
    "raw_reward": ("reward",),
}
"""Column (and value) -> what it is a plain consequence of, if that is found too."""


@dataclass(frozen=True)
class Explanation:
    """What differs between A and B.

    Attributes:
        a: A's name.
        b: B's name.
        rows: rollouts of A and of B.
        groups: groups of A and of B.
        findings: ranked, consequences nested.
        decompositions: of the change of the mean reward.
        carried: which rows carried the change of a mean.
        phrases: what A wrote more often than B.
        winners: what A's winners wrote more often than its losers, inside groups.
        only_in: column -> `A` or `B`, where one side alone knows it.
        remarks: what limits the answer, in words.
        n_tested: columns and values that were tested.
    """

    a: str
    b: str
    rows: tuple[int, int]
    groups: tuple[int, int]
    findings: tuple[Finding, ...] = ()
    decompositions: tuple[Decomposition, ...] = ()
    carried: tuple[Carried, ...] = ()
    phrases: tuple[Phrase, ...] = ()
    winners: tuple[Phrase, ...] = ()
    only_in: Mapping[str, str] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()
    n_tested: int = 0


def explain(
    relations: Relations,
    a: Selection,
    b: Selection | None = None,
    *,
    weights: Mapping[str, float] | None = None,
    columns: RolloutColumns | None = None,
    whole: Relations | None = None,
) -> Explanation:
    """Ranks every column by how far A and B differ.

    Args:
        relations: where to read.
        a: the rollouts in question.
        b: what they are compared with; the ten steps before A where it is not given.
        weights: reward component -> weight, where declared.
        columns: what `rollouts` has; looked up where it is not given.
        whole: where to look whether a value occurred in any step before, when `relations` has a part of the
            steps alone.
    """
    known = columns or describe(relations)
    left_out = ""
    if b is None:
        if a.steps[0] is None:
            from rollout_traces.errors import StoreError

            raise StoreError(
                "explain: A has no first step, so nothing comes before it. Name a step, or give B."
            )
        b, left_out = undisturbed(relations, a, known)
    groups = read_groups(relations, known, a, b)
    rows = tuple(int(groups.n[groups.side == s].sum()) for s in (0, 1))
    units = tuple(int((groups.side == s).sum()) for s in (0, 1))
    remarks = [*([left_out] if left_out else []), *_remarks(groups, rows, units, known, (a, b))]
    empty = Explanation(a.name, b.name, (rows[0], rows[1]), (units[0], units[1]), remarks=tuple(remarks))
    if min(rows) < 2:
        return empty
    only_in = {
        name: "A" if n_a else "B" for name, (n_a, n_b) in groups.counts.items() if (n_a == 0) != (n_b == 0)
    }
    tested = [*_numbers(groups), *_shares(relations, known, a, b, groups, only_in, whole or relations)]
    found = [_with_detail(relations, known, a, b, f, i) for i, f in enumerate(_ranked(tested, groups))]
    return replace(
        empty,
        findings=tuple(found),
        decompositions=tuple(_decomposed(relations, known, a, b, weights, groups.cells)),
        carried=tuple(who_carried(relations, known, a, b, found)),
        phrases=tuple(compare_texts(relations, known, a, b)),
        winners=tuple(winners_against_losers(relations, known, a)),
        only_in=only_in,
        n_tested=len(tested),
    )


def _remarks(
    groups: Groups,
    rows: Sequence[int],
    units: Sequence[int],
    columns: RolloutColumns,
    sides: Sequence[Selection],
) -> list[str]:
    remarks = [
        f"{name}: no rollouts." for name, n in zip((s.name for s in sides), rows, strict=True) if n == 0
    ]
    if min(rows) == 0:
        return remarks
    if min(rows) < 2:
        return [*remarks, "One rollout cannot be compared."]
    if units == tuple(rows) and not columns.has("group"):
        remarks.append("No groups were logged: every rollout counts as independent.")
    if min(units) == 1:
        remarks.append("One side has one group only: groups cannot be separated from chance there.")
    steps = [len(np.unique(groups.step[groups.side == s])) for s in (0, 1)]
    if steps[0] + steps[1] - 2 < 2:
        remarks.append(
            "Too few steps to know the spread between steps: differences are tested between groups only."
        )
    return remarks


def _numbers(groups: Groups) -> list[Finding]:
    pairs = _pairs(groups)
    found = []
    for name, means in groups.means.items():
        known = np.isfinite(means)
        a, b = known & (groups.side == 0), known & (groups.side == 1)
        n_a, n_b = groups.counts[name]
        if not n_a or not n_b or n_a + n_b < 4:
            continue
        effect = _paired_effect(means, groups.side, pairs) if pairs is not None else None
        if effect is None:
            effect = cliffs_delta(means[a], means[b])
            p_steps = _between(groups, means, known)
            effect = replace(effect, p=max(effect.p, p_steps) if p_steps is not None else effect.p)
        mean_a, mean_b = groups.totals[name]
        found.append(Finding(name, None, mean_a, mean_b, n_a, n_b, n_a, n_b, effect))
    return found


def _pairs(groups: Groups) -> np.ndarray | None:
    """int [U]: which shared group, else prompt, each group belongs to, -1 for none; None where too few are shared."""
    for keys in (groups.unit, groups.prompt):
        a, b = np.unique(keys[groups.side == 0]), np.unique(keys[groups.side == 1])
        shared = np.intersect1d(a[a != 0], b[b != 0])
        if len(shared) >= FEWEST_PAIRS and len(shared) >= SHARED * min(len(a), len(b)):
            at = np.minimum(np.searchsorted(shared, keys), len(shared) - 1)
            return np.where(shared[at] == keys, at, -1)
    return None


def _paired_effect(means: np.ndarray, side: np.ndarray, pairs: np.ndarray) -> Effect | None:
    """The effect on differences inside pairs; None where too few pairs know the column."""
    use = (pairs >= 0) & np.isfinite(means)
    if not use.any():
        return None
    size = int(pairs.max()) + 1
    sums, counts = (
        [np.bincount(pairs[use & (side == s)], weight[use & (side == s)], size) for s in (0, 1)]
        for weight in (means, np.ones(len(means)))
    )
    both = (counts[0] > 0) & (counts[1] > 0)
    if both.sum() < FEWEST_PAIRS:
        return None
    return paired(sums[0][both] / counts[0][both] - sums[1][both] / counts[1][both])


def _between(groups: Groups, means: np.ndarray, known: np.ndarray) -> float | None:
    """p against the spread between steps."""
    code = groups.step[known] * 2 + groups.side[known]
    steps, index = np.unique(code, return_inverse=True)
    n = np.bincount(index).astype(float)
    values = np.bincount(index, means[known]) / n
    freedom = float((n - 1).sum())
    within = float(((means[known] - values[index]) ** 2).sum() / freedom) if freedom > 0 else 0.0
    return between_steps(values, n, (steps % 2).astype(int), within)


def _shares(
    relations: Relations,
    columns: RolloutColumns,
    a: Selection,
    b: Selection,
    groups: Groups,
    only_in: dict[str, str],
    whole: Relations,
) -> list[Finding]:
    found = []
    for s in read_shares(relations, columns, a, b, groups):
        if not s.known_a or not s.known_b:
            only_in.setdefault(s.column, "A" if s.known_a else "B")
            continue
        if max(s.a.share, s.b.share) < LEAST_SHARE:
            continue
        effect = shares_of_sums(s.a, s.b)
        new = s.rows_b == 0 and s.rows_a >= max(FEWEST_ROWS, 0.01 * s.known_a) and s.a.with_hits >= 2
        if new:
            new = not _occurred(whole, columns, a, s.column, s.value)
        if s.rows_b:
            p_steps = _share_between(s)
            effect = replace(effect, p=max(effect.p, p_steps) if p_steps is not None else effect.p)
        found.append(
            Finding(
                s.column, s.value, s.a.share, s.b.share, s.known_a, s.known_b, s.rows_a, s.rows_b, effect, new
            )
        )
    return found


def _occurred(relations: Relations, columns: RolloutColumns, a: Selection, column: str, value: str) -> bool:
    """Whether any rollout before A's first step has the value."""
    if a.steps[0] is None:
        return False
    scope, params = replace(a, steps=(None, a.steps[0] - 1)).condition(columns)
    holds = f"list_contains({quoted(column)}, ?)" if column in columns.tags else f"{quoted(column)} = ?"
    query = f"select 1 from rollouts where {scope} and {holds} limit 1"
    return relations.sql(query, [*params, value]).num_rows > 0


def _share_between(s: ShareSums) -> float | None:
    pooled = (s.a.hits + s.b.hits) / (s.a.rows + s.b.rows)
    within = (s.a.variance(pooled) * s.a.clusters + s.b.variance(pooled) * s.b.clusters) / 2
    return between_steps(s.shares, np.maximum(s.groups, 1), s.side, within)


def _ranked(tested: Sequence[Finding], groups: Groups) -> list[Finding]:
    """What remains under false-discovery control and above the least effect, new values first, then by effect."""
    from scipy.stats import false_discovery_control

    if not tested:
        return []
    p = np.clip([f.effect.p for f in tested], 1e-300, 1.0)
    sure = false_discovery_control(p) <= DISCOVERY
    kept = [f for f, ok in zip(tested, sure, strict=True) if ok and _large(f)]
    kept.sort(key=lambda f: (not f.new, -abs(f.effect.effect), f.name))
    return _nested(kept, groups)


def _large(f: Finding) -> bool:
    least = LEAST_DELTA if f.value is None else LEAST_SHARE
    return abs(f.effect.effect) >= least


def _nested(kept: Sequence[Finding], groups: Groups) -> list[Finding]:
    names = {f.name for f in kept}
    heads: list[Finding] = []
    below: dict[str, list[Finding]] = {}
    for f in kept:
        cause = next((c for c in CONSEQUENCES.get(f.name, ()) if _present(c, names)), None)
        head = next((h.name for h in kept if cause and _is(cause, h.name) and h is not f), None)
        if head is None and f.value is None:
            head = next((h.name for h in heads if h.value is None and _one(groups, h.column, f.column)), None)
        if (
            head is None
            and f.value is not None
            and f.column not in ("flags", "tool_names", "error_signatures")
        ):
            head = next((h.name for h in heads if h.column == f.column), None)
        if head is None:
            heads.append(f)
        else:
            below.setdefault(head, []).append(f)
    top = {h.name for h in heads}
    lost = [f for name, rest in below.items() if name not in top for f in rest]
    nested = [replace(h, consequences=tuple(below.get(h.name, ()))) for h in heads]
    return [*nested, *lost]


def _present(cause: str, names: set[str]) -> bool:
    return any(_is(cause, name) for name in names)


def _is(cause: str, name: str) -> bool:
    return name == cause or (cause.endswith("*") and name.startswith(cause[:-1]))


def _one(groups: Groups, first: str, second: str) -> bool:
    """Whether two numbers are one and the same up to scale, over the groups."""
    x, y = groups.means[first], groups.means[second]
    both = np.isfinite(x) & np.isfinite(y)
    if both.sum() < 8:
        return False
    x, y = x[both], y[both]
    if x.std() == 0 or y.std() == 0:
        return False
    return abs(float(np.corrcoef(x, y)[0, 1])) >= SAME


def _with_detail(
    relations: Relations, columns: RolloutColumns, a: Selection, b: Selection, f: Finding, rank: int
) -> Finding:
    """A finding with its query, and for the first ones with parts, examples and picture."""
    detail = detail_of(relations, columns, a, b, f.column, f.value) if rank < MOST else None
    return replace(
        f,
        detail=detail,
        query=level_query(columns, a, b, f.column, f.value),
        consequences=tuple(
            replace(each, query=level_query(columns, a, b, each.column, each.value))
            for each in f.consequences
        ),
    )


def _decomposed(
    relations: Relations,
    columns: RolloutColumns,
    a: Selection,
    b: Selection,
    weights: Mapping[str, float] | None,
    cells: Mapping[str, Cells],
) -> list[Decomposition]:
    if not columns.has("reward"):
        return []
    parts = [by_component(relations, columns, a, b, weights)]
    parts += [
        by_column(relations, columns, a, b, name, cells.get(name))
        for name in ("source", "engine", "stop_reason")
        if name in columns.texts
    ]
    return [part for part in parts if part is not None]
