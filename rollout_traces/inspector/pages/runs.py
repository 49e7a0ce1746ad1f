"""Two runs: their curves over each other, and the settings in which they differ."""

from __future__ import annotations

from typing import Any

from rollout_traces.inspector.pages.base import Page
from rollout_traces.inspector.pages.figures import run_progress, scalars, split_series
from rollout_traces.inspector.pages.settings_between import between_runs
from rollout_traces.inspector.workspace import Request, Workspace


def two_runs(workspace: Workspace, request: Request) -> dict[str, Any]:
    """The series that were asked for (the usual ones when none) of both runs, how far each had come, settings.

    Raises:
        StoreError: one of the runs is not in the project.
    """
    store = workspace.store(request.project)
    names = {"a": store.run(request.run), "b": store.run(request.text("other"))}
    asked = {side: Request({**request.values, "run": run.id}) for side, run in names.items()}
    wanted = request.names("names")
    known = {side: scalars(workspace, one) for side, one in asked.items()}
    found = {side: split_series(workspace, one, wanted) for side, one in asked.items()}
    shown = list(dict.fromkeys([*found["a"]["shown"], *found["b"]["shown"]]))
    series = {side: split_series(workspace, asked[side], shown)["series"] for side in asked}
    return {
        "runs": {side: run.name for side, run in names.items()},
        "names": sorted({*known["a"], *known["b"]}),
        "shown": shown,
        "series": series,
        "resumed_at": {side: list(run.resumed_at) for side, run in names.items()},
        "progress": {side: run_progress(workspace, one) for side, one in asked.items()},
        "settings": between_runs(workspace, request.project, names["a"].id, names["b"].id),
        "evaluations": sorted(
            {s for s in store.splits(names["a"].id) if s.startswith("eval")}
            & set(store.splits(names["b"].id))
        ),
    }


PAGE = Page(name="runs", title="Runs", key="R", functions=(two_runs,))
