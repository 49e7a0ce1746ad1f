"""The commands that answer what changed, on a run logged through the real logger into Trackio; and which entries `explain` prints."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from rollout_traces.analysis.diagnosis import Diagnosis, Severity
from rollout_traces.cli import build_app
from rollout_traces.cli.explain import unfolded
from tests.stories.causes import CAUSES
from tests.stories.logged import log_story
from tests.stories.world import Kind, write_run
from tests.trackio_home import use_trackio_home

AT = 14
SMALL = "logged"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project of two runs: one whose engine vllm-1 is off from step `AT` on, and a healthy one."""
    folder = tmp_path_factory.mktemp("trackio")
    kinds = {SMALL: Kind(n_sources=2, groups=(5, 6), group_size=4)}
    with pytest.MonkeyPatch.context() as patch:
        use_trackio_home(patch, folder)
        patch.setattr("tests.stories.world.KINDS", kinds)
        cause = CAUSES["one engine off"]
        log_story(
            write_run(1, SMALL, "one engine off", cause.changes, n_steps=24, at=AT, run="off"),
            "story",
            config={"lr": 1e-6},
        )
        log_story(write_run(2, SMALL, n_steps=12, run="healthy"), "story", config={"lr": 2e-6})
    return folder


@pytest.fixture
def command(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    use_trackio_home(monkeypatch, folder)
    monkeypatch.setenv("COLUMNS", "200")

    def run(name: str, *arguments: str) -> Result:
        return CliRunner().invoke(build_app([name]), [name, *arguments])

    return run


class TestExplain:
    def test_a_run_names_the_engine_and_the_step(self, command):
        report = json.loads(command("explain", "off", "--json").stdout)
        head = report["diagnoses"][0]
        assert head["severity"] in ("warn", "error")
        assert head["series"][0][0].startswith("mismatch")
        assert abs(head["step"] - AT) <= 2
        assert head["part"] == [["engine", "vllm-1"]]

    def test_a_step_says_what_differs_and_what_is_in_force(self, command):
        output = command("explain", "off", "--step", str(AT + 1)).output
        assert "In force at this step" in output and "What differs" in output
        assert "mismatch_k3" in output and "on engine “vllm-1”" in output

    def test_two_ranges_of_steps(self, command):
        found = json.loads(
            command("explain", "off", "--steps", f"{AT}:", "--against", f"0:{AT - 1}", "--json").stdout
        )
        assert "mismatch_k3" in {each["column"] for each in found["findings"]}

    def test_a_filter_narrows_both_sides(self, command):
        plain = json.loads(command("explain", "off", "--step", str(AT + 1), "--json").stdout)
        asked = ("explain", "off", "--where", "engine = 'vllm-1'", "--step", str(AT + 1), "--json")
        found = json.loads(command(*asked).stdout)
        assert found["rows"][0] < plain["rows"][0] and found["rows"][1] < plain["rows"][1]
        assert "engine = 'vllm-1'" in found["a"]

    def test_a_filter_alone_is_compared_with_the_rest(self, command):
        found = json.loads(command("explain", "off", "--where", "engine = 'vllm-1'", "--json").stdout)
        everything = json.loads(command("prompts", "off", "-n", "1000", "--json").stdout)
        assert sum(found["rows"]) == sum(p["tried"] for p in everything["rows"]) + everything["keyless"]
        assert "not (engine = 'vllm-1')" in found["b"]
        assert "mismatch_k3" in [f["column"] for f in found["findings"]]

    def test_a_filter_that_is_none_points_at_the_place(self, command):
        done = command("explain", "off", "--where", "engine == = 3")
        assert done.exit_code and "Traceback" not in done.output

    def test_two_runs(self, command):
        said = command("explain", "off", "--against", "healthy").output
        assert "“off” against “healthy”" in said
        assert "What changed is read from “healthy” to “off”." in said

    def test_a_healthy_run_is_silent_and_says_what_is_unobserved(self, command):
        output = command("explain", "healthy").output
        assert "No warning; " in output and "Unobserved" in output

    def test_what_is_not_there_is_said(self, command):
        assert "no such run or split" in str(command("explain", "off", "--against", "nothing").exception)
        assert "which run?" in str(command("explain").exception)

    def test_a_step_that_the_run_has_not_is_refused_with_those_it_has(self, command):
        done = command("explain", "off", "--step", "999")
        assert "off has no rollouts there; steps of rollout: 0 to " in str(done.exception)

    def test_a_filter_that_nothing_satisfies_leaves_nothing_to_compare(self, command):
        output = command("explain", "off", "--step", "5", "--where", "reward > 1e9").output
        differs = output.partition("What differs")[2]
        assert "There is nothing to compare." in differs and "by chance" not in differs
        assert output.startswith("“off”, step 5, reward > 1e9: no rollouts.\n") and "no step" not in output


class TestOthers:
    def test_events(self, command):
        found = json.loads(command("events", "off", "--json").stdout)["rows"]
        assert any(
            e["kind"] == "change" and abs(e["step"] - AT) <= 2 and "vllm-1" in e["sentence"] for e in found
        )

    def test_events_name_the_settings_that_changed_since_the_run_before(self, command):
        first = json.loads(command("events", "off", "--json").stdout)["rows"]
        second = json.loads(command("events", "healthy", "--json").stdout)["rows"]
        assert not [e for e in first if e["kind"] == "config"]
        [changed] = [e for e in second if e["kind"] == "config"]
        assert (changed["what"], changed["step"]) == ("lr", 0)
        assert changed["sentence"] == "“lr”: “1e-06” in “off”, the run before, “2e-06” in this one"

    def test_prompts(self, command):
        found = json.loads(command("prompts", "off", "--sort", "visits", "-n", "3", "--json").stdout)
        assert len(found["rows"]) == 3
        key = found["rows"][0]["prompt_key"]
        assert json.loads(command("prompts", "off", "--key", key, "--json").stdout)["rows"][0]["tried"] == 4

    def test_flips(self, command):
        found = json.loads(command("flips", "off", "--json").stdout)
        assert sum(found["counts"].values()) == 40
        said = command("flips", "off", "--steps", "0:20").output
        assert "no eval" not in said and ("solved as often" in said or "not sure" in said)
        assert "kept" not in said and "unsure" not in said
        assert str(command("flips", "off", "--steps", "1:20").exception).startswith(
            "off has no eval-rollout at step 1; it has steps 0, "
        )

    def test_flips_without_an_evaluation(self, command):
        said = str(command("flips", "off", "--split", "nothing").exception)
        assert "has no split nothing; it has " in said and "split='eval-rollout'" in said


def entry(severity: Severity, *, is_sure: bool = True) -> Diagnosis:
    return Diagnosis(severity, "s", "", 0, (), (), "level", (0, 0), 0, is_sure=is_sure)


def test_every_warning_and_ten_entries_with_three_that_may_be_chance():
    """Seen once: 38 entries of one run, most of them “perhaps by chance”."""
    errors, sure, doubtful = ([entry("error")] * 4, [entry("info")] * 9, [entry("info", is_sure=False)] * 9)
    assert unfolded([*errors, *doubtful, *sure]) == [*errors, *doubtful[:3], *sure[:3]]
    assert unfolded([entry("warn")] * 14) == [entry("warn")] * 14
    assert unfolded(doubtful) == doubtful[:3]
