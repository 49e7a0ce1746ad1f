"""Sites behind a plain web server, in a browser."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlencode

import pytest
from playwright.sync_api import expect

from rollout_traces.inspector.registry import PAGES
from rollout_traces.inspector.site import write_site
from tests.inspector.conftest import ARTIFACTS

pytestmark = pytest.mark.browser
WIDTHS = (390, 820, 1440)


class Quiet(SimpleHTTPRequestHandler):
    """Python's own web server, without its log."""

    def log_message(self, *said: object) -> None:
        pass


class Browsed:
    """A site in a browser; requests that leave it and errors are collected."""

    def __init__(self, browser: object, folder: Path) -> None:
        self.sins: list[str] = []
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder)))
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()
        self.address = f"http://127.0.0.1:{self._server.server_port}/"
        self.context = browser.new_context(viewport={"width": 1440, "height": 900})
        self.page = self.context.new_page()
        self.page.set_default_timeout(60_000)
        self.page.on("request", self._requested)
        self.page.on("pageerror", lambda error: self.sins.append(str(error)))
        self.page.on("console", lambda message: self.sins.append(message.text))
        self.page.on("response", lambda answer: answer.status < 400 or self.sins.append(answer.url))

    def _requested(self, request: object) -> None:
        if not request.url.startswith((self.address, "data:")):
            self.sins.append(request.url)

    def open(self, **state: object) -> None:
        self.page.goto(f"{self.address}?{urlencode(state)}")
        self.page.locator(".rt-active").first.wait_for()

    def get(self, testid: str) -> object:
        """What is visible under a test id."""
        return self.page.locator(f"[data-testid='{testid}']:visible")

    def close(self) -> None:
        self.context.close()
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def browsed(chromium) -> Iterator[object]:
    """Opens a site's folder; fails when it left its server or an error was raised."""
    opened: list[Browsed] = []

    def open_(folder: Path) -> Browsed:
        opened.append(Browsed(chromium, folder))
        return opened[-1]

    yield open_
    for each in opened:
        each.close()
        assert not each.sins, each.sins


class TestASite:
    def test_opens_on_the_run_and_leads_to_rollouts(self, browsed, site):
        page = browsed(site)
        page.open()
        expect(page.get("run-verdict")).to_be_visible()
        page.get("shared-rollouts").click()
        expect(page.get("rollout-header")).to_contain_text("Step 6")
        expect(page.get("population")).to_contain_text("16 of 32 rollouts kept")
        page.get("step-previous").click()
        expect(page.get("rollout-header")).to_contain_text("Step 5")
        page.page.go_back()
        expect(page.get("rollout-header")).to_contain_text("Step 6")

    def test_its_pages_have_the_keys_that_they_have_in_the_inspector(self, browsed, site):
        """Seen once: none, and the help named keys that need the server and do nothing here."""
        keys = {page.name: page.key for page in PAGES}
        page = browsed(site)
        page.open()
        expect(page.get("run-verdict")).to_be_visible()
        page.page.keyboard.press(keys["rollouts"])
        expect(page.get("rollout-header")).to_be_visible()
        page.page.keyboard.press("?")
        expect(page.get("help")).to_contain_text("Search the text")
        expect(page.get("help")).not_to_contain_text("Pin it")
        page.page.keyboard.press("Escape")
        page.page.keyboard.press(keys["run"])
        expect(page.get("run-verdict")).to_be_visible()

    def test_filters_and_searches_and_points_at_what_it_cannot_read(self, browsed, site):
        page = browsed(site)
        page.open(tab="rollouts", scope="all")
        expect(page.get("sample-card")).to_have_count(96)
        page.get("filter-input").fill("reward > 0")
        page.page.keyboard.press("Enter")
        expect(page.get("population")).to_contain_text("match")
        page.get("search-input").fill("check")
        expect(page.get("snippet").first).to_be_visible()
        page.get("filter-input").fill("rewrd >= 1")
        page.page.keyboard.press("Enter")
        expect(page.get("filter-error-token")).to_have_text("rewrd")

    def test_shows_tokens_under_masks(self, browsed, site):
        page = browsed(site)
        page.open(tab="rollouts", mode="tokens", overlay="loss_mask")
        expect(page.page.locator(".rt-legend").first).to_be_visible()
        expect(page.page.locator("[data-i]").first).to_be_visible()
        page.get("overlay-select").select_option("cancellation")
        expect(page.page.locator(".rt-legend").first).to_be_visible()

    @pytest.mark.parametrize("width", WIDTHS)
    def test_is_no_wider_than_its_window(self, browsed, site, width):
        page = browsed(site)
        page.page.set_viewport_size({"width": width, "height": 800})
        for tab, shown in (("run", "run-verdict"), ("rollouts", "rollout-header")):
            page.open(tab=tab)
            expect(page.get(shown)).to_be_visible()
            assert page.page.evaluate("document.documentElement.scrollWidth") <= width
            ARTIFACTS.mkdir(parents=True, exist_ok=True)
            page.page.screenshot(path=str(ARTIFACTS / f"site-{tab}-{width}.png"))

    def test_images_are_drawn(self, browsed, workspace, tmp_path):
        folder = tmp_path / "pictures"
        write_site(workspace, "pictures", "run-a", folder)
        page = browsed(folder)
        page.open(tab="rollouts", step=1, group=0, sample=0)
        expect(page.page.locator("figure img").first).to_be_visible()


class TestHostileText:
    def test_does_nothing(self, browsed, workspace, tmp_path):
        folder = tmp_path / "hostile"
        [run, *_] = [info.name for info in workspace.store("hostile").runs()]
        write_site(workspace, "hostile", run, folder)
        page = browsed(folder)
        page.open(tab="rollouts", split="foreign")
        expect(page.page.locator("body")).to_contain_text("<script>window.pwned = 1</script>")
        assert page.page.evaluate("window.pwned") is None
        for _ in range(3):
            page.page.keyboard.press("v")
            page.page.keyboard.press("j")
            page.page.wait_for_timeout(200)
        assert page.page.evaluate("window.pwned") is None
