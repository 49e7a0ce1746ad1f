"""What every test may use."""

from __future__ import annotations

import os
from pathlib import Path

import hypothesis
import pytest

hypothesis.settings.register_profile("any-machine", deadline=None)
hypothesis.settings.load_profile("any-machine")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


@pytest.fixture
def trackio_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A real, empty Trackio home of this test's own; the current run of other tests is forgotten."""
    import trackio.media.media
    import trackio.utils
    from trackio import context_vars, sqlite_storage

    folder = tmp_path / "trackio"
    folder.mkdir()
    monkeypatch.setenv("TRACKIO_DIR", str(folder))
    for module in (trackio.utils, sqlite_storage):
        monkeypatch.setattr(module, "TRACKIO_DIR", folder)
    for module in (trackio.utils, trackio.media.media):
        monkeypatch.setattr(module, "MEDIA_DIR", folder / "media")
    context_vars.current_run.set(None)
    yield folder
    context_vars.current_run.set(None)
