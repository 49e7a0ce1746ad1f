"""What samples of Inspect's logs hold, and archives whose directory states more of a file than the archive holds."""

import io
import json
import struct
import zipfile

import pytest

from rollout_traces.sources.formats import inspect_eval
from rollout_traces.sources.formats.inspect_eval import InspectEval
from rollout_traces.sources.problems import Problems
from tests.sources.reading import SAMPLES, rows_of, runs_of

WHOLE = (SAMPLES / "inspect" / "sums.eval").read_bytes()
_DIRECTORY_ENTRY, _PACKED_SIZE_AT, _NAME_AT = b"PK\x01\x02", 20, 46


def stating_more_than_it_holds(name: str, data: bytes) -> bytes:
    """The archive, its directory saying that a file's packed bytes go on beyond the archive's end."""
    at = data.index(_DIRECTORY_ENTRY)
    while data[at + _NAME_AT :][: len(name)] != name.encode():
        at = data.index(_DIRECTORY_ENTRY, at + 1)
    size = struct.pack("<II", len(data) + 1, len(data) + 1)
    return data[: at + _PACKED_SIZE_AT] + size + data[at + _PACKED_SIZE_AT + len(size) :]


def packed_anew(method: int) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", method) as archive:
        archive.writestr("header.json", '{"eval": {"task": "sums"}}')
        for n in range(3):
            text = f'{{"id": {n}, "epoch": 1, "input": "1+1", "messages": [], "scores": {{}}}}'
            archive.writestr(f"samples/{n}_epoch_1.json", text)
    return packed.getvalue()


ARCHIVES = {
    "zstandard": WHOLE,
    "stored": packed_anew(zipfile.ZIP_STORED),
    "deflated": packed_anew(zipfile.ZIP_DEFLATED),
}


@pytest.mark.parametrize("packing", ARCHIVES)
class TestAFileThatEndsBeforeItsStatedSize:
    def test_the_samples_beside_a_header_are_read(self, tmp_path, packing):
        path = tmp_path / "sums.eval"
        path.write_bytes(ARCHIVES[packing])
        n_whole = len(rows_of(path))
        path.write_bytes(stating_more_than_it_holds("header.json", ARCHIVES[packing]))
        assert len(rows_of(path)) == n_whole

    def test_the_samples_beside_a_sample_are_read_and_it_is_named_where_it_is_lost(self, tmp_path, packing):
        path, problems = tmp_path / "sums.eval", Problems()
        path.write_bytes(ARCHIVES[packing])
        n_whole = len(rows_of(path))
        path.write_bytes(stating_more_than_it_holds("samples/", ARCHIVES[packing]))
        n_lost = n_whole - len(rows_of(path, problems))
        assert [each.kind for each in problems.kept] == ["unreadable_samples"] * n_lost
        assert n_lost == (0 if packing == "deflated" else 1)  # deflated data says itself where it ends


ASKED = {"role": "user", "content": "1+1"}
SAID = {"role": "assistant", "content": "2"}
SAMPLE = {"id": "sum", "epoch": 2, "input": "1+1", "messages": [ASKED, SAID]}


@pytest.fixture
def read(tmp_path):
    """Reads a log of one sample with these values beside the ones that every sample has."""

    def of(problems: Problems | None = None, **more):
        path = tmp_path / "log.json"
        log = {"version": 2, "status": "success", "eval": {"task": "sums", "model": "m"}}
        path.write_text(json.dumps(log | {"samples": [SAMPLE | more]}))
        [row] = rows_of(path, problems)
        return row

    return of


class TestSamples:
    def test_are_of_an_evaluation_and_their_epochs_are_a_group(self, read):
        row = read(target="2", metadata={"level": 3})
        assert (row.step, row.split, row.line, row.messages) == (0, "eval-rollout", 1, [ASKED, SAID])
        assert (row.group, row.prompt_key, row.sample_id) == ("sample sum", "sums-sum", "sum-2")
        assert (row.source, row.ground_truth, row.n_prompt_messages) == ("sums", "2", 1)
        assert row.extras == {"level": 3, "epoch": 2, "model": "m"}
        assert (row.reward, row.components, row.parsed_answer, row.reward_status) == (None, {}, None, None)

    def test_whose_messages_are_not_there_are_their_prompt(self, read):
        row = read(messages=[], input=[ASKED, ASKED])
        assert row.messages == [ASKED, ASKED] and row.n_prompt_messages == 2
        assert read(messages=None, input=None).messages is None

    def test_are_scored_by_grades_numbers_and_truths(self, read):
        scores = {
            "match": {"value": "C", "answer": None, "explanation": "x" * 2000},
            "partly": {"value": "P", "answer": "2"},
            "number": {"value": 0.25, "answer": "3"},
            "truth": {"value": False, "explanation": 7},
            "other": {"value": "good"},
            "none": 3,
        }
        row = read(scores=scores)
        assert row.components == {"match": 1.0, "partly": 0.5, "number": 0.25, "truth": 0.0}
        assert row.reward == 1.0 and row.parsed_answer == "2"
        explained = {name: text for name, text in row.extras.items() if name.startswith("explanation/")}
        assert explained == {"explanation/match": "x" * 1000}
        assert read(scores={"match": {"value": "I"}}).reward == 0.0

    def test_stop_for_their_limit_else_for_what_the_model_says(self, read):
        def output(reason):
            return {"choices": [{"stop_reason": reason}, {"stop_reason": "other"}]}

        assert read(output=output("max_tokens")).stop_reason == "length"
        assert read(output=output("model_length")).stop_reason == "length"
        assert read(output=output("stop")).stop_reason == "stop"
        assert read(output=output("stop"), limit={"type": "time"}).stop_reason == "time"
        assert read(output=output("stop"), limit={"limit": 3}).stop_reason == "stop"
        assert read(output={"choices": []}).stop_reason is None and read(output=None).stop_reason is None
        assert read(output={"choices": ["x"]}).stop_reason is None

    def test_took_as_long_as_they_say(self, read):
        assert read(total_time=2, working_time=1.5).timings == {"total": 2.0, "working": 1.5}
        assert read(total_time="long", working_time=None).timings is None

    def test_that_failed_say_so(self, read):
        assert read(error={"message": "no"}).reward_status == "error"


class TestLogs:
    def test_without_samples_are_told_of(self, tmp_path):
        path, problems = tmp_path / "log.json", Problems()
        path.write_text(json.dumps({"version": 2, "status": "error", "eval": {}, "samples": []}))
        assert rows_of(path, problems) == [] and problems.counts == {"logs_without_samples": 1}
        with zipfile.ZipFile(tmp_path / "log.eval", "w") as archive:
            archive.writestr("header.json", "{}")
        assert rows_of(tmp_path / "log.eval", problems) == []
        assert problems.counts == {"logs_without_samples": 2}

    def test_of_samples_that_are_none_or_damaged_give_the_others(self, tmp_path):
        path, problems = tmp_path / "log.eval", Problems()
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("_journal/start.json", '{"eval": {"task": "sums"}}')
            archive.writestr("samples/a.json", "[1]")
            archive.writestr("samples/b.json", "{")
            archive.writestr("samples/c.json", json.dumps(SAMPLE))
        [row] = rows_of(path, problems)
        assert (row.line, row.source) == (3, "sums")
        assert problems.counts == {"unreadable_samples": 1}

    def test_a_sample_that_unpacks_to_far_more_is_a_bomb(self, tmp_path, monkeypatch):
        monkeypatch.setattr(inspect_eval, "SMALL", 1000)
        path, problems = tmp_path / "log.eval", Problems()
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("samples/a.json", json.dumps(SAMPLE | {"target": "x" * 2_000_000}))
            archive.writestr("samples/b.json", json.dumps(SAMPLE | {"target": "x" * 900}))
        assert [row.line for row in rows_of(path, problems)] == [2]
        assert problems.counts == {"bombs": 1} and "taken for a bomb" in str(problems.kept[0])

    def test_are_claimed_by_what_they_begin_with(self, tmp_path):
        log = {"version": 2, "status": "success", "eval": {}}

        def claim(name: str, content: bytes):
            (tmp_path / name).write_bytes(content)
            found = [file for run in runs_of(tmp_path / name) for file in run.files]
            return found[0].claim if found and isinstance(found[0].format, InspectEval) else None

        assert claim("a.eval", WHOLE).root.name == "a" and claim("b.eval", b"PK\x05\x06" + bytes(18)) is None
        assert claim("a.zip", WHOLE) is None
        whole = claim("a.json", json.dumps(log).encode())
        assert (whole.root.name, whole.step, whole.split) == ("a", 0, "eval-rollout")
        for missing in log:
            part = {key: value for key, value in log.items() if key != missing}
            assert claim(f"{missing}.json", json.dumps(part).encode()) is None
