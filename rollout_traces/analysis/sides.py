"""A and B read from `rollouts`: means of every number by group, sums of every share by step."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from rollout_traces.analysis.cells import Cells, read_cells
from rollout_traces.analysis.compare import ClusterSums
from rollout_traces.analysis.relations import (
    Relations,
    RolloutColumns,
    as_arrays,
    known_number,
    quoted,
    sql_text,
    unit_over_steps,
)
from rollout_traces.analysis.selections import Selection, sql_union
from rollout_traces.flags import needs_text

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
        tagged: column of several values -> float [U], rollouts that know it.
        cells: text column -> both sides by its values; for columns of few values.
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
    tagged: dict[str, np.ndarray]
    cells: dict[str, Cells]
    many: tuple[str, ...]


def read_groups(relations: Relations, columns: RolloutColumns, a: Selection, b: Selection) -> Groups:
    """Every number of both sides by group, and the values of the text columns that have few, in one reading."""
    numbers = columns.numbers
    cells = read_cells(relations, columns, a, b)
    values = {name: _by_frequency(each) for name, each in cells.items()}
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
    tagged = {name: found[f"tag{i}"].astype(float) for i, name in enumerate(columns.tags)}
    many = tuple(name for name in columns.texts if name not in cells)
    return Groups(
        side, step, found["unit"], prompt, n, means, counts, totals, known_texts, hits, tagged, cells, many
    )


def _sums_of_groups(
    relations: Relations,
    columns: RolloutColumns,
    a: Selection,
    b: Selection,
    values: Mapping[str, Sequence[str]],
    odd: Collection[str],
) -> dict[str, np.ndarray]:
    """A row a group of each side: `k` rollouts that know a number and `m` their mean; of texts `of` and `h` by value;
    `tag` that know a column of several values.

    Args:
        relations: where to read.
        columns: what `rollouts` has.
        a: one side.
        b: the other.
        values: text column -> its values; all but the first are counted.
        odd: numbers that are NaN or infinite somewhere, which reads as unknown.
    """
    key, prompt = unit_over_steps(columns, one_run=_one_run(a, b)), columns.expression("prompt_key")
    what = [f"step, {key} as unit, {prompt} as prompt"]
    what += [f"{known_number(n) if n in odd else quoted(n)} as c{i}" for i, n in enumerate(columns.numbers)]
    what += [f"{quoted(name)} as t{i}" for i, name in enumerate(values)]
    what += [f"{quoted(name)} is not null as g{i}" for i, name in enumerate(columns.tags)]
    union, params = sql_union(columns, [(0, a), (1, b)], ", ".join(what))
    parts = [f"count(c{i}) as k{i}, avg(c{i}) as m{i}" for i in range(len(columns.numbers))]
    for i, of_column in enumerate(values.values()):
        parts.append(f"count(t{i}) as of{i}")
        parts += [f"countif(t{i} = {sql_text(v)}) as h{i}_{j}" for j, v in enumerate(of_column) if j]
    parts += [f"countif(g{i}) as tag{i}" for i in range(len(columns.tags))]
    query = (
        f"select side, step, unit, hash(any_value(prompt)) as prompt, any_value(prompt) is null as keyless, count(*) as n"
        f"{''.join(', ' + part for part in parts)} from ({union}) group by side, step, unit"
    )
    return as_arrays(relations.sql(query, params))


def _hits(found: Mapping[str, np.ndarray], i: int, values: Sequence[str]) -> dict[str, np.ndarray]:
    """Value -> float [U], rollouts with it; the first one's are those of no other."""
    rest = {v: found[f"h{i}_{j}"].astype(float) for j, v in enumerate(values) if j}
    first = found[f"of{i}"].astype(float) - sum(rest.values(), np.zeros(len(found["n"])))
    return {values[0]: first, **rest}


def _by_frequency(cells: Cells) -> list[str]:
    """The values of a text column, the most frequent first."""
    n: dict[str, float] = {}
    for value, count in zip(cells.value.tolist(), cells.n.tolist(), strict=True):
        if value is not None:
            n[value] = n.get(value, 0.0) + count
    return sorted(n, key=lambda value: (-n[value], value))


def _read_at_random(
    relations: Relations, columns: RolloutColumns, a: Selection, b: Selection
) -> frozenset[str]:
    """The columns of several values that some rollout of either side, traced at random, knows."""
    if not columns.tags or not columns.has("traced", "selected_by"):
        return frozenset()
    what = ", ".join(f"{quoted(name)} is not null as t{i}" for i, name in enumerate(columns.tags))
    union, params = sql_union(
        columns, [(0, a), (1, b)], f"traced and selected_by = 'random' as random, {what}"
    )
    known = ", ".join(f"bool_or(t{i}) as x{i}" for i in range(len(columns.tags)))
    [row] = relations.sql(f"select {known} from ({union}) where random", params).to_pylist()
    return frozenset(name for i, name in enumerate(columns.tags) if row[f"x{i}"])


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
    for name, values in groups.hits.items():
        everyone = slice(None)
        yield from _of_groups(groups, name, groups.known[name], {v: (everyone, h) for v, h in values.items()})
    for name in groups.many:
        yield from _of(relations, columns, a, b, name, False)
    drawn = columns.has("traced", "selected_by")
    at_random = _read_at_random(relations, columns, a, b)
    for name in columns.tags:
        texted = drawn and name in ("flags", "tool_names", "error_signatures")
        if (not texted or name == "flags") and groups.tagged[name].any():
            hits = _tag_hits(relations, columns, a, b, groups, name)
            counted = {v: each for v, each in hits.items() if not (texted and needs_text(v))}
            yield from _of_groups(groups, name, groups.tagged[name], counted)
        if texted and name in at_random:
            found = _of(relations, columns, a, b, name, True)
            yield from (s for s in found if name != "flags" or needs_text(s.value))


def _tag_hits(
    relations: Relations,
    columns: RolloutColumns,
    a: Selection,
    b: Selection,
    groups: Groups,
    name: str,
) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Value of a column of several values -> (int [H], groups that have it, float [H], rollouts with it)."""
    what = f"step, {unit_over_steps(columns, one_run=_one_run(a, b))} as unit, {quoted(name)} as v"
    union, params = sql_union(columns, [(0, a), (1, b)], what)
    listed = f"select side, step, unit, unnest(list_distinct(v)) as v from ({union}) where len(v) > 0"
    query = f"select side, step, unit, v, count(*) as h from ({listed}) where v is not null group by all"
    found = as_arrays(relations.sql(query, params))
    place = np.full(len(found["side"]), -1)
    rows: dict[str, list[int]] = {}
    for side in (0, 1):
        here = np.flatnonzero(groups.side == side)
        order = here[np.argsort(groups.unit[here])]
        of_side = found["side"] == side
        place[of_side] = order[np.searchsorted(groups.unit[order], found["unit"][of_side])]
    for i, value in enumerate(found["v"]):
        rows.setdefault(value, []).append(i)
    hits = {value: (place[at], found["h"][at].astype(float)) for value, at in rows.items()}
    frequent = sorted(hits, key=lambda value: -float(hits[value][1].sum()))[:MOST_VALUES]
    return {value: hits[value] for value in frequent}


def _of_groups(
    groups: Groups, name: str, n: np.ndarray, found: Mapping[str, tuple[slice | np.ndarray, np.ndarray]]
) -> Iterator[ShareSums]:
    """The values of a column from its counts in the groups.

    Args:
        groups: both sides.
        name: the column.
        n: float [U], rollouts that know it.
        found: value -> (which groups, rollouts with it there).
    """
    code = groups.step * 2 + groups.side
    places, index = np.unique(code, return_inverse=True)
    size = len(places)
    t_side, t_step = places % 2, places // 2
    rows, squares, of = (np.bincount(index, weight, size) for weight in (n, n * n, n > 0))
    there = rows > 0
    for value, (at, h) in found.items():
        hits, hits2, cross, with_hits = (
            np.bincount(index[at], weight, size) for weight in (h, h * h, h * n[at], h > 0)
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
            name, str(value), a, b, int(a.hits), int(b.hits), int(a.rows), int(b.rows),
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
