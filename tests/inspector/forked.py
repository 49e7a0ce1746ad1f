"""`rollout-traces` in processes that start with Gradio and the server imported: that takes eight seconds of a processor."""

from __future__ import annotations

import atexit
import gc
import multiprocessing
import os
import sys
import tempfile
from multiprocessing.process import BaseProcess
from pathlib import Path

_FORKED = multiprocessing.get_context("forkserver")
_FORKED.set_forkserver_preload(
    [
        "gradio",
        "scipy.stats",
        "rollout_traces.cli.show",
        "rollout_traces.inspector.server",
        "rollout_traces.inspector.api.http",
    ]
)  # not Trackio: it reads the environment when it is imported


def start_command(
    arguments: list[str], folder: Path, variables: dict[str, str], output: Path, before: str = ""
) -> BaseProcess:
    """Starts the command in a folder, with just these variables; `before` runs first."""
    process = _FORKED.Process(target=_run, args=(arguments, folder, variables, output, before), daemon=True)
    process.start()
    return process


def _run(arguments: list[str], folder: Path, variables: dict[str, str], output: Path, before: str) -> None:
    gc.freeze()  # half a second of each look for garbage is spent on what was imported before
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(variables)
    tempfile.tempdir = None  # that of the test whose server was the first
    sys.path[:0] = filter(None, variables.get("PYTHONPATH", "").split(os.pathsep))
    sys.argv[1:] = arguments
    with output.open("w") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    sys.stdout.reconfigure(line_buffering=True)
    exec(before, {})
    from rollout_traces.cli import main

    try:
        main()
    finally:
        atexit._run_exitfuncs()  # multiprocessing leaves them out
