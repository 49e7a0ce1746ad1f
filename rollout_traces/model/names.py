"""Names of projects, runs and nodes: what can be one, under which Trackio keeps it in file names; and this package's version."""

from __future__ import annotations

import logging
import os
import socket
from typing import Any

from rollout_traces.errors import ConfigError

VERSION = "0.2.0"
EARLIER_KEY = "rollout_traces_earlier"
"""In a run's config: the configs of its earlier attempts, oldest first, as a JSON text; Trackio keeps the newest alone."""
MAX_BYTES = 200
"""Bytes of a name; it becomes part of file names, which have 255 at most."""
NODE = "ROLLOUT_TRACES_NODE"
"""Environment variable with the name of this node, where several nodes have one host name."""
log = logging.getLogger("rollout_traces")


def file_stem(project: str) -> str:
    """A project's name as Trackio writes it in file names."""
    kept = "".join(c for c in project if c.isalnum() or c in ("-", "_")).rstrip()
    return kept or "default"


def check_project(project: Any) -> None:
    """Refuses what cannot be a project's name; warns of one that shares its database with others.

    Raises:
        ConfigError: it is no text, empty, too long or not encodable.
    """
    check_name("project", project)
    if not project:
        raise ConfigError(f"project: seen {project!r}. Expected a name.")
    if file_stem(project) != project:
        log.warning(
            "project: Trackio keeps %r under %r, together with every other project that is written so. "
            "Letters, digits, - and _ tell projects apart.",
            project,
            file_stem(project),
        )


def check_run(name: Any) -> None:
    """Refuses what cannot be a run's name; None is Trackio's choice.

    Raises:
        ConfigError: it is no text, too long or not encodable.
    """
    if name is not None:
        check_name("name", name)


def check_name(key: str, value: Any) -> None:
    """Refuses what cannot be part of a file's name.

    Raises:
        ConfigError: it is no text, too long or not encodable.
    """
    if not isinstance(value, str):
        raise ConfigError(f"{key}: seen {value!r} ({type(value).__name__}). Expected a text.")
    try:
        n_bytes = len(value.encode())
    except UnicodeEncodeError as error:
        raise ConfigError(f"{key}: seen {value!r}, which is no valid Unicode. Expected a text.") from error
    if n_bytes > MAX_BYTES:
        raise ConfigError(f"{key}: seen {value[:40]!r}... of {n_bytes} bytes. Expected {MAX_BYTES} at most.")


def node_name() -> str:
    """The name of this node in the job: the host's name, unless `ROLLOUT_TRACES_NODE` gives another."""
    return os.environ.get(NODE) or socket.gethostname()
