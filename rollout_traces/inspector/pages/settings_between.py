"""The settings in which two runs differ, as the pages show them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rollout_traces.inspector.view import ProjectView, SplitView

LONGEST = 200
"""Characters of a value that are shown."""
OWN = ("_", "imported")
"""What begins the settings that Trackio writes of itself, and no one chose."""


@dataclass(frozen=True)
class Setting:
    """A setting that differs, its value in each run; None where a run has none."""

    key: str
    a: str | None
    b: str | None


@dataclass(frozen=True)
class SettingsSince:
    """What changed since the run before."""

    run: str
    changes: list[Setting]


def between_runs(view: ProjectView, a: str, b: str) -> list[Setting]:
    """The settings in which runs A and B differ."""
    from rollout_traces.analysis.runs import config_differences

    return [
        Setting(each.key, _shown(each.a), _shown(each.b))
        for each in config_differences(view.store.config(a), view.store.config(b))
        if not each.key.startswith(OWN)
    ]


def since_run_before(view: SplitView) -> SettingsSince | None:
    """The run that was started before this one, and the settings that changed since; None for the first run."""
    runs = sorted(view.store.runs(), key=lambda run: run.started)
    here = next((at for at, run in enumerate(runs) if run.id == view.store.run(view.run).id), 0)
    if here == 0:
        return None
    before = runs[here - 1]
    return SettingsSince(before.name, between_runs(view, before.id, runs[here].id))


def _shown(value: Any) -> str | None:
    return None if value is None else str(value)[:LONGEST]
