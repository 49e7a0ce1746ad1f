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
from rollout_traces.logger.where_to_open import where_to_open

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


class TestTheCommand:
    def test_is_one_that_show_understands(self, trackio_dir):
        command = shlex.split(where_to_open(run_of()))
        assert command == ["rollout-traces", "show", "--project", "a b", "--run", "run 1"]
        done = CliRunner().invoke(build_app(["show"]), [*command[1:], "--no-browser"])
        assert "a b" in done.output and "No such option" not in done.output

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
