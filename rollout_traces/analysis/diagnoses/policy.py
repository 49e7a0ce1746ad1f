"""Faults of the sampler and of the weights it samples with."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rollout_traces.analysis.diagnoses.base import (
    SAMPLER,
    Diagnosis,
    Evidence,
    Severity,
    change_text,
    figures,
    filter_of,
    literal,
    percent,
)
from rollout_traces.analysis.movement import Moved, Part
from rollout_traces.analysis.recomputed import level_query
from rollout_traces.analysis.relations import as_arrays, sql_text
from rollout_traces.analysis.seen import FirstSeen, seen_query

MISMATCH = ("mismatch_k1", "mismatch_k3", "mismatch_abs_max", "log_ratio_sum")
MISMATCH_FLAGS = ("logprob_mismatch", "logprob_out_of_range")
SAMPLED = ("mean_logprob", "n_sampled", "reward", "success", "stop_reason", "n_turns", "answered")
"""What one engine alone can do differently, beside its logprobs."""
LEAST_MISMATCH = 5e-4
"""A mean log ratio, or divergence, that moved by less says nothing of an engine."""
LEAST_PLATEAU = 5
"""Steps without a newer policy version that are too many, and at least three times the usual."""


def engine_off(e: Evidence) -> list[Diagnosis]:
    """One engine that departs from the others, by its logprobs first."""
    found = []
    for m in e.moved:
        on_engine = m.part is not None and m.part.column == "engine"
        is_mismatch = m.column in MISMATCH or (m.column == "flags" and m.value in MISMATCH_FLAGS)
        if is_mismatch and m.value is None and abs(m.after - m.before) < LEAST_MISMATCH:
            continue
        if is_mismatch and (m.rises or m.column == "mismatch_k1" or m.column == "log_ratio_sum"):
            found.append(_mismatch(e, m))
        elif on_engine and (m.column in SAMPLED or m.column == "flags") and m.part is not None:
            found.append(
                Diagnosis(
                    "engine_off", f"{m.part} departs from the other engines: {m.name} {change_text(m)}.", "error", SAMPLER, m.step,
                    m.last, m.part, figures(m), filter_of(m, f"{m.column} is not null"), (level_query(e.run, m),),
                    "Compare this engine's sampling settings and weights with the others'.",
                )
            )  # fmt: skip
    return found


def _mismatch(e: Evidence, m: Moved) -> Diagnosis:
    shown = f"{m.name} {change_text(m)}"
    if m.part is not None and m.part.column == "engine":
        kind, text = (
            "engine_off",
            f"{m.part} samples with other probabilities than the trainer computes: {shown}.",
        )
        advice = "Compare this engine's weights, temperature and precision with the others'."
    elif m.part is not None:
        kind, text = (
            "source_off",
            f"{m.part}: the trainer sees other probabilities than the sampler: {shown}.",
        )
        advice = "Tokenization or template of this source differs between sampler and trainer: compare the token ids."
    else:
        kind, text = "sampler_mismatch", f"Trainer and sampler disagree more: {shown}."
        advice = "Look at precision, sampling settings and whether weights reach the sampler."
    severity: Severity = "error" if m.value is not None or abs(m.after) >= 2 * abs(m.before) else "warn"
    return Diagnosis(
        kind, text, severity, SAMPLER, m.step, m.last, m.part, figures(m), filter_of(m, f"{m.column} is not null" if m.value is None else ""),
        (level_query(e.run, m),), advice,
    )  # fmt: skip


def weights_not_synchronised(e: Evidence) -> list[Diagnosis]:
    """Steps over which no newer policy version was sampled with, and staleness that grew."""
    newest = e.run.newest_versions
    found = []
    if newest is not None and len(newest.steps) >= 2 * LEAST_PLATEAU and len(np.unique(newest.values)) > 3:
        found = _plateaus(e, newest.steps, np.maximum.accumulate(newest.values))
        found += [] if found else _engines_left_behind(e)
    covered = [(d.step or 0, d.last if d.last is not None else 10**18) for d in found]
    for m in e.moved:
        stale = m.column == "staleness_max" or (m.column == "flags" and m.value == "stale")
        if stale and m.rises and not any(a - 3 <= m.step <= b + 3 for a, b in covered):
            found.append(
                Diagnosis(
                    "weights_not_synchronised", f"Samples are older than before: {m.name} {change_text(m)}.", "warn", SAMPLER, m.step,
                    m.last, m.part, figures(m), filter_of(m, "staleness_max > 0" if m.value is None else ""), (level_query(e.run, m),),
                    "Look at when weights are pushed to the engines.",
                )
            )  # fmt: skip
    return found


def _engines_left_behind(e: Evidence) -> list[Diagnosis]:
    """Engines that kept one version while the others got newer ones."""
    if not e.run.columns.has("engine"):
        return []
    query = (
        f"select engine, step, max(version_max) as v from rollouts where {e.run.scope} and engine is not null "
        "and version_max is not null group by engine, step order by engine, step"
    )
    rows = as_arrays(e.run.relations.sql(query, e.run.params))
    found = []
    for engine in dict.fromkeys(rows["engine"].tolist()):
        here = rows["engine"] == engine
        steps, versions = rows["step"][here].astype(np.int64), rows["v"][here].astype(float)
        if len(steps) >= 2 * LEAST_PLATEAU and len(np.unique(versions)) > 3:
            found += _plateaus(e, steps, np.maximum.accumulate(versions), str(engine))
    return found


def _plateaus(
    e: Evidence, steps: np.ndarray, versions: np.ndarray, engine: str | None = None
) -> list[Diagnosis]:
    starts = np.flatnonzero(np.r_[True, np.diff(versions) > 0])
    lengths = np.diff(np.r_[starts, len(versions)])
    usual = float(np.median(lengths))
    found = []
    for start, length in zip(starts, lengths, strict=True):
        if length <= max(LEAST_PLATEAU, 3 * usual) or start == 0:
            continue
        first = int(steps[start + round(usual)])
        ends = start + length
        last = int(steps[ends - 1]) if ends < len(steps) else None
        version = int(versions[start])
        on = f" on engine {engine}" if engine is not None else ""
        text = (
            f"No newer weights than version {version} were sampled with{on} "
            + (f"from step {first} to {last}" if last is not None else f"since step {first}")
            + f": {length} steps with one version, where {usual:.0f} is usual."
        )
        whose = "version_max is not null" + (
            f" and engine = {sql_text(engine)}" if engine is not None else ""
        )
        by_step = e.run.by_step("max(version_max) as v", whose)
        query = (
            f"select version, steps, first, last, usual, {first} as since from (select version, count(*) as steps, min(step) as first, max(step) as last, "
            "median(count(*)) over () as usual from (select step, max(v) over (order by step) as version "
            f"from ({by_step})) group by version) where version = {version}"
        )
        numbers = {"version": version, "steps": float(length), "usual": usual}
        where = f"step >= {first}" + (f" and step <= {last}" if last is not None else "")
        part = Part("engine", (engine,)) if engine is not None else None
        if engine is not None:
            where += f" and engine = {literal(engine)}"
        found.append(
            Diagnosis("weights_not_synchronised", text, "error", SAMPLER, first, last, part, numbers, where, (query,),
                      "Look at the weight push of these steps: the trainer learned from a policy that stood still.")
        )  # fmt: skip
    return found


def engines(e: Evidence) -> list[Diagnosis]:
    """Engines that came or went."""
    came = [
        s for s in e.seen if s.column == "engine" and s.new and s.share_since >= 0.02 and s.rows_before >= 100
    ]
    went = [s for s in e.seen if s.column == "engine" and s.stopped]
    found = []
    for s in came:
        gone = [g.value for g in went if abs(g.last - s.first) <= 5]
        beside = f" where {', '.join(gone)} went away" if gone else ""
        text = f"Engine {s.value} came at step {s.first}{beside}; {percent(s.share_since)} of the rollouts since."
        found.append(_engine(e, s, text, s.first))
    for g in went:
        if not any(abs(g.last - s.first) <= 5 for s in came):
            found.append(_engine(e, g, f"Engine {g.value} went away after step {g.last}.", g.last + 1))
    return found


def _engine(e: Evidence, seen: FirstSeen, text: str, step: int) -> Diagnosis:
    numbers = {"share": seen.share_since}
    return Diagnosis(
        "engines", text, "info", SAMPLER, step, None, None, numbers, f"engine = {literal(seen.value)}",
        (seen_query(e.run, seen),), "",
    )  # fmt: skip


RULES: Sequence = (engine_off, weights_not_synchronised, engines)
