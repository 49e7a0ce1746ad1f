"""Prompts over a run: how often each was tried and solved, its trend, what it costs; and one prompt's page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from rollout_traces.analysis.relations import (
    Relations,
    RolloutColumns,
    describe,
    failed,
    known_reward,
)
from rollout_traces.analysis.selections import Selection
from rollout_traces.errors import StoreError
from rollout_traces.ledger.groups import TIED_SQL

Order = Literal["solved", "easiest", "trend", "variance", "waste", "visits", "tokens"]
ORDERS: dict[str, str] = {
    "solved": "solve_rate asc nulls last, tried desc, rollouts desc",
    "easiest": "solve_rate desc nulls last, tried desc, rollouts desc",
    "trend": "trend asc nulls last",
    "variance": "spread desc nulls last",
    "waste": "wasted desc nulls last",
    "visits": "steps desc",
    "tokens": "tokens desc nulls last",
}
"""Order -> SQL; ties by the prompt's key."""


@dataclass(frozen=True)
class PromptSummary:
    """One prompt over a selection.

    Attributes:
        prompt_key: the prompt.
        prompt: its preview; None where no trace shows it.
        source: where it comes from.
        visits: steps in which it was asked.
        rollouts: how many there are.
        tried: those of them whose success is known.
        solved: rollouts that solved it; None where success is unknown.
        solve_rate: solved of those that tried.
        mean_reward: over rollouts with a known reward whose reward function did not fail.
        spread: standard deviation of the reward.
        trend: slope of the reward over steps, in rewards a step; None with one step.
        first_solved: first step in which any rollout solved it.
        first_step: first step in which it was asked.
        last_step: last step.
        tokens: sampled tokens.
        wasted: those in groups whose rewards are all equal; None where tokens are unknown.
    """

    prompt_key: str
    prompt: str | None
    source: str | None
    visits: int
    rollouts: int
    tried: int
    solved: int | None
    solve_rate: float | None
    mean_reward: float | None
    spread: float | None
    trend: float | None
    first_solved: int | None
    first_step: int | None
    last_step: int | None
    tokens: int | None
    wasted: int | None


@dataclass(frozen=True)
class PromptVisit:
    """One prompt in one step of one split and run.

    Attributes:
        run: the run.
        split: the split.
        step: the step.
        rollouts: how many there are.
        tried: those of them whose success is known.
        solved: rollouts that solved it; None where unknown.
        rewards: every known reward whose reward function did not fail, ascending.
        mean_reward: their mean.
        n_sampled: mean sampled tokens.
        stop_reasons: stop reason -> rollouts.
        ids: traced rollouts.
    """

    run: str
    split: str
    step: int
    rollouts: int
    tried: int
    solved: int | None
    rewards: tuple[float, ...]
    mean_reward: float | None
    n_sampled: float | None
    stop_reasons: dict[str, int]
    ids: tuple[str, ...]


@dataclass(frozen=True)
class PromptList:
    """A page of prompts.

    Attributes:
        prompts: in the order asked for.
        total: how many there are.
        keyless: rollouts without a prompt key, which are in no prompt.
    """

    prompts: tuple[PromptSummary, ...]
    total: int
    keyless: int


def list_prompts(
    relations: Relations,
    which: Selection,
    *,
    order: Order = "solved",
    limit: int = 50,
    offset: int = 0,
    columns: RolloutColumns | None = None,
) -> PromptList:
    """Prompts of a selection, by solve rate, the hardest or the easiest first, its trend, variance, waste, visits or tokens.

    Args:
        relations: where to read.
        which: the rollouts.
        order: see `ORDERS`.
        limit: most prompts.
        offset: prompts to leave out before.
        columns: what `rollouts` has.

    Raises:
        StoreError: no prompt keys, or an unknown order.
    """
    c = columns or describe(relations)
    if not c.has("prompt_key"):
        raise StoreError("prompts: no rollout has a prompt key. Log `prompt_keys`.")
    if order not in ORDERS:
        raise StoreError(f"prompts: no order {order!r}. Orders: {', '.join(ORDERS)}.")
    scope, params = which.condition(c)
    steps = f"count(distinct ({_place(which)}))" if order == "visits" else "null"
    query = f"""
        with groups as materialized (
            select prompt_key, {_place(which)}, "group", count(*) as n, count(r) as known, sum(failed) as failed, count(success) as tried_s,
                sum(success) as solved, sum(r) as total, sum(r*r) as square, min(r) as low, max(r) as high,
                sum(tokens) as tokens
            from (select prompt_key, {_place(which)}, {c.expression("group")} as "group",
                    {known_reward(c)} as r, {failed(c)} as failed, {c.expression("success")} as success,
                    {c.expression("n_sampled")} as tokens
                 from rollouts where {scope})
            group by prompt_key, {_place(which)}, "group"),
        of_prompt as (
            select prompt_key, {steps} as steps,
                sum(n) as rollouts, sum(tried_s) as tried, sum(solved) as solved,
                sum(solved) / nullif(sum(tried_s), 0) as solve_rate,
                sum(total) / nullif(sum(known), 0) as mean_reward,
                sqrt(greatest(sum(square) / nullif(sum(known), 0) - power(sum(total) / nullif(sum(known), 0), 2), 0)) as spread,
                case when min(step) < max(step) then regr_slope(total / nullif(known, 0), step) end as trend,
                min(case when solved > 0 then step end) as first_solved, min(step) as first_step, max(step) as last_step,
                sum(tokens) as tokens,
                case when count(tokens) > 0 then sum(case when {TIED_SQL} then coalesce(tokens, 0) else 0 end) end as wasted
            from groups where prompt_key is not null group by prompt_key)
        select prompt_key, rollouts, tried, solved, solve_rate, mean_reward, spread, trend, first_solved,
            first_step, last_step, tokens, wasted, count(*) over () as total,
            (select sum(n) from groups where prompt_key is null) as keyless
        from of_prompt
        order by {ORDERS[order]}, prompt_key limit {int(limit)} offset {int(offset)}"""
    rows = relations.sql(query, params).to_pylist()
    if not rows:
        keyless = f"select count(*) as n from rollouts where {scope} and prompt_key is null"
        return PromptList((), 0, int(relations.sql(keyless, params).to_pydict()["n"][0]))
    shown = _shown(relations, c, which, [row["prompt_key"] for row in rows])
    prompts = tuple(_summary(row | shown[row["prompt_key"]]) for row in rows)
    return PromptList(prompts, int(rows[0]["total"]), int(rows[0]["keyless"] or 0))


def _place(which: Selection) -> str:
    """The columns that tell where a prompt was asked, of rollouts that may be of several runs and splits."""
    return "step" if which.run is not None and which.split is not None else "run, split, step"


def _shown(
    relations: Relations, columns: RolloutColumns, which: Selection, keys: Sequence[str]
) -> dict[str, dict[str, Any]]:
    """Prompt key -> `visits`, `source`, and `prompt`, the preview, of a rollout that knows it."""
    scope, params = which.condition(columns)
    query = f"""
        select prompt_key, count(distinct ({_place(which)})) as visits, any_value({columns.expression("source")}) as source,
            any_value({columns.expression("prompt")}) as prompt
        from rollouts where {scope} and prompt_key in (select unnest(?)) group by prompt_key"""
    return {row["prompt_key"]: row for row in relations.sql(query, [*params, list(keys)]).to_pylist()}


def prompt_over_time(
    relations: Relations,
    prompt_key: str,
    *,
    runs: Sequence[str] = (),
    columns: RolloutColumns | None = None,
) -> list[PromptVisit]:
    """All rollouts of one prompt over steps, splits and runs.

    Args:
        relations: where to read.
        prompt_key: the prompt.
        runs: only these; all by default.
        columns: what `rollouts` has.

    Raises:
        StoreError: no rollout has that key.
    """
    c = columns or describe(relations)
    if not c.has("prompt_key"):
        raise StoreError("prompts: no rollout has a prompt key. Log `prompt_keys`.")
    scope, params = Selection(None, None).condition(c)
    reward, success = known_reward(c), c.expression("success")
    ids = f"cast({c.expression('id')} as varchar)"
    within = " and list_contains(?, run)" if runs else ""
    query = f"""
        select run, split, step, count(*) as rollouts, count({success}) as tried, sum({success}) as solved,
            list({reward} order by {reward}) filter (where {reward} is not null) as rewards, avg({reward}) as mean_reward,
            avg({c.expression("n_sampled")}) as n_sampled, list({c.expression("stop_reason")}) as stops,
            list({ids} order by {ids}) filter (where {c.expression("traced")}) as ids
        from rollouts where {scope} and prompt_key = ?{within} group by run, split, step order by run, split, step"""
    rows = relations.sql(query, [*params, prompt_key, *([list(runs)] if runs else [])]).to_pylist()
    if not rows:
        raise StoreError(f"prompts: no rollout has the prompt key {prompt_key!r}.")
    return [_visit(row) for row in rows]


def _summary(row: dict[str, Any]) -> PromptSummary:
    def whole(name: str) -> int | None:
        return None if row[name] is None else int(row[name])

    def real(name: str) -> float | None:
        return None if row[name] is None else float(row[name])

    return PromptSummary(
        prompt_key=row["prompt_key"],
        prompt=row["prompt"],
        source=row["source"],
        visits=int(row["visits"]),
        rollouts=int(row["rollouts"]),
        tried=int(row["tried"]),
        solved=whole("solved"),
        solve_rate=real("solve_rate"),
        mean_reward=real("mean_reward"),
        spread=real("spread"),
        trend=real("trend"),
        first_solved=whole("first_solved"),
        first_step=whole("first_step"),
        last_step=whole("last_step"),
        tokens=whole("tokens"),
        wasted=whole("wasted"),
    )


def _visit(row: dict[str, Any]) -> PromptVisit:
    stops: dict[str, int] = {}
    for reason in row["stops"] or []:
        if reason is not None:
            stops[reason] = stops.get(reason, 0) + 1
    return PromptVisit(
        run=str(row["run"]),
        split=str(row["split"]),
        step=int(row["step"]),
        rollouts=int(row["rollouts"]),
        tried=int(row["tried"]),
        solved=None if row["solved"] is None else int(row["solved"]),
        rewards=tuple(float(r) for r in row["rewards"] or ()),
        mean_reward=row["mean_reward"],
        n_sampled=row["n_sampled"],
        stop_reasons=stops,
        ids=tuple(row["ids"] or ()),
    )
