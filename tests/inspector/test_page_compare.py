"""The Compare page."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

pytestmark = pytest.mark.browser


class TestComparing:
    def test_says_that_it_is_loading(self, visit):
        held = visit.hold("compare")
        visit.open(tab="compare", project="demo", run="run-a", split="rollout", step=4)
        expect(visit.page.locator(".rt-compare .rt-loading")).to_be_visible()
        held.let_go()
        expect(visit.get("deltas")).to_be_visible()

    def test_best_and_worst_of_a_group_stand_side_by_side(self, visit):
        visit.open(tab="compare", project="demo", run="run-a", split="rollout", step=4, group=2)
        expect(visit.get("compare-left")).to_be_visible()
        expect(visit.get("compare-right")).to_be_visible()
        expect(visit.get("deltas")).to_contain_text("reward")
        expect(visit.get("deltas")).to_contain_text("correct")
        left, right = (
            float(text) for text in visit.page.locator(".rt-side-head .rt-reward b").all_inner_texts()
        )
        assert left > right
        expect(visit.get("population")).to_contain_text("of 32 rollouts kept")
        visit.picture("compare")

    def test_the_runs_are_named_and_flags_do_not_underline_every_word(self, visit):
        """Seen once: Compare underlined every word and named no run."""
        visit.open(
            tab="compare", project="demo", run="run-a", split="rollout", step=4, group=2, mode="tokens"
        )
        expect(visit.get("compare-run-a")).to_contain_text("run-a")
        expect(visit.get("compare-run-b")).to_contain_text("run-a")
        expect(visit.get("token").first).to_be_visible()
        expect(visit.page.locator(".rt-tokens .fl")).to_have_count(0)

    def test_a_side_of_another_run_opens_in_its_run(self, visit):
        """Seen once: it led to the rollout at the same place of the run that was open."""
        pinned = {}
        for side, run in (("b", "run-b"), ("a", "run-a")):
            visit.open(project="demo", run=run, split="rollout", step=2)
            expect(visit.get("rollout-header")).to_contain_text("Step 2")
            visit.get("pin").click()
            pinned[side] = visit.state["a"]
        visit.open(tab="compare", project="demo", run="run-a", split="rollout", step=2, **pinned)
        expect(visit.get("compare-run-b")).to_contain_text("run-b")
        visit.page.locator(".rt-side-open:visible").last.click()
        expect(visit.get("turn").first).to_be_visible()
        assert visit.state["run"] == "run-b"

    def test_a_table_that_scrolls_ends_within_a_row(self, visit):
        """Seen once: it said that 20 differ, showed ten whole rows and nothing of more."""
        visit.open(tab="compare", project="demo", run="run-a", split="rollout", step=4, group=2)
        expect(visit.get("deltas")).to_be_visible()
        table = visit.get("deltas")
        assert table.evaluate("node => node.scrollHeight > node.clientHeight")
        cut = table.evaluate(
            """node => { const end = node.getBoundingClientRect().bottom; const row = [...node.querySelectorAll("tr")]
            .map(row => row.getBoundingClientRect()).find(box => box.bottom > end);
            return row && (end - row.top) / row.height; }"""
        )
        assert 0.25 < cut < 0.8

    def test_the_first_divergent_token_is_marked_on_both_sides_and_differs(self, visit):
        visit.open(tab="compare", project="demo", run="run-a", split="rollout", step=4, group=2)
        expect(visit.get("first-divergence").first).to_be_visible()
        marked = visit.page.locator(".rt-tokens .dv")
        positions = marked.evaluate_all("all => all.map(n => n.dataset.i)")
        texts = marked.all_inner_texts()
        assert len(set(positions)) == 1
        if len(texts) == 2:
            assert texts[0] != texts[1]
        line = marked.first.evaluate(
            "node => [getComputedStyle(node).outlineWidth, getComputedStyle(node).outlineOffset].map(parseFloat)"
        )
        assert sum(line) <= 1, "seen once: the frame of “4” hid the “5” behind it"

    def test_the_shared_prefix_is_folded_and_opens_on_both_sides(self, visit):
        visit.open(tab="compare", project="demo", run="run-a", split="rollout", step=4, group=2)
        visit.get("shared-prefix").first.locator("> summary").click()
        expect(visit.page.locator(".rt-shared[open]")).to_have_count(2)

    def test_another_rollout_can_be_picked_for_a_side(self, visit):
        visit.open(tab="compare", project="demo", run="run-a", split="rollout", step=4, group=2)
        picker = visit.get("compare-pick-b")
        expect(picker).to_be_visible()
        values = picker.locator("option").evaluate_all("all => all.map(o => o.value)")
        picker.select_option(values[1])
        visit.page.wait_for_function("new URLSearchParams(location.search).get('b') !== null")
        assert visit.state["b"] == values[1]

    def test_a_pinned_rollout_is_compared_across_steps(self, visit):
        visit.open(project="demo", run="run-a", split="rollout", step=2)
        expect(visit.get("rollout-header")).to_contain_text("Step 2")
        visit.get("pin").click()
        pinned = visit.state["a"]
        visit.page.keyboard.press("]")
        expect(visit.get("rollout-header")).to_contain_text("Step 3")
        visit.get("open-compare").click()
        expect(visit.get("compare-right")).to_be_visible()
        assert visit.state["a"] == pinned
        assert visit.state["b"] != pinned

    def test_the_eval_prompt_is_followed_over_the_steps(self, visit):
        visit.open(tab="compare", project="demo", run="run-a", split="eval-rollout", step=6)
        expect(visit.get("prompt-history").locator("button")).to_have_count(2)

    def test_one_kept_rollout_alone_says_what_to_do(self, visit):
        visit.open(tab="compare", project="demo", run="run-a", split="rollout", step=99)
        expect(visit.page.locator(".rt-notice:visible")).to_contain_text("two rollouts")
