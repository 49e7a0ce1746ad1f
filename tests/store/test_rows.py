"""Rows as the store hands them out."""

from __future__ import annotations

import pytest

from rollout_traces.store.rows import NO_STEP, Group, RowPage, RunInfo, StoredTrace, TraceRow, run_cells

ROW = TraceRow("t", "r", "run", "rollout", 3, {"reward": 0.5, "flags": ("a",), "uid": "u", "lost": None})


def group(*rewards: float | None) -> Group:
    rows = tuple(TraceRow(None, "r", "run", "rollout", 3, {"reward": reward}) for reward in rewards)
    return Group(0, "p", "", (), rows, False, False, True)


class TestARow:
    def test_has_its_place_and_what_it_knows(self) -> None:
        assert (ROW["step"], ROW["run"], ROW["reward"], ROW["nothing"]) == (3, "run", 0.5, None)
        assert ROW.get("nothing", 7) == 7 and ROW.get("step", 7) == 3

    def test_is_plain_for_json(self) -> None:
        place = {"id": "t", "run_id": "r", "run": "run", "split": "rollout", "step": 3}
        assert ROW.as_dict() == place | {"reward": 0.5, "flags": ["a"], "uid": "u", "lost": None}

    @pytest.mark.parametrize(
        ("step", "kept"), [(3, 3), ("3", NO_STEP), (3.0, NO_STEP), (None, NO_STEP), (True, NO_STEP)]
    )
    def test_a_step_that_sqlite_took_for_something_else_is_none(self, step, kept) -> None:
        trace = StoredTrace(1, "t", "r", "run", step, "k", None, "", "m", "d", "s")
        assert trace.step == kept
        bare = trace.without_texts()
        assert (bare.messages, bare.metadata, bare.spans, bare.trace_id) == (b"", b"", None, "t")


class TestAPage:
    def test_shows_the_columns_that_a_row_of_it_knows(self) -> None:
        page = RowPage((ROW, TraceRow("t2", "r", "run", "rollout", 4, {})), 1200, None)
        assert repr(page) == "<RowPage: 2 of 1,200 rollouts>"
        shown = page._repr_html_()
        assert "2 of 1,200 rollouts" in shown and "reward" in shown and "uid" in shown
        assert "snippet" not in shown


class TestAGroup:
    def test_has_figures_of_the_rewards_that_are_known(self) -> None:
        mixed = group(1.0, None, 0.0, 0.5)
        assert mixed.reward_mean == 0.5
        assert group(0.0).reward_mean == 0.0

    def test_has_none_where_no_reward_is_known(self) -> None:
        assert group(None, None).reward_mean is None


class TestARun:
    run = RunInfo(
        "1",
        "run",
        "2026-11-23T20:59:08.96+00:00",
        7,
        3,
        1200,
        ("rollout", "eval-rollout"),
        (("a", 0), ("b", 4), ("c", 6)),
    )

    def test_was_resumed_at_the_first_step_of_every_attempt_but_the_first(self) -> None:
        assert self.run.resumed_at == (4, 6)

    @pytest.mark.parametrize(
        ("attempt", "step", "superseded"),
        [
            ("a", 3, False),
            ("a", 4, True),
            ("a", 9, True),
            ("b", 5, False),
            ("b", 6, True),
            ("c", 9, False),
            (None, 0, True),
            ("", 0, True),
        ],
    )
    def test_a_later_attempt_supersedes_the_steps_from_its_first_on(self, attempt, step, superseded) -> None:
        assert self.run.is_superseded(attempt, step) is superseded

    def test_is_a_row_of_a_table_and_one_line(self) -> None:
        assert run_cells(self.run) == (
            "run",
            "1",
            "2026-11-23T20:59:08",
            7,
            3,
            1200,
            ("rollout", "eval-rollout"),
            (4, 6),
        )
        assert repr(self.run) == "<RunInfo 'run': 1,200 rollouts, 3 kept, to step 7; rollout, eval-rollout>"
        assert "Run run" in self.run._repr_html_() and "resumed at" in self.run._repr_html_()
