"""Every group as a row."""

from __future__ import annotations

import pyarrow as pa

from rollout_traces.store.asking import GROUP_KEYS, GROUP_READS, GROUPS, Asked, Asking
from rollout_traces.store.query.compiler import EVERY

_READS = (
    *GROUP_KEYS,
    "run",
    "run_id",
    *GROUP_READS,
    "prompt_key",
    "source",
    "doc",
    "superseded",
    "n_sampled",
)


def groups_table(asking: Asking) -> pa.Table:
    """The groups of all steps, in their order.

    Args:
        asking: asks the table.

    Returns:
        `run, run_id, split, step, group, attempt, prompt_key, source, rollouts, traced, reward_mean,
        reward_std, reward_min, reward_max, tied, n_sampled, superseded`; a group is the rollouts of one
        prompt in one step.
    """
    on = " AND ".join(f'f."{key}" IS NOT DISTINCT FROM g."{key}"' for key in GROUP_KEYS)
    more = """
        SELECT run_no, split, step, "group", attempt, any_value(run) AS run, any_value(run_id) AS run_id,
            any_value(prompt_key) AS prompt_key, any_value(source) AS source, count(doc) AS traced,
            sum(n_sampled) AS n_sampled, bool_and(superseded) AS superseded
        FROM rollouts WHERE "group" IS NOT NULL GROUP BY run_no, split, step, "group", attempt"""
    statement = f"""
        SELECT f.run, f.run_id, f.split, f.step, f."group", f.attempt, f.prompt_key, f.source,
            g.group_rows AS rollouts, f.traced, g.group_mean AS reward_mean, g.group_std AS reward_std,
            g.group_min AS reward_min, g.group_max AS reward_max, g.group_tied = 1 AS tied,
            CAST(f.n_sampled AS BIGINT) AS n_sampled, f.superseded
        FROM ({more}) f JOIN ({GROUPS}) g ON {on}
        ORDER BY f.run_no, f.split, f.step, f."group", f.attempt"""
    return asking.run(Asked(EVERY, (), _READS, {}), statement, ())
