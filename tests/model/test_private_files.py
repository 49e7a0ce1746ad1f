"""What this package keeps is readable by its user alone, and what another user may have put there is not believed."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from rollout_traces.errors import StoreError
from rollout_traces.model.private_files import (
    close_files,
    make_folder,
    open_file,
    take_folder,
    why_not_believed,
    why_replaceable,
    write_file,
)
from rollout_traces.spool import run_folder
from tests.other_user import NOBODY, give_away


@pytest.fixture(autouse=True)
def open_to_all():
    """A umask that takes nothing away."""
    before = os.umask(0)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


class TestWhatIsMade:
    """Another user reads manifests and indexes: once they had mode 0644, their folder 0755."""

    def test_every_missing_folder_on_the_way_is_closed_to_others(self, tmp_path):
        make_folder(tmp_path / "a" / "b" / "c")
        assert [mode(tmp_path / name) for name in ("a", "a/b", "a/b/c")] == [0o700] * 3

    def test_a_file_is_closed_to_others(self, tmp_path):
        write_file(tmp_path / "file", b"text")
        os.close(open_file(tmp_path / "log", os.O_WRONLY | os.O_APPEND))
        assert mode(tmp_path / "file") == mode(tmp_path / "log") == 0o600
        assert (tmp_path / "file").read_bytes() == b"text"

    def test_no_file_is_written_through_a_link(self, tmp_path):
        target = tmp_path / "target"
        target.write_text("whole")
        (tmp_path / "link").symlink_to(target)
        with pytest.raises(OSError, match="link"):
            write_file(tmp_path / "link", b"broken")
        with pytest.raises(OSError, match="symbolic links"):
            open_file(tmp_path / "link", os.O_WRONLY | os.O_TRUNC)
        assert target.read_text() == "whole"

    def test_what_a_library_wrote_is_closed_afterwards(self, tmp_path):
        (tmp_path / "inner").mkdir()
        (tmp_path / "inner" / "file").write_text("")
        close_files(tmp_path)
        assert (mode(tmp_path / "inner"), mode(tmp_path / "inner" / "file")) == (0o700, 0o600)


class TestTakingAFolder:
    def test_closes_ones_of_this_user_that_were_open(self, tmp_path):
        (tmp_path / "a" / "b").mkdir(parents=True)
        take_folder(tmp_path / "a" / "b" / "c", tmp_path / "a")
        assert [mode(tmp_path / name) for name in ("a", "a/b", "a/b/c")] == [0o700] * 3

    def test_refuses_a_link_on_the_way(self, tmp_path):
        (tmp_path / "real").mkdir()
        (tmp_path / "a").symlink_to(tmp_path / "real")
        with pytest.raises(StoreError, match="is a link"):
            take_folder(tmp_path / "a" / "b", tmp_path / "a")

    @pytest.mark.parametrize("which", ["a", "a/b", "a/b/c"])
    def test_makes_it_this_users_or_refuses(self, tmp_path, which):
        make_folder(tmp_path / "a" / "b" / "c")
        said = give_away(tmp_path / which)
        if said.startswith("belongs"):
            with pytest.raises(StoreError, match=said):
                take_folder(tmp_path / "a" / "b" / "c", tmp_path / "a")
        else:
            take_folder(tmp_path / "a" / "b" / "c", tmp_path / "a")
            assert mode(tmp_path / which) == 0o700


class TestBelieving:
    """Another user plants a spool where spools are looked for: once its manifest was run, and the victim's write token was sent to the attacker's server."""

    def test_takes_what_only_this_user_can_have_written(self, tmp_path):
        make_folder(tmp_path / "a" / "b")
        write_file(tmp_path / "a" / "b" / "file", b"")
        assert why_not_believed(tmp_path / "a" / "b", tmp_path / "a", [tmp_path / "a" / "b" / "file"]) is None
        assert why_not_believed(tmp_path / "a", tmp_path / "a", [tmp_path / "a" / "not there"]) is None

    @pytest.mark.parametrize("which", ["a", "a/b", "a/b/file"])
    def test_names_what_another_user_may_have_written(self, tmp_path, which):
        make_folder(tmp_path / "a" / "b")
        file = tmp_path / "a" / "b" / "file"
        write_file(file, b"")
        said = give_away(tmp_path / which)
        reason = why_not_believed(tmp_path / "a" / "b", tmp_path / "a", [file])
        assert reason is not None and reason.startswith(f"{tmp_path / which} {said}")

    @pytest.mark.parametrize("which", ["a", "a/b", "a/b/file"])
    @pytest.mark.parametrize("bits", [0o020, 0o002])
    def test_names_what_others_may_write(self, tmp_path, which, bits):
        make_folder(tmp_path / "a" / "b")
        file = tmp_path / "a" / "b" / "file"
        write_file(file, b"")
        (tmp_path / which).chmod(0o755)
        assert why_not_believed(tmp_path / "a" / "b", tmp_path / "a", [file]) is None
        (tmp_path / which).chmod(0o700 | bits)
        reason = why_not_believed(tmp_path / "a" / "b", tmp_path / "a", [file])
        said = (
            f"{tmp_path / which} may be written by others (mode 0{0o700 | bits:o}): nothing in it is believed"
        )
        assert reason is not None and reason.startswith(said)

    def test_does_not_follow_links(self, tmp_path):
        make_folder(tmp_path / "real" / "b")
        (tmp_path / "a").symlink_to(tmp_path / "real")
        assert "is a link" in (why_not_believed(tmp_path / "a" / "b", tmp_path / "a") or "")

    def test_says_that_a_folder_is_missing(self, tmp_path):
        assert "is missing" in (why_not_believed(tmp_path / "a", tmp_path / "a") or "")


class TestTheFoldersAbove:
    @pytest.mark.parametrize("above", ["shared", "shared/team"])
    def test_one_that_others_may_write_is_named_with_its_mode_and_what_to_do(self, tmp_path, above):
        make_folder(tmp_path / "shared" / "team")
        (tmp_path / above).chmod(0o777)
        reason = why_replaceable(tmp_path / "shared" / "team" / "rollout-traces") or ""
        assert reason.startswith(f"{tmp_path / above} may be written by others and is not sticky (mode 0777)")
        assert f"`chmod +t {tmp_path / above}`" in reason

    def test_one_that_is_sticky_is_safe(self, tmp_path):
        (tmp_path / "shared").mkdir()
        (tmp_path / "shared").chmod(0o1777)
        assert why_replaceable(tmp_path / "shared" / "rollout-traces") is None

    def test_one_of_a_group_with_others_in_it_is_not_safe(self, tmp_path):
        (tmp_path / "shared").mkdir()
        os.chown(tmp_path / "shared", -1, NOBODY if os.geteuid() == 0 else os.getgid())
        (tmp_path / "shared").chmod(0o770 if os.geteuid() == 0 else 0o777)
        assert why_replaceable(tmp_path / "shared" / "rollout-traces") is not None

    def test_a_link_is_looked_at_on_both_ways(self, tmp_path):
        make_folder(tmp_path / "open" / "real")
        (tmp_path / "link").symlink_to(tmp_path / "open" / "real")
        (tmp_path / "open").chmod(0o777)
        assert why_replaceable(tmp_path / "link" / "rollout-traces") is not None

    def test_a_run_keeps_its_spool_where_nobody_can_replace_it(self, tmp_path, monkeypatch):
        make_folder(tmp_path / "trackio")
        monkeypatch.setattr(run_folder, "local_root", lambda: tmp_path / "own" / "spool")
        assert run_folder.take_run_folder(tmp_path / "trackio", "p", "1").path.is_relative_to(
            tmp_path / "trackio"
        )
        (tmp_path / "trackio").chmod(0o777)
        taken = run_folder.take_run_folder(tmp_path / "trackio", "p", "2")
        assert taken.path.is_relative_to(tmp_path / "own")

    def test_a_run_that_spools_elsewhere_says_where_and_what_that_means_once(
        self, tmp_path, monkeypatch, caplog
    ):
        make_folder(tmp_path / "trackio")
        monkeypatch.setattr(run_folder, "local_root", lambda: tmp_path / "own" / "spool")
        run_folder.take_run_folder(tmp_path / "trackio", "p", "1")
        assert not caplog.records
        (tmp_path / "trackio").chmod(0o777)
        for run in ("2", "3"):
            run_folder.take_run_folder(tmp_path / "trackio", "p", run)
        said = [record.message for record in caplog.records if "is spooled to" in record.message]
        assert len(said) == 1
        assert str(tmp_path / "own" / "spool") in said[0]
        assert "recovered from this node only" in said[0]

    def test_what_lies_where_others_can_replace_it_is_not_believed(self, tmp_path, caplog):
        folder = run_folder.take_run_folder(tmp_path, "p", "1")
        folder.write_manifest(run_folder.RunManifest("p", "r", "1"))
        root = run_folder.spool_root(tmp_path)
        assert len(run_folder.run_folders(root)) == 1
        tmp_path.chmod(0o777)
        assert run_folder.run_folders(root) == []
        assert "chmod +t" in caplog.text
