"""One project at once: a run that goes on logging, the inspector, commands and a notebook, each a process."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from tests.inspector.conftest import BEARER, ROOT, Served, environment
from tests.store.projects import make_ledger, write_step

LAST_STEP = 8
ROWS_OF_A_STEP = 16
EARLIER = 2
"""Rows of a run that has ended."""
ALL = EARLIER + LAST_STEP * ROWS_OF_A_STEP
PATIENCE = 60
"""Seconds after which a reader that does not see the newest step has failed."""

NOTEBOOK = f"""
import time
from rollout_traces.store import open_store
store = open_store("demo")
end = time.monotonic() + {PATIENCE}
while time.monotonic() < end:
    store.refresh()
    uids = store.rollouts(columns=["uid"])["uid"].to_pylist()
    texts = store.count(text="now")
    print(len(uids), len(set(uids)), store.count(where="step = {LAST_STEP}", rows="all"), texts, flush=True)
    if len(uids) == {ALL}:
        break
    time.sleep(0.1)
"""
"""Each line: rows, different uids, rows of the last step, conversations found by a word."""


@pytest.fixture
def live(trackio_dir):
    write_step(make_ledger([[0.0, 1.0]], step=1), (0, 1), project="demo")
    server = Served(trackio_dir, "--project", "demo")
    yield server, trackio_dir
    server.stop()


def test_each_sees_every_row_once_while_a_run_goes_on(live):
    server, folder = live
    notebook = _started(folder, "-c", NOTEBOOK)
    first = notebook.stdout.readline()
    writer = _started(folder, "-m", "tests.inspector.make_project", "--steps", str(LAST_STEP))
    of_pages, of_commands = [], []
    while writer.poll() is None:
        of_pages.append(_in_the_inspector(server))
        of_commands.append(_on_the_command_line(folder))
    of_pages.append(_newest(lambda: _in_the_inspector(server)))
    of_commands.append(_on_the_command_line(folder))
    output, errors = notebook.communicate(timeout=PATIENCE)
    _, written = writer.communicate(timeout=PATIENCE)
    lines = [tuple(map(int, line.split())) for line in [first, *output.splitlines()]]

    assert (notebook.returncode, errors) == (0, "")
    assert writer.returncode == 0, written
    assert lines[0][0] == EARLIER and lines[-1] == (ALL, ALL, ROWS_OF_A_STEP, ALL - EARLIER)
    for seen in (of_pages, of_commands, [line[:2] for line in lines]):
        assert seen == sorted(seen), "rows that were there are gone"
        assert all(n == different for n, different in seen)
    assert of_pages[-1] == of_commands[-1] == (ALL, ALL)


def _started(folder: Path, *command: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, *command],
        cwd=ROOT,
        env=environment(folder),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _in_the_inspector(server: Served) -> tuple[int, int]:
    """Rows that the inspector counts, and different uids that it lists."""
    _answer(server, "runs")
    page = _answer(server, "rollouts", rows="all", columns="uid", limit=200)
    return page["total"], len({row["uid"] for row in page["rows"]})


def _answer(server: Served, route: str, **asked: Any) -> Any:
    query = urllib.parse.urlencode({"project": "demo", **asked})
    request = urllib.request.Request(f"{server.address}/api/v1/{route}?{query}", headers=BEARER)
    with urllib.request.urlopen(request, timeout=PATIENCE) as response:
        return json.load(response)


def _on_the_command_line(folder: Path) -> tuple[int, int]:
    """Rows that `rollout-traces list` prints, and different uids among them."""
    command = ["list", "-p", "demo", "--all", "--json", "--columns", "uid", "-n", "1000"]
    done = subprocess.run(
        [sys.executable, "-c", "from rollout_traces.cli import main; main()", *command],
        cwd=folder,
        env=environment(folder),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert (done.returncode, done.stderr) == (0, "")
    uids = [row["uid"] for row in json.loads(done.stdout)["rows"]]
    return len(uids), len(set(uids))


def _newest(look: Any) -> tuple[int, int]:
    """What a reader that looks every second sees in the end."""
    end = time.monotonic() + PATIENCE
    while (seen := look()) != (ALL, ALL) and time.monotonic() < end:
        time.sleep(0.2)
    return seen
