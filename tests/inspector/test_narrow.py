"""What half a screen and a phone show: what a page is for is not squeezed away."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import expect

from tests.inspector.conftest import Served, Visit, box_of

pytestmark = pytest.mark.browser

PLACE = {"project": "demo", "run": "run-a", "split": "rollout", "step": 4, "group": 2}


@pytest.fixture(params=[900, 390])
def narrow(request: pytest.FixtureRequest, chromium: object, served: Served) -> Iterator[Visit]:
    visit = Visit(chromium, served.address, viewport={"width": request.param, "height": 900})
    yield visit
    visit.close()


def test_the_sides_of_a_comparison_can_be_read(narrow: Visit) -> None:
    """Seen once: at 900 points a choice was 20 wide, and a sentence had one word a line."""
    narrow.open(tab="compare", **PLACE)
    for side in "ab":
        expect(narrow.get(f"compare-pick-{side}")).to_be_visible()
        assert box_of(narrow.get(f"compare-pick-{side}"))["width"] > 140


def test_the_first_number_of_the_funnel_is_in_sight(narrow: Visit) -> None:
    narrow.open(tab="lanes", **PLACE)
    number = narrow.get("funnel").locator("[data-stage='sampled'] td").nth(1)
    expect(number).to_be_visible()
    box = box_of(number)
    assert box["x"] + box["width"] <= narrow.page.viewport_size["width"]


def test_the_open_incident_is_said_in_a_sentence_and_nothing_of_its_bar_is_cut(narrow: Visit) -> None:
    """Seen once: at 390 points the bar had no sentence and ended within a word; later it took four lines."""
    narrow.open(tab="rollouts", **PLACE)
    bar = narrow.get("incident-bar")
    expect(bar.locator(".rt-bar-sentence")).to_be_visible()
    expect(bar.get_by_test_id("bar-mute")).to_be_in_viewport(ratio=1)
    assert bar.evaluate("node => node.scrollWidth <= node.clientWidth")
    below = "[...document.querySelectorAll('.rt-active')].map(node => node.getBoundingClientRect().top)"
    box = box_of(bar)
    assert box["height"] < 55
    assert min(narrow.page.evaluate(below)) >= box["y"] + box["height"] - 1


@pytest.mark.parametrize("asked", ["label-button", "note-button", "share"])
def test_a_dialog_is_inside_the_window_with_its_field_and_can_be_closed(narrow: Visit, asked: str) -> None:
    """Seen once: at 390 points “Label” ended beyond the window, and without a keyboard nothing closed it."""
    narrow.open(tab="rollouts", **PLACE)
    narrow.get(asked).first.click()
    dialog = narrow.page.locator("dialog[open]")
    box, field = box_of(dialog), box_of(dialog.locator(".rt-input").first)
    assert box["x"] >= 0 and box["x"] + box["width"] <= narrow.page.viewport_size["width"]
    assert field["x"] - box["x"] == pytest.approx(
        box["x"] + box["width"] - field["x"] - field["width"], abs=1
    )
    dialog.get_by_text("close", exact=True).click()
    expect(narrow.page.locator("dialog[open]")).to_have_count(0)
