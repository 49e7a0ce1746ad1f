"""`rollout-traces run` leaves a script's arguments, exit code and traceback its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from rollout_traces.errors import ConfigError
from rollout_traces.integrations.base import INTEGRATIONS, contained, failures
from rollout_traces.integrations.hook_logger import attach_once
from rollout_traces.integrations.import_hook import TRIGGERS
from rollout_traces.settings.logger_options import HookOptions, read_environment


def run(folder: Path, script: str, *args: str, options: tuple[str, ...] = (), **environment: str):
    (folder / "train.py").write_text(script)
    return subprocess.run(
        [sys.executable, "-c", "from rollout_traces.cli import main; main()", "run", *options, *args],
        cwd=folder,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
    )


class TestTheScript:
    def test_its_arguments_pass_through_untouched(self, tmp_path):
        result = run(tmp_path, "import sys; print(sys.argv)", "train.py", "--config", "a.yaml", "--help")
        assert result.stdout.strip() == "['train.py', '--config', 'a.yaml', '--help']"

    def test_its_exit_code_is_its_own(self, tmp_path):
        assert run(tmp_path, "raise SystemExit(7)", "train.py").returncode == 7

    def test_its_traceback_is_its_own(self, tmp_path):
        result = run(tmp_path, "raise ValueError('mine')", "train.py")
        plain = subprocess.run([sys.executable, "train.py"], cwd=tmp_path, capture_output=True, text=True)
        assert result.returncode == plain.returncode
        assert result.stderr.startswith(plain.stderr)

    def test_that_is_not_there_is_said_once(self, tmp_path):
        """Seen once: Python's own words, and after them that the script imported no trainer."""
        done = run(tmp_path, "", "tain.py")
        assert done.returncode == 1
        assert "tain.py: no such script." in done.stderr and "imported none" not in done.stderr

    def test_a_module_runs_as_python_would(self, tmp_path):
        result = run(tmp_path, "import sys; print(__name__, sys.argv[1:])", "x", options=("-m", "train"))
        assert result.stdout.strip() == "__main__ ['x']"

    def test_the_environments_own_sitecustomize_still_runs(self, tmp_path):
        site = tmp_path / "site"
        site.mkdir()
        (site / "sitecustomize.py").write_text("print('mine too')")
        assert "mine too" in run(tmp_path, "pass", "train.py", PYTHONPATH=str(site)).stdout

    def test_a_trainer_is_hooked_as_it_is_imported(self, tmp_path):
        script = (
            "from trl.trainer.grpo_trainer import GRPOTrainer\n"
            "print(getattr(GRPOTrainer.__init__, '_rollout_traces', False))"
        )
        result = run(tmp_path, script, "train.py", options=("--max-traces", "8"))
        assert result.stdout.strip().endswith("True"), result.stderr

    def test_the_options_reach_the_script_as_settings(self, tmp_path):
        script = (
            "from rollout_traces.settings.logger_options import read_environment\n"
            "from rollout_traces.settings.logger_options import HookOptions\n"
            "print(read_environment(HookOptions))"
        )
        result = run(tmp_path, script, "train.py", options=("--max-traces", "8", "--project", "p"))
        assert result.stdout.strip() == "{'project': 'p', 'max_rollout_traces_per_step': 8}"


class TestSettings:
    def test_a_cap_that_is_no_integer_is_refused_by_name(self):
        with pytest.raises(ConfigError, match="ROLLOUT_TRACES_MAX_ROLLOUT_TRACES_PER_STEP: seen 'many'"):
            read_environment(HookOptions, {"ROLLOUT_TRACES_MAX_ROLLOUT_TRACES_PER_STEP": "many"})

    def test_what_the_environment_says_wins_over_the_trainers_own(self, monkeypatch):
        monkeypatch.setenv("ROLLOUT_TRACES_PROJECT", "mine")
        given = []
        hook = SimpleNamespace(give=lambda logger, options: given.append(options))
        trainer = SimpleNamespace(_rollout_traces=SimpleNamespace(hook=hook))
        attach_once("trl", trainer, None, {"project": "theirs", "name": "r", "space_id": None}, None)
        assert given == [{"project": "mine", "name": "r"}]


class TestHooks:
    def test_every_integration_has_a_trigger_and_every_trigger_a_function(self):
        import importlib

        for file, function in TRIGGERS.values():
            assert callable(getattr(importlib.import_module(file), function))
        named = {file.rsplit(".", 1)[1] for file, _ in TRIGGERS.values()}
        extends_verls, beside_the_trainer = {"agent_lightning"}, {"areal_followed", "verl_observer"}
        expected = (named - beside_the_trainer) | extends_verls
        assert {integration.name for integration in INTEGRATIONS} == expected

    def test_a_hook_that_fails_is_counted_and_warned_about_once(self, caplog):
        @contained("somewhere")
        def hook():
            raise KeyError("rewards")

        assert hook() is None
        assert hook() is None
        assert failures["somewhere: KeyError: 'rewards'"] == 2
        assert caplog.text.count("training goes on") == 1

    def test_trls_hook_points_are_found_in_the_installed_version(self):
        trl = next(integration for integration in INTEGRATIONS if integration.name == "trl")
        assert trl.missing_hook_points() == []
