"""A package of another author adds a format by an entry point; one that cannot be loaded is said and does no harm."""

from __future__ import annotations

import json
import sys

import pytest

from rollout_traces.sources import formats
from tests.sources.reading import SAMPLES, rows_of, runs_of

SOURCE = """
from rollout_traces.sources.base import Claim, LinesFormat
from rollout_traces.sources.rows import RolloutRow


class Mine(LinesFormat):
    name = "mine"
    title = "my trainer, samples.jsonl"

    def claim(self, head):
        return Claim(head.path.parent) if head.has("chat", "points") else None

    def read(self, fields, found):
        value = fields.record
        yield RolloutRow(step=value["step"], messages=value["chat"], reward=value["points"])


class NoFormat:
    pass
"""
POINTS = """[rollout_traces.sources]
mine = their_package:Mine
broken = their_package:Missing
other = their_package:NoFormat
"""


@pytest.fixture
def their_package(tmp_path, monkeypatch):
    """A distribution as pip installs one: a module beside its metadata, on the path."""
    site = tmp_path / "site-packages"
    information = site / "their_package-1.0.dist-info"
    information.mkdir(parents=True)
    (site / "their_package.py").write_text(SOURCE)
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: their-package\nVersion: 1.0\n")
    (information / "entry_points.txt").write_text(POINTS)
    monkeypatch.syspath_prepend(str(site))
    formats.formats.cache_clear()
    yield
    formats.formats.cache_clear()
    sys.modules.pop("their_package", None)


@pytest.mark.usefixtures("their_package")
class TestAnInstalledPackage:
    def test_its_files_are_recognised_and_read(self, tmp_path):
        chat = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]
        path = tmp_path / "run" / "samples.jsonl"
        path.parent.mkdir()
        path.write_text(json.dumps({"chat": chat, "points": 2.0, "step": 7}) + "\n")
        [run] = runs_of(path)
        assert [file.format.name for file in run.files] == ["mine"]
        [row] = rows_of(path)
        assert (row.step, row.reward, row.messages) == (7, 2.0, chat)

    def test_one_that_cannot_be_loaded_or_is_no_format_is_said_and_the_rest_is_there(self, caplog):
        names = formats.formats()
        assert "mine" in names and "verl" in names
        assert "the source 'broken' of their_package:Missing cannot be loaded" in caplog.text
        assert "the source 'other' is a NoFormat. Expected a Format." in caplog.text

    def test_it_takes_no_file_of_a_format_that_it_does_not_know(self):
        assert {file.format.name for run in runs_of(SAMPLES / "verl") for file in run.files} == {"verl"}
