"""Places that were opened or written are offered again; a dump is looked at without an import."""

from __future__ import annotations

import json
import os
import urllib.request
from datetime import datetime
from pathlib import Path

import orjson
import pytest
from typer.testing import CliRunner

from rollout_traces.cli import build_app, show
from rollout_traces.cli.options import MOST, remember, remembered
from rollout_traces.cli.show import SMALL, _offer, dump_home
from rollout_traces.errors import ConfigError
from tests.inspector.conftest import BEARER, Served
from tests.sources.reading import SAMPLES


@pytest.fixture(autouse=True)
def own_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    return tmp_path / "data" / "rollout-traces" / "opened.json"


class TestRemembered:
    def test_the_newest_is_first_and_each_is_there_once(self, own_data: Path) -> None:
        for name, option in (("a", "--project"), ("/dump", ""), ("a", "--project")):
            remember(name, option)
        assert [place.command for place in remembered()] == [
            "rollout-traces show --project a",
            "rollout-traces show /dump",
        ]
        for n in range(MOST + 5):
            remember(str(n))
        assert len(remembered()) == MOST

    def test_a_name_is_quoted_for_the_shell(self) -> None:
        remember("/dumps/a b;rm", "")
        assert remembered()[0].command == "rollout-traces show '/dumps/a b;rm'"

    def test_what_cannot_be_opened_is_not_there(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("TRACKIO_DIR", str(tmp_path))
        for options in (
            ["-p", "mistyped"],
            [str(tmp_path / "mistyped")],
            ["--example", str(SAMPLES / "chat")],
        ):
            done = CliRunner().invoke(build_app(["show"]), ["show", "--no-browser", *options])
            assert done.exit_code == 1, options
        missing = ["import", str(tmp_path / "mistyped"), "-p", "mistyped"]
        assert CliRunner().invoke(build_app(["import"]), missing).exit_code != 0
        assert remembered() == []

    def test_show_names_them_with_when_that_was(
        self,
        own_data: Path,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        monkeypatch.setenv("TRACKIO_DIR", str(tmp_path))
        (tmp_path / "gsm8k.db").touch()
        remember("gsm8k")
        [place] = orjson.loads(own_data.read_bytes())
        own_data.write_bytes(orjson.dumps([{**place, "last": datetime(2026, 3, 5, 9, 7).timestamp()}]))
        _offer()
        assert "05 Mar 09:07  rollout-traces show --project gsm8k" in capsys.readouterr().out

    @pytest.mark.parametrize("text", ["", "{", "[1]", '[{"name": 1}]'])
    def test_a_damaged_file_is_none(self, own_data: Path, text: str) -> None:
        own_data.parent.mkdir(parents=True)
        own_data.write_text(text)
        assert remembered() == []
        remember("a")
        assert [place.name for place in remembered()] == ["a"]

    def test_a_place_that_cannot_be_written_is_none(self, own_data: Path) -> None:
        own_data.parent.parent.write_text("a file where the folder would be")
        remember("a")
        assert remembered() == []


class TestADump:
    def test_is_shown_in_a_project_that_goes_again(self, tmp_path: Path) -> None:
        server = Served(tmp_path, str(SAMPLES / "chat"), XDG_DATA_HOME=os.environ["XDG_DATA_HOME"])
        try:
            asked = urllib.request.Request(
                f"{server.address}/api/v1/rollouts?project=chat&limit=9", headers=BEARER
            )
            with urllib.request.urlopen(asked, timeout=60) as answer:
                assert len(json.load(answer)["rows"]) == 3
        finally:
            server.stop()
        assert not list(tmp_path.glob("*.db"))
        assert [place.command for place in remembered()] == [f"rollout-traces show {SAMPLES / 'chat'}"]

    def test_what_is_none_is_refused_with_what_was_seen(self, tmp_path: Path) -> None:
        (tmp_path / "notes.txt").write_text("notes")
        with pytest.raises(ConfigError, match="no format that is known"), dump_home(tmp_path / "notes.txt"):
            pass

    @pytest.mark.usefixtures("trackio_dir")
    @pytest.mark.parametrize("more", [0, 1])
    def test_says_that_it_is_large_from_a_size_on(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], more: int
    ) -> None:
        path = tmp_path / "some.jsonl"
        path.write_text(json.dumps({"prompt": "q", "response": "a"}) + "\n")
        monkeypatch.setattr(show, "SMALL", path.stat().st_size - more)
        with dump_home(path):
            assert ("are read first" in capsys.readouterr().err) == (more == 1)

    @pytest.mark.usefixtures("trackio_dir")
    def test_a_large_one_says_what_it_takes(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        path = tmp_path / "large.jsonl"
        text = "word " * 200_000
        path.write_text("".join(json.dumps({"prompt": "q", "response": text}) + "\n" for _ in range(9)))
        assert path.stat().st_size > SMALL
        with dump_home(path) as project:
            assert project == "large"
        said = capsys.readouterr()
        assert "9.0 MB are read first; rollout-traces import" in said.err
        assert "--project" not in said.out + said.err  # nobody else can open the one that it is in
