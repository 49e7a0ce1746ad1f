"""Tracks and ledger are the same wherever Trackio carries them: a project, a server, a sync, an export.

The oldest Trackio that is supported, 0.43.0, is the newest there is. Another one is tested by the same tests:
`make contract TRACKIO=0.44.0` puts it before the installed one and says in `ROLLOUT_TRACES_TRACKIO` which it is.
"""

from __future__ import annotations

import os
import re
import shutil
import sqlite3
from pathlib import Path
from typing import Any

import numpy as np
import orjson

import rollout_traces as rt
from rollout_traces.ledger.columns import Ledger
from rollout_traces.model.transcript import FLOAT_TRACKS, INT_TRACKS
from rollout_traces.store import Store, open_store
from rollout_traces.trace.conversion import TraceRecord, read_ledger, read_transcript
from tests.generator import BatchPlan, batch_arrays, tiny_tokenizer
from tests.worker.server import Server

OLDEST = "0.43.0"
STEPS = (3, 4)
PLAN = BatchPlan(n_groups=3, group_size=4, padding="both")
KEPT = 5
STORED_AS_THEY_ARE = {
    "reward": "rewards",
    "group": "group_ids",
    "advantage": "advantages",
    "stop_reason": "stop_reasons",
}


def make_arrays(step: int) -> dict[str, Any]:
    """A batch with every kind of track, some of its floats not finite."""
    arrays = batch_arrays(tiny_tokenizer(), PLAN)
    rng = np.random.default_rng(step)
    sampled = arrays["loss_mask"] > 0
    arrays["values"] = np.where(sampled, 1e5 * rng.normal(size=sampled.shape), 0).astype(np.float32)
    arrays["ref_logprobs"] = np.where(sampled, -rng.exponential(1, sampled.shape), np.nan).astype(np.float32)
    arrays["entropies"][np.nonzero(sampled)[0][:2], np.nonzero(sampled)[1][:2]] = [np.inf, np.nan]
    return arrays


class HandedOver:
    """What was logged, and what a place has to hold of it."""

    def __init__(self) -> None:
        self.arrays: dict[str, dict[str, Any]] = {}

    def log(self, **options: Any) -> HandedOver:
        """Logs two steps for real."""
        logger = rt.RolloutLogger(
            "p", "run", tiny_tokenizer(), max_rollout_traces_per_step=KEPT, worker="thread", **options
        )
        for step in STEPS:
            arrays = make_arrays(step)
            handle = logger.log_rollouts(arrays, step=step)
            self.arrays[str(handle.batch_id)] = {**arrays, "step": step}
        assert logger.finish(120), logger.counters
        return self

    def assert_held_by(self, records: list[TraceRecord], ledgers: list[Ledger]) -> None:
        """Every kept rollout token for token, every rollout's line in the ledger."""
        assert len(records) == KEPT * len(STEPS)
        for record in records:
            self._assert_tokens(record)
        assert sum(ledger.n_rows for ledger in ledgers) == 12 * len(STEPS)
        kept = set()
        for ledger in ledgers:
            self._assert_ledger(ledger)
            kept |= {uid for uid in ledger.get("trace_uid").tolist() if uid}
        assert kept == {record.metadata["uid"] for record in records}

    def _assert_tokens(self, record: TraceRecord) -> None:
        batch_id, row = record.metadata["uid"].split("-")
        arrays, row = self.arrays[batch_id], int(row)
        real = arrays["attention_mask"][row]
        transcript = read_transcript(record)
        tokens = transcript.tokens
        np.testing.assert_array_equal(tokens.input_ids, arrays["input_ids"][row][real])
        np.testing.assert_array_equal(tokens.loss_mask, arrays["loss_mask"][row][real] > 0)
        assert set(tokens.tracks) == {
            key for key in (*INT_TRACKS, *FLOAT_TRACKS) if np.ndim(arrays.get(key)) == 2
        }
        for key, values in tokens.tracks.items():
            given = arrays[key][row][real]
            np.testing.assert_array_equal(values, at_stored_precision(key, given, tokens.response_mask))
        assert transcript.raw == tiny_tokenizer().decode(arrays["input_ids"][row][real])
        assert record.metadata["step"] == arrays["step"]

    def _assert_ledger(self, ledger: Ledger) -> None:
        uids = ledger.get("uid").tolist()
        arrays = self.arrays[uids[0].split("-")[0]]
        assert set(ledger.get("step").tolist()) == {arrays["step"]}
        rows = [int(uid.split("-")[1]) for uid in uids]
        for column, key in STORED_AS_THEY_ARE.items():
            values = np.asarray(arrays[key])[rows]
            if values.dtype.kind == "f":
                np.testing.assert_allclose(ledger.get(column), values, rtol=1e-6)
            else:
                assert ledger.get(column).tolist() == values.tolist()
        sampled = (arrays["versions"] >= 0) & arrays["attention_mask"]
        assert ledger.get("n_sampled").tolist() == sampled.sum(1)[rows].tolist()


def at_stored_precision(key: str, given: np.ndarray, sampled: np.ndarray) -> np.ndarray:
    """Integers as they are; floats at float16, or as they are where float16 cannot hold a finite one."""
    if key in INT_TRACKS:
        return given
    finite = np.abs(given[sampled & np.isfinite(given)])
    return given if len(finite) and finite.max() > 65504 else given.astype(np.float16).astype(np.float32)


def read_store(store: Store) -> tuple[list[TraceRecord], list[Ledger]]:
    """What a store gives, through the package's own reader."""
    page = store.query(limit=100)
    ledgers = [store.ledger(steps=(step, step)) for step in STEPS]
    records = [store.record(str(row.id)) for row in page.rows]
    store.close()
    return records, ledgers


def as_records(rows: list[dict[str, Any]]) -> tuple[list[TraceRecord], list[Ledger]]:
    """What rows of Trackio's table of traces hold."""
    found: dict[str, list[TraceRecord]] = {"rollout/trajectories": [], "rollout/steps": []}
    for row in rows:
        parts = (orjson.loads(row[name]) for name in ("messages", "metadata", "spans"))
        found[row["key"]].append(TraceRecord(*parts))
    return found["rollout/trajectories"], [read_ledger(record) for record in found["rollout/steps"]]


def read_parquet(path: Path) -> tuple[list[TraceRecord], list[Ledger]]:
    """What a parquet file that Trackio wrote holds."""
    import pyarrow.parquet

    return as_records(pyarrow.parquet.read_table(path).to_pylist())


class TestTheVersion:
    def test_is_the_one_that_was_asked_for(self):
        import trackio

        assert trackio.__version__ == os.environ.get("ROLLOUT_TRACES_TRACKIO", trackio.__version__)

    def test_that_is_oldest_is_the_one_that_is_required(self):
        project = (Path(__file__).resolve().parents[2] / "pyproject.toml").read_text()
        [bound] = re.findall(r'"trackio>=([\d.]+)[,"]', project)
        assert OLDEST.startswith(bound)


class TestTracksAndLedgerComeBackEqual:
    def test_from_a_local_project(self, trackio_dir, tmp_path):
        logged = HandedOver().log()
        logged.assert_held_by(
            *read_store(open_store("p", folder=trackio_dir, index_path=tmp_path / "index.db"))
        )

    def test_from_a_self_hosted_server(self, trackio_dir, tmp_path):
        server = Server(tmp_path / "server").start()
        try:
            logged = HandedOver().log(server_url=server.url)
            logged.assert_held_by(
                *read_store(open_store("p", server_url=server.address, index_path=tmp_path / "index.db"))
            )
        finally:
            server.stop()

    def test_from_another_store_that_trackio_synced_to(self, trackio_dir, tmp_path, monkeypatch):
        """`trackio.sync` sends the project's files to a bucket, which is the other store's folder."""
        from trackio import bucket_storage

        other = tmp_path / "bucket"

        def batch_bucket_files(bucket_id: str, add: list[tuple[str, str]]) -> None:
            for source, name in add:
                (other / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(source, other / name)

        monkeypatch.setattr(bucket_storage.huggingface_hub, "batch_bucket_files", batch_bucket_files)
        logged = HandedOver().log()
        bucket_storage.upload_project_to_bucket("p", "somebody/bucket")
        shutil.rmtree(trackio_dir)
        logged.assert_held_by(
            *read_store(open_store("p", folder=other / "trackio", index_path=tmp_path / "index.db"))
        )

    def test_from_the_parquet_files_of_a_static_export(self, trackio_dir, tmp_path):
        """Trackio writes them into a folder, and uploads that to the Hub."""
        from trackio.sqlite_storage import SQLiteStorage

        logged = HandedOver().log()
        SQLiteStorage.export_for_static_space("p", tmp_path / "export")
        logged.assert_held_by(*read_parquet(tmp_path / "export" / "aux" / "traces.parquet"))

    def test_from_another_store_that_read_those_of_a_dataset(self, trackio_dir, tmp_path, monkeypatch):
        from trackio import sqlite_storage

        logged = HandedOver().log()
        monkeypatch.setattr(sqlite_storage.SQLiteStorage, "_dataset_import_attempted", True)
        sqlite_storage.SQLiteStorage.export_to_parquet()
        other = tmp_path / "other"
        other.mkdir()
        for path in trackio_dir.glob("*.parquet"):
            shutil.copyfile(path, other / path.name)
        logged.assert_held_by(*read_parquet(other / "p_traces.parquet"))
        monkeypatch.setattr(sqlite_storage, "TRACKIO_DIR", other)
        sqlite_storage.SQLiteStorage.import_from_parquet()
        with sqlite3.connect(other / "p.db") as db:
            db.row_factory = sqlite3.Row
            logged.assert_held_by(*as_records([dict(row) for row in db.execute("select * from traces")]))


def test_a_sync_that_goes_through_a_servers_log_carries_no_traces(trackio_dir):
    """What docs/trackio.md warns of: of a project, Trackio sends metrics alone that way."""
    from trackio.sqlite_storage import SQLiteStorage

    HandedOver().log()
    sent = orjson.dumps(SQLiteStorage.get_all_logs_for_sync("p"))
    assert b"rollout/reward/mean" in sent
    assert b"token_track" not in sent
