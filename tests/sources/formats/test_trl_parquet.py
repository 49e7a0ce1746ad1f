"""Tables that TRL logs: which rows are those of the table before, and what the scalars around them tell."""

from __future__ import annotations

import json
import os
import sqlite3
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollout_traces.sources.formats.trl_parquet import (
    LoggedTable,
    TableReader,
    TrlParquet,
    _step,
    n_repeated,
    row_metadata,
    row_of,
)
from rollout_traces.sources.problems import Problems
from rollout_traces.sources.rows import RolloutRow
from tests.sources.reading import rows_of, runs_of

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
TEXTS = st.lists(st.sampled_from("abc"), max_size=6)


def rows(texts, step: int = 1) -> list[dict]:
    return [{"step": step, "completion": text} for text in texts]


def test_the_same_batch_at_a_later_step_is_repeated_whole():
    assert n_repeated(rows("abc"), rows("abc", 2), whole_only=True) == 3


def test_a_new_training_batch_repeats_nothing_though_it_begins_as_the_last_one_ended():
    assert n_repeated(rows("abc"), rows("cde"), whole_only=True) == 0


def test_an_evaluation_behind_a_training_batch_leaves_the_end_of_it_in_the_queue():
    assert n_repeated(rows("abcd"), rows("cdxy"), whole_only=False) == 2
    assert n_repeated(rows("abcd"), rows("wxyz"), whole_only=False) == 0


@given(TEXTS, TEXTS)
def test_what_is_repeated_is_the_end_of_the_one_and_the_beginning_of_the_other(before, now):
    n = n_repeated(rows(before), rows(now, 2), whole_only=False)
    assert n == 0 or before[-n:] == now[:n]
    assert n == max(k for k in range(len(now) + 1) if k <= len(before) and (k == 0 or before[-k:] == now[:k]))


@given(
    st.lists(
        st.fixed_dictionaries({"step": JSON, "prompt": JSON, "completion": JSON, "right": JSON}), max_size=4
    )
)
def test_whatever_a_table_holds_each_row_is_a_rollout(records):
    table = LoggedTable(1, "id", "r", 3, "", "rollout", records=records, rewards=["right"], weights=[0.5])
    rollouts = table.rollouts()
    assert len(rollouts) == len(records)
    for row, record in zip(rollouts, records, strict=True):
        assert isinstance(row.step, int) and abs(row.step) < 2**53
        assert ("unreadable" in row_metadata(row, record)) == (not row.messages)


class Project:
    """Logged scalars and configs, as Trackio's database has them."""

    def __init__(self) -> None:
        self.database = sqlite3.connect(":memory:")
        self.database.execute(
            "CREATE TABLE metrics (id INTEGER PRIMARY KEY, run_id, run_name, step, timestamp, metrics)"
        )

    def log(self, metrics: object, step: object = 1, run: str = "r", timestamp: str | None = "t") -> None:
        text = metrics if isinstance(metrics, bytes) else json.dumps(metrics)
        self.database.execute(
            "INSERT INTO metrics (run_id, run_name, step, timestamp, metrics) VALUES (?, ?, ?, ?, ?)",
            (f"id of {run}", run, step, timestamp, text),
        )

    def log_table(self, texts: str, more: dict | None = None, **place: object) -> None:
        records = [
            {"step": 1, "prompt": "q", "completion": text, **(more or {"right": 1.0})} for text in texts
        ]
        self.log({"completions": {"_type": "trackio.table", "_value": records}}, **place)

    def declare(self, **config: object) -> None:
        self.database.execute("CREATE TABLE IF NOT EXISTS configs (run_id, config)")
        self.database.execute("INSERT INTO configs VALUES ('id of r', ?)", (json.dumps(config),))

    @property
    def reader(self) -> TableReader:
        return TableReader(lambda sql, values: self.database.execute(sql, values).fetchall())


@pytest.fixture
def project() -> Project:
    return Project()


def shown(table: LoggedTable | None) -> str:
    assert table is not None
    return "".join(str(record["completion"]) for record in table.records)


class TestAProject:
    def test_tables_are_found_among_scalars(self, project, monkeypatch):
        monkeypatch.setattr("rollout_traces.sources.formats.trl_parquet._ROWS_AT_ONCE", 2)
        for n in range(3):
            project.log({"train/rewards/right/mean": 0.5})
            project.log_table("ab" * (n + 1))
        found = list(project.reader.numbers(0, 6))
        assert [number for number, _ in found] == [2, 4, 6] and found[0][1] < found[1][1] < found[2][1]
        assert [number for number, _ in project.reader.numbers(2, 5)] == [4]

    def test_a_table_tells_its_place_and_the_scalars_before_it_its_rewards(self, project):
        project.declare(reward_weights=[1.0, 0.5])
        project.log({"train/rewards/right/mean": 0.5, "train/rewards/short/std": 0.1, "loss": 1.0})
        project.log_table("ab", {"right": 1.0, "short": 0.5}, step=7)
        table = project.reader.table(2)
        assert (table.run_id, table.run, table.step, table.timestamp) == ("id of r", "r", 7, "t")
        assert (table.split, list(table.rewards), table.weights) == (
            "rollout",
            ["right", "short"],
            (1.0, 0.5),
        )
        assert shown(table) == "ab" and table.first == 0

    def test_scalars_of_an_evaluation_alone_make_it_an_evaluation(self, project):
        project.log({"eval/rewards/right/mean": 0.5})
        project.log_table("a")
        project.log({"eval/rewards/right/mean": 0.5, "train/rewards/right/mean": 0.5})
        project.log_table("b")
        assert [project.reader.table(n).split for n in (2, 4)] == ["eval-rollout", "rollout"]

    def test_without_scalars_every_number_that_is_not_trls_own_is_a_reward(self, project):
        project.log_table("a", {"right": 1.0, "note": "x", "done": True, "advantage": 0.5, "spelled": "2"})
        assert list(project.reader.table(1).rewards) == ["right", "spelled"]

    @pytest.mark.parametrize("weights", [[1.0, 2.0], [None], "1", None])
    def test_weights_that_do_not_fit_are_left_out(self, project, weights):
        project.declare(reward_weights=weights)
        project.log_table("a")
        assert project.reader.table(1).weights == ()

    def test_rows_of_the_table_before_are_left_out_whoever_read_it(self, project):
        project.log({"eval/rewards/right/mean": 0.5})
        project.log_table("abcd")
        project.log({"eval/rewards/right/mean": 0.5})
        project.log_table("cdx")
        project.log_table("zz", run="other")
        reader = project.reader
        assert [shown(reader.table(n)) for n in (2, 4, 5)] == ["abcd", "x", "zz"]
        reader.forget()
        late = project.reader.table(4)
        assert shown(late) == "x" and late.first == 2
        assert [row.line for row in late.rollouts()] == [3]

    @pytest.mark.parametrize(
        "metrics",
        [
            {"completions": {"_type": "trackio.table", "_value": [{"prompt": "q"}]}},
            {"completions": {"_type": "trackio.table", "_value": "rows"}},
            {"completions": 3},
            b"{",
            [1],
        ],
    )
    def test_what_is_no_table_of_trls_is_none(self, project, metrics):
        project.log(metrics)
        assert project.reader.table(1) is None and project.reader.table(2) is None

    def test_a_place_that_is_none_is_a_plain_one(self, project):
        project.log_table("a", step="x", timestamp=None)
        project.database.execute("UPDATE metrics SET run_name = NULL")
        table = project.reader.table(1)
        assert (table.run, table.step, table.timestamp) == ("", 0, "")


def test_equal_prompts_of_a_step_are_a_group_and_rows_that_are_none_rollouts_without_words():
    records = [{"step": 1, "prompt": p, "completion": "c", "right": 1.0} for p in "aab"]
    records += [
        {"step": 2, "prompt": "a", "completion": "c"},
        {"step": 1, "prompt": 3, "completion": object()},
    ]
    table = LoggedTable(1, "id", "r", 3, "", "rollout", first=4, records=records, rewards=["right"])
    found = table.rollouts()
    assert [row.group for row in found[:4]] == [0, 0, 1, 2]
    assert [row.line for row in found] == [5, 6, 7, 8, 9] and {row.split for row in found} == {"rollout"}


def test_a_row_tells_its_numbers_under_their_own_names_and_ours():
    record = {
        "step": 5,
        "prompt": "q",
        "completion": "c",
        "right": 1.0,
        "mine": 2,
        "advantage": 0.25,
        "note": "x",
    }
    (row,) = LoggedTable(1, "id", "r", 3, "", "rollout", records=[record], rewards=["right"]).rollouts()
    told = row_metadata(row, record)
    assert (told["right"], told["mine"], told["rewards/right"], told["advantage"]) == (1.0, 2, 1.0, 0.25)
    assert (told["split"], told["group_id"], told["table_row"]) == ("rollout", 0, 1)
    assert "prompt" not in told and "unreadable" not in told and "note" not in told


class Run:
    """The folder of a run of TRL's trainer."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def write(self, step: int, *records: dict) -> Path:
        path = self.root / "completions" / f"completions_{step:05}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.Table.from_pylist(list(records)), path)
        return path

    def checkpoint(self, at: int, *evaluated: int, age: int = 0, **more: object) -> None:
        logs = [{"step": at, "loss": 1.0}, *({"step": step, "eval_loss": 1.0} for step in evaluated)]
        path = self.root / f"checkpoint-{at}" / "trainer_state.json"
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps({"global_step": at, "log_history": logs, **more}))
        os.utime(path, ns=(10**18 - age, 10**18 - age))

    def rows(self, problems: Problems | None = None) -> list[RolloutRow]:
        return rows_of(self.root, problems)


@pytest.fixture
def run(tmp_path) -> Run:
    return Run(tmp_path / "my-run")


def record(completion: object = "c", **more: object) -> dict:
    return {"prompt": "q", "completion": completion, **more}


class TestFiles:
    def test_a_row_is_a_rollout_whose_numbers_are_rewards(self, run):
        run.write(3, record(advantage=0.5, right=1.0, short=float("nan"), level=2, task="sums", done=True))
        [row] = run.rows()
        assert (row.step, row.split, row.line, row.reward, row.advantage) == (3, "rollout", 1, 3.0, 0.5)
        assert row.components["right"] == 1.0 and row.components["level"] == 2.0
        assert set(row.components) == {"right", "short", "level"} and row.metrics == {}
        assert row.extras == {"task": "sums", "done": True} and row.n_prompt_messages == 1
        assert row.messages == [{"role": "user", "content": "q"}, {"role": "assistant", "content": "c"}]

    def test_a_reply_of_messages_is_read_as_such(self, run):
        call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
        said = {"role": "assistant", "content": "a", "tool_calls": [call]}
        prompt = [{"role": "system", "content": "s"}, {"role": "user", "content": "q"}]
        run.write(1, {"prompt": prompt, "completion": [said, {"role": "tool", "content": "4"}]})
        [row] = run.rows()
        assert [message["role"] for message in row.messages] == ["system", "user", "assistant", "tool"]
        assert row.n_prompt_messages == 2 and "tool_calls" not in row.messages[3]
        assert row.messages[2]["tool_calls"][0]["function"]["name"] == "f"
        assert (row.reward, row.components) == (None, {})

    def test_the_first_file_is_of_step_zero(self, run):
        run.write(0, record())
        assert [row.step for row in run.rows()] == [0]

    def test_a_rows_own_step_goes_before_the_files(self, run):
        run.write(4, record("a", step="2"), record("b", step="x"), record("c", step=None))
        assert [row.step for row in run.rows()] == [2, 4, 4]
        assert _step(2**53, 4) == 4 and _step(2**53 - 1, 4) == 2**53 - 1 and _step(float("inf"), 4) == 4

    def test_without_weights_rewards_are_summed_and_with_them_weighed(self):
        value = record(a=1.0, b=0.5, c=float("nan"), d=None, n=3)
        assert row_of(value, ["a", "b", "c", "d"], 1, 1).reward == 1.5
        weighed = row_of(value, ["a", "b"], 1, 1, [2.0, -1.0])
        assert weighed.reward == 1.5 and weighed.components == {"a": 1.0, "b": 0.5}
        assert weighed.metrics["n"] == 3 and row_of(value, [], 1, 1).reward is None

    def test_rows_that_the_file_before_ends_with_are_passed_over_and_that_is_said(self, run):
        run.write(1, *(record(text) for text in "xy"))
        run.write(2, *(record(text) for text in "abc"))
        run.write(10, *(record(text) for text in "bcd"))
        problems = Problems()
        found = [(row.step, row.line, row.messages[-1]["content"]) for row in run.rows(problems)]
        assert sorted(found) == [
            *((1, n, text) for n, text in enumerate("xy", 1)),
            *((2, n, text) for n, text in enumerate("abc", 1)),
            (10, 3, "d"),
        ]
        assert problems.counts["repeated_rows"] == 1
        assert any("its first 2 rows are the last of the file before" in str(each) for each in problems.kept)

    def test_a_damaged_file_is_told_of_and_the_next_read_whole(self, run):
        run.write(1, record("a"))
        run.write(2, record("a")).write_bytes(b"PAR1 and no more")
        run.write(3, record("a"))
        problems = Problems()
        assert [row.step for row in run.rows(problems)] == [1, 3]
        assert problems.counts["unreadable_files"] == 1 and "repeated_rows" not in problems.counts

    def test_another_name_is_no_file_of_trls(self, run):
        path = run.write(1, record())
        path.rename(path.with_name("completions_1.old.parquet"))
        assert not any(isinstance(file.format, TrlParquet) for one in runs_of(run.root) for file in one.files)


class TestCheckpoints:
    def test_tell_which_steps_were_evaluated(self, run):
        for step in (1, 2, 3):
            run.write(step, record(str(step)))
        run.checkpoint(3, 2)
        problems = Problems()
        splits = {row.step: row.split for row in run.rows(problems)}
        assert splits == {1: "rollout", 2: "eval-rollout", 3: "rollout"}
        assert "splits_not_told" not in problems.counts

    @pytest.mark.parametrize("until", [None, 2, 3])
    def test_that_are_older_than_a_file_do_not_tell_of_it(self, run, until):
        run.write(3, record())
        if until is not None:
            run.checkpoint(until)
        problems = Problems()
        assert [row.split for row in run.rows(problems)] == ["rollout"]
        [found] = runs_of(run.root)
        lacks = found.files[0].claim.lacks
        is_told = until == 3
        assert problems.counts["splits_not_told"] == (not is_told)
        assert any("whether it was training" in each for each in lacks) == (not is_told)
        assert "groups (equal prompts are one)" in lacks and found.files[0].claim.root == run.root

    def test_are_read_by_the_newest_file(self, run):
        run.write(2, record())
        run.checkpoint(3, age=5)
        run.checkpoint(2, 2)
        assert [row.split for row in run.rows()] == ["eval-rollout"]

    @pytest.mark.parametrize(
        "more", [{"log_history": 3}, {"global_step": None}, {"log_history": [{"eval_": 1}]}]
    )
    def test_that_are_none_tell_nothing(self, run, more):
        run.write(1, record())
        run.checkpoint(1, 1, **more)
        problems = Problems()
        assert [row.split for row in run.rows(problems)] == ["rollout"]
        assert problems.counts["splits_not_told"] == 1
