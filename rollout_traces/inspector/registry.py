"""Every page, and everything that a page or a program may ask: what is not listed here is not served.

A page is a module of `pages` with functions, a component folder of its name, and an entry here. A function that an
address of the API leads to too has an entry in `READ`, or in `SENT` where it writes.
"""

from __future__ import annotations

from dataclasses import dataclass

from rollout_traces.inspector.api import answers
from rollout_traces.inspector.asking import Function
from rollout_traces.inspector.pages import (
    around,
    compare,
    episodes,
    explain,
    explore,
    figures,
    flips,
    funnel,
    group,
    health,
    incidents,
    labels,
    lanes,
    live,
    measures,
    prompts,
    reward_functions,
    rollouts,
    run,
    runs,
    shell,
    what_if,
)
from rollout_traces.inspector.shared_file import share


@dataclass(frozen=True)
class Page:
    """One page.

    Attributes:
        name: its name in the address, and its folder under `components`.
        title: what its tab says; empty for the frame around the pages.
        key: the key that opens it; empty for none.
        functions: what its script may call, by the functions' names.
    """

    name: str
    title: str
    key: str
    functions: tuple[Function, ...]


PAGES: tuple[Page, ...] = (
    Page("shell", "", "", (shell.catalog, shell.pulse, incidents.incident_bar, incidents.mark_incident)),
    Page("projects", "Projects", "p", (shell.project, shell.places, incidents.incident_bar)),
    Page(
        "run",
        "Run",
        "6",
        (run.run_curves, run.run_report, explain.explain, explain.figures, run.diagnosis_figures, share),
    ),
    Page(
        "rollouts",
        "Rollouts",
        "1",
        (
            *(rollouts.samples, rollouts.rollout, rollouts.metrics, around.step_means, around.group_pushes),
            *(around.image, around.raw_record, share, labels.labels, labels.annotate),
            *(around.viewers, around.viewed, explore.export_chosen, lanes.lanes),
        ),
    ),
    Page(
        "compare",
        "Compare",
        "2",
        (compare.compare, around.image, compare.prompt_history, figures.population, share),
    ),
    Page("explore", "Explore", "3", (explore.table, explore.columns, explore.spread, explore.export)),
    Page("health", "Health", "4", (health.health, measures.breakdown, health.examples)),
    Page("group", "Group", "5", (group.group, figures.population, share)),
    Page("explain", "Explain", "7", (explain.explain, explain.figures, explain.in_force)),
    Page("prompts", "Prompts", "P", (prompts.prompt_list, prompts.prompt)),
    Page("flips", "Flips", "F", (flips.flip_list, flips.flip_figures, flips.grid)),
    Page("runs", "Runs", "R", (runs.several_runs,)),
    Page(
        "episodes", "Episodes", "8", (episodes.episodes, rollouts.rollout, around.image, figures.population)
    ),
    Page("live", "Live", "L", (live.live, live.live_rollout)),
    Page(
        "lanes",
        "Lanes",
        "T",
        (lanes.lanes, funnel.funnel, reward_functions.reward_functions, figures.population),
    ),
    Page("what_if", "What if", "W", (what_if.what_if, rollouts.rollout, around.image, figures.population)),
)
"""In the order of the tabs; the frame first."""

READ: dict[str, Function] = {
    "columns": explore.columns,
    "compare": answers.compare,
    "events": answers.events,
    "explain": answers.explain,
    "flips": answers.flips,
    "labels": labels.labels,
    "labels/lines": answers.label_lines,
    "live": live.live,
    "live/rollout": live.live_rollout,
    "pages/catalog": shell.catalog,
    "pages/compare": compare.compare_two,
    "pages/compare/prompt_history": compare.prompt_history,
    "pages/episodes": episodes.episodes,
    "pages/explain": explain.explain,
    "pages/explain/figures": explain.figures,
    "pages/explain/in_force": explain.in_force,
    "pages/explore/export": explore.export,
    "pages/explore/export_chosen": explore.export_chosen,
    "pages/explore/spread": explore.spread,
    "pages/flips": flips.flip_list,
    "pages/flips/figures": flips.flip_figures,
    "pages/flips/grid": flips.grid,
    "pages/group": group.group,
    "pages/health": health.health,
    "pages/health/breakdown": measures.breakdown,
    "pages/health/examples": health.examples,
    "pages/incidents": incidents.incident_bar,
    "pages/lanes": lanes.lanes,
    "pages/lanes/funnel": funnel.funnel,
    "pages/lanes/reward_functions": reward_functions.reward_functions,
    "pages/population": figures.population,
    "pages/project": shell.project,
    "pages/prompts": prompts.prompt_list,
    "pages/prompts/prompt": prompts.prompt,
    "pages/rollouts": rollouts.samples,
    "pages/rollouts/group_pushes": around.group_pushes,
    "pages/rollouts/image": around.image,
    "pages/rollouts/raw_record": around.raw_record,
    "pages/rollouts/series": rollouts.metrics,
    "pages/rollouts/step_means": around.step_means,
    "pages/rollouts/tokens": rollouts.tokens,
    "pages/rollouts/viewed": around.viewed,
    "pages/rollouts/viewers": around.viewers,
    "pages/run": run.run_report,
    "pages/run/curves": run.run_curves,
    "pages/run/figures": run.diagnosis_figures,
    "pages/runs": runs.several_runs,
    "pages/what_if": what_if.what_if,
    "projects": shell.places,
    "report": answers.report,
    "rollout": answers.rollout,
    "rollouts": answers.rollouts,
    "runs": answers.runs,
}
"""Names below `/api/v1` that are asked for with GET, and what answers. Arguments are the query's."""
SENT: dict[str, tuple[Function, str]] = {
    "labels": (labels.annotate, "a label or a note (not with --no-labels)"),
    "labels/lines": (answers.take_label_lines, "labels of another copy (not with --no-labels)"),
    "citations": (answers.citations, "checks the citations of a report"),
    "pages/incidents": (incidents.mark_incident, "marks an incident (not with --no-labels)"),
    "open": (answers.open_page, "asks the page to move, where its reader allows it"),
}
"""Names that something is sent to with POST, as JSON, and what it is for."""
PARTS: dict[str, tuple[str, ...]] = {
    "pages/health": (
        *("steps", "measures.values", "flags.values", "flags.counts"),
        *("discards.values", "discards.counts", "ties.values", "ties.counts"),
    ),
    "pages/group": ("members",),
    "pages/lanes": tuple(f"spans.{name}" for name in lanes.SpanColumns.__dataclass_fields__),
    "pages/flips/grid": ("rows",),
    "pages/episodes": ("episodes",),
    "pages/rollouts/group_pushes": ("ids", "up", "down"),
    "pages/what_if": (
        *("cells.tokens", "cells.weight", "cells.new", "cells.prox"),
        *("cells.sign", "cells.staleness", "cells.source", "cells.turn"),
    ),
}
"""Lists of equal length that programs get some at a time, by address; the first tells how many there are."""
