"""Labels and notes from a terminal: put on, listed, taken off."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from rollout_traces.cli import build_app
from rollout_traces.inspector.api import other_inspector
from tests.store.projects import PROJECT
from tests.trackio_home import use_trackio_home


@pytest.fixture
def label(shared_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """Runs the command on a copy of the shared project, whose labels are this test's own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "200")
    use_trackio_home(monkeypatch, Path(shutil.copytree(shared_folder, tmp_path / "trackio")))

    def run(*arguments: str) -> Result:
        return CliRunner().invoke(build_app(["label"]), ["label", "-p", PROJECT, *arguments])

    return run


def entries(result: Result) -> list[tuple]:
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    rows = found["rows"] if isinstance(found, dict) else found
    return [(e["rollout"], e["kind"], e["text"], e["turn"], e["start"], e["stop"], e["author"]) for e in rows]


def test_without_labels_it_says_how_one_is_put_on(label):
    assert "Nothing is labelled." in label().output


def test_labels_and_notes_are_put_on_each_rollout_that_is_named(label):
    found = entries(
        label("b0-0", "b1-0", "--as", "one", "--as", "two", "--note", "n", "--author", "me", "--json")
    )
    assert sorted(found) == sorted(
        (uid, kind, text, None, None, None, "me")
        for uid in ("b0-0", "b1-0")
        for kind, text in (("label", "one"), ("label", "two"), ("note", "n"))
    )
    listed = label().output
    assert re.search(r"\bone +\W*2\b", listed) and re.search(r"\btwo +\W*2\b", listed)
    assert len(entries(label("--json"))) == 6 and len(entries(label("b0-0", "--json"))) == 3


def test_they_are_put_on_a_turn_or_on_tokens_and_shown_there(label):
    label("b0-0", "--as", "x", "--turn", "1", "--author", "me")
    said = label("b0-0", "--note", "y", "--tokens", "2:4", "--author", "me").output
    assert "time, UTC" in said, "seen once: a time without its zone"
    assert "turn 1" in said and "tokens 2:4" in said
    found = entries(label("b0-0", "--json"))
    assert [each[1:6] for each in sorted(found, key=lambda e: e[2])] == [
        ("label", "x", 1, None, None),
        ("note", "y", None, 2, 4),
    ]
    assert label("b0-0", "--as", "x", "--tokens", "2").exit_code != 0


def test_a_label_is_taken_off_by_its_name_and_notes_stay(label):
    label("b0-0", "b1-0", "--as", "x", "--as", "y", "--note", "x", "--author", "me")
    found = entries(label("b0-0", "--remove", "x", "--author", "me", "--json"))
    assert sorted(each[1:3] for each in found) == [("label", "y"), ("note", "x")]
    assert sorted(each[1:3] for each in entries(label("b1-0", "--json"))) == [
        ("label", "x"),
        ("label", "y"),
        ("note", "x"),
    ]


@pytest.mark.parametrize("change", [("--as", "x"), ("--note", "x"), ("--remove", "x")])
def test_a_change_of_no_rollout_is_refused(label, change):
    done = label(*change)
    assert done.exit_code == 1 and "which rollouts?" in str(done.exception)


def test_an_exchange_with_an_inspector_is_told(label, monkeypatch):
    asked = []

    def sync(book, project, address, token):
        asked.append((project, address, token))
        return other_inspector.Synced(3, 2, 1, ("no\x1b[31m such rollout",))

    monkeypatch.setattr(other_inspector, "sync_labels", sync)
    monkeypatch.setenv("ROLLOUT_TRACES_TOKEN", "the token")
    said = label("--sync", "http://127.0.0.1:1").output
    assert asked == [(PROJECT, "http://127.0.0.1:1", "the token")]
    assert "3 lines taken, 2 given." in said and "1 lines of other writers stay here" in said
    assert "not taken there: no" in said and "\x1b" not in said
