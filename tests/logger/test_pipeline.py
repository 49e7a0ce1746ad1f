"""What a run's logger does for runs of its project that were killed."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from rollout_traces.logger import pipeline
from rollout_traces.logger.pipeline import LoggerPipeline
from rollout_traces.worker.main import NamedTargets


class TestRunsThatWereKilled:
    @pytest.fixture
    def recovered(self, monkeypatch, tmp_path):
        """Recovers of some folders, whose runs go to the remotes; gives the name and tokens of each that is."""
        started: list[tuple[str, dict]] = []

        class Worker:
            def __init__(self, folder, named, secrets, report) -> None:
                self.said = (folder.path.name, secrets)

            def start_once(self) -> None:
                started.append(self.said)

        def recover(*left, own: bool = True, in_process: bool = True):
            found = [
                SimpleNamespace(
                    folder=SimpleNamespace(path=tmp_path / "spools" / "p" / name),
                    in_use=in_use,
                    manifest=SimpleNamespace(remote=remote),
                )
                for name, remote, in_use in left
            ]
            monkeypatch.setattr(
                pipeline, "find_left", lambda project, roots: found if roots == [tmp_path / "spools"] else []
            )
            monkeypatch.setattr(pipeline, "WorkerProcess", Worker)
            one = object.__new__(LoggerPipeline)
            one.folder = SimpleNamespace(path=tmp_path / "spools" / "p" / "mine") if own else None
            one._plan = SimpleNamespace(in_process=in_process)
            one._sink = SimpleNamespace(run=SimpleNamespace(project="p", _write_token="t"))
            one._named = NamedTargets(("here",))
            one._recover_others()
            return started

        return recover

    def test_are_recovered_where_they_stay_here_or_go_where_this_one_goes(self, recovered):
        left = [("a", None, False), ("b", "here", False), ("c", "elsewhere", False)]
        assert recovered(*left) == [("a", {}), ("b", {"TRACKIO_WRITE_TOKEN": "t"})]

    def test_are_not_this_run_nor_those_that_somebody_has(self, recovered):
        assert recovered(("mine", None, False), ("a", None, True), ("b", None, False)) == [("b", {})]

    def test_are_left_to_others_by_a_run_without_a_folder_or_a_process(self, recovered):
        assert recovered(("a", None, False), own=False) == []
        assert recovered(("a", None, False), in_process=False) == []
