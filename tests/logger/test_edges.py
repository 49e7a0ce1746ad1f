"""What is odd at the edge is left out by itself, or refused with the name of what it is about."""

from __future__ import annotations

import pytest
import torch

import rollout_traces as rt
from rollout_traces.errors import ConfigError
from tests.worker.readback import scalar_steps


class Broken:
    """A tokenizer whose every question fails."""

    def __getattr__(self, name):
        raise RuntimeError("the vocabulary is not loaded")


class TestScalars:
    def test_one_without_a_value_does_not_take_its_siblings(self, trackio_dir):
        logger = rt.RolloutLogger("p", "run", worker="thread")
        logger.log_scalars(
            {"loss": 0.5, "norm": torch.ones((), device="meta"), "lr": torch.tensor(0.1)}, step=1
        )
        assert logger.finish(60)
        assert scalar_steps(trackio_dir, "loss") == scalar_steps(trackio_dir, "lr") == {1: 1}
        assert scalar_steps(trackio_dir, "norm") == {}
        assert logger.counters["scalar_values_left_out"] == 1 and not logger.counters["scalars_refused"]


class TestTheConstructor:
    def test_names_the_tokenizer_that_fails(self, trackio_dir):
        with pytest.raises(ConfigError, match="tokenizer: RuntimeError: the vocabulary is not loaded"):
            rt.RolloutLogger("p", "run", Broken())

    def test_names_the_folder_that_cannot_be_written(self, trackio_dir, monkeypatch):
        def refuse(*arguments):
            raise OSError(30, "Read-only file system")

        monkeypatch.setattr("rollout_traces.logger.pipeline.take_run_folder", refuse)
        with pytest.raises(
            ConfigError, match=r"project: 'p' .* \(TRACKIO_DIR\): OSError: .* Read-only file system"
        ):
            rt.RolloutLogger("p", "run")

    @pytest.mark.parametrize(
        ("options", "place"),
        [
            (
                {"server_url": "http://127.0.0.1:9/"},
                r"on the server \(server_url\): ValueError: .*write token",
            ),
            ({}, r"in Trackio's folder \(TRACKIO_DIR\): OSError: no room"),
        ],
    )
    def test_says_where_a_project_cannot_be_opened(self, trackio_dir, monkeypatch, options, place):
        def refuse(**arguments):
            raise OSError("no room")

        monkeypatch.delenv("TRACKIO_WRITE_TOKEN", raising=False)
        if not options:
            monkeypatch.setattr("rollout_traces.logger.rollout_logger.TrackioSink.open", refuse)
        with pytest.raises(ConfigError, match=f"project: 'p' cannot be opened {place}"):
            rt.RolloutLogger("p", "run", **options)
