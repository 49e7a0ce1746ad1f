"""Explain, Prompts, Flips and Runs: their answers, and the way from one to the next in the browser."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import expect

from rollout_traces.analysis.relations import written
from rollout_traces.errors import StoreError
from rollout_traces.inspector.pages.explain import (
    explain,
    figures,
    in_force,
    step_range,
)
from rollout_traces.inspector.pages.flips import flip_figures, flip_list, grid
from rollout_traces.inspector.pages.prompts import prompt, prompt_list
from rollout_traces.inspector.pages.runs import several_runs
from rollout_traces.inspector.workspace import Workspace
from rollout_traces.store import QueryError
from tests.inspector.conftest import Served, Visit, box_of
from tests.inspector.told import told
from tests.stories.causes import CAUSES
from tests.stories.logged import log_story
from tests.stories.world import Kind, write_run
from tests.trackio_home import use_trackio_home

AT = 12
PLACE = {"project": "answers", "run": "off", "split": "rollout"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two evaluated runs: a healthy one, and one whose engine vllm-1 is off from step `AT` on."""
    folder = tmp_path_factory.mktemp("trackio")
    with pytest.MonkeyPatch.context() as patch:
        use_trackio_home(patch, folder)
        patch.setattr("tests.stories.world.KINDS", {"page": Kind(n_sources=2, groups=(5, 6), group_size=4)})
        log_story(write_run(2, "page", n_steps=21, run="healthy"), "answers", cap=90)
        changes = CAUSES["one engine off"].changes
        log_story(
            write_run(1, "page", "one engine off", changes, n_steps=21, at=AT, run="off"), "answers", cap=90
        )
    return folder


@pytest.fixture(scope="module")
def workspace(folder: Path) -> Iterator[Workspace]:
    opened = Workspace(folder=folder)
    yield opened
    opened.close()


class TestExplain:
    def test_a_filter_against_the_rest_finds_what_it_selects(self, workspace):
        asked = {
            **PLACE,
            "steps": f"{AT}:",
            "where": "mismatch_abs_max > 0.3 and reward >= 0",
            "against_rest": "1",
        }
        found = told(explain, workspace, asked)
        assert found["findings"][0]["column"].startswith(("mismatch", "flags", "engine"))
        assert "not (mismatch_abs_max > 0.3 and reward >= 0)" in found["b"]
        assert sum(found["rows"]) == workspace.store("answers").count(
            "off", split="rollout", steps=(AT, None), rows="all"
        )

    def test_a_search_and_figures_of_the_group_can_be_explained_too(self, workspace):
        for where in ("text contains 'Question'", "group.mean > 0.5"):
            found = told(explain, workspace, {**PLACE, "where": where, "against_rest": "1"})
            assert found["rows"][0] == workspace.store("answers").count(
                "off", split="rollout", where=where, rows="all"
            )

    def test_another_run_at_the_same_steps(self, workspace):
        found = told(explain, workspace, {**PLACE, "steps": f"{AT}:", "against_run": "healthy"})
        assert found["a"].startswith("“off”") and found["b"].startswith("“healthy”")
        assert any("mismatch" in each["column"] for each in found["findings"])

    def test_the_figures_of_every_sentence_come_from_its_query(self, workspace):
        asked = {**PLACE, "steps": f"{AT}:", "against_steps": f":{AT - 1}"}
        found = told(explain, workspace, asked)
        assert found["findings"]
        for at, each in enumerate(found["findings"]):
            query = told(figures, workspace, {**asked, "of": "findings", "at": at})["queries"][0]
            rows = [dict(zip(query["columns"], row, strict=True)) for row in query["rows"]]
            assert rows[0]["level"] == pytest.approx(each["a"]) and rows[1]["level"] == pytest.approx(
                each["b"]
            )
            assert (rows[0]["rollouts"], rows[1]["rollouts"]) == (each["n_a"], each["n_b"])
            inside = [row for row in rows if row.get("part") == "inside"]
            if inside:
                assert inside[0]["level"] == pytest.approx(each["detail"]["a"])
            again = workspace.store("answers").sql(query["sql"]).to_pylist()
            assert again[0]["level"] == pytest.approx(each["a"]), "the statement that is shown gives it too"

    def test_every_other_sentence_has_its_figures_too(self, workspace):
        asked = {**PLACE, "steps": f"{AT}:", "against_steps": f":{AT - 1}"}
        found = told(explain, workspace, asked)
        assert found["decompositions"] and not any(each["query"] for each in found["decompositions"])
        for of in ("decompositions", "carried"):
            for at in range(len(found[of])):
                (query,) = told(figures, workspace, {**asked, "of": of, "at": at})["queries"]
                assert query["rows"] and "select" in query["sql"]
        with pytest.raises(StoreError, match="expected one of"):
            told(figures, workspace, {**asked, "of": "remarks"})
        with pytest.raises(StoreError, match="there are"):
            told(figures, workspace, {**asked, "of": "findings", "at": 999})

    def test_diagnoses_in_force_are_named(self, workspace):
        held = told(in_force, workspace, {**PLACE, "step": AT + 4})["diagnoses"]
        assert any("vllm-1" in each["sentence"] for each in held)
        before = told(in_force, workspace, {**PLACE, "step": 2})["diagnoses"]
        assert all(each["severity"] == "info" for each in before)

    def test_what_cannot_be_read_is_said(self, workspace):
        with pytest.raises(QueryError):
            told(explain, workspace, {**PLACE, "where": "reward <"})
        with pytest.raises(StoreError, match="10:20"):
            told(explain, workspace, {**PLACE, "steps": "some"})
        with pytest.raises(StoreError, match="has no filter"):
            told(explain, workspace, {**PLACE, "step": 3, "against_rest": "1"})
        assert told(explain, workspace, {**PLACE, "step": 999})["remarks"]

    def test_ranges_and_literals(self):
        assert step_range("12") == (12, 12) and step_range("10:") == (10, None)
        with pytest.raises(StoreError, match="ends before it begins; expected 10:20"):
            step_range("20:10")
        assert written("a = ? and b = ?", ["it's", 3]) == "a = 'it''s' and b = 3"


class TestPrompts:
    def test_the_list_is_sorted_and_a_prompt_has_a_series_for_each_run_and_split(self, workspace):
        listed = told(prompt_list, workspace, {**PLACE, "split": "eval-rollout", "order": "tokens"})
        tokens = [each["tokens"] for each in listed["prompts"]]
        assert tokens == sorted(tokens, reverse=True) and listed["total"] == 40
        key = listed["prompts"][0]["prompt_key"]
        one = told(prompt, workspace, {**PLACE, "prompt": key})
        places = {
            (place["run"], place["split"]): [visit["step"] for visit in place["visits"]]
            for place in one["places"]
        }
        assert places[("off", "eval-rollout")] == [0, 10, 20] and ("healthy", "eval-rollout") in places

    def test_an_unknown_order_is_refused(self, workspace):
        with pytest.raises(StoreError, match="no order"):
            told(prompt_list, workspace, {**PLACE, "order": "; drop table"})


class TestFlips:
    def test_two_evaluations_and_two_runs(self, workspace):
        asked = {**PLACE, "split": "eval-rollout"}
        found = told(flip_list, workspace, asked)
        assert (found["first"], found["second"], found["n_prompts"]) == (0, 20, 40)
        assert sum(found["counts"].values()) == 40
        between = told(flip_list, workspace, {**asked, "other": "healthy"})
        assert (between["first"], between["second"]) == (20, 20)
        (again,) = told(flip_figures, workspace, {**asked, "other": "healthy"})["queries"]
        said = dict(zip(again["columns"], again["rows"][0], strict=True))
        assert said["score_a"] == pytest.approx(between["score_a"])
        assert said["difference"] == pytest.approx(between["difference"])
        cells = told(grid, workspace, {**asked, "other": "healthy"})
        assert len(cells["evaluations"]) == 6 and len(cells["rows"]) == 40

    def test_every_prompt_has_its_text_and_what_was_kept_of_either_outcome(self, workspace):
        """Seen once: a won prompt opened two losing rollouts; one that did not flip had neither a text nor a link."""
        asked = {**PLACE, "split": "eval-rollout"}
        found = told(flip_list, workspace, asked)
        store = workspace.store("answers")
        for flip, cells in zip(found["prompts"], found["cells"], strict=True):
            for step, cell in zip((0, 20), cells, strict=True):
                at = {"run": "off", "split": "eval-rollout", "steps": (step, step)}
                rows = store.query(where=f"prompt_key = '{flip['prompt_key']}'", **at).rows
                kept = {bool(row["success"]) for row in rows}
                assert (cell["solved_id"] is not None, cell["failed_id"] is not None) == (
                    True in kept,
                    False in kept,
                )
                assert flip["prompt"] or not rows

    def test_a_step_without_an_evaluation_is_named_with_those_that_there_are(self, workspace):
        with pytest.raises(StoreError, match=r"off has no eval-rollout at step 3; it has steps 0, "):
            told(flip_list, workspace, {**PLACE, "split": "eval-rollout", "first": 3, "second": 20})

    def test_without_an_evaluation_it_says_what_to_log(self, workspace):
        with pytest.raises(StoreError, match="eval-rollout"):
            told(flip_list, workspace, {**PLACE, "split": ""})


class TestRuns:
    def test_series_progress_and_settings_of_each(self, workspace):
        found = told(several_runs, workspace, {**PLACE, "others": ["healthy", "off"]})
        assert [each["run"] for each in found["runs"]] == ["off", "healthy", "off"]
        assert all("rollout/reward/mean" in each["series"] for each in found["runs"])
        rows = workspace.store("answers").count("off", split="rollout", rows="all")
        assert found["runs"][0]["progress"]["rollouts"][-1] == rows
        assert found["evaluations"] == ["eval-rollout"]
        for setting in found["settings"]:
            first, other, again = setting["values"]
            assert first == again != other

    def test_no_other_and_too_many_are_refused(self, workspace):
        for others in ([], ["healthy"] * 24):
            with pytest.raises(StoreError, match="expected 1 to 23 runs"):
                told(several_runs, workspace, {**PLACE, "others": others})


@pytest.mark.browser
class TestPages:
    @pytest.fixture(scope="class")
    def shown(self, folder: Path, chromium: object) -> Iterator[Visit]:
        server = Served(folder)
        visit = Visit(chromium, server.address)
        yield visit
        visit.close()
        server.stop()

    def test_from_a_step_to_the_figures_to_a_rollout(self, shown: Visit):
        shown.open(**PLACE, tab="explain", steps=f"{AT}:", against=f"steps=:{AT - 1}")
        expect(shown.get("finding").first).to_contain_text("vllm-1")
        expect(shown.get("finding").first).to_contain_text(
            re.compile(r"; n [\d,]+ against [\d,]+ there, [\d,]+ against [\d,]+ in all")
        )
        expect(shown.get("findings")).to_contain_text("What differs from B to A")
        shown.get("figures").first.click()
        expect(shown.get("query").first).to_contain_text("select")
        shown.get("explain-open").first.click()
        expect(shown.get("turn").first).to_be_visible()
        assert shown.state["tab"] == "rollouts" and "against" not in shown.state

    def test_a_finding_has_its_interval_both_distributions_and_three_rollouts_to_read(self, shown: Visit):
        shown.open(**PLACE, tab="explain", steps=f"{AT}:", against=f"steps=:{AT - 1}")
        pictured = shown.get("finding").filter(has=shown.page.locator(".rt-two-bars")).first
        expect(pictured).to_contain_text(
            re.compile(r"effect [+−][\d.]+, 95% from [+−][\d.]+ to [+−][\d.]+; p .*; n [\d,]+ against [\d,]+")
        )
        expect(pictured.locator("rect.rt-of-a").first).to_be_attached()
        expect(pictured.locator("rect.rt-of-b").first).to_be_attached()
        expect(pictured.get_by_test_id("explain-open")).to_have_count(3)

    def test_the_change_of_the_reward_is_a_bar_for_each_part(self, shown: Visit):
        shown.open(**PLACE, tab="explain", steps=f"{AT}:", against=f"steps=:{AT - 1}")
        parts = shown.get("decomposition").first
        expect(parts).to_contain_text("Mean reward")
        bars = parts.locator(".rt-part-bar i")
        assert bars.count() >= 2 and all(bar.get_attribute("style") for bar in bars.all())
        name = parts.locator(".rt-part-name .rt-ellipsis").first
        name.evaluate("node => { node.textContent = 'a_source_with_a_long_name'.repeat(6); }")
        assert box_of(parts.locator(".rt-part-bar").first)["width"] >= 60, (
            "a long name leaves room for the bars"
        )

    def test_the_first_step_is_compared_with_none(self, shown: Visit):
        """Seen once: "against 0 in 0; 0 columns and values compared"."""
        shown.open(**PLACE, tab="explain", steps="0")
        expect(shown.get("explain-against")).to_contain_text(
            re.compile(r"against no step before: .* against none\.")
        )

    def test_a_point_of_a_chart_is_explained_by_a_click(self, shown: Visit):
        shown.open(**PLACE, tab="run")
        shown.get("run-card").first.locator("svg").click()
        expect(shown.get("explain-against")).to_contain_text("“off”, step")
        assert shown.state["explain"] == "1" and int(shown.state["step"]) > 0

    def test_what_is_unobserved_says_what_to_log(self, shown: Visit):
        shown.open(**PLACE, tab="run")
        expect(shown.get("unobserved")).to_contain_text(re.compile(r"nothing is known of .* Log "))

    def test_two_runs_show_the_settings_that_differ_and_go_by_tokens(self, shown: Visit):
        shown.open(**PLACE, tab="runs")
        expect(shown.get("settings")).to_contain_text("Settings that differ")
        shown.get("axis").select_option("tokens")
        expect(shown.get("runs-card").first.locator("svg")).to_contain_text("tokens sampled")

    def test_what_b_is_can_be_chosen_and_stays_in_the_address(self, shown: Visit):
        shown.open(**PLACE, tab="explain", step=str(AT + 2))
        shown.get("b-kind").select_option("run")
        expect(shown.get("explain-against")).to_contain_text(f"“healthy”, step {AT + 2}")
        assert shown.state["against"] == "run=healthy"
        shown.get("a-where").fill("reward <")
        shown.get("a-where").press("Enter")
        expect(shown.get("filter-error")).to_be_visible()

    def test_a_phrase_is_marked_where_it_is_opened(self, shown: Visit):
        shown.open(
            **PLACE,
            tab="rollouts",
            step=str(AT),
            group="0",
            sample="0",
            mark="question",
        )
        expect(shown.get("marked")).to_contain_text("question")
        shown.page.wait_for_function("CSS.highlights.get('rt-found')?.size > 0")

    def test_a_filter_and_a_cell_of_health_can_be_explained(self, shown: Visit):
        shown.open(**PLACE, tab="explore", rows="all", where="engine = 'vllm-1'")
        shown.get("filter-explain").click()
        expect(shown.get("explain-against")).to_contain_text("not (engine = 'vllm-1')")
        shown.open(**PLACE, tab="health", step=str(AT + 3), flag="measure:reward/mean")
        shown.get("cell-explain").click()
        expect(shown.get("explain-against")).to_contain_text(f"step {AT + 3}")

    def test_a_grid_cell_opens_both_where_they_part(self, shown: Visit):
        shown.open(**PLACE, tab="flips")
        expect(shown.get("flip-summary")).to_contain_text("points")
        expect(shown.get("flip-grid")).to_contain_text("in italics: no answer kept")
        cell = shown.page.locator("[data-testid='grid-cell'].rt-fell:not(:disabled)").first
        cell.click()
        expect(shown.get("first-divergence").first).to_be_in_viewport()
        assert shown.state["tab"] == "compare" and shown.state["a"] != shown.state["b"]

    def test_evaluations_can_be_chosen_where_those_named_are_not_there(self, shown: Visit):
        """Seen once: the selects were gone."""
        shown.open(**PLACE, tab="flips", evals="3:20")
        expect(shown.page.locator(".rt-flips .rt-notice")).to_contain_text("at step 3")
        shown.get("flips-first").select_option("0")
        expect(shown.get("flip-summary")).to_contain_text("points")

    def test_a_grid_cell_is_marked_by_the_evaluation_before_also_where_none_was_kept(self, shown: Visit):
        """Seen once: a row of three flips had no mark, for its rollouts had not been kept."""

        def unkept(route, request):
            if '"fn_name":"grid"' not in (request.post_data or ""):
                return route.continue_()
            answer = route.fetch()
            return route.fulfill(
                response=answer, body=re.sub(r'"(solved|failed)_id":"[^"]*"', r'"\1_id":null', answer.text())
            )

        shown.page.route("**/component_server/", unkept)
        try:
            shown.open(**PLACE, tab="flips")
            cells = shown.get("grid-cell")
            cells.first.wait_for()
            expect(shown.page.locator(".rt-flip-grid:visible .rt-grid-cell:enabled")).to_have_count(0)
            rows = shown.page.locator(".rt-flip-grid:visible tbody tr").evaluate_all(
                """all => all.map(row => [...row.querySelectorAll(".rt-grid-cell")].map(cell =>
                    [cell.textContent, cell.matches(".rt-rose") - cell.matches(".rt-fell")]))"""
            )
        finally:
            shown.page.unroute("**/component_server/")
        seen = set()
        for row in rows:
            shares = [int(text.split("/")[0]) / int(text.split("/")[1]) for text, _ in row]
            for before, now, (_, mark) in zip(shares, shares[1:], row[1:], strict=False):
                assert mark == (now > before) - (now < before), row
                seen.add(mark)
        assert seen == {-1, 0, 1}

    def test_a_prompt_leads_to_its_rollouts_and_two_runs_to_their_flips(self, shown: Visit):
        shown.open(**{**PLACE, "split": "eval-rollout"}, tab="prompts")
        for order in ("easiest", "solved"):
            shown.get("order-solved").click()
            expect(shown.get("order-solved")).to_have_attribute("data-order", order)
        shown.get("order-trend").click()
        expect(shown.get("order-trend")).to_have_attribute("aria-pressed", "true")
        shown.get("prompt-row").first.locator("button").click()
        expect(shown.get("prompt-chart").first).to_be_visible()
        shown.get("visit-before").first.click()
        expect(shown.get("compare-left")).to_be_visible()
        shown.open(**PLACE, tab="runs")
        expect(shown.get("runs-card").first.locator("path.rt-dash-1")).to_be_visible()
        shown.get("axis").select_option("rollouts")
        expect(shown.get("runs-card").first.locator("svg")).to_contain_text("rollouts seen")
        shown.get("log").first.click()
        expect(shown.get("runs-card").first.locator("svg")).to_contain_text("log")
        shown.get("runs-flips").click()
        expect(shown.get("flip-summary")).to_be_visible()
        assert shown.state["other"] == "healthy"

    def test_another_run_keeps_step_split_and_filter(self, shown: Visit):
        shown.open(**PLACE, tab="explain", step="5", where="engine = 'vllm-1'")
        expect(shown.get("explain-against")).to_contain_text("“off”, step 5")
        shown.get("run-select").select_option("healthy")
        expect(shown.get("explain-against")).to_contain_text(re.compile("“healthy”, step 5.*engine"))
