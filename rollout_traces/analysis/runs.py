"""Two runs: in which settings they differ, and their curves over steps, rollouts or tokens."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import numpy as np

from rollout_traces.analysis.diagnosis import ENVIRONMENT, Diagnosis
from rollout_traces.analysis.relations import Relations, as_arrays, current, describe
from rollout_traces.model.names import EARLIER_KEY
from rollout_traces.model.text import quoted

LONGEST_SETTING = 120
"""Characters of a value in a sentence."""


@dataclass(frozen=True)
class ConfigDifference:
    """A setting that two runs do not share.

    Attributes:
        key: its name, nested ones joined by dots.
        a: A's value, None where it has none.
        b: B's value.
    """

    key: str
    a: Any
    b: Any


def config_differences(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[ConfigDifference]:
    """The settings that someone chose in which two configurations differ, by name: without what Trackio and an import write of themselves.

    Args:
        a: one run's configuration.
        b: the other's.
    """
    flat_a, flat_b = dict(_flat(a)), dict(_flat(b))
    return [
        ConfigDifference(key, flat_a.get(key), flat_b.get(key))
        for key in sorted({*flat_a, *flat_b})
        if flat_a.get(key) != flat_b.get(key) and not key.startswith(NOT_CHOSEN)
    ]


NOT_CHOSEN = ("_", "imported")
"""How the names begin of what Trackio and an import write of themselves."""


def configs_of(config: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The configs that a run had, oldest first: those of earlier attempts are carried by the newest."""
    try:
        earlier = json.loads(config.get(EARLIER_KEY) or "[]")
    except (TypeError, ValueError):
        earlier = []
    return [*(each for each in earlier if isinstance(each, Mapping)), config]


def settings_of_attempts(
    config: Mapping[str, Any], attempts: Iterable[tuple[str, int]]
) -> Iterator[tuple[int, list[ConfigDifference]]]:
    """The first step of each attempt of a run at which settings changed, and which.

    A config is made as its attempt begins, somewhat earlier or later, and holds until the next one.

    Args:
        config: the run's newest.
        attempts: id, which begins with its time, and first step, oldest first.
    """
    known = sorted(
        ((_moment(each.get("_Created")), each) for each in configs_of(config)), key=lambda pair: pair[0]
    )
    begun = [(_moment(name), first) for name, first in attempts]
    before: Mapping[str, Any] | None = None
    for at, (moment, first) in enumerate(begun):
        until = (moment + begun[at + 1][0]) / 2 if at + 1 < len(begun) else math.inf
        there = [each for made, each in known if made < until]
        now = there[-1] if there else known[0][1]
        if before is not None and (changed := config_differences(before, now)):
            yield first, changed
        before = now


def _moment(text: object) -> float:
    """Seconds, of `2026-11-23T20:59:08.96+00:00` and of `20261123T205908.960000Z-001`; minus infinity for what is no time."""
    digits = re.sub(r"[^\d.]", "", str(text or "").split("Z")[0].split("+")[0])
    try:
        return datetime.strptime(digits, "%Y%m%d%H%M%S.%f" if "." in digits else "%Y%m%d%H%M%S").timestamp()
    except ValueError:
        return -math.inf


def _flat(config: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in config.items():
        if key == EARLIER_KEY:
            continue
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{before}{key}.")
        else:
            yield f"{before}{key}", value


@dataclass(frozen=True, eq=False)
class Progress:
    """Measures how far a run had come at each of its steps.

    Attributes:
        steps: int [T], ascending.
        rollouts: float [T], rollouts seen up to and with the step.
        tokens: float [T], sampled tokens up to and with the step; NaN where unknown.
    """

    steps: np.ndarray
    rollouts: np.ndarray
    tokens: np.ndarray


def progress(relations: Relations, run: str, split: str = "rollout") -> Progress:
    """Rollouts and tokens seen by each step: the axes on which two runs compare.

    Args:
        relations: where to read.
        run: the run.
        split: the split.
    """
    c = describe(relations)
    query = (
        f"select step, count(*) as n, sum({c.expression('n_sampled')}) as tokens from rollouts "
        f"where run = ? and split = ? and {current(c)} and step is not null group by step order by step"
    )
    found = as_arrays(relations.sql(query, [run, split]))
    return Progress(
        found["step"].astype(np.int64),
        np.cumsum(found["n"].astype(float)),
        np.cumsum(found["tokens"].astype(float)),
    )


FIRST_OF_ATTEMPTS = (
    "select attempt, min(step) as first from rollouts where run = ? and split = ? and attempt is not null "
    "group by attempt order by attempt"
)
"""The first step of each attempt; takes run and split."""


def replaced_sentence(relations: Relations, run: str, split: str) -> str:
    """Says how many rollouts are left out because a later attempt of the run began at their step or before it; "" without any.

    Args:
        relations: where to read.
        run: the run.
        split: the split.
    """
    columns = describe(relations)
    if not (columns.has("superseded") and columns.has("attempt")):
        return ""
    query = (
        "select count(*) filter (where superseded) as n, count(distinct attempt) - 1 as again "
        "from rollouts where run = ? and split = ?"
    )
    n, again = (int(column[0]) for column in as_arrays(relations.sql(query, [run, split])).values())
    if not n:
        return ""
    how_often = "once" if again == 1 else f"{again:,} times"
    return f"{n:,} further rollouts are left out: the run went back to an earlier step {how_often}, and what it had from there on was replaced."


def setting_entries(relations: Relations, run: str, split: str = "rollout") -> list[Diagnosis]:
    """The entries of the settings that changed at the attempts of a run; none where its config is not known.

    Args:
        relations: where to read.
        run: the run.
        split: the split whose steps the attempts wrote.
    """
    config = getattr(relations, "config", None)
    if config is None or not describe(relations).has("attempt"):
        return []
    found = as_arrays(relations.sql(FIRST_OF_ATTEMPTS, [run, split]))
    attempts = [
        (str(a), int(s)) for a, s in zip(found["attempt"].tolist(), found["first"].tolist(), strict=True)
    ]
    return [
        Diagnosis(
            "info",
            f"{quoted(each.key)} was changed at step {step}, where the run was resumed: {setting_text(each.a)} to {setting_text(each.b)}.",
            advice="",
            tier=ENVIRONMENT,
            series=(),
            part=(),
            shape="level",
            onset=(step, step),
            step=step,
            name=f"setting {each.key}",
        )
        for step, changed in settings_of_attempts(config(run), attempts)
        for each in changed
    ]


def settings_changed(store: Any, name: str) -> tuple[str, list[ConfigDifference]]:
    """The run that was started before one, and the settings that were chosen otherwise; none for the first.

    Args:
        store: what knows `run`, `runs` and `config`.
        name: the run.
    """
    runs = sorted(store.runs(), key=lambda run: run.started)
    here = next(at for at, run in enumerate(runs) if run.id == store.run(name).id)
    if here == 0:
        return "", []
    before = runs[here - 1]
    first, last = _chosen(store.config(runs[here].id))[0], _chosen(store.config(before.id))[-1]
    return before.name, config_differences(last, first)


def _chosen(config: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The configs of a run that hold what someone chose, oldest first; its own where none does: an import adds one of its own."""
    configs = configs_of(config)
    return [
        each for each in configs if any(not key.startswith(NOT_CHOSEN) for key, _ in _flat(each))
    ] or configs


def settings_sentences(store: Any, name: str) -> list[str]:
    """Says what was set otherwise than in the run before, in one sentence; none where nothing was."""
    before, changed = settings_changed(store, name)
    listed = (f"{quoted(each.key)} {setting_text(each.b)} ({setting_text(each.a)} there)" for each in changed)
    return (
        [f"Set otherwise than in {quoted(before)}, the run before: {', '.join(listed)}."] if changed else []
    )


def setting_text(value: Any) -> str:
    """A setting's value in a sentence."""
    return "not set" if value is None else quoted(value, LONGEST_SETTING)


def resumed(relations: Relations, run: str, split: str = "rollout") -> list[tuple[str, int]]:
    """The attempts of a run but the first, in order of time, each with the first step that it logged.

    Args:
        relations: where to read.
        run: the run.
        split: the split.
    """
    if not describe(relations).has("attempt"):
        return []
    found = as_arrays(relations.sql(FIRST_OF_ATTEMPTS, [run, split]))
    named = zip(found["attempt"].tolist(), found["first"].tolist(), strict=True)
    return [(str(name), int(first)) for name, first in named][1:]
