"""Labels and notes in the inspector: from the keyboard, between two visitors, and hostile ones."""

from __future__ import annotations

import json
import shutil
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import expect

from rollout_traces.inspector.workspace import Workspace
from tests.inspector.conftest import Served, Visit

pytestmark = pytest.mark.browser
ANN, BEN = "the-token-that-ann-has", "the-token-that-ben-has"
HOSTILE = 'javascript:window.pwned=1 "><img src=x onerror=window.pwned=2>'
WHERE = {"tab": "rollouts", "project": "demo", "run": "run-b", "step": 2, "group": 1}


@pytest.fixture(scope="module")
def copied(home: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The projects in a folder whose labels are this file's own."""
    folder = tmp_path_factory.mktemp("labelled") / "trackio"
    shutil.copytree(home, folder)
    return folder


@pytest.fixture(scope="module")
def server(copied: Path) -> Iterator[Served]:
    started = Served(copied, ROLLOUT_TRACES_TOKENS=f"ann={ANN} ben={BEN}")
    yield started
    started.stop()


@pytest.fixture
def two(chromium, server: Served) -> Iterator[tuple[Visit, Visit]]:
    """Two people at the same server, each with a token of his own."""
    visits = (Visit(chromium, server.address, token=ANN), Visit(chromium, server.address, token=BEN))
    yield visits
    for visit in visits:
        visit.close()


def keep(visit: Visit, key: str, text: str) -> None:
    visit.page.keyboard.press(key)
    visit.get("label-text").fill(text)
    visit.get("label-keep").click()
    expect(visit.get("label-dialog")).to_have_count(0)


class TestLabelling:
    def test_a_label_and_a_note_from_the_keyboard_reach_the_other_visitor(self, two, copied):
        ann, ben = two
        for visit in two:
            visit.open(**WHERE)
            expect(visit.get("turn").first).to_be_visible()
        keep(ann, "q", "reward hack")
        keep(ann, "u", "answers before it reads")
        expect(ann.get("label")).to_contain_text("reward hack")
        expect(ben.get("label")).to_contain_text("reward hack", timeout=60_000)
        assert "up to date" in ben.get("live").inner_text(), "a label makes no finished run live"
        expect(ben.get("note")).to_contain_text("answers before it reads")
        ben.page.keyboard.press("q")
        expect(ben.get("label-offered").first).to_contain_text("reward hack")
        ben.page.keyboard.press("Escape")
        ann.picture("labels")
        lines = [
            json.loads(line) for line in (copied / "rollout-labels" / "demo.jsonl").read_text().splitlines()
        ]
        assert [(line["kind"], line["author"]) for line in lines[:2]] == [("label", "ann"), ("note", "ann")]
        ann.page.keyboard.press("q")
        expect(ann.get("label-author")).to_have_text("as ann")

    def test_only_its_writer_and_the_owner_take_one_back(self, two, chromium, server):
        ann, ben = two
        where = {**WHERE, "group": 0}
        for visit in two:
            visit.open(**where)
            expect(visit.get("turn").first).to_be_visible()
        keep(ann, "q", "hers")
        expect(ben.get("label")).to_contain_text("hers", timeout=60_000)
        expect(ben.get("label-remove")).to_have_count(0)
        owner = Visit(chromium, server.address)
        owner.open(**where)
        owner.get("label-remove").first.click()
        expect(owner.get("label")).to_have_count(0)
        owner.close()

    def test_a_digit_keeps_an_offered_label_and_the_cross_takes_it_back(self, two):
        ann, _ = two
        ann.open(**WHERE)
        expect(ann.get("turn").first).to_be_visible()
        if not ann.get("label").count():
            keep(ann, "q", "reward hack")
        ann.page.keyboard.press("j")
        expect(ann.get("label")).to_have_count(0)
        ann.page.keyboard.press("q")
        ann.page.keyboard.press("1")
        expect(ann.get("label")).to_have_count(1)
        ann.get("label-remove").first.click()
        expect(ann.get("label")).to_have_count(0)

    def test_the_token_of_the_address_is_what_is_labelled(self, two):
        ann, _ = two
        ann.open(**WHERE, mode="tokens", token=30)
        expect(ann.get("turn").first).to_be_visible()
        keep(ann, "q", "slip")
        expect(ann.page.locator("[data-label='slip']")).to_contain_text("tokens 30–30")

    def test_a_hostile_label_is_text(self, two):
        ann, _ = two
        ann.open(**WHERE)
        expect(ann.get("turn").first).to_be_visible()
        keep(ann, "q", HOSTILE[:60])
        keep(ann, "u", HOSTILE)
        expect(ann.get("note").last).to_contain_text(HOSTILE)
        ann.page.reload()
        expect(ann.get("note").last).to_contain_text(HOSTILE)
        assert ann.page.evaluate("window.pwned") is None
        assert ann.page.locator(".rt-labels img, .rt-labels a").count() == 0

    def test_many_long_notes_leave_the_conversation_in_sight(self, two, copied):
        ann, _ = two
        workspace = Workspace(folder=copied)
        store = workspace.store("agents")
        row = store.query(limit=1).rows[0]
        for number in range(20):
            store.labels.add("note", row["uid"], f"{number} " + "long " * 150, "ann")
        workspace.close()
        ann.open(tab="rollouts", project="agents", run=row["run"], step=row["step"], id=row.id)
        expect(ann.get("note")).to_have_count(20)
        expect(ann.get("turn").first).to_be_in_viewport()

    def test_explore_filters_and_counts_by_label(self, two):
        ann, _ = two
        ann.open(**WHERE)
        expect(ann.get("turn").first).to_be_visible()
        keep(ann, "q", "seen")
        ann.open(
            project="demo",
            run="run-b",
            tab="explore",
            where="label = seen",
            columns="step,labels",
            hist="labels",
        )
        expect(ann.get("explore-table")).to_contain_text("seen")
        expect(ann.get("facets").first).to_contain_text("seen")


class TestWhoMay:
    def test_without_the_token_nobody(self, server):
        request = urllib.request.Request(
            f"{server.address}/gradio_api/component_server",
            data=json.dumps({"fn_name": "annotate", "data": {}}).encode(),
            headers={"Content-Type": "application/json"},
        )
        with pytest.raises(urllib.error.HTTPError, match="401"):
            urllib.request.urlopen(request, timeout=10)
