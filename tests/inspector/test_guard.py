"""Who may talk to the inspector."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

import pytest

from rollout_traces.inspector.guard import Guard, HostPolicy, is_loopback


def answer(
    policy: HostPolicy,
    path: str = "/",
    method: str = "GET",
    kind: str = "http",
    root_path: str = "",
    seen: list | None = None,
    **headers: str,
) -> int:
    """The status that a request gets; 200 from the application behind the guard."""
    sent = []

    async def app(scope, receive, send):
        if seen is not None:
            seen.append((scope.get("root_path"), scope["path"]))
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    async def receive():
        return {"type": "http.request", "body": b""}

    async def send(message):
        sent.append(message)

    raw = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    scope = {"type": kind, "path": path, "method": method, "headers": raw}
    guarded = Guard(app, policy, root_path)(scope, receive, send)
    with ThreadPoolExecutor(1) as apart:  # a browser's loop may run in this thread
        apart.submit(asyncio.run, guarded).result()
    return sent[0].get("status", sent[0].get("code"))


LOCAL = HostPolicy.for_server("127.0.0.1")


class TestHost:
    @pytest.mark.parametrize("host", ["127.0.0.1:7861", "localhost:7861", "[::1]:7861", "LOCALHOST"])
    def test_loopback_names_are_served(self, host):
        assert answer(LOCAL, host=host) == 200

    @pytest.mark.parametrize(
        "host",
        [
            "evil.example",
            "127.0.0.1.evil.example",
            "evil.example:7861",
            "",
            "10.0.0.5:7861",
            "[bad",
            "localhost@evil",
        ],
    )
    def test_others_are_refused(self, host):
        assert answer(LOCAL, host=host) == 403

    def test_a_request_without_a_host_is_refused(self):
        assert answer(LOCAL) == 403

    def test_trackio_behind_it_is_guarded_too(self):
        assert answer(LOCAL, "/trackio/api/query_project", "POST", host="evil.example") == 403

    def test_allowed_names_are_served(self):
        policy = HostPolicy.for_server("127.0.0.1", ["Notebook.Example"])
        assert answer(policy, host="notebook.example") == 200

    def test_bound_to_all_interfaces_addresses_are_served_and_names_are_not(self):
        policy = HostPolicy.for_server("0.0.0.0")
        assert answer(policy, host="192.168.1.7:7861") == 200
        assert answer(policy, host="rebound.example:7861") == 403


class TestOrigin:
    def test_the_own_page_may_call(self):
        assert answer(LOCAL, method="POST", host="127.0.0.1:1", origin="http://127.0.0.1:1") == 200

    @pytest.mark.parametrize(
        "origin", ["https://evil.example", "null", "file://", "http://127.0.0.1.evil.example"]
    )
    def test_foreign_origins_are_refused(self, origin):
        assert answer(LOCAL, method="POST", host="127.0.0.1:1", origin=origin) == 403
        assert answer(LOCAL, host="127.0.0.1:1", origin=origin) == 403

    def test_a_cross_site_post_without_origin_is_refused(self):
        assert answer(LOCAL, method="POST", host="localhost", sec_fetch_site="cross-site") == 403

    def test_websockets_are_checked_as_well(self):
        assert answer(LOCAL, kind="websocket", host="evil.example") == 1008


class TestRoutesThatTakeAPath:
    @pytest.mark.parametrize(
        "path",
        [
            "/gradio_api/file=/etc/passwd",
            "/file=/etc/passwd",
            "/gradio_api/file/etc/passwd",
            "/gradio_api/upload",
            "/gradio_api/proxy=http://10.0.0.1/",
            "/proxy=http://x",
        ],
    )
    def test_are_switched_off(self, path):
        assert answer(LOCAL, path, host="localhost") == 403

    def test_the_rest_of_gradio_is_served(self):
        assert answer(LOCAL, "/gradio_api/component_server", "POST", host="localhost") == 200


class TestBehindAPrefix:
    @pytest.mark.parametrize("root_path", ["/a/b", "/a/b/", "a/b"])
    @pytest.mark.parametrize("path", ["/trackio/x", "/a/b/trackio/x"])
    def test_a_proxy_may_take_it_off_or_leave_it(self, root_path, path):
        seen = []
        assert answer(LOCAL, path, root_path=root_path, seen=seen, host="localhost") == 200
        assert seen == [("/a/b", "/a/b/trackio/x")]

    @pytest.mark.parametrize("path", ["/file=/etc/passwd", "/a/b/file=/etc/passwd", "/a/b/gradio_api/upload"])
    def test_routes_that_take_a_path_are_switched_off_below_it(self, path):
        assert answer(LOCAL, path, root_path="/a/b", host="localhost") == 403

    def test_a_path_that_only_begins_like_it_is_not_below_it(self):
        seen = []
        answer(LOCAL, "/a/bc", root_path="/a/b", seen=seen, host="localhost")
        assert seen == [("/a/b", "/a/b/a/bc")]


class TestLoopback:
    def test_knows_names_and_addresses(self):
        assert all(map(is_loopback, ("localhost", "127.0.0.1", "127.8.8.8", "::1", "[::1]")))
        assert not any(map(is_loopback, ("0.0.0.0", "192.168.1.1", "example.org", "")))
