"""What a shared file holds: the answers that the pages would have got, read once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any

import numpy as np

from rollout_traces.errors import StoreError
from rollout_traces.inspector.pages.around import around
from rollout_traces.inspector.pages.compare import compare, population
from rollout_traces.inspector.pages.explain import explain
from rollout_traces.inspector.pages.group import group
from rollout_traces.inspector.pages.rollouts import rollout
from rollout_traces.inspector.pages.run import run_report
from rollout_traces.inspector.payload import packed, unpacked
from rollout_traces.inspector.share.hiding import Hiding, HidingWorkspace
from rollout_traces.inspector.workspace import Request, Workspace
from rollout_traces.store import Store

MOST_ROLLOUTS = 64
MOST_EXAMPLES = 12
"""Rollouts that an explanation's file holds as examples."""


@dataclass(frozen=True)
class Shared:
    """What is to be shared; the first of these that is given counts.

    Attributes:
        project: the project.
        run: id or name of the run, for a group and an explanation.
        split: its split.
        compared: two rollouts side by side, by uid or trace id.
        group: step and group.
        explained: the run's report; with `step`, also what changed there.
        step: see `explained`.
        rollouts: rollouts by uid or trace id.
        patterns: regular expressions of what is hidden.
    """

    project: str
    run: str = ""
    split: str = "rollout"
    compared: tuple[str, str] | None = None
    group: tuple[int, int] | None = None
    explained: bool = False
    step: int | None = None
    rollouts: tuple[str, ...] = ()
    patterns: Sequence[str] = field(default_factory=tuple)


def shared_contents(workspace: Workspace, wanted: Shared) -> dict[str, Any]:
    """What the page of `page.shared_page` shows.

    Args:
        workspace: where it is read from.
        wanted: what.

    Returns:
        Plain values.

    Raises:
        StoreError: a rollout, group or run is not there, or there are more rollouts than `MOST_ROLLOUTS`.
        ConfigError: a pattern cannot be understood.
    """
    hiding = Hiding(wanted.patterns)
    reading = HidingWorkspace(workspace, hiding) if wanted.patterns else workspace
    store = reading.store(wanted.project)
    if wanted.compared is not None:
        held = _compared(reading, store, wanted.project, wanted.compared)
    elif wanted.group is not None:
        held = _group(reading, store, wanted)
    elif wanted.explained:
        held = _explained(reading, store, wanted)
    elif wanted.rollouts:
        held = _rollouts(reading, store, wanted.project, wanted.rollouts)
    else:
        raise StoreError("nothing to share: name rollouts, two to compare, a group or an explanation.")
    held = {"compare": None, "group": None, "run": None, "explanation": None, "population": None, **held}
    held["around"] = _around(reading, held)
    held["steps"] = sorted(
        {each["metadata"]["step"] for each in held["rollouts"] if "step" in each["metadata"]}
    )
    held["made"] = _made(wanted)
    return _hidden(hiding, held) if wanted.patterns else held


def _rollouts(workspace: Workspace, store: Store, project: str, names: Iterable[str]) -> dict[str, Any]:
    ids = list(dict.fromkeys(store.find(name) for name in names))
    place = _place(store, project, ids[0])
    shown = _read(workspace, store, project, ids)
    many = f"{len(shown)} rollouts" if len(shown) > 1 else _named(shown[0])
    return {
        "title": f"{many} · {place['run']}",
        "place": place,
        "start": {"page": "rollouts", "id": ids[0]},
        "rollouts": shown,
        "said": f"{many} of {project}",
    }


def _compared(workspace: Workspace, store: Store, project: str, names: tuple[str, str]) -> dict[str, Any]:
    left, right = (store.find(name) for name in names)
    place = _place(store, project, left)
    step = store.record(left).metadata.get("step")
    answer = compare(workspace, Request({**place, "a": left, "b": right}))
    return {
        "title": f"{_named(answer['sides'][0])} and {_named(answer['sides'][1])} · {place['run']}",
        "place": place,
        "start": {"page": "compare", "a": left, "b": right},
        "rollouts": answer["sides"],
        "compare": {**answer, "sides": [], "candidates": []},
        "population": _population(workspace, {**place, "step": step}),
        "said": f"two rollouts of {project}",
    }


def _group(workspace: Workspace, store: Store, wanted: Shared) -> dict[str, Any]:
    assert wanted.group is not None
    step, number = wanted.group
    place = {"project": wanted.project, "run": store.run(wanted.run).name, "split": wanted.split}
    answer = group(workspace, Request({**place, "step": step, "group": number}))
    ids = [member["id"] for member in answer["members"] if member["id"] is not None]
    return {
        "title": f"step {step}, group {number} · {place['run']}",
        "place": place,
        "start": {"page": "group", "step": step, "group": number},
        "rollouts": _read(workspace, store, wanted.project, ids),
        "group": {**answer, "groups": [number]},
        "population": _population(workspace, {**place, "step": step}),
        "said": f"a group of {wanted.project}",
    }


def _explained(workspace: Workspace, store: Store, wanted: Shared) -> dict[str, Any]:
    place = {"project": wanted.project, "run": store.run(wanted.run).name, "split": wanted.split}
    start: dict[str, Any] = {"page": "run"}
    held: dict[str, Any] = {"run": {**run_report(workspace, Request(place)), "settings": None}}
    ids: list[str] = []
    if wanted.step is not None:
        answer = explain(workspace, Request({**place, "step": wanted.step}))
        start |= {"step": wanted.step, "explain": 1}
        held["explanation"] = _without_phrases(answer) if wanted.patterns else answer
        ids = _examples(held["explanation"])[:MOST_EXAMPLES]
    at = "" if wanted.step is None else f", step {wanted.step}"
    return {
        **held,
        "title": f"{place['run']}{at}",
        "place": place,
        "start": start,
        "rollouts": _read(workspace, store, wanted.project, ids),
        "said": f"a run of {wanted.project}",
    }


def _without_phrases(answer: Mapping[str, Any]) -> dict[str, Any]:
    """A phrase may be a part of what is to be hidden, in which no pattern finds anything."""
    left_out = "Phrases are left out of this file, because something was hidden in it."
    return {**answer, "phrases": [], "winners": [], "remarks": [*answer["remarks"], left_out]}


def _examples(answer: Mapping[str, Any]) -> list[str]:
    named = [
        *(i for each in answer["findings"] if each["detail"] for i in each["detail"]["examples"]),
        *(i for each in answer["carried"] for i in each["ids"]),
        *(i for found in ("phrases", "winners") for each in answer[found] for i in each["examples"]),
    ]
    return list(dict.fromkeys(i for i in named if i))


def _read(workspace: Workspace, store: Store, project: str, ids: Sequence[str]) -> list[dict[str, Any]]:
    if len(ids) > MOST_ROLLOUTS:
        raise StoreError(f"{len(ids)} rollouts; one file holds at most {MOST_ROLLOUTS}. Name fewer.")
    return [_shown(rollout(workspace, Request({**_place(store, project, i), "id": i}))) for i in ids]


def _shown(payload: Mapping[str, Any]) -> dict[str, Any]:
    """A rollout with its own labels; those of others are not included, and none can be added."""
    return {**payload, "labels": {**payload["labels"], "names": [], "may_label": False}}


def _around(workspace: Workspace, held: Mapping[str, Any]) -> dict[str, Any]:
    """What overlays need of the steps and groups of the rollouts; of a group's ids those that are shown."""
    found: dict[str, Any] = {}
    shown = held["rollouts"]
    for each in shown:
        step, number = each["metadata"].get("step"), each["metadata"].get("group")
        for what in ("step", "group"):
            key = f"{what} {step} {number}"
            if key in found or step is None or each["tokens"] is None:
                continue
            try:
                found[key] = around(
                    workspace, Request({**held["place"], "step": step, "group": number, "what": what})
                )
            except StoreError:
                continue  # the page says that it is not there
            if what == "group":
                found[key] = _pushes_on(found[key], _ids_of(shown))
    return found


def _ids_of(shown: Iterable[Mapping[str, Any]]) -> np.ndarray:
    tracks = [unpacked(each["tokens"]["arrays"]["ids"]) for each in shown if each["tokens"] is not None]
    return np.unique(np.concatenate(tracks))


def _pushes_on(pushes: Mapping[str, Any], ids: np.ndarray) -> dict[str, Any]:
    """The pushes on some token ids: others would show what rollouts that are not shared wrote."""
    pushed = {name: unpacked(pushes[name]) for name in ("ids", "up", "down")}
    there = np.isin(pushed["ids"], ids)
    return {**pushes, **{name: packed(values[there]) for name, values in pushed.items()}}


def _population(workspace: Workspace, asked: Mapping[str, Any]) -> dict[str, Any] | None:
    return None if asked["step"] is None else population(workspace, Request(asked))


def _place(store: Store, project: str, trace_id: str) -> dict[str, str]:
    run = next((info.name for info in store.runs() if trace_id.startswith(f"{info.id}:")), "")
    return {
        "project": project,
        "run": run,
        "split": str(store.record(trace_id).metadata.get("split") or "rollout"),
    }


def _named(shown: Mapping[str, Any]) -> str:
    m = shown["metadata"]
    parts = [f"{name} {m[name]}" for name in ("step", "group", "sample") if m.get(name) is not None]
    return ", ".join(parts) or "a rollout"


def _made(wanted: Shared) -> str:
    from rollout_traces import __version__

    hidden = " · parts are hidden" if wanted.patterns else ""
    return f"rollout-traces {__version__}, {datetime.now(timezone.utc):%Y-%m-%d %H:%M} UTC{hidden}"


def _hidden(hiding: Hiding, held: Mapping[str, Any]) -> dict[str, Any]:
    """Hides in everything that is text; ids of traces that the page goes by stay."""
    kept = ("rollouts", "around", "start")
    return {
        **{key: value if key in kept else hiding.value(value) for key, value in held.items()},
        "rollouts": [hiding.payload(each) for each in held["rollouts"]],
    }
