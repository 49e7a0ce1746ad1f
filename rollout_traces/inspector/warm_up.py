"""What the first page will ask, asked while the browser still loads it: modules, index and columns are there then."""

from __future__ import annotations

import logging
import threading

from rollout_traces.inspector.workspace import Request, Workspace

_LOG = logging.getLogger(__name__)


def warm_up(workspace: Workspace) -> threading.Thread | None:
    """Asks in a thread of its own; None where nothing is asked, since there are several projects or none here.

    Args:
        workspace: what the pages read.
    """
    if not workspace.is_local or len(projects := workspace.projects()) != 1:
        return None
    thread = threading.Thread(target=_ask, args=(workspace, projects[0]), daemon=True)
    thread.start()
    return thread


def _ask(workspace: Workspace, project: str) -> None:
    from rollout_traces.inspector.pages.rollouts import metrics, rollout, samples
    from rollout_traces.inspector.pages.shell import catalog

    try:
        workspace.store(project)
        runs = catalog(workspace, Request({"project": project}))["runs"]
        splits = [split for run in runs[:1] for split in run["splits"][:1] if split["steps"]]
        for split in splits:
            place = {"project": project, "run": runs[0]["name"], "split": split["name"]}
            place["step"] = split["steps"][-1]
            groups = samples(workspace, Request(place)).get("groups") or ()
            kept = [card["id"] for group in groups for card in group["samples"]]
            for trace_id in kept[:1]:
                rollout(workspace, Request({**place, "id": trace_id}))
            metrics(workspace, Request(place))
    except Exception as error:  # noqa: BLE001 - the next question raises it again
        _LOG.debug("asked ahead of the first page: %s", error)
