"""One line a step: what all its rollouts, or where there is no ledger the traced ones, say of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rollout_traces.store.asking import GROUPS, Asked, Asking
from rollout_traces.store.query.compiler import Sql
from rollout_traces.store.scope import Scope
from rollout_traces.store.store import EVERYTHING, Steps, Store


@dataclass(frozen=True)
class StepFigures:
    """A step of a split in figures.

    Attributes:
        run: the run's name.
        split: the split.
        step: the step.
        rollouts: rollouts that the figures speak of: all of the step, or the traced ones without a ledger.
        traced: rollouts kept as traces.
        reward_mean: mean of the known rewards; None when there are none.
        reward_std: their population standard deviation.
        tied_groups: share of groups of two or more whose rewards are all equal.
        truncated: share of rollouts that were cut by length, of those with a stop reason.
        sampled_mean: mean sampled tokens.
        staleness_max: the stalest token's staleness.
        flags: how many rollouts have each flag, most frequent first.
    """

    run: str
    split: str
    step: int
    rollouts: int
    traced: int
    reward_mean: float | None
    reward_std: float | None
    tied_groups: float | None
    truncated: float | None
    sampled_mean: float | None
    staleness_max: int | None
    flags: Mapping[str, int]


_STEPS = """
SELECT any_value(run) AS run, split, step, count(*) AS rollouts, count(doc) AS traced,
    avg(r) AS reward_mean, stddev_pop(r) AS reward_std,
    avg(CAST(stop_reason = 'length' AS DOUBLE)) AS truncated,
    avg(n_sampled) AS sampled_mean, max(staleness_max) AS staleness_max, run_no
FROM (SELECT *, CASE WHEN isfinite(reward) THEN reward END AS r FROM rollouts t WHERE {condition})
GROUP BY run_no, split, step
"""
_TIED = """
SELECT run_no, split, step, avg(CAST(group_tied AS DOUBLE)) AS tied
FROM ({groups}) WHERE group_rows > 1 GROUP BY run_no, split, step
"""
_FLAGS = """
SELECT run_no, split, step, flag, count(*) AS n
FROM (SELECT run_no, split, step, unnest(flags) AS flag FROM rollouts t WHERE {condition})
GROUP BY run_no, split, step, flag ORDER BY n DESC, flag
"""
_READS = (
    "run", "run_no", "split", "step", "group", "attempt", "doc", "reward", "stop_reason", "n_sampled",
    "staleness_max", "flags", "superseded",
)  # fmt: skip


def summarise_steps(
    store: Store, run: str | None = None, split: str | None = None, steps: Steps = EVERYTHING
) -> list[StepFigures]:
    """Every step of a run, or of all runs; rows that a later attempt superseded are left out.

    Args:
        store: the store.
        run: id or name of a run.
        split: a split.
        steps: first and last step, both included.
    """
    order = {info.id: at for at, info in enumerate(store.runs())}
    run_id = None if run is None else store.run(run).id
    scope = Scope(run_id, split, steps, rows="all")
    return store.ask(lambda asking: _figures(asking, scope, order))


def _figures(asking: Asking, scope: Scope, order: Mapping[str, int]) -> list[StepFigures]:
    asked = asking.asked(scope)
    condition = asked.condition.and_(Sql("NOT t.superseded"))
    asked = Asked(condition, (), (*asked.columns, *_READS), {})
    kept = f"(SELECT * FROM rollouts t WHERE {condition.text})"
    groups = GROUPS.replace("FROM rollouts WHERE", f"FROM {kept} WHERE")
    tied = {
        (row["run_no"], row["split"], row["step"]): row["tied"]
        for row in asking.run(asked, _TIED.format(groups=groups), condition.parameters).to_pylist()
    }
    flags: dict[tuple[int, str, int], dict[str, int]] = {}
    if asking.rows.kinds["flags"] == "tags":
        found = asking.run(asked, _FLAGS.format(condition=condition.text), condition.parameters)
        for row in found.to_pylist():
            flags.setdefault((row["run_no"], row["split"], row["step"]), {})[row["flag"]] = row["n"]
    rows = asking.run(asked, _STEPS.format(condition=condition.text), condition.parameters).to_pylist()
    runs = asking.rows.state.runs
    rows.sort(
        key=lambda r: (order.get(runs[r["run_no"]][0], 0), r["split"] != "rollout", r["split"], r["step"])
    )
    figures = []
    for row in rows:
        key = (row.pop("run_no"), row["split"], row["step"])
        figures.append(StepFigures(**row, tied_groups=tied.get(key), flags=flags.get(key, {})))
    return figures
