"""The Episodes page."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect

from tests.inspector.conftest import Visit, box_of

pytestmark = pytest.mark.browser

PLACE = {"project": "agents", "run": "run-a", "split": "rollout", "tab": "episodes"}


class TestEpisodes:
    def test_an_episode_is_a_tree_that_says_how_each_row_left_and_what_was_trained(self, visit):
        visit.open(**PLACE, step=1)
        rows = visit.get("branches").locator("tbody tr")
        expect(rows).to_have_count(5)
        kinds = rows.evaluate_all("all => all.map(row => row.dataset.kind)")
        assert sorted(kinds) == ["branch", "compaction", "opening", "retry", "sub_agent"]
        expect(visit.get("branches").locator("tr[data-kind='opening']")).to_contain_text("trained")
        expect(visit.get("branches").locator("tr[data-kind='retry']")).to_contain_text("superseded")
        expect(visit.get("episode-reward")).to_contain_text("counted once")
        expect(visit.get("branches")).to_contain_text("researcher")
        visit.picture("episodes")

    def test_the_way_and_the_flags_are_in_sight_at_1280(self, chromium, served):
        visit = Visit(chromium, served.address, viewport={"width": 1280, "height": 720})
        visit.open(**PLACE, step=1)
        table = visit.get("branches")
        expect(table.locator("tbody tr")).to_have_count(5)
        assert table.locator("th").all_inner_texts()[-1] == "flags"
        wide = table.evaluate("table => [table.parentElement.scrollWidth, table.parentElement.clientWidth]")
        assert wide[0] <= wide[1]
        bar = box_of(table.locator("td.rt-way svg").last)
        assert bar["width"] > 100
        visit.close()

    def test_a_click_opens_a_branch_and_its_turns_are_linked(self, visit):
        visit.open(**PLACE, step=1)
        expect(visit.get("turn-link")).to_have_count(5)
        visit.page.locator("tr[data-kind='sub_agent'] [data-testid='open-branch']:visible").click()
        expect(visit.get("transcript")).to_contain_text("You are a researcher")
        visit.get("to-parent").click()
        expect(visit.get("transcript")).to_contain_text("You lead a team")
        visit.page.locator("[data-turn='3']:visible [data-testid='turn-link']").click()
        expect(visit.get("transcript")).to_contain_text("You are a researcher")
        assert visit.state["episode"] == "e1-0"

    def test_the_way_goes_by_seconds_where_rows_say_when_they_began(self, visit):
        visit.open(**PLACE, step=1)
        expect(visit.get("branches")).to_contain_text("through tokens")
        visit.page.keyboard.press("]")
        expect(visit.get("branches")).to_contain_text("through time")

    def test_episodes_and_branches_are_walked_by_keys(self, visit):
        visit.open(**PLACE, step=1)
        expect(visit.page.locator("h1:visible")).to_have_text("Episode e1-0")
        visit.page.keyboard.press("J")
        expect(visit.page.locator("h1:visible")).to_have_text("Episode e1-1")
        visit.page.keyboard.press("j")
        expect(visit.page.locator("tr[aria-current]:visible")).to_have_attribute(
            "data-kind", re.compile("sub_agent")
        )

    def test_a_rollout_leads_to_its_episode(self, visit):
        visit.open(**{**PLACE, "tab": "rollouts"}, step=1, group=1)
        visit.get("open-episode").click()
        expect(visit.page.locator("h1:visible")).to_have_text(re.compile("Episode e1-[23]"))

    def test_a_run_without_episodes_has_no_such_tab_and_says_why(self, visit):
        visit.open(project="demo", run="run-a", split="rollout", step=4)
        expect(visit.get("tab-episodes")).to_have_count(0)
        visit.open(project="demo", run="run-a", split="rollout", step=4, tab="episodes")
        expect(visit.page.locator(".rt-notice:visible")).to_contain_text("no episodes")
