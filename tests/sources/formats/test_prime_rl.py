"""prime-rl's episode stream: each episode once, with what was learned later, whether its chunks are sealed or not."""

from __future__ import annotations

import os
import shutil
import struct
import time
from collections import Counter
from pathlib import Path

import orjson
import pytest

import rollout_traces as rt
from rollout_traces.sources.formats.prime_rl import _Annotations, _merged, _nodes_spoken_of
from rollout_traces.sources.importing import import_rollouts
from rollout_traces.sources.lines import opened, with_places
from rollout_traces.sources.problems import Problems
from rollout_traces.sources.rows import RolloutRow
from tests.sources.reading import SAMPLES, rows_of, runs_of

STREAM = SAMPLES / "prime-rl-stream"
TRACES = Path("monitors/file/traces")


def unsealed(folder: Path) -> Path:
    """The sample as it was before its chunks were sealed."""
    shutil.copytree(STREAM, folder / "run")
    for path in (folder / "run").rglob("*.zst"):
        with opened(path) as file:
            path.with_suffix("").write_bytes(file.read())
        path.unlink()
    return folder / "run"


def updates(producer: str) -> list[dict]:
    with opened(STREAM / TRACES / f"annotations/{producer}/00000.jsonl.zst") as file:
        return [orjson.loads(line) for line in file]


def test_a_finished_run_is_one_run_of_every_branch_of_every_episode():
    problems = Problems()
    [run] = runs_of(STREAM, problems)
    assert (run.name, Counter(file.format.name for file in run.files)) == ("prime-rl-stream", {"prime-rl": 3})
    rows = rows_of(STREAM, problems)
    assert (len(rows), problems.counts) == (18, {})
    assert len({row.identity for row in rows}) == 18


def test_the_cohort_of_a_step_and_what_was_in_no_update_are_told_apart():
    rows = rows_of(STREAM)
    fates = Counter((row.step, row.discard_reason, row.attempt) for row in rows)
    assert fates == {
        (5, None, 1): 5, (5, "not_in_a_batch", 1): 1,
        (6, None, 1): 5, (6, "not_in_a_batch", 1): 1,
        (6, None, 2): 5, (6, "not_in_a_batch", 2): 1,
    }  # fmt: skip


def test_annotations_are_folded_value_for_value_and_the_newest_wins():
    rows = {row.sample_id: row for row in rows_of(STREAM)}
    for update in updates("orch"):
        for branch in update["branches"]:
            row = rows[update["trace_id"] + (f"/{branch['index']}" if branch["index"] else "")]
            told = zip(branch["advantages"], row.response_mask, strict=True)
            assert row.tracks["advantages"] == [value if sampled else None for value, sampled in told]
    newest = {update["trace_id"]: update["branches"][0] for update in updates("trainer")}
    assert len(updates("trainer")) == 2 * len(newest) == 6
    for trace_id, streams in newest.items():
        assert rows[trace_id].tracks["prox_logprobs"] == streams["trainer_logprobs"]
        assert set(rows[trace_id].tracks["prox_logprobs"]) == {None, -0.25}
        assert rows[trace_id].tracks["entropies"] == streams["entropies"]


def retold(run: Path, keep: int) -> None:
    """Writes the trainer's annotations anew, the last of each trace with this many of its tokens alone."""
    folder = run / TRACES / "annotations"
    lines = [orjson.loads(line) for line in (folder / "trainer/00000.jsonl").read_bytes().splitlines()]
    last = {update["trace_id"]: n for n, update in enumerate(lines)}
    for n in last.values():
        for branch in lines[n]["branches"]:
            branch |= {key: values[:keep] for key, values in branch.items() if key != "index"}
    (folder / "trainer/00000.jsonl").write_bytes(b"".join(orjson.dumps(line) + b"\n" for line in lines))
    (folder / "trainer.index.jsonl").unlink()


@pytest.mark.parametrize("told", [0.0, 0.9])
def test_what_the_newest_update_does_not_reach_stays_as_it_was_told_before(tmp_path, told):
    run = unsealed(tmp_path)
    whole = {row.sample_id: row for row in rows_of(STREAM)}
    trace_id = updates("trainer")[0]["trace_id"]
    n = len(whole[trace_id].input_ids)
    retold(run, int(told * n))
    [row] = [row for row in rows_of(run) if row.sample_id == trace_id]
    assert set(whole[trace_id].tracks["prox_logprobs"]) == {None, -0.25}
    assert set(row.tracks["prox_logprobs"]) == {None, -0.5}


def test_a_mask_that_is_told_of_some_tokens_alone_leaves_the_others_in_the_loss(tmp_path):
    run = unsealed(tmp_path)
    trace_id = updates("trainer")[0]["trace_id"]
    [before] = [row for row in rows_of(STREAM) if row.sample_id == trace_id]
    at = list(before.response_mask).index(1)
    path = run / TRACES / "annotations/trainer/00000.jsonl"
    lines = [orjson.loads(line) for line in path.read_bytes().splitlines()]
    for update in lines:
        for branch in update["branches"] if update["trace_id"] == trace_id else ():
            branch["is_masked"] = [True if n == at else None for n in range(len(before.input_ids))]
    path.write_bytes(b"".join(orjson.dumps(line) + b"\n" for line in lines))
    (run / TRACES / "annotations/trainer.index.jsonl").unlink()
    [row] = [row for row in rows_of(run) if row.sample_id == trace_id]
    weights = row.tracks["loss_weights"]
    assert weights[at] == 0.0 and set(weights[:at] + weights[at + 1 :]) == {1.0}


def test_a_run_that_goes_on_gives_what_both_producers_spoke_of(tmp_path):
    problems = Problems()
    run = unsealed(tmp_path)
    (run / TRACES / "live").mkdir()
    (run / TRACES / "live/t.jsonl").write_text('{"trace": "t", "open": {}}\n')
    assert {row.sample_id for row in rows_of(run, problems)} == {u["trace_id"] for u in updates("trainer")}
    assert problems.counts == {"episodes_undecided": 3, "rollouts_in_flight": 1}


def test_a_run_without_a_trainers_annotations_waits_for_none(tmp_path):
    run = unsealed(tmp_path)
    shutil.rmtree(run / TRACES / "annotations/trainer")
    problems = Problems()
    rows = rows_of(run, problems)
    assert len(rows) == 15 and all(row.discard_reason is None for row in rows)
    assert problems.counts == {"episodes_undecided": 3}


def test_of_a_run_that_was_killed_an_hour_ago_nothing_is_left(tmp_path):
    run = unsealed(tmp_path)
    for path in run.rglob("*.jsonl"):
        os.utime(path, (0, time.time() - 3601))
    problems = Problems()
    assert (len(rows_of(run, problems)), problems.counts) == (18, {})


def test_an_annotation_that_is_cut_off_costs_itself_alone(tmp_path):
    run = unsealed(tmp_path)
    path = run / TRACES / "annotations/trainer/00000.jsonl"
    path.write_bytes(path.read_bytes()[:-100])
    problems = Problems()
    assert len(rows_of(run, problems)) == 3
    assert problems.counts["annotations_not_read"] == 1


def seekable(data: bytes, n: int) -> bytes:
    """A seekable file of frames of n bytes each, as Zstandard's description of the format has it."""
    import pyarrow as pa

    parts = [data[at : at + n] for at in range(0, len(data), n)]
    frames = [pa.compress(part, "zstd", asbytes=True) for part in parts]
    table = b"".join(struct.pack("<II", len(f), len(p)) for f, p in zip(frames, parts, strict=True))
    footer = struct.pack("<IBI", len(frames), 0, 0x8F92EAB1)
    head = struct.pack("<II", 0x184D2A5E, len(table) + len(footer))
    return b"".join(frames) + head + table + footer


class TestSealedFrames:
    @pytest.mark.parametrize("is_packed", [True, False])
    def test_a_file_is_read_from_any_place(self, tmp_path, is_packed):
        data = b"".join(b"%07d\n" % n for n in range(100_000))
        path = tmp_path / ("x.jsonl.zst" if is_packed else "x.jsonl")
        path.write_bytes(seekable(data, 10_000) if is_packed else data)
        with opened(path, 400_000) as file:
            assert file.readline() == b"0050000\n"
        with with_places(path) as file:
            for place in (400_000, 8, 0):
                file.seek(place)
                assert int(file.readline()) == place // 8
            assert file.read() == data[8:]

    def test_a_file_that_grows_to_more_than_one_of_its_size_does_is_refused(self, tmp_path, monkeypatch):
        path = STREAM / TRACES / "stream/00000.jsonl.zst"
        monkeypatch.setattr("rollout_traces.sources.lines.MAX_LINE", 100)
        monkeypatch.setattr("rollout_traces.sources.lines.MOST_RATIO", 1)
        with pytest.raises(OSError, match="taken for a bomb"):
            with_places(path)

    def test_a_file_without_a_table_is_read_as_a_stream(self, tmp_path):
        import pyarrow as pa

        path = tmp_path / "x.jsonl.zst"
        path.write_bytes(pa.compress(b"line\n" * 3, "zstd", asbytes=True) * 2)
        with opened(path) as file:
            assert file.readlines() == [b"line\n"] * 6

    def test_a_sealed_chunk_that_is_cut_off_is_named(self, tmp_path):
        run = tmp_path / "run"
        shutil.copytree(STREAM, run)
        path = run / TRACES / "stream/00000.jsonl.zst"
        path.write_bytes(path.read_bytes()[:-40])
        problems = Problems()
        assert len(rows_of(run, problems)) >= 10
        assert problems.counts == {"damaged_files": 1}
        assert "Truncated compressed stream" in str(problems.kept[0])


@pytest.mark.usefixtures("trackio_dir")
def test_a_live_run_that_is_sealed_later_is_imported_once_and_its_restart_supersedes(tmp_path):
    run = unsealed(tmp_path)
    assert import_rollouts(run, "copy", worker="thread").rows == 3
    shutil.rmtree(run)
    shutil.copytree(STREAM, run)
    again = import_rollouts(run, "copy", worker="thread")
    assert (again.rows, import_rollouts(run, "copy", worker="thread").rows) == (15, 0)
    store = rt.open_store(project="copy")
    assert store.count(rows="all", attempts="all") == 18
    current = Counter(
        (row.step, row["discard_reason"]) for row in store.query(where="superseded = 0", limit=99).rows
    )
    assert current == {(5, None): 5, (5, "not_in_a_batch"): 1, (6, None): 5, (6, "not_in_a_batch"): 1}


@pytest.mark.usefixtures("trackio_dir")
def test_what_a_sealed_chunk_was_left_with_is_imported_when_the_run_has_ended(tmp_path):
    run = tmp_path / "run"
    shutil.copytree(STREAM, run)
    live = run / TRACES / "stream/00003.jsonl"
    live.touch()
    assert import_rollouts(run, "copy", worker="thread").rows == 3
    live.unlink()
    assert import_rollouts(run, "copy", worker="thread").rows == 15
    assert rt.open_store(project="copy").count(rows="all", attempts="all") == 18


class TestWhatUpdatesSayOfTokens:
    NODES = (
        {"token_ids": [1, 2], "mask": [0, 1]},
        {"parent": 0, "token_ids": [3], "mask": [1]},
        {"parent": 0, "token_ids": [4], "mask": [1]},
    )

    def told(self, *streams: dict) -> list[dict]:
        """What the messages hold of each stream, of an update for each."""
        nodes, paths = _nodes_spoken_of({"nodes": self.NODES}, [{"branches": [each]} for each in streams])
        assert paths == [[0, 1], [0, 2]]
        return [{key: node[key] for key in node if key not in self.NODES[1]} for node in nodes]

    def test_goes_to_the_sampled_tokens_of_each_message_of_the_branch(self):
        said = {"index": 1, "advantages": [9, 0.5, 0.25], "entropies": [8, 1, 2]}
        assert self.told(said) == [
            {"advantages": [0.5], "entropies": [1]},
            {},
            {"advantages": [0.25], "entropies": [2]},
        ]

    def test_that_end_before_a_message_leaves_what_was_said_of_it(self):
        first, second = {"index": 0, "advantages": [9, 1, 2]}, {"index": 0, "advantages": [9, 3]}
        assert self.told(first, second) == [{"advantages": [3]}, {"advantages": [2]}, {}]

    def test_of_a_part_of_a_message_counts_for_masks_alone(self):
        assert self.told({"index": 0, "advantages": [9, None, 2]}) == [{}, {"advantages": [2]}, {}]
        assert self.told({"index": 0, "is_masked": [None, True, None]}) == [{"is_masked": [True]}, {}, {}]

    @pytest.mark.parametrize("index", [-1, 2, "0", None])
    def test_of_a_branch_that_is_not_there_is_passed_over(self, index):
        assert self.told({"index": index, "advantages": [9, 1, 2]}) == [{}, {}, {}]

    def test_mappings_are_put_into_one_another(self):
        assert _merged({"a": {"b": 1, "c": 2}, "d": 3}, {"a": {"b": 5}, "d": {"e": 1}}) == {
            "a": {"b": 5, "c": 2},
            "d": {"e": 1},
        }


class TestAnnotations:
    def of(self, folder: Path, *index: dict, chunks: dict[int, list[dict]] | None = None) -> _Annotations:
        producer = folder / "annotations" / "trainer"
        producer.mkdir(parents=True)
        lines = b"".join(orjson.dumps(each) + b"\n" for each in index)
        producer.with_name("trainer.index.jsonl").write_bytes(lines)
        for chunk, records in (chunks or {}).items():
            written = b"".join(orjson.dumps(each) + b"\n" for each in records)
            (producer / f"{chunk:05d}.jsonl").write_bytes(written)
        self.problems = Problems()
        return _Annotations(folder, self.problems)

    def ship(self, time: object, step: object) -> dict:
        return {"trace_id": "t", "info": {"ship": {"time": time, "step": step}}}

    def test_a_step_that_is_shipped_again_begins_another_start(self, tmp_path):
        ships = [self.ship(at, step) for at, step in ((10.0, 5), (1.0, 4), (20.0, 3), (30.0, 4))]
        found = self.of(tmp_path, *ships, self.ship("late", 9), self.ship(99.0, "9"), {"trace_id": "t"})
        assert found.newest_step == 4
        attempts = {at: found.attempt_of({}, {"time": at, "step": 5}) for at in (9.0, 10.0, 15.0, 20.0, 40.0)}
        assert attempts == {9.0: 1, 10.0: 1, 15.0: 2, 20.0: 2, 40.0: 2}
        assert found.attempt_of({}, {"time": 15.0, "step": 6}) == 1
        assert found.attempt_of({"time": 15.0, "step": 5}, {}) == 2
        for odd in (
            {},
            {"time": 40.0},
            {"step": 5},
            {"time": "late", "step": 5},
            {"time": 40.0, "step": 5.5},
        ):
            assert found.attempt_of({}, odd) == 1
        found.close()

    def test_without_ships_there_is_one_start_and_no_newest_step(self, tmp_path):
        found = self.of(tmp_path, {"trace_id": "t"})
        assert found.newest_step is None and found.attempt_of({}, {"time": 1.0, "step": 1}) == 1

    def test_what_cannot_be_read_of_a_trace_costs_itself_alone(self, tmp_path):
        places = [
            {"trace_id": "t", "chunk": 7},
            {"trace_id": "t"},
            {"trace_id": "u"},
            {"trace_id": "t", "offset": 3},
        ]
        found = self.of(tmp_path, *places, chunks={0: [{"trace_id": "t", "n": 1}]})
        assert found.of("t") == [{"trace_id": "t", "n": 1}] and found.of("u") == [] == found.of("v")
        assert self.problems.counts == {"annotations_not_read": 2}
        found.close()

    def test_an_episode_is_whole_once_each_producer_spoke_of_it_or_it_is_too_old(self, tmp_path):
        found = self.of(tmp_path, self.ship(1.0, 5), {"trace_id": "s"})
        train, old = RolloutRow(step=4, split="rollout"), RolloutRow(step=3, split="rollout")
        evaluated = RolloutRow(step=5, split="eval-rollout")
        both, one = {"traces": [{"id": "t"}, {"id": "s"}]}, {"traces": [{"id": "t"}, {"id": "x"}]}
        assert found.are_whole(both, [train]) and not found.are_whole(one, [train])
        assert found.are_whole(one, [old, old]) and not found.are_whole(one, [old, train])
        assert found.are_whole(one, [evaluated]) and not found.are_whole(one, [evaluated, train])
