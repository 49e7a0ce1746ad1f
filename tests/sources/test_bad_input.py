"""Whatever became of a dump, the rest of it is read, and one sentence says what was not and where."""

from __future__ import annotations

import copy
import gzip
import json
import pickle
import random
import re
import secrets
import shutil
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import rollout_traces as rt
from rollout_traces.errors import ConfigError
from rollout_traces.sources import lines as line_module
from rollout_traces.sources.base import HEAD, Head
from rollout_traces.sources.formats.chat_jsonl import ChatJsonl
from rollout_traces.sources.importing import import_rollouts
from rollout_traces.sources.problems import Problems
from tests.sources.reading import SAMPLES, rows_of, runs_of

ROW = {"input": "q", "output": "a", "gts": "1", "score": 1.0, "step": 1}


def verl_file(folder: Path, *raw: str, name: str = "1.jsonl") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text("".join(raw))
    return path


def line(**changes: object) -> str:
    return json.dumps(ROW | changes) + "\n"


class TestWhatAFileLacks:
    def test_is_what_none_of_its_first_records_has(self, tmp_path):
        rows = [{"prompt": "q", "response": "a"}, {"prompt": "q", "response": "b", "reward": 1.0, "step": 3}]
        (tmp_path / "dump.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        (tmp_path / "array.json").write_text(json.dumps(rows))
        for name in ("dump.jsonl", "array.json"):
            claim = ChatJsonl().claim(Head(tmp_path / name))
            assert claim is not None
            assert tuple(claim.lacks) == (
                "token ids",
                "loss mask",
                "logprobs",
                "groups (equal prompts are one)",
            )

    def test_is_not_known_of_a_first_record_that_is_longer_than_what_is_looked_at(self, tmp_path):
        long = {"prompt": "q", "response": "a" * HEAD, "reward": 1.0, "step": 3}
        (tmp_path / "dump.jsonl").write_text(json.dumps(long) + "\n")
        claim = ChatJsonl().claim(Head(tmp_path / "dump.jsonl"))
        assert claim is not None and tuple(claim.lacks) == ("token ids", "loss mask", "logprobs")


class TestLines:
    def test_a_cut_last_line_is_left_for_later(self, tmp_path):
        path = verl_file(tmp_path, line(), line(), line()[:20])
        problems = Problems()
        assert len(rows_of(path, problems)) == 2
        [problem] = problems.kept
        assert (problem.kind, problem.line) == ("unfinished_lines", 3)
        assert str(problem).startswith(f"{path}:3: ")

    def test_a_broken_line_in_the_middle_costs_itself_alone(self, tmp_path):
        path = verl_file(tmp_path, line(), "{broken\n", "[1, 2]\n", line(), "\n", line())
        problems = Problems()
        assert [row.line for row in rows_of(path, problems)] == [1, 4, 6]
        assert problems.counts == {"broken_lines": 2}

    def test_an_overlong_line_is_never_in_memory_and_costs_itself_alone(self, tmp_path, monkeypatch):
        monkeypatch.setattr(line_module, "MAX_LINE", 1000)
        path = verl_file(tmp_path, line(), line(output="x" * 5000), line())
        problems = Problems()
        assert [row.line for row in rows_of(path, problems)] == [1, 3]
        assert problems.counts == {"overlong_lines": 1}

    def test_python_s_nan_is_read(self, tmp_path):
        [row] = rows_of(verl_file(tmp_path, line(score=float("nan"))))
        assert row.reward != row.reward

    def test_text_where_a_number_belongs_is_unknown(self, tmp_path):
        [row] = rows_of(verl_file(tmp_path, line(score="high")))
        assert row.reward is None

    def test_a_gzip_file_that_grows_without_end_is_given_up(self, tmp_path, monkeypatch):
        monkeypatch.setattr(line_module, "MAX_LINE", 10_000)
        path = tmp_path / "1.jsonl.gz"
        with gzip.open(path, "wt") as file:
            file.write(line())
            for _ in range(5000):
                file.write(" " * 9_000 + "\n")
        problems = Problems()
        assert len(rows_of(path, problems)) == 1
        assert problems.counts == {"bombs": 1}

    def test_a_line_that_grows_without_end_is_unpacked_no_further_than_the_bound(self, tmp_path, monkeypatch):
        monkeypatch.setattr(line_module, "MAX_LINE", 10_000)
        path = tmp_path / "1.jsonl.gz"
        with gzip.open(path, "wt") as file:
            file.write(line())
            for _ in range(40):
                file.write(" " * (1 << 20))
        problems = Problems()
        assert len(rows_of(path, problems)) == 1
        assert problems.counts == {"bombs": 1, "overlong_lines": 1}
        read = int(re.search(r"a line of ([\d,]+) bytes", str(problems.kept[0]))[1].replace(",", ""))
        assert read <= path.stat().st_size * line_module.MOST_RATIO + 10_000 + (2 << 20)

    def test_a_line_of_another_tool_in_verls_file_is_no_rollout(self, tmp_path):
        path = verl_file(tmp_path, line(), '{"foo": 1}\n', line())
        problems = Problems()
        assert [row.line for row in rows_of(path, problems)] == [1, 3]
        assert str(problems.kept[0]).startswith(f"{path}:2: has foo. Expected input, output and score")


class TestFolders:
    def test_an_empty_folder_and_one_without_rollouts_are_named(self, tmp_path):
        problems = Problems()
        assert runs_of(tmp_path, problems) == []
        assert "is empty" in str(problems.kept[0])
        (tmp_path / "notes.csv").write_text("a,b\n")
        problems = Problems()
        assert runs_of(tmp_path, problems) == []
        assert "holds a file and no rollouts" in str(problems.kept[0])

    @pytest.mark.parametrize(
        ("content", "why"),
        [
            (line().encode("utf-16"), "1.jsonl is of no format that is known"),
            (b"", "1.jsonl is empty"),
            (
                json.dumps({"prompt": "x" * 300_000, "response": "a"}).encode(),
                "begins with a record above 262,144 bytes",
            ),
        ],
        ids=["UTF-16", "empty", "long"],
    )
    def test_a_folder_without_rollouts_says_what_its_first_file_is(self, tmp_path, content, why):
        path = verl_file(tmp_path / "some")
        path.write_bytes(content)
        problems = Problems()
        assert runs_of(tmp_path, problems) == []
        assert why in str(problems.kept[0])

    def test_a_packed_file_of_which_nothing_can_be_unpacked_is_not_called_empty(self, tmp_path):
        (tmp_path / "1.jsonl.gz").write_bytes(gzip.compress(line().encode())[:10])
        problems = Problems()
        assert runs_of(tmp_path, problems) == []
        assert "1.jsonl.gz cannot be unpacked" in str(problems.kept[0])

    def test_utf_16_among_files_that_are_read_is_said(self, tmp_path):
        verl_file(tmp_path, line(), name="1.jsonl")
        verl_file(tmp_path, name="2.jsonl").write_bytes(line().encode("utf-16"))
        problems = Problems()
        assert len(rows_of(tmp_path, problems)) == 1
        assert "2.jsonl: is passed over" in str(problems.kept[0])

    def test_a_path_that_is_not_there_is_refused(self, tmp_path):
        with pytest.raises(ConfigError, match="no such file"):
            runs_of(tmp_path / "nothing")

    def test_links_in_a_circle_are_walked_once(self, tmp_path):
        verl_file(tmp_path / "run/rollout_data", line())
        (tmp_path / "run/rollout_data/again").symlink_to(tmp_path / "run", target_is_directory=True)
        (tmp_path / "run/broken").symlink_to(tmp_path / "nowhere")
        problems = Problems()
        assert len(rows_of(tmp_path, problems)) == 1
        assert problems.counts == {"unreadable_files": 1}

    def test_two_runs_in_one_folder_stay_two_and_have_names_that_differ(self, tmp_path):
        for name in ("a", "b"):
            verl_file(tmp_path / name / "rollout_data", line())
        assert [run.name for run in runs_of(tmp_path)] == ["a", "b"]
        verl_file(tmp_path / "x/a/rollout_data", line())
        assert {run.name for run in runs_of(tmp_path)} == {f"{tmp_path.name}/a", "b", "x/a"}

    def test_versions_of_a_format_may_be_mixed(self, tmp_path):
        verl_file(tmp_path, line(), name="1.jsonl")
        verl_file(tmp_path, line(step=2, uid="p_0_0"), name="2.jsonl")
        [run] = runs_of(tmp_path)
        assert [row.group for row in rows_of(tmp_path)] == [None, "p"]
        assert any(each.endswith("(equal prompts are one)") for each in run.lacks)

    def test_a_wrong_ending_does_not_hide_a_format(self, tmp_path):
        verl_file(tmp_path, line(), name="dump.txtl")
        assert len(rows_of(tmp_path)) == 1

    def test_steps_come_in_the_order_of_numbers(self, tmp_path):
        for step in (10, 9, 100):
            verl_file(tmp_path, line(step=step), name=f"{step}.jsonl")
        assert [row.step for row in rows_of(tmp_path)] == [9, 10, 100]


class Harmful:
    def __reduce__(self):
        return (Path.write_text, (Path("harmed"), "harm"))


class TestFilesThatCouldRunCode:
    def test_a_pickle_is_refused_with_the_reason(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        path = tmp_path / "global_step_3_training_input.pkl"
        path.write_bytes(pickle.dumps(Harmful()))
        problems = Problems()
        assert rows_of(path, problems) == []
        assert problems.counts == {"pickles_refused": 1}
        assert "--trust-pickle" in str(problems.kept[0])
        assert not (tmp_path / "harmed").exists()

    def test_a_torch_file_that_holds_more_than_values_is_refused(self, tmp_path, monkeypatch):
        import torch

        monkeypatch.chdir(tmp_path)
        path = tmp_path / "3.pt"
        torch.save({"rollout_id": 3, "samples": [Harmful()]}, path)
        problems = Problems()
        assert rows_of(path, problems) == []
        assert problems.counts == {"pickles_refused": 1}
        assert not (tmp_path / "harmed").exists()


class TestArchives:
    def test_a_sample_that_unpacks_without_measure_is_passed_over(self, tmp_path):
        path = tmp_path / "bomb.eval"
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("samples/a_epoch_1.json", b'{"x": "' + b"0" * (20 << 20) + b'"}')
            archive.writestr("samples/b_epoch_1.json", json.dumps({"id": "b", "epoch": 1, "messages": []}))
        problems = Problems()
        assert [row.sample_id for row in rows_of(path, problems)] == ["b-1"]
        assert problems.counts == {"bombs": 1}

    def test_an_inspect_log_without_samples_is_said(self, tmp_path):
        with zipfile.ZipFile(tmp_path / "failed.eval", "w") as archive:
            archive.writestr("header.json", json.dumps({"eval": {"task": "sums"}}))
        log = {"version": 2, "status": "error", "eval": {"task": "sums"}}
        (tmp_path / "failed.json").write_text(json.dumps(log))
        for name in ("failed.eval", "failed.json"):
            problems = Problems()
            assert rows_of(tmp_path / name, problems) == []
            assert problems.counts == {"logs_without_samples": 1}
            assert "holds no samples" in problems.kept[0].text

    def test_a_cut_archive_is_named(self, tmp_path):
        path = tmp_path / "cut.eval"
        path.write_bytes((SAMPLES / "inspect/sums.eval").read_bytes()[:5000])
        problems = Problems()
        assert rows_of(path, problems) == []
        assert problems.counts == {"unreadable_files": 1}

    def test_a_cut_parquet_file_is_named(self, tmp_path):
        source = SAMPLES / "trl/completions/completions_00001.parquet"
        (tmp_path / source.name).write_bytes(source.read_bytes()[:3000])
        problems = Problems()
        assert rows_of(tmp_path, problems) == []
        assert problems.counts["unreadable_files"] == 1

    def test_a_parquet_file_of_trl_whose_rows_are_a_thousand_times_its_size_is_a_bomb(self, tmp_path):
        n = 600_000
        table = {"step": [1] * n, "prompt": ["q" * 200] * n, "completion": ["a"] * n, "right": [1.0] * n}
        pq.write_table(pa.table(table), tmp_path / "completions_00001.parquet", compression="zstd")
        problems = Problems()
        assert rows_of(tmp_path, problems) == []
        assert "taken for a bomb" in str(problems.kept[-1])


class TestVerifiersTrees:
    @pytest.mark.parametrize("parents", [[1, 0], [5], ["x"], [-1]])
    def test_a_tree_that_is_none_costs_its_episode_alone(self, tmp_path, parents):
        nodes = [{"parent": p, "message": {"role": "user", "content": "q"}} for p in parents]
        good = {"parent": None, "message": {"role": "user", "content": "q"}}
        trace = {"id": "t", "nodes": nodes}
        with (tmp_path / "traces.jsonl").open("w") as file:
            for one in (trace, {"id": "u", "nodes": [good]}):
                file.write(json.dumps({"id": "e", "env": {"id": "x"}, "task": {}, "traces": [one]}) + "\n")
        problems = Problems()
        assert [row.sample_id for row in rows_of(tmp_path, problems)] == ["u"]
        assert problems.counts == {"rows_refused": 1}


RECORDS = sorted(
    path.relative_to(SAMPLES) for path in SAMPLES.rglob("*.jsonl") if "annotations" not in path.parts
)


OBJECTS = sorted(
    path.relative_to(SAMPLES)
    for pattern in ("atif/**/trajectory.json", "rllm/**/episode_*.json")
    for path in SAMPLES.glob(pattern)
)
FILES = sorted(
    path.relative_to(SAMPLES)
    for path in SAMPLES.rglob("*")
    if path.is_file() and path.suffix not in (".pkl", ".pt") and "trl-trackio" not in path.parts
)
ODD = [None, [], {}, "x", -1, float("nan"), True, 1e308, 2**70, [[[]]], {"a": "b"}, ["x"], [None], "\ud800"]


def places(value: object, at: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Where something stands in a record, of lists in their first three items."""
    inner = (
        value.items() if isinstance(value, dict) else enumerate(value[:3]) if isinstance(value, list) else ()
    )
    for key, item in inner:
        yield (*at, key)
        yield from places(item, (*at, key))


def with_odd(record: dict, place: tuple[str | int, ...], odd: object) -> dict:
    """A record with something odd in one place."""
    changed = inner = copy.deepcopy(record)
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = odd
    return changed


class TestEveryReader:
    @pytest.mark.parametrize("sample", RECORDS, ids=str)
    def test_whatever_stands_under_a_key_the_records_around_it_are_read(self, tmp_path, sample):
        shutil.copytree(SAMPLES / sample.parts[0], tmp_path / sample.parts[0])
        path = tmp_path / sample
        first = path.read_text().split("\n", 1)[0]
        path.write_text(f"{first}\n")
        n = len(rows_of(path))
        for key in (record := json.loads(first)):
            odd = [
                {**record, key: value}
                for value in (None, [], {}, "x", -1, float("inf"), True, [[[]]], {"a": "b"})
            ]
            path.write_text("".join(json.dumps(each) + "\n" for each in (record, *odd, record)))
            assert len(rows_of(path)) >= n, key

    @pytest.mark.parametrize("sample", [*RECORDS, *OBJECTS], ids=str)
    def test_whatever_stands_deep_in_a_record_costs_it_alone_and_is_said(self, tmp_path, sample):
        seed = secrets.randbelow(10**6)
        drawn = random.Random(seed)
        shutil.copytree(SAMPLES / sample.parts[0], tmp_path / sample.parts[0])
        path, around = tmp_path / sample, tmp_path / sample.parts[0]
        one_a_line = sample.suffix == ".jsonl"
        texts = path.read_text().splitlines() if one_a_line else [path.read_text()]
        first, last = json.loads(texts[0]), json.loads(texts[-1])
        deep = [place for place in places(first) if len(place) > 1]
        n_whole = len(rows_of(around))
        n_around = n_whole - len(rows_of(path))
        if one_a_line:
            path.write_text("".join(json.dumps(each) + "\n" for each in (first, first, last)))
            n_whole = len(rows_of(path))
            path.write_text("".join(json.dumps(each) + "\n" for each in (first, last)))
            n_around = len(rows_of(path))
        for place, odd in [(drawn.choice(deep), drawn.choice(ODD)) for _ in range(40 if deep else 0)]:
            told = f"seed {seed}: {odd!r} at {place}"
            written = with_odd(first, place, odd)
            records = (first, written, last) if one_a_line else (written,)
            path.write_text("".join(json.dumps(each) + "\n" for each in records))
            problems = Problems()
            rows = rows_of(path if one_a_line else around, problems)
            if sample.parts[0] == "tinker-capture":  # calls of one trajectory are one rollout
                assert rows or problems.kept, told
            else:
                assert len(rows) >= n_around, told
            if len(rows) < n_whole:
                assert problems.kept, told

    @pytest.mark.parametrize("sample", FILES, ids=str)
    def test_wherever_a_file_is_damaged_the_files_around_it_are_read(self, tmp_path, sample):
        seed = secrets.randbelow(10**6)
        drawn = random.Random(seed)
        around = tmp_path / sample.parts[0]
        shutil.copytree(SAMPLES / sample.parts[0], around)
        path, data = tmp_path / sample, (SAMPLES / sample).read_bytes()
        path.unlink()
        n_around = len(rows_of(around))
        for at in [drawn.randrange(len(data)) for _ in range(8)]:
            for behind in (b"", bytes([drawn.randrange(256)]) + data[at + 1 :]):
                path.write_bytes(data[:at] + behind)
                assert len(rows_of(around)) >= n_around, f"seed {seed}: byte {at} of {len(data)}"

    def test_a_file_whose_beginning_is_damaged_is_named_among_its_siblings(self, tmp_path):
        verl_file(tmp_path, line())
        damaged = verl_file(tmp_path, line()[:8], name="2.jsonl")
        problems = Problems()
        assert len(rows_of(tmp_path, problems)) == 1
        [problem] = problems.kept
        assert (problem.path, problem.kind) == (damaged, "files_not_recognised")

    def test_a_damaged_file_of_trl_costs_the_next_one_nothing(self, tmp_path):
        shutil.copytree(SAMPLES / "trl", tmp_path / "trl")
        path = tmp_path / "trl/completions/completions_00001.parquet"
        n = len(rows_of(path.with_name("completions_00002.parquet")))
        path.write_bytes(path.read_bytes()[:500])
        problems = Problems()
        assert len(rows_of(tmp_path, problems)) == n > 0
        assert {p.path for p in problems.kept if p.kind != "splits_not_told"} == {path}

    def test_calls_before_the_context_was_rewritten_are_counted(self, tmp_path):
        text = (SAMPLES / "nemo-gym/workplace_assistant_rollouts.jsonl").read_text().splitlines()[0]
        record = json.loads(text)
        calls = [([1, 2], [3]), ([1, 2, 3, 4], [5]), ([9], [8])]
        record["response"]["output"] = [
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "a"}]}
            | {"prompt_token_ids": prompt, "generation_token_ids": written}
            for prompt, written in calls
        ]
        path = tmp_path / "rollouts.jsonl"
        path.write_text(json.dumps(record) + "\n")
        problems = Problems()
        [row] = rows_of(path, problems)
        assert list(row.input_ids) == [9, 8]
        [problem] = [each for each in problems.kept if each.kind == "calls_left_out"]
        assert problem.line == 1 and "2 of the model's calls" in str(problem)

    def test_a_mark_of_utf_8_before_an_object_is_no_damage(self, tmp_path):
        shutil.copytree(SAMPLES / "atif", tmp_path / "atif")
        for path in (tmp_path / "atif").rglob("trajectory.json"):
            path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
        assert len(rows_of(tmp_path / "atif")) == 2


class TestAnImport:
    """Values that a reader passes on, and that make no batch."""

    @pytest.mark.parametrize(
        ("sample", "place", "value"),
        [
            ("atropos/groups.jsonl", ("tokens", 0, 0), "x"),
            ("atropos/groups.jsonl", ("tokens", 0, 0), 7.5),
            ("atropos/groups.jsonl", ("tokens", 0, 0), float("inf")),
            ("atropos/groups.jsonl", ("inference_logprobs", 0), "long"),
            ("tinker-capture/lines/capture/sample.jsonl", ("scope", "iteration"), "x"),
            ("tinker-capture/lines/capture/sample.jsonl", ("scope", "run_id"), 7),
            ("tinker-capture/lines/capture/sample.jsonl", ("prompt_tokens", 0), {}),
        ],
    )
    def test_what_makes_no_batch_costs_its_rollout_alone(self, tmp_path, trackio_dir, sample, place, value):
        lines = (SAMPLES / sample).read_text().splitlines()
        path = tmp_path / "run" / Path(sample).name
        path.parent.mkdir()
        path.write_text("".join(f"{text}\n" for text in lines))
        rows = rows_of(path)
        odd = json.loads(lines[0])
        inner = odd
        for key in place[:-1]:
            inner = inner[key]
        inner[place[-1]] = ["x"] * len(inner[place[-1]]) if value == "long" else value
        path.write_text("".join(f"{text}\n" for text in (json.dumps(odd), *lines[1:])))
        report = import_rollouts(path.parent, "odd", worker="thread")
        assert report.problems.counts["rows_refused"] == 1
        assert report.rows >= len(rows) - 1
        assert all(run.stored for run in report.runs)
        stored = rt.open_store(project="odd").query(rows="all", limit=100).rows
        assert len(stored) == report.rows
