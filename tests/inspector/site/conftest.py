"""Sites of the runs that the pages' tests read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from rollout_traces.inspector.site import write_site
from rollout_traces.inspector.workspace import Workspace


@pytest.fixture(scope="package")
def workspace(home: Path) -> Iterator[Workspace]:
    """What the sites are made of."""
    found = Workspace(folder=home)
    yield found
    found.close()


@pytest.fixture(scope="package")
def site(workspace: Workspace, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run `run-a` of `demo`."""
    folder = tmp_path_factory.mktemp("sites") / "demo"
    write_site(workspace, "demo", "run-a", folder)
    return folder
