"""SELECTs of how often a phrase was written and what it earned, by the rules of `phrases.words`."""

from __future__ import annotations

from rollout_traces.analysis.phrases import LATEST, MOST_CHARACTERS, PRIOR_MASS, PhraseTrend
from rollout_traces.analysis.relations import RolloutColumns, known_number, sql_text
from rollout_traces.analysis.series import RunSeries

WORDS = (
    f"lower(array_to_string(regexp_extract_all(right(reply, {MOST_CHARACTERS}), "
    "'[\\p{L}\\p{N}]+(?:[''’][\\p{L}\\p{N}]+)?'), ' '))"
)
"""SQL for the words of a reply, one space between: `phrases.words`."""


def holds(phrase: str) -> str:
    """SQL for whether a reply holds a phrase."""
    return f"contains(concat(' ', {WORDS}, ' '), {sql_text(f' {phrase} ')})"


def random_ones(columns: RolloutColumns) -> str:
    """SQL for whether a rollout was traced at random; all are, where it is not known."""
    return f"coalesce({columns.expression('selected_by')}, 'random') = 'random'"


def spread_query(run: RunSeries, trend: PhraseTrend) -> str:
    """The share of the rollouts traced at random that hold a phrase, before its step and in the last steps."""
    steps = f"select distinct step from rollouts where {run.with_values(run.scope)} and reply is not null"
    return (
        f"select avg(held) filter (step < {trend.step}) as before, avg(held) filter (step >= late) as after, "
        f"count(*) filter (step < {trend.step}) as rollouts_before, count(*) filter (step >= late) as rollouts_after "
        f"from (select step, cast({holds(trend.phrase)} as int) as held from rollouts "
        f"where {run.with_values(run.scope)} and reply is not null and {random_ones(run.columns)}), "
        f"(select min(step) as late from (select step from ({steps}) order by step desc limit {LATEST}))"
    )


def paid_query(run: RunSeries, trend: PhraseTrend) -> str:
    """The reward with a phrase and without it from its step on, inside step, source and success (`phrases.paid`)."""
    c = run.columns
    reward = known_number("reward") if c.has("reward") else "cast(null as double)"
    return (
        "select sum(weight*with_it) / sum(weight) as paid, sum(weight*without) / sum(weight) as without, count(*) as strata from ("
        "select avg(reward) filter (held) as with_it, avg(reward) filter (not held) as without, "
        "count(*) filter (held)*count(*) filter (not held) / count(*) as weight from ("
        f"select step, {c.expression('source')} as source, {c.expression('success')} as success, {reward} as reward, "
        f"{holds(trend.phrase)} as held from rollouts where {run.with_values(run.scope)} and reply is not null "
        f"and step >= {trend.step}) where reward is not null group by step, source, success having bool_or(held) and not bool_and(held))"
    )


def counts_query(texts: str, phrase: str) -> str:
    """How many texts of either side hold a phrase, and the z of `phrases.enriched`.

    Args:
        texts: a SELECT of `reply` and whether it is A's, `in_a`.
        phrase: the phrase.
    """
    prior = f"{PRIOR_MASS}*(n_a + n_b) / (of_a + of_b)"
    rest = f"greatest({PRIOR_MASS} - {prior}, 1e-3)"
    odds_a, odds_b = (f"(n_{side} + {prior}) / (of_{side} - n_{side} + {rest})" for side in "ab")
    error = " + ".join(f"1 / (n_{side} + {prior}) + 1 / (of_{side} - n_{side} + {rest})" for side in "ab")
    return (
        "select n_a, of_a, n_a / of_a as share_a, n_b, of_b, n_b / of_b as share_b, "
        f"(ln({odds_a}) - ln({odds_b})) / sqrt({error}) as z from ("
        "select count(*) filter (in_a and held) as n_a, count(*) filter (in_a) as of_a, "
        "count(*) filter (not in_a and held) as n_b, count(*) filter (not in_a) as of_b "
        f"from (select in_a, {holds(phrase)} as held from ({texts})))"
    )
