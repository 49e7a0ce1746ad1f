"""Where Trackio keeps its projects, for fixtures that outlive a test."""

from __future__ import annotations

from pathlib import Path

import pytest


def use_trackio_home(patch: pytest.MonkeyPatch, folder: Path) -> None:
    """Makes a folder Trackio's home, for this process, which may have read the variable long ago, and its children."""
    import trackio.media.media
    import trackio.utils
    from trackio import context_vars, sqlite_storage

    patch.setenv("TRACKIO_DIR", str(folder))
    for module in (trackio.utils, sqlite_storage):
        patch.setattr(module, "TRACKIO_DIR", folder)
    for module in (trackio.utils, trackio.media.media):
        patch.setattr(module, "MEDIA_DIR", folder / "media")
    store_soon(patch)
    context_vars.current_run.set(None)


def store_soon(patch: pytest.MonkeyPatch) -> None:
    """Has what this process logs stored without long pauses, so that nothing waits long until it is."""
    import trackio.run

    from rollout_traces.worker import consumer

    patch.setattr(trackio.run, "BATCH_SEND_INTERVAL", 0.02, raising=False)
    patch.setattr(consumer, "PAUSES", (0.02, 0.04))
