"""What goes with rollouts that are to be deleted, worked out before anything is touched."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import orjson
import pytest

from rollout_traces.errors import StoreError
from rollout_traces.export import export_partitioned
from rollout_traces.store import Store, open_store
from rollout_traces.store.removal import PATH_KEY, RemovalPlan, media_of, plan_removal, plan_retention
from tests.store.projects import PROJECT, RUN, RUN_ID, make_ledger, store_values, write_step

OTHER = ("run-002", "2" * 32)


@pytest.fixture
def project(trackio_dir: Path) -> Store:
    """Three steps of two runs, two of four rollouts of each traced."""
    for name, run_id in ((RUN, RUN_ID), OTHER):
        for step in range(3):
            ledger = make_ledger([[1.0, 0.0], [0.5, 0.5]], step=step, batch=name[-1], traced=(0, 1))
            write_step(ledger, (0, 1), run=(name, run_id))
            store_values({"loss": 1.0}, step=step, run=(name, run_id))
    return open_store(PROJECT)


class TestAFilter:
    def test_takes_rollouts_out_of_the_ledgers_of_steps_that_stay(self, project: Store) -> None:
        plan = plan_removal(project, "reward = 1", runs=[RUN])
        assert (plan.rollouts, plan.traced, plan.runs, len(plan.traces)) == (3, 3, {}, 3)
        assert sorted(map(sorted, plan.ledger_rows.values())) == [["10-0"], ["11-0"], ["12-0"]]
        assert plan.places == {(RUN, "rollout", step): 1 for step in range(3)} and plan.run_ids == {RUN_ID}
        assert plan.text_bytes > 100 and not plan.is_empty

    def test_takes_rollouts_that_were_not_traced_too(self, project: Store) -> None:
        plan = plan_removal(project, "reward = 0.5", runs=[RUN], steps=(1, 1))
        assert (plan.rollouts, plan.traced, len(plan.traces)) == (2, 0, 0)
        assert [sorted(uids) for uids in plan.ledger_rows.values()] == [["11-2", "11-3"]]
        assert plan.text_bytes == 0 and not plan.is_empty

    def test_of_all_rollouts_of_a_step_takes_its_summary_too(self, project: Store) -> None:
        plan = plan_removal(project, "reward >= 0", runs=[RUN], steps=(1, 1))
        assert (plan.rollouts, len(plan.traces), plan.ledger_rows, plan.runs) == (4, 3, {}, {})

    def test_that_matches_nothing_takes_nothing(self, project: Store) -> None:
        plan = plan_removal(project, "reward > 100")
        assert plan.is_empty and plan == RemovalPlan(PROJECT)


class TestRuns:
    def test_go_as_a_whole_where_nothing_narrows_them(self, project: Store) -> None:
        plan = plan_removal(project, runs=["run-002"])
        assert plan.runs == {OTHER[1]: OTHER[0]} and (plan.rollouts, len(plan.traces)) == (12, 9)
        assert plan_removal(project).runs == {RUN_ID: RUN, OTHER[1]: OTHER[0]}

    @pytest.mark.parametrize(
        "narrowed", [{"where": "reward >= 0"}, {"splits": ["rollout"]}, {"steps": (0, 2)}]
    )
    def test_stay_with_their_scalars_where_something_does(self, project: Store, narrowed: dict) -> None:
        plan = plan_removal(project, runs=[RUN], **narrowed)
        assert plan.runs == {} and plan.rollouts == 12

    def test_of_an_export_are_not_deleted(self, project: Store, tmp_path: Path) -> None:
        export_partitioned(project, tmp_path / "out")
        opened = open_store(str(tmp_path / "out"), index_path=tmp_path / "index")
        for plan in (plan_removal, plan_retention):
            with pytest.raises(StoreError, match="nothing is deleted from there"):
                plan(opened)


class TestLabels:
    def test_go_with_the_last_rollout_of_their_uid(self, project: Store) -> None:
        project.label("10-0", "good", "ann")
        project.label("10-0", "why?", "ann", kind="note")
        project.label("21-1", "odd", "ann")
        assert plan_removal(project, "reward = 1").labels == {"10-0": 2}
        assert plan_removal(project, runs=["run-002"]).labels == {"21-1": 1}

    def test_stay_where_another_rollout_has_the_same_uid(self, project: Store) -> None:
        project.label("10-0", "good", "ann")
        again = make_ledger([[1.0]], step=0, batch=RUN[-1], traced=(0,))
        write_step(again, (0,), run=("run-003", "3" * 32))
        store = open_store(PROJECT)
        assert plan_removal(store, "reward = 1", runs=[RUN]).labels == {}
        assert plan_removal(store, "reward = 1").labels == {"10-0": 1}


class TestRetention:
    def test_nothing_goes_without_a_bound(self, project: Store) -> None:
        assert plan_retention(project).is_empty

    def test_by_age_goes_what_is_older(self, project: Store) -> None:
        assert plan_retention(project, older_than=timedelta(hours=1)).is_empty
        plan = plan_retention(project, older_than=timedelta(seconds=-60))
        assert plan.rollouts == 24 and len(plan.traces) == 18 and plan.runs == {}

    def test_by_size_the_oldest_steps_go_until_the_rest_fits(self, project: Store) -> None:
        everything = plan_retention(project, most_bytes=0)
        assert everything.rollouts == 24
        total = everything.text_bytes
        assert plan_retention(project, most_bytes=total).is_empty
        one = plan_retention(project, most_bytes=total - 1)
        assert one.rollouts == 4 and list(one.places) == [(RUN, "rollout", 0)]
        assert one.text_bytes < total


class TestMedia:
    def test_files_go_that_no_trace_of_their_step_names_any_more(
        self, project: Store, trackio_dir: Path
    ) -> None:
        own = trackio_dir / "media" / PROJECT
        for name in ("a.png", "b.png", "kept.png"):
            file = own / RUN / "0" / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(b"x")
        (trackio_dir / "media" / "elsewhere.png").write_bytes(b"x")
        ids = [row.id for row in project.query(run=RUN, steps=(0, 0), order_by="uid").rows]

        def name_files(trace_id: str, *paths: str) -> None:
            import sqlite3

            said = orjson.dumps([{"content": [{PATH_KEY: path} for path in paths]}])
            with sqlite3.connect(trackio_dir / f"{PROJECT}.db") as database:
                database.execute("UPDATE traces SET messages = ? WHERE id = ?", (said, trace_id))

        name_files(
            ids[0], f"{PROJECT}/{RUN}/0/a.png", f"{PROJECT}/{RUN}/0/kept.png", "elsewhere.png", "../../x"
        )
        name_files(ids[1], f"{PROJECT}/{RUN}/0/kept.png")
        source = project.source
        assert [path.name for path in media_of(source, {ids[0]}, {})] == ["a.png"]
        assert [path.name for path in media_of(source, set(ids), {})] == ["a.png", "kept.png"]
        assert media_of(source, set(), {}) == ()
        whole = media_of(source, set(), {RUN_ID: RUN})
        assert [path.name for path in whole] == ["a.png", "b.png", "kept.png"]
        assert media_of(source, set(), {"9" * 32: RUN}) == (), "another run has the same name"

    def test_a_project_without_any_has_none(self, project: Store) -> None:
        assert media_of(project.source, {"t"}, {RUN_ID: RUN}) == ()
