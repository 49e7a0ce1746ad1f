"""A and B read from `rollouts`: means of every number by group, sums of every share by step."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from rollout_traces.analysis.compare import ClusterSums
from rollout_traces.analysis.relations import (
    Relations,
    RolloutColumns,
    as_arrays,
    known_number,
    quoted,
    sql_text,
    unit_over_steps,
    written,
)
from rollout_traces.analysis.selections import Selection, sql_union
from rollout_traces.flags import needs_text

FEW_VALUES = 16
"""A text column of at most so many values on both sides is counted in the same reading as the numbers."""
MOST_VALUES = 200
"""Values of a text column that are compared, the most frequent of both sides."""


@dataclass(frozen=True, eq=False)
class Groups:
    """Both sides by group.

    Attributes:
        side: int [U], 0 for A and 1 for B.
        step: int [U].
        unit: object [U], run, split, step and group: the same on both sides where they share a group.
        prompt: object [U], the prompt's key, None where unknown.
        n: float [U], rollouts.
        means: column -> float [U], NaN where the group knows none.
        counts: column -> (rollouts of A, of B) that know it.
        totals: column -> (mean over rollouts of A, of B).
        known: text column -> float [U], rollouts that know it.
        hits: text column -> value -> float [U], rollouts with it; for columns of few values.
        many: text columns of more values.
    """

    side: np.ndarray
    step: np.ndarray
    unit: np.ndarray
    prompt: np.ndarray
    n: np.ndarray
    means: dict[str, np.ndarray]
    counts: dict[str, tuple[int, int]]
    totals: dict[str, tuple[float, float]]
    known: dict[str, np.ndarray]
    hits: dict[str, dict[str, np.ndarray]]
    many: tuple[str, ...]


def read_groups(relations: Relations, columns: RolloutColumns, a: Selection, b: Selection) -> Groups:
    """Every number of both sides by group, and the values of the text columns that have few, in one reading."""
    numbers = columns.numbers
    values, many = _few_values(relations, columns, a, b)
    found = _sums_of_groups(relations, columns, a, b, values, frozenset())
    odd = frozenset(
        name
        for i, name in enumerate(numbers)
        if name in columns.floats and (~np.isfinite(found[f"m{i}"]) & (found[f"k{i}"] > 0)).any()
    )
    if odd:
        found = _sums_of_groups(relations, columns, a, b, values, odd)
    side, n = found["side"].astype(int), found["n"].astype(float)
    means, counts, totals = {}, {}, {}
    for i, name in enumerate(numbers):
        k, mean = found[f"k{i}"].astype(float), found[f"m{i}"].astype(float)
        known = [float(k[side == s].sum()) for s in (0, 1)]
        sums = [float((np.nan_to_num(mean) * k)[side == s].sum()) for s in (0, 1)]
        means[name] = mean
        counts[name] = (int(known[0]), int(known[1]))
        totals[name] = (_ratio(sums[0], known[0]), _ratio(sums[1], known[1]))
    prompt = np.where(found["keyless"].astype(bool), 0, found["prompt"])
    step = np.nan_to_num(found["step"].astype(float), nan=-1).astype(np.int64)
    known_texts = {name: found[f"of{i}"].astype(float) for i, name in enumerate(values)}
    hits = {name: _hits(found, i, of_column) for i, (name, of_column) in enumerate(values.items())}
    return Groups(side, step, found["unit"], prompt, n, means, counts, totals, known_texts, hits, many)


def _sums_of_groups(
    relations: Relations,
    columns: RolloutColumns,
    a: Selection,
    b: Selection,
    values: Mapping[str, Sequence[str]],
    odd: Collection[str],
) -> dict[str, np.ndarray]:
    """A row a group of each side: `k` rollouts that know a number and `m` their mean; of texts `of` and `h` by value.

    Args:
        relations: where to read.
        columns: what `rollouts` has.
        a: one side.
        b: the other.
        values: text column -> its values; all but the first are counted.
        odd: numbers that are NaN or infinite somewhere, which reads as unknown.
    """
    key, prompt = unit_over_steps(columns, one_run=_one_run(a, b)), columns.expression("prompt_key")
    what = [f"step, {key} as unit, hash({prompt}) as prompt, {prompt} is null as keyless"]
    what += [f"{known_number(n) if n in odd else quoted(n)} as c{i}" for i, n in enumerate(columns.numbers)]
    what += [f"{quoted(name)} as t{i}" for i, name in enumerate(values)]
    union, params = sql_union(columns, [(0, a), (1, b)], ", ".join(what))
    parts = [f"count(c{i}) as k{i}, avg(c{i}) as m{i}" for i in range(len(columns.numbers))]
    for i, of_column in enumerate(values.values()):
        parts.append(f"count(t{i}) as of{i}")
        parts += [f"countif(t{i} = {sql_text(v)}) as h{i}_{j}" for j, v in enumerate(of_column) if j]
    query = (
        f"select side, step, unit, any_value(prompt) as prompt, bool_or(keyless) as keyless, count(*) as n"
        f"{''.join(', ' + part for part in parts)} from ({union}) group by side, step, unit"
    )
    return as_arrays(relations.sql(query, params))


def _hits(found: Mapping[str, np.ndarray], i: int, values: Sequence[str]) -> dict[str, np.ndarray]:
    """Value -> float [U], rollouts with it; the first one's are those of no other."""
    rest = {v: found[f"h{i}_{j}"].astype(float) for j, v in enumerate(values) if j}
    first = found[f"of{i}"].astype(float) - sum(rest.values(), np.zeros(len(found["n"])))
    return {values[0]: first, **rest}


def _few_values(
    relations: Relations, columns: RolloutColumns, a: Selection, b: Selection
) -> tuple[dict[str, list[str]], tuple[str, ...]]:
    """Text column -> its values, the most frequent first, where they are at most `FEW_VALUES`; the columns of more."""
    if not columns.texts:
        return {}, ()
    parts = []
    for i, name in enumerate(columns.texts):
        union, params = sql_union(columns, [(0, a), (1, b)], f"cast({quoted(name)} as varchar) as v")
        counted = f"select {i} as which, v, count(*) as n from ({union}) where v is not null group by v order by n desc, v limit {FEW_VALUES + 1}"
        parts.append(f"select which, v, n from ({written(counted, params)})")
    rows = relations.sql(" union all ".join(parts)).to_pylist()
    found: dict[str, list[str]] = {}
    for row in sorted(rows, key=lambda row: (row["which"], -row["n"], row["v"])):
        found.setdefault(columns.texts[row["which"]], []).append(row["v"])
    many = tuple(name for name in columns.texts if len(found.get(name, ())) > FEW_VALUES)
    return {name: values for name, values in found.items() if name not in many}, many


def _known_tags(
    relations: Relations, columns: RolloutColumns, a: Selection, b: Selection
) -> set[tuple[str, bool]]:
    """The columns of several values that some rollout of either side knows; with True, one traced at random."""
    random = f"{columns.expression('traced')} and {columns.expression('selected_by')} = 'random'"
    asked = [(name, read) for name in columns.tags for read in (False, True)]
    parts, given = [], []
    for at, (name, read) in enumerate(asked):
        union, params = sql_union(columns, [(0, a), (1, b)], f"{quoted(name)} as t, {random} as random")
        known = f"t is not null{' and random' if read else ''}"
        parts.append(f"exists(select 1 from ({union}) where {known}) as x{at}")
        given += params
    if not asked:
        return set()
    [row] = relations.sql(f"select {', '.join(parts)}", given).to_pylist()
    return {pair for at, pair in enumerate(asked) if row[f"x{at}"]}


@dataclass(frozen=True, eq=False)
class ShareSums:
    """One value of a text column or tag on both sides.

    Attributes:
        column: the column.
        value: the value.
        a: sums over groups of A.
        b: sums over groups of B.
        rows_a: rollouts of A with the value, unweighted.
        rows_b: rollouts of B with the value, unweighted.
        steps: int [T], steps of both sides.
        side: int [T].
        shares: float [T], the share in each step.
        groups: float [T], groups of each step.
    """

    column: str
    value: str
    a: ClusterSums
    b: ClusterSums
    rows_a: int
    rows_b: int
    known_a: int
    known_b: int
    steps: np.ndarray
    side: np.ndarray
    shares: np.ndarray
    groups: np.ndarray


def read_shares(
    relations: Relations, columns: RolloutColumns, a: Selection, b: Selection, groups: Groups
) -> Iterator[ShareSums]:
    """Every value of every text column and tag on both sides.

    Args:
        relations: where to read.
        columns: what `rollouts` has.
        a: one side.
        b: the other.
        groups: what was read of them by group.
    """
    for name in groups.hits:
        yield from _of_groups(groups, name)
    for name in groups.many:
        yield from _of(relations, columns, a, b, name, False)
    known = _known_tags(relations, columns, a, b)
    drawn = columns.has("traced", "selected_by")
    for name in columns.tags:
        if name == "flags" and drawn:
            bases = [False, True]
        else:
            bases = [drawn and name in ("tool_names", "error_signatures")]
        for texted in bases:
            if (name, texted) in known:
                found = _of(relations, columns, a, b, name, texted)
                yield from (s for s in found if len(bases) == 1 or needs_text(s.value) is texted)


def _of_groups(groups: Groups, name: str) -> Iterator[ShareSums]:
    """The values of a column of few, from its counts in the groups."""
    n = groups.known[name]
    code = groups.step * 2 + groups.side
    places, index = np.unique(code, return_inverse=True)
    size = len(places)
    t_side, t_step = places % 2, places // 2
    rows, squares, of = (np.bincount(index, weight, size) for weight in (n, n * n, n > 0))
    there = rows > 0
    for value, h in groups.hits[name].items():
        hits, hits2, cross, with_hits = (
            np.bincount(index, weight, size) for weight in (h, h * h, h * n, h > 0)
        )
        a, b = (
            ClusterSums(
                *(
                    float(each[t_side == s].sum())
                    for each in (hits, rows, hits2, cross, squares, of, with_hits)
                )
            )
            for s in (0, 1)
        )
        yield ShareSums(
            name, value, a, b, int(a.hits), int(b.hits), int(a.rows), int(b.rows),
            t_step[there], t_side[there], hits[there] / rows[there], of[there],
        )  # fmt: skip


def _of(
    relations: Relations, columns: RolloutColumns, a: Selection, b: Selection, name: str, texted: bool
) -> Iterator[ShareSums]:
    weighted = texted and columns.has("selected_probability")
    weight = "1 / nullif(selected_probability, 0)" if weighted else "1"
    condition = "v is not null" + (" and random" if texted else "")
    random = "traced and selected_by = 'random'" if texted else "true"
    key = unit_over_steps(columns, one_run=_one_run(a, b))
    what = f"step, {key} as unit, {quoted(name)} as v, coalesce({weight}, 1) as w, {random} as random"
    union, params = sql_union(columns, [(0, a), (1, b)], what)
    query = _tag_sums(union, condition) if name in columns.tags else _text_sums(union, condition)
    found = as_arrays(relations.sql(query, params))
    if not len(found["side"]):
        return
    side, step = (
        found["side"].astype(int),
        np.nan_to_num(found["step"].astype(float), nan=-1).astype(np.int64),
    )
    whole = np.asarray([v is None for v in found["v"]])
    code = step * 2 + side
    known, index = np.unique(code, return_inverse=True)
    t_side, t_step = known % 2, known // 2
    size = len(known)
    n, n2, g, k = (
        np.bincount(index[whole], found[f][whole].astype(float), size) for f in ("h", "h2", "g", "k")
    )
    rows: dict[str, list[int]] = {}
    for i in np.flatnonzero(~whole):
        rows.setdefault(found["v"][i], []).append(i)
    frequent = sorted(rows, key=lambda v: -float(found["k"][rows[v]].sum()))[:MOST_VALUES]
    for v in frequent:
        at = np.asarray(rows[v])
        h, h2, hn, with_hits, hits = (
            np.bincount(index[at], found[f][at].astype(float), size) for f in ("h", "h2", "hn", "g", "k")
        )
        sums = [
            ClusterSums(
                float(h[s].sum()), float(n[s].sum()), float(h2[s].sum()), float(hn[s].sum()), float(n2[s].sum()),
                float(g[s].sum()), float(with_hits[s].sum()),
            )
            for s in (t_side == 0, t_side == 1)
        ]  # fmt: skip
        rows_a, rows_b = int(hits[t_side == 0].sum()), int(hits[t_side == 1].sum())
        known_a, known_b = int(k[t_side == 0].sum()), int(k[t_side == 1].sum())
        there = n > 0
        yield ShareSums(
            name, str(v), sums[0], sums[1], rows_a, rows_b, known_a, known_b,
            t_step[there], t_side[there], h[there] / n[there], g[there],
        )  # fmt: skip


def _one_run(a: Selection, b: Selection) -> bool:
    """Whether both sides are of one run and split, whose groups the step and group name."""
    return a.run is not None and a.split is not None and (a.run, a.split) == (b.run, b.split)


_SUMS = """
        select side, step, null as v, sum(n) as h, sum(n*n) as h2, sum(n*n) as hn, count(*) as g, sum(k) as k
        from base group by side, step
        union all
        select hit.side, hit.step, hit.v, sum(h), sum(h*h), sum(h*n), count(*), sum(hit.k)
        from hit join base using (side, unit) where hit.v is not null group by 1, 2, 3"""


def _text_sums(union: str, condition: str) -> str:
    """SQL of the sums over groups of a column with one value a row, which is read once."""
    return f"""
        with hit as materialized (
            select side, unit, v, any_value(step) as step, sum(w) as h, count(*) as k
            from ({union}) where {condition} group by 1, 2, 3),
        base as (select side, unit, any_value(step) as step, sum(h) as n, sum(k) as k from hit group by 1, 2)
        {_SUMS}"""


def _tag_sums(union: str, condition: str) -> str:
    """SQL of the sums over groups of a column with several values a row, or none."""
    return f"""
        with r as materialized (select side, step, unit, v, w from ({union}) where {condition}),
        base as (select side, unit, any_value(step) as step, sum(w) as n, count(*) as k from r group by 1, 2),
        hit as (select side, unit, v, any_value(step) as step, sum(w) as h, count(*) as k
                from (select side, step, unit, unnest(list_distinct(v)) as v, w from r where len(v) > 0) group by 1, 2, 3)
        {_SUMS}"""


def _ratio(total: float, n: float) -> float:
    return total / n if n else float("nan")
