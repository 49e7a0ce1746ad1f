"""An import gives a project like one that was logged live, takes only what is new, and says what it did not take."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import numpy as np
import pytest

import rollout_traces as rt
from rollout_traces.errors import ConfigError, NotWritten
from rollout_traces.model.batch import RolloutBatch
from rollout_traces.sources.importing import import_rollouts
from rollout_traces.sources.state import ImportState
from tests.generator import tiny_tokenizer
from tests.sources.reading import SAMPLES, rows_of

pytestmark = pytest.mark.usefixtures("trackio_dir")


@pytest.fixture
def dump(tmp_path: Path) -> Path:
    folder = tmp_path / "dump"
    folder.mkdir()
    return folder


def take(source, **options):
    return import_rollouts(source, "imported", worker="thread", **options)


def write_steps(folder: Path, *steps: int, rows: int = 4) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for step in steps:
        with (folder / f"{step}.jsonl").open("w") as file:
            for n in range(rows):
                answer = "Error: none" if n else f"<think>hm</think>Answer {n} of {step}"
                row = {
                    "input": f"Question {n // 2}",
                    "output": answer,
                    "gts": "1",
                    "score": n % 2,
                    "step": step,
                }
                file.write(json.dumps(row) + "\n")


def ledger_of(run: str | None = None):
    store = rt.open_store(project="imported")
    return store.ledger(run=run or store.runs()[0].id)


class TestTextAlone:
    def test_every_row_is_in_the_ledger_and_a_trace_by_default(self, dump):
        write_steps(dump / "run-1", 1, 2)
        report = take(dump / "run-1")
        assert (report.rows, report.runs[0].steps, report.runs[0].stored) == (8, 2, True)
        store = rt.open_store(project="imported")
        [run] = store.runs()
        assert (run.name, run.n_rollouts, run.n_traces) == ("run-1", 8, 8)
        first = next(row for row in store.query(order_by="step, group, sample").rows)
        assert first["ids_from"] == "unobserved" and first["n_tokens"] is None
        assert store.transcript(first.id).turns[1].thinking == "hm"
        assert store.config(run.id)["imported"]["lacks"]

    def test_equal_prompts_are_a_group_and_the_same_in_every_step(self, dump):
        write_steps(dump, 1, 2)
        take(dump)
        ledger = ledger_of()
        keys = ledger.get("prompt_key").reshape(2, 4)
        assert keys[0].tolist() == keys[1].tolist()
        assert len(set(keys[0].tolist())) == 2

    def test_a_cap_keeps_the_ledger_whole(self, dump):
        write_steps(dump, 1, rows=20)
        take(dump, max_traces_per_step=5, selection="random")
        [run] = rt.open_store(project="imported").runs()
        assert (run.n_rollouts, run.n_traces) == (20, 5)

    def test_a_tokenizer_re_encodes_and_every_trace_says_so(self, dump):
        write_steps(dump, 1)
        report = take(dump, tokenizer=tiny_tokenizer("qwen3"))
        assert report.runs[0].rows_re_encoded == 4
        store = rt.open_store(project="imported")
        rows = store.query().rows
        assert {row["ids_from"] for row in rows} == {"re-encoded"}
        assert all(row["n_sampled"] > 0 for row in rows)
        transcript = store.transcript(rows[0].id)
        assert [turn.role for turn in transcript.turns] == ["user", "assistant"]
        sampled = transcript.tokens.response_mask
        assert not sampled[: transcript.turns[1].body_start].any() and sampled.any()


class TestOnlyWhatIsNew:
    def test_a_second_import_takes_nothing_and_a_third_what_was_added(self, dump):
        write_steps(dump, 1, 2)
        assert take(dump).rows == 8
        again = take(dump)
        assert (again.rows, again.runs[0].files_known) == (0, 2)
        write_steps(dump, 3)
        assert take(dump).rows == 4
        assert sorted(set(ledger_of().get("step").tolist())) == [1, 2, 3]
        assert ledger_of().n_rows == 12

    def test_what_was_deleted_in_trackio_is_imported_again(self, dump, trackio_dir):
        write_steps(dump, 1)
        take(dump)
        for path in trackio_dir.glob("imported*"):
            path.unlink()
        assert take(dump).rows == 4

    def test_a_broken_line_is_counted_and_the_rest_is_stored(self, dump):
        write_steps(dump, 1)
        with (dump / "1.jsonl").open("a") as file:
            file.write("{broken\n")
        report = take(dump)
        assert report.rows == 4
        assert report.problems.counts == {"broken_lines": 1}
        assert str(report.problems.kept[0]).startswith(f"{dump / '1.jsonl'}:5: ")


class TestWithTokens:
    def test_what_is_stored_is_what_the_dump_holds(self):
        """Float tracks have the precision of a trace, float16; ids and masks are exact."""
        take(SAMPLES / "verifiers", tokenizer=tiny_tokenizer("qwen3"))
        store = rt.open_store(project="imported")
        stored = {tuple(t.tokens.input_ids.tolist()): t for t in map(store.transcript, _ids(store))}
        rows = rows_of(SAMPLES / "verifiers/traces.jsonl")
        assert len(rows) == 6
        for row in rows:
            tokens = stored[tuple(row.input_ids)].tokens
            assert tokens.response_mask.tolist() == row.response_mask
            assert tokens.loss_mask.tolist() == row.loss_mask
            given = np.asarray([np.nan if v is None else v for v in row.tracks["logprobs"]], np.float16)
            np.testing.assert_array_equal(tokens.tracks["logprobs"], given.astype(np.float32))

    def test_episodes_and_parents_are_in_the_ledger(self):
        take(SAMPLES / "verifiers")
        ledger = ledger_of()
        assert len(set(ledger.get("episode").tolist())) == 4
        assert sum(parent is not None for parent in ledger.get("parent").tolist()) == 2
        assert (ledger.get("n_sampled") > 0).all()

    def test_without_a_tokenizer_the_conversation_is_shown_and_the_numbers_are_there(self):
        take(SAMPLES / "verifiers")
        store = rt.open_store(project="imported")
        row = store.query(order_by="sample").rows[0]
        assert row["n_tokens"] and row["n_sampled"] and row["ids_from"] is None
        transcript = store.transcript(row.id)
        assert transcript.turns[0].content and "without a tokenizer" in transcript.warnings[0]

    def test_a_tokenizer_that_does_not_fit_is_said_with_the_share_of_unknown_ids(self, dump):
        with (dump / "train_data_step1.jsonl").open("w") as file:
            ids = [1, 2, 900_000, 900_001]
            row = {"content": [["q", "a"]], "rewards": [1.0], "input_lengths": [4], "token_ids": [ids]}
            file.write(json.dumps(row | {"token_loss_mask": [[0, 0, 1, 1]], "idx": 0}) + "\n")
        report = take(dump, tokenizer=tiny_tokenizer("qwen3"))
        assert report.problems.counts == {"tokenizers_that_do_not_fit": 1}
        assert "50.0%" in str(report.problems.kept[0])


class TestIterators:
    def test_batches_messages_and_rows_are_taken(self):
        batch = RolloutBatch.from_messages([[{"role": "user", "content": "q"}]], rewards=[1.0])
        chat = {"messages": [{"role": "user", "content": "q"}], "reward": 0.5, "step": 3, "colour": "red"}
        report = take(iter([(1, batch), (2, "eval-rollout", batch), chat]), name="mine")
        assert report.rows == 3
        store = rt.open_store(project="imported")
        assert sorted((row.step, row.split) for row in store.query().rows) == [
            (1, "rollout"),
            (2, "eval-rollout"),
            (3, "rollout"),
        ]

    def test_something_else_is_refused_by_name(self):
        with pytest.raises(ConfigError, match="seen int"):
            take(7)


class TestOtherRuns:
    def test_an_import_never_writes_into_the_run_of_this_process(self, dump):
        import trackio

        write_steps(dump, 1)
        trackio.init(project="training", name="live", embed=False)
        try:
            with pytest.raises(ConfigError, match="Finish it first"):
                take(dump)
        finally:
            trackio.finish()


def _ids(store) -> list[str]:
    return [row.id for row in store.query().rows]


STOPPED = """
import os, sys
import rollout_traces.sources.base as base
inner, seen = base.json_lines, [0]
def lines(*args, **options):
    for line in inner(*args, **options):
        seen[0] += 1
        if seen[0] == int(sys.argv[2]):
            os._exit(9)
        yield line
base.json_lines = lines
from rollout_traces.sources.importing import import_rollouts
import_rollouts(sys.argv[1], "imported")
"""


class TestStopped:
    def test_an_import_that_was_killed_goes_on_and_every_step_is_there_once(self, dump):
        import subprocess
        import sys

        write_steps(dump, 1, 2, 3, 4)
        for at in (10, 7):
            ended = subprocess.run([sys.executable, "-c", STOPPED, str(dump), str(at)], capture_output=True)
            assert ended.returncode == 9
        report = take(dump)
        assert report.runs[0].files_known > 0
        [run] = rt.open_store(project="imported").runs()
        steps = rt.open_store(project="imported").ledger(run=run.id).get("step").tolist()
        assert {step: steps.count(step) for step in set(steps)} == {1: 4, 2: 4, 3: 4, 4: 4}


@pytest.mark.parametrize("fails_at", ["keep", "is_new"])
def test_a_full_disk_is_one_sentence_and_the_next_import_takes_what_is_left(dump, monkeypatch, fails_at):
    """Seen once: a traceback, and rollouts that had been taken were dropped because nothing was finished."""
    write_steps(dump / "run", 1, 2, 3)

    def full(*_args, **_options):
        raise sqlite3.OperationalError("database or disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(ImportState, fails_at, full)
        with pytest.raises(
            NotWritten, match=r"'imported' cannot be written: database or disk is full\. Make room"
        ):
            take(dump / "run")
    take(dump / "run")
    ledger = ledger_of()
    assert sorted(ledger.get("step").tolist()) == [1] * 4 + [2] * 4 + [3] * 4


def test_two_imports_into_a_run_at_once_are_one_too_many_and_the_second_takes_what_is_left(dump):
    import subprocess
    import sys

    write_steps(dump, 1, 2)
    take(dump, name="r")
    write_steps(dump, 3, 4)
    code = "import sys, rollout_traces as rt; rt.import_rollouts(sys.argv[1], 'imported', name='r')"
    both = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(dump)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        for _ in range(2)
    ]
    said = [process.communicate()[0].decode() for process in both]
    assert 0 in [process.returncode for process in both]
    assert all(
        p.returncode == 0 or "another import writes to it now" in t for p, t in zip(both, said, strict=True)
    )
    take(dump, name="r")
    [run] = rt.open_store(project="imported").runs()
    assert run.n_rollouts == 16
    assert len(rt.open_store(project="imported").query(where="superseded = 0", limit=100).rows) == 16


class TestFollowing:
    def test_what_is_added_while_it_is_followed_is_imported_and_the_open_step_is_closed_at_the_end(
        self, dump, monkeypatch
    ):
        from rollout_traces.sources import importing

        write_steps(dump, 1)
        looks = []

        def pause(seconds: float) -> None:
            looks.append(seconds)
            if len(looks) == 1:
                with (dump / "1.jsonl").open("a") as file:
                    file.write(json.dumps({"input": "late", "output": "a", "score": 1, "step": 1}) + "\n")
                write_steps(dump, 2)
            elif len(looks) == 3:
                raise KeyboardInterrupt

        monkeypatch.setattr(importing, "pause", pause)
        report = take(dump, follow=True, quiet_s=3600.0)
        assert report.problems.counts == {"stopped": 1}
        assert (report.rows, report.runs[0].steps) == (9, 2)
        steps = ledger_of().get("step").tolist()
        assert (steps.count(1), steps.count(2)) == (5, 4)
        assert take(dump).rows == 0


def chat_line(n: int, step: int, **changes: object) -> str:
    messages = [{"role": "user", "content": f"q{n // 2}"}, {"role": "assistant", "content": f"a{n}"}]
    return json.dumps({"messages": messages, "step": step, "reward": n % 2, **changes}) + "\n"


IN_ANOTHER_PROCESS = """
import sys
from rollout_traces.sources.importing import import_rollouts
print(import_rollouts(sys.argv[1], "imported").rows)
"""


class TestEachRolloutOnce:
    """However often a dump is read, in one process or two, grown, renamed, sealed or written anew."""

    @pytest.fixture(params=["one process", "two"])
    def again(self, request):
        import subprocess
        import sys

        if request.param == "one process":
            return lambda dump: take(dump).rows
        return lambda dump: int(
            subprocess.run(
                [sys.executable, "-c", IN_ANOTHER_PROCESS, str(dump)],
                capture_output=True,
                check=True,
                text=True,
            ).stdout.splitlines()[-1]
        )

    def rewards(self):
        store = rt.open_store(project="imported")
        rows = store.query(limit=1000).rows
        assert not any(row["superseded"] for row in rows)
        assert store.count(rows="all") == len(rows)
        return sorted((row.step, row["reward"]) for row in rows)

    def test_a_file_that_grew_within_its_last_step(self, dump, again):
        path = dump / "chat.jsonl"
        path.write_text("".join(chat_line(n, 1) for n in range(8)))
        assert take(dump).rows == 8
        with path.open("a") as file:
            file.writelines(chat_line(n, 1 + n // 10) for n in range(8, 12))
        assert again(dump) == 4
        assert self.rewards() == sorted((1 + n // 10, float(n % 2)) for n in range(12))

    def test_a_step_s_file_that_grew_while_later_steps_did_not(self, dump, again):
        write_steps(dump, 1, 2)
        assert take(dump).rows == 8
        with (dump / "1.jsonl").open("a") as file:
            file.write(json.dumps({"input": "new", "output": "a", "score": 1, "step": 1}) + "\n")
        assert again(dump) == 1
        assert len(self.rewards()) == 9

    def test_a_file_under_another_name_and_one_that_was_written_anew(self, dump, again):
        write_steps(dump, 1, 2)
        assert take(dump).rows == 8
        (dump / "1.jsonl").rename(dump / "one.jsonl")
        lines = (dump / "2.jsonl").read_text().splitlines(keepends=True)
        added = json.dumps({"input": "new", "output": "a", "score": 1, "step": 2}) + "\n"
        (dump / "2.jsonl").write_text("".join([added, *lines]))
        assert again(dump) == 1
        assert len(self.rewards()) == 9

    def test_rollouts_of_equal_content_are_as_many_as_the_file_has(self, dump, again):
        path = dump / "chat.jsonl"
        path.write_text(chat_line(0, 1) * 3)
        assert take(dump).rows == 3
        with path.open("a") as file:
            file.write(chat_line(0, 1) * 2)
        assert again(dump) == 2
        assert again(dump) == 0
        path.write_text(chat_line(0, 1) * 6)
        assert again(dump) == 1
        assert len(self.rewards()) == 6

    def test_steps_that_come_in_no_order(self, dump, again):
        path = dump / "chat.jsonl"
        path.write_text("".join(chat_line(n, step) for n, step in enumerate((9, 2, 5, 2, 9))))
        assert take(dump).rows == 5
        assert again(dump) == 0
        assert [step for step, _ in self.rewards()] == [2, 2, 5, 9, 9]
