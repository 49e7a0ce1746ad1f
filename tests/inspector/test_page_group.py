"""The Group page."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect

pytestmark = pytest.mark.browser

PLACE = {"project": "demo", "run": "run-a", "split": "rollout", "step": 4}


class TestGroup:
    def test_every_rollout_of_the_group_is_there_and_the_kept_ones_say_what_they_did(self, visit):
        visit.open(tab="group", group=2, **PLACE)
        rows = visit.get("members").locator("tbody tr")
        expect(rows).to_have_count(8)
        expect(rows.first).to_contain_text("calculator")
        expect(visit.get("members")).to_contain_text("its text was not kept")
        rewards = [float(text) for text in visit.page.locator(".rt-bench .rt-cell-reward").all_inner_texts()]
        assert rewards == sorted(rewards, reverse=True)
        strips = visit.page.locator("[data-testid='members']:visible .rt-turn-strip")
        kept = visit.get("members").locator("tbody tr:not(.rt-not-traced)").count()
        expect(strips).to_have_count(kept)
        expect(strips.first.locator(".rt-strip-call")).not_to_have_count(0)
        expect(visit.get("population")).to_contain_text("rollouts kept at step 4")
        visit.picture("group")

    def test_the_tree_shows_where_samples_part_and_leads_there(self, visit):
        visit.open(tab="group", group=2, **PLACE)
        tree = visit.get("prefix-tree")
        expect(tree.locator("li").first).to_contain_text("samples")
        tree.locator("button").first.click()
        expect(visit.get("rollout-header")).to_contain_text("Step 4 · group 2")
        expect(visit.page.locator(".rt-at")).to_be_visible()

    def test_best_and_worst_are_told_apart_by_action_and_phrase(self, visit):
        visit.open(tab="group", group=2, **PLACE)
        expect(visit.get("first-action")).to_contain_text("best, #")
        expect(visit.get("phrases")).to_contain_text(re.compile(r"\d of \d winners, \d of \d losers"))

    def test_of_equal_rewards_none_is_the_best(self, visit):
        """Seen once: of a tied group it said that the best and the worst did the same."""
        visit.open(tab="group", group=0, **PLACE)
        expect(visit.get("first-action")).to_contain_text("none is the best")

    def test_groups_are_walked_and_opened_from_the_list(self, visit):
        visit.open(**PLACE)
        visit.page.locator("[data-group='1'] .rt-group-open").click()
        expect(visit.page.locator("h1:visible")).to_have_text("Step 4 · group 1")
        visit.get("next-group").click()
        expect(visit.page.locator("h1:visible")).to_have_text("Step 4 · group 2")
        visit.page.keyboard.press("K")
        expect(visit.page.locator("h1:visible")).to_have_text("Step 4 · group 1")

    def test_best_and_worst_of_a_single_kept_rollout_cannot_be_compared(self, visit):
        """Seen once: the button led to a page that said that there was nothing to compare."""

        def alone(route, request):
            if '"fn_name":"group"' not in (request.post_data or ""):
                return route.continue_()
            answer = route.fetch()
            first, *others = re.split(r'(?="id":")', answer.text())[1:]
            head = answer.text().split('"id":"', 1)[0]
            body = head + first + "".join(re.sub(r'^"id":"[^"]*"', '"id":null', each) for each in others)
            return route.fulfill(response=answer, body=body)

        visit.open(tab="group", group=2, **PLACE)
        expect(visit.get("group-compare")).to_be_enabled()
        visit.page.route("**/component_server/", alone)
        visit.open(tab="group", group=1, **PLACE)
        expect(visit.get("group-compare")).to_be_disabled()

    def test_traces_without_a_group_say_so(self, visit):
        visit.open(tab="group", project="hostile", split="agent", step=1)
        expect(visit.page.locator(".rt-notice:visible")).to_contain_text("no group")
