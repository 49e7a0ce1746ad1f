"""What half a screen and a phone show: what a page is for is not squeezed away."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import expect

from tests.inspector.conftest import Served, Visit

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
        assert narrow.get(f"compare-pick-{side}").bounding_box()["width"] > 140


def test_the_first_number_of_the_funnel_is_in_sight(narrow: Visit) -> None:
    narrow.open(tab="lanes", **PLACE)
    number = narrow.get("funnel").locator("[data-stage='sampled'] td").nth(1)
    expect(number).to_be_visible()
    box = number.bounding_box()
    assert box["x"] + box["width"] <= narrow.page.viewport_size["width"]
