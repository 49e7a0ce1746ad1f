"""Every page can be read and worked: contrast, names, keyboard, width."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from tests.inspector.axe import axe_source, serious
from tests.inspector.conftest import Visit, box_of

pytestmark = pytest.mark.browser

PAGES = {
    "rollouts": ({"step": "4"}, "turn"),
    "rollouts-tokens": ({"tab": "rollouts", "step": "4", "overlay": "logprob"}, "token"),
    "compare": ({"step": "4"}, "compare-left"),
    "explore": ({}, "explore-table"),
    "health": ({"step": "4", "flag": "flags:tool_error"}, "health-card"),
    "group": ({"step": "4", "group": "2"}, "members"),
    "episodes": ({"project": "agents", "step": "1"}, "branches"),
    "what_if": ({"step": "4", "rules": "icepop:0.9,1.1"}, "taken"),
    "lanes": ({"step": "4"}, "reward-functions"),
    "projects": ({}, "project-card"),
    "run": ({}, "run-card"),
    "explain": ({"step": "4", "where": "flags has 'tool_error'", "against": "rest=1"}, "findings"),
    "prompts": ({}, "prompt-row"),
    "flips": ({}, "grid-cell"),
    "runs": ({"other": "run-b"}, "runs-card"),
    "live": ({}, "flight-row"),
}


def open_page(visit, name):
    state, shown = PAGES[name]
    visit.open(**{"project": "demo", "run": "run-a", "split": "rollout", "tab": name, **state})
    expect(visit.get(shown).first).to_be_visible()
    visit.page.wait_for_timeout(500)


@pytest.fixture(scope="session")
def axe():
    return axe_source()


@pytest.fixture(scope="module")
def readable_by_axe(chromium, served):
    """A visit whose page takes a script from outside, as axe is one."""
    visit = Visit(chromium, served.address, bypass_csp=True)
    yield visit
    visit.close()


class TestNoSeriousFault:
    @pytest.mark.parametrize("name", PAGES)
    def test_axe_finds_none(self, readable_by_axe, axe, name):
        open_page(readable_by_axe, name)
        page, seen = readable_by_axe.page, set()
        while (theme := page.evaluate("document.documentElement.dataset.rtTheme")) not in seen:
            seen.add(theme)
            assert serious(page, axe) == [], theme
            page.keyboard.press("t")
            page.wait_for_function("document.getAnimations().every(each => each.playState !== 'running')")
        assert seen == {"light", "dark"}


class TestWidth:
    @pytest.mark.parametrize("name", PAGES)
    def test_no_page_scrolls_sideways(self, chromium, served, name):
        visit = Visit(chromium, served.address, viewport={"width": 390, "height": 844})
        open_page(visit, name)
        for width in (390, 1280, 1440, 2560):
            visit.page.set_viewport_size({"width": width, "height": 844})
            visit.page.wait_for_timeout(200)
            beyond = visit.page.evaluate(
                """() => [...document.querySelectorAll('.rt-active *, .rt-top, .rt-status')]
                  .filter(node => node.offsetParent && !node.closest('.rt-explore-table, .rt-table-scroll, .rt-bench-scroll, .rt-tree, .rt-turn-table, pre, svg, .rt-pickers, .rt-tabs'))
                  .filter(node => node.getBoundingClientRect().right > innerWidth + 1)
                  .filter(node => !node.parentElement.closest('.rt-ellipsis, .rt-sample-facts, .rt-group-line, .rt-dots'))
                  .slice(0, 3).map(node => node.outerHTML.slice(0, 160))"""
            )
            assert beyond == [], width
            assert visit.page.evaluate("document.scrollingElement.scrollWidth <= innerWidth")
        visit.close()

    def test_the_tab_of_the_open_page_is_in_sight_on_a_phone(self, chromium, served):
        visit = Visit(chromium, served.address, viewport={"width": 390, "height": 844})
        open_page(visit, "runs")
        box = box_of(visit.get("tab-runs"))
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= 390
        visit.close()

    def test_a_link_can_be_read_on_a_phone(self, chromium, served):
        """Seen once: a link was of no use on a phone."""
        visit = Visit(chromium, served.address, viewport={"width": 390, "height": 844})
        open_page(visit, "rollouts")
        assert box_of(visit.get("turn").first)["width"] > 330
        expect(visit.get("sample-card")).to_have_count(0)
        visit.get("list-toggle").click()
        visit.get("sample-card").last.click()
        expect(visit.get("sample-card")).to_have_count(0)
        expect(visit.get("turn").first).to_be_visible()
        visit.close()


class TestKeyboard:
    @pytest.mark.parametrize("name", [name for name in PAGES if name != "rollouts-tokens"])
    def test_whatever_can_be_clicked_can_be_reached(self, visit, name):
        open_page(visit, name)
        unreachable = visit.page.evaluate(
            """() => [...document.querySelectorAll('.rt-active *')]
              .filter(node => node.offsetParent !== null || node.ownerSVGElement)
              .filter(node => getComputedStyle(node).cursor === 'pointer' && getComputedStyle(node.parentElement).cursor !== 'pointer')
              .filter(node => !node.closest('button:not(:disabled), a[href], select, input, label, summary, [tabindex="0"]'))
              .filter(node => !node.closest('button:disabled, .rt-hist-bar[tabindex="-1"]'))
              .slice(0, 3).map(node => node.outerHTML.slice(0, 160))"""
        )
        assert unreachable == []

    def test_a_chart_goes_step_by_step(self, visit):
        open_page(visit, "rollouts")
        visit.page.locator("[data-testid='charts'] .rt-chart-svg").first.focus()
        visit.page.keyboard.press("ArrowRight")
        expect(visit.get("step-input")).to_have_value("5")
