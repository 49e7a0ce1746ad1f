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
from rollout_traces.errors import StoreError
from rollout_traces.inspector.pages.around import raw_record as page_record
from rollout_traces.inspector.workspace import ProjectView, Workspace
from rollout_traces.sources.importing import import_rollouts
from rollout_traces.sources.state import raw_record
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
