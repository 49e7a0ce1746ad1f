"""The record that an imported rollout came from, on its page."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from playwright.sync_api import expect

from tests.inspector.conftest import Served, Visit, environment

pytestmark = pytest.mark.browser


@pytest.fixture
def imported(tmp_path):
    dump = tmp_path / "dump" / "rows.jsonl"
    dump.parent.mkdir()
    dump.write_text(
        json.dumps({"prompt": "q", "response": "a", "reward": 1, "key of theirs": "<b>7</b>"}) + "\n"
    )
    main = "from rollout_traces.cli import main; main()"
    command = [sys.executable, "-c", main, "import", str(dump), "-p", "imported"]
    subprocess.run(command, env=environment(tmp_path), check=True, capture_output=True, timeout=120)
    server = Served(tmp_path, "--project", "imported")
    yield server, dump
    server.stop()


def test_it_unfolds_as_its_file_has_it(chromium, imported):
    server, dump = imported
    visit = Visit(chromium, server.address)
    visit.open(project="imported", run="dump", split="rollout", step=0)
    visit.get("header-more").locator("summary").first.click()
    expect(visit.get("raw-record-more")).to_contain_text("rows.jsonl:1")
    visit.get("raw-record-more").locator("summary").click()
    expect(visit.get("raw-record")).to_contain_text('"key of theirs": "<b>7</b>"')
    dump.unlink()
    visit.page.reload()
    visit.get("raw-record-more").locator("summary").click()
    expect(visit.get("raw-record")).to_contain_text("cannot be read")
