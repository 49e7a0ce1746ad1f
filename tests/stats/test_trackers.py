"""Each tracker's own files hold what was logged; a tracker that is not installed is named."""

from __future__ import annotations

import os
import sys

import pytest

from rollout_traces.stats.config import StatsLoggerConfig
from rollout_traces.stats.trackers import (
    SwanlabSink,
    TensorBoardSink,
    WandbSink,
    _folder,
    sink_makers,
)


def test_tensorboard_writes_an_event_file(tmp_path):
    from tensorboardX.proto.event_pb2 import Event

    sink = TensorBoardSink(tmp_path)
    sink.log_scalars({"loss": 0.5, "rollout/reward/mean": 1.0}, step=3)
    sink.log_scalars({"loss": 0.25}, step=4)
    sink.close()
    values = [
        (event.step, value.tag, value.simple_value)
        for path in tmp_path.glob("events*")
        for event in events_of(path.read_bytes(), Event)
        for value in event.summary.value
    ]
    assert sorted(values) == [(3, "loss", 0.5), (3, "rollout/reward/mean", 1.0), (4, "loss", 0.25)]


def events_of(data: bytes, kind):
    """The records of an event file: length, checksum, bytes, checksum."""
    at = 0
    while at < len(data):
        size = int.from_bytes(data[at : at + 8], "little")
        yield kind.FromString(data[at + 12 : at + 12 + size])
        at += size + 16


def test_wandb_offline_keeps_a_run_on_disk(tmp_path, monkeypatch):
    import wandb

    for name in ("WANDB_DIR", "WANDB_CACHE_DIR", "WANDB_CONFIG_DIR", "WANDB_DATA_DIR"):
        monkeypatch.setenv(name, str(tmp_path))
    monkeypatch.setenv("WANDB_SILENT", "true")
    sink = WandbSink("offline", config={"lr": 1}, project="p", name="r", dir=str(tmp_path))
    sink.log_scalars({"loss": 0.5}, step=3)
    assert wandb.run.step == 3 or wandb.run.summary["loss"] == 0.5
    sink.close()
    assert wandb.run is None
    assert list(tmp_path.glob("wandb/offline-run-*/run-*.wandb"))


def test_wandb_uses_the_run_that_is_open_and_leaves_it_open(tmp_path, monkeypatch):
    import wandb

    monkeypatch.setenv("WANDB_SILENT", "true")
    run = wandb.init(mode="offline", dir=str(tmp_path), project="trainer")
    try:
        sink = WandbSink("offline", project="other")
        sink.log_scalars({"loss": 0.5}, step=0)
        sink.close()
        assert wandb.run is run
    finally:
        run.finish()


def test_swanlab_local_keeps_a_run_on_disk(tmp_path, monkeypatch):
    monkeypatch.setenv("SWANLAB_SAVE_DIR", str(tmp_path / "home"))
    (tmp_path / "home").mkdir()
    monkeypatch.chdir(tmp_path)
    sink = SwanlabSink(
        "offline", config={"lr": 1}, project="p", experiment_name="r", logdir=str(tmp_path / "log")
    )
    sink.log_scalars({"loss": 0.5}, step=3)
    sink.close()
    assert any(files for _, _, files in os.walk(tmp_path / "log"))


@pytest.mark.parametrize(
    ("package", "make"),
    [
        ("tensorboardX", lambda folder: TensorBoardSink(folder)),
        ("wandb", lambda folder: WandbSink("offline")),
        ("swanlab", lambda folder: SwanlabSink("local")),
    ],
)
def test_a_tracker_that_is_not_installed_is_named(package, make, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ModuleNotFoundError, match=package):
        make(tmp_path)


def test_a_config_asks_for_the_trackers_it_names():
    config = StatsLoggerConfig.create({"tensorboard": {"path": "x"}, "wandb": {"mode": "offline"}}, {})
    assert len(sink_makers(config, {})) == 2 and sink_makers(StatsLoggerConfig(), {}) == []


def test_trackers_keep_their_files_under_the_experiment_and_the_trial(tmp_path):
    config = StatsLoggerConfig(experiment_name="exp", trial_name="first", fileroot=str(tmp_path))
    assert _folder(config) == str(tmp_path / "logs" / "exp" / "first")
    assert (tmp_path / "logs" / "exp" / "first").is_dir()
