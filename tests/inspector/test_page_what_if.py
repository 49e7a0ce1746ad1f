"""The What if page."""

from __future__ import annotations

import re

import numpy as np
import pytest
from playwright.sync_api import expect

import rollout_traces as rt
from rollout_traces.errors import StoreError
from rollout_traces.export import export_partitioned
from rollout_traces.inspector.pages.what_if import what_if
from rollout_traces.inspector.workspace import Workspace
from rollout_traces.store.export_source import HISTOGRAMS
from tests.generator import BatchPlan, batch_arrays, tiny_tokenizer
from tests.inspector.told import told

PLACE = {"project": "demo", "run": "run-a", "split": "rollout", "step": 4}
WHAT_IF = {**PLACE, "tab": "what_if"}


@pytest.mark.browser
class TestWhatIf:
    def test_a_slider_moves_the_figures_of_the_step_and_of_the_rollout(self, visit):
        visit.open(**WHAT_IF, rules="icepop:0.5,5")
        expect(visit.get("taken")).to_contain_text("0% tokens masked")
        visit.get("slider-icepop-0").fill("1")
        expect(visit.get("taken")).to_contain_text(re.compile(r"[45]\d% tokens masked"))
        assert visit.state["rules"] == "icepop:1,5"
        expect(visit.get("token").first).to_be_visible()
        assert visit.page.locator(".rt-active .rt-tokens .b1").count() > 5
        visit.picture("what-if")
        widths = visit.page.locator(".rt-bar-table:visible tr").evaluate_all(
            "all => all.map(row => row.cells.length)"
        )
        assert set(widths) <= {3, 6}, "each head stands over its figures"

    def test_a_rule_whose_quantities_are_missing_is_unobserved(self, visit):
        visit.open(**WHAT_IF, rules="dppo:0.1")
        expect(visit.get("unobserved-rules")).to_contain_text("DPPO, binary: unobserved")
        expect(visit.get("taken")).to_contain_text("unobserved tokens masked")

    def test_rules_are_switched_and_go_with_the_address(self, visit):
        visit.open(**WHAT_IF)
        expect(visit.get("rule-clip").locator("input[type=checkbox]")).to_be_checked()
        visit.get("rule-stale").locator("input[type=checkbox]").check()
        assert visit.state["rules"] == "clip:0.2,0.2;stale:2"
        visit.get("rule-clip").locator("input[type=checkbox]").uncheck()
        assert visit.state["rules"] == "stale:2"

    def test_tokens_of_a_tracker_without_logprobs_to_compare_say_so(self, visit):
        visit.open(tab="what_if", project="agents", run="run-a", split="rollout", step=1)
        expect(visit.page.locator(".rt-of-step .rt-notice:visible")).to_contain_text("no histogram")


def test_the_cells_hold_every_loss_token_of_the_step(home):
    workspace = Workspace(folder=home)
    try:
        found = told(what_if, workspace, PLACE)
        ledger = workspace.store("demo").ledger("run-a", "rollout", steps=4)
    finally:
        workspace.close()
    tokens = sum(found["cells"]["tokens"])
    used = np.asarray([reason is None for reason in ledger.get("discard_reason")])
    leaked = tokens - ledger.get("n_sampled")[used].sum()
    assert 0 < leaked <= 3
    assert found["samples"]


def test_an_export_answers_the_same(home, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    workspace = Workspace(folder=home)
    folder = str(tmp_path / "export")
    try:
        export_partitioned(workspace.store("demo"), folder, tokens=True)
        found = told(what_if, workspace, PLACE)
    finally:
        workspace.close()
    exported = Workspace(projects=(folder,))
    try:
        assert told(what_if, exported, {**PLACE, "project": folder}) == found
        (tmp_path / "export" / HISTOGRAMS).write_text("[[1")
        with pytest.raises(StoreError, match=r"loss_histograms\.json: damaged"):
            told(what_if, exported, {**PLACE, "project": folder})
    finally:
        exported.close()


def test_a_step_is_whole_with_the_part_that_came_late(trackio_dir):
    batch = batch_arrays(tiny_tokenizer(), BatchPlan(n_groups=2, group_size=2))
    ratio = {"prox_logprobs": batch["logprobs"]}
    logger = rt.RolloutLogger("p", "run", tiny_tokenizer(), worker="thread")
    logger.log_rollouts({**batch, **ratio}, step=1)
    logger.close_step(1)
    logger.log_rollouts({**batch, **ratio}, step=1)
    assert logger.finish(180)
    workspace = Workspace()
    try:
        found = told(what_if, workspace, {"project": "p", "run": "run", "split": "rollout", "step": 1})
    finally:
        workspace.close()
    assert sum(found["cells"]["tokens"]) == 2 * np.asarray(batch["loss_mask"]).sum()
