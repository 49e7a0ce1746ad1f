"""What every test may use."""

from __future__ import annotations

import os
from pathlib import Path

import hypothesis
import pytest

from tests.trackio_home import use_trackio_home

hypothesis.settings.register_profile("any-machine", deadline=None)
hypothesis.settings.load_profile("any-machine")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


@pytest.fixture
def trackio_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A real, empty Trackio home of this test's own; the current run of other tests is forgotten."""
    from trackio import context_vars

    folder = tmp_path / "trackio"
    folder.mkdir()
    use_trackio_home(monkeypatch, folder)
    yield folder
    context_vars.current_run.set(None)
