from __future__ import annotations

import os
from pathlib import Path

import pytest

from rollout_traces.store import places
from tests.other_user import give_away


class TestTrackiosFolder:
    @pytest.mark.parametrize(
        "environment",
        [
            {"TRACKIO_DIR": "~/a"},
            {"HF_HOME": "$HOME/hf"},
            {"HF_HOME": "~/hf"},
            {"XDG_CACHE_HOME": "{tmp}/cache"},
            {},
        ],
    )
    def test_it_is_where_trackio_looks(
        self, environment: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        import subprocess
        import sys

        for name in ("TRACKIO_DIR", "HF_HOME", "XDG_CACHE_HOME"):
            monkeypatch.delenv(name, raising=False)
        for name, value in {"HOME": str(tmp_path), **environment}.items():
            monkeypatch.setenv(name, value.format(tmp=tmp_path))
        code = "import trackio.utils as u; print(u.TRACKIO_DIR)"
        theirs = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        ).stdout
        assert str(places.trackio_dir()) == theirs.splitlines()[-1]

    @pytest.mark.parametrize(
        "name", ["gsm8k", "my.model", "a/b\\c", "../../etc/passwd", "ünï-_", "  ", "..", "a b"]
    )
    def test_files_are_named_as_trackio_names_them(self, name: str, tmp_path: Path) -> None:
        from trackio.utils import canonical_project_name

        path = places.database_path(name, tmp_path)
        assert path.name == f"{canonical_project_name(name)}.db" and path.parent == tmp_path


class TestIndexFile:
    def test_it_lies_beside_the_project(self, tmp_path: Path) -> None:
        assert places.local_index_path(tmp_path / "p.db") == tmp_path / "rollout-index" / "p"

    def test_it_lies_in_the_cache_where_the_folder_cannot_be_written(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(os, "access", lambda path, mode: False)
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
        path = places.local_index_path(tmp_path / "p.db")
        assert path.parent == tmp_path / "cache" / "rollout-traces"
        assert path != places.local_index_path(tmp_path / "q.db")

    @pytest.mark.parametrize("which", ["index", "folder of indexes"])
    def test_one_that_another_user_may_have_put_there_is_not_taken(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, which: str
    ) -> None:
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
        beside = tmp_path / "rollout-index" / "p"
        beside.mkdir(parents=True, mode=0o700)
        beside.parent.chmod(0o700)
        assert places.local_index_path(tmp_path / "p.db") == beside
        give_away(beside if which == "index" else beside.parent)
        assert places.local_index_path(tmp_path / "p.db").is_relative_to(tmp_path / "cache")
