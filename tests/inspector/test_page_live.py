"""The Live page: what runs now, as a logger says it while the page is open."""

from __future__ import annotations

import dataclasses
import re

import pytest
from playwright.sync_api import expect

import rollout_traces as rt
from rollout_traces.errors import StoreError
from rollout_traces.inspector.pages import live as page
from rollout_traces.inspector.pages.live import LiveAnswer, live, live_rollout
from rollout_traces.inspector.workspace import Workspace
from tests.generator import BatchPlan, rollout_batch, tiny_tokenizer
from tests.inspector.conftest import Served, Visit
from tests.inspector.told import told
from tests.until import until

HOSTILE = "<img src=x onerror=alert(1)> \x1b[31m \u202e backwards"


class Running:
    """A run that says what is in flight, and the project that it is of."""

    def __init__(self, folder) -> None:
        self.logger = rt.RolloutLogger(
            project="demo", name="run-a", tokenizer=tiny_tokenizer(), max_rollout_traces_per_step=4
        )
        self.rollout = self.logger.live("the first prompt", step=1, source="web", group="g1")
        self.rollout.stage("sampling", turns=1, tokens=20, words="let me look")
        until(lambda: (folder / "demo.db").exists())
        self.workspace = Workspace(folder=folder)
        self.until(lambda answer: answer["n_running"] == 1 and answer["rollouts"][0]["tokens"] == 20)

    def asked(self, **more):
        return told(live, self.workspace, {"project": "demo", "run": "run-a", **more})

    def until(self, condition) -> None:
        until(lambda: condition(self.asked()))

    def store_as(self, key: str) -> None:
        """Logs a step, with one of its rollouts as the one that was in flight."""
        batch = rollout_batch(tiny_tokenizer(), BatchPlan(n_groups=2, group_size=2))
        extras = [{"live": key}, *({} for _ in range(3))]
        self.logger.log_rollouts(dataclasses.replace(batch, extras=extras), step=1)
        assert self.logger.flush()
        self.workspace.refresh("demo")


@pytest.fixture
def running(trackio_dir):
    made = Running(trackio_dir)
    yield made
    made.workspace.close()
    made.logger.finish()


class TestTheAnswer:
    def test_says_what_runs_and_how_far_it_is(self, running):
        (row,) = running.asked()["rollouts"]
        assert (row["stage"], row["turns"], row["tokens"], row["words"]) == ("sampling", 1, 20, "let me look")
        assert (row["step"], row["source"], row["group"], row["fate"]) == (1, "web", "g1", "running")

    def test_lists_the_silent_then_the_slowest_and_says_how_many_it_leaves_out(self, running, monkeypatch):
        late = running.logger.live("late", step=1)
        later = running.logger.live("later", step=1)
        for each in (late, later):
            each.stage("sampling")
        running.until(lambda answer: answer["n_running"] == 3)
        assert [row["id"] for row in running.asked()["rollouts"]] == [running.rollout.id, late.id, later.id]
        monkeypatch.setattr(page, "SILENT", 1.5)
        until(lambda: running.asked()["n_silent"] == 3)
        running.rollout.stage("sampling", tokens=30)
        running.until(lambda answer: answer["n_silent"] == 2)
        assert [row["id"] for row in running.asked()["rollouts"]] == [late.id, later.id, running.rollout.id]
        cut = running.asked(limit=1)
        assert (len(cut["rollouts"]), cut["n_left_out"]) == (1, 2)

    def test_one_that_waits_in_a_queue_is_not_silent(self, running, monkeypatch):
        running.logger.live("queued", step=1)
        running.until(lambda answer: answer["stages"].get("queued") == 1)
        monkeypatch.setattr(page, "SILENT", 0.0)
        answer = running.asked()
        assert {row["stage"]: row["is_silent"] for row in answer["rollouts"]} == {
            "sampling": True,
            "queued": False,
        }
        assert answer["n_silent"] == 1

    def test_one_that_ended_leads_to_where_it_was_stored(self, running):
        running.rollout.stage("done")
        running.until(lambda answer: answer["n_ended"] == 1)
        assert running.asked()["ended"][0]["is_stored"] is False
        running.store_as(running.rollout.id)
        (row,) = running.asked()["ended"]
        store = running.workspace.store("demo")
        assert row["is_stored"]
        found = store.rollouts(f"extra/live = '{running.rollout.id}'", ["id"]).to_pylist()
        assert [each["id"] for each in found] == [row["trace"]]

    def test_one_is_told_with_its_stages(self, running):
        running.rollout.stage("tool", "browse", tokens=25)
        running.until(lambda answer: answer["rollouts"][0]["stage"] == "tool")
        asked = {"project": "demo", "run": "run-a", "id": running.rollout.id}
        found = told(live_rollout, running.workspace, asked)
        assert [each["stage"] for each in found["stages"]] == ["queued", "sampling", "tool"]
        assert found["stages"][1]["words"] == "let me look" and found["n_gone"] == 0
        with pytest.raises(StoreError, match="no rollout"):
            told(live_rollout, running.workspace, {**asked, "id": "nobody"})

    def test_says_which_were_running_when_the_logger_finished(self, running):
        running.logger.finish()
        answer = running.asked()
        assert (answer["n_running"], answer["n_lost"]) == (0, 1)
        (remark,) = answer["remarks"]
        assert re.fullmatch("Rank 0 on “.*” finished while 1 of its rollouts was running.", remark)

    def test_of_a_project_that_says_nothing_is_empty(self, trackio_dir):
        logger = rt.RolloutLogger(project="demo", name="run-a")
        logger.log_scalars({"x": 1.0}, step=1)
        logger.finish()
        workspace = Workspace(folder=trackio_dir)
        asked = {"project": "demo", "run": "run-a"}
        assert LiveAnswer(**told(live, workspace, asked)) == page.said_of(None, {}, 1)
        assert told(page.live, workspace, {**asked, "limit": 500})
        with pytest.raises(StoreError, match="limit: 1 to 500"):
            told(live, workspace, {**asked, "limit": 501})
        workspace.close()


@pytest.mark.browser
class TestThePage:
    @pytest.fixture
    def seen(self, chromium, running, trackio_dir):
        server = Served(trackio_dir, "--project", "demo")
        visit = Visit(chromium, server.address)
        visit.open(tab="live", project="demo", run="run-a")
        yield visit
        visit.close()
        server.stop()

    def test_shows_a_rollout_while_it_grows_until_it_is_stored(self, seen, running):
        row = seen.get("flight-row")
        expect(row).to_contain_text("the first prompt")
        expect(row).to_contain_text("let me look")
        row.get_by_role("button").first.click()
        opened = seen.get("flight-opened")
        expect(opened).to_contain_text("in flight")
        running.rollout.stage("tool", "browse", words="calling browse")
        expect(row).to_contain_text("tool browse")
        expect(opened).to_contain_text("calling browse")
        running.rollout.stage("done")
        expect(seen.get("flight-ended")).to_contain_text("the first prompt")
        running.store_as(running.rollout.id)
        seen.get("flight-ended").get_by_test_id("flight-stored").click()
        expect(seen.get("rollout-header")).to_be_visible()
        assert seen.state["tab"] == "rollouts" and seen.state["id"]

    def test_what_a_rollout_writes_stays_text(self, seen, running):
        rollout = running.logger.live(HOSTILE, step=1, source=HOSTILE)
        rollout.stage("tool", HOSTILE, words=HOSTILE)
        row = seen.page.locator(f"[data-id='{rollout.id}']")
        expect(row).to_contain_text("<img src=x onerror=alert(1)>")
        row.get_by_role("button").first.click()
        expect(seen.get("flight-opened")).to_contain_text("⟨RLO⟩")
        assert seen.page.locator(".rt-flight img").count() == 0

    def test_a_row_that_is_chosen_stays_where_it_is_when_others_come(self, seen, running):
        seen.get("flight-row").first.get_by_role("button").first.focus()
        seen.page.evaluate("window.mine = document.activeElement")
        running.logger.live("another", step=1)
        expect(seen.get("flight-row")).to_have_count(2)
        assert seen.page.evaluate("window.mine === document.activeElement && window.mine.isConnected")

    def test_says_what_was_running_when_the_logger_finished(self, seen, running):
        expect(seen.get("population")).to_contain_text("1 in flight")
        running.logger.finish()
        expect(seen.get("flight-remarks")).to_contain_text("finished while 1 of its rollouts was running")
        expect(seen.get("flight-row")).to_contain_text("was sampling")
