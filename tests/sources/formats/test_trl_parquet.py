"""Tables that TRL logs: which rows are those of the table before, and what the scalars around them tell."""

from __future__ import annotations

import json
import sqlite3

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollout_traces.sources.formats.trl_parquet import LoggedTable, TableReader, n_repeated, row_metadata

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
