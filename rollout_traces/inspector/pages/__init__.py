"""The pages. A page is a module with server functions, a component folder of its name, and an entry here."""

from __future__ import annotations

from rollout_traces.inspector.pages import (
    compare,
    episodes,
    explain,
    explore,
    flips,
    group,
    health,
    projects,
    prompts,
    rollouts,
    run,
    runs,
    shell,
    what_if,
)
from rollout_traces.inspector.pages.base import Page

PAGES: tuple[Page, ...] = (
    shell.PAGE,
    projects.PAGE,
    run.PAGE,
    rollouts.PAGE,
    compare.PAGE,
    explore.PAGE,
    health.PAGE,
    group.PAGE,
    explain.PAGE,
    prompts.PAGE,
    flips.PAGE,
    runs.PAGE,
    episodes.PAGE,
    what_if.PAGE,
)
"""In the order of the tabs; the frame first."""

__all__ = ["PAGES", "Page"]
