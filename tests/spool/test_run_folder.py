"""The folder of a run: where it lies, what it holds, and when it goes."""

from __future__ import annotations

import json
import shutil
import stat
import struct
from pathlib import Path

import pytest
from typer.testing import CliRunner

import rollout_traces as rt
from rollout_traces.cli import build_app
from rollout_traces.doctor import Examination, each_check
from rollout_traces.errors import StoreError
from rollout_traces.inspector.pages.health import health
from rollout_traces.inspector.workspace import Workspace
from rollout_traces.model.private_files import is_network_mount, mount_type
from rollout_traces.spool import run_folder
from rollout_traces.spool.folder import SpoolReader, SpoolWriter
from rollout_traces.spool.record import PREFIX_BYTES, Record, encode
from rollout_traces.spool.run_folder import (
    MANIFEST_VERSION,
    SAMPLES,
    Account,
    RunFolder,
    RunManifest,
    account_of,
    load_tokenizer,
    run_folders,
    safe_name,
    save_tokenizer,
    take_run_folder,
)
from tests.generator import BatchPlan, batch_arrays, tiny_tokenizer
from tests.inspector.told import told
from tests.spool.damage import flip_byte, place_of

MOUNTS = """\
/dev/sda1 / ext4 rw 0 0
server:/home /home nfs4 rw 0 0
/dev/sdb1 /home/scratch xfs rw 0 0
//host/share /mnt/my\\040share cifs rw 0 0
"""


@pytest.fixture
def mounts(tmp_path):
    path = tmp_path / "mounts"
    path.write_text(MOUNTS)
    return path


class TestMounts:
    @pytest.mark.parametrize(
        ("path", "kind", "network"),
        [
            ("/var/trackio", "ext4", False),
            ("/home/mia/trackio", "nfs4", True),
            ("/home/scratch/trackio", "xfs", False),
            ("/mnt/my share/trackio", "cifs", True),
        ],
    )
    def test_the_nearest_mount_tells(self, mounts, tmp_path, path, kind, network):
        assert mount_type(Path(path), mounts) == kind
        assert is_network_mount(Path(path), mounts) is network

    def test_without_a_table_nothing_is_called_a_network(self, tmp_path):
        assert not is_network_mount(tmp_path, tmp_path / "missing")


class TestSpoolRoot:
    def test_lies_beside_the_project(self, tmp_path):
        assert run_folder.spool_root(tmp_path) == tmp_path / "rollout-traces" / "spool"

    def test_lies_on_the_node_when_the_project_does_not(self, tmp_path, monkeypatch):
        monkeypatch.setattr(run_folder, "is_network_mount", lambda path: True)
        assert run_folder.spool_root(tmp_path) == run_folder.local_root()


@pytest.fixture
def folder(tmp_path):
    tmp_path.chmod(0o700)
    made = RunFolder.of(tmp_path / "rollout-traces" / "spool", "my project", "run 1")
    made.take()
    return made


def writer(folder: RunFolder, name: str = "a") -> SpoolWriter:
    return SpoolWriter(folder.writer_folder(name), 1 << 20)


class TestTheFolder:
    def test_is_this_users_alone_and_named_safely(self, folder, tmp_path):
        assert folder.path == tmp_path / "rollout-traces" / "spool" / "my_project" / "run_1"
        assert all(stat.S_IMODE(path.stat().st_mode) == 0o700 for path in (folder.path, folder.path.parent))

    @pytest.mark.parametrize(
        ("text", "name"), [("a b/c", "a_b_c"), ("..", "_"), ("", "_"), (".x", "x"), ("ä-1.2", "_-1.2")]
    )
    def test_names_that_are_none_are_made_safe(self, text, name):
        assert safe_name(text) == name

    def test_a_manifest_comes_back(self, folder):
        written = RunManifest("p", "run", "1", config={"lr": 0.1}, server_url="http://x")
        folder.write_manifest(written)
        assert folder.manifest() == written and written.remote == "http://x"
        assert RunManifest("p", "r", "1").remote is None
        assert RunManifest("p", "r", "1", space_id="a/b", server_url="http://x").remote == "a/b"

    def test_a_manifest_that_is_missing_damaged_or_of_another_version_is_said(self, folder):
        with pytest.raises(StoreError, match="its manifest cannot be read"):
            folder.manifest()
        folder.write_manifest(RunManifest("p", "r", "1", version=MANIFEST_VERSION + 1))
        with pytest.raises(StoreError, match=r"version 2, expected 1\. Read it with"):
            folder.manifest()
        (folder.path / "manifest.json").write_text("{")
        with pytest.raises(StoreError, match="cannot be read"):
            folder.manifest()

    def test_a_status_comes_back_and_one_that_cannot_be_read_is_empty(self, folder):
        assert folder.status() == {}
        folder.write_status({"counters": {"a": 1}})
        assert folder.status() == {"counters": {"a": 1}}
        (folder.path / "status.json").write_text("[")
        assert folder.status() == {}

    def test_its_log_is_added_to(self, folder):
        for line in (b"one\n", b"two\n"):
            with folder.open_log() as log:
                log.write(line)
        assert folder.log.read_bytes() == b"one\ntwo\n"

    def test_it_is_in_use_while_a_writer_or_a_worker_is_there(self, folder):
        assert not folder.is_in_use() and folder.is_done()
        first = writer(folder)
        first.append(encode(Record("flush", {})))
        assert folder.is_in_use() and not folder.is_done() and folder.n_waiting() == 1
        first.close()
        assert not folder.is_in_use() and not folder.is_done(), "a record waits"
        assert folder.worker_lock.acquire() and folder.is_in_use()
        folder.worker_lock.release()
        assert not folder.is_in_use()

    def test_it_goes_once_nothing_waits_and_nothing_is_damaged(self, folder):
        first = writer(folder)
        first.append(encode(Record("flush", {})))
        assert folder.remove_if_done() is False
        (reader,) = folder.readers()
        for name in reader.names():
            reader.remove(name)
        assert folder.remove_if_done() is False, "its writer is alive"
        first.close()
        damaged = folder.path / "from-a" / "x.damaged"
        damaged.touch()
        assert folder.remove_if_done() is False and folder.path.exists()
        damaged.unlink()
        assert folder.remove_if_done() is True
        assert not folder.path.exists() and not folder.path.parent.exists()

    def test_readers_are_kept_and_those_whose_folder_went_are_let_go(self, folder):
        writer(folder, "a").close()
        writer(folder, "b").close()
        (folder.path / "other").mkdir()
        first = folder.readers()
        assert [reader.spool for reader in first] == ["from-a", "from-b"]
        assert all(one is two for one, two in zip(first, folder.readers(), strict=True))
        shutil.rmtree(folder.path / "from-a")
        assert [reader.spool for reader in folder.readers()] == ["from-b"]
        folder.remove()
        assert folder.readers() == [] and folder.n_waiting() == 0


class TestThoseOfANode:
    def test_are_found_by_project_and_those_that_others_may_have_written_are_passed_over(
        self, tmp_path, caplog
    ):
        tmp_path.chmod(0o700)
        root = tmp_path / "rollout-traces" / "spool"
        for project, run in (("a", "1"), ("a", "2"), ("b", "3")):
            made = RunFolder.of(root, project, run)
            made.take()
            made.write_manifest(RunManifest(project, "run", run))
        assert [found.path.name for found in run_folders(root)] == ["1", "2", "3"]
        assert [found.path.name for found in run_folders(root, "a")] == ["1", "2"]
        (root / "a" / "2" / "manifest.json").chmod(0o666)
        assert [found.path.name for found in run_folders(root)] == ["1", "3"]
        assert "passed over: " in caplog.text
        assert run_folders(tmp_path / "nowhere") == []

    def test_the_first_place_that_is_ones_own_is_taken(self, tmp_path):
        tmp_path.chmod(0o700)
        taken = take_run_folder(tmp_path, "p", "1")
        assert taken.path.is_relative_to(tmp_path / "rollout-traces" / "spool") and taken.path.is_dir()

    def test_a_place_that_others_may_replace_is_left_for_one_that_they_may_not(
        self, tmp_path, monkeypatch, caplog
    ):
        mine = tmp_path / "mine"
        mine.mkdir(mode=0o700)
        monkeypatch.setattr(run_folder, "local_root", lambda: mine / "rollout-traces-1" / "spool")
        tmp_path.chmod(0o700)
        shared = tmp_path / "shared"
        shared.mkdir()
        shared.chmod(0o777)
        assert take_run_folder(shared, "p", "1").path.is_relative_to(mine)
        assert f"{shared} is a network mount, or open to other users" in caplog.text


class TestTokenizers:
    def test_one_comes_back_with_the_same_texts(self, tmp_path):
        tokenizer = tiny_tokenizer()
        assert save_tokenizer(tokenizer, tmp_path / "t") is True
        again = load_tokenizer(tmp_path / "t")
        assert again.encode("What is it?") == tokenizer.encode("What is it?")
        texts = json.loads((tmp_path / "t" / "fingerprint.json").read_text())["texts"]
        assert SAMPLES <= len(texts) <= 2 * SAMPLES and len(set(texts)) > SAMPLES / 2
        assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in (tmp_path / "t").iterdir())

    def test_a_plain_one_too(self, tmp_path):
        plain = tiny_tokenizer().backend_tokenizer
        assert save_tokenizer(plain, tmp_path / "t") is True
        assert load_tokenizer(tmp_path / "t").get_vocab_size() == plain.get_vocab_size()

    def test_one_that_cannot_be_written_stays_in_its_process(self, tmp_path):
        class Own:
            def save_pretrained(self, folder):
                raise NotImplementedError

        class Silent(Own):
            def save_pretrained(self, folder):
                Path(folder, "vocabulary.bin").touch()

            def __len__(self):
                return 1

            def decode(self, ids):
                return "a"

        assert save_tokenizer(Own(), tmp_path / "t") is False
        assert save_tokenizer(Silent(), tmp_path / "s") is False

    def test_one_that_does_not_come_back_the_same_is_refused(self, tmp_path):
        save_tokenizer(tiny_tokenizer(), tmp_path / "t")
        save_tokenizer(tiny_tokenizer().backend_tokenizer, tmp_path / "other")
        (tmp_path / "t" / "fingerprint.json").write_text('{"size": 3, "texts": [], "template": "None"}')
        with pytest.raises(StoreError, match=r"expected 3 and the same texts\. Use worker='thread'"):
            load_tokenizer(tmp_path / "t")


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
