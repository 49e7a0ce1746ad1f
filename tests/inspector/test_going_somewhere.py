"""What the page shows after going somewhere within it is what a fresh load of that address shows."""

from __future__ import annotations

import re
import time
from urllib.parse import urlencode

import pytest
from playwright.sync_api import expect

pytestmark = pytest.mark.browser

RUN_A = {"project": "demo", "run": "run-a", "split": "rollout"}
PLACES = (
    {**RUN_A, "tab": "rollouts", "step": 4},
    {**RUN_A, "tab": "health", "step": 4, "flag": "flags:tool_error"},
    {"project": "agents", "tab": "health"},
    {"project": "agents", "run": "run-a", "split": "rollout", "tab": "runs", "step": 1},
    {"project": "demo", "run": "run-b", "tab": "runs", "overlay": "logprob"},
    {"project": "demo", "run": "run-b", "tab": "rollouts", "overlay": "logprob"},
    {"project": "pictures", "tab": "explore"},
    {**RUN_A, "tab": "flips"},
    {**RUN_A, "tab": "what_if", "step": 3, "rules": "stale:0"},
    {"project": "pictures", "tab": "group", "step": 1},
    {**RUN_A, "tab": "live"},
    {**RUN_A, "tab": "lanes", "step": 3},
    {**RUN_A, "tab": "run"},
)
GO = "query => { history.pushState({}, '', query); window.dispatchEvent(new PopStateEvent('popstate')); }"
SHOWN = """() => ['.rt-top', '.rt-incidents', '.rt-active', '.rt-status'].map(
    part => [...document.querySelectorAll(part)].map(node => node.innerText).join('|')).join('\\n')"""
UNTIL = 20.0
QUIET = 1.0
"""Seconds without a change after which a page has come to rest."""


def shown(page):
    """The text of a page; how long ago something was is left out."""
    return re.sub(r"just now|\d+ (second|minute|hour)s? ago", "", page.evaluate(SHOWN))


def rest(page):
    """Waits until nothing moves any more."""
    deadline, last, since = time.monotonic() + UNTIL, "", time.monotonic()
    while time.monotonic() < deadline and time.monotonic() - since < QUIET:
        page.wait_for_timeout(100)
        if shown(page) != last:
            last, since = shown(page), time.monotonic()


def test_a_page_that_was_gone_to_shows_what_a_fresh_one_shows(visit):
    """Seen once: a page that was left could answer late, and its line of what was kept stood under another page, once under another project."""
    visit.open(**PLACES[0])
    for place in PLACES[1:]:
        visit.page.evaluate(GO, "?" + urlencode(place))
        rest(visit.page)
        fresh = visit.context.new_page()
        fresh.goto(visit.page.url)
        fresh.locator(".rt-active").first.wait_for()
        rest(fresh)
        deadline = time.monotonic() + UNTIL  # either may still be waiting for an answer
        while shown(visit.page) != shown(fresh) and time.monotonic() < deadline:
            visit.page.wait_for_timeout(100)
        assert shown(visit.page) == shown(fresh), place
        fresh.close()


def test_an_answer_that_comes_after_its_page_was_left_says_nothing_on_another(visit):
    visit.open(**RUN_A, tab="explore")
    expect(visit.get("population")).to_contain_text("over all steps")
    held = visit.hold("health")
    visit.page.evaluate(GO, "?" + urlencode({**RUN_A, "tab": "health"}))
    expect(visit.page.locator(".rt-loading:visible")).to_have_count(1)
    visit.page.evaluate(GO, "?" + urlencode({**RUN_A, "tab": "rollouts", "step": 2}))
    expect(visit.get("population")).to_contain_text("rollouts kept at step 2")
    for late in held:
        late.continue_()
    visit.page.unroute("**/component_server/")
    visit.page.wait_for_timeout(1500)
    expect(visit.get("population")).to_contain_text("rollouts kept at step 2")
