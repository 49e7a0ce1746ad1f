"""Explain: A against B, every column ranked by how far the two differ."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from rollout_traces.analysis.columns_compared import ColumnsCompared, compare_logged
from rollout_traces.analysis.compare import DOUBTFUL, discovered
from rollout_traces.analysis.contributions import Carried, Decomposition, decomposed, who_carried
from rollout_traces.analysis.evidence import detail_of, level_query, part_query
from rollout_traces.analysis.finding import Finding, OneSided, nested, parents_of, rank
from rollout_traces.analysis.phrases import Phrase, compare_texts, winners_against_losers
from rollout_traces.analysis.relations import Relations, RolloutColumns, describe, quoted
from rollout_traces.analysis.run_rows import NO_MEASURES
from rollout_traces.analysis.selections import NEIGHBOURS, Selection, before, fixed_by
from rollout_traces.analysis.two_sides import BEFORE, A, B, SideRows, read_earlier_visits, read_rows
from rollout_traces.analysis.unobserved import Contained
from rollout_traces.errors import StoreError
from rollout_traces.flags import REGISTRY
from rollout_traces.model.text import lines, table, titled
from rollout_traces.model.text import quoted as in_quotes

LEAST_DELTA, LEAST_SHARE = 0.2, 0.02
"""Effects on numbers, and differences of shares, below these are not shown."""
OUTCOMES_WEIGHT = 0.5
"""The part of all error that the reward, its components and the success may take."""
PART_WEIGHT = 0.25
"""What a column in its part may take of the error, of what it takes as a whole."""
MOST_DOUBTFUL = 3
"""Findings that may be chance, where there is none beyond it."""
MOST = 12
"""Findings that get parts, examples and a picture."""
STEPS_BEFORE, ROWS_BEFORE = 60, 20_000
"""Steps before a step, with so many rollouts at most, that tell how far steps differ anyway."""
FEWEST_STEPS = 4
"""Steps of both sides together, below which their spread is not known."""


@dataclass(frozen=True, repr=False)
class Explanation:
    """Differences between A and B.

    Attributes:
        a: A's name.
        b: B's name.
        rows: rollouts of A and of B.
        groups: groups of A and of B.
        findings: ranked, consequences nested; logged numbers among them.
        decompositions: of the change of the mean reward.
        carried: of which numbers few rollouts make much.
        phrases: what A wrote more often than B.
        winners: what A's winners wrote more often than its losers, inside groups.
        one_sided: what one side says of the columns, or of the flags that take text, that it alone knows.
        remarks: what limits the answer, in words.
        problems: what could not be computed, a line each.
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
    one_sided: tuple[OneSided, ...] = ()
    remarks: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    n_tested: int = 0

    def __repr__(self) -> str:
        return "\n".join([self._title, *self.remarks, *(each.sentence for each in self.findings)])

    def _repr_html_(self) -> str:
        rows = [(each.sentence, each.effect.effect, each.effect.p) for each in self.findings]
        found = table(("what differs", "effect", "p"), rows)
        beside = [*(each.sentence for each in self.carried), *(each.sentence for each in self.one_sided)]
        return titled(self._title, lines(self.remarks), found, lines(beside))

    @property
    def _title(self) -> str:
        return f"{self.a} against {self.b}: {self.rows[0]:,} rollouts against {self.rows[1]:,}"


def explain(
    relations: Relations,
    a: Selection,
    b: Selection | None = None,
    *,
    weights: Mapping[str, float] | None = None,
    columns: RolloutColumns | None = None,
) -> Explanation:
    """Ranks every column by how far A and B differ.

    Args:
        relations: where to read.
        a: the rollouts in question.
        b: what they are compared with; the ten steps before A where it is not given.
        weights: reward component -> weight, where declared.
        columns: what `rollouts` has; looked up where it is not given.

    Raises:
        StoreError: B is not given and A has no first step, so that nothing comes before it.
    """
    known = columns or describe(relations)
    neighbours = b is None
    if b is None:
        if a.steps[0] is None:
            raise StoreError(
                "explain: A has no first step, so nothing comes before it. Name a step, or give B."
            )
        b = before(relations, a, known)
    rows = read_rows(relations, known, [(A, a), (B, b), *_steps_before(relations, known, a, b, neighbours)])
    remarks = _remarks(rows, (a, b))
    if min(rows.counts) < 2:
        return Explanation(a.name, b.name, rows.counts, rows.group_counts, remarks=tuple(remarks))
    contained = Contained()
    earlier = None
    if neighbours and a.run is not None and a.split is not None:
        what = "earlier visits of the prompts"
        earlier = contained(what, read_earlier_visits, relations, known, a, rows)
    compared = ColumnsCompared(rows, neighbours, earlier)
    fixed = _fixed(known, a, b)
    tested, one_sided = _tested(compared, fixed, contained)
    if (young := compared.young_step()) is not None:
        rows = rows.without(young[1], NEIGHBOURS)
        b = _left_out(rows, b)
        remarks = [_said(young, int(a.steps[0] or 0)), *_remarks(rows, (a, b))]
        compared, contained.problems[:] = ColumnsCompared(rows, neighbours, earlier), []
        tested, one_sided = _tested(compared, fixed, contained)
    tested = [replace(f, new=f.new and not _occurred(relations, known, a, f)) for f in tested]
    if not a.where and not b.where:
        first = rows.step[np.isin(rows.side, (B, BEFORE))].min()
        ends = (int(first), int((b.steps[0] or 0) - 1)) if neighbours else None
        tested += contained("logged numbers", lambda: list(compare_logged(relations, a, b, ends))) or []
    carried = contained("who carried it", lambda: list(who_carried(rows, a, neighbours=neighbours))) or []
    p, weighed = [*(f.effect.p for f in tested), *(c.p for c in carried)], _weights(tested, carried)
    sure = discovered(p, weighed)
    found = [f for f, ok in zip(tested, sure, strict=False) if ok and _large(f)]
    if not sure.any():
        near = zip(tested, discovered(p, weighed, DOUBTFUL), strict=False)
        found = [replace(f, is_sure=False) for f, ok in near if ok and _large(f)]
        found = sorted(found, key=lambda f: f.effect.p)[:MOST_DOUBTFUL]
    of_all = {f.column for f in found if f.part is None}
    found = [f for f in found if f.part is None or f.column not in of_all]
    found.sort(key=rank)
    means = {f.column: compared.means(f.column) for f in found if f.value is None and not f.logged}
    shown = [_with_evidence(rows, a, b, f, at < MOST, contained) for at, f in enumerate(nested(found, means))]
    details = [f.detail for f in shown if f.is_outcome and f.detail is not None]
    named = [each.part.column for each in details if each.part is not None]
    parts = contained("the reward's parts", decomposed, rows, a, b, weights, named) or ()
    return Explanation(
        a=a.name,
        b=b.name,
        rows=rows.counts,
        groups=rows.group_counts,
        findings=tuple(shown),
        decompositions=tuple(part for part in parts if part.column not in fixed),
        carried=tuple(c for c, ok in zip(carried, sure[len(tested) :], strict=True) if ok),
        phrases=tuple(contained("what was written", compare_texts, relations, known, a, b) or ()),
        winners=tuple(contained("what winners wrote", winners_against_losers, relations, known, a) or ()),
        one_sided=tuple(one_sided),
        remarks=(*remarks, *_rows_of_the_reward(rows, parts)),
        problems=tuple(contained.problems),
        n_tested=len(tested),
    )


def _left_out(rows: SideRows, b: Selection) -> Selection:
    """B as it is once steps were left out."""
    steps = np.unique(rows.step[rows.side == B])
    first, last = (int(steps[0]), int(steps[-1])) if len(steps) else (0, -1)
    return replace(b, steps=(first, last), label=f"the {len(steps)} steps before ({first} to {last})")


def _said(young: tuple[str, int], first: int) -> str:
    """Says what was left out, and why."""
    name, step = young
    steps = f"Step {step} is" if step == first - 1 else f"Steps {step} to {first - 1} are"
    return f"{steps} left out of what it is compared with: {in_quotes(name)} changed at step {step}."


def _fixed(columns: RolloutColumns, a: Selection, b: Selection) -> Mapping[str, Collection[Any]]:
    """The columns by which two sides were chosen, of those with several values the ones that were asked for; and the flags that are looked for in one of the splits alone."""
    fixed: dict[str, Collection[Any]] = {}
    if (a.where, a.params) != (b.where, b.params):
        given = (*a.params, *b.params)
        named = fixed_by(a, columns) | fixed_by(b, columns)
        fixed = {name: given if name in columns.tags else () for name in named}
    splits = {a.split, b.split} - {None}
    if alone := [name for name, spec in REGISTRY.items() if not splits <= set(spec.splits)]:
        fixed["flags"] = (*fixed.get("flags", ()), *alone)
    return fixed


def _steps_before(
    relations: Relations, columns: RolloutColumns, a: Selection, b: Selection, neighbours: bool
) -> list[tuple[int, Selection]]:
    """The steps before B, where B is the steps before A."""
    if not neighbours or b.steps[0] is None or (b.steps[1] or 0) < 0:
        return []
    scope, params = replace(a, steps=(None, b.steps[0] - 1)).condition(columns)
    query = f"select step, count(*) as n from rollouts where {scope} and step >= ? group by step order by step desc limit ?"
    found = relations.sql(query, [*params, b.steps[0] - STEPS_BEFORE * NEIGHBOURS, STEPS_BEFORE - NEIGHBOURS])
    steps, n = found.column("step").to_pylist(), np.cumsum(found.column("n").to_numpy())
    few = [step for step, total in zip(steps, n.tolist(), strict=True) if total <= ROWS_BEFORE]
    return [(BEFORE, replace(a, steps=(few[-1], few[0])))] if few else []


def _remarks(rows: SideRows, sides: Sequence[Selection]) -> list[str]:
    n, groups = rows.counts, rows.group_counts
    if min(n) == 0:
        return [f"{sides[A if n[A] == 0 else B].name}: no rollouts."]
    if min(n) < 2:
        return ["One rollout cannot be compared."]
    n_steps = sum(len(np.unique(rows.step[rows.side == side])) for side in (A, B))
    remarks = {
        f"So many rollouts that one step in {rows.left_out} was read, spread evenly.": rows.left_out > 1,
        "No groups were logged: every rollout counts as independent.": groups == n
        and not rows.columns.has("group"),
        "One side has one group only: groups cannot be separated from chance there.": min(groups) == 1,
        "Too few steps to know the spread between steps: differences are tested between groups only.": n_steps
        < FEWEST_STEPS,
    }
    return [remark for remark, holds in remarks.items() if holds]


def _rows_of_the_reward(rows: SideRows, parts: Sequence[Decomposition]) -> list[str]:
    """Says of which rollouts the reward is, and its table by component, where these are not all."""
    if not rows.columns.has("reward"):
        return []
    sides = rows.side[np.isfinite(rows.number("reward"))]
    known = int((sides == A).sum()), int((sides == B).sum())
    without = [of - n for of, n in zip(rows.counts, known, strict=True)]
    said = [
        f"The mean reward by component is of {part.rows[0]:,} of A's rollouts and {part.rows[1]:,} of B's: those that know every component."
        for part in parts
        if part.components and part.rows != known
    ]
    if all(known) and any(without):
        whose = f"{without[0]:,} of A's rollouts and {without[1]:,} of B's"
        said.insert(0, f"The reward of {whose} does not count: there is none, or its function failed.")
    return said


def _tested(
    compared: ColumnsCompared, fixed: Mapping[str, Collection[Any]], contained: Contained
) -> tuple[list[Finding], list[OneSided]]:
    """Every column that both sides know, compared; and what is said of those that one side alone knows."""
    columns = compared.rows.columns
    tested: list[Finding] = []
    one_sided: list[OneSided] = []
    for name in (*columns.numbers, *columns.texts, *columns.tags):
        if parents_of(name) & set(fixed) or (name in fixed and not fixed[name]) or name in NO_MEASURES:
            continue
        compare = compared.number if name in columns.numbers else compared.shares
        for found in (
            contained(f"column {in_quotes(name)}", lambda of, name: list(of(name)), compare, name) or ()
        ):
            if isinstance(found, OneSided):
                one_sided.append(found)
            elif not parents_of(found.name) & set(fixed) and found.value not in fixed.get(name, ()):
                tested.append(found)
    parted_by = [each for each in compared.rows.parts if each not in fixed]
    for name in [f.column for f in tested if f.value is None] if parted_by else []:
        inside = contained(f"parts of {in_quotes(name)}", compared.in_its_part, name, parted_by)
        tested += [inside] if inside is not None else []
    return tested, one_sided


def _occurred(relations: Relations, columns: RolloutColumns, a: Selection, found: Finding) -> bool:
    """Tells whether any rollout before A's first step has the value of something new."""
    if not found.new or a.steps[0] is None:
        return False
    scope, params = replace(a, steps=(None, a.steps[0] - 1)).condition(columns)
    name = quoted(found.column)
    holds = f"list_contains({name}, ?)" if found.column in columns.tags else f"{name} = ?"
    query = f"select 1 from rollouts where {scope} and {holds} limit 1"
    return bool(relations.sql(query, [*params, found.value]).num_rows)


def _weights(tested: Sequence[Finding], carried: Sequence[Carried]) -> list[float]:
    """Parts the error among the comparisons: half of it is for what a run is read by; in a part a column takes less than as a whole."""
    outcomes = sum(f.is_outcome and f.part is None for f in tested)
    others = sum(not f.is_outcome and f.part is None for f in tested) + len(carried)
    own, rest = 1.0, 1.0
    if outcomes and others:
        own, rest = OUTCOMES_WEIGHT / outcomes, (1 - OUTCOMES_WEIGHT) / others
    each = [max(own, rest) if f.is_outcome else rest for f in tested]
    return [
        *(w if f.part is None else PART_WEIGHT * w for w, f in zip(each, tested, strict=True)),
        *[rest] * len(carried),
    ]


def _large(f: Finding) -> bool:
    return abs(f.effect.effect) >= (LEAST_DELTA if f.value is None else LEAST_SHARE)


def _with_evidence(
    rows: SideRows, a: Selection, b: Selection, f: Finding, detailed: bool, contained: Contained
) -> Finding:
    """A finding with its query, and for the first ones with parts, examples and picture."""
    if f.logged:
        return f
    if detailed:
        f = replace(f, detail=contained(f"parts of {in_quotes(f.name)}", detail_of, rows, f))
    below = tuple(_with_evidence(rows, a, b, each, False, contained) for each in f.consequences)
    query = level_query if f.part is None else part_query
    return replace(f, query=query(rows.columns, a, b, f), consequences=below)
