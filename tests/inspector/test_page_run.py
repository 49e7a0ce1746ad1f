"""The Run page: what is wrong and since when, and what differs at a step, in the browser."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from rollout_traces.errors import StoreError
from rollout_traces.inspector.pages.explain import explain
from rollout_traces.inspector.pages.run import diagnosis_figures, run_curves, run_report
from rollout_traces.inspector.workspace import Workspace
from tests.inspector.conftest import DESKTOP, Served, Visit, box_of
from tests.inspector.told import told
from tests.store.projects import RUN, make_ledger, write_step
from tests.stories.causes import CAUSES
from tests.stories.logged import log_story
from tests.stories.world import Kind, write_run
from tests.trackio_home import use_trackio_home

AT = 14
CARRIED_AT, CARRIERS = 6, (5, 30, 61)
"""The step that few rollouts carry, and which rows they are."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project of a run whose engine vllm-1 is off from step `AT` on, and a healthy one."""
    folder = tmp_path_factory.mktemp("trackio")
    with pytest.MonkeyPatch.context() as patch:
        use_trackio_home(patch, folder)
        kinds = {"page": Kind(n_sources=2, groups=(5, 6), group_size=4, evaluated=False)}
        patch.setattr("tests.stories.world.KINDS", kinds)
        log_story(write_run(2, "page", n_steps=12, run="healthy"), "story")
        log_story(
            write_run(
                1, "page", "one engine off", CAUSES["one engine off"].changes, n_steps=24, at=AT, run="off"
            ),
            "story",
        )
        log_carried()
    return folder


def log_carried() -> None:
    """A project in which three of 64 rollouts make most of the update of the last step, and all alike before."""
    n = 64
    for step in range(1, CARRIED_AT + 1):
        shares = np.full(n, 0.4 / (n - 3) if step == CARRIED_AT else 1 / n)
        if step == CARRIED_AT:
            shares[list(CARRIERS)] = 0.2
        ledger = make_ledger(
            [[0.0, 1.0, 0.0, 1.0]] * (n // 4),
            step=step,
            traced=range(n),
            update_share=shares.astype(np.float32),
        )
        write_step(ledger, range(n), project="carried")


@pytest.fixture
def workspace(folder: Path) -> Iterator[Workspace]:
    opened = Workspace(folder=folder)
    yield opened
    opened.close()


class TestAnswers:
    def test_the_report_names_engine_and_step(self, workspace: Workspace):
        report = told(run_report, workspace, {"project": "story", "run": "off"})
        head = report["diagnoses"][0]
        assert head["part"] == "engine “vllm-1”" and abs(head["step"] - AT) <= 2
        assert {"mismatch_abs_max", "mismatch_k3"} & set(head["series"])
        assert " on engine “vllm-1”, " in head["sentence"]
        assert f"since step {head['step']}" in head["sentence"]
        assert "engine = 'vllm-1'" in head["where"] and f"step >= {head['step']}" in head["where"]
        assert not any("vllm-0" in each["sentence"] for each in report["diagnoses"])
        assert {"reward", "mismatch_k3"} <= {metric["key"] for metric in report["metrics"]}
        assert any("evaluations" in missing["what"] for missing in report["unobserved"])
        chart = head["chart"]
        assert chart["key"] == head["series"][0] and chart["steps"] == list(range(24))
        before, after = chart["values"][: head["step"]], chart["values"][head["step"] :]
        assert min(after) > max(before)
        assert all(each["chart"] is None for each in report["diagnoses"] if each["severity"] == "info")

    def test_the_curves_wait_for_no_diagnosis(self, workspace: Workspace, monkeypatch: pytest.MonkeyPatch):
        place = {"project": "story", "run": "off"}
        with monkeypatch.context() as patch:
            patch.setattr("rollout_traces.analysis.run_report.diagnose", None)
            curves = told(run_curves, workspace, place)
        with monkeypatch.context() as patch:
            patch.setattr("rollout_traces.inspector.pages.run._metrics", None)
            report = told(run_report, workspace, place)
        assert curves["metrics"] and curves == {key: report[key] for key in curves}

    def test_a_step_is_explained(self, workspace: Workspace):
        found = told(explain, workspace, {"project": "story", "run": "off", "step": AT})
        assert any("mismatch_k3" in each["sentence"] for each in found["findings"])
        assert found["findings"][0]["detail"]["examples"]

    def test_a_diagnosis_and_an_event_have_their_figures(self, workspace: Workspace):
        place = {"project": "story", "run": "off"}
        report = told(run_report, workspace, place)
        head = told(diagnosis_figures, workspace, {**place, "diagnosis": 0})["queries"]
        assert len(head) >= len(report["diagnoses"][0]["series"])
        assert all(query["rows"] for query in head)
        for at in range(len(report["events"])):
            (query,) = told(diagnosis_figures, workspace, {**place, "event": at})["queries"]
            assert query["rows"]
        with pytest.raises(StoreError, match="there are"):
            told(diagnosis_figures, workspace, {**place, "diagnosis": 99})

    def test_figures_of_many_steps_are_those_around_the_diagnosis(
        self, workspace: Workspace, monkeypatch: pytest.MonkeyPatch
    ):
        monkeypatch.setattr("rollout_traces.inspector.pages.figures.MOST_DRAWN", 6)
        place = {"project": "story", "run": "off"}
        step = told(run_report, workspace, place)["diagnoses"][0]["step"]
        for query in told(diagnosis_figures, workspace, place)["queries"]:
            if query["columns"][0] == "step" and query["n_rows"] > 6:
                assert len(query["rows"]) == 6 and step in [row[0] for row in query["rows"]]

    def test_a_split_without_rollouts_is_said(self, workspace: Workspace):
        report = told(run_report, workspace, {"project": "story", "run": "off", "split": "nothing"})
        assert report["n_rows"] == 0 and "No rollouts" in report["remarks"][0]


@pytest.mark.browser
class TestPage:
    @pytest.fixture(scope="class")
    def shown(self, folder: Path, chromium: object) -> Iterator[Visit]:
        server = Served(folder)
        visit = Visit(chromium, server.address)
        yield visit
        visit.close()
        server.stop()

    def test_a_run_opens_on_its_diagnoses_and_a_step_on_what_differs(self, shown: Visit):
        page = shown.page
        shown.open(project="story", run="off", split="rollout")
        shown.get("run-verdict").wait_for()
        assert "since step" in shown.get("run-verdict").inner_text()
        assert "vllm-1" in shown.get("diagnosis").first.inner_text()
        folded = shown.get("diagnoses-folded")
        assert "more to know" in folded.inner_text()
        assert "info" not in [
            each.inner_text().lower() for each in shown.page.locator(".rt-diagnosis > b:visible").all()
        ]
        folded.locator("summary").click()
        assert folded.get_by_test_id("diagnosis").first.is_visible()
        shown.get("diagnosis-explain").first.click()
        shown.get("findings").wait_for()
        assert re.search(r"mismatch_k3.*vllm-1", shown.get("finding").first.inner_text(), re.DOTALL)
        assert "explain=1" in page.url
        shown.get("diagnosis-rollouts").first.click()
        page.wait_for_url(re.compile("tab=explore"))

    def test_what_may_be_chance_is_folded(self, shown: Visit):
        shown.open(project="story", run="healthy", split="rollout")
        folded = shown.get("perhaps-chance")
        folded.wait_for()
        assert "1 more that may be chance" in folded.inner_text()
        assert "perhaps by chance" not in shown.get("diagnoses").inner_text()
        folded.locator("summary").click()
        assert "perhaps by chance" in folded.get_by_test_id("diagnosis").inner_text()
        folded.get_by_test_id("figures").click()
        shown.get("query").first.wait_for()
        assert "staleness_max" in folded.inner_text()

    def test_what_is_there_since_the_first_step_has_no_step_to_explain(self, shown: Visit):
        """Seen once: a link said "explain step 0", where there is nothing before to compare with."""
        shown.open(project="story", run="healthy", split="rollout")
        since_first = shown.get("diagnosis").first
        since_first.wait_for()
        assert "since step 0" in since_first.inner_text()
        assert not since_first.get_by_test_id("diagnosis-explain").count()
        assert shown.get("event").first.locator("button").all_inner_texts() == ["figures"]
        shown.get("perhaps-chance").locator("summary").click()
        assert shown.get("diagnosis-explain").all_inner_texts() == ["explain step 2"]

    def test_the_verdict_says_how_much_of_it_is_over(self, shown: Visit):
        """Seen once: "2 things wrong since step 18", one of which had ended at step 25."""
        page = shown.page

        def ended(route, request):
            if "run_report" not in (request.post_data or ""):
                return route.continue_()
            answer = route.fetch()
            text = answer.text()
            assert text.count('"in_force":true')
            return route.fulfill(response=answer, body=text.replace('"in_force":true', '"in_force":false', 1))

        page.route("**/component_server/", ended)
        try:
            shown.open(project="story", run="off", split="rollout")
            shown.get("run-verdict").wait_for()
            assert f"1 thing wrong since step {AT}, over by now" in shown.get("run-verdict").inner_text()
            page.set_viewport_size({"width": 560, "height": 900})
            line = shown.get("run-verdict").locator("div").first
            line.evaluate("node => node.append(' and some more words that take a second line')")
            assert line.evaluate("""node => { const words = document.createRange(); words.selectNodeContents(node.lastChild);
                return node.querySelector("i").getBoundingClientRect().bottom > words.getClientRects()[0].top; }""")
        finally:
            page.set_viewport_size(DESKTOP)
            page.unroute("**/component_server/")

    def test_explaining_leaves_what_was_unfolded_and_a_chart_its_focus(self, shown: Visit):
        page = shown.page
        shown.open(project="story", run="off", split="rollout")
        folded = shown.get("diagnoses-folded")
        folded.locator("summary").click()
        shown.get("figures").first.click()
        here = shown.get("query").first.locator("tr.rt-here")
        here.wait_for()
        assert here.evaluate(
            "row => [row, row.closest('.rt-table-scroll')].map(e => e.getBoundingClientRect().bottom)"
            ".reduce((a, b) => a <= b)"
        )
        shown.get("diagnosis-explain").first.click()
        shown.get("findings").wait_for()
        assert folded.get_by_test_id("diagnosis").first.is_visible() and shown.get("query").count()
        shown.get("run-card").first.locator("svg").focus()
        step = int(shown.state["step"])
        key, by = ("ArrowRight", 1) if step < AT else ("ArrowLeft", -1)
        for further in (step + by, step + 2 * by):
            page.keyboard.press(key)
            page.wait_for_url(re.compile(f"step={further}&"), timeout=10_000)

    def test_the_series_of_the_first_diagnosis_has_a_chart_and_its_step_is_marked(self, shown: Visit):
        shown.open(project="story", run="off", split="rollout")
        head = shown.get("diagnosis").first
        series = head.get_attribute("data-series")
        assert head.locator(f"[data-metric='{series}'] .rt-begun").count() == 1
        assert shown.page.locator(".rt-run-pictures .rt-begun").count()

    def test_a_link_to_an_explained_step_names_its_diagnoses(self, shown: Visit):
        shown.open(project="story", run="off", split="rollout", tab="run", step=AT + 1, explain=1)
        said = shown.page.locator(".rt-in-force [data-testid='in-force']:visible")
        said.wait_for()
        assert "vllm-1" in said.inner_text()

    def test_a_rollout_opened_from_an_explanation_is_compared_in_its_group(self, shown: Visit):
        page = shown.page
        shown.open(project="story", run="off", split="rollout", tab="run", step=AT, explain=1)
        shown.get("explain-open").first.click()
        page.wait_for_url(re.compile("group="))
        group = page.evaluate("new URLSearchParams(location.search).get('group')")
        page.keyboard.press("c")
        chosen = page.locator(".rt-active .rt-side-head select").first
        chosen.wait_for()
        assert f"g{group} " in chosen.evaluate("node => node.selectedOptions[0].textContent")

    def test_a_run_that_is_not_there_is_named_on_the_page_of_rollouts(self, shown: Visit):
        shown.open(project="story", run="of", tab="rollouts")
        said = shown.page.locator(".rt-active .rt-middle")
        said.get_by_text("No run of in this project").wait_for()
        assert "healthy" in said.inner_text() and "appear here" not in said.inner_text()

        assert shown.get("run-select").evaluate("node => node.selectedOptions[0].text") == "of: not there"
        assert "No scalars" not in shown.get("charts").inner_text()
        tabs = "all => all.map(tab => tab.dataset.testid)"
        listed = shown.page.locator(".rt-tabs a").evaluate_all(tabs)
        shown.open(project="story", run="off", tab="rollouts")
        assert shown.page.locator(".rt-tabs a").evaluate_all(tabs) == listed

    def test_a_step_that_is_not_there_is_named_with_those_there_are(self, shown: Visit):
        shown.open(project="story", run="off", split="rollout", tab="rollouts", step=999)
        said = shown.page.locator(".rt-active .rt-middle")
        said.get_by_text("No rollouts were logged at step 999").wait_for()
        assert "0 to 23" in said.inner_text()
        assert "ledger" not in shown.get("population").inner_text()
        assert shown.get("step-next").is_disabled()
        shown.get("step-previous").click()
        shown.page.wait_for_url(re.compile("step=23&"))

    def test_who_carried_an_update_is_said_and_opened(self, shown: Visit):
        page = shown.page
        place = {"project": "carried", "run": RUN, "split": "rollout", "tab": "explain"}
        shown.open(**place, step=CARRIED_AT)
        shown.get("carried").wait_for()
        assert "Who carried it" in shown.get("carried").inner_text()
        assert "3 of 64 rollouts make 60% of the update" in shown.get("carried").inner_text()
        shown.get("carried").get_by_test_id("explain-open").first.click()
        shown.get("rollout-header").wait_for()
        opened = page.evaluate("document.querySelector('.rt-active [data-testid=transcript]').textContent")
        assert any(f"answer {row}" in opened for row in CARRIERS)
        shown.open(**place, step=CARRIED_AT - 1)
        shown.get("findings").wait_for()
        assert shown.get("carried").count() == 0

    @pytest.mark.parametrize("width", [390, 190])
    def test_names_on_the_timeline_are_inside_it_on_a_phone(self, shown: Visit, width: int):
        """Seen once: a name that began before the middle ended outside; later one that is longer than the line did."""
        before = shown.page.viewport_size
        shown.page.set_viewport_size({"width": width, "height": 844})
        shown.open(project="story", run="off", split="rollout")
        strip = shown.page.locator(".rt-run-strip:visible")
        strip.wait_for()
        assert strip.evaluate(
            """node => { const own = node.getBoundingClientRect();
            return [...node.querySelectorAll("text")].map(text => text.getBoundingClientRect())
                .every(box => box.left >= own.left - 1 && box.right <= own.right + 1); }"""
        )
        shown.page.set_viewport_size(before)

    def test_a_healthy_run_says_so(self, shown: Visit):
        shown.open(project="story", run="healthy", split="rollout")
        shown.get("run-verdict").wait_for()
        assert "No warning; " in shown.get("run-verdict").inner_text()
        assert (
            shown.page.locator("[data-testid='diagnoses'] :is(.rt-sev-error, .rt-sev-warn):visible").count()
            == 0
        )

    def test_the_curves_are_drawn_while_changes_are_looked_for(self, shown: Visit):
        page, held, asked = shown.page, [], []
        page.on("request", lambda request: asked.append(request.post_data or ""))
        page.route(
            "**/component_server/",
            lambda route, request: (
                held.append(route) if "run_report" in (request.post_data or "") else route.continue_()
            ),
        )
        try:
            shown.open(project="story", run="off", split="rollout")
            first = page.locator(".rt-run-pictures [data-testid='run-card']:visible").first
            first.wait_for()
            place = box_of(first)
            assert not any("incident_bar" in each for each in asked), (
                "these take the diagnosis of the run too"
            )
            assert shown.get("run-pending").is_visible() and not shown.get("run-verdict").count()
            dot = shown.get("run-pending").locator("i")
            healthy = page.evaluate("""() => { const probe = document.createElement('i'); probe.style.background = 'var(--rt-high)';
                document.body.append(probe); return getComputedStyle(probe).backgroundColor; }""")
            assert dot.evaluate("dot => getComputedStyle(dot).backgroundColor") != healthy
            held.pop().continue_()
            shown.get("diagnosis").first.wait_for()
            assert not shown.get("run-pending").count() and shown.get("run-card").count()
            shown.get("incident-bar").wait_for()
            assert box_of(first) == place, "the verdict and the bar move no chart"
        finally:
            page.unroute("**/component_server/")
