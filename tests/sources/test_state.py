"""Every imported rollout leads back to its record; no file is read that was not imported here."""

from __future__ import annotations

import gzip
import json
import shutil
import zipfile

import orjson
import pyarrow as pa
import pytest
from typer.testing import CliRunner

import rollout_traces as rt
from rollout_traces.cli import build_app
from rollout_traces.errors import ConfigError, StoreError
from rollout_traces.inspector.pages.around import raw_record as page_record
from rollout_traces.inspector.workspace import ProjectView, Workspace
from rollout_traces.sources.importing import import_rollouts
from rollout_traces.sources.state import (
    FileState,
    ImportState,
    imported_files,
    only_import_of,
    raw_record,
)
from tests.sources.reading import SAMPLES

pytestmark = pytest.mark.usefixtures("trackio_dir")
ROWS = [{"prompt": f"q{n}", "response": f"a{n}", "reward": n, "step": n % 2} for n in range(5)]


def imported(path):
    assert import_rollouts(path, "raw", name="r", worker="thread").rows
    store = rt.open_store(project="raw")
    return store, store.query(order_by="step, sample", limit=500).rows


def test_a_call_in_a_store_of_sqlite_is_its_row(tmp_path, trackio_dir):
    shutil.copytree(SAMPLES / "tinker-capture/store", tmp_path / "store")
    import_rollouts(tmp_path / "store", "raw", worker="thread")
    for row in rt.open_store(project="raw").query(rows="all", limit=10).rows:
        assert json.loads(raw_record(trackio_dir, "raw", row["origin"]))["iteration"] == row.step


def test_a_rollout_that_has_no_trace_leads_back_by_its_uid():
    import_rollouts(SAMPLES / "open-instruct", "raw", worker="thread")
    rows = rt.open_store(project="raw").query(rows="all", order_by="step, group, sample", limit=10).rows
    assert not any(row["traced"] for row in rows)
    for row in rows:
        shown = CliRunner().invoke(build_app(), ["get", "-p", "raw", row["uid"], "--raw-record"])
        assert json.loads(shown.output)["reward"] == row["reward"], shown.output


def test_a_file_that_its_writer_sealed_in_between_is_read_where_it_is_now(tmp_path):
    path = tmp_path / "1.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    store, rows = imported(path)
    with pa.output_stream(f"{path}.zst", compression="zstd") as sealed:
        sealed.write(path.read_bytes())
    path.unlink()
    with pytest.raises(StoreError, match="cannot be read"):
        store.raw_record(rows[0].id)
    import_rollouts(tmp_path, "raw", name="r", worker="thread")
    for row in rows:
        assert json.loads(store.raw_record(row.id))["response"] == store.messages(row.id)[-1]["content"]


@pytest.mark.parametrize("form", ["lines", "one line", "spread", "gz"])
def test_it_is_the_record_that_the_rollout_came_from(tmp_path, form):
    path = tmp_path / {"lines": "1.jsonl", "gz": "1.jsonl.gz"}.get(form, "1.json")
    lines = "".join(json.dumps(row) + "\n" for row in ROWS)
    text = {"one line": json.dumps(ROWS), "spread": json.dumps(ROWS, indent=1)}.get(form, lines)
    path.write_bytes(gzip.compress(text.encode()) if form == "gz" else text.encode())
    store, rows = imported(path)
    assert len(rows) == 5
    for row in rows:
        assert json.loads(store.raw_record(row.id))["response"] == store.messages(row.id)[-1]["content"]


@pytest.mark.parametrize(
    "sample",
    sorted(
        f.name
        for f in SAMPLES.iterdir()
        if f.name not in ("slime", "skyrl-training", "tinker", "trl-trackio")
    ),
)
def test_every_sample_s_rollouts_lead_back_traced_or_not(tmp_path, trackio_dir, sample):
    shutil.copytree(SAMPLES / sample, tmp_path / sample)
    store, _ = imported(tmp_path / sample)
    rows = store.query(rows="all", limit=500).rows
    assert rows
    for row in rows:
        assert orjson.loads(raw_record(trackio_dir, "raw", row["origin"])), row["origin"]


@pytest.mark.parametrize(
    ("sample", "file", "number"),
    [
        ("tinker-capture/store", "capture.sqlite", 1),
        ("trl", "*.parquet", 1),
        ("inspect", "*.eval", 1),
    ],
)
def test_a_file_s_kind_is_known_by_its_bytes_whatever_it_is_called(
    tmp_path, trackio_dir, monkeypatch, sample, file, number
):
    found = next((SAMPLES / sample).rglob(file))
    renamed = tmp_path / "file"
    shutil.copy(found, renamed)
    monkeypatch.setattr("rollout_traces.sources.state.imported_files", lambda *_: {str(found), str(renamed)})
    one, other = (raw_record(trackio_dir, "raw", f"{path}:{number}") for path in (found, renamed))
    assert orjson.loads(one) and one == other


class TestOfOthers:
    def test_a_rollout_that_was_logged_has_none(self):
        logger = rt.RolloutLogger("raw", "r", max_rollout_traces_per_step=1, worker="thread")
        logger.log_rollouts(rt.RolloutBatch.from_messages([[{"role": "user", "content": "q"}]]), step=1)
        assert logger.finish()
        store = rt.open_store(project="raw")
        with pytest.raises(StoreError, match="was not imported from a file"):
            store.raw_record(store.query(limit=1).rows[0].id)

    def test_a_made_up_place_is_not_read(self, tmp_path, trackio_dir):
        secret = tmp_path / "secret.jsonl"
        secret.write_text('{"key": 1}\n')
        path = tmp_path / "run" / "1.jsonl"
        path.parent.mkdir()
        path.write_text(f"{json.dumps(ROWS[0])}\n{json.dumps(ROWS[1])}\n")
        imported(path)
        assert raw_record(trackio_dir, "raw", f"{path}:1")
        odd = [f"{path}:{number}" for number in ("0", "3", "\u00b2", "9" * 5000, "9" * 30)]
        for place in (f"{secret}:1", f"{path}/../../secret.jsonl:1", "x", *odd):
            with pytest.raises(StoreError):
                raw_record(trackio_dir, "raw", place)
        with pytest.raises(StoreError, match="not imported into the project"):
            raw_record(trackio_dir, "another", f"{path}:1")

    def test_a_file_that_is_gone_is_named(self, tmp_path):
        path = tmp_path / "1.jsonl"
        path.write_text(json.dumps(ROWS[0]) + "\n")
        store, [row] = imported(path)
        path.unlink()
        with pytest.raises(StoreError, match=r"1\.jsonl:1: cannot be read"):
            store.raw_record(row.id)

    def test_a_packed_file_that_is_damaged_is_named(self, tmp_path):
        path = tmp_path / "1.jsonl.gz"
        path.write_bytes(gzip.compress((json.dumps(ROWS[0]) + "\n").encode()))
        store, [row] = imported(path)
        path.write_bytes(path.read_bytes()[:10] + b"\xff" * 50)
        with pytest.raises(StoreError, match=r"1\.jsonl\.gz:1: cannot be read"):
            store.raw_record(row.id)

    def test_a_record_that_unpacks_without_measure_is_refused(self, tmp_path, trackio_dir):
        path = tmp_path / "bomb.eval"
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("samples/a_epoch_1.json", b'{"x": "' + b"0" * (20 << 20) + b'"}')
            archive.writestr("samples/b_epoch_1.json", json.dumps({"id": "b", "epoch": 1, "messages": []}))
        assert import_rollouts(path, "raw", worker="thread").rows == 1
        assert json.loads(raw_record(trackio_dir, "raw", f"{path}:2"))["id"] == "b"
        with pytest.raises(StoreError, match="taken for a bomb"):
            raw_record(trackio_dir, "raw", f"{path}:1")

    def test_an_import_that_was_killed_as_it_began_is_no_hindrance(self, tmp_path, trackio_dir):
        path = tmp_path / "1.jsonl"
        path.write_text(json.dumps(ROWS[0]) + "\n")
        store, [row] = imported(path)
        (trackio_dir / "rollout-imports" / "begun.sqlite3").touch()
        assert json.loads(store.raw_record(row.id))["prompt"] == "q0"


def test_command_and_page_show_it(tmp_path):
    path = tmp_path / "1.jsonl"
    path.write_text(json.dumps({**ROWS[0], "response": "\x1b[2J" + "x" * 300_000}) + "\n")
    _, [row] = imported(path)
    shown = CliRunner().invoke(build_app(["get"]), ["get", row.id, "-p", "raw", "--raw-record"])
    assert shown.exit_code == 0 and json.loads(shown.output)["prompt"] == "q0"
    answer = page_record(ProjectView(Workspace(), "raw"), row.id)
    assert len(answer.text) == 200_000 and answer.n_left_out == len(path.read_text()) - 200_000


class TestAnImport:
    """What is remembered of an import, by the next one."""

    @pytest.fixture
    def begun(self, tmp_path):
        """Begins an import into the same run; the one before has ended."""
        states: list[ImportState] = []

        def begin() -> ImportState:
            if states:
                states[-1].close()
            states.append(ImportState(tmp_path, "p", "r1"))
            return states[-1]

        yield begin
        states[-1].close()

    def test_of_the_same_rollout_takes_it_once(self, begun):
        for is_new in (True, False):
            state = begun()
            assert state.is_new("r", b"a", 1, repeats=False) == is_new
            assert not state.is_new("r", b"a", 1, repeats=False)
        assert state.is_new("other", b"a", 1, repeats=False)

    def test_of_equal_rollouts_takes_as_many_as_are_more_than_before(self, begun):
        state = begun()
        assert [state.is_new("r", b"a", 1, repeats=True) for _ in range(2)] == [True, True]
        state = begun()
        assert [state.is_new("r", b"a", 1, repeats=True) for _ in range(3)] == [False, False, True]
        state = begun()
        assert state.add_repeats("r", b"a", 1) and state.add_repeats("r", b"b", 1)
        state = begun()
        assert [state.is_new("r", b"a", 1, repeats=True) for _ in range(5)] == [False] * 4 + [True]
        assert [state.is_new("r", b"b", 1, repeats=True) for _ in range(2)] == [False, True]

    def test_that_ended_leaves_its_attempt_to_the_next(self, begun):
        assert begun().begin("a") == "a"
        assert begun().begin("b") == "a"

    def test_that_was_killed_is_done_again_from_its_first_open_step_on(self, begun, tmp_path):
        state = begun()
        state.begin("a")
        for step in (1, 2, 3):
            state.is_new("r", b"%d" % step, step, repeats=False)
            path = tmp_path / f"{step}.jsonl"
            state.keep({path: FileState(10, 20, 5, 1, b"tail", step)}, "r", [(2, "rollout"), (3, "rollout")])
        state = begun()
        assert state.file(tmp_path / "3.jsonl") == FileState(10, 20, 5, 1, b"tail", 3)
        assert state.begin("b") == "b"
        found = [state.file(tmp_path / f"{step}.jsonl") is not None for step in (1, 2, 3)]
        assert found == [True, False, False]
        assert [state.is_new("r", b"%d" % step, step, repeats=False) for step in (1, 2, 3)] == [
            False,
            True,
            True,
        ]
        assert begun().begin("c") == "b"

    def test_knows_a_step_as_open_until_its_file_was_kept(self, begun, tmp_path):
        state = begun()
        state.begin("a")
        state.open_step("r", 4, "rollout")
        state.open_step("r", 4, "rollout")
        state.open_step("other", 5, "rollout")
        state.keep({}, "r", [])
        state = begun()
        assert state.begin("b") == "b"
        state.open_step("r", 4, "rollout")
        state.keep({}, "r", [])
        assert begun().begin("c") == "b"

    def test_alone_writes_to_a_run(self, tmp_path):
        lock = only_import_of(tmp_path, "p", "r")
        with pytest.raises(ConfigError, match="run 'r' of 'p': another import writes to it now"):
            only_import_of(tmp_path, "p", "r")
        only_import_of(tmp_path, "p", "s").release()
        lock.release()
        only_import_of(tmp_path, "p", "r").release()

    def test_is_of_its_project_alone(self, begun, tmp_path):
        state = begun()
        state.keep({tmp_path / "a.jsonl": FileState(1, 2)}, "r", [])
        begun()
        assert imported_files(tmp_path, "p") == {str((tmp_path / "a.jsonl").resolve())}
        assert imported_files(tmp_path, "q") == frozenset()
