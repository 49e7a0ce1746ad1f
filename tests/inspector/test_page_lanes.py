"""Lanes, funnel and reward functions, in the page and against plain loops over what was logged."""

from __future__ import annotations

import re
from collections import Counter
from statistics import median
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import expect

import rollout_traces as rt
from rollout_traces.inspector.api.http import part_of
from rollout_traces.inspector.pages.lane_tables import FAILED_STOPS, funnel, reward_functions
from rollout_traces.inspector.pages.lanes import lanes
from rollout_traces.inspector.registry import PARTS
from rollout_traces.inspector.workspace import SplitView, Workspace, as_plain
from tests.inspector.api.test_tools import Agent, with_agent
from tests.inspector.conftest import Served, Visit, box_of, log_project
from tests.inspector.make_lanes import HOSTILE, PROJECT, ROWS, STEPS, rows_of

STEP = 2
PLACE = {"project": PROJECT, "run": "a", "split": "rollout", "tab": "lanes", "step": STEP}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    found = tmp_path_factory.mktemp("lanes")
    log_project(found, module="make_lanes")
    return found


@pytest.fixture(scope="module")
def view(folder):
    workspace = Workspace(folder=folder)
    workspace.refresh(PROJECT)
    yield SplitView(workspace, PROJECT, "a", "rollout")
    workspace.close()


class TestLanes:
    def test_every_bar_is_a_span_that_was_logged(self, view):
        answer = lanes(view, STEP)
        given = [(at, span) for at, row in enumerate(rows_of(STEP)) for span in row["timings"] or ()]
        spans = answer.spans
        shown = Counter(
            (
                (answer.rollouts[row].group, answer.rollouts[row].sample),
                answer.kinds[kind],
                round(answer.began * 1000 + start),
                turn,
                version,
                answer.names[name] if name >= 0 else None,
            )
            for row, kind, start, turn, version, name in zip(
                spans.rollout, spans.kind, spans.start, spans.turn, spans.version, spans.name, strict=True
            )
        )
        assert len(spans.lane) == len(given) and answer.n_timed == ROWS - 1
        for at, span in given:
            near = [
                ((at // 4, at % 4), span["kind"], round(span["start"] * 1000) + off, span.get("turn", -1), span.get("version", -1), span.get("name"))
                for off in (0, -1, 1)
            ]  # fmt: skip
            assert any(shown[key] > 0 for key in near), span
        total = sum(span["end"] - span["start"] for _, span in given)
        assert abs(sum(spans.ms) / 1000 - total) < 0.001 * len(given)

    def test_lanes_are_engines_in_their_order_with_their_idle_time(self, view):
        answer = lanes(view, STEP)
        assert [lane.name for lane in answer.lanes] == [HOSTILE, "engine-2", "engine-10"]
        rows = rows_of(STEP)
        spans = [span for row in rows for span in row["timings"] or ()]
        whole = max(span["end"] for span in spans) - min(span["start"] for span in spans)
        for lane in answer.lanes:
            own = sorted(
                (span["start"], span["end"]) for span in spans if span.get("engine") == lane.name and span["kind"] == "generate"
            )  # fmt: skip
            busy, reached = 0.0, 0.0
            for start, end in own:
                busy += max(0.0, end - max(start, reached))
                reached = max(reached, end)
            assert lane.busy == pytest.approx(busy, abs=0.05)
            assert lane.idle == pytest.approx(1 - busy / whole, abs=0.005)

    def test_the_tail_names_its_tool_and_finds_its_rollout(self, view):
        tail = lanes(view, STEP).tail
        assert (
            tail.n == 1 and tail.text.endswith("tool “browse”") and 25 < (tail.ends - tail.begins) / 1000 < 31
        )
        found = view.store.query("a", "rollout", where=tail.where, rows="all").rows
        assert [(row["group"], row["sample"]) for row in found] == [(ROWS // 4 - 1, 3)]

    def test_version_changes_phases_and_what_is_missing_are_told(self, view):
        answer = lanes(view, STEP)
        assert {change.version for change in answer.changes} == {STEP + 1}
        assert [(phase.name, phase.step) for phase in answer.phases] == []
        said = " ".join(answer.unobserved)
        assert "1 of 48 rollouts have no spans" in said and "queue, prefill" in said and "phases" not in said
        several = lanes(view, STEP, minutes=3)
        assert several.steps == [0, 1, 2] and [(p.name, p.step, p.end - p.start) for p in several.phases] == [
            ("update", 0, 5000),
            ("update", 1, 5000),
        ]

    def test_the_last_minute_holds_what_ran_in_it(self, view):
        answer = lanes(view, STEP, minutes=1)
        spans = [span for step in range(STEPS) for row in rows_of(step) for span in row["timings"] or ()]
        latest = max(span["end"] for span in spans)
        assert len(answer.spans.lane) == sum(span["end"] >= latest - 60 - 0.002 for span in spans)
        assert answer.tail is None

    def test_one_rollout_is_with_the_others_of_its_episode(self, view):
        answer = lanes(view, STEP, group=0, sample=1)
        assert answer.by == "rollout" and [(r.group, r.sample) for r in answer.rollouts] == [
            (0, 1),
            (0, 0),
            (0, 2),
        ]
        assert sorted(lane.name for lane in answer.lanes) == ["s1", "s2"], "the third was not timed"

    def test_programs_get_the_spans_some_at_a_time(self, view):
        answer = lanes(view, STEP)
        found, after = [], 0
        while after is not None:
            part = part_of(answer, PARTS["pages/lanes"], after, 100)
            assert len({len(column) for column in part["spans"].values()}) == 1
            found += list(zip(*part["spans"].values(), strict=True))
            after = part["next"]
        assert found == list(zip(*vars(answer.spans).values(), strict=True))

    def test_an_agent_is_told_where_a_steps_time_went(self, view):
        async def ask(agent: Agent) -> Any:
            return await agent.ask("step_time", run="a", step=STEP)

        found = with_agent(view.workspace, ask)
        assert found["tail"]["text"].endswith("tool “browse”") and "spans" not in found
        assert found["funnel"] == as_plain(funnel(view, STEP))
        assert found["lanes"] == as_plain(lanes(view, STEP).lanes)

    def test_of_two_attempts_the_later_one_is_shown(self, trackio_dir):
        logger = rt.RolloutLogger(project="twice", name="a", worker="thread")
        for attempt in (1, 2):
            if attempt == 2:
                logger.begin_attempt()
            for step in range(attempt, 4):
                start = 100.0 * step
                spans = [{"kind": "tool", "start": start, "end": start + attempt, "name": "browse"}]
                chats = [[{"role": "user", "content": "a"}]] * 2
                batch = rt.RolloutBatch.from_messages(chats, rewards=[0.0] * 2, timings=[spans] * 2)
                logger.log_rollouts(batch, step=step)
                logger.close_step(step)
        logger.finish()
        workspace = Workspace(folder=trackio_dir)
        view = SplitView(workspace, "twice", "a", "rollout")
        for step, took in ((1, 1000), (2, 2000), (3, 2000)):
            assert lanes(view, step).spans.ms == [took] * 2
            assert next(s for s in funnel(view, step).stages if s.name == "sampled").step.n == 2
        assert len(lanes(view, 3, minutes=15).spans.ms) == 6
        workspace.close()

    def test_sums_alone_are_said_to_be_no_lanes(self, home):
        workspace = Workspace(folder=home)
        answer = lanes(SplitView(workspace, "demo", "run-a", "rollout"), 3)
        assert not answer.spans.lane and answer.tail is None
        assert (
            "only seconds in all (“generation”, “reward”)" in answer.unobserved[0]
            and "rt.Spans" in answer.unobserved[0]
        )
        workspace.close()


def is_failed(row: dict[str, Any]) -> bool:
    return row["status"] == "error" or row["stop"] in FAILED_STOPS or row["n_sampled"] == 0


PLAIN = {
    "sampled": lambda row: True,
    "finished": lambda row: not is_failed(row),
    "failed": is_failed,
    "failed: stopped: “abort”": lambda row: row["stop"] == "abort",
    "failed: stopped: “timeout”": lambda row: row["stop"] == "timeout",
    "failed: nothing was sampled": lambda row: row["n_sampled"] == 0,
    "failed: the reward function failed": lambda row: row["status"] == "error",
    "failed_zero": lambda row: is_failed(row) and row["trained"] and row["reward"] == 0,
    "filtered": lambda row: row["reason"] is not None,
    "filtered: “too_long”": lambda row: row["reason"] == "too_long",
    "filtered: “zero_advantage”": lambda row: row["reason"] == "zero_advantage",
    "stale": lambda row: row["staleness"] > 0,
    "in_update": lambda row: bool(row["trained"]),
    "weight_0": lambda row: row["trained"] and row["advantage"] == 0,
}
"""What each stage means, as a plain question about a row."""


class TestFunnel:
    def test_every_number_is_what_a_plain_count_finds(self, view):
        stages = {stage.name: stage for stage in funnel(view, STEP).stages}
        assert set(stages) == {*PLAIN, "loaded", "prompts", "error_text"}
        for rows, which in (
            (rows_of(STEP), "step"),
            ([row for s in range(STEPS) for row in rows_of(s)], "run"),
        ):
            whole = sum(row["n_sampled"] or 0 for row in rows)
            for name, question in PLAIN.items():
                counted = getattr(stages[name], which)
                chosen = [row for row in rows if question(row)]
                assert counted.n == len(chosen), (name, which)
                assert counted.tokens == pytest.approx(
                    sum(row["n_sampled"] or 0 for row in chosen) / whole
                ), name
                assert not stages[name].unobserved

    def test_every_filter_finds_as_many_as_its_number_says(self, view):
        for stage in funnel(view, STEP).stages:
            if stage.where is not None:
                n = view.store.count("a", "rollout", where=stage.where, rows="all", steps=(STEP, STEP))
                assert n == stage.step.n, stage.name

    def test_replies_that_are_an_engines_error_are_named(self, view):
        stage = next(stage for stage in funnel(view, STEP).stages if stage.name == "error_text")
        named = [
            row
            for row in rows_of(STEP)
            if row["trained"] and row["reward"] == 0 and not row["reply"].startswith("It is")
        ]
        assert stage.step.n == len(named) > 0 and stage.run.n is None

    def test_prompts_are_counted_and_loaded_ones_known_where_the_trainer_says(self, view):
        stages = {stage.name: stage for stage in funnel(view, STEP).stages}
        assert (stages["loaded"].step.n, stages["loaded"].run.n) == (15, 30)
        assert (stages["prompts"].step.n, stages["prompts"].run.n) == (12, 36)
        assert next(s for s in funnel(view, 0).stages if s.name == "loaded").step.n is None

    def test_what_was_not_logged_is_unobserved_and_never_0(self, trackio_dir):
        logger = rt.RolloutLogger(project="bare", name="a", worker="thread")
        logger.log_rollouts(
            rt.RolloutBatch.from_messages([[{"role": "user", "content": "a"}]] * 4, rewards=[0.0] * 4), step=1
        )
        logger.finish()
        workspace = Workspace(folder=trackio_dir)
        stages = {stage.name: stage for stage in funnel(SplitView(workspace, "bare", "a"), 1).stages}
        for name in (
            "loaded",
            "finished",
            "failed",
            "failed_zero",
            "filtered",
            "stale",
            "in_update",
            "weight_0",
        ):
            assert (
                stages[name].step.n is None
                and stages[name].run.n is None
                and "log" in stages[name].unobserved
            ), name
        assert stages["sampled"].step.n == 4 and stages["sampled"].step.tokens is None
        workspace.close()

    def test_of_advantages_of_rows_too_it_is_known_which_have_no_weight(self, trackio_dir):
        """Seen once: "unobserved: log advantages", of a run whose rows had them, though not its tokens."""
        logger = rt.RolloutLogger(project="rows", name="a", worker="thread")
        arrays = {name: np.ones((4, 3), bool) for name in ("attention_mask", "loss_mask")}
        advantages = np.asarray([0.5, 0.0, -0.5, 0.0], np.float32)
        logger.log_rollouts(
            rt.RolloutBatch(
                input_ids=np.ones((4, 3), np.int32), rewards=np.ones(4), advantages=advantages, **arrays
            ),
            step=1,
        )
        logger.close_step(1)
        logger.finish()
        workspace = Workspace(folder=trackio_dir)
        stages = {
            stage.name: stage for stage in funnel(SplitView(workspace, "rows", "a", "rollout"), 1).stages
        }
        assert not stages["weight_0"].unobserved and stages["weight_0"].step.n == 2
        workspace.close()


class TestRewardFunctions:
    def test_every_figure_is_what_a_plain_loop_finds(self, view):
        answer = reward_functions(view)
        assert answer.steps == [0, 1, 2] and [f.name for f in answer.functions] == ["judge", "format"]
        for function in answer.functions:
            for step, figures in zip(answer.steps, function.steps, strict=True):
                rows = rows_of(step)
                given = [row[function.name] for row in rows if row[function.name] is not None]
                middle = median(given)
                spread = median(abs(value - middle) for value in given)
                far = sum(abs(value - middle) > 5 * spread for value in given) if spread else 0
                assert (figures.rollouts, figures.no_value) == (ROWS, ROWS - len(given))
                assert figures.zeros == pytest.approx(given.count(0.0) / len(given))
                assert figures.one_value == pytest.approx(max(Counter(given).values()) / len(given))
                assert figures.outliers == pytest.approx(far / len(given))
                spent = [
                    s["end"] - s["start"]
                    for row in rows
                    for s in row["timings"] or ()
                    if s.get("name") == function.name
                ]
                assert figures.seconds == (pytest.approx(sum(spent), rel=1e-5) if spent else None)
        assert "format" not in "".join(answer.unobserved) and answer.unobserved, (
            "the time of one is unobserved"
        )


@pytest.mark.browser
class TestPage:
    @pytest.fixture(scope="class")
    def served(self, folder):
        server = Served(folder)
        yield server
        server.stop()

    def test_lanes_funnel_and_functions_are_drawn_and_lead_on(self, visit):
        visit.open(**PLACE)
        expect(visit.get("lanes-tail")).to_contain_text("1 of 47 rollouts holds the step for")
        expect(visit.get("lane-name")).to_have_count(3)
        expect(visit.get("lanes-canvas")).to_have_attribute("data-drawn-in", re.compile(r"\d"))
        expect(visit.get("reward-function").first).to_contain_text("judge")
        assert visit.page.evaluate("window.pwned") is None
        visit.picture("lanes")
        row = visit.page.locator("[data-stage='failed: stopped: “abort”']")
        row.get_by_test_id("funnel-rollouts").first.click()
        expect(visit.get("filter-input")).to_have_value("stop_reason = 'abort'")
        assert visit.state["tab"] == "rollouts" and visit.state["step"] == str(STEP)

    def test_a_bar_says_what_it_is_and_opens_its_rollout(self, visit):
        visit.open(**PLACE, lane="rollout")
        canvas = visit.get("lanes-canvas")
        expect(visit.get("lane-name")).to_have_count(47)
        visit.wait_until_quiet()
        box = box_of(canvas)
        at = {"x": box["width"] * 0.8, "y": 0.0}
        name = box_of(visit.get("lane-name").filter(has_text=f"s{ROWS - 1}").last)
        at["y"] = name["y"] - box["y"] + 4
        canvas.hover(position=at)
        expect(visit.get("lanes-card")).to_contain_text("tool browse, 30.0 s")
        expect(visit.get("lanes-card")).to_contain_text("TimeoutError")
        canvas.click(position=at)
        expect(visit.get("rollout-header")).to_contain_text(f"Step {STEP} · group {ROWS // 4 - 1}")
        expect(visit.page.locator(".rt-sample.rt-selected")).to_be_in_viewport()

    def test_a_rollout_has_a_timeline_whose_bars_go_to_turns(self, visit):
        visit.open(**{**PLACE, "tab": "rollouts"}, group=0, sample=1)
        expect(visit.get("timeline")).to_contain_text("with 2 others of its episode")
        expect(visit.get("timeline").locator("[data-testid='lane-name']")).to_have_count(2)

    def test_a_run_without_spans_says_what_to_log(self, chromium, home):
        server = Served(home)
        try:
            other = Visit(chromium, server.address)
            other.open(project="demo", run="run-a", split="rollout", step=3, tab="lanes")
            expect(other.get("lanes-unobserved").first).to_contain_text("When turns ran is unobserved")
            other.close()
        finally:
            server.stop()
