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

from rollout_traces.errors import StoreError
from rollout_traces.inspector.access import Visitor, asking
from rollout_traces.inspector.pages.labels import annotate
from rollout_traces.inspector.workspace import Workspace
from tests.inspector.conftest import Served, Visit
from tests.inspector.told import told

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

    def test_nobody_where_labels_are_switched_off(self, copied):
        workspace = Workspace(folder=copied, may_label=False)
        row = workspace.store("demo").query(limit=1).rows[0]
        asked = {"project": "demo", "id": row.id, "kind": "label", "text": "x"}
        with pytest.raises(StoreError, match="--no-labels"), asking(Visitor("ann", owner=True)):
            told(annotate, workspace, asked)
        workspace.close()

    def test_nobody_under_anothers_name(self, copied):
        workspace = Workspace(folder=copied)
        row = workspace.store("demo").query(limit=1).rows[0]
        asked = {
            "project": "demo",
            "id": row.id,
            "kind": "label",
            "text": "x",
            "author": "ben",
            "time": "then",
        }
        with asking(Visitor("ann")):
            entries = told(annotate, workspace, asked)["labels"]
        assert [each["author"] for each in entries if each["text"] == "x"] == ["ann"]
        assert all(each["time"] != "then" for each in entries)
        workspace.close()

    def test_several_at_once_each_once_or_none(self, copied):
        workspace = Workspace(folder=copied)
        store = workspace.store("demo")
        first, *others = (row.id for row in store.query(limit=3).rows)
        asked = {"project": "demo", "id": first, "further": others, "kind": "label", "text": "together"}
        with asking(Visitor("ann")):
            with pytest.raises(StoreError):
                told(annotate, workspace, {**asked, "further": [*others, "not there"]})
            assert "together" not in store.labels.names()
            for kind in ("label", "note", "label", "note"):  # again, as who did not see the first answer
                told(annotate, workspace, {**asked, "kind": kind})
        for each in (first, *others):
            of_one = [e.kind for e in store.labels.of(store.uid(each)) if e.text == "together"]
            assert sorted(of_one) == ["label", "note"]
        workspace.close()

    def test_what_another_wrote_the_owner_alone_takes_back(self, copied):
        workspace = Workspace(folder=copied)
        store = workspace.store("demo")
        row = store.query(limit=1).rows[0]
        entry = store.labels.add("note", row["uid"], "ben wrote this", "ben")
        asked = {"project": "demo", "id": row.id, "kind": "removed", "text": entry.id}
        with asking(Visitor("ann")), pytest.raises(StoreError, match="“ben” wrote it"):
            told(annotate, workspace, asked)
        with asking(Visitor("grace", owner=True)):
            left = told(annotate, workspace, asked)["labels"]
        assert entry.id not in [each["id"] for each in left]
        workspace.close()

    @pytest.mark.parametrize(
        ("asked", "said"),
        [
            ({"kind": "page"}, "expected label, note or removed"),
            ({"id": "nobody"}, "nobody"),
            ({"text": ""}, "empty"),
            ({"turn": "x"}, "turn"),
        ],
    )
    def test_what_cannot_be_understood_is_said_and_nothing_is_written(self, copied, asked, said):
        workspace = Workspace(folder=copied)
        row = workspace.store("demo").query(limit=1).rows[0]
        before = workspace.store("demo").labels.now().stamp
        common = {"project": "demo", "id": row.id, "kind": "label", "text": "x"}
        with pytest.raises(StoreError, match=said), asking(Visitor("ann")):
            told(annotate, workspace, {**common, **asked})
        assert workspace.store("demo").labels.now().stamp == before
        workspace.close()
