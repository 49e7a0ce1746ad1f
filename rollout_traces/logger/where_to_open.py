"""The sentence that says where the rollouts of a run can be opened, printed once when it begins."""

from __future__ import annotations

import shlex
from typing import Any
from urllib.parse import urlsplit

from rollout_traces.errors import ConfigError
from rollout_traces.model.text import MOST, harmless
from rollout_traces.settings.logger_options import page_address

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
    inspector = inspector_of(None, server)
    if inspector is not None:
        return page_address(inspector, project=run.project, tab="run", run=run.name)
    place = ["--space", space] if space else ["--server-url", server] if server else []
    return shlex.join(["rollout-traces", "show", *place, "--project", run.project, "--run", run.name])


def inspector_of(given: str | None, server_url: str | None) -> str | None:
    """The address of the inspector that a run is opened in, without query and slash at its end.

    Args:
        given: what a user said.
        server_url: where the run logs to, which an inspector may serve.

    Raises:
        ConfigError: what was given is no such address.
    """
    if given is None:
        base = (server_url or "").partition("?")[0].rstrip("/")
        return base.removesuffix(BESIDE) if base.endswith(BESIDE) else None
    parts = urlsplit(given)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
        raise ConfigError(
            f"inspector_url: seen {given.partition('?')[0][:MOST]!r}. Expected the http or https address of an inspector, without a "
            "query: a token in it would be stored with the run."
        )
    if parts.username or parts.password:
        raise ConfigError(
            "inspector_url: has a user or password in it, which would be stored with the run. Expected none."
        )
    return given.rstrip("/")


def say_where_to_open(run: Any) -> None:
    """Prints it below what Trackio prints of the run, once a run and process."""
    if run.id not in _said:
        _said.add(run.id)
        print(f"* Rollouts of this run: {harmless(where_to_open(run))}", flush=True)
