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
    rows = [
        {"prompt": "q", "response": "a", "reward": 1, "key of theirs": "<b>7</b>"},
        {"prompt": "q", "response": "b", "reward": 0},
    ]
    dump.write_text("".join(json.dumps(row) + "\n" for row in rows))
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


def test_without_tokens_an_address_of_tokens_is_read_as_text(chromium, imported):
    """Seen once: buttons that go from token to token, which did nothing, in place of the one that draws formulas."""
    server, _ = imported
    visit = Visit(chromium, server.address)
    visit.open(project="imported", run="dump", split="rollout", step=0, mode="tokens", overlay="advantage")
    expect(visit.get("rendered")).to_be_visible()
    expect(visit.get("next-extreme")).to_have_count(0)
    expect(visit.page.locator(".rt-legend:visible")).to_contain_text("carries nothing")
    visit.open(project="imported", run="dump", split="rollout", step=0, tab="compare")
    expect(visit.get("no-divergence")).to_contain_text("no token data on either side")
