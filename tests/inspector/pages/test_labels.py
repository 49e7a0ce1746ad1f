"""Who puts labels and notes on a rollout, who takes them back, and which lines of another copy are taken."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rollout_traces.errors import StoreError
from rollout_traces.inspector.access import Visitor, asking
from rollout_traces.inspector.pages.labels import annotate, labels, take_lines
from rollout_traces.inspector.workspace import Workspace
from rollout_traces.store.labels import Entry, new_entry
from tests.inspector.told import told
from tests.store.projects import PROJECT

ANN, OWNER = Visitor("ann"), Visitor("grace", owner=True)


@pytest.fixture
def folder(shared_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The shared project in a folder whose labels are this test's own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return Path(shutil.copytree(shared_folder, tmp_path / "trackio"))


class Annotated:
    """A workspace, and what is asked of it about a rollout of its project."""

    def __init__(self, workspace: Workspace) -> None:
        self.workspace = workspace
        self.store = workspace.store(PROJECT)
        self.rows = self.store.query().rows
        self.uid = str(self.rows[0]["uid"])

    def ask(self, visitor: Visitor, **sent: Any) -> Any:
        """Puts something on the first rollout, where nothing else is said."""
        with asking(visitor):
            return told(annotate, self.workspace, {"project": PROJECT, "id": self.rows[0].id, **sent})

    def of(self, visitor: Visitor) -> Any:
        """The first rollout's labels, as they are told to a visitor."""
        with asking(visitor):
            return told(labels, self.workspace, {"project": PROJECT, "id": self.rows[0].id})


@pytest.fixture
def annotated(folder: Path) -> Iterator[Annotated]:
    workspace = Workspace(folder=folder, may_label=True)
    yield Annotated(workspace)
    workspace.close()


class TestPutting:
    def test_a_label_of_the_whole_rollout_is_signed_and_may_be_taken_back(self, annotated):
        answer = annotated.ask(ANN, text="x", author="ben", time="then")
        [entry] = answer["labels"]
        assert (entry["kind"], entry["text"], entry["author"]) == ("label", "x", "ann")
        assert (entry["turn"], entry["start"], entry["stop"]) == (None, None, None)
        assert entry["time"] != "then" and entry["may_remove"]
        assert (answer["names"], answer["author"], answer["may_label"]) == (["x"], "ann", True)
        assert not annotated.of(Visitor("ben"))["labels"][0]["may_remove"]
        assert annotated.of(OWNER)["labels"][0]["may_remove"]

    def test_a_note_is_of_a_turn_or_of_some_tokens(self, annotated):
        annotated.ask(ANN, text="x", kind="note", turn=1)
        answer = annotated.ask(ANN, text="y", kind="note", start=2, stop=4)
        places = [(each["text"], each["turn"], each["start"], each["stop"]) for each in answer["labels"]]
        assert sorted(places) == [("x", 1, None, None), ("y", None, 2, 4)]

    def test_half_a_range_is_of_the_whole_rollout(self, annotated):
        [entry] = annotated.ask(ANN, text="x", start=2)["labels"]
        assert (entry["start"], entry["stop"]) == (None, None)

    def test_nobody_where_labels_are_switched_off(self, folder):
        workspace = Workspace(folder=folder, may_label=False)
        annotated = Annotated(workspace)
        with pytest.raises(StoreError, match="--no-labels"):
            annotated.ask(OWNER, text="x")
        assert annotated.of(OWNER)["may_label"] is False
        workspace.close()

    def test_several_at_once_each_once_or_none(self, annotated):
        first, *others = (row.id for row in annotated.rows[:3])
        with pytest.raises(StoreError):
            annotated.ask(ANN, text="together", further=[*others, "not there"])
        assert "together" not in annotated.store.labels.names()
        annotated.store.label(others[0], "together", "ann", turn=0)  # is not the rollout as a whole
        for kind in ("label", "note", "label", "note"):  # again, as who did not see the first answer
            annotated.ask(ANN, text="together", kind=kind, further=others)
        for each in (first, *others):
            entries = annotated.store.labels.of(annotated.store.uid(each))
            found = [e.kind for e in entries if e.turn is None and e.author == "ann"]
            assert sorted(found) == ["label", "note"]

    @pytest.mark.parametrize(
        ("asked", "said"),
        [
            ({"kind": "page"}, "expected label, note or removed"),
            ({"id": "nobody"}, "nobody"),
            ({"text": ""}, "empty"),
            ({"turn": "x"}, "turn"),
            ({"turn": 99}, "turn"),
            ({"start": 2, "stop": 9999}, "token"),
        ],
    )
    def test_what_cannot_be_understood_is_said_and_nothing_is_written(self, annotated, asked, said):
        before = annotated.store.labels.now().stamp
        with pytest.raises(StoreError, match=said):
            annotated.ask(ANN, **{"text": "x", **asked})
        assert annotated.store.labels.now().stamp == before


class TestTakingBack:
    def test_what_another_wrote_the_owner_alone_takes_back(self, annotated):
        entry = annotated.store.labels.add("note", annotated.uid, "ben wrote this", "ben")
        with pytest.raises(StoreError, match="“ben” wrote it"):
            annotated.ask(ANN, kind="removed", text=entry.id)
        assert annotated.ask(OWNER, kind="removed", text=entry.id)["labels"] == []

    def test_ones_own_is_gone_and_then_not_there_any_more(self, annotated):
        [entry] = annotated.ask(ANN, text="x")["labels"]
        assert annotated.ask(ANN, kind="removed", text=entry["id"])["labels"] == []
        with pytest.raises(StoreError, match="not there any more"):
            annotated.ask(OWNER, kind="removed", text=entry["id"])


class TestLinesOfAnotherCopy:
    def line(self, annotated: Annotated, **more: Any) -> Entry:
        return replace(new_entry("label", annotated.uid, "x", "ann"), **more)

    def test_ones_own_are_taken_once_and_dated_now(self, annotated):
        line = self.line(annotated, time="2020-01-01T00:00:00+00:00")
        found = take_lines(annotated.store, [line, line], ANN)
        assert (found.taken, found.refused) == (1, ())
        assert take_lines(annotated.store, [line], ANN).taken == 0
        [entry] = annotated.store.labels.of(annotated.uid)
        assert (entry.id, entry.text) == (line.id, "x") and not entry.time.startswith("2020")

    def test_of_a_turn_and_of_tokens_that_there_are_are_taken(self, annotated):
        lines = [self.line(annotated, turn=1), self.line(annotated, start=1, stop=3)]
        lines = [replace(each, id=f"{n:016x}") for n, each in enumerate(lines)]
        assert take_lines(annotated.store, lines, ANN).taken == 2

    @pytest.mark.parametrize(
        ("more", "said"),
        [
            ({"author": "ben"}, "author: seen “ben”; this token writes as “ann”."),
            ({"rollout": "e2"}, "rollout: seen “e2”. Expected the whole uid"),
            ({"rollout": "nobody"}, "nobody"),
            ({"turn": 99}, "turn"),
            ({"start": 1, "stop": 9999}, "token"),
            ({"start": 3}, "is none that can be kept"),
            ({"id": "short"}, "is none that can be kept"),
            ({"kind": "removed", "text": "0" * 16}, "not there any more"),
        ],
    )
    def test_others_are_refused_one_by_one(self, annotated, more, said):
        good = replace(self.line(annotated), id="f" * 16)
        found = take_lines(annotated.store, [self.line(annotated, **more), good], ANN)
        assert found.taken == 1 and len(found.refused) == 1 and said in found.refused[0]

    def test_one_may_take_back_a_line_that_came_before_it(self, annotated):
        line = self.line(annotated)
        back = replace(new_entry("removed", annotated.uid, line.id, "ann"), id="e" * 16)
        assert take_lines(annotated.store, [line, back], ANN).taken == 2
        assert not annotated.store.labels.of(annotated.uid)
