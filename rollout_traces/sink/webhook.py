"""Sends alerts to a webhook from a thread, with retries and a bounded queue; an alert that cannot be sent is counted and dropped.

Slack and Discord take their own JSON, any other address takes all fields. Names and numbers only, never a rollout's
text. Redirects are not followed.
"""

from __future__ import annotations

import http.client
import logging
import queue
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from http import HTTPStatus
from typing import Any
from urllib.parse import urlsplit

import orjson

from rollout_traces.errors import ConfigError
from rollout_traces.model.text import encodable
from rollout_traces.model.transcript import Alert

log = logging.getLogger("rollout_traces")

MAX_WAITING = 32
"""Alerts that wait to be sent; further ones are dropped."""
TIMEOUT = 5.0
"""Seconds for one attempt."""
PAUSES = (1.0, 5.0)
"""Seconds between attempts: there is one more attempt than pauses."""
LAST_WAIT = 2.0
"""Seconds that the end of a worker waits for alerts on their way."""
MAX_TEXT = 1900
"""Characters of a message; Discord takes 2000."""
ENVIRONMENT = "ROLLOUT_TRACES_ALERT_WEBHOOK"
"""The variable that takes the address to a worker process: it is a secret and never written to disk."""


class AlertWebhook:
    """Sends alerts to an address.

    Args:
        url: http or https.
        project: Trackio project, named in every message.
        run: Trackio run.
        counters: what was sent and what was not.
    """

    def __init__(self, url: str, project: str, run: str, counters: Counter[str]) -> None:
        check_webhook(url)
        self._url = url
        self._project = project
        self._run = run
        self._counters = counters
        self._waiting: queue.Queue[bytes] = queue.Queue(MAX_WAITING)
        self._closing = threading.Event()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def send(self, alert: Alert, *, step: int) -> None:
        """Queues an alert for sending; returns at once, and never raises."""
        try:
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="rollout-traces-alerts", daemon=True)
                self._thread.start()
            self._waiting.put_nowait(payload(self._url, alert, self._project, self._run, step))
        except queue.Full:
            self._count("alerts_not_sent")
        except Exception as error:  # noqa: BLE001  an alert costs no step; counted and warned
            self._not_sent(type(error).__name__)

    def close(self, timeout: float = LAST_WAIT) -> None:
        """Waits for queued alerts, a given time at most; those not sent by then are counted. Further calls do nothing."""
        deadline = time.monotonic() + timeout
        while self._waiting.unfinished_tasks and time.monotonic() < deadline:
            time.sleep(0.02)
        with self._lock:
            if not self._closing.is_set() and self._waiting.unfinished_tasks:
                self._counters["alerts_not_sent"] += self._waiting.unfinished_tasks
            self._closing.set()

    def _work(self) -> None:
        while not self._closing.is_set():
            try:
                body = self._waiting.get(timeout=0.5)
            except queue.Empty:
                continue
            try:
                self._deliver(body)
            except Exception as error:  # noqa: BLE001  the next alert may get through; counted and warned
                self._not_sent(type(error).__name__)
            finally:
                self._waiting.task_done()

    def _deliver(self, body: bytes) -> None:
        why = ""
        for pause in (*PAUSES, None):
            try:
                status = self._post(body)
            except (OSError, ValueError, http.client.HTTPException) as error:
                why = type(error).__name__
            else:
                if HTTPStatus.OK <= status < HTTPStatus.MULTIPLE_CHOICES:
                    self._count("alerts_sent")
                    return
                why = f"status {status}"
                if status < HTTPStatus.INTERNAL_SERVER_ERROR and status != HTTPStatus.TOO_MANY_REQUESTS:
                    break
            if pause is None or self._closing.wait(pause):
                break
        self._not_sent(why)

    def _post(self, body: bytes) -> int:
        request = urllib.request.Request(
            self._url, body, {"Content-Type": "application/json", "User-Agent": "rollout-traces"}
        )
        try:
            with _OPENER.open(request, timeout=TIMEOUT) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            with error:
                return int(error.code)

    def _not_sent(self, why: str) -> None:
        self._count("alerts_not_sent")
        log.warning("an alert was not sent to %s: %s", urlsplit(self._url).hostname, why)

    def _count(self, name: str) -> None:
        """Counts an alert, unless `close` has counted it."""
        with self._lock:
            if not self._closing.is_set():
                self._counters[name] += 1


def check_webhook(url: Any) -> None:
    """Refuses a text that is no http or https address.

    Raises:
        ConfigError: it is no http or https address; its text is not repeated, for it is a secret.
    """
    if not isinstance(url, str) or not _is_address(url):
        raise ConfigError("alert_webhook: seen no http or https address. Expected https://host/path.")


def _is_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def payload(url: str, alert: Alert, project: str, run: str, step: int) -> bytes:
    """The JSON that an address takes."""
    host = urlsplit(url).hostname or ""
    title, message, project, run = map(encodable, (alert.title, alert.text, project, run))
    text = f"[{alert.level}] {project}/{run}: {title}. {message}"[:MAX_TEXT]
    if host == "hooks.slack.com":
        return orjson.dumps({"text": text})
    if host in ("discord.com", "discordapp.com") or host.endswith(".discord.com"):
        return orjson.dumps({"content": text, "allowed_mentions": {"parse": []}})
    fields = {"project": project, "run": run, "step": step, "level": alert.level, "title": title}
    return orjson.dumps({"text": text, "message": message, **fields})


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *arguments: Any, **named: Any) -> None:
        return None


_OPENER = urllib.request.build_opener(_NoRedirects)
