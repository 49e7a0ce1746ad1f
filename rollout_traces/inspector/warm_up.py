"""What the first page will ask, asked while the browser still loads it: modules, index and columns are there then."""

from __future__ import annotations

import logging
import threading

from rollout_traces.inspector.view import SplitView
from rollout_traces.inspector.workspace import Workspace

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
    from rollout_traces.inspector.pages.rollouts import AskedSamples, metrics, rollout, samples
    from rollout_traces.inspector.pages.shell import catalog

    try:
        workspace.store(project)
        for run in catalog(workspace, project).runs[:1]:
            for split in run.splits[:1]:
                view = SplitView(workspace, project, run.name, split.name)
                for step in split.steps[-1:]:
                    groups = samples(view, step, AskedSamples()).groups or []
                    for card in [card for group in groups for card in group.samples][:1]:
                        rollout(view, card.id or "")
                    metrics(view)
    except Exception as error:  # noqa: BLE001 - the next question raises it again
        _LOG.debug("asked ahead of the first page: %s", error)
