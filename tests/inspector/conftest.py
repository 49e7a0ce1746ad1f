"""A real project, the real command serving it, and a headless Chromium that refuses the network."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Generator, Iterator
from pathlib import Path
from urllib.parse import urlencode, urlsplit

import pytest

from tests.inspector.forked import start_command

ROOT = Path(__file__).resolve().parents[2]
ARTIFACTS = ROOT / "artifacts" / "inspector"
TOKEN = "the token of the tests"
BEARER = {"Authorization": f"Bearer {TOKEN}"}
QUIET = {
    "OMP_NUM_THREADS": "1",
    "TRACKIO_TELEMETRY": "0",
    "HF_HUB_OFFLINE": "1",
    "PYTHONUNBUFFERED": "1",
    "ROLLOUT_TRACES_TOKEN": TOKEN,
}


def environment(folder: Path) -> dict[str, str]:
    """The environment of a child process whose Trackio lives in `folder`."""
    return {**os.environ, **QUIET, "TRACKIO_DIR": str(folder)}


LOG = """
import runpy, sys
import pytest
from tests.trackio_home import store_soon

store_soon(pytest.MonkeyPatch())
runpy.run_module(sys.argv.pop(1), run_name="__main__")
"""


def log_project(folder: Path, *options: str, module: str = "make_project") -> None:
    """Logs a project with the real logger, in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-c", LOG, f"tests.inspector.{module}", *options],
        cwd=ROOT,
        env=environment(folder),
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Trackio's folder with a project `demo` of two runs, and one with hostile text."""
    folder = tmp_path_factory.mktemp("trackio")
    log_project(folder, "--standard")
    return folder


class Served:
    """`rollout-traces show` in a process of its own, in which `before` runs first."""

    def __init__(
        self, folder: Path, *options: str, port: int | None = None, before: str = "", **variables: str
    ) -> None:
        self.port = port or free_port()
        self.address = f"http://127.0.0.1:{self.port}"
        self.output = folder / f"show-{self.port}.log"
        self.process = start_command(
            ["show", "--no-browser", "--port", str(self.port), *options],
            folder,
            environment(folder) | variables,
            self.output,
            before,
        )
        self._wait()

    def _wait(self) -> None:
        for _ in range(1200):
            if not self.process.is_alive():
                raise AssertionError(self.output.read_text())
            try:
                urllib.request.urlopen(self.address, timeout=5)
                return
            except urllib.error.HTTPError:
                return
            except (urllib.error.URLError, OSError):
                time.sleep(0.05)
        raise AssertionError(f"no answer from {self.address}: {self.output.read_text()}")

    def stop(self) -> None:
        """Ends the process."""
        self.process.terminate()
        self.process.join(timeout=20)
        assert not self.process.is_alive()
        for place in [place for place in _CONTEXTS if place[0] == self.address]:
            del _CONTEXTS[place]


BROWSERS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
"""Commands of a system's browser: the shell draws no window, and takes half the processor time of a whole one."""

NO_BROWSER = "browser tests: no Chromium. Get it with `apt-get install chromium-headless-shell`, or `.venv/bin/playwright install --only-shell chromium`"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Adds what the page showed, and what the server wrote, to the report of a failed test.

    All tests that are skipped for want of a browser are given one place, so that pytest lists them in one line.
    """
    report = yield
    if report.skipped and isinstance(report.longrepr, tuple) and report.longrepr[2].endswith(NO_BROWSER):
        report.longrepr = (__file__, 1, NO_BROWSER)
    given = getattr(item, "funcargs", {})
    if report.when == "call" and report.failed:
        if isinstance(visit := given.get("visit"), Visit):
            report.sections.append(("the page", visit.described()))
        if isinstance(server := given.get("served"), Served):
            report.sections.append(("the server", server.output.read_text()[-4000:]))
    return report


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="session")
def served(home: Path) -> Iterator[Served]:
    """The inspector over `home`."""
    server = Served(home)
    yield server
    server.stop()


@pytest.fixture(scope="session")
def chromium() -> Iterator[object]:
    """One headless Chromium for the session."""
    playwright = pytest.importorskip("playwright.sync_api")
    playwright.expect.set_options(timeout=60_000)
    with playwright.sync_playwright() as started:
        system = next(filter(None, map(shutil.which, BROWSERS)), None)
        try:
            browser = started.chromium.launch(executable_path=system, args=["--no-sandbox"])
        except playwright.Error:
            (pytest.fail if os.environ.get("CI") else pytest.skip)(NO_BROWSER)
        yield browser
        browser.close()


def wait_in_opened(tab: object, expression: str, seconds: float = 60) -> None:
    """Waits until an expression holds in a tab that a page opened.

    Chromium is asked itself. Such a tab asks for its page before Playwright listens to it, and where Playwright
    misses that, its locators wait for a navigation that is long over; a reload makes them work.

    Args:
        tab: Playwright's page.
        expression: JavaScript.
        seconds: how long to wait.

    Raises:
        AssertionError: it did not hold in time.
    """
    asked = tab.context.new_cdp_session(tab)  # type: ignore[attr-defined]
    until = time.monotonic() + seconds
    while True:
        answer = asked.send("Runtime.evaluate", {"expression": f"Boolean({expression})"})
        if answer["result"].get("value"):
            return
        assert time.monotonic() < until, f"{expression} did not hold within {seconds:g} s"
        time.sleep(0.2)


def box_of(locator: object, seconds: float = 60) -> dict[str, float]:
    """Where an element lies, once it is drawn and lies at the same place twice in a row.

    `bounding_box()` is None where the page puts a new element in the place of this one meanwhile.

    Args:
        locator: Playwright's locator.
        seconds: how long to wait.

    Raises:
        AssertionError: it was not drawn, or did not stay, in time.
    """
    until = time.monotonic() + seconds
    before = None
    while True:
        box = locator.bounding_box()  # type: ignore[attr-defined]
        if box is not None and box == before:
            return box
        assert time.monotonic() < until, f"{locator} had no place within {seconds:g} s: {before}, then {box}"
        before = box
        locator.page.wait_for_timeout(50)  # type: ignore[attr-defined]


def sign_in(context: object, address: str, token: str = TOKEN) -> None:
    """Gives every page of a browser's context a session of the inspector at an address."""
    answer = context.request.post(f"{address}/session", data={"token": token})  # type: ignore[attr-defined]
    assert answer.ok, answer.status
    origin = urlsplit(address)
    kept = json.dumps([f"{origin.scheme}://{origin.netloc}", f"rollout-traces {origin.path or '/'}"])
    key = json.dumps(answer.json()["key"])
    context.add_init_script(  # type: ignore[attr-defined]
        f"""(([origin, name]) => {{
            if (self.origin === origin && !sessionStorage.getItem(name)) sessionStorage.setItem(name, {key});
        }})({kept})"""
    )


DESKTOP = {"width": 1440, "height": 900}
_CONTEXTS: dict[tuple[str, str], object] = {}
"""Browser contexts by a server's address and the visitor's token: the page's scripts stay in their cache."""


def _context_of(browser: object, address: str, token: str) -> object:
    if (address, token) not in _CONTEXTS:
        _CONTEXTS[address, token] = _signed_in(browser, address, token)
    return _CONTEXTS[address, token]


def _signed_in(browser: object, address: str, token: str, **options: object) -> object:
    context = browser.new_context(viewport=DESKTOP, **options)  # type: ignore[attr-defined]
    sign_in(context, address, token)
    context.grant_permissions(["clipboard-read", "clipboard-write"])
    return context


class Held(list):
    """Calls of a page that are held back, until all are let go."""

    let_pass = False

    def let_go(self) -> None:
        """Lets them go, and those that come."""
        self.let_pass = True
        while self:
            self.pop(0).continue_()


class Visit:
    """A page of the inspector in a browser; what it must never do is collected in `sins`.

    Visits of one address and token share a context, and clear its storage when they close. One with options of its
    own (`bypass_csp=True`) has a context of its own.
    """

    def __init__(
        self,
        browser: object,
        address: str,
        token: str = TOKEN,
        *,
        viewport: dict[str, int] | None = None,
        color_scheme: str | None = None,
        **options: object,
    ) -> None:
        self.address = address
        self.sins: list[str] = []
        self._calls: list[object] = []
        self._is_alone = bool(options)
        self.context = (
            _signed_in(browser, address, token, **options)
            if options
            else _context_of(browser, address, token)
        )
        self._before = list(self.context.pages)  # type: ignore[attr-defined]
        self.page = self.context.new_page()  # type: ignore[attr-defined]
        self.page.set_viewport_size(viewport or DESKTOP)
        self.page.emulate_media(color_scheme=color_scheme)
        self.page.set_default_timeout(60_000)
        self.page.on("request", self._requested)
        self.page.on("requestfinished", self._done)
        self.page.on("requestfailed", self._done)
        self.page.on("pageerror", lambda error: self.sins.append(f"script error: {error}"))
        self.page.on("response", self._answered)
        self.page.on("console", self._said)

    def _requested(self, request: object) -> None:
        url = request.url  # type: ignore[attr-defined]
        if not re.match(r"(data|blob|about):", url) and not url.startswith(self.address):
            self.sins.append(f"asked the network for {url}")
        if url.endswith("/component_server/"):
            self._calls.append(request)

    def _done(self, request: object) -> None:
        if request in self._calls:
            self._calls.remove(request)

    def _said(self, message: object) -> None:
        if message.type == "error" and "> attribute" in message.text:  # type: ignore[attr-defined]
            self.sins.append(f"drew wrongly: {message.text}")  # type: ignore[attr-defined]

    def _answered(self, response: object) -> None:
        if response.status >= 400:  # type: ignore[attr-defined]
            self.sins.append(f"{response.status} for {response.url}")  # type: ignore[attr-defined]

    def open(self, path: str = "/", **state: object) -> object:
        """Opens a state of the page and waits until it shows something."""
        self.page.goto(f"{self.address}{path}{'?' + urlencode(state) if state else ''}")
        self.page.locator(".rt-active").first.wait_for()
        return self.page

    def get(self, testid: str) -> object:
        """What is visible under a test id."""
        return self.page.locator(f"[data-testid='{testid}']:visible")

    def wait_until_quiet(self, seconds: float = 60) -> None:
        """Waits until all that the page asked for has come, and it asked for nothing more for a third of a second.

        Raises:
            AssertionError: it still asked after so many seconds.
        """
        until = time.monotonic() + seconds
        n_quiet = 0
        while n_quiet < 4:
            assert time.monotonic() < until, f"{len(self._calls)} calls are open after {seconds:g} s"
            self.page.wait_for_timeout(100)
            n_quiet = 0 if self._calls else n_quiet + 1

    def hold(self, name: str, part: str = "") -> Held:
        """Holds back the page's calls of a server function that name `part`; returns where they gather."""
        held = Held()

        def handle(route: object) -> None:
            asked = route.request.post_data_json  # type: ignore[attr-defined]
            if not held.let_pass and asked["fn_name"] == name and part in str(asked["data"]):
                held.append(route)
            else:
                route.fallback()  # type: ignore[attr-defined]

        self.page.route("**/component_server/", handle)
        return held

    def scroll_until(self, n_rows: int) -> None:
        """Scrolls to the end of a table that loads on, also where it is drawn anew meanwhile, until it has so many rows."""
        self.page.wait_for_function(
            """n => {
                document.querySelector(".rt-sentinel")?.scrollIntoView();
                return document.querySelectorAll("[data-testid='explore-table'] tbody tr").length >= n;
            }""",
            arg=n_rows,
        )

    @property
    def state(self) -> dict[str, str]:
        """The address as the page reads it, once it has written there what it filled in."""
        return self.page.evaluate(
            """() => new Promise(done => setTimeout(() => done(Object.fromEntries(new URLSearchParams(location.search))), 350))"""
        )

    def picture(self, name: str) -> None:
        """Keeps a screenshot among the artifacts."""
        ARTIFACTS.mkdir(parents=True, exist_ok=True)
        self.page.screenshot(path=str(ARTIFACTS / f"{name}.png"))

    def described(self) -> str:
        """What the page shows, for the report of a failed test."""
        text = "\n".join(frame.locator("body").inner_text(timeout=2000) for frame in self.page.frames)
        return f"{self.page.url}\n{text[:4000]}\n" + "\n".join(self.sins)

    def close(self) -> None:
        """Closes the tab; fails when the page did what it must not."""
        if self._is_alone:
            self.context.close()  # type: ignore[attr-defined]
        else:
            self._leave_nothing()
        assert not self.sins, "\n".join(self.sins)

    def _leave_nothing(self) -> None:
        if self.page.url.startswith(self.address):
            self.page.evaluate("localStorage.clear()")
        for page in self.context.pages:  # type: ignore[attr-defined]
            if page not in self._before:
                page.close()


@pytest.fixture
def visit(chromium: object, served: Served) -> Iterator[Visit]:
    """A visit to the inspector."""
    opened = Visit(chromium, served.address)
    yield opened
    opened.close()
