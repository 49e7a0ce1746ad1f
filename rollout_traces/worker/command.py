"""The command line of a worker process, apart from the worker's code, so that starting one imports little."""

from __future__ import annotations

import sys

from rollout_traces.spool.run_folder import RunFolder
from rollout_traces.worker.named_targets import NamedTargets


def worker_command(folder: RunFolder, named: NamedTargets) -> list[str]:
    """The command line of a process that processes a folder."""
    return [sys.executable, "-m", "rollout_traces.worker.main", str(folder.path), *named.as_arguments()]
