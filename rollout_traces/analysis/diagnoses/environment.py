"""Faults of tools, environments and reward functions, and changes of what is rewarded."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import numpy as np

from rollout_traces.analysis.diagnoses.base import (
    ENVIRONMENT,
    OUTCOME,
    Diagnosis,
    Evidence,
    Severity,
    change_text,
    figures,
    filter_of,
    literal,
    number,
    percent,
    since,
)
from rollout_traces.analysis.moved import first_there
from rollout_traces.analysis.movement import Moved, Part
from rollout_traces.analysis.recomputed import (
    before_and_after,
    in_its_range,
    level_query,
    levels_of,
    two_levels,
)
from rollout_traces.analysis.relations import known_number, known_reward, sql_text
from rollout_traces.analysis.seen import seen_query
from rollout_traces.analysis.share_changes import begins

TOOL_COLUMNS = ("n_tool_errors", "tools/errors_per_call")
TOOL_FLAGS = ("tool_error", "tool_call_unparsed")
ADVICE_TOOL = "Open a failing call and read what the tool answered."
LEAST_NEW_SHARE = 0.02
"""A new error signature is reported as a fault of its own from this share of the rollouts on."""
EXPECTED_BEFORE = 7.0
"""An error is new where so many would have been seen before at the share that it has since."""
SURE_OF_NEW = 14.0
"""Gain in log-likelihood from which an error is new: few are looked at, so less is needed than elsewhere."""
WIDEST = 40
"""Steps in which errors that few rollouts have are counted."""
CONSTANT_FOR = 5
"""Steps for which a component has to be constant."""


def tools_failing(e: Evidence) -> list[Diagnosis]:
    """Tool calls that fail more often, with the error signatures that are new."""
    moved = [m for m in e.of(*TOOL_COLUMNS) if m.rises]
    moved += [m for m in e.of("flags") if m.value in TOOL_FLAGS and m.rises]
    moved += [m for m in e.of("error_signatures") if m.rises]
    new = [
        s
        for s in e.seen
        if s.column == "error_signatures"
        and s.new
        and s.share_since >= LEAST_NEW_SHARE
        and s.rows_before * s.share_since >= EXPECTED_BEFORE
        and s.n_steps >= 3
    ]
    incidents: list[list[Moved]] = []
    for m in sorted(moved, key=lambda m: m.p):
        near = next((i for i in incidents if abs(i[0].step - m.step) <= 4), None)
        if near is None:
            incidents.append([m])
        else:
            near.append(m)
    sudden = _suddenly_new(e, {s.value for s in new})
    found = [_tool_fault(e, incident, new, sudden) for incident in incidents]
    for s in new:
        if not any(d.step is not None and abs(d.step - s.first) <= 8 for d in found):
            text = f"New error of tools: “{s.value}”, in {percent(s.share_since)} of the traced rollouts since step {s.first}."
            where = f"error_signatures has {literal(s.value)} and step >= {s.first}"
            found.append(
                Diagnosis(
                    "tools_failing",
                    text,
                    "warn",
                    ENVIRONMENT,
                    s.first,
                    None,
                    None,
                    {"share": s.share_since},
                    where,
                    (seen_query(e.run, s),),
                    ADVICE_TOOL,
                )
            )
    for value, step in sudden.items():
        if not any(d.step is not None and abs(d.step - step) <= 8 for d in found):
            found.append(_sudden_error(e, value, step))
    return found


def _suddenly_new(e: Evidence, reported: Collection[str]) -> dict[str, int]:
    """Error -> step from which it is there, of those that are too few in any one step to count as first seen."""
    found = {}
    for (column, value, segment), series in e.movements.series.items():
        if column == "error_signatures" and segment is None and value is not None and value not in reported:
            hits = series.values * series.rows
            place, _ = begins(hits, series.rows, 0.002, LEAST_NEW_SHARE, SURE_OF_NEW, widest=WIDEST)
            if place is not None:
                found[value] = int(series.steps[place])
    return found


def _sudden_error(e: Evidence, value: str, step: int) -> Diagnosis:
    random = " and traced and selected_by = 'random'" if e.run.needs_text("error_signatures", value) else ""
    has = f"list_contains(error_signatures, {sql_text(value)})"
    query = (
        f"select avg(cast({has} as int)) as share, count(*) as rollouts from rollouts where {e.run.with_values(e.run.scope)} "
        f"and error_signatures is not null{random} and step >= {step}"
    )
    share = e.run.relations.sql(query).to_pylist()[0]["share"]
    text = f"New error of tools: “{value}”, in {percent(share)} of the traced rollouts since step {step}."
    where = f"error_signatures has {literal(value)} and step >= {step}"
    return Diagnosis(
        "tools_failing", text, "warn", ENVIRONMENT, step, None, None, {"share": share}, where, (query,), ADVICE_TOOL,
    )  # fmt: skip


def _tool_fault(
    e: Evidence, incident: Sequence[Moved], new: Sequence, sudden: Mapping[str, int]
) -> Diagnosis:
    m = _from_its_first(e, incident[0])
    signatures = [s for s in new if abs(s.first - m.step) <= 8]
    step = min([m.step, *(s.first for s in signatures if s.first >= m.step - 2)])
    largest = max(incident, key=lambda each: abs(each.after - each.before))
    what = "failed tool calls a rollout" if m.value is None else m.name
    text = f"Tools fail: {what} {change_text(m)}"
    named = [s.value for s in signatures] or [
        i.value for i in incident if i.column == "error_signatures" and i.value
    ]
    named = named or [value for value, first in sudden.items() if abs(first - m.step) <= 8]
    if named:
        text += f"; new error “{named[0]}”"
        if signatures:
            text += (
                f" first seen at step {signatures[0].first}, in {percent(signatures[0].share_since)} since"
            )
    tool = _tool_of(e, named, step)
    if tool:
        text += f", tool {tool}"
    severity: Severity = "error" if abs(largest.after - largest.before) >= 0.2 else "warn"
    return Diagnosis(
        "tools_failing", text + ".", severity, ENVIRONMENT, step, m.last, m.part, figures(m),
        filter_of(m, "n_tool_errors > 0"), (level_query(e.run, m), *(seen_query(e.run, s) for s in signatures[:1])), ADVICE_TOOL,
    )  # fmt: skip


def _from_its_first(e: Evidence, m: Moved) -> Moved:
    """A flag that nobody had before and that grew step by step, from the first rollout that has it."""
    series = e.movements.get("flags", m.value) if m.column == "flags" else None
    if series is None:
        return m
    at = first_there(series, int(np.searchsorted(series.steps, m.step)))
    return replace(m, step=int(series.steps[at])) if at < len(series.steps) else m


def _tool_of(e: Evidence, signatures: Sequence[str], step: int) -> str:
    """The tool that most rollouts with an error have called, where it is nearly always the same."""
    if not e.run.columns.has("tool_names", "n_tool_errors"):
        return ""
    query = (
        f"select t, count(*) as n from (select unnest(list_distinct(tool_names)) as t from rollouts where {e.run.scope} "
        "and n_tool_errors > 0 and step >= ?) group by t order by n desc"
    )
    rows = e.run.relations.sql(query, [*e.run.params, step]).to_pylist()
    total = sum(row["n"] for row in rows)
    return str(rows[0]["t"]) if rows and rows[0]["n"] >= 0.7 * total else ""


def tools_slower(e: Evidence) -> list[Diagnosis]:
    """Seconds that a rollout spends in its environment or tools."""
    return [
        Diagnosis(
            "slower", f"{m.column} takes more time: {change_text(m)} (seconds).", "warn", ENVIRONMENT, m.step, m.last, m.part,
            figures(m), filter_of(m, f"{m.column} is not null"), (level_query(e.run, m),),
            "Look at the tool's own log from that step on.",
        )
        for m in e.moved
        if m.column.startswith("timing/") and m.rises and m.after > 1.3 * m.before
    ]  # fmt: skip


def reward_function(e: Evidence) -> list[Diagnosis]:
    """Rewards that are unknown, failed, or the same for every rollout of a source."""
    found = []
    for m in [*e.of("reward_status"), *e.of("reward/unknown_share")]:
        bad = m.rises if m.value != "ok" else not m.rises
        if bad:
            what = "unknown rewards" if m.value is None else f"reward status {m.value}"
            severity: Severity = "error" if abs(m.after - m.before) >= 0.1 else "warn"
            condition = "reward is null" if m.value is None or m.value == "ok" else ""
            found.append(
                Diagnosis(
                    "reward_function", f"The reward function fails: {what} {change_text(m, shares=True)}.", severity,
                    ENVIRONMENT, m.step, m.last, m.part, figures(m), filter_of(m, condition), (level_query(e.run, m),),
                    "Look at the reward function's errors; these rollouts train on nothing or on a default.",
                )
            )  # fmt: skip
    return found + _constant_rewards(e)


def _constant_rewards(e: Evidence) -> list[Diagnosis]:
    """Sources in which every rollout has one and the same reward, step after step."""
    g = e.run.groups
    if not e.run.columns.has("reward") or not len(g["step"]):
        return []
    found = []
    names = list(dict.fromkeys(g["source"].tolist()))
    for name in names:
        here = np.asarray([s == name for s in g["source"]]) & (g["known"].astype(float) >= 4)
        order = np.argsort(g["step"][here])
        steps = g["step"][here][order].astype(int)
        low, high = g["low"][here][order].astype(float), g["high"][here][order].astype(float)
        constant = high - low <= 1e-9 * np.maximum(1, np.abs(high))
        if len(steps) < 2 * CONSTANT_FOR:
            continue
        start = _constant_from(constant, low)
        if start is None or float(np.mean(constant[:start])) > 0.1:
            continue
        step = int(steps[start])
        whom = f" of source {name}" if name is not None else ""
        text = f"Every rollout{whom} has reward {number(low[start])}, since step {step}: its reward function gives a constant."
        where = f"step >= {step}" + (f" and source = {literal(str(name))}" if name is not None else "")
        part = Part("source", (str(name),)) if name is not None and len(names) > 1 else None
        found.append(
            Diagnosis("reward_function", text, "error", ENVIRONMENT, step, None, part, {"reward": float(low[start])}, where,
                      (_rewards_of(e, name, step),), "Check what the reward function returns when it fails or times out.")
        )  # fmt: skip
    return found


def _rewards_of(e: Evidence, source: str | None, step: int) -> str:
    """A SELECT of the rewards of a source from a step on."""
    of_source = "source is null" if source is None else f"source = {sql_text(source)}"
    whose = f" and {of_source}" if e.run.columns.has("source") else ""
    reward = known_reward(e.run.columns)
    return (
        f"select min({reward}) as lowest, max({reward}) as highest, count({reward}) as rollouts from rollouts "
        f"where {e.run.with_values(e.run.scope)} and step >= {step}{whose}"
    )


def _constant_from(constant: np.ndarray, values: np.ndarray) -> int | None:
    """Position from which all is constant at one value to the end, for at least `CONSTANT_FOR` steps."""
    start = len(constant)
    while start > 0 and constant[start - 1] and values[start - 1] == values[-1]:
        start -= 1
    return start if 0 < start <= len(constant) - CONSTANT_FOR else None


def reward_changed(e: Evidence) -> list[Diagnosis]:
    """Components of the reward that came, went, were switched on or became constant."""
    found = []
    spreads = {series.column: series for series in e.run.component_spreads()}
    for name, spread in spreads.items():
        switched = _switched(spread.values)
        if switched is None:
            continue
        at, on = switched
        step = int(spread.steps[at])
        by_step = e.run.by_step(f"avg({known_number(name)}) as mean")
        query = two_levels(by_step, "mean", *before_and_after(spread.steps, at))
        before, after = levels_of(e.run, query)
        level = f" (mean {number(before)} to {number(after)})"
        what = "was switched on" if on else "is constant: it no longer distinguishes rollouts"
        component = name.removeprefix("component/")
        found.append(
            Diagnosis(
                "reward_changed" if on else "component_constant", f"Reward component {component} {what}{level}, since step {step}.",
                "warn", ENVIRONMENT if on else OUTCOME, step, None, None, {"step": step}, f"step >= {step}",
                (query, e.run.by_step(f"stddev_pop({known_number(name)}) as spread, avg({known_number(name)}) as mean")),
                "If this was not meant, look at the reward's weights and configuration.",
            )
        )  # fmt: skip
    named = {d.sentence.split()[2] for d in found}
    for m in e.moved:
        component = m.column.removeprefix("component/")
        if m.column.startswith("component/") and component not in named:
            learned = in_its_range(e.run, m)
            outcome = learned or _is_outcome(e, m)
            found.append(
                Diagnosis(
                    "reward_moved" if outcome else "reward_changed", f"Reward component {component} jumped: {change_text(m)}.",
                    "info" if learned and m.rises else "warn", OUTCOME if outcome else ENVIRONMENT, m.step, m.last,
                    m.part, figures(m), filter_of(m, f"{m.column} is not null"), (level_query(e.run, m),),
                    f"Its values are of the same range as before: explain it, `rollout-traces explain RUN --step {m.step}`."
                    if learned else "A component that jumps was redefined, rescaled, or is being gamed: read its best rollouts.",
                )
            )  # fmt: skip
    return found


def _is_outcome(e: Evidence, m: Moved) -> bool:
    """Whether a component jumped because of what the policy did: it solves more, writes what is liked, or at length."""
    bias = e.length_bias
    if bias is not None and bias.sure and bias.rose and abs(bias.step - m.step) <= 3:
        return True
    if any(abs(other.step - m.step) <= 3 for other in e.of("success")):
        return True
    return any(trend.pays and abs(trend.step - m.step) <= 12 for trend in e.phrases)


def _switched(spread: np.ndarray) -> tuple[int, bool] | None:
    """Position at which a component begins (True) or ends (False) to vary, for good."""
    varies = spread > 1e-9
    if len(varies) < 2 * CONSTANT_FOR or varies.all() or not varies.any():
        return None
    flips = np.flatnonzero(np.diff(varies.astype(int)) != 0) + 1
    at = int(flips[-1])
    if len(varies) - at < CONSTANT_FOR or at < CONSTANT_FOR:
        return None
    if varies[at]:
        return (at, True) if float(np.mean(varies[:at])) < 0.1 else None
    return (at, False) if float(np.mean(varies[:at])) > 0.9 else None


def configuration(e: Evidence) -> list[Diagnosis]:
    """Logged settings that are constant but for a step at which they took another value."""
    found = []
    for m in e.moved:
        series = e.movements.get(m.column)
        logged = m.value is None and series is not None and not len(series.rows)
        if logged and np.isinf(m.size) and series is not None and len(np.unique(series.values)) <= 4:
            found.append(
                Diagnosis(
                    "configuration", f"{m.column} was changed: {change_text(m)}.", "warn", ENVIRONMENT, m.step, m.last, None,
                    figures(m), "", (level_query(e.run, m),), "Compare the configuration of the attempts.",
                )
            )  # fmt: skip
    return found


RULES: Sequence = (tools_failing, tools_slower, reward_function, reward_changed, configuration)
__all__ = ["RULES", "since"]
