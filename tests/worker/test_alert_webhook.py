"""`alert_webhook=`: a run's alerts are posted to it, and whatever it does costs no step, no time and no secret."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections import Counter
from pathlib import Path

import pytest

import rollout_traces as rt
from rollout_traces.errors import ConfigError
from rollout_traces.sink.webhook import ENVIRONMENT
from rollout_traces.spool.run_folder import run_folders
from rollout_traces.stats.config import StatsLoggerConfig, TrackioConfig, plain_config
from tests.generator import BatchPlan, batch_arrays, tiny_tokenizer
from tests.worker.readback import ledger_uids

OK = b"HTTP/1.1 204 No Content\r\nContent-Length: 0\r\n\r\n"
NONSENSE = b"\xff\x00 no HTTP at all\r\n\r\n"
REFUSED = b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n"


class Endpoint:
    """A server on loopback that gives every caller one answer; None: none, while it holds the connection."""

    def __init__(self, answer: bytes | None) -> None:
        self.bodies: list[bytes] = []
        self._answer = answer
        self._held: list[socket.socket] = []
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}/hook/very-secret-part"
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            threading.Thread(target=self._reply, args=(connection,), daemon=True).start()

    def _reply(self, connection: socket.socket) -> None:
        received = b""
        while b"\r\n\r\n" not in received:
            received += connection.recv(65536)
        head, body = received.split(b"\r\n\r\n", 1)
        [length] = [
            int(line.split(b":")[1]) for line in head.split(b"\r\n") if b"content-length" in line.lower()
        ]
        while len(body) < length:
            body += connection.recv(65536)
        self.bodies.append(body)
        if self._answer is None:
            self._held.append(connection)
            return
        connection.sendall(self._answer)
        connection.close()

    def close(self) -> None:
        self._socket.close()
        for connection in self._held:
            connection.close()


def log_leaks(url: str | None, worker: str = "thread") -> tuple[Counter[str], list[Path]]:
    """Logs two steps whose first one has an error flag; the logger's counters, and what then lay on disk."""
    tokenizer = tiny_tokenizer()
    logger = rt.RolloutLogger(
        "p", "run", tokenizer, max_rollout_traces_per_step=4, alert_webhook=url, worker=worker
    )
    for step in (1, 2):
        arrays = batch_arrays(tokenizer, BatchPlan(n_groups=2, group_size=2, seed=step))
        logger.log_rollouts(arrays | {"loss_mask": arrays["attention_mask"]}, step=step)
    assert logger.flush(180)
    secret = "very-secret-part"
    [folder] = run_folders(logger._pipeline.folder.path.parent.parent)
    written = [path for path in folder.path.parent.parent.parent.rglob("*") if path.is_file()]
    leaked = [path for path in written if secret.encode() in path.read_bytes()]
    assert logger.finish(180)
    return logger.counters, leaked


def wait_for(endpoint: Endpoint) -> None:
    deadline = time.monotonic() + 30
    while not endpoint.bodies and time.monotonic() < deadline:
        time.sleep(0.05)


@pytest.mark.parametrize("worker", ["thread", "process"])
def test_an_alert_arrives_from_either_worker_and_its_address_lies_nowhere(trackio_dir, worker):
    endpoint = Endpoint(OK)
    counters, leaked = log_leaks(endpoint.url, worker)
    wait_for(endpoint)
    endpoint.close()
    messages = [json.loads(body) for body in endpoint.bodies]
    assert any(
        m["level"] == "error" and (m["project"], m["run"], m["step"]) == ("p", "run", 1) for m in messages
    )
    assert counters["alerts_sent"] == len(messages) and not counters["alerts_not_sent"]
    assert leaked == []


@pytest.mark.parametrize("answer", [None, NONSENSE, REFUSED], ids=["hangs", "nonsense", "refuses"])
def test_one_that_fails_delays_nothing_and_is_counted(trackio_dir, answer, caplog):
    endpoint = Endpoint(answer)
    counters, _ = log_leaks(endpoint.url)
    endpoint.close()
    assert len(ledger_uids(trackio_dir)) == 8, "every step is stored"
    assert counters["alerts_not_sent"] and not counters["alerts_sent"]
    assert not counters["worker_deaths"] and not counters["spooled"]
    assert "very-secret-part" not in caplog.text


def test_nobody_there_is_counted(trackio_dir):
    with socket.create_server(("127.0.0.1", 0)) as gone:
        port = gone.getsockname()[1]
    counters, _ = log_leaks(f"http://127.0.0.1:{port}/")
    assert counters["alerts_not_sent"] and not counters["alerts_sent"]


def test_the_variable_stands_for_the_argument(trackio_dir, monkeypatch):
    endpoint = Endpoint(OK)
    monkeypatch.setenv(ENVIRONMENT, endpoint.url)
    log_leaks(None)
    wait_for(endpoint)
    endpoint.close()
    assert endpoint.bodies


def test_what_is_no_address_is_refused_where_the_logger_is_made(trackio_dir):
    with pytest.raises(ConfigError, match="alert_webhook"):
        rt.RolloutLogger("p", "run", alert_webhook="ftp://host/secret")


def test_the_stored_config_leaves_it_out():
    config = StatsLoggerConfig("e", "t", trackio=TrackioConfig(alert_webhook="https://host/hidden"))
    assert "hidden" not in json.dumps(plain_config(config, config)) and "hidden" not in repr(config)
