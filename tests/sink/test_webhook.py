"""Alerts reach a webhook in the form it takes; one that hangs, refuses or answers nonsense holds nothing up."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections import Counter
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from rollout_traces.errors import ConfigError
from rollout_traces.model.transcript import Alert
from rollout_traces.sink import webhook
from rollout_traces.sink.webhook import MAX_WAITING, AlertWebhook, check_webhook, payload

ALERT = Alert("truncated on rollout", "Since step 7, rollout: 61.0% truncated.", "warn")


class Endpoint:
    """Answers with the given statuses, the last one for ever, and keeps what it got."""

    def __init__(self, *statuses: int, headers: tuple[tuple[str, str], ...] = ()) -> None:
        self.got: list[dict] = []
        endpoint, left = self, list(statuses)

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                endpoint.got.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
                self.send_response(left.pop(0) if len(left) > 1 else left[0])
                for name, value in headers:
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(b"\xff nonsense")

            def log_message(self, *arguments) -> None: ...

        self._server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/hook?token=secret"
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    monkeypatch.setattr(webhook, "PAUSES", (0.01, 0.01))
    monkeypatch.setattr(webhook, "TIMEOUT", 1.0)


def send(url, n=1):
    counters = Counter()
    hook = AlertWebhook(url, "p", "run", counters)
    for _ in range(n):
        hook.send(ALERT, step=7)
    hook.close(30)
    return counters


def test_an_alert_arrives_once_with_all_its_fields():
    endpoint = Endpoint(204)
    assert send(endpoint.url) == {"alerts_sent": 1}
    endpoint.close()
    [got] = endpoint.got
    assert got["text"] == f"[warn] p/run: {ALERT.title}. {ALERT.text}"
    assert (got["project"], got["run"], got["step"], got["level"]) == ("p", "run", 7, "warn")


def test_slack_and_discord_get_their_own_form():
    slack = json.loads(payload("https://hooks.slack.com/services/T/B/x", ALERT, "p", "run", 7))
    discord = json.loads(payload("https://discord.com/api/webhooks/1/x", ALERT, "p", "run", 7))
    assert set(slack) == {"text"} and slack["text"] == discord["content"]
    assert discord["allowed_mentions"] == {"parse": []}, "a project named @everyone calls nobody"


def test_a_server_that_fails_is_tried_again():
    endpoint = Endpoint(503, 429, 200)
    assert send(endpoint.url) == {"alerts_sent": 1}
    endpoint.close()
    assert len(endpoint.got) == 3


@pytest.mark.parametrize("status, attempts", [(500, 3), (404, 1), (302, 1)])
def test_one_that_refuses_is_counted_and_named_without_its_secret(status, attempts, caplog):
    endpoint = Endpoint(status, headers=(("Location", "http://127.0.0.1:1/elsewhere"),))
    assert send(endpoint.url) == {"alerts_not_sent": 1}
    endpoint.close()
    assert len(endpoint.got) == attempts
    assert f"127.0.0.1: status {status}" in caplog.text and "secret" not in caplog.text


def test_one_that_hangs_or_is_not_there_holds_nobody_up():
    with socket.create_server(("127.0.0.1", 0)) as silent:
        counters = Counter()
        hook = AlertWebhook(f"http://127.0.0.1:{silent.getsockname()[1]}", "p", "run", counters)
        for _ in range(3 * MAX_WAITING):
            hook.send(ALERT, step=7)
        assert counters["alerts_not_sent"] >= 2 * MAX_WAITING - 1, "dropped, not waited for"
        before = time.monotonic()
        hook.close(0.1)
        assert time.monotonic() - before < 20
    assert send("http://127.0.0.1:1/") == {"alerts_not_sent": 1}


@pytest.mark.parametrize(
    "url",
    [
        "",
        "http://[secret",
        "https://host:secret/",
        "file:///etc/passwd",
        "ftp://host/secret",
        "https://",
        7,
        None,
    ],
)
def test_what_is_no_address_is_refused_without_repeating_it(url):
    with pytest.raises(ConfigError, match="alert_webhook") as error:
        check_webhook(url)
    assert "secret" not in str(error.value)


def test_a_name_that_no_json_takes_still_goes():
    endpoint = Endpoint(204)
    counters = Counter()
    hook = AlertWebhook(endpoint.url, "p", "run\ud800", counters)
    hook.send(ALERT, step=1)
    hook.close(30)
    endpoint.close()
    assert counters == {"alerts_sent": 1} and endpoint.got[0]["run"] == "run\ufffd"


def test_what_is_on_its_way_at_the_close_is_counted_once():
    with socket.create_server(("127.0.0.1", 0)) as silent:
        counters = Counter()
        hook = AlertWebhook(f"http://127.0.0.1:{silent.getsockname()[1]}", "p", "run", counters)
        for _ in range(3):
            hook.send(ALERT, step=7)
        hook.close(0.1)
        hook.close(0.1)
        time.sleep(1.5)
    assert counters == {"alerts_not_sent": 3}
