"""`rollout-traces run` says at the end what was hooked and logged, or why nothing was."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

from rollout_traces.integrations import run_report
from rollout_traces.integrations.run_report import HookReport, lines
from tests.integrations.test_run import run

LOGGED = """
from types import SimpleNamespace
from rollout_traces.integrations.hook_logger import HookLogger
mine = SimpleNamespace(log_rollouts=lambda *_, **__: None, close_step=lambda *_: None, flush=lambda: True)
hook = HookLogger("trl", mine, {}, dict)
for step in range(3):
    hook.log_rollouts([SimpleNamespace(n_rows=8)], step=step, split="rollout")
    hook.close_step(step, "rollout")
hook.close()
"""
IN_ANOTHER_PROCESS = f"""
import subprocess, sys
subprocess.run([sys.executable, "-c", {LOGGED!r}], check=True)
"""


class TestWhatIsSaid:
    def test_steps_and_rollouts_are_counted_over_processes(self):
        reports = [HookReport("verl", 1, steps=2, rollouts=16), HookReport("verl", 1, steps=1, rollouts=1008)]
        assert lines(reports, ()) == ["verl: 1,024 rollouts of 3 training steps handed over."]

    def test_what_the_hooks_took_is_said_against_the_trainers_own_step(self):
        report = HookReport(
            "trl", 1, steps=3, rollouts=24, timed_steps=2, timed_seconds=0.8, timed_hook_seconds=0.004
        )
        [line] = lines([report], ())
        assert line.endswith("handed over; the hooks took 2.0 ms of a step's 400 ms (0.5%).")

    def test_a_logger_that_could_not_be_made_is_the_reason(self):
        [line] = lines([HookReport("trl", 1, problem="project: seen 3.")], ())
        assert line == "trl: no rollouts were logged: project: seen 3."

    def test_a_cap_of_0_is_the_reason_and_says_what_to_set(self):
        [line] = lines([HookReport("trl", 0, switched_off=1)], ())
        assert "max_rollout_traces_per_step is 0. Set --max-traces 32" in line

    @pytest.mark.parametrize(("module", "trainer"), [("openrlhf", "OpenRLHF"), ("skyrl", "SkyRL")])
    def test_a_trainer_with_an_adapter_alone_is_named(self, module, trainer, monkeypatch):
        monkeypatch.setitem(sys.modules, module, ModuleType(module))
        [line] = lines([], tuple(name for name in run_report.imported() if name == module))
        assert f"{trainer} has an adapter and no hook. docs/trainers.md" in line

    def test_a_module_whose_trainer_was_not_built_is_named(self):
        [line] = lines([], ("trl", "openrlhf"))
        assert "trl was imported, but no trainer that is hooked was built" in line


class TestAScript:
    def test_that_imports_no_trainer_is_told_so(self, tmp_path):
        result = run(tmp_path, "print('done')", "train.py", options=("--max-traces", "4"))
        assert result.stdout == "done\n"
        assert "the script imported none of AReaL, TRL and verl" in result.stderr

    def test_that_logs_is_told_how_much(self, tmp_path):
        result = run(tmp_path, LOGGED, "train.py", options=("--max-traces", "4"))
        assert (
            "rollout-traces: trl: 24 rollouts of 3 training steps handed over; the hooks took "
            in result.stderr
        )

    def test_whose_trainer_runs_in_another_process_is_told_once(self, tmp_path):
        result = run(tmp_path, IN_ANOTHER_PROCESS, "train.py", options=("--max-traces", "4"))
        assert result.stderr.count("24 rollouts of 3 training steps") == 1

    def test_outside_of_run_nothing_is_written(self, tmp_path, monkeypatch):
        monkeypatch.delenv(run_report.FOLDER, raising=False)
        monkeypatch.chdir(tmp_path)
        run_report.write()
        assert not list(tmp_path.iterdir())
