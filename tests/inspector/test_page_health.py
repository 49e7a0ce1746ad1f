"""The Health page."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

pytestmark = pytest.mark.browser


class TestHealth:
    def test_measures_flags_discards_and_ties_are_shown_over_all_rollouts(self, visit):
        visit.open(tab="health", project="demo", run="run-a", split="rollout")
        health = visit.get("health")
        for words in (
            "Tied groups",
            "Tokens in tied groups",
            "Truncated",
            "Staleness",
            "Discarded",
            "zero advantage",
            "mask leak",
        ):
            expect(health).to_contain_text(words)
        expect(visit.get("population")).to_contain_text("96 of 192 rollouts kept")
        visit.picture("health")

    def test_a_page_that_is_left_draws_nothing(self, visit):
        """Seen once: charts of negative width, whenever Health was left."""
        visit.open(tab="health", project="demo", run="run-a", split="rollout")
        expect(visit.get("health-card").first).to_be_visible()
        visit.page.keyboard.press("3")
        expect(visit.get("explore-table").first).to_be_visible()
        visit.page.keyboard.press("4")
        expect(visit.get("health-card").first.locator("svg")).to_be_visible()

    def test_what_is_not_computed_is_named_with_what_it_lacks(self, visit):
        visit.open(tab="health", project="demo", run="run-a", split="rollout")
        expect(visit.get("switched-off")).to_contain_text("stale")
        expect(visit.get("switched-off")).not_to_contain_text("Flags that are off", ignore_case=True)

    def test_a_point_opens_its_examples_and_those_lead_to_the_rollout(self, visit):
        visit.open(
            tab="health", project="demo", run="run-a", split="rollout", step=3, flag="flags:tied_group"
        )
        expect(visit.get("examples")).to_be_visible()
        visit.get("examples").locator("[data-testid='sample-card']").first.click()
        expect(visit.get("rollout-header")).to_contain_text("Step 3 · group 0")

    def test_a_flag_that_needs_text_speaks_of_kept_rollouts_alone(self, visit):
        place = {"tab": "health", "project": "demo", "run": "run-a", "split": "rollout", "step": 5}
        visit.open(**place, flag="flags:template_drift")
        expect(visit.page.locator(".rt-health-side:visible")).to_contain_text("those that were not kept")
        visit.open(**place, flag="flags:tied_group")
        expect(visit.page.locator(".rt-health-side:visible")).to_contain_text("of 32, ")

    def test_the_worst_flags_come_first(self, visit):
        """Seen once: Health sorted flags by frequency."""
        visit.open(tab="health", project="demo", run="run-a", split="rollout")
        expect(visit.get("heat-name").first).to_be_visible()
        shown = visit.page.locator("button.rt-heat-name[class*='rt-sev-']").evaluate_all(
            "all => all.map(node => ['error', 'warn', 'info', 'none'].findIndex(s => node.classList.contains('rt-sev-' + s)))"
        )
        assert shown[0] == 0
        assert [rank for rank in shown if rank < 3] == sorted(rank for rank in shown if rank < 3)

    def test_the_name_of_a_flag_lists_its_rollouts_of_all_steps(self, visit):
        """Seen once: a click on a flag's name did nothing."""
        visit.open(tab="health", project="demo", run="run-a", split="rollout")
        visit.get("heat-name").first.click()
        expect(visit.get("filter-input").first).to_have_value("flags has 'mask_leak'")
        assert visit.state["scope"] == "all"
        expect(visit.get("sample-card").first).to_be_visible()

    def test_evaluation_is_not_measured_by_what_it_was_trained_on(self, visit):
        """Seen once: "Wasted tokens" on evaluation."""
        visit.open(tab="health", project="demo", run="run-a", split="eval-rollout")
        expect(visit.get("health-card").first).to_be_visible()
        expect(visit.get("health")).not_to_contain_text("Wasted tokens")

    def test_a_measure_is_taken_apart_by_a_column(self, visit):
        """Seen once: a measure could not be taken apart."""
        visit.open(tab="health", project="demo", run="run-a", split="rollout", step=4)
        card = visit.page.locator("[data-measure='reward/mean']")
        card.locator("select").select_option("stop_reason")
        expect(card.locator(".rt-part")).to_have_count(2)
        expect(card).to_contain_text("length")
        unknown = card.evaluate("card => card.innerHTML.match(/NaN|undefined/)")
        assert unknown is None
        card.locator("select").select_option("")
        expect(card.locator(".rt-part")).to_have_count(0)

    def test_every_measure_is_taken_apart_the_flagged_ones_too(self, visit):
        visit.open(tab="health", project="demo", run="run-a", split="rollout", step=4)
        cards = visit.get("health-card")
        expect(cards.first).to_be_visible()
        assert cards.count() == cards.locator("[data-testid='by']").count() > 8
        card = visit.page.locator("[data-measure='flags/any_share']")
        card.locator("select").select_option("stop_reason")
        expect(card.locator(".rt-part")).to_have_count(2)
        shares = card.locator(".rt-part b").all_inner_texts()
        assert len(set(shares)) == 2 and all(share.endswith("%") for share in shares)

    def test_a_cell_of_the_flags_asks_for_its_step(self, visit):
        visit.open(tab="health", project="demo", run="run-a", split="rollout")
        visit.page.locator("[aria-label^='mask_leak at step 5']").click()
        expect(visit.page.locator(".rt-health-side:visible")).to_contain_text("mask leak at step 5")
        assert visit.state["step"] == "5"

    def test_examples_can_be_listed_with_their_filter(self, visit):
        visit.open(
            tab="health", project="demo", run="run-a", split="rollout", step=3, flag="measure:group/tie_share"
        )
        visit.get("examples-open").click()
        expect(visit.get("filter-input").first).to_have_value("flags has 'tied_group'")
        expect(visit.get("group-card")).to_have_count(1)

    def test_a_split_without_a_ledger_is_over_the_kept_rollouts_and_says_so(self, visit):
        visit.open(tab="health", project="hostile", split="foreign")
        expect(visit.get("health-card").first).to_be_visible()
        expect(visit.get("population")).to_contain_text(
            "2 rollouts kept over all steps · figures are over these"
        )

    def test_another_project_leaves_no_examples_of_the_one_before(self, visit):
        visit.open(
            tab="health", project="demo", run="run-a", split="rollout", step=4, flag="flags:tool_error"
        )
        expect(visit.get("examples")).to_be_visible()
        visit.get("project-select").select_option("agents")
        expect(visit.get("population")).to_contain_text("30 of 30")
        expect(visit.get("examples")).to_have_count(0)
