"""The token, the origins and the policy, in a real browser."""

from __future__ import annotations

import contextlib
import http.server
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from urllib.parse import quote

import pytest
from playwright.sync_api import expect

from tests.inspector.conftest import TOKEN, Served, Visit, sign_in, wait_in_opened

pytestmark = pytest.mark.browser


@dataclass
class Elsewhere:
    """Another service on localhost, which keeps what browsers send to it.

    Attributes:
        address: its own.
        cookies: values of the Cookie headers that reached it.
    """

    address: str
    cookies: list[str]


@pytest.fixture
def elsewhere() -> Iterator[Elsewhere]:
    """Another service on localhost, with a page."""
    cookies: list[str] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            cookies.extend(self.headers.get_all("Cookie") or ())
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(b"<title>another service</title><p>hello")

        def log_message(self, *arguments: object) -> None:
            pass

    served = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=served.serve_forever, args=(0.01,), daemon=True).start()
    yield Elsewhere(f"http://127.0.0.1:{served.server_address[1]}", cookies)
    served.shutdown()
    served.server_close()


def printed(server: Served) -> str:
    """The address that the command printed."""
    lines = server.output.read_text().splitlines()
    return next(line for line in lines if line.startswith("Inspector: ")).split()[1]


class TestTheToken:
    def test_without_it_the_page_is_empty_says_what_to_do_and_takes_it(self, chromium, served: Served):
        context = chromium.new_context()
        page = context.new_page()
        page.goto(f"{served.address}/?project=demo")
        expect(page.get_by_role("heading")).to_have_text("This inspector asks for its token")
        expect(page.locator("body")).to_contain_text("rollout-traces show")
        assert "run-a" not in page.content()
        page.get_by_label("Token").fill("a wrong one")
        page.get_by_role("button", name="Open", exact=True).click()
        expect(page.locator("body")).to_contain_text("not this server's")
        page.get_by_label("Token").fill(TOKEN)
        page.get_by_role("button", name="Open", exact=True).click()
        expect(page.locator(".rt-active").first).to_be_visible(timeout=60_000)
        assert TOKEN not in page.url
        context.close()

    def test_the_printed_address_opens_the_page_and_leaves_no_token_in_it(self, chromium, served: Served):
        context = chromium.new_context()
        page = context.new_page()
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        page.goto(printed(served).replace("/#", "/?project=demo&tab=rollouts#"))
        expect(page.locator("[data-testid='turn']:visible").first).to_be_visible(timeout=60_000)
        assert "#" not in page.url
        assert not [url for url in asked if "access_token" in url.partition("#")[0]]
        assert context.cookies() == [] and page.evaluate("localStorage.length") == 0
        page.go_back()
        assert "access_token" not in page.url
        context.close()

    def test_reload_back_and_a_link_in_a_new_tab_keep_the_session(self, chromium, served: Served):
        context = chromium.new_context()
        page = context.new_page()
        page.goto(printed(served).replace("/#", "/?project=demo&run=run-a&tab=rollouts#"))
        turn = page.locator("[data-testid='turn']:visible").first
        expect(turn).to_be_visible(timeout=60_000)
        page.locator("[data-testid='tab-health']").click()
        expect(page.locator("[data-testid='tab-health']")).to_have_attribute("aria-current", "page")
        page.go_back()
        expect(turn).to_be_visible(timeout=60_000)
        page.reload()
        expect(turn).to_be_visible(timeout=60_000)
        with context.expect_page() as opened:
            page.locator("[data-testid='tab-health']").click(modifiers=["Control"])
        health = "document.querySelector('[data-testid=tab-health]')"
        wait_in_opened(opened.value, f"{health}?.ariaCurrent === 'page'")
        wait_in_opened(opened.value, "!document.querySelector('[data-testid=sign-in]')", seconds=1)
        context.close()

    def test_the_printed_address_opens_a_second_tab(self, chromium, served: Served):
        context = chromium.new_context()
        for _ in range(2):
            page = context.new_page()
            page.goto(printed(served).replace("/#", "/?project=demo#"))
            expect(page.locator(".rt-active").first).to_be_visible(timeout=60_000)
        context.close()

    def test_a_session_that_ended_with_its_server_says_what_to_do(self, chromium, home):
        server = Served(home)
        visit = Visit(chromium, server.address)
        visit.open(project="demo")
        server.stop()
        anew = Served(home, port=server.port)
        try:
            expect(visit.get("live")).to_contain_text(
                "open the address that `rollout-traces show` printed", timeout=60_000
            )
            visit.page.reload()
            expect(visit.get("sign-in")).to_contain_text("This session ended with the server")
            visit.page.goto(printed(anew).replace("/#", "/?project=demo#"))
            expect(visit.page.locator(".rt-active").first).to_be_visible(timeout=60_000)
        finally:
            anew.stop()
        visit.sins.clear()
        visit.close()


class TestAnotherServiceOnLocalhost:
    """A service on another localhost port keeps the inspector's cookie and replays it: once it read everything as the user, and labelled; with a fixed token for ever."""

    def test_it_collects_nothing_that_opens_the_inspector(
        self, chromium, served: Served, elsewhere: Elsewhere
    ):
        """Whoever signed in opens it; what his browser sends along is replayed."""
        context = chromium.new_context()
        page = context.new_page()
        page.goto(printed(served).replace("/#", "/?project=demo#"))
        expect(page.locator(".rt-active").first).to_be_visible(timeout=60_000)
        dashboard = context.new_page()
        dashboard.goto(served.address + page.locator("[data-testid='trackio-link']").get_attribute("href"))
        expect(dashboard.locator("body")).to_contain_text("run-a", timeout=60_000)
        for tab in (page, context.new_page()):
            tab.goto(elsewhere.address)
            assert (
                tab.evaluate(
                    "[...Object.keys(sessionStorage), ...Object.keys(localStorage), document.cookie].join('')"
                )
                == ""
            )
        assert elsewhere.cookies == []
        for cookie in ("", *elsewhere.cookies):
            for path in ("/config", "/api/v1/projects", "/trackio/", "/trackio/version", "/session"):
                request = urllib.request.Request(served.address + path, headers={"Cookie": cookie})
                with pytest.raises(urllib.error.HTTPError, match="401"):
                    urllib.request.urlopen(request, timeout=10)
        context.close()

    def test_its_page_reads_and_calls_nothing(self, chromium, served: Served, elsewhere: Elsewhere):
        context = chromium.new_context()
        sign_in(context, served.address)
        page = context.new_page()
        answered: list[tuple[int, str]] = []
        page.on("response", lambda answer: answered.append((answer.status, answer.url)))
        page.goto(elsewhere.address)
        tried = page.evaluate(
            """async inspector => {
              const tried = {};
              const call = (name, path, options) => fetch(inspector + path, {credentials: "include", ...options})
                .then(answer => answer.type + " " + answer.status, error => "refused").then(said => { tried[name] = said; });
              const body = JSON.stringify({project: "demo"});
              await call("read", "/config", {});
              await call("blind read", "/config", {mode: "no-cors"});
              await call("call", "/gradio_api/component_server/", {method: "POST", body, headers: {"Content-Type": "application/json"}});
              await call("blind call", "/trackio/api/get_logs", {method: "POST", body, mode: "no-cors"});
              const load = (name, tag, attribute, path) => new Promise(done => {
                const node = document.createElement(tag);
                node.onload = () => done(tried[name] = "loaded");
                node.onerror = () => done(tried[name] = "refused");
                node[attribute] = inspector + path;
                document.body.append(node);
                setTimeout(() => done(tried[name] ??= "nothing"), 3000);
              });
              await load("script", "script", "src", "/config");
              await load("image", "img", "src", "/static/trackio/trackio_logo_light.png");
              return tried;
            }""",
            served.address,
        )
        assert tried.pop("blind read").startswith(("opaque", "refused"))
        assert tried.pop("blind call").startswith(("opaque", "refused"))
        assert set(tried.values()) == {"refused"}, tried
        assert all(status >= 400 for status, url in answered if url.startswith(served.address)), answered
        context.close()

    def test_it_cannot_show_the_page_in_a_frame(self, chromium, served: Served, elsewhere: Elsewhere):
        context = chromium.new_context()
        sign_in(context, served.address)
        page = context.new_page()
        page.goto(elsewhere.address)
        page.evaluate(
            "address => { const f = document.createElement('iframe'); f.src = address; document.body.append(f); }",
            served.address,
        )
        page.wait_for_timeout(1500)
        assert all(frame.locator(".rt-active").count() == 0 for frame in page.frames[1:])
        context.close()

    def test_a_link_on_it_opens_the_page(self, chromium, served: Served, elsewhere: Elsewhere):
        context = chromium.new_context()
        sign_in(context, served.address)
        page = context.new_page()
        page.goto(elsewhere.address)
        page.evaluate(
            "address => { const a = document.createElement('a'); a.href = address; a.textContent = 'open'; document.body.append(a); }",
            f"{served.address}/?project=demo",
        )
        page.get_by_text("open").click()
        expect(page.locator(".rt-active").first).to_be_visible(timeout=60_000)
        context.close()


class TestADeclaredFrame:
    def test_shows_the_page(self, chromium, home):
        server = Served(home, "--frame-ancestor", "https://hub.example")
        context = chromium.new_context()
        try:
            with contextlib.suppress(Exception):  # newer Chromium asks before a public page shows a local one
                context.grant_permissions(["local-network-access"], origin="https://hub.example")
            page = context.new_page()
            inner = f"{server.address}/?project=demo&tab=rollouts#access_token={quote(TOKEN)}"
            page.route(
                "https://hub.example/",
                lambda route: route.fulfill(
                    body=f'<iframe src="{inner}" width=1200 height=800 allow="local-network-access"></iframe>',
                    content_type="text/html",
                ),
            )
            page.goto("https://hub.example/")
            frame = page.frame_locator("iframe")
            expect(frame.locator(".rt-active").first).to_be_visible(timeout=60_000)
            expect(frame.locator("[data-testid='turn']:visible").first).to_be_visible(timeout=60_000)
            assert context.cookies() == []
        finally:
            context.close()
            server.stop()


class TestThePolicy:
    def test_markup_that_got_into_the_page_would_not_run(self, visit: Visit):
        visit.open(tab="rollouts", project="demo", run="run-a")
        visit.page.evaluate(
            """() => {
              const node = document.createElement("div");
              node.innerHTML = "<img src='/nowhere' onerror='window.pwned = 1'><a href='javascript:window.pwned = 2' id='bad'>x</a>";
              document.body.append(node);
              const script = document.createElement("script");
              script.textContent = "window.pwned = 3";
              document.body.append(script);
              const outside = document.createElement("script");
              outside.src = "https://evil.example/x.js";
              document.body.append(outside);
              document.getElementById("bad").click();
            }"""
        )
        visit.page.wait_for_timeout(500)
        assert visit.page.evaluate("window.pwned") is None
        visit.sins[:] = [sin for sin in visit.sins if "/nowhere" not in sin and "evil.example" not in sin]

    def test_no_page_breaks_its_own_policy(self, visit: Visit):
        said: list[str] = []
        visit.page.on(
            "console", lambda message: said.append(message.text) if message.type == "error" else None
        )
        visit.open(project="demo", run="run-a", step=4, mode="tokens", overlay="logprobs")
        for tab in ("compare", "explore", "health"):
            visit.get(f"tab-{tab}").click()
            visit.page.wait_for_timeout(700)
        dashboard = visit.get("trackio-link").get_attribute("href").partition("?")[0]
        for page in ("", "traces", "runs", "files", "settings"):
            visit.page.goto(f"{visit.address}{dashboard}{page}?project=demo")
            visit.page.wait_for_timeout(700)
        assert not [text for text in said if "Content Security Policy" in text], said


class TestTrackiosPage:
    def test_of_a_rollout_opens_the_traces_of_its_run(self, visit):
        visit.open(project="demo", run="run-a", split="rollout", step=3, group=0, sample=0)
        expect(visit.get("rollout-header")).to_be_visible()
        with visit.page.expect_popup() as opened:
            visit.get("trackio-link").click()
        dashboard = opened.value
        wait_in_opened(dashboard, "document.body?.innerText.includes('Traces')")
        asked = []
        dashboard.on(
            "request", lambda it: asked.append(it.post_data_json) if "get_traces" in it.url else None
        )
        # Trackio may ask for every run's traces before it reads the address: what it asks for last is shown.
        with dashboard.expect_response(
            lambda answer: "get_traces" in answer.url and answer.request.post_data_json["run"] == "run-a",
            timeout=60_000,
        ):
            dashboard.reload()
        dashboard.wait_for_load_state("networkidle")
        assert dashboard.url.partition("?")[0].endswith("/traces")
        assert (asked[-1]["project"], asked[-1]["run"]) == ("demo", "run-a"), asked
        dashboard.close()
