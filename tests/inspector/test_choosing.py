"""Several rollouts of the list at once, what a sorted list shows, and several runs over each other."""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer.main
from playwright.sync_api import expect

from rollout_traces.cli import build_app
from rollout_traces.inspector.pages.explore import export, export_chosen
from rollout_traces.inspector.pages.rollouts import samples
from rollout_traces.inspector.workspace import Workspace
from tests.inspector.conftest import ROOT, Served, Visit, environment
from tests.inspector.told import told

PLACE = {"project": "demo", "run": "run-a", "split": "rollout"}


@pytest.fixture(scope="module")
def copied(home: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The projects in a folder whose labels are this file's own."""
    folder = tmp_path_factory.mktemp("chosen") / "trackio"
    shutil.copytree(home, folder)
    further = """
from tests.inspector.make_project import RunPlan, log_run
log_run(RunPlan(run='run,c', steps=2, eval_every=0))
log_run(RunPlan(project='wide', run='wide', steps=14, groups=2, eval_every=0))
"""
    done = subprocess.run(
        [sys.executable, "-c", further], cwd=ROOT, env=environment(folder), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def workspace(copied: Path) -> Iterator[Workspace]:
    found = Workspace(folder=copied)
    yield found
    found.close()


class TestExports:
    def parsed(self, command: str) -> dict[str, object]:
        words = shlex.split(command)
        assert words[:2] == ["rollout-traces", "export"]
        known = typer.main.get_command(build_app()).commands["export"]
        return known.make_context("export", words[2:]).params

    def test_the_command_of_a_filter_is_one_that_the_command_line_takes(self, workspace):
        answer = told(export, workspace, {**PLACE, "where": "reward > 0"})
        given = self.parsed(answer["command"])
        assert (given["run"], given["project"], given["where"]) == ("run-a", "demo", "reward > 0")
        assert str(given["out"]) == "rollouts.jsonl"

    def test_a_folder_is_named_so_that_the_command_finds_it_from_anywhere(
        self, workspace, tmp_path, monkeypatch
    ):
        """Seen once: of `show --example` the command named a folder of the inspector's own place."""
        (tmp_path / "demo").mkdir()
        monkeypatch.chdir(tmp_path)
        answer = told(export, workspace, {**PLACE, "where": "reward > 0"})
        assert self.parsed(answer["command"])["project"] == str(tmp_path / "demo")

    def test_those_that_were_chosen_are_exported_alone(self, workspace):
        listed = told(samples, workspace, {**PLACE, "step": 2, "scope": "all"})["samples"]
        ids = [listed[at]["id"] for at in (1, 4, 9)]
        answer = told(export_chosen, workspace, {**PLACE, "ids": ids})
        assert answer["total"] == 3
        assert {json.loads(line)["id"] for line in answer["lines"].splitlines()} == set(ids)
        assert self.parsed(answer["command"])["where"].count("'") == 6


class TestSorting:
    @pytest.mark.parametrize(
        ("sort", "name"), [("-update_share", "update_share"), ("n_sampled", "n_sampled")]
    )
    def test_rows_carry_what_they_are_sorted_by(self, workspace, sort, name):
        listed = told(samples, workspace, {**PLACE, "step": 3, "sort": sort})["samples"]
        shown = [card["sorted_by"] for card in listed if card["sorted_by"] is not None]
        assert shown and shown == sorted(shown, reverse=sort.startswith("-"))
        [row] = workspace.store("demo").query(where=f"id = '{listed[0]['id']}'").rows
        assert shown[0] == row[name]


@pytest.fixture(scope="module")
def server(copied: Path) -> Iterator[Served]:
    started = Served(copied)
    yield started
    started.stop()


@pytest.fixture
def shown(chromium: object, server: Served) -> Iterator[Visit]:
    visit = Visit(chromium, server.address)
    yield visit
    visit.close()


@pytest.mark.browser
class TestChoosing:
    def test_by_click_shift_and_key_and_labelled_together(self, shown):
        shown.open(**PLACE, tab="rollouts", step=3)
        cards = shown.get("sample-card")
        expect(cards).to_have_count(16)
        cards.nth(1).click(modifiers=["Control"])
        cards.nth(4).click(modifiers=["Shift"])
        expect(shown.get("selection")).to_contain_text("4 rollouts chosen")
        cards.nth(2).click(modifiers=["Control"])
        expect(shown.get("selection")).to_contain_text("3 rollouts chosen")
        expect(shown.page.locator("[data-chosen]")).to_have_count(3)
        shown.picture("chosen")
        shown.get("selection-label").click()
        shown.get("label-text").fill("looked at")
        shown.page.keyboard.press("Enter")
        expect(shown.get("selection")).to_contain_text("looked at on 3 rollouts")
        expect(shown.page.locator(".rt-sample .rt-label-chip")).to_have_count(3)
        shown.get("selection-clear").click()
        expect(shown.page.locator("[data-chosen]")).to_have_count(0)
        shown.page.keyboard.press("s")
        shown.page.keyboard.press("j")
        shown.page.keyboard.press("s")
        expect(shown.get("selection")).to_contain_text("2 rollouts chosen")
        shown.get("selection-note").click()
        shown.get("label-text").fill("the same mistake")
        shown.page.keyboard.press("Control+Enter")
        expect(shown.get("note")).to_contain_text("the same mistake")
        shown.get("selection-compare").click()
        expect(shown.get("deltas")).to_be_visible()

    def test_all_that_are_listed_are_exported(self, shown):
        shown.open(**PLACE, tab="rollouts", step=3)
        expect(shown.get("sample-card")).to_have_count(16)
        expect(shown.get("rollout-header")).to_be_visible()
        shown.page.keyboard.press("S")
        shown.get("selection-export").click()
        expect(shown.get("export-dialog")).to_contain_text("Export 16 rollouts")

    def test_no_more_than_can_be_handled_together_and_what_is_left_out_is_said(self, shown):
        shown.open(project="wide", run="wide", split="rollout", tab="rollouts", scope="all")
        for listed in (100, 200):
            expect(shown.get("sample-card")).to_have_count(listed)
            shown.page.get_by_text("more of 224 rollouts").click()
        expect(shown.get("sample-card")).to_have_count(224)
        shown.page.keyboard.press("S")
        expect(shown.get("selection")).to_contain_text("200 rollouts chosen")
        expect(shown.get("selection")).to_contain_text("200 at most are chosen, 24 further rollouts left out")
        expect(shown.page.locator("[data-chosen]")).to_have_count(200)

    def test_a_sorted_list_begins_at_its_top_and_shows_the_value(self, shown):
        shown.open(**PLACE, tab="rollouts", scope="all")
        expect(shown.get("sample-card")).to_have_count(96)
        shown.page.locator(".rt-left-list").evaluate("node => { node.scrollTop = 2000; }")
        shown.get("sort-select").select_option("-update_share")
        expect(shown.get("sorted-by").first).to_contain_text("update share")
        expect(shown.get("sample-card").first).to_be_in_viewport()

    def test_which_steps_are_listed_is_shown_once_a_click_has_changed_it(self, shown):
        shown.open(**PLACE, tab="rollouts")
        shown.get("scope-all").click()
        expect(shown.get("sample-card")).to_have_count(96)
        expect(shown.get("scope-all")).to_have_attribute("aria-pressed", "true")
        expect(shown.get("scope-step")).to_have_attribute("aria-pressed", "false")
        expect(shown.get("scope-all")).to_be_focused()


@pytest.mark.browser
class TestSeveralRuns:
    def test_are_drawn_over_each_other_and_taken_away_again(self, shown):
        shown.open(project="demo", run="run-a", split="rollout", tab="runs", other="run-b")
        lines = shown.get("runs-card").first.locator("path.rt-line:not(.rt-line-raw)")
        expect(lines).to_have_count(2)
        shown.get("one-more-run").select_option("run,c")
        expect(lines).to_have_count(3)
        expect(shown.get("legend").first).to_contain_text("run,c")
        shown.picture("several-runs")
        shown.get("further-run").locator("button").click()
        expect(lines).to_have_count(2)
        expect(shown.get("one-more-run")).to_be_visible()
