"""Rollouts as a Ray Dataset, and a scan that writes a column back, on Ray's local cluster."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from rollout_traces.errors import ConfigError
from rollout_traces.export import export_partitioned, ray_dataset
from rollout_traces.export.scan_job import scan
from rollout_traces.store import Store, open_store
from tests.store.conftest import shared_folder
from tests.store.projects import PROJECT

__all__ = ["shared_folder"]


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    import ray

    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    ray.init(num_cpus=1, object_store_memory=80 << 20, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()


@pytest.fixture
def project(shared_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    shutil.copytree(shared_folder, tmp_path / "trackio")
    opened = open_store(PROJECT, folder=tmp_path / "trackio")
    yield opened
    opened.close()


@pytest.fixture(params=["project", "export"])
def store(request: pytest.FixtureRequest, project: Store, tmp_path: Path) -> Store:
    """The project itself, and its export."""
    if request.param == "project":
        return project
    export_partitioned(project, tmp_path / "exported")
    return open_store(str(tmp_path / "exported"))


def test_gives_the_traced_rollouts_of_a_filter_with_their_text(store: Store) -> None:
    rows = ray_dataset(
        store, "reward >= 0.5", columns=["uid", "reward", "flags"], splits=["rollout"]
    ).take_all()
    assert {row["uid"] for row in rows} == {"b0-0", "b1-0", "b2-0"}
    assert all("cannot be wrong" in row["text"] and row["messages"].startswith("[{") for row in rows)
    assert {"id", "uid", "reward", "flags", "messages", "text"} == set(rows[0])


def test_a_scan_writes_a_column_that_the_store_joins(store: Store) -> None:
    found = scan(store, r"can(not|'t)", "refusals")
    assert (found["scanned"], found["matched"]) == (10, 6)
    store.refresh()
    assert store.count(where="refusals > 0") == 6 == store.count(text="cannot")
    assert store.rollouts(where="refusals > 0", columns=["refusals"])["refusals"].to_pylist() == [1] * 6
    assert scan(store, "sorry", "refusals")["matched"] == 3
    assert store.count(where="refusals > 0") == 3


def test_what_it_cannot_do_is_refused_before_anything_is_read(project: Store) -> None:
    with pytest.raises(ConfigError, match="pattern"):
        scan(project, "(", "refusals")
    with pytest.raises(ConfigError, match="there is one of this name"):
        scan(project, "x", "reward")
