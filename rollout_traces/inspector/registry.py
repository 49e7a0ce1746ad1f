"""Every page, everything that a page or a program may ask, and every route and to whom it is served: no other is.

A page is a module of `pages` with functions, a component folder of its name, and an entry here. A function that an
address of the API leads to too has an entry in `READ`, or in `SENT` where it writes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Literal

from rollout_traces.inspector.api import answers
from rollout_traces.inspector.pages import (
    around,
    compare,
    episodes,
    explain,
    explore,
    figures,
    flips,
    group,
    health,
    incidents,
    labels,
    lane_tables,
    lanes,
    live,
    measures,
    prompts,
    rollouts,
    run,
    runs,
    shell,
    what_if,
)
from rollout_traces.inspector.shared_file import share
from rollout_traces.inspector.workspace import Function
from rollout_traces.model.text import words
from rollout_traces.model.units import KB, MB, MINUTE


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
        (lanes.lanes, lane_tables.funnel, lane_tables.reward_functions, figures.population),
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
    "pages/lanes/funnel": lane_tables.funnel,
    "pages/lanes/reward_functions": lane_tables.reward_functions,
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


Who = Literal["anyone", "session", "dashboard", "write token", "Hub token"]
Kind = Literal["page", "frame", "code", "data", "file"]


@dataclass(frozen=True)
class Rule:
    """One route, or several that are alike.

    Attributes:
        path: a regular expression of the whole path, the prefix of a proxy taken off.
        method: `GET` (HEAD as well) or `POST`.
        who: what a visitor has to show: nothing; a session key or a token; one of these, or the dashboard's own path;
            the write token; a token of the Hub.
        kind: `page` (HTML with scripts), `frame` (an empty page for code of others, without origin or network), `code` (files of the installed packages, which may be cached),
            `data` or `file` (media of a project: shown, never run).
        purpose: what it is for.
        content_type: what a POST's body has to be.
        max_body: bytes that a request's body may have.
        body_seconds: seconds within which it has to arrive.
    """

    path: str
    method: Literal["GET", "POST"]
    who: Who
    kind: Kind
    purpose: str
    content_type: str = "application/json"
    max_body: int = 64 * KB
    body_seconds: float = 15.0

    def covers(self, path: str, method: str) -> bool:
        """True when the rule speaks of a request."""
        return ((method == "HEAD" and self.method == "GET") or method == self.method) and bool(
            re.fullmatch(self.path, path)
        )


NAME = r"[A-Za-z0-9_\-][A-Za-z0-9_.\-]*"
PATH = rf"{NAME}(?:/{NAME})*"
_PAGE = (
    Rule("/", "GET", "anyone", "page", "the inspector's page, an empty shell"),
    Rule(rf"/assets/{NAME}", "GET", "anyone", "code", "Gradio's scripts, styles and fonts"),
    Rule(rf"/static/(?:js|fonts|img)/{PATH}", "GET", "anyone", "code", "Gradio's other files"),
    Rule(rf"/static/trackio/{NAME}", "GET", "anyone", "code", "Trackio's images"),
    Rule(r"/favicon\.ico", "GET", "anyone", "code", "Gradio's icon"),
    Rule(r"/theme\.css", "GET", "anyone", "code", "Gradio's theme"),
    Rule(
        rf"/inspector/{NAME}/viewer\.html",
        "GET",
        "anyone",
        "frame",
        "the empty frame of a viewer of one's own",
    ),
    Rule(rf"/inspector/{NAME}/{PATH}", "GET", "anyone", "code", "the inspector's scripts and styles"),
    Rule("/session", "POST", "anyone", "data", "exchanges the token for a session key", max_body=4 * KB),
    Rule("/session", "GET", "session", "data", "whose session it is"),
    Rule("/config/?", "GET", "session", "data", "the components of the page"),
    Rule("/gradio_api/component_server/?", "POST", "session", "data", "the pages' server functions"),
)
_API = (
    Rule(f"/api/v1/(?:{'|'.join(READ)})", "GET", "session", "data", "the pages' answers for programs"),
    Rule(r"/api/v1/openapi\.json", "GET", "session", "data", "what programs may ask for, described"),
    *(Rule(f"/api/v1/{name}", "POST", "session", "data", purpose) for name, (_, purpose) in SENT.items()),
)
TRACKIO_READS = words(
    """
    get_alerts get_all_projects get_artifact_consumers get_artifact_lineage get_artifact_manifest
    get_artifacts get_logs get_logs_batch get_metric_values get_metrics_for_run get_project_files
    get_project_summary get_run_artifact_counts get_run_artifacts get_run_configs get_run_mutation_status
    get_run_summary get_runs_for_project get_settings get_snapshot get_system_logs get_system_logs_batch
    get_system_metrics_for_run get_tab_availability get_trace_steps get_traces list_artifacts
    """
)
"""Trackio's functions that read a project on this machine, and ask nobody else."""
TRACKIO_WRITES = words(
    """
    artifact_log bulk_alert bulk_log bulk_log_system bulk_upload_artifact_blob bulk_upload_media
    check_artifact_blobs log log_artifact_use
    """
)
"""Trackio's functions by which a run sends what it logs; nothing that deletes or renames."""
_READ_CALLS = f"/api/(?:{'|'.join(TRACKIO_READS)})"
_WRITE_CALLS = f"/(?:{'|'.join(TRACKIO_WRITES)})"
_DASHBOARD_PAGES = words("metrics system traces media reports runs run files artifacts artifact settings")
_DASHBOARD = (
    Rule("/trackio", "GET", "dashboard", "page", "leads to the dashboard"),
    Rule("/trackio/", "GET", "dashboard", "page", "Trackio's dashboard"),
    Rule(f"/trackio/(?:{'|'.join(_DASHBOARD_PAGES)})/?", "GET", "dashboard", "page", "its pages"),
    Rule(rf"/trackio/(?:assets|static/trackio)/{NAME}", "GET", "dashboard", "code", "its scripts and images"),
    Rule(r"/trackio/config\.json", "GET", "dashboard", "data", "that it is no static export"),
    Rule("/trackio/version", "GET", "dashboard", "data", "its version"),
    Rule("/trackio/file", "GET", "dashboard", "file", "media of a project"),
    Rule(rf"/trackio/artifact_blob/{NAME}/{NAME}", "GET", "dashboard", "file", "artifacts of a project"),
    Rule(f"/trackio{_READ_CALLS}", "POST", "dashboard", "data", "its reading functions"),
)


def _sql(api: str, who: Who, purpose: str) -> Rule:
    return Rule(f"{api}/query_project", "POST", who, "data", purpose, max_body=MB)


def _logged(api: str, who: Who, where: str) -> tuple[Rule, Rule]:
    """The routes that take what runs log, and files of theirs: more, and for longer, than any other."""
    bounds: dict[str, Any] = {"max_body": 64 * MB, "body_seconds": 5 * MINUTE}
    files = "multipart/form-data"
    return (
        Rule(f"{api}{_WRITE_CALLS}", "POST", who, "data", f"what runs log ({where})", **bounds),
        Rule(f"{api}/upload", "POST", who, "data", f"files of runs ({where})", files, **bounds),
    )


_SQL = (_sql("/trackio/api", "dashboard", "one SELECT (--trackio-sql)"),)
_WRITING = (
    Rule("/trackio/version", "GET", "write token", "data", "its version"),
    _sql("/trackio/api", "write token", "one SELECT: a logger asks what is stored (--receive-logs)"),
    *_logged("/trackio/api", "write token", "--receive-logs"),
)
_SPACE = (
    Rule("/version", "GET", "session", "data", "Trackio's version (a Space)"),
    Rule(_READ_CALLS, "POST", "session", "data", "Trackio's reading functions (a Space)"),
    _sql("/api", "session", "one SELECT (a Space)"),
    *_logged("/api", "Hub token", "a Space"),
)
"""The routes of a Space, where Trackio's client looks for them: at its root."""


def rules(*, trackio: bool, sql: bool = False, writes: bool = False, space: bool = False) -> tuple[Rule, ...]:
    """The rules of a server.

    Args:
        trackio: whether Trackio's dashboard is mounted.
        sql: whether its SQL is open.
        writes: whether runs may send what they log.
        space: whether runs may send it to a Space's root, with a token of the Hub.
    """
    found: tuple[Rule, ...] = _PAGE + _API
    if trackio:
        found += _DASHBOARD + (_SQL if sql else ()) + (_WRITING if writes else ()) + (_SPACE if space else ())
    return found


def rule_of(known: tuple[Rule, ...], path: str, method: str, may_write: bool = False) -> Rule | None:
    """The rule that speaks of a request; None where nothing is served.

    Args:
        known: the server's rules.
        path: the request's path, the prefix taken off.
        may_write: whether it carries the write token; where two rules speak of it, that one counts.
    """
    found = [rule for rule in known if rule.covers(path, method)]
    wanted = [rule for rule in found if (rule.who == "write token") == may_write]
    return next(iter(wanted or found), None)
