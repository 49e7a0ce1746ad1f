"""A rollout of many tokens: what is far from the view is not laid out, and nothing can be told from outside."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from tests.inspector.conftest import Served, Visit, log_project

pytestmark = pytest.mark.browser
EVERY_96 = 6 * (9000 // 6 // 97)
"""How often the longest word is written, in six turns."""
LONG = {"run": "large-run", "split": "rollout", "step": 1, "group": 0, "sample": 0, "overlay": "logprob"}


@pytest.fixture(scope="module")
def long_served(tmp_path_factory):
    folder = tmp_path_factory.mktemp("long")
    log_project(folder, "--project", "long", "--tokens", "9000", module="make_large")
    log_project(folder, "--project", "other", "--traces", "64", module="make_large")
    server = Served(folder)
    yield server
    server.stop()


@pytest.fixture
def long_visit(chromium, long_served):
    visit = Visit(chromium, long_served.address)
    yield visit
    visit.close()


def test_the_text_is_whole_and_turns_far_from_the_view_are_not_laid_out(long_visit):
    long_visit.open(project="long", **LONG)
    expect(long_visit.get("token").first).to_be_visible()
    texts, laid_out = long_visit.page.evaluate(
        """() => {
          const turns = [...document.querySelectorAll('.rt-active .rt-tokens')];
          return [turns.map(n => n.textContent), turns.map(n => n.lastElementChild.checkVisibility({contentVisibilityAuto: true}))];
        }"""
    )
    assert "".join(texts).count("w96") == EVERY_96
    assert laid_out[0] and not laid_out[-1]


def test_a_token_far_below_is_gone_to_and_drawn(long_visit):
    long_visit.open(project="long", token=7000, **LONG)
    expect(long_visit.page.locator(".rt-active .rt-at")).to_be_in_viewport()
    expect(long_visit.page.locator(".rt-active .rt-at")).to_have_attribute("data-i", "7000")
    expect(long_visit.get("token-card")).to_be_visible()


def test_what_is_scrolled_to_becomes_tokens(long_visit):
    long_visit.open(project="long", **LONG)
    expect(long_visit.get("token").first).to_be_visible()
    last = long_visit.page.locator(".rt-active .rt-chunk").last
    assert last.locator("i").count() == 0
    last.evaluate("node => node.scrollIntoView()")
    expect(last.locator("i").last).to_be_visible()


def test_what_is_just_below_the_view_becomes_tokens_before_it_is_scrolled_to(long_visit):
    long_visit.open(project="long", **LONG)
    below = long_visit.page.locator(".rt-active .rt-chunk").nth(4)
    expect(below.locator("i").last).to_be_attached()
    expect(below).not_to_be_in_viewport()


def go_to_the_long_one(long_visit):
    """As a step back in the browser's history does."""
    long_visit.page.evaluate(
        "query => { history.pushState({}, '', query); window.dispatchEvent(new PopStateEvent('popstate')); }",
        "?project=long&" + "&".join(f"{key}={value}" for key, value in LONG.items()),
    )


def test_the_list_does_not_wait_for_a_rollout_that_takes_long(long_visit):
    long_visit.open(project="other", tab="rollouts")
    expect(long_visit.get("turn").first).to_be_visible()
    held = long_visit.hold("rollout")
    go_to_the_long_one(long_visit)
    expect(long_visit.get("sample-card")).to_have_count(1)
    expect(long_visit.get("token")).to_have_count(0)
    assert len(held) == 1
    held.pop().continue_()
    expect(long_visit.get("token").first).to_be_visible()
    long_visit.page.unroute("**/component_server/")


def test_a_rollout_that_arrives_when_the_address_names_another_is_not_drawn(long_visit):
    held = long_visit.hold("rollout")
    long_visit.open(project="other", tab="rollouts")
    expect(long_visit.get("sample-card").nth(1)).to_be_visible()
    catalog = long_visit.hold("catalog")
    go_to_the_long_one(long_visit)
    with long_visit.page.expect_response("**/component_server/"):
        held.pop(0).continue_()
    long_visit.page.evaluate("() => new Promise(done => setTimeout(done, 300))")
    assert long_visit.get("turn").count() == 0
    catalog.let_go()
    held.let_go()
    expect(long_visit.get("token").first).to_be_visible()
    long_visit.page.unroute("**/component_server/")


def test_a_rollout_of_another_project_is_asked_for_beside_the_projects_catalog(long_visit):
    long_visit.open(project="other", tab="rollouts")
    expect(long_visit.get("turn").first).to_be_visible()
    held, asked = [], []

    def answer(route):
        name = route.request.post_data_json["fn_name"]
        asked.append(name)
        if name == "catalog" and "rollout" not in asked:
            held.append(route)
            return
        route.continue_()
        while name == "rollout" and held:
            held.pop().continue_()

    long_visit.page.route("**/component_server/", answer)
    go_to_the_long_one(long_visit)
    expect(long_visit.get("token").first).to_be_visible()
    long_visit.page.unroute("**/component_server/")
    assert asked.count("rollout") == 1
    assert {"catalog", "rollout"} <= set(asked)
