"""A question to the store in an interpreter of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

PROJECT = "bench"


def in_fresh_process(expression: str, *, refresh: bool) -> dict[str, Any]:
    """Opens the store in a new interpreter and evaluates an expression on it, named `s`.

    Returns:
        `answer`, and `ms` on the wall and `cpu ms` of the processor, imports included.
    """
    code = (
        "import json, time; t, c = time.perf_counter(), time.process_time()\n"
        "from rollout_traces.store import open_store\n"
        f"s = open_store({PROJECT!r}, refresh={refresh})\nanswer = {expression}\n"
        "wall, cpu = (time.perf_counter() - t) * 1000, (time.process_time() - c) * 1000\n"
        "print(json.dumps({'ms': round(wall, 1), 'cpu ms': round(cpu, 1), 'answer': str(answer)}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)
