"""Images of a rollout on its page: from the local store, where their tokens stand."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

pytestmark = pytest.mark.browser

PLACE = {"project": "pictures", "run": "run-a", "split": "rollout", "step": 1, "group": 0}


class TestImages:
    def test_they_are_drawn_in_the_text_and_beside_the_tokens(self, visit):
        visit.open(**PLACE, sample=0)
        pictures = visit.get("image").locator("img")
        expect(pictures).to_have_count(2)
        assert pictures.evaluate_all("all => all.map(each => each.naturalWidth)") == [60, 30]
        body = visit.page.locator("[data-role='user']:visible .rt-turn-body")
        order = body.evaluate(
            "node => [...node.children].map(each => each.dataset.image ?? each.textContent.trim())"
        )
        assert order == ["Look:", "0", "and", "1", "What is it?"]
        visit.picture("images")
        visit.page.keyboard.press("v")
        expect(visit.get("token").first).to_be_visible()
        expect(visit.get("image").locator("img")).to_have_count(2)

    def test_one_is_enlarged_by_a_click_and_closed(self, visit):
        visit.open(**PLACE, sample=0)
        visit.get("image").first.locator("button").click()
        expect(visit.page.locator(".rt-image-large[open] img")).to_be_visible()
        visit.page.keyboard.press("Escape")
        expect(visit.page.locator(".rt-image-large")).to_have_count(0)

    def test_what_was_no_image_says_so_in_its_place(self, visit):
        visit.open(**PLACE, sample=1)
        expect(visit.get("image").nth(1)).to_contain_text("left out")
        expect(visit.get("image").nth(1)).to_contain_text("no PNG, JPEG, GIF or WebP")
        expect(visit.get("image").locator("img")).to_have_count(1)

    def test_compare_draws_them_too(self, visit):
        visit.open(**PLACE, tab="compare")
        expect(visit.get("compare-left")).to_be_visible()
