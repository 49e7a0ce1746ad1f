"""`rollout-traces deploy` against a Hub on loopback: what it makes, what it leaves alone, what it says."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from rollout_traces.cli import main
from tests.deploy.hub import READER, WRITER, LoopbackHub, Space, loopback_hub


@pytest.fixture
def hub() -> Iterator[LoopbackHub]:
    with loopback_hub() as found:
        yield found
        assert found.unknown == []


def deploy_in_a_process(hub: LoopbackHub, *arguments: str, token: str | None = WRITER, **variables: str):
    """Runs the command in a process of its own, which reads the Hub's address when it starts."""
    environment = {
        **{name: value for name, value in os.environ.items() if name not in ("HF_HUB_OFFLINE", "HF_TOKEN")},
        "HF_ENDPOINT": hub.address,
        "HF_HOME": "/nonexistent-home-of-the-hub",
        **({"HF_TOKEN": token} if token else {}),
        **variables,
    }
    return subprocess.run(
        [sys.executable, "-c", "from rollout_traces.cli import main; main()", "deploy", *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.fixture
def deploy(hub, hub_elsewhere, monkeypatch, capsys) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs the command in this process."""
    hub_elsewhere(hub.address)

    def run(*arguments: str, token: str = WRITER, **variables: str) -> subprocess.CompletedProcess[str]:
        for name, value in {"HF_TOKEN": token, **variables}.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(sys, "argv", ["rollout-traces", "deploy", *arguments])
        try:
            main()
            code = 0
        except SystemExit as end:
            code = end.code or 0
        return subprocess.CompletedProcess(sys.argv, code, *capsys.readouterr())

    return run


class TestANewSpace:
    def test_is_private_has_a_bucket_and_the_app_in_one_commit(self, hub):
        done = deploy_in_a_process(hub, "ada/rollouts")
        assert done.returncode == 0, done.stderr
        space = hub.spaces["ada/rollouts"]
        assert space.private and space.sdk == "gradio" and space.commits == 1
        assert hub.buckets == {"ada/rollouts-bucket": True}
        assert [(v["source"], v["mountPath"]) for v in space.volumes] == [("ada/rollouts-bucket", "/data")]
        assert space.variables == {"TRACKIO_DIR": "/data/trackio", "TRACKIO_BUCKET_ID": "ada/rollouts-bucket"}
        assert {"app.py", "README.md", "requirements.txt", "rollout_traces/inspector/hosted.py"} <= set(
            space.files
        )
        assert "Made" in done.stdout and "ada/rollouts-bucket" in done.stdout

    def test_is_public_on_request_and_that_is_said(self, hub, deploy):
        done = deploy("ada/rollouts", "--public")
        assert not hub.spaces["ada/rollouts"].private
        assert "ROLLOUT_TRACES_LABELS" not in hub.spaces["ada/rollouts"].variables
        assert "everybody can read" in done.stderr

    def test_gets_the_secrets_that_were_named_and_no_other(self, hub, deploy):
        done = deploy("ada/rollouts", "--secret", "WEBHOOK", WEBHOOK="https://example.org/x")
        assert done.returncode == 0, done.stderr
        assert hub.spaces["ada/rollouts"].secrets == {"WEBHOOK": "https://example.org/x"}
        assert WRITER not in done.stdout + done.stderr


class TestASpaceThatExists:
    def test_keeps_its_bucket_and_loses_files_of_an_older_version(self, hub, deploy):
        hub.buckets["ada/old"] = True
        hub.spaces["ada/rollouts"] = Space(
            private=True,
            sdk="gradio",
            files={"app.py": b"import trackio", "rollout_traces/gone.py": b"", "notes.md": b"mine"},
            volumes=[{"type": "bucket", "source": "ada/old", "mountPath": "/data"}],
        )
        done = deploy("ada/rollouts")
        assert done.returncode == 0, done.stderr
        space = hub.spaces["ada/rollouts"]
        assert "serve_hosted" in space.files["app.py"].decode()
        assert "rollout_traces/gone.py" not in space.files and space.files["notes.md"] == b"mine"
        assert [v["source"] for v in space.volumes] == ["ada/old"] and list(hub.buckets) == ["ada/old"]
        assert "Updated" in done.stdout

    def test_gets_no_other_bucket(self, hub, deploy):
        deploy("ada/rollouts")
        done = deploy("ada/rollouts", "--bucket", "ada/other")
        assert done.returncode == 1
        assert "ada/rollouts-bucket is mounted" in done.stderr and hub.spaces["ada/rollouts"].commits == 1

    def test_is_not_started_anew_by_variables_that_are_set(self, hub, deploy):
        deploy("ada/rollouts")
        hub.asked.clear()
        assert deploy("ada/rollouts").returncode == 0
        assert not [asked for asked in hub.asked if asked.endswith("/variables") and "POST" in asked]


class TestFailures:
    @pytest.mark.parametrize(
        ("request_", "status", "said"),
        [
            ("GET /api/spaces", 401, "401"),
            ("POST /api/repos/create", 429, "429"),
            ("POST /api/repos/create", 403, "403"),
            ("POST /api/buckets", 500, "500"),
            ("POST /api/spaces/ada/rollouts/variables", 500, "500"),
            ("POST /api/spaces/ada/rollouts/commit", 401, "401"),
            ("POST /api/spaces/ada/rollouts/commit", 400, "400"),
            ("POST /api/spaces/ada/rollouts/commit", 0, "RemoteProtocolError"),
        ],
    )
    def test_of_the_hub_are_one_sentence_and_nothing_is_half_done(self, hub, deploy, request_, status, said):
        hub.failures[request_] = status
        done = deploy("ada/rollouts")
        assert done.returncode == 1
        assert said in done.stderr and "Traceback" not in done.stderr
        assert all(not space.files for space in hub.spaces.values())
        hub.failures.clear()
        assert deploy("ada/rollouts").returncode == 0
        assert "app.py" in hub.spaces["ada/rollouts"].files

    def test_a_reader_is_refused(self, hub, deploy):
        done = deploy("ada/rollouts", token=READER)
        assert done.returncode == 1 and "403" in done.stderr and hub.spaces == {}

    def test_no_token(self, hub):
        done = deploy_in_a_process(hub, "ada/rollouts", token=None)
        assert done.returncode == 1 and "hf auth login" in done.stderr

    def test_no_hub(self, hub):
        done = deploy_in_a_process(hub, "ada/rollouts", HF_ENDPOINT="http://127.0.0.1:9")
        assert done.returncode == 1
        assert "ConnectError" in done.stderr and "Nothing was changed" in done.stderr

    def test_an_offline_switch_is_named(self, hub):
        done = deploy_in_a_process(hub, "ada/rollouts", HF_HUB_OFFLINE="1")
        assert done.returncode == 1 and "HF_HUB_OFFLINE" in done.stderr

    @pytest.mark.parametrize("name", ["rollouts", "a/b/c", "ada/..", "../x"])
    def test_a_name_that_is_none(self, hub, deploy, name):
        done = deploy(name)
        assert done.returncode == 1 and "Expected owner/name" in done.stderr and hub.asked == []

    def test_a_secret_that_is_not_there(self, hub, deploy):
        done = deploy("ada/rollouts", "--secret", "NOT_SET_ANYWHERE")
        assert done.returncode == 1 and "NOT_SET_ANYWHERE" in done.stderr and hub.asked == []
