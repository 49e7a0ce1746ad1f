"""What one reads of a rollout, and the ways through it."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from tests.inspector.conftest import Visit, box_of

pytestmark = pytest.mark.browser

PLACE = {"project": "demo", "run": "run-a", "split": "rollout"}
LEAK = {**PLACE, "scope": "all", "where": "flags has 'mask_leak'"}


IN_SIGHT = """() => [...document.querySelectorAll("[data-role='user']")].some(turn =>
    turn.checkVisibility() && turn.getBoundingClientRect().top < 480)"""


class TestHeader:
    def test_the_conversation_is_in_sight_for_every_rollout_of_a_small_window(self, chromium, served):
        """Seen once: at 1280 x 720 a flagged rollout showed no conversation."""
        visit = Visit(chromium, served.address, viewport={"width": 1280, "height": 720})
        for step in range(1, 7):
            visit.open(**PLACE, step=step)
            expect(visit.get("turn").first).to_be_visible()
            visit.get("sample-card").first.wait_for()
            for position in range(visit.get("sample-card").count()):
                card = visit.get("sample-card").nth(position)
                card.click()
                expect(card).to_have_attribute("aria-current", "")
                visit.page.wait_for_function(IN_SIGHT)
        visit.close()

    def test_it_unfolds_and_stays_so_for_the_next_rollout(self, visit):
        visit.open(**PLACE, step=4)
        kept = visit.page.locator(".rt-selected-by")
        expect(kept).not_to_be_visible()
        visit.get("header-more").locator("> summary").click()
        expect(kept).to_be_visible()
        visit.page.keyboard.press("j")
        expect(visit.page.locator(".rt-selected-by")).to_be_visible()

    def test_an_expected_answer_of_many_lines_is_one_whole_line(self, visit):
        visit.open(**PLACE, step=4)
        heights = visit.page.locator(".rt-head-line .rt-answer code").first.evaluate(
            """node => ["x", "x\\ny\\nz"].map(text => {
            node.textContent = text; return node.getBoundingClientRect().height; })"""
        )
        assert heights[0] == heights[1] > 0

    def test_errors_stand_before_warnings_and_in_their_colour(self, visit):
        """Seen once: errors were paler than warnings."""
        visit.open(**LEAK, tab="rollouts")
        flags = visit.page.locator(".rt-rollout-head [data-testid='flag']")
        expect(flags.first).to_have_attribute("data-flag", "mask_leak")
        colours = flags.evaluate_all("all => all.map(node => getComputedStyle(node).backgroundColor)")
        assert (
            visit.page.evaluate(
                """() => { const probe = document.createElement('i'); probe.style.background = 'var(--rt-error-soft)';
            document.body.append(probe); return getComputedStyle(probe).backgroundColor; }"""
            )
            == colours[0]
        )
        assert colours[0] not in colours[1:]

    def test_a_preview_shows_the_answer_not_the_thinking(self, visit):
        """Seen once: previews showed the thinking."""
        visit.open(**PLACE, step=4)
        previews = visit.page.locator(".rt-sample-words:visible")
        previews.first.wait_for()
        words = previews.all_inner_texts()
        assert not any("think>" in each for each in words)


class TestWays:
    def test_home_and_end_scroll_and_leave_the_step(self, visit):
        """Seen once: Home and End changed the step."""
        visit.open(**PLACE, step=4)
        expect(visit.get("turn").first).to_be_visible()
        middle = visit.page.locator(".rt-middle:visible")
        visit.page.keyboard.press("End")
        visit.page.wait_for_function("document.querySelector('.rt-active .rt-middle').scrollTop > 0")
        assert visit.state["step"] == "4"
        visit.page.keyboard.press("Home")
        visit.page.wait_for_function("document.querySelector('.rt-active .rt-middle').scrollTop === 0")
        expect(middle).to_be_visible()

    def test_the_outline_marks_flags_and_leads_to_turns(self, visit):
        """Seen once: no outline of turns, no key for the last one."""
        visit.open(**LEAK, tab="rollouts")
        parts = visit.get("outline-turn")
        expect(parts.first).to_be_visible()
        assert parts.count() == visit.get("turn").count()
        expect(visit.get("rollout-header")).to_contain_text("assistant turn")
        odd = visit.page.locator("[data-testid='outline-turn'][data-severity='error']")
        expect(odd.first).to_have_attribute("title", __import__("re").compile("mask leak"))
        visit.page.keyboard.press("a")
        expect(visit.page.locator("[data-testid='outline-turn'][aria-current]")).to_have_class(
            __import__("re").compile("rt-role-assistant")
        )
        visit.page.keyboard.press("9")
        expect(parts.last).to_have_attribute("aria-current", "true")
        visit.page.keyboard.press("0")
        expect(parts.first).to_have_attribute("aria-current", "true")
        visit.page.keyboard.press("b")
        marked = visit.page.locator("[data-testid='outline-turn'][aria-current]")
        assert marked.get_attribute("data-severity") in ("error", "warn")

    def test_e_goes_to_the_extreme_of_the_overlay_first(self, visit):
        """Seen once: e under an overlay went to a token without a value."""
        visit.open(**PLACE, step=4, overlay="mismatch")
        expect(visit.get("token").first).to_be_visible()
        places, sizes = [], []
        for _ in range(8):
            visit.page.keyboard.press("e")
            expect(visit.get("token-card")).to_be_visible()
            place, told = visit.page.evaluate(
                """() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done([
                  Number(document.querySelector('.rt-active .rt-at').dataset.i),
                  [...document.querySelectorAll('[data-testid=token-card] dt')]
                    .find(node => node.textContent.startsWith('prox − rollout')).nextSibling.textContent]))))"""
            )
            places.append(place)
            sizes.append(abs(float(told.replace("−", "-"))))
        assert sizes[0] == max(sizes) > 0.01
        assert places[0] != min(places), "the greatest is the first one too: nothing is told apart"

    def test_run_and_split_keep_the_place(self, visit):
        """Seen once: another run or split lost the step."""
        visit.open(**PLACE, step=2, group=2)
        expect(visit.get("rollout-header")).to_contain_text("Step 2 · group 2")
        visit.get("run-select").select_option("run-b")
        expect(visit.get("rollout-header")).to_contain_text("Step 2 · group 2")
        assert visit.state["run"] == "run-b"
        visit.get("run-select").select_option("run-a")
        visit.get("split-select").select_option("eval-rollout")
        expect(visit.get("step-input")).to_have_value("3")
        expect(visit.get("rollout-header")).to_contain_text("Step 3")


class TestCharts:
    def test_what_was_chosen_is_remembered_for_the_project(self, visit):
        """Seen once: chosen charts were forgotten; the useful ones were not there at first."""
        visit.open(**PLACE, tab="rollouts")
        visit.get("charts-choose").click()
        visit.page.get_by_placeholder("search").locator("visible=true").last.fill("tokens/prompt/mean")
        visit.page.locator(".rt-chooser label").first.locator("input").check()
        expect(visit.page.locator("[data-metric$='tokens/prompt/mean']")).to_be_visible()
        visit.open(**PLACE, tab="rollouts")
        expect(visit.page.locator("[data-metric$='tokens/prompt/mean']")).to_be_visible()

    def test_components_evaluation_and_loss_are_among_the_first_by_their_own_names(self, visit):
        """Seen once: a curve had another name in its chart than in its key."""
        visit.open(**PLACE, tab="rollouts")
        for name in ("reward/correct/mean", "eval-rollout/reward/mean", "train/loss"):
            expect(visit.page.locator(".rt-chart figcaption > .rt-ellipsis", has_text=name)).to_be_visible()
        shown = visit.get("chart").evaluate_all(
            """all => all.map(chart => [chart.dataset.metric, chart.querySelector("figcaption > .rt-ellipsis"),
            chart.querySelector("svg")]).map(([key, name, svg]) => [key, name.textContent, name.title, svg.ariaLabel])"""
        )
        names = {key: key.removeprefix("rollout/") for key, *_ in shown}
        assert shown == [[key, name, key, f"{name} over steps"] for key, name in names.items()]
        assert len(names) > 3


class TestContent:
    def test_long_json_is_folded_with_its_size(self, visit):
        """Seen once: long JSON was 40,000 pixels high."""
        visit.open(project="hostile", split="agent", tab="rollouts")
        json = visit.get("json")
        expect(json).to_contain_text("2,000 items")
        assert box_of(json)["height"] < 200
        json.locator("summary").first.click()
        expect(json).to_contain_text("1,800 more")

    def test_a_traceback_is_in_monospace_with_its_columns(self, visit):
        """Seen once: tracebacks lost their columns."""
        visit.open(project="hostile", split="agent", tab="rollouts")
        code = visit.page.locator("pre[data-language='traceback']")
        expect(code).to_contain_text("    print(1 / 0)\n          ~~^~~\nZeroDivisionError")
        assert "mono" in code.evaluate("node => getComputedStyle(node).fontFamily").lower()

    def test_thinking_that_another_tool_logged_is_folded_and_copied_as_it_was_written(self, visit):
        visit.open(project="hostile", split="agent", tab="rollouts")
        thinking = visit.page.locator(".rt-thinking")
        expect(thinking).to_have_count(1)
        expect(thinking.locator("summary")).to_contain_text("Thinking")
        expect(thinking).to_contain_text("The rows are here.")
        answer = visit.page.locator("[data-testid='turn']", has=thinking)
        expect(answer).to_have_attribute("data-role", "assistant")
        expect(answer).not_to_contain_text("think>")
        expect(visit.page.locator("[data-role='user']")).to_contain_text("<think>I say</think>")
        answer.get_by_role("button", name="copy").click()
        copied = visit.page.evaluate("navigator.clipboard.readText()")
        assert copied.startswith("<think>\nThe rows  are here.\n</think>\n\nI run it.\nTraceback")

    def test_text_runs_in_the_direction_of_its_script(self, visit):
        """Seen once: Arabic ran from the left."""
        visit.open(project="hostile", split="agent", tab="rollouts")
        paragraph = visit.page.locator("[data-role='user'] .rt-markdown p")
        expect(paragraph).to_have_attribute("dir", "auto")
        assert paragraph.evaluate("node => getComputedStyle(node).direction") == "rtl"


class TestCredit:
    def test_overlays_of_the_group_and_the_step_are_read_when_chosen(self, visit):
        visit.open(**PLACE, step=4, overlay="cancellation")
        expect(visit.get("legend")).to_contain_text("1 where they cancel")
        visit.get("overlay-select").select_option("entropy_covariance")
        expect(visit.get("legend")).to_contain_text("means over the step")
        expect(
            visit.page.locator("[data-testid='token'][class^='p'], [data-testid='token'][class^='n']").first
        ).to_be_visible()

    def test_each_turn_can_be_read_in_figures(self, visit):
        visit.open(**PLACE, step=4)
        visit.get("turn-table-button").click()
        table = visit.get("turn-table")
        expect(table.locator("tbody tr")).to_have_count(visit.get("turn").count())
        expect(table).to_contain_text("mismatch k3")
        table.locator("tbody tr").last.locator("button").click()
        expect(visit.get("outline-turn").last).to_have_attribute("aria-current", "true")

    def test_the_key_shows_these_figures_wherever_one_reads(self, visit):
        visit.open(**PLACE, step=4)
        visit.page.set_viewport_size({"width": 1280, "height": 480})
        visit.get("turn").last.scroll_into_view_if_needed()
        visit.page.keyboard.press("End")
        expect(visit.get("turn").first).not_to_be_in_viewport()
        visit.page.keyboard.press("y")
        expect(visit.get("turn-table").locator("th").first).to_be_in_viewport()
        bar = box_of(visit.page.locator(".rt-transcript-bar:visible"))
        for place in (visit.get("turn-table"), visit.get("turn").nth(1)):
            assert bar["y"] + bar["height"] <= box_of(place)["y"] <= 480
            visit.get("outline-turn").nth(1).click()
