"""Shared files opened from disk in a browser that has no network."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import expect

from rollout_traces.inspector.shared_file import Shared, shared_contents, shared_page
from tests.inspector.conftest import ARTIFACTS
from tests.inspector.share.test_share import everything

pytestmark = pytest.mark.browser


class Opened:
    """A file in a browser; requests and errors are collected."""

    def __init__(self, browser: object, path: Path) -> None:
        self.sins: list[str] = []
        self.context = browser.new_context(offline=True, viewport={"width": 1440, "height": 900})
        self.page = self.context.new_page()
        self.page.on("request", lambda request: self.sins.append(request.url))
        self.page.on("pageerror", lambda error: self.sins.append(str(error)))
        self.page.on("console", lambda message: self.sins.append(message.text))
        self.page.goto(path.as_uri())
        assert self.sins.pop(0) == path.as_uri()

    def get(self, testid: str) -> object:
        """What is visible under a test id."""
        return self.page.locator(f"[data-testid='{testid}']:visible")


@pytest.fixture
def opened(chromium, workspace, tmp_path) -> Iterator[object]:
    """Opens the file of what is shared; fails when it asked for anything or an error was raised."""
    pages: list[Opened] = []

    def open_(wanted: Shared) -> Opened:
        path = tmp_path / "page.html"
        path.write_text(shared_page(shared_contents(workspace, wanted)), "utf-8")
        pages.append(Opened(chromium, path))
        return pages[-1]

    yield open_
    for each in pages:
        each.context.close()
        assert not each.sins, each.sins


class TestFromDisk:
    def test_a_rollout_has_its_tokens_card_and_overlays(self, opened, longest):
        page = opened(Shared("share", rollouts=(longest,)))
        expect(page.get("turn")).to_have_count(2)
        page.page.keyboard.press("v")
        page.get("overlay-select").select_option("logprob")
        expect(page.page.locator(".rt-legend").first).to_be_visible()
        page.page.keyboard.press("e")
        expect(page.get("token-card")).to_contain_text("rollout logprob")
        page.get("overlay-select").select_option("cancellation")
        expect(page.page.locator(".rt-legend").first).to_be_visible()
        ARTIFACTS.mkdir(parents=True, exist_ok=True)
        page.page.screenshot(path=str(ARTIFACTS / "shared.png"))

    def test_hostile_text_does_nothing(self, opened, longest):
        page = opened(Shared("share", rollouts=(longest,)))
        expect(page.page.locator("body")).to_contain_text("</script><script>window.pwned")
        assert page.page.evaluate("window.pwned") is None

    def test_a_comparison_shows_both_sides_and_swaps_them(self, opened, longest, workspace):
        page = opened(everything(longest, workspace)[1])
        expect(page.get("deltas")).to_be_visible()
        left = page.get("compare-left").inner_text()
        page.page.keyboard.press("s")
        expect(page.get("compare-right")).to_contain_text(left.splitlines()[-1][:40])
        page.get("shared-rollouts").click()
        expect(page.get("rollout-header")).to_be_visible()

    def test_a_group_opens_its_rollouts_and_says_what_it_lacks(self, opened, longest, workspace):
        page = opened(everything(longest, workspace)[2])
        expect(page.get("members").locator("tbody tr")).to_have_count(4)
        page.get("members").locator("button").first.click()
        expect(page.get("rollout-header")).to_contain_text("group 0")
        page.get("shared-group").click()
        page.page.keyboard.press("c")
        expect(page.get("population")).to_have_text("It is not in this file.")

    def test_an_explanation_is_the_runs_report(self, opened, longest, workspace):
        page = opened(everything(longest, workspace)[3])
        expect(page.get("run-verdict")).to_be_visible()
        expect(page.get("explain-against")).to_be_visible()
        expect(page.get("share")).to_have_count(0)


class TestTheButton:
    def test_downloads_what_is_shown_without_the_texts_that_are_to_be_hidden(self, visit, tmp_path):
        visit.open(tab="rollouts", project="demo", run="run-a", step=6)
        expect(visit.get("turn").first).to_be_visible()
        visit.get("share").click()
        visit.get("share-hide").fill("bags of")
        with visit.page.expect_download() as download:
            visit.get("share-download").click()
        path = tmp_path / "page.html"
        download.value.save_as(path)
        text = path.read_text("utf-8")
        assert download.value.suggested_filename == "rollout.html"
        assert "default-src 'none'" in text.replace("&#x27;", "'")
        assert "parts are hidden" in text
        assert "bags of" not in text
        expect(visit.get("share-dialog")).to_have_count(0)

    def test_the_report_of_a_run_leads_to_no_rows_that_the_file_lacks(self, visit, chromium, tmp_path):
        visit.open(tab="run", project="demo", run="run-a", split="rollout")
        expect(visit.get("diagnosis-rollouts").first).to_be_visible()
        visit.get("share").click()
        with visit.page.expect_download() as download:
            visit.get("share-download").click()
        path = tmp_path / "report.html"
        download.value.save_as(path)
        report = Opened(chromium, path)
        expect(report.get("diagnosis").first).to_be_visible()
        expect(report.get("diagnosis-rollouts")).to_have_count(0)
        assert not report.sins
        report.context.close()
