"""A run that goes on while the page is open."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from tests.inspector.conftest import Served, Visit, log_project

pytestmark = pytest.mark.browser


@pytest.fixture
def live(chromium, tmp_path):
    log_project(tmp_path, "--steps", "2")
    server = Served(tmp_path, "--project", "demo")
    visit = Visit(chromium, server.address)
    yield visit, tmp_path
    visit.close()
    server.stop()


class TestLiveUpdates:
    def test_a_run_that_stands_still_is_not_called_live(self, visit):
        visit.open(tab="rollouts", project="demo", run="run-a")
        expect(visit.get("live")).to_contain_text("up to date", timeout=10_000)
        expect(visit.get("live")).not_to_contain_text("live")

    def test_new_steps_appear_without_moving_what_is_read(self, live):
        visit, folder = live
        visit.page.set_viewport_size({"width": 1280, "height": 560})
        visit.open(step=1)
        expect(visit.get("turn").first).to_be_visible()
        shown = visit.get("rollout-header").inner_text()
        visit.page.evaluate(
            "document.querySelector('.rt-active .rt-middle').scrollTop = 120; window.mine = document.querySelector('.rt-active [data-testid=turn]')"
        )
        log_project(folder, "--first-step", "3", "--steps", "2")
        expect(visit.get("step-pager")).to_contain_text("of 4", timeout=60_000)
        assert visit.get("rollout-header").inner_text() == shown
        assert visit.page.evaluate(
            "window.mine.isConnected && document.querySelector('.rt-active .rt-middle').scrollTop === 120"
        )
        assert visit.state["step"] == "1"

    def test_a_page_without_a_project_opens_the_first_that_is_begun_and_shows_its_step(
        self, chromium, tmp_path
    ):
        server = Served(tmp_path)
        visit = Visit(chromium, server.address)
        visit.open()
        expect(visit.page.get_by_text("No project here yet")).to_be_visible()
        log_project(tmp_path, "--steps", "1")
        expect(visit.get("live")).to_contain_text("1 step", timeout=60_000)
        assert visit.state["project"] == "demo"
        visit.close()
        server.stop()

    def test_following_goes_to_the_newest_step(self, live):
        visit, folder = live
        visit.open(tab="rollouts")
        expect(visit.get("step-input")).to_have_value("2")
        visit.page.keyboard.press("l")
        expect(visit.get("follow")).to_have_attribute("aria-pressed", "true")
        log_project(folder, "--first-step", "3", "--steps", "1")
        expect(visit.get("step-input")).to_have_value("3", timeout=60_000)
        expect(visit.get("population")).to_contain_text("at step 3")

    def test_a_server_that_ends_is_noticed(self, chromium, tmp_path):
        log_project(tmp_path, "--steps", "1")
        server = Served(tmp_path)
        visit = Visit(chromium, server.address)
        visit.open(tab="rollouts", project="demo")
        expect(visit.get("turn").first).to_be_visible()
        server.stop()
        expect(visit.get("live")).to_contain_text("does not answer", timeout=60_000)
        visit.sins.clear()
        visit.close()
