"""What was lost is said alike wherever one looks, and nothing says that all is stored while something is not."""

from __future__ import annotations

import json
import struct

import pytest
from typer.testing import CliRunner

import rollout_traces as rt
from rollout_traces.cli import build_app
from rollout_traces.doctor import Examination, each_check
from rollout_traces.inspector.pages.health import health
from rollout_traces.inspector.workspace import Workspace
from rollout_traces.spool.account import Account, account_of
from rollout_traces.spool.folder import SpoolReader
from rollout_traces.spool.record import PREFIX_BYTES
from tests.generator import BatchPlan, batch_arrays, tiny_tokenizer
from tests.inspector.told import told
from tests.spool.damage import flip_byte, place_of

SENTENCE = "152 of 160 rollouts stored; 8 lost in 3 damaged records"


def hurt_run(damage, sizes=(4, 2, 2), others=19):
    """A finished run some of whose records were damaged before the worker read them."""
    logger = rt.RolloutLogger("p", "run", tiny_tokenizer(), worker="thread")
    start, logger._pipeline.start = logger._pipeline.start, lambda: None
    for step, size in enumerate((*sizes, *[8] * others)):
        plan = BatchPlan(n_groups=1, group_size=size)
        logger.log_rollouts(batch_arrays(tiny_tokenizer(), plan), step=step)
    folder = logger._pipeline._spool.folder
    for name in SpoolReader(folder).names()[: len(sizes)]:
        damage(folder, name)
    logger._pipeline.start = start
    return logger


def run_in(folder, *arguments):
    return CliRunner().invoke(build_app(["last", "recover"]), list(arguments)).output


class TestDamagedRecords:
    @pytest.fixture
    def logger(self, trackio_dir, caplog):
        logger = hurt_run(lambda folder, name: flip_byte(folder, name, 1000))
        assert not logger.finish(180), "not everything is stored"
        assert f"not everything is stored: {SENTENCE}" in caplog.text
        return logger

    def test_are_said_by_all_who_speak_of_what_is_stored(self, logger, trackio_dir):
        assert logger.counters["rollouts_lost"] == 8 and logger.counters["records_damaged"] == 3
        for command in ("last", "recover"):
            said = run_in(trackio_dir, command)
            assert SENTENCE in said, command
            assert "is stored" not in said and "Nothing waits" not in said
        findings = dict(each_check(Examination(project="p")))["Logging path"]
        assert [f.status for f in findings if SENTENCE in f.seen and f.subject == "stored"] == ["warn"]
        assert not [f for f in findings if "nothing waits" in f.seen]
        page = told(health, Workspace(), {"project": "p", "run": "run", "split": "rollout"})
        assert page["stored"] == SENTENCE


class TestOtherLosses:
    def test_a_prefix_that_cannot_be_read_makes_it_at_least(self, trackio_dir):
        logger = hurt_run(lambda folder, name: flip_byte(folder, name, 0), sizes=(4,), others=1)
        assert not logger.finish(180)
        account = account_of(logger._pipeline.folder)
        assert str(account) == "8 of 8 rollouts stored; at least 0 lost in 1 damaged record"

    def test_a_newer_format_is_no_damage_and_not_stored_either(self, trackio_dir):
        def newer(folder, name):
            path, at = place_of(folder, name)
            with path.open("r+b") as file:
                file.seek(at + 4)
                file.write(struct.pack("<H", 99))

        logger = hurt_run(newer, sizes=(4,), others=1)
        assert not logger.finish(180)
        account = account_of(logger._pipeline.folder)
        assert str(account) == (
            "8 of 12 rollouts stored; 4 in 1 record of a newer format (upgrade rollout-traces)"
        )
        assert "newer format" in run_in(trackio_dir, "last")

    @pytest.mark.parametrize("version", [999, 0])
    def test_a_folder_of_another_version_is_named(self, trackio_dir, version):
        logger = hurt_run(lambda folder, name: None, sizes=(), others=1)
        manifest = logger._pipeline.folder.path / "manifest.json"
        manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "version": version}))
        for command in ("last", "recover"):
            said = run_in(trackio_dir, command)
            assert f"version {version}, expected 1" in said and "1 records wait there" in said
        logger._pipeline._spool.close()

    def test_a_damaged_tokenizer_leaves_texts_out_of_what_waits(self, trackio_dir):
        logger = hurt_run(lambda folder, name: None, sizes=(), others=1)
        path = logger._pipeline.folder.tokenizer / "tokenizer.json"
        path.write_bytes(path.read_bytes()[:1000])
        said = CliRunner().invoke(build_app(["last", "recover"]), ["last"])
        assert said.exit_code == 0 and "tokenizer.json: cannot be read" in said.output
        assert "p" in said.output and "run" in said.output and "rollout" in said.output
        logger._pipeline._spool.close()

    def test_a_whole_run_says_nothing_of_damage(self):
        assert not Account(stored=8, waiting=4, n_waiting=1).is_hurt
        assert str(Account(stored=8, waiting=4, n_waiting=1)) == "8 of 12 rollouts stored; 4 wait in 1 record"
        assert PREFIX_BYTES == 32
