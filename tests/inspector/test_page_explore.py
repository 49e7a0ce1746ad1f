"""The Explore page."""

from __future__ import annotations

import json
import re

import pytest
from playwright.sync_api import expect

from tests.inspector.conftest import box_of

pytestmark = pytest.mark.browser


def rows(visit):
    """The table's rows."""
    return visit.page.locator("[data-testid='explore-table'] tbody tr")


def to_the_end(visit, held):
    """Scrolls to the end of the table, where its next rows are asked for, and waits until that is held back."""
    expect(visit.page.locator(".rt-sentinel")).to_be_attached()
    # in one go, since it may be drawn anew meanwhile
    visit.page.evaluate("document.querySelector('.rt-sentinel').scrollIntoView()")
    visit.page.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
    while not held:
        visit.page.wait_for_timeout(20)


class TestTheTable:
    def test_lists_kept_rollouts_and_says_that_shares_mislead(self, visit):
        visit.open(tab="explore", project="demo", run="run-a", split="rollout")
        expect(rows(visit)).to_have_count(96)
        expect(visit.get("population")).to_contain_text("96 of 192 rollouts kept")
        expect(visit.get("population")).to_contain_text("are the kept ones, not all")
        visit.picture("explore")

    def test_counts_what_is_listed(self, visit):
        """Seen once: under all rows it said how many are kept, and where all were kept that shares mislead."""
        visit.open(tab="explore", project="demo", run="run-a", split="rollout", rows="all", where="step = 2")
        expect(visit.get("population").locator("b")).to_have_text("192 rollouts")
        expect(visit.get("population")).to_contain_text("96 of them kept with their text · 32 rows match")
        visit.open(tab="explore", project="agents", run="run-a", split="rollout")
        expect(visit.get("population").locator("b")).to_have_text("30 of 30 rollouts kept")
        expect(visit.get("population")).not_to_contain_text("not all")

    def test_the_button_of_a_columns_spread_can_be_seen(self, visit):
        visit.open(tab="explore", project="demo", run="run-a", split="rollout")
        button = visit.page.locator(".rt-hist-button:visible").first
        expect(button).to_have_css("opacity", "1")
        expect(button).to_have_css("font-size", re.compile(r"^(1[2-9]|[2-9]\d)(\.\d+)?px$"))

    def test_flags_that_are_usual_in_the_run_are_drawn_quietly(self, visit):
        visit.open(tab="explore", project="demo", run="run-a", split="rollout")
        expect(visit.get("usual-flag").first).to_be_visible()

    def test_a_search_shows_the_text_around_what_was_found(self, visit):
        visit.open(tab="explore", project="demo", run="run-a", split="rollout", text="the")
        expect(visit.page.locator("th", has_text="found")).to_be_visible()
        expect(visit.get("snippet").first).to_contain_text("the", ignore_case=True)

    def test_all_rows_come_from_the_ledger_and_load_on_scrolling(self, visit):
        visit.open(tab="explore", project="demo", run="run-a", split="rollout", rows="all")
        expect(rows(visit).first).to_be_visible()
        visit.scroll_until(192)
        expect(rows(visit)).to_have_count(192)
        expect(visit.page.locator("tr.rt-not-traced").first).to_be_attached()

    def test_loads_on_where_another_order_was_drawn_while_its_next_rows_were_asked_for(self, visit):
        held = visit.hold("table", "'after'")
        visit.open(tab="explore", project="demo", run="run-a", split="rollout", rows="all")
        expect(rows(visit).first).to_be_visible()
        to_the_end(visit, held)
        visit.page.locator("th button:text-is('reward')").click()
        expect(visit.page.locator("th[aria-sort='descending']")).to_have_count(1)
        to_the_end(visit, held)
        held.let_go()
        expect(rows(visit)).to_have_count(192)

    def test_keeps_the_next_rows_where_it_was_drawn_anew_while_they_were_asked_for(self, visit):
        usual, held = visit.hold("incident_bar"), visit.hold("table", "'after'")
        visit.open(tab="explore", project="demo", run="run-a", split="rollout", rows="all")
        expect(rows(visit).first).to_be_visible()
        to_the_end(visit, held)
        usual.pop().continue_()
        expect(visit.get("usual-flag").first).to_be_attached()
        to_the_end(visit, held)
        held.let_go()
        expect(rows(visit)).to_have_count(192)

    def test_stays_where_its_reader_is_when_the_usual_flags_come_late(self, visit):
        held = visit.hold("incident_bar")
        visit.open(tab="explore", project="demo", run="run-a", split="rollout", rows="all")
        expect(rows(visit).first).to_be_visible()
        visit.scroll_until(192)
        held.let_go()
        expect(visit.get("usual-flag").first).to_be_attached()
        assert visit.page.locator(".rt-explore-table").evaluate("node => node.scrollTop") > 0

    def test_all_rows_show_what_the_kept_ones_say_and_are_searched(self, visit):
        visit.open(tab="explore", project="demo", run="run-a", split="rollout", rows="all")
        expect(visit.page.locator("th button:text-is('reply')")).to_be_visible()
        expect(rows(visit).first).to_be_visible()
        visit.get("search-input").first.fill("the")
        expect(visit.get("snippet").first).to_contain_text("the", ignore_case=True)
        expect(visit.page.locator("tr.rt-not-traced")).to_have_count(0)
        expect(visit.get("population")).to_contain_text("rows match")

    def test_what_a_filter_finds_in_the_text_is_shown(self, visit):
        visit.open(tab="explore", project="demo", run="run-a", split="rollout", where="text contains 'he'")
        expect(visit.get("snippet").first).to_contain_text("he", ignore_case=True)

    def test_a_click_on_a_heading_sorts(self, visit):
        visit.open(tab="explore", project="demo", run="run-a", split="rollout")
        visit.page.locator("th button:text-is('reward')").click()
        expect(visit.page.locator("th[aria-sort='descending']")).to_have_count(1)
        values = [float(t) for t in visit.page.locator(".rt-cell-reward").all_inner_texts()]
        assert values == sorted(values, reverse=True)

    def test_a_row_opens_under_rollouts(self, visit):
        visit.open(
            tab="explore", project="demo", run="run-a", split="rollout", where="group = 3 and step = 2"
        )
        rows(visit).first.click()
        expect(visit.get("rollout-header")).to_contain_text("Step 2 · group 3")

    def test_columns_can_be_chosen(self, visit):
        visit.open(tab="explore", project="demo", run="run-a", split="rollout")
        visit.get("choose-columns").click()
        visit.get("columns-panel").locator("label", has_text="mismatch_k3").locator("input").check()
        expect(visit.page.locator("th button:text-is('mismatch_k3')")).to_be_visible()
        assert "mismatch_k3" in visit.state["columns"]
        panel = visit.get("columns-panel")
        panel.locator("input.rt-input").fill("staleness")
        panel.locator("label", has_text="staleness_max").locator("input").uncheck()
        expect(visit.page.locator("th button:text-is('staleness_max')")).to_have_count(0)
        expect(panel.locator("input.rt-input")).to_have_value("staleness")
        expect(visit.get("toggle-spreads")).to_have_attribute("aria-pressed", "false")
        visit.page.keyboard.press("Escape")
        expect(panel).to_have_count(0)
        expect(visit.get("toggle-spreads")).to_have_attribute("aria-pressed", "true")


class TestHowAColumnIsSpread:
    def test_a_bar_of_the_histogram_narrows_the_filter(self, visit):
        visit.open(tab="explore", project="demo", run="run-a", split="rollout", hist="n_sampled")
        visit.page.locator("[data-spread='n_sampled'] [data-testid='histogram'] g").last.click()
        expect(visit.get("filter-input").first).to_have_value(__import__("re").compile("n_sampled >= "))
        expect(rows(visit).first).to_be_visible()

    def test_the_spreads_worth_seeing_are_a_panel_that_needs_no_hovering(self, visit):
        """Seen once: Explore's histogram was a glyph under the mouse."""
        visit.open(tab="explore", project="demo", run="run-a", split="rollout")
        expect(visit.page.locator("[data-spread='reward'] [data-testid='histogram']")).to_be_visible()
        expect(visit.page.locator("[data-spread='flags'] [data-testid='facets']")).to_be_visible()
        visit.get("toggle-spreads").click()
        expect(visit.page.locator("[data-spread]")).to_have_count(0)

    def test_a_filter_that_cannot_be_read_or_finds_nothing_is_said_once(self, visit):
        """Seen once: every spread repeated the mistake, or stood empty; each was asked for twice."""
        visit.open(tab="explore", project="demo", run="run-a", split="rollout")
        spread = visit.page.locator("[data-spread='reward']")
        expect(spread.get_by_test_id("histogram")).to_be_visible()
        asked = []
        visit.page.on("request", lambda request: asked.append(request.post_data or ""))
        visit.get("filter-input").fill("rewrd > 5")
        visit.get("filter-input").press("Enter")
        expect(visit.page.get_by_text("Did you mean reward?")).to_have_count(1)
        expect(rows(visit)).to_have_count(0)
        expect(spread.get_by_test_id("histogram")).to_be_visible()
        visit.get("filter-input").fill("reward > 5")
        visit.get("filter-input").press("Enter")
        expect(spread).to_contain_text("No values here")
        expect(visit.get("filter-error")).to_have_count(0)
        assert sum('"column":"reward"' in each for each in asked) == 1

    def test_a_window_without_room_for_the_spreads_shows_them_when_asked(self, visit):
        visit.page.set_viewport_size({"width": 800, "height": 900})
        visit.open(tab="explore", project="demo", run="run-a")
        toggle = visit.get("toggle-spreads")
        expect(toggle).to_have_attribute("aria-pressed", "false")
        expect(visit.page.locator("[data-spread]")).to_have_count(0)
        toggle.click()
        expect(toggle).to_have_attribute("aria-pressed", "true")
        expect(visit.page.locator("[data-spread='reward'] [data-testid='histogram']")).to_be_visible()

    def test_a_column_that_is_added_is_in_sight(self, visit):
        """Seen once: an added column lay behind the panel."""
        visit.open(tab="explore", project="demo", run="run-a", split="rollout")
        visit.get("choose-columns").click()
        visit.get("columns-panel").locator("label", has_text="mismatch_k3").locator("input").check()
        head = visit.page.locator(".rt-explore-table th", has_text="mismatch_k3")
        expect(head).to_be_visible()
        panel = box_of(visit.get("columns-panel"))
        title = box_of(head)
        assert title["x"] + title["width"] <= panel["x"]

    def test_facets_of_a_list_count_names(self, visit):
        visit.open(tab="explore", project="demo", run="run-a", split="rollout", hist="flags")
        facets = visit.page.locator("[data-spread='flags'] [data-testid='facets']")
        facets.locator("button", has_text="tied_group").click()
        visit.page.wait_for_function(
            "new URLSearchParams(location.search).get('where') === \"flags has 'tied_group'\""
        )


class TestExport:
    def test_gives_the_command_and_the_rows(self, visit):
        visit.open(tab="explore", project="demo", run="run-a", split="rollout", where="step = 2")
        expect(rows(visit)).to_have_count(16)
        written = visit.hold("export", "'only_counted': False")
        visit.get("export").click()
        dialog = visit.get("export-dialog")
        expect(dialog).to_contain_text("rollout-traces export")
        expect(dialog).to_contain_text("step = 2")
        assert not written, "nothing is written before it is asked for: that took seconds"
        written.let_go()
        with visit.page.expect_download() as download:
            visit.get("download").click()
        lines = open(download.value.path()).read().splitlines()  # noqa: PTH123, SIM115
        assert len(lines) == 16
        assert json.loads(lines[0])["messages"][0]["role"] == "system"
