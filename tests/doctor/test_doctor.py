"""The doctor says what is there, and a check that fails does not silence the others."""

from __future__ import annotations

import copy

import orjson
import pytest
from typer.testing import CliRunner

from rollout_traces.cli import build_app
from rollout_traces.doctor import CHECKS, CheckFinding, Examination, each_check
from rollout_traces.model.private_files import NETWORK_TYPES, mount_type
from tests.generator import tiny_tokenizer


class TestExamine:
    def test_every_check_reports_something(self, trackio_dir):
        findings = dict(each_check(Examination()))
        assert set(findings) == set(CHECKS)
        assert all(items for items in findings.values())

    def test_a_check_that_raises_becomes_a_finding(self, monkeypatch):
        def broken(examination):
            raise RuntimeError("no")
            yield CheckFinding("ok", "x", "y")

        monkeypatch.setitem(CHECKS, "Broken", broken)
        [finding] = dict(each_check(Examination()))["Broken"]
        assert finding.status == "fail"
        assert "RuntimeError('no')" in finding.seen

    def test_findings_come_as_each_check_ends(self, monkeypatch):
        def ends_later(examination):
            raise AssertionError("asked before the first finding was taken")

        first = next(iter(CHECKS))
        for name in list(CHECKS)[1:]:
            monkeypatch.setitem(CHECKS, name, ends_later)
        assert next(each_check(Examination()))[0] == first


class TestCommand:
    def test_it_prints_json_for_programs(self, trackio_dir):
        result = CliRunner().invoke(build_app(["doctor"]), ["doctor", "--json"])
        assert result.exit_code == 0, result.output
        assert orjson.loads(result.output)["Installed"][0]["subject"] == "python"

    def test_what_is_not_there_is_named_without_a_traceback(self, tmp_path, trackio_dir):
        missing = str(tmp_path / "nope")
        options = ["doctor", "--tokenizer", missing, "--config", f"{missing}.yaml"]
        result = CliRunner().invoke(build_app(["doctor"]), [*options, "--json"])
        found = orjson.loads(result.output)
        assert result.exit_code == 1
        [tokenizer] = found["Tokenizer"]
        assert missing in tokenizer["seen"] and "tokenizer.json" in tokenizer["advice"]
        assert any(f"{missing}.yaml is no file" in item["seen"] for items in found.values() for item in items)
        said = CliRunner().invoke(build_app(["doctor"]), options)
        assert isinstance(said.exception, SystemExit) and "Please report this" not in said.output

    def test_a_tokenizer_shows_what_its_template_teaches(self, tmp_path, trackio_dir):
        tiny_tokenizer("qwen3").save_pretrained(tmp_path / "tokenizer")
        result = CliRunner().invoke(
            build_app(["doctor"]), ["doctor", "--tokenizer", str(tmp_path / "tokenizer")]
        )
        assert result.exit_code == 0, result.output
        assert "decoded as it was rendered" in " ".join(result.output.split())
        assert "<tool_response>" in result.output

    def test_arguments_of_the_template_are_honoured(self, tmp_path, trackio_dir):
        tokenizer = copy.deepcopy(tiny_tokenizer("qwen3"))
        tokenizer.chat_template = "{% for m in messages %}{{ '### ' if plain else '' }}{{ m.role }}\n{{ m.content }}\n\n{% endfor %}"
        tokenizer.save_pretrained(tmp_path / "tokenizer")
        path = ["doctor", "--tokenizer", str(tmp_path / "tokenizer")]
        result = CliRunner().invoke(
            build_app(["doctor"]), [*path, "--chat-template-kwargs", '{"plain": true}']
        )
        assert result.exit_code == 0, result.output
        assert "### assistant" in result.output
        refused = CliRunner().invoke(build_app(["doctor"]), [*path, "--chat-template-kwargs", "3"])
        assert "Expected a JSON object" in str(refused.exception)

    def test_an_environment_variable_wins_over_the_config(self, tmp_path, trackio_dir, monkeypatch):
        config = tmp_path / "grpo.yaml"
        config.write_text("stats_logger:\n  trackio:\n    mode: local\n    max_rollout_traces_per_step: 32\n")
        monkeypatch.setenv("ROLLOUT_TRACES_MAX_ROLLOUT_TRACES_PER_STEP", "8")
        result = CliRunner().invoke(build_app(["doctor"]), ["doctor", "--json", "--config", str(config)])
        seen = [finding["seen"] for finding in orjson.loads(result.output)["Config"]]
        assert "ROLLOUT_TRACES_MAX_ROLLOUT_TRACES_PER_STEP is 8 and wins over a config" in seen
        assert "up to 8 a step and split, and every row in the ledger" in seen

    def test_a_config_says_what_it_would_log(self, tmp_path, trackio_dir):
        config = tmp_path / "grpo.yaml"
        config.write_text("stats_logger:\n  trackio:\n    mode: local\n    max_rollout_traces_per_step: 32\n")
        result = CliRunner().invoke(build_app(["doctor"]), ["doctor", "--config", str(config)])
        assert "up to 32 a step" in result.output

    def test_a_cap_that_is_no_int_fails(self, tmp_path, trackio_dir):
        config = tmp_path / "grpo.yaml"
        config.write_text("stats_logger:\n  trackio:\n    max_rollout_traces_per_step: many\n")
        result = CliRunner().invoke(build_app(["doctor"]), ["doctor", "--config", str(config)])
        assert result.exit_code == 1


class TestFileSystem:
    def test_the_type_of_a_mount_is_named(self, trackio_dir):
        [found] = [one for one in dict(each_check(Examination()))["Storage"] if one.subject == "file system"]
        assert found.seen.split(",")[0] == mount_type(trackio_dir.parent) not in ("", None)

    @pytest.mark.parametrize("kind", sorted(NETWORK_TYPES))
    def test_every_mount_on_which_no_spool_is_kept_is_warned_of(self, trackio_dir, monkeypatch, kind):
        monkeypatch.setattr("rollout_traces.doctor.storage.mount_type", lambda path: kind)
        [found] = [one for one in dict(each_check(Examination()))["Storage"] if one.subject == "file system"]
        assert (found.status, found.seen.split(",")[0]) == ("warn", kind)
