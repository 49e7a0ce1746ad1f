"""The report of a run and split, and its timeline, kept until the project has new rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rollout_traces.inspector.view import SplitView

if TYPE_CHECKING:
    from rollout_traces.analysis import Event, RunReport
    from rollout_traces.analysis.scope import RunScope


def run_scope(view: SplitView) -> RunScope:
    """The rollouts of a run's split."""
    from rollout_traces.analysis.scope import RunScope

    return RunScope(view.store.table(), view.store.run(view.run).name, view.split)


def run_diagnosed(view: SplitView) -> RunReport:
    """What moved in the run, since when and for whom."""
    from rollout_traces.analysis import diagnose

    scope = run_scope(view)
    key = ("run report", scope.run, scope.split)
    return view.surveyed(key, lambda: diagnose(scope.relations, scope.run, scope.split))


def run_events(view: SplitView) -> list[Event]:
    """The timeline of the run."""
    from rollout_traces.analysis import events

    report = run_diagnosed(view)
    if not report.n_rows:
        return []
    scope = run_scope(view)
    key = ("run events", scope.run, scope.split)
    return view.remembered(key, lambda: events(scope.relations, scope.run, scope.split, report=report))
