"""The inspector behind nginx, under a prefix of somebody else's address."""

from __future__ import annotations

import json
import os
import re
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest
from playwright.sync_api import expect

from tests.inspector.conftest import BEARER, Served, Visit, wait_in_opened
from tests.inspector.proxy import PREFIX, Proxy, nginx

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(nginx() is None and not os.environ.get("CI"), reason="needs nginx"),
]

FIXED_IN_TRACKIO = (
    "/static/trackio/trackio_logo_light.png",
    "/static/trackio/trackio_logo_type_light_transparent.png",
    "/static/trackio/trackio_logo_type_dark_transparent.png",
)
"""Images that Trackio's script asks for at the root of any address, whatever its prefix."""


@pytest.fixture(scope="module")
def behind(home, tmp_path_factory) -> Iterator[Served]:
    """The inspector told that it is served under the prefix."""
    server = Served(home, "--root-path", PREFIX)
    yield server
    server.stop()


@pytest.fixture(scope="module", params=[True, False], ids=["prefix taken off", "prefix passed on"])
def proxy(request, behind, tmp_path_factory) -> Iterator[Proxy]:
    """nginx in front of it, with and without the prefix in what it passes on."""
    started = Proxy(behind.address, tmp_path_factory.mktemp("nginx"), strips=request.param)
    yield started
    started.stop()


@pytest.fixture
def visit(chromium, proxy) -> Iterator[Visit]:
    """A visit through the proxy; a request beside the prefix is a sin."""
    opened = Visit(chromium, proxy.address)
    yield opened
    opened.close()


def fetch(address: str, data: bytes | None = None, **headers: str) -> tuple[int, bytes]:
    """Status and body of a request."""
    asked = urllib.request.Request(
        address, data=data, headers={"Content-Type": "application/json", **BEARER, **headers}
    )
    try:
        with urllib.request.urlopen(asked, timeout=20) as response:
            return response.status, response.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


class TestThePages:
    def test_a_step_opens_with_its_conversation_and_moves_on(self, visit):
        visit.open(tab="rollouts", project="demo", run="run-a")
        expect(visit.get("turn").first).to_be_visible()
        visit.get("step-previous").click()
        expect(visit.get("population")).to_contain_text("at step 5")
        assert visit.page.evaluate("location.pathname") == f"{PREFIX}/"

    def test_a_deep_link_opens_what_it_names(self, visit):
        visit.open(
            project="demo", run="run-a", split="rollout", step=4, group=1, sample=0, overlay="loss_mask"
        )
        expect(visit.get("rollout-header")).to_contain_text("Step 4 · group 1")
        expect(visit.page.locator("[data-testid='token'].m1").first).to_be_visible()

    def test_links_and_keys_stay_under_the_prefix(self, visit):
        visit.open(tab="rollouts", project="demo", run="run-a")
        for page, shown in (("compare", "compare-left"), ("explore", "explore-table"), ("health", "health")):
            visit.get(f"tab-{page}").click()
            expect(visit.get(shown)).to_be_visible()
            expect(visit.page).to_have_url(re.compile(re.escape(f"{visit.address}/?")))
        visit.page.locator(".rt-brand").click()
        expect(visit.get("project-card").first).to_be_visible()
        expect(visit.page).to_have_url(re.compile(re.escape(f"{visit.address}/?")))

    def test_formulas_are_drawn_from_the_prefix_too(self, visit):
        visit.open(tab="rollouts", project="hostile", split="foreign")
        expect(visit.page.locator(".katex").first).to_be_visible()


class TestTrackioBeside:
    def test_its_dashboard_opens_from_the_link(self, visit):
        visit.open(tab="rollouts", project="demo", run="run-a")
        with visit.context.expect_page() as opened:
            visit.page.get_by_role("link", name="Trackio").click()
        dashboard = opened.value
        wait_in_opened(dashboard, "document.body?.innerText.includes('run-a')")
        asked: list[tuple[int, str]] = []
        dashboard.on("response", lambda answer: asked.append((answer.status, answer.url)))
        dashboard.reload()
        expect(dashboard).to_have_url(re.compile(re.escape(f"{visit.address}/trackio/")))
        expect(dashboard.get_by_text("run-a").first).to_be_visible()
        expect(dashboard.locator(f"img[src^='{PREFIX}/static/trackio/']").first).to_be_visible()
        refused = [url for status, url in asked if status >= 400 and not url.endswith(FIXED_IN_TRACKIO)]
        assert not refused

    def test_its_queries_answer_and_its_address_without_a_slash_leads_there(self, proxy):
        query = json.dumps({"project": "demo"}).encode()
        assert fetch(f"{proxy.address}/trackio/api/get_runs_for_project", query)[0] == 200
        status, body = fetch(f"{proxy.address}/trackio")
        assert (status, b"<html" in body.lower()) == (200, True)


class TestStrangers:
    def test_a_foreign_host_or_origin_is_refused_through_the_proxy(self, proxy):
        for path in ("/", "/config", "/trackio/"):
            assert fetch(f"{proxy.address}{path}")[0] == 200
            assert fetch(f"{proxy.address}{path}", Host="evil.example")[0] == 403
            assert fetch(f"{proxy.address}{path}", Origin="https://evil.example")[0] == 403

    @pytest.mark.parametrize("path", ["/gradio_api/file=/etc/passwd", "/gradio_api/proxy=http://10.0.0.1/"])
    def test_routes_that_take_a_path_are_not_served(self, proxy, path):
        assert fetch(proxy.address + path)[0] == 404
