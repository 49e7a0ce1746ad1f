"""The shared project as a partitioned export, and an S3 server on loopback."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from rollout_traces.export import export_partitioned
from rollout_traces.store import Store
from tests.store.conftest import shared_folder, store

__all__ = ["shared_folder", "store"]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user cache of this test's own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def exported(store: Store, tmp_path: Path) -> Path:
    """The shared project, exported with conversations and tokens."""
    export_partitioned(store, tmp_path / "exported", tokens=True)
    return tmp_path / "exported"


@pytest.fixture(scope="session")
def s3_server() -> Iterator[str]:
    """The address of an S3 server on loopback."""
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def bucket(s3_server: str, exported: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of the export in a bucket; where its server is, the environment says."""
    import s3fs

    monkeypatch.setenv("AWS_ENDPOINT_URL", s3_server)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    files = s3fs.S3FileSystem(skip_instance_cache=True)
    files.mkdir("rollouts")
    files.put(str(exported), "rollouts/gsm8k", recursive=True)
    s3fs.S3FileSystem.clear_instance_cache()
    yield "s3://rollouts/gsm8k"
    files.rm("rollouts", recursive=True)
