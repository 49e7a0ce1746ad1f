"""The hosted inspector: what its environment sets up, and the uploaded files running as a Space runs them."""

from __future__ import annotations

import json
import os
import platform
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import httpx
import pytest
from packaging.specifiers import SpecifierSet

from rollout_traces.cli.deploy import PYTHON, app_files, pinned_versions, write_app
from rollout_traces.errors import ConfigError
from rollout_traces.inspector.hosted import PORT, AskedTooOften, HubWriters, hosted_options, takes_labels
from rollout_traces.store.http_source import give_the_hub_up_after
from tests.deploy.hub import READER, WRITER, LoopbackHub, Space, loopback_hub
from tests.deploy.hub_road import Road, road_to
from tests.inspector.conftest import free_port

SPACE = {"SYSTEM": "spaces", "SPACE_ID": "ada/rollouts", "SPACE_HOST": "ada-rollouts.hf.space"}


class TestOptions:
    def test_a_space_answers_its_own_name_in_the_hubs_frame(self):
        options = hosted_options(SPACE)
        assert (options.host, options.port) == ("0.0.0.0", 7860)
        assert options.allow_hosts == ("ada-rollouts.hf.space",)
        assert options.frame_ancestors == ("https://huggingface.co",)
        assert options.token is None and options.write_token is None and options.hub_writer is not None

    @pytest.mark.parametrize(
        ("changed", "said"),
        [
            ({"SPACE_ID": ""}, "SPACE_ID"),
            ({"SPACE_HOST": ""}, "SPACE_HOST"),
            ({"PORT": "no"}, "PORT"),
            ({"ROLLOUT_TRACES_TOKEN": "t" * 20}, "Make the Space private"),
            ({"ROLLOUT_TRACES_TOKENS": "ann=" + "t" * 20}, "Make the Space private"),
        ],
    )
    def test_a_space_that_is_not_set_up_is_refused(self, changed, said):
        with pytest.raises(ConfigError, match=said):
            hosted_options({**SPACE, **changed})

    def test_a_container_needs_a_token(self):
        with pytest.raises(ConfigError, match="ROLLOUT_TRACES_TOKEN: seen 0 characters"):
            hosted_options({})
        options = hosted_options({"ROLLOUT_TRACES_TOKEN": "t" * 20, "ROLLOUT_TRACES_HOSTS": "a.org, b.org"})
        assert options.token == "t" * 20 and options.allow_hosts == ("a.org", "b.org")
        assert options.hub_writer is None

    def test_a_containers_readers_have_names(self):
        named = {"ROLLOUT_TRACES_TOKEN": "t" * 20, "ROLLOUT_TRACES_TOKENS": "ann=" + "a" * 20}
        assert hosted_options(named).named_tokens == {"ann": "a" * 20}

    @pytest.mark.parametrize(
        ("said", "taken"), [(None, False), ("", False), ("0", False), ("yes", False), ("1", True)]
    )
    def test_labels_are_taken_only_where_it_was_told_to(self, said, taken):
        assert takes_labels({} if said is None else {"ROLLOUT_TRACES_LABELS": said}) is taken


class TestHubWriters:
    def test_the_hub_is_asked_once_for_a_token(self):
        asked = []
        writers = HubWriters("ada/rollouts", lambda space, token: bool(asked.append(token)) or token == "yes")
        assert [writers.may_write(token) for token in ("yes", "no", "yes", "no")] == [
            True,
            False,
            True,
            False,
        ]
        assert asked == ["yes", "no"]

    def test_strangers_cannot_make_it_ask_more_often_than_once_a_second(self):
        asked, now = [], [0.0]
        writers = HubWriters(
            "ada/rollouts", lambda space, token: bool(asked.append(token)) or token == "hers", lambda: now[0]
        )
        assert writers.may_write("hers")
        refused = 0
        for second in range(600):
            now[0] = float(second)
            for attempt in range(5):
                try:
                    assert not writers.may_write(f"{second}-{attempt}")
                except AskedTooOften:
                    refused += 1
        assert refused + len(asked) == 3_001
        assert len(asked) <= 60 * 10 + 1

    def test_who_may_write_is_known_and_asked_about_however_many_others_come(self):
        asked, now = [], [0.0]
        writers = HubWriters(
            "ada/rollouts", lambda space, token: bool(asked.append(token)) or token == "hers", lambda: now[0]
        )
        assert writers.may_write("hers")
        for second in range(1_000):
            now[0] = float(second)
            with suppress(AskedTooOften):
                writers.may_write(f"stranger {second}")
            assert writers.may_write("hers")
        assert asked.count("hers") == 4

    def test_a_token_that_was_taken_back_is_refused_after_five_minutes(self):
        now, allowed = [0.0], [True]
        writers = HubWriters("ada/rollouts", lambda space, token: allowed[0], lambda: now[0])
        assert writers.may_write("hers")
        allowed[0] = False
        assert writers.may_write("hers")
        now[0] = 301.0
        assert not writers.may_write("hers")
        allowed[0] = True
        assert not writers.may_write("hers")

    def test_a_hub_that_takes_the_question_and_never_answers_is_given_up(self, hub_elsewhere):
        """Seen once: it held a thread of the Space for ever, and forty of them the Space."""
        give_the_hub_up_after(0.5)
        with socket.create_server(("127.0.0.1", 0)) as silent:
            hub_elsewhere(f"http://127.0.0.1:{silent.getsockname()[1]}")
            with pytest.raises(Exception, match="timed out"):
                HubWriters("ada/rollouts").may_write(WRITER)

    def test_one_that_answers_is_believed(self, hub_elsewhere):
        give_the_hub_up_after(30)
        with loopback_hub() as hub:
            hub.spaces["ada/rollouts"] = Space(private=True, sdk="gradio")
            hub_elsewhere(hub.address)
            writers = HubWriters("ada/rollouts")
            assert writers.may_write(WRITER) and not writers.may_write(READER)

    def test_the_answers_that_are_kept_are_bounded(self, monkeypatch):
        monkeypatch.setattr("rollout_traces.inspector.hosted.MOST_QUESTIONS", 1_000)
        asked = []
        writers = HubWriters("ada/rollouts", lambda space, token: bool(asked.append(token)))
        for number in range(300):
            writers.may_write(str(number))
        writers.may_write("299")
        writers.may_write("0")
        assert len(asked) == 301 and asked[-1] == "0"


class TestFiles:
    def test_versions_are_pinned_and_torch_is_left_out(self):
        versions = pinned_versions()
        assert {"trackio", "gradio", "duckdb", "pyarrow", "orjson", "uvicorn"} <= set(versions)
        assert not {"torch", "transformers", "pytest", "rollout-traces"} & set(versions)
        assert f"trackio=={versions['trackio']}\n" in app_files("x")["requirements.txt"].decode()

    def test_a_title_is_no_yaml(self):
        readme = app_files('a"\nsdk: docker')["README.md"].decode()
        assert readme.splitlines()[1] == 'title: "a\\"\\nsdk: docker"'

    def test_a_folder_with_something_in_it_is_left_alone(self, tmp_path):
        (tmp_path / "mine").write_text("")
        with pytest.raises(ConfigError, match="not empty"):
            write_app(tmp_path, app_files("x"))


@dataclass(frozen=True)
class Running:
    hub: LoopbackHub
    road: Road
    projects: Path
    python: Path
    app: Path

    def client(self, code: str, token: str = WRITER, **variables: str) -> subprocess.CompletedProcess[str]:
        """Runs code as a trainer elsewhere would: in a process of its own, over https, with a Hub token."""
        known = {k: v for k, v in os.environ.items() if k not in ("HF_HUB_OFFLINE", "TRACKIO_DIR")}
        return subprocess.run(
            [sys.executable, "-c", textwrap.dedent(code)],
            env={
                **known,
                **self.road.variables,
                "HF_ENDPOINT": self.hub.address,
                "HF_TOKEN": token,
                "HF_HOME": str(self.projects.parent / "hub-home"),
                "TRACKIO_DIR": str(self.projects.parent / "trainer"),
                "XDG_CACHE_HOME": str(self.projects.parent / "cache"),
                **variables,
            },
            capture_output=True,
            text=True,
            timeout=180,
        )


@pytest.fixture(scope="module")
def running(tmp_path_factory) -> Iterator[Running]:
    """The files that `deploy` uploads, in an environment that has what their requirements.txt says and no more."""
    folder = tmp_path_factory.mktemp("space")
    write_app(folder / "app", app_files("Rollouts"))
    python = folder / "environment" / "bin" / "python"
    for step in (
        ("venv", "--python", sys.executable, folder / "environment"),
        ("pip", "install", "--python", python, "-r", folder / "app" / "requirements.txt"),
    ):
        subprocess.run([sys.executable, "-m", "uv", *step, "-q"], check=True, timeout=500)
    with loopback_hub() as hub:
        hub.buckets["ada/rollouts-bucket"] = True
        hub.spaces["ada/rollouts"] = Space(
            private=True,
            sdk="gradio",
            variables={"TRACKIO_DIR": "/data/trackio", "TRACKIO_BUCKET_ID": "ada/rollouts-bucket"},
            volumes=[{"type": "bucket", "source": "ada/rollouts-bucket", "mountPath": "/data"}],
        )
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(folder),
            "TRACKIO_DIR": str(folder / "projects"),
            "HF_ENDPOINT": hub.address,
            "SPACE_AUTHOR_NAME": "ada",
            "SPACE_REPO_NAME": "rollouts",
            "PYTHONUNBUFFERED": "1",
            **SPACE,
        }
        with (folder / "app.log").open("w") as log:
            app = subprocess.Popen(
                [python, "app.py"], cwd=folder / "app", env=environment, stdout=log, stderr=subprocess.STDOUT
            )
        try:
            _wait_for_port(app, folder / "app.log")
            with road_to(7860, SPACE["SPACE_HOST"], folder) as road:
                yield Running(hub, road, folder / "projects", python, folder / "app")
        finally:
            app.terminate()
            app.wait(20)
        assert hub.unknown == []


def _wait_for_port(app: subprocess.Popen, log: Path, port: int = 7860) -> None:
    until = time.monotonic() + 120
    while time.monotonic() < until:
        assert app.poll() is None, log.read_text()
        try:
            httpx.get(f"http://127.0.0.1:{port}/", headers={"Host": SPACE["SPACE_HOST"]}, timeout=5)
            return
        except httpx.TransportError:
            time.sleep(0.5)
    raise AssertionError(log.read_text())


LOG = """
import numpy as np
from rollout_traces import RolloutLogger
logger = RolloutLogger("shared", "run-1", space_id="ada/rollouts", max_rollout_traces_per_step=4)
for step in range(3):
    logger.log_scalars({"loss": 1.0 - step}, step)
    logger.log_rollouts({
        "input_ids": np.arange(40).reshape(4, 10), "attention_mask": np.ones((4, 10), int),
        "loss_mask": np.ones((4, 10), int), "rewards": np.array([0.0, 1.0, 0.0, 1.0])}, step)
print("finished", logger.finish(120))
"""
READ = """
from rollout_traces import open_store
store = open_store("shared", space="ada/rollouts")
print("rollouts", store.rollouts().num_rows)
"""


class TestASpace:
    def test_takes_what_a_run_logs_and_shows_it(self, running):
        done = running.client(LOG)
        assert "finished True" in done.stdout, done.stdout + done.stderr
        assert (running.projects / "shared.db").is_file()
        read = running.client(READ)
        assert "rollouts 12" in read.stdout, read.stdout + read.stderr

    def test_takes_nothing_of_a_token_that_may_only_read(self, running):
        address, host = "http://127.0.0.1:7860/api/bulk_log", {"Host": SPACE["SPACE_HOST"]}
        for token, status in (("hf_reader", 401), ("hf_nobody", 401), (WRITER, 200)):
            body = {"kwargs": {"logs": [], "hf_token": token}}
            answer = httpx.post(address, json=body, headers={**host, "Authorization": f"Bearer {token}"})
            assert answer.status_code == status, (token, answer.text)
        assert httpx.post(address, json=body, headers=host).status_code == 401

    def test_says_so_where_the_hub_does_not_answer(self, running):
        running.hub.failures["GET /api/spaces/ada/rollouts/auth-check"] = 500
        try:
            answer = httpx.post(
                "http://127.0.0.1:7860/api/bulk_log",
                json={},
                headers={"Host": SPACE["SPACE_HOST"], "Authorization": "Bearer hf_another"},
            )
        finally:
            running.hub.failures.clear()
        assert answer.status_code == 503 and "The Hub did not say" in answer.text

    def test_may_be_framed_by_the_hub_alone(self, running):
        answer = httpx.get(
            "http://127.0.0.1:7860/",
            headers={"Host": SPACE["SPACE_HOST"], "X-Forwarded-Proto": "https"},
        )
        assert answer.status_code == 200
        assert "frame-ancestors https://huggingface.co" in answer.headers["content-security-policy"]
        assert httpx.get("http://127.0.0.1:7860/", headers={"Host": "evil.example"}).status_code == 403

    def test_has_no_torch(self, running):
        installed = running.projects.parent / "environment" / "lib"
        assert not list(installed.glob("python*/site-packages/torch"))


def instructions(dockerfile: str) -> list[tuple[str, str]]:
    lines = [line for line in dockerfile.splitlines() if line.strip() and not line.startswith("#")]
    return [(word, rest) for word, _, rest in (line.partition(" ") for line in lines)]


class TestAContainer:
    """No engine builds the image here: its steps are done in the environment of its requirements.txt."""

    def test_copies_what_is_there_and_runs_it_as_nobody_of_importance(self, running):
        steps = instructions((running.app / "Dockerfile").read_text())
        of = dict(steps)
        assert of["FROM"] == f"python:{PYTHON}-slim"
        assert platform.python_version().startswith(f"{PYTHON}.")
        asked = {name: metadata.metadata(name).get("Requires-Python") or "" for name in pinned_versions()}
        assert {name for name, python in asked.items() if not SpecifierSet(python).contains(PYTHON)} == set()
        copied = [rest.split()[0] for word, rest in steps if word == "COPY"]
        assert copied == ["requirements.txt", "."] and (running.app / "requirements.txt").is_file()
        words = [word for word, _ in steps]
        assert "RUN" not in words[words.index("USER") :]
        assert any(
            f"useradd --create-home --uid 1000 {of['USER']}" in rest for word, rest in steps if word == "RUN"
        )
        assert of["EXPOSE"] == str(PORT)
        environment = dict(pair.split("=") for pair in of["ENV"].split())
        assert environment["TRACKIO_DIR"].startswith(of["VOLUME"] + "/")

    def test_takes_what_a_run_logs_with_the_write_token_and_shows_it_with_the_other(self, running, tmp_path):
        steps = dict(instructions((running.app / "Dockerfile").read_text()))
        python, *arguments = json.loads(steps["CMD"])
        assert python == "python"
        port = free_port()
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(tmp_path),
            **dict(pair.split("=") for pair in steps["ENV"].split()),
            "TRACKIO_DIR": str(tmp_path / "trackio"),
            "PORT": str(port),
            "ROLLOUT_TRACES_TOKEN": "reads" * 4,
            "TRACKIO_WRITE_TOKEN": "writes" * 4,
        }
        log = tmp_path / "app.log"
        with log.open("w") as output:
            app = subprocess.Popen(
                [running.python, *arguments],
                cwd=running.app,
                env=environment,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        try:
            _wait_for_port(app, log, port)
            address = f"http://127.0.0.1:{port}"
            code = LOG.replace(
                'space_id="ada/rollouts"', f'server_url="{address}/trackio/?write_token={"writes" * 4}"'
            )
            done = running.client(code, TRACKIO_DIR=str(tmp_path / "trainer"))
            assert "finished True" in done.stdout, done.stdout + done.stderr
            asked = {"project": "shared", "rows": "all"}
            reader = {"Authorization": "Bearer " + "reads" * 4}
            answer = httpx.get(f"{address}/api/v1/rollouts", params=asked, headers=reader, timeout=60)
            assert answer.json()["total"] == 12, answer.text
            assert httpx.get(f"{address}/api/v1/rollouts", params=asked, timeout=60).status_code == 401
        finally:
            app.terminate()
            app.wait(20)
