"""What readers said of incidents: appended beside the project, read back, never in the way."""

from __future__ import annotations

import stat
from pathlib import Path

import orjson
import pytest

from rollout_traces.errors import StoreError
from rollout_traces.inspector.pages import incidents
from rollout_traces.inspector.pages.incidents import IncidentMarks, Marks


@pytest.fixture
def marks(tmp_path: Path) -> IncidentMarks:
    return IncidentMarks(tmp_path / "rollout-marks" / "p.jsonl")


def test_nothing_was_said_of_a_project_without_a_file(marks):
    assert marks.of("run", "rollout") == Marks()
    assert not marks.path.parent.exists()


def test_muting_goes_by_series_and_part_and_is_taken_back(marks):
    marks.add("run", "rollout", "stale@8@math", "mute", by="ann")
    assert marks.of("run", "rollout").muted == {("stale", "math")}
    marks.add("run", "rollout", "stale@90@math", "unmute", by="ann")
    assert marks.of("run", "rollout").muted == frozenset()


def test_an_acknowledgement_is_of_one_incident(marks):
    marks.add("run", "rollout", "stale@8", "acknowledge", by="ann")
    [(name, when)] = marks.of("run", "rollout").acknowledged.items()
    assert name == "stale@8" and when.startswith("20")
    assert orjson.loads(marks.path.read_bytes())["by"] == "ann"
    marks.add("run", "rollout", "stale@8", "recall", by="ann")
    assert marks.of("run", "rollout") == Marks()


def test_another_run_or_split_has_its_own(marks):
    marks.add("run", "rollout", "stale@8", "mute", by="ann")
    assert marks.of("run", "eval-rollout") == marks.of("other", "rollout") == Marks()


def test_the_file_is_this_users_alone_and_no_link_is_followed(marks, tmp_path):
    marks.add("run", "rollout", "stale@8", "mute", by="ann")
    assert stat.S_IMODE(marks.path.stat().st_mode) == 0o600
    assert stat.S_IMODE(marks.path.parent.stat().st_mode) == 0o700
    marks.path.unlink()
    marks.path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StoreError, match="could not be written"):
        marks.add("run", "rollout", "stale@8", "mute", by="ann")
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize(
    "line", [b"{", b"[]", b"\xff\xfe", b'{"run": 1}', b'{"run":"run","split":"rollout"}', b"null"]
)
def test_lines_that_cannot_be_read_are_passed_over(marks, line):
    marks.add("run", "rollout", "stale@8", "mute", by="ann")
    with marks.path.open("ab") as file:
        file.write(line + b"\n")
    marks.add("run", "rollout", "truncated@9", "mute", by="ann")
    assert marks.of("run", "rollout").muted == {("stale", ""), ("truncated", "")}


def test_what_cannot_be_understood_or_kept_is_refused(marks, monkeypatch):
    with pytest.raises(StoreError, match="seen 'shout'"):
        marks.add("run", "rollout", "stale@8", "shout", by="ann")
    with pytest.raises(StoreError, match="400 characters"):
        marks.add("run", "rollout", "x" * 401, "mute", by="ann")
    monkeypatch.setattr(incidents, "MOST_BYTES", 10)
    with pytest.raises(StoreError, match="most that are kept"):
        marks.add("run", "rollout", "stale@8", "mute", by="ann")
