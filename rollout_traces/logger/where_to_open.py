"""Where the rollouts of a run can be opened, said once when it begins."""

from __future__ import annotations

import shlex
from typing import Any
from urllib.parse import urlencode

from rollout_traces.model.text import harmless

BESIDE = "/trackio"
"""Below this path an inspector serves Trackio, and takes what runs log (`show --receive-logs`)."""
_said: set[str] = set()
"""Ids of the runs of this process that it was said of."""


def where_to_open(run: Any) -> str:
    """The command that opens a run, or the address of the inspector that it logs to; neither holds a token.

    Args:
        run: a `trackio.Run`.
    """
    space, server = getattr(run, "_space_id", None), getattr(run, "_server_base_url", None)
    if server and server.rstrip("/").endswith(BESIDE):
        state = {"project": run.project, "tab": "run", "run": run.name}
        return f"{server.rstrip('/').removesuffix(BESIDE)}/?{urlencode(state)}"
    place = ["--space", space] if space else ["--server-url", server] if server else []
    return shlex.join(["rollout-traces", "show", *place, "--project", run.project, "--run", run.name])


def say_where_to_open(run: Any) -> None:
    """Prints it below what Trackio prints of the run, once a run and process."""
    if run.id not in _said:
        _said.add(run.id)
        print(f"* Rollouts of this run: {harmless(where_to_open(run))}", flush=True)
