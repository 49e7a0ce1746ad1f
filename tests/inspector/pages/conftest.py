"""Asks a page's function of the project that the store's tests share: three steps of eight rollouts in two groups."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rollout_traces.inspector.workspace import Function, Workspace
from tests.inspector.told import told
from tests.store.conftest import shared_folder
from tests.store.projects import PROJECT, RUN, write_resumed

__all__ = ["shared_folder"]
Ask = Callable[..., Any]


@pytest.fixture
def ask(shared_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Ask]:
    """Asks a function; the run and its split are filled in."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    workspace = Workspace(folder=shared_folder)

    def asked(function: Function, **sent: Any) -> Any:
        place = {"project": PROJECT, "run": RUN, "split": "rollout"}
        return told(function, workspace, place | sent)

    yield asked
    workspace.close()


@pytest.fixture
def ask_resumed(trackio_dir: Path) -> Iterator[Ask]:
    """Asks a function of the run that `write_resumed` stores."""
    write_resumed()
    workspace = Workspace()
    yield lambda function, **sent: told(
        function, workspace, {"project": PROJECT, "run": RUN, "split": "rollout", **sent}
    )
    workspace.close()
