"""Who may talk to the inspector, what he may ask for, and what every answer carries."""

from __future__ import annotations

import pytest

from rollout_traces.inspector import registry
from rollout_traces.inspector.access import Access, Visitor
from tests.inspector.asking import CALL, Site

SITE = Site()
TOKEN = "a token that was made for this"


class TestHost:
    @pytest.mark.parametrize("host", ["127.0.0.1:7861", "localhost:7861", "[::1]:7861", "LOCALHOST"])
    def test_loopback_names_are_served(self, host):
        assert SITE.ask(host=host).status == 200

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
            "evil@localhost",
            "localhost/evil",
            "localhost:port",
        ],
    )
    def test_others_are_refused(self, host):
        assert SITE.ask(host=host).status == 403

    def test_a_request_without_a_host_is_refused(self):
        assert SITE.ask(host="-").status == 400

    def test_a_second_host_header_is_refused(self):
        assert SITE.ask(raw=[(b"host", b"127.0.0.1:7861")]).status == 400
        assert SITE.ask(raw=[(b"host", b"evil.example")]).status == 400

    def test_trackio_behind_it_is_guarded_too(self):
        assert SITE.ask("/trackio/api/query_project", "POST", host="evil.example").status == 403

    def test_allowed_names_are_served(self):
        assert Site(allowed=("Notebook.Example",)).ask(host="notebook.example").status == 200

    def test_bound_to_all_interfaces_addresses_are_served_and_names_are_not(self):
        everywhere = Site(host="0.0.0.0")
        assert everywhere.ask(host="192.168.1.7:7861").status == 200
        assert everywhere.ask(host="rebound.example:7861").status == 403


class TestOrigin:
    """A page on a literal address, or on another port of localhost, calls the inspector: once it read everything."""

    def test_the_own_page_may_call(self):
        assert SITE.ask(CALL, "POST", origin="http://127.0.0.1:7861").status == 200
        assert SITE.ask(CALL, "POST", host="LOCALHOST", origin="http://localhost:80").status == 200

    @pytest.mark.parametrize(
        "origin",
        [
            "https://evil.example",
            "null",
            "file://",
            "",
            "http://127.0.0.1.evil.example:7861",
            "http://127.0.0.1:8000",
            "http://127.0.0.1",
            "https://127.0.0.1:7861",
            "http://localhost:7861",
            "http://user@evil.example:7861",
        ],
    )
    def test_any_other_is_refused(self, origin):
        assert SITE.ask(CALL, "POST", origin=origin).status == 403
        assert SITE.ask(origin=origin).status == 403

    def test_a_page_on_a_literal_address_is_refused_where_addresses_are_served(self):
        everywhere = Site(host="0.0.0.0")
        assert everywhere.ask(CALL, "POST", host="192.168.1.7:7861", origin="http://10.6.6.6").status == 403
        same = everywhere.ask(CALL, "POST", host="192.168.1.7:7861", origin="http://192.168.1.7:7861")
        assert same.status == 200

    def test_where_only_the_scheme_differs_the_proxy_is_spoken_of(self):
        answer = SITE.ask(origin="https://127.0.0.1:7861")
        assert "--trusted-proxy" in answer.body

    def test_websockets_are_closed(self):
        assert SITE.ask(kind="websocket").status == 1008


class TestFetchMetadata:
    @pytest.mark.parametrize("site", ["cross-site", "same-site"])
    def test_a_call_of_another_site_or_port_is_refused(self, site):
        assert SITE.ask(CALL, "POST", sec_fetch_site=site).status == 403
        assert SITE.ask("/config", sec_fetch_site=site, sec_fetch_mode="cors").status == 403
        assert SITE.ask("/theme.css", sec_fetch_site=site, sec_fetch_mode="no-cors").status == 403

    def test_a_link_on_another_site_opens_the_page(self):
        link = {"sec_fetch_site": "cross-site", "sec_fetch_mode": "navigate"}
        assert SITE.ask(**link, sec_fetch_dest="document").status == 200
        assert SITE.ask(**link, sec_fetch_dest="iframe").status == 403
        framed = Site(ancestors=("https://hub.example",))
        assert framed.ask(**link, sec_fetch_dest="iframe").status == 200

    def test_the_own_page_and_a_typed_address_are_served(self):
        assert SITE.ask(CALL, "POST", sec_fetch_site="same-origin").status == 200
        assert SITE.ask(sec_fetch_site="none").status == 200


class TestProxies:
    """X-Forwarded-Host, a second Host header: once set the page's root; was not looked at."""

    SENT = {"x_forwarded_proto": "https", "x_forwarded_host": "team.example"}

    def test_what_an_undeclared_peer_forwards_is_not_believed_and_not_passed_on(self):
        sent = {**self.SENT, "x_gradio_server": "http://evil.example", "forwarded": "host=evil.example"}
        answer = SITE.ask("/config", **sent)
        assert answer.status == 200
        assert answer.seen["scheme"] == "http"
        names = {name for name, _ in answer.seen["headers"]}
        assert names == {b"host"}

    def test_an_undeclared_one_that_serves_https_is_told_to_be_declared(self):
        answer = SITE.ask(x_forwarded_proto="https", client="10.1.2.3")
        assert (answer.status, answer.seen) == (403, None)
        assert "--trusted-proxy 10.1.2.3" in answer.body

    def test_a_declared_one_says_how_the_page_was_asked_for(self):
        site = Site(allowed=("team.example",), proxies=("10.1.0.0/16",))
        answer = site.ask(**self.SENT, client="10.1.2.3", origin="https://team.example")
        assert answer.status == 200
        assert answer.seen["scheme"] == "https"
        assert (b"host", b"team.example") in answer.seen["headers"]
        assert site.ask(**self.SENT, client="10.2.2.3", origin="https://team.example").status == 403

    def test_the_host_that_it_forwards_has_to_be_served_too(self):
        assert Site(proxies=("127.0.0.1",)).ask(x_forwarded_host="evil.example").status == 403

    def test_the_value_of_the_nearest_one_counts(self):
        site = Site(allowed=("team.example",), proxies=("127.0.0.1",))
        assert site.ask(x_forwarded_host="evil.example, team.example").status == 200
        assert site.ask(x_forwarded_host="team.example, evil.example").status == 403


class TestToken:
    ACCESS = Access(TOKEN, "ann", {"ben": "the token of another"})
    SITE = Site(access=ACCESS)

    def key(self, token: str = TOKEN) -> dict[str, str]:
        return {"x_rollout_traces_session": self.ACCESS.session_key(self.ACCESS.of_token(token))}

    @pytest.mark.parametrize("path", ["/", "/theme.css", "/assets/x.js", "/inspector/abc/scripts.js"])
    def test_the_empty_page_and_the_packages_code_ask_for_none(self, path):
        assert self.SITE.ask(path).status == 200

    @pytest.mark.parametrize(
        "path",
        [
            "/config",
            "/session",
            "/api/v1/projects",
            "/trackio/version",
            "/trackio/assets/x.js",
            "/trackio/file",
        ],
    )
    def test_nothing_else_is_served_without_it(self, path):
        answer = self.SITE.ask(path)
        assert (answer.status, answer.seen) == (401, None)
        assert '"kind":"token"' in answer.body

    def test_a_call_without_it_is_answered_in_the_form_that_the_page_shows(self):
        answer = self.SITE.ask(CALL, "POST")
        assert (answer.status, answer.seen) == (401, None)
        assert "rollout-traces show" in answer.body

    def test_a_session_key_opens_in_its_header_and_nowhere_else(self):
        key = self.key()["x_rollout_traces_session"]
        assert self.SITE.ask(CALL, "POST", **self.key()).status == 200
        for other in ({"cookie": f"rollout-traces-7861={key}"}, {"authorization": f"Bearer {key}"}):
            assert self.SITE.ask(CALL, "POST", **other).status == 401
        assert self.SITE.ask("/config", query=f"access_token={key}").status == 401

    @pytest.mark.parametrize(
        "name", ["rollout-traces", "rollout-traces-7861", "x-rollout-traces-session", "access_token"]
    )
    def test_no_cookie_opens_anything_and_none_is_set(self, name):
        values = (TOKEN, self.key()["x_rollout_traces_session"], self.ACCESS.dashboard)
        for path in ("/config", "/api/v1/projects", "/trackio/", "/trackio/version"):
            for value in values:
                assert self.SITE.ask(path, cookie=f"{name}={value}").status == 401
        answers = (self.SITE.ask(), self.SITE.ask("/config", **self.key()), self.SITE.ask("/session", "POST"))
        assert all("set-cookie" not in answer.headers for answer in answers)

    def test_in_the_query_of_an_address_it_opens_nothing(self):
        for path in ("/config", "/trackio/", "/api/v1/projects"):
            assert self.SITE.ask(path, query=f"access_token={TOKEN.replace(' ', '+')}").status == 401

    def test_a_key_ends_with_its_server_though_the_token_stays(self):
        after = Site(access=Access(TOKEN, "ann"))
        assert after.ask(CALL, "POST", **self.key()).status == 401
        assert after.ask(self.ACCESS.dashboard + "/version").status == 404

    @pytest.mark.parametrize("given", ["", "x", TOKEN[:-1], TOKEN + "x", "\x00", "ä"])
    def test_a_wrong_one_opens_nothing(self, given):
        assert self.SITE.ask("/config", x_rollout_traces_session=given).status == 401
        assert self.SITE.ask("/config", authorization=f"Bearer {given}").status == 401

    def test_programs_send_it_as_a_bearer(self):
        assert self.SITE.ask("/config", authorization=f"Bearer {TOKEN}").status == 200
        assert self.SITE.ask("/config", authorization="Bearer the token of another").status == 200

    def test_each_token_has_its_name_and_one_is_the_owners(self):
        def who(headers):
            return self.ACCESS.visitor(headers)

        assert who({"authorization": f"Bearer {TOKEN}"}) == Visitor("ann", owner=True)
        assert who({"authorization": "Bearer the token of another"}) == Visitor("ben")
        ben = self.ACCESS.session_key(Visitor("ben"))
        assert who({"x-rollout-traces-session": ben}) == Visitor("ben")
        assert who({}) is None and Access().visitor({}) == Visitor("visitor")


class TestTheDashboardsPath:
    ACCESS = TestToken.ACCESS
    SITE = Site(access=ACCESS)

    @pytest.mark.parametrize("path", ["/", "/metrics", "/version", "/file", "/assets/index-x.js"])
    def test_opens_the_dashboard_without_a_header(self, path):
        answer = self.SITE.ask(self.ACCESS.dashboard + path)
        assert (answer.status, answer.seen["path"]) == (200, "/trackio" + path)
        assert self.SITE.ask(self.ACCESS.dashboard + "/api/get_traces", "POST").status == 200

    @pytest.mark.parametrize(
        "path",
        [
            "/config",
            "/api/v1/projects",
            "/session",
            "/../config",
            "/../api/v1/projects",
            "/gradio_api/component_server",
        ],
    )
    def test_opens_nothing_of_the_inspector(self, path):
        for method in ("GET", "POST"):
            answer = self.SITE.ask(self.ACCESS.dashboard + path, method)
            assert (answer.status, answer.seen) == (404, None)

    def test_writes_nothing(self):
        site = Site(access=self.ACCESS, write_token="the write token, long")
        for headers in ({}, {"x_trackio_write_token": "the write token, long"}):
            for name in ("bulk_log", "upload", "delete_run"):
                assert site.ask(f"{self.ACCESS.dashboard}/api/{name}", "POST", **headers).seen is None

    def test_any_other_path_says_where_it_is(self):
        for path in ("/trackio", "/trackio/", "/trackio/metrics"):
            answer = self.SITE.ask(path)
            assert (answer.status, answer.seen) == (401, None)
            assert "at the top of" in answer.body and self.ACCESS.dashboard not in answer.body
        for key in ("x" * 40, "", self.ACCESS.dashboard[9:-1]):
            assert self.SITE.ask(f"/trackio/{key}/version").status in (401, 404)

    def test_below_a_proxys_prefix_it_is_found_too(self):
        site = Site(access=self.ACCESS, root_path="/tools/rollouts")
        for path in (f"/tools/rollouts{self.ACCESS.dashboard}/version", f"{self.ACCESS.dashboard}/version"):
            assert site.ask(path).seen["path"] == "/tools/rollouts/trackio/version"

    def test_without_a_token_there_is_none_to_guess(self):
        assert Access().dashboard == "/trackio"
        assert Site().ask("/trackio/").status == 200


class TestWriteToken:
    SITE = Site(access=Access(TOKEN), write_token="the write token, long")

    def test_opens_what_runs_log_and_nothing_else(self):
        sent = {"x_trackio_write_token": "the write token, long"}
        assert self.SITE.ask("/trackio/api/bulk_log", "POST", **sent).status == 200
        assert self.SITE.ask("/trackio/version", **sent).status == 200
        assert self.SITE.ask("/trackio/api/get_traces", "POST", **sent).status == 401
        assert self.SITE.ask(CALL, "POST", **sent).status == 401
        assert self.SITE.ask("/config", **sent).status == 401

    def test_the_token_that_reads_does_not_write(self):
        answer = self.SITE.ask("/trackio/api/bulk_log", "POST", authorization=f"Bearer {TOKEN}")
        assert (answer.status, answer.seen) == (401, None)
        wrong = self.SITE.ask("/trackio/api/bulk_log", "POST", x_trackio_write_token="")
        assert wrong.status == 401
        assert Site().ask("/trackio/api/bulk_log", "POST", x_trackio_write_token="").status == 401

    @pytest.mark.parametrize("name", ["force_sync", "delete_run", "rename_run", "upload_db_to_space"])
    def test_does_not_open_what_deletes_or_asks_others(self, name):
        sent = {"x_trackio_write_token": "the write token, long"}
        assert self.SITE.ask(f"/trackio/api/{name}", "POST", **sent).status == 404


class TestRoutes:
    @pytest.mark.parametrize(
        "path",
        [
            "/gradio_api/file=/etc/passwd",
            "/file=/etc/passwd",
            "/gradio_api/file/etc/passwd",
            "/gradio_api/upload",
            "/gradio_api/proxy=http://10.0.0.1/",
            "/proxy=http://x",
            "/gradio_api/queue/join",
            "/gradio_api/heartbeat/x",
            "/monitoring",
            "/trackio/oauth/hf/start",
            "/trackio/api/get_registries",
            "/static/../guard.py",
            "/assets/../config",
            "/trackio/assets/..",
        ],
    )
    def test_what_is_not_listed_is_not_served(self, path):
        for method in ("GET", "POST", "PUT", "DELETE"):
            answer = SITE.ask(path, method)
            assert (answer.status, answer.seen) == (404, None)

    def test_no_method_but_get_and_post(self):
        for method in ("PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"):
            assert SITE.ask("/", method).status == 404


class TestBodies:
    """Bodies without end, requests that are half sent: once taken; open for ever."""

    @pytest.mark.parametrize(
        "content_type", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "-"]
    )
    def test_a_post_that_is_not_json_is_refused(self, content_type):
        """Other pages can send these without the browser asking first."""
        assert SITE.ask(CALL, "POST", content_type=content_type).status == 415
        assert SITE.ask("/trackio/api/get_logs", "POST", content_type=content_type).status == 415

    def test_one_that_says_that_it_is_too_long_is_not_read(self):
        answer = SITE.ask(CALL, "POST", content_length=str(10**9))
        assert (answer.status, answer.seen) == (413, None)
        assert "65,536" in answer.body

    def test_one_that_is_longer_than_it_says_is_not_read_on(self):
        answer = SITE.ask(CALL, "POST", content_length="5", body=[b"x" * 40_000] * 1_000)
        assert (answer.status, answer.seen) == (413, None)

    @pytest.mark.parametrize("length", ["-1", "1e3", "²", "9" * 40])
    def test_a_length_that_is_none_is_refused(self, length):
        assert SITE.ask(CALL, "POST", content_length=length).status == 413

    def test_one_that_does_not_arrive_is_given_up(self, monkeypatch):
        quick = tuple(
            registry.Rule(rule.path, rule.method, rule.who, rule.kind, rule.purpose, body_seconds=0.05)
            for rule in registry.rules(trackio=False)
        )
        monkeypatch.setattr("tests.inspector.asking.EVERYTHING", quick)
        assert SITE.ask(CALL, "POST", slow=True).status == 408

    def test_what_is_within_the_limits_arrives_whole(self):
        answer = SITE.ask(CALL, "POST", body=[b"ab", b"", b"cd"])
        assert (answer.status, answer.body_seen) == (200, b"abcd")


class TestHeaders:
    def test_every_answer_carries_them(self):
        refused = (
            SITE.ask(host="evil.example"),
            SITE.ask("/nowhere"),
            SITE.ask(CALL, "POST", content_type="-"),
        )
        closed = Site(access=Access(TOKEN)).ask("/trackio/")
        for answer in (SITE.ask(), SITE.ask("/config"), SITE.ask(CALL, "POST"), closed, *refused):
            headers = answer.headers
            assert headers["x-content-type-options"] == "nosniff"
            assert headers["referrer-policy"] == "no-referrer"
            assert headers["cross-origin-resource-policy"] == "same-origin"
            assert headers["cross-origin-opener-policy"] == "same-origin"
            assert headers["cache-control"] == "no-store"
            assert headers["x-frame-options"] == "DENY"
            assert "frame-ancestors 'none'" in headers["content-security-policy"]
            assert not any(name.startswith("access-control") for name in headers)

    def test_code_of_the_packages_may_be_kept(self):
        assert "cache-control" not in Site(content=("text/javascript", b"x")).ask("/assets/x.js").headers

    def test_no_inline_script_runs_but_those_of_the_page(self):
        page = (
            b"<script>first()</script><script src='a.js'></script><p onclick='x()'><script type=m>2</script>"
        )
        answer = Site(content=("text/html; charset=utf-8", page), hashes=("'sha256-known'",)).ask()
        policy = answer.headers["content-security-policy"]
        scripts = next(part for part in policy.split("; ") if part.startswith("script-src"))
        assert "unsafe-inline" not in scripts
        assert scripts.count("sha256-") == 3
        assert "'sha256-pFFrXiyOkhlvsVpqu6HO/VmQuCrhUiLNa3a/dC6ZXas='" not in scripts
        assert answer.body == page.decode()

    def test_media_of_a_project_is_shown_and_never_run(self):
        answer = Site(content=("text/html", b"<script>x()</script>")).ask("/trackio/file")
        assert "sandbox" in answer.headers["content-security-policy"]
        assert "script-src" not in answer.headers["content-security-policy"]

    def test_declared_sites_may_show_it_in_a_frame(self):
        headers = Site(ancestors=("https://hub.example",)).ask().headers
        assert "frame-ancestors https://hub.example" in headers["content-security-policy"]
        assert "x-frame-options" not in headers


class TestBehindAPrefix:
    @pytest.mark.parametrize("root_path", ["/a/b", "/a/b/", "a/b"])
    @pytest.mark.parametrize("path", ["/trackio/", "/a/b/trackio/"])
    def test_a_proxy_may_take_it_off_or_leave_it(self, root_path, path):
        seen = Site(root_path=root_path).ask(path).seen
        assert (seen["root_path"], seen["path"]) == ("/a/b", "/a/b/trackio/")

    @pytest.mark.parametrize("path", ["/file=/etc/passwd", "/a/b/file=/etc/passwd", "/a/b/gradio_api/upload"])
    def test_what_is_not_listed_is_not_served_below_it(self, path):
        assert Site(root_path="/a/b").ask(path).status == 404

    def test_a_path_that_only_begins_like_it_is_not_below_it(self):
        assert Site(root_path="/a/b").ask("/a/bc").status == 404
        assert Site(root_path="/a/b").ask("/a/b").seen is None
