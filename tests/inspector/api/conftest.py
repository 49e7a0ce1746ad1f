"""A run with a planted cause, logged as a trainer would, and a quiet one beside it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rollout_traces.inspector.workspace import Workspace
from tests.stories.causes import CAUSES
from tests.stories.logged import log_story
from tests.stories.world import Kind, write_run
from tests.trackio_home import use_trackio_home

AT = 14
PLANTED = "one engine off"


@pytest.fixture(scope="package")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workspace]:
    """A workspace over the project `story` with the runs `off` and `healthy`."""
    folder = tmp_path_factory.mktemp("story")
    with pytest.MonkeyPatch.context() as patch:
        use_trackio_home(patch, folder)
        kinds = {"few": Kind(n_sources=2, groups=(5, 6), group_size=4)}
        patch.setattr("tests.stories.world.KINDS", kinds)
        log_story(
            write_run(1, "few", PLANTED, CAUSES[PLANTED].changes, n_steps=24, at=AT, run="off"), "story"
        )
        log_story(write_run(2, "few", n_steps=12, run="healthy"), "story")
        found = Workspace(folder=folder)
        yield found
        found.close()
