"""The settings of a run's earlier attempts: Trackio replaces a config when a run is resumed, so the new one carries the old."""

from __future__ import annotations

import logging
from typing import Any

import orjson

from rollout_traces.settings.run_settings import EARLIER_KEY

MOST = 50
"""Earlier configs that are kept, the newest ones."""
log = logging.getLogger(__name__)


def with_earlier(config: dict[str, Any], project: str, name: str | None) -> dict[str, Any]:
    """A config with those of the run's earlier attempts, where Trackio's local store has them.

    Args:
        config: of the attempt that begins.
        project: the project.
        name: the run that it may resume; None for a new one.
    """
    if name is None:
        return config
    try:
        from trackio.sqlite_storage import SQLiteStorage

        before = dict(SQLiteStorage.get_run_config(project, name) or {})
        if not before:
            return config
        earlier = orjson.loads(before.pop(EARLIER_KEY, "[]"))
        return {**config, EARLIER_KEY: orjson.dumps([*earlier, before][-MOST:]).decode()}
    except Exception:
        log.warning(
            "the settings of earlier attempts of run %s cannot be read and are not kept", name, exc_info=True
        )
        return config
