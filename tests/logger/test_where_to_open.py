"""A trainer's output says once where its rollouts can be read."""

from __future__ import annotations

import shlex
from types import SimpleNamespace

import pytest
import torch.distributed
from typer.testing import CliRunner

import rollout_traces as rt
from rollout_traces.cli import build_app
from rollout_traces.cluster.rendezvous import Ranks
from rollout_traces.errors import ConfigError
from rollout_traces.logger.where_to_open import inspector_of, where_to_open
from rollout_traces.store import open_store

SAID = "* Rollouts of this run: "


def said(capsys: pytest.CaptureFixture[str]) -> list[str]:
    """What was printed of where to open a run."""
    return [line.removeprefix(SAID) for line in capsys.readouterr().out.splitlines() if SAID in line]


def run_of(**written: str | None) -> SimpleNamespace:
    """What a Trackio run says of where it writes to."""
    return SimpleNamespace(project="a b", name="run 1", _space_id=None, _server_base_url=None, **written)


class TestWhatIsPrinted:
    def test_is_one_line_a_run_however_many_loggers_it_has(self, trackio_dir, capsys):
        first = rt.RolloutLogger("p", "run", worker="thread")
        second = rt.RolloutLogger("p", "run", worker="thread", run=first.run)
        assert said(capsys) == ["rollout-traces show --project p --run run"]
        assert second.finish(60) and first.finish(60)
        rt.RolloutLogger("p", "another", worker="thread").finish(60)
        assert said(capsys) == ["rollout-traces show --project p --run another"]

    def test_is_nothing_where_the_logger_is_quiet(self, trackio_dir, capsys):
        rt.RolloutLogger("p", "run", worker="thread", quiet=True).finish(60)
        assert said(capsys) == []

    @pytest.mark.parametrize(("rank", "lines"), [(0, 1), (1, 0)])
    def test_is_said_by_rank_0_alone_where_each_rank_has_a_run(
        self, trackio_dir, capsys, monkeypatch, rank, lines
    ):
        ranks = Ranks(rank, 2, torch.distributed.HashStore(), "node")
        monkeypatch.setattr("rollout_traces.logger.rollout_logger.current_ranks", lambda: ranks)
        rt.RolloutLogger("p", "run", worker="thread", per_rank=True).finish(60)
        assert len(said(capsys)) == lines


def stored_metadata(project: str) -> list[dict]:
    """The metadata of a run's kept rollouts."""
    store = open_store(project=project)
    return [dict(store.record(row.id).metadata) for row in store.query("r", "rollout").rows]


class TestAddresses:
    def test_the_runs_config_and_each_trace_lead_to_the_inspector_that_a_user_names(self, trackio_dir):
        logger = rt.RolloutLogger(
            "p p",
            "r",
            inspector_url="http://127.0.0.1:7861/lab/",
            max_rollout_traces_per_step=8,
            worker="thread",
        )
        talk = [{"role": "user", "content": "6*7?"}, {"role": "assistant", "content": "42"}]
        logger.log_rollouts(rt.RolloutBatch.from_messages([talk] * 2, rewards=[0.0, 1.0]), step=3)
        assert logger.finish(60)
        store = open_store(project="p p")
        config = store.config("r")["rollout_traces"]
        assert config["inspector"] == "http://127.0.0.1:7861/lab/?project=p+p&run=r"
        found = sorted(metadata["inspector"] for metadata in stored_metadata("p p"))
        assert found[0] == (
            "http://127.0.0.1:7861/lab/?project=p+p&run=r&tab=rollouts&split=rollout&step=3&group=0&sample=0"
        )

    def test_no_address_is_made_up(self, trackio_dir):
        logger = rt.RolloutLogger("p", "r", max_rollout_traces_per_step=8, worker="thread")
        talk = [{"role": "user", "content": "6*7?"}, {"role": "assistant", "content": "42"}]
        logger.log_rollouts(rt.RolloutBatch.from_messages([talk], rewards=[0.0]), step=3)
        assert logger.finish(60)
        store = open_store(project="p")
        assert "inspector" not in store.config("r").get("rollout_traces", {})
        [metadata] = stored_metadata("p")
        assert "inspector" not in metadata

    def test_an_inspector_that_takes_what_runs_log_is_its_own_address(self):
        assert inspector_of(None, "http://host:1/x/trackio?write_token=t") == "http://host:1/x"
        assert inspector_of(None, "http://host:1/") is None and inspector_of(None, None) is None

    @pytest.mark.parametrize(
        "given",
        [
            "host:7861",
            "ftp://host/",
            "http://host/?token=secret",
            "http://me:secret@host/",
            "javascript:alert(1)",
        ],
    )
    def test_what_is_none_or_holds_a_secret_is_refused_without_repeating_it(self, given):
        with pytest.raises(ConfigError, match="inspector_url") as refused:
            inspector_of(given, None)
        assert "secret" not in str(refused.value)


class TestTheCommand:
    def test_is_one_that_show_understands(self, trackio_dir):
        command = shlex.split(where_to_open(run_of()))
        assert command == ["rollout-traces", "show", "--project", "a b", "--run", "run 1"]
        done = CliRunner().invoke(build_app(["show"]), [*command[1:], "--no-browser"])
        assert "a b" in str(done.exception)

    def test_names_the_space_or_the_server(self):
        space = run_of()
        space._space_id = "user/space"
        assert where_to_open(space).startswith("rollout-traces show --space user/space --project")
        server = run_of()
        server._server_base_url = "http://host:7860"
        assert where_to_open(server).startswith("rollout-traces show --server-url http://host:7860 --project")

    def test_is_the_address_of_the_inspector_that_takes_what_the_run_logs(self):
        run = run_of()
        run._server_base_url = "https://host/prefix/trackio/"
        assert where_to_open(run) == "https://host/prefix/?project=a+b&tab=run&run=run+1"
