"""What a user asked to be written is there when it is complete, stands where links lead, and goes when it fails."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rollout_traces.errors import ConfigError, NotWritten
from rollout_traces.model.whole_files import unfinished
from tests.spool.test_segments import no_file_longer_than


def test_a_file_is_there_when_it_is_complete(tmp_path: Path) -> None:
    out = tmp_path / "deep" / "out.txt"
    with unfinished(out) as made:
        made.write_text("new")
        assert not out.exists()
    assert out.read_text() == "new" and list(out.parent.iterdir()) == [out]


def test_what_a_link_leads_to_is_written(tmp_path: Path) -> None:
    link, target = tmp_path / "link", tmp_path / "target"
    link.symlink_to(target)
    with unfinished(link) as made:
        made.write_text("new")
    assert link.is_symlink() and target.read_text() == "new"


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_a_pipe_and_a_folder_are_refused_as_a_file_and_stay(tmp_path: Path, make) -> None:
    out = tmp_path / "out"
    make(out)
    said = r"out is a folder, a pipe or a device\. Name a file\."
    with pytest.raises(ConfigError, match=said), unfinished(out) as made:
        made.write_text("new")
    assert list(tmp_path.iterdir()) == [out] and not out.is_file()


def test_an_empty_folder_stays_and_takes_what_was_made(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    before = out.stat().st_ino
    with unfinished(out, folder=True) as made:
        (made / "in").mkdir()
        (made / "in" / "file").touch()
    assert out.stat().st_ino == before and list(out.rglob("*")) == [out / "in", out / "in" / "file"]
    with pytest.raises(ConfigError, match="not empty"), unfinished(out, folder=True):
        pass


@pytest.mark.parametrize("folder", [False, True])
def test_a_full_disk_is_one_sentence_and_leaves_what_was_there(tmp_path: Path, folder: bool) -> None:
    out = tmp_path / "out"
    if not folder:
        out.write_text("before")
    said = rf"^{out}: cannot be written: File too large\. Name"
    with (
        no_file_longer_than(10),
        pytest.raises(NotWritten, match=said),
        unfinished(out, folder=folder) as made,
    ):
        (made / "file" if folder else made).write_text("longer than ten bytes")
    assert [path.read_text() for path in tmp_path.iterdir()] == ([] if folder else ["before"])
