"""The table of rollouts as Arrow, as SQL, and as figures."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from rollout_traces.errors import StoreError
from rollout_traces.store import QueryError, Store, index, open_store
from rollout_traces.store.engine import Engine
from rollout_traces.store.questions import Measure
from tests.store.projects import PROJECT, RUN, make_ledger, write_resumed, write_step


class TestRollouts:
    def test_every_rollout_is_a_row_and_the_unknown_is_null(self, store: Store) -> None:
        table = store.rollouts(columns=["run", "split", "step", "reward", "traced", "flags"])
        assert table.num_rows == 26 and table["reward"].null_count == 3
        assert sum(table["traced"].to_pylist()) == 10
        frame = table.to_pandas()
        assert frame["reward"].mean() == pytest.approx(
            np.mean([1, 0, 0.5, 0.25, 0.25, 0.25, 0.25] * 3 + [1, 1])
        )

    def test_filters_runs_splits_and_steps_narrow_it(self, store: Store) -> None:
        assert store.rollouts("truncated").num_rows == 6
        assert store.rollouts(runs=[RUN], splits=["eval-rollout"]).num_rows == 2
        assert store.rollouts(steps=1).num_rows == 8
        assert store.rollouts("order by -n_sampled", columns=["n_sampled"], limit=2)[
            "n_sampled"
        ].to_pylist() == [75, 75]

    def test_twenty_runs_of_differing_columns_are_one_table_and_one_statement(
        self, trackio_dir: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for n in range(20):
            own = {f"component/c{n % 5}": np.asarray([n / 20, 1.0])} if n % 2 else {}
            ledger = make_ledger([[n / 20, 1.0]], step=n, batch=f"r{n}-", **own)
            write_step(ledger, (), run=(f"run-{n}", f"{n:032x}"))
        store = open_store(PROJECT)
        ran: list[str] = []
        run = Engine.run

        def counted(engine: Engine, statement: str, *rest: object, **more: object) -> pa.Table:
            if "json_serialize_sql" not in statement:
                ran.append(statement)
            return run(engine, statement, *rest, **more)  # type: ignore[arg-type]

        monkeypatch.setattr(Engine, "run", counted)
        assert store.count(where="reward >= 0.5", rows="all") == 30 and len(ran) == 1
        assert dict(store.facets("run", where="`component/c3` > 0.5", rows="all"))["run-13"] == 2
        assert len(ran) == 2
        table = store.table().sql("select run, avg(reward) as r from rollouts group by run order by run")
        assert table.num_rows == 20 and len(ran) == 3
        assert store.rollouts(columns=["component/c1"])["component/c1"].null_count == 40 - 2 * 2

    def test_an_unknown_column_is_pointed_at(self, store: Store) -> None:
        with pytest.raises(QueryError, match="Did you mean reward"):
            store.rollouts(columns=["rewrd"])

    def test_a_resumed_run_marks_what_it_wrote_anew(self, trackio_dir: Path) -> None:
        for attempt, steps in (("2026-01-01", (0, 1, 2)), ("2026-01-02", (2, 3))):
            for step in steps:
                named = np.array([attempt] * 2, object)
                write_step(make_ledger([[0.0, 1.0]], step=step, batch=attempt, attempt=named), ())
        table = open_store(PROJECT).rollouts("superseded", columns=["step", "attempt"])
        assert table.to_pylist() == [{"step": 2, "attempt": "2026-01-01"}] * 2


@pytest.mark.usefixtures("trackio_dir")
class TestCounts:
    def test_leave_out_what_a_later_attempt_superseded_unless_the_filter_names_it(self) -> None:
        write_resumed()
        store = open_store(PROJECT)
        every = {"rows": "all"}
        assert store.count(**every) == 8 and store.count(where="superseded", **every) == 8
        assert (
            store.count(where="superseded or not superseded", **every)
            == store.count(attempts="all", **every)
            == 16
        )
        assert store.facets("attempt", **every) == [("2026-01-01", 4), ("2026-01-02", 4)]
        found = store.histogram("reward", 2, **every)
        assert (found.counts, found.unknown, found.infinite) == ((3, 4), 0, ((math.inf, 1),))
        assert store.query(rows="all").total == 16, "rows are listed, marked"
        assert store.query(rows="all", attempts="newest").total == 8

    def test_of_steps_leave_it_out_too(self) -> None:
        write_resumed()
        steps = open_store(PROJECT).steps(RUN, "rollout")
        assert [(each.step, each.n_rollouts, each.n_traces) for each in steps] == [
            (0, 4, 2),
            (1, 4, 2),
            (2, None, 0),
        ]

    def test_an_infinite_number_is_found_by_its_name(self) -> None:
        write_resumed()
        store = open_store(PROJECT)
        for where, n in (
            ("reward = 'Infinity'", 1),
            ("reward != 'Infinity'", 7),
            ("reward in ('-Infinity', 0.5)", 1),
        ):
            assert store.count(where=where, rows="all") == n, where

    def test_a_mean_of_a_group_leaves_out_what_is_infinite_or_failed_everywhere(self) -> None:
        write_resumed()
        store = open_store(PROJECT)
        [group] = store.groups(RUN, "rollout", 1).groups
        assert (group.reward_mean, group.n_rollouts, group.n_not_counted) == (0.75, 4, 2)
        rows = store.groups_table().to_pylist()
        assert [row["reward_mean"] for row in rows if row["step"] == 1] == [0.0, 0.75]

    def test_a_mean_of_rewards_leaves_them_out_too(self) -> None:
        write_resumed()
        found = open_store(PROJECT).aggregate(["step"], [Measure("mean", "reward"), Measure("max", "sample")])
        assert [row["mean(reward)"] for row in found.to_pylist()] == [0.5, 0.75]
        assert [row["max(sample)"] for row in found.to_pylist()] == [3, 3]


class TestSql:
    def test_it_reads_rollouts_and_metrics(self, store: Store) -> None:
        found = store.sql("select split, count(*) as n from rollouts group by split order by n")
        assert found.to_pylist() == [{"split": "eval-rollout", "n": 2}, {"split": "rollout", "n": 24}]
        assert store.sql(
            "select key, value from metrics where step = ? and key = 'train/loss'", [0]
        ).to_pylist() == [{"key": "train/loss", "value": 1.0}]

    @pytest.mark.parametrize(
        ("query", "said"),
        [
            ("delete from rollouts", "DELETE is refused"),
            ("copy rollouts to 'x.csv'", "COPY"),
            ("select 1; select 2", "2 statements"),
            ("select * from read_text('/etc/passwd')", "disabled"),
            ("select nonsense from rollouts", "nonsense"),
        ],
    )
    def test_what_is_no_plain_select_is_refused_and_the_store_stays_usable(
        self, store: Store, query: str, said: str
    ) -> None:
        with pytest.raises(StoreError, match=said):
            store.sql(query)
        assert store.count() == 10

    def test_a_star_means_all_columns_but_the_stores_own(self, store: Store) -> None:
        named = set(store.sql("select * from rollouts limit 0").column_names)
        assert {"advantage", "run", "labels", "superseded"} < named and not {"place", "doc", "run_no"} & named

    def test_values_that_differ_between_segments_are_one_column(self, trackio_dir: Path) -> None:
        for step in range(3):
            sources = np.asarray([f"source {step} {row}" for row in range(100)], object)
            write_step(make_ledger([[1.0] * 100], step=step, batch=f"s{step}-", source=sources), ())
            open_store(PROJECT)
        found = open_store(PROJECT).sql("select source from rollouts order by step, sample")
        assert found["source"].to_pylist() == [f"source {n} {row}" for n in range(3) for row in range(100)]

    def test_a_text_of_gigabytes_is_beyond_its_bounds(self, store: Store) -> None:
        with pytest.raises(StoreError, match=r"memory|Memory|MB|allocate"):
            store.sql("select repeat('x', 2000000000) || repeat('y', 2000000000) as t")


class TestFigures:
    def test_means_and_quantiles_by_the_values_of_a_column(self, store: Store) -> None:
        found = store.aggregate(
            ["step"], [Measure("mean", "reward"), Measure("p95", "n_sampled")]
        ).to_pylist()
        assert [(row["split"], row["step"], row["rollouts"]) for row in found] == [
            ("eval-rollout", 2, 2),
            ("rollout", 0, 8),
            ("rollout", 1, 8),
            ("rollout", 2, 8),
        ]
        assert found[1]["mean(reward)"] == pytest.approx((1.0 + 0.5 + 4 * 0.25) / 7)
        assert found[1]["p95(n_sampled)"] == pytest.approx(np.quantile(np.arange(8) * 10 + 5, 0.95))

    def test_groups_have_the_figures_of_all_their_rollouts(self, store: Store) -> None:
        tied = [row for row in store.groups_table().to_pylist() if row["tied"]]
        assert [(row["split"], row["step"], row["group"], row["rollouts"]) for row in tied] == [
            ("eval-rollout", 2, 0, 2),
            *(("rollout", step, 1, 4) for step in range(3)),
        ]
        assert store.count(where="group.tied and split = rollout", rows="all") == 12
        assert store.count(where="group.size = 2", rows="all") == 2


class TestSegments:
    def test_a_damaged_segment_is_rebuilt_and_costs_nothing_else(self, store: Store) -> None:
        (segment,) = (store.index_path / "segments").glob("*.parquet")
        segment.write_bytes(b"no parquet")
        with pytest.raises(StoreError, match="damaged"):
            store.count(where="reward > 0")
        store.refresh()
        assert store.count() == 10 and store.count(rows="all") == 26
        assert store.count(text="cannot") == 6

    def test_what_a_killed_process_left_behind_goes(self, trackio_dir: Path) -> None:
        write_step(make_ledger([[0.0]], step=0), (0,))
        store = open_store(PROJECT)
        left = [store.index_path / "segments" / name for name in ("a.parquet", ".b.parquet.4711-0a1b2c")]
        for path in left:
            path.write_bytes(b"cut sh")
        write_step(make_ledger([[0.0]], step=1), (0,))
        store.refresh()
        assert store.count() == 2 and not any(path.exists() for path in left)

    def test_a_live_run_stays_a_few_files(self, trackio_dir: Path) -> None:
        write_step(make_ledger([[0.0, 1.0]], step=0), (0,))
        store = open_store(PROJECT)
        for step in range(1, 20):
            write_step(make_ledger([[0.0, 1.0]], step=step), (0,))
            store.refresh()
        assert len(list((store.index_path / "segments").glob("*.parquet"))) <= 6
        assert store.rollouts(columns=["step"])["step"].to_pylist() == [
            s for s in range(20) for _ in range(2)
        ]

    def test_many_rows_that_come_at_once_lie_in_one_file(
        self, trackio_dir: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(index, "MANY", 6)
        for step in range(3):
            write_step(make_ledger([[0.5, 1.0]], step=step), (0, 1))
            store = open_store(PROJECT)
        files = store.index_path / "segments"
        assert len(list(files.glob("*.parquet"))) == 3
        for step in range(3, 8):
            write_step(make_ledger([[0.5, 1.0]], step=step), (0, 1))
        store.refresh()
        assert len(list(files.glob("*.parquet"))) == 1
        assert [row.step for row in store.query(rows="all", order_by="step").rows] == [
            step for step in range(8) for _ in range(2)
        ]
        assert store.rollouts(columns=["step"])["step"].to_pylist() == sorted([*range(8)] * 2)

    def test_files_are_for_their_owner_alone(self, store: Store) -> None:
        for path in [store.index_path, *store.index_path.rglob("*")]:
            assert path.stat().st_mode & 0o077 == 0, path
