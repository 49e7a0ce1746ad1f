"""What pages say is abnormal: rows wear it, incidents list it, what is usual for a run is said once; and what readers said of incidents."""

from __future__ import annotations

import re
import stat
from collections.abc import Iterator
from pathlib import Path

import orjson
import pytest
from playwright.sync_api import expect

from rollout_traces.alarms.worn import Rise, Usual
from rollout_traces.errors import StoreError
from rollout_traces.flags import parameters_of_run
from rollout_traces.inspector import payload
from rollout_traces.inspector.pages import incidents
from rollout_traces.inspector.pages.compare import compare
from rollout_traces.inspector.pages.group import group
from rollout_traces.inspector.pages.health import health
from rollout_traces.inspector.pages.incidents import (
    IncidentMarks,
    Marks,
    RunAlarms,
    incident_bar,
    mark_incident,
    run_incidents,
)
from rollout_traces.inspector.pages.rollouts import _group, rollout, samples
from rollout_traces.inspector.pages.run import run_report
from rollout_traces.inspector.workspace import SplitView, Workspace
from rollout_traces.store import Group, TraceRow
from tests.generator import BatchPlan, batch_arrays, tiny_tokenizer
from tests.inspector.told import told
from tests.trackio_home import use_trackio_home

STEPS, LEAKS_FROM = 8, 6


def log_run(project: str, **thresholds: object) -> None:
    """A run that is stale from its first step on, and whose masks leak from step `LEAKS_FROM` on."""
    import rollout_traces as rt

    tokenizer = tiny_tokenizer()
    logger = rt.RolloutLogger(
        project,
        "run",
        tokenizer,
        max_rollout_traces_per_step=48,
        selection="all",
        flag_parameters={"stale.limit": 10, **thresholds},
        worker="thread",
    )
    for step in range(1, STEPS + 1):
        arrays = batch_arrays(tokenizer, BatchPlan(n_groups=6, group_size=4, step=step, seed=step))
        arrays["train_version"] = step + 40
        if step >= LEAKS_FROM:
            arrays["loss_mask"][0] = arrays["attention_mask"][0]
        logger.log_rollouts(arrays, step=step)
    assert logger.flush(120)
    logger.finish()


def test_a_group_flag_that_is_usual_for_the_run_is_told_apart_except_where_it_rose() -> None:
    usual = {name: Usual(name, 0.4, 100) for name in ("duplicate_completions", "tied_group")}
    alarms = RunAlarms(usual=usual, risen=[Rise("duplicate_completions", 40, 60)])

    def marked(step: int, *flags: str) -> tuple[list[str], list[str]]:
        row = TraceRow("id", "run", "run", "rollout", step, {"flags": flags})
        shown = _group(Group(0, None, "", (row,), (row,), True, False, True), None, alarms)
        return shown.flags, shown.usual_flags

    every = ("duplicate_completions", "noise_amplified_group", "tied_group")
    assert marked(30, *every) == (["noise_amplified_group"], ["duplicate_completions", "tied_group"])
    assert marked(50, *every)[0] == ["duplicate_completions", "noise_amplified_group"]
    assert marked(30) == ([], [])


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workspace]:
    folder = tmp_path_factory.mktemp("trackio")
    with pytest.MonkeyPatch.context() as patch:
        use_trackio_home(patch, folder)
        log_run("alarms")
        log_run("lenient", **{"mask_leak.alert_above": 0.9})
        opened = Workspace(folder=Path(folder))
        yield opened
        opened.close()


def asked(**values: object) -> dict[str, object]:
    return {"project": "alarms", "run": "run", "split": "rollout", **values}


def cards(answer: dict) -> list[dict]:
    return [card for group in answer["groups"] for card in group["samples"]]


def test_rows_wear_errors_and_not_what_is_usual_for_the_run(workspace: Workspace):
    """Seen once: most rows of healthy runs were flagged."""
    answer = told(samples, workspace, asked(step=LEAKS_FROM))
    wearing = {card["id"]: card["flags"] for card in cards(answer)}
    assert len(wearing) == 24
    assert sum("mask_leak" in flags for flags in wearing.values()) == 1
    assert not any("stale" in flags for flags in wearing.values())


def test_what_is_usual_is_said_once_with_its_share_on_every_page(workspace: Workspace):
    said = told(samples, workspace, asked(step=1))["usual"]
    stale = next(usual for usual in said if usual["name"] == "stale")
    assert stale == {"name": "stale", "share": 1.0, "n": 24 * STEPS}
    assert said == told(health, workspace, asked())["usual"] == told(run_report, workspace, asked())["usual"]


def test_a_filter_still_finds_what_rows_do_not_wear(workspace: Workspace):
    answer = told(samples, workspace, asked(step=1, where="flags has 'stale'"))
    assert answer["n_matched"] == 24


def test_an_incident_says_since_when_how_many_and_where(workspace: Workspace):
    found = run_incidents(SplitView(workspace, "alarms", "run"))
    leak = next(each for each in found if each.signal == "flags mask_leak")
    n_rows = STEPS - LEAKS_FROM + 1
    assert (leak.opened, leak.closed, leak.severity) == (LEAKS_FROM, None, "error")
    assert (
        f"{n_rows} rollouts carry mask_leak" in leak.sentence and f"since step {LEAKS_FROM}" in leak.sentence
    )
    store = workspace.store("alarms")
    assert store.count("run", split="rollout", where=leak.where, rows="all") == n_rows
    assert not any("stale" in each.signal for each in found)


def test_the_bar_the_page_and_explain_say_the_same(workspace: Workspace):
    report = told(run_report, workspace, asked())
    loud = {
        each["sentence"] for each in report["diagnoses"] if each["severity"] != "info" and each["in_force"]
    }
    bar = told(incident_bar, workspace, asked())["incidents"]
    assert bar and all(any(each["sentence"].startswith(one) for one in loud) for each in bar)
    assert len(bar) == len(loud)


def test_a_run_is_judged_by_the_thresholds_that_are_stored_with_it(workspace: Workspace):
    config = workspace.store("lenient").config("run")
    assert parameters_of_run(config) == {"stale.limit": 10, "mask_leak.alert_above": 0.9}
    lenient = run_incidents(SplitView(workspace, "lenient", "run"))
    assert not any(each.signal == "flags mask_leak" for each in lenient)
    assert any(
        each.signal == "flags mask_leak" for each in run_incidents(SplitView(workspace, "alarms", "run"))
    )


def test_thresholds_of_another_version_or_that_are_none_are_left_out():
    stored = {"stale.limit": 3, "stale.limt": 1, "no_such_flag.share": 1, "truncated.alert_above": "high"}
    assert parameters_of_run({"rollout_traces": {"flag_parameters": stored}}) == {"stale.limit": 3}
    for damaged in (None, {}, {"rollout_traces": 1}, {"rollout_traces": {"flag_parameters": [1]}}):
        assert parameters_of_run(damaged) == {}


def test_a_split_without_rollouts_has_none(workspace: Workspace):
    report = told(run_report, workspace, asked(split="nothing"))
    assert report["diagnoses"] == report["usual"] == []


def test_the_bar_lists_open_incidents_and_keeps_what_is_said_of_them(workspace: Workspace):
    """Seen once: no alert in the inspector."""
    [leak] = [
        each
        for each in told(incident_bar, workspace, asked())["incidents"]
        if each["signal"] == "flags mask_leak"
    ]
    assert (leak["opened"], leak["muted"], leak["acknowledged"]) == (LEAKS_FROM, False, None)
    after = told(mark_incident, workspace, asked(incident=leak["name"], what="acknowledge"))["incidents"]
    assert next(each for each in after if each["name"] == leak["name"])["acknowledged"]
    told(mark_incident, workspace, asked(incident=leak["name"], what="mute"))
    assert all(
        each["muted"]
        for each in told(incident_bar, workspace, asked())["incidents"]
        if each["name"] == leak["name"]
    )
    for what in ("recall", "unmute"):
        told(mark_incident, workspace, asked(incident=leak["name"], what=what))
    assert leak in told(incident_bar, workspace, asked())["incidents"]
    kept = workspace.store("alarms").source.marks_path()
    assert kept.parent.name == "rollout-marks" and kept.stat().st_size < 2000


def test_an_incident_that_is_none_is_not_marked(workspace: Workspace):
    with pytest.raises(StoreError, match="no incident 'stale@1'"):
        told(mark_incident, workspace, asked(incident="stale@1", what="mute"))


def test_group_and_compare_show_what_rows_wear(workspace: Workspace):
    answer = told(group, workspace, asked(step=LEAKS_FROM, group=0))
    wearing = {member["id"]: member for member in answer["members"]}
    listed = {card["id"]: card["flags"] for card in cards(told(samples, workspace, asked(step=LEAKS_FROM)))}
    assert {key: member["flags"] for key, member in wearing.items()} == {key: listed[key] for key in wearing}
    assert answer["usual"] and all("stale" in member["usual_flags"] for member in wearing.values())
    pair = told(compare, workspace, asked(step=LEAKS_FROM, group=0))
    for side in pair["sides"]:
        assert {flag["name"] for flag in side["flags"]} == set(listed[side["id"]])
        assert "stale" in side["usual_flags"]
    assert {card["id"]: card["flags"] for card in pair["candidates"]}.items() <= listed.items()


def test_an_opened_rollout_marks_what_is_usual_for_its_run(workspace: Workspace):
    answer = told(samples, workspace, asked(step=LEAKS_FROM))
    leaking = next(card["id"] for card in cards(answer) if "mask_leak" in card["flags"])
    marked = {flag["name"]: flag["usual"] for flag in told(rollout, workspace, asked(id=leaking))["flags"]}
    assert marked["stale"] and not marked["mask_leak"]


def test_the_bar_tells_what_is_usual_and_where_rows_wear_it(workspace: Workspace):
    """Seen once: a drift of the template was a flag on every row."""
    found = told(incident_bar, workspace, asked())["usual"]
    assert found["stale"] == [] and "mask_leak" not in found


def test_an_opened_rollout_nests_flags_under_their_causes():
    details = [{"name": "truncated", "severity": "warn"}, {"name": "no_end_marker", "severity": "warn"}]
    listed = payload._flags(details, ["thinking_unclosed", "stale"])
    assert {flag["name"]: flag["cause"] for flag in listed} == {
        "truncated": None, "no_end_marker": "truncated", "thinking_unclosed": "truncated", "stale": None,
    }  # fmt: skip


@pytest.mark.browser
def test_the_bar_says_what_is_open_and_is_muted_and_called_back(visit):
    visit.open(tab="rollouts", project="demo", run="run-a")
    bar = visit.get("incident-bar")
    expect(bar).to_contain_text("since step 1")
    sentence = visit.get("bar-sentence")
    visit.page.set_viewport_size({"width": 500, "height": 800})
    assert sentence.evaluate("node => node.scrollWidth > node.clientWidth")
    sentence.focus()
    visit.page.keyboard.press("Enter")
    assert sentence.evaluate("node => node.scrollWidth <= node.clientWidth"), "all of it can be read"
    first = visit.get("bar-signal").inner_text()
    while visit.get("bar-acknowledge").count():
        visit.get("bar-acknowledge").click()
        visit.page.wait_for_timeout(300)
    expect(bar).to_contain_text("No incident is open")
    visit.get("bar-all").click()
    expect(bar).to_contain_text(first)
    visit.picture("incidents")
    while visit.get("bar-recall").count():
        visit.get("bar-recall").first.click()
        visit.page.wait_for_timeout(300)
    expect(visit.get("bar-acknowledge")).to_be_visible()


@pytest.mark.browser
def test_the_run_page_says_what_is_in_force_and_opens_its_rollouts(visit):
    visit.open(tab="run", project="demo", run="run-a")
    leak = visit.page.locator("[data-testid='diagnosis'][data-series='flags mask_leak']")
    expect(leak.get_by_test_id("in-force")).to_be_visible()
    expect(leak).to_contain_text("since step 1")
    leak.get_by_test_id("diagnosis-rollouts").click()
    visit.page.wait_for_url(re.compile("tab=explore"))
    expect(visit.page.locator("td", has_text="mask leak").first).to_be_visible()


@pytest.mark.browser
def test_what_is_usual_is_said_over_the_list_and_on_health(visit):
    visit.open(tab="rollouts", project="demo", run="run-a")
    expect(visit.get("population")).to_contain_text("common in this run")
    visit.open(tab="health", project="demo", run="run-a")
    expect(visit.get("usual-flags")).to_contain_text("%")


@pytest.mark.browser
def test_a_projects_card_names_what_is_open_in_its_newest_run(visit):
    visit.open(tab="projects")
    expect(visit.get("project-incidents").first).to_contain_text("mask")


@pytest.fixture
def marks(tmp_path: Path) -> IncidentMarks:
    return IncidentMarks(tmp_path / "rollout-marks" / "p.jsonl")


def test_nothing_was_said_of_a_project_without_a_file(marks):
    assert marks.of("run", "rollout") == Marks()
    assert not marks.file.path.parent.exists()


def test_muting_goes_by_series_and_part_and_is_taken_back(marks):
    marks.add("run", "rollout", "stale@8@math", "mute", by="ann")
    assert marks.of("run", "rollout").muted == {("stale", "math")}
    marks.add("run", "rollout", "stale@90@math", "unmute", by="ann")
    assert marks.of("run", "rollout").muted == frozenset()


def test_an_acknowledgement_is_of_one_incident(marks):
    marks.add("run", "rollout", "stale@8", "acknowledge", by="ann")
    [(name, when)] = marks.of("run", "rollout").acknowledged.items()
    assert name == "stale@8" and when.startswith("20")
    assert orjson.loads(marks.file.path.read_bytes())["by"] == "ann"
    marks.add("run", "rollout", "stale@8", "recall", by="ann")
    assert marks.of("run", "rollout") == Marks()


def test_another_run_or_split_has_its_own(marks):
    marks.add("run", "rollout", "stale@8", "mute", by="ann")
    assert marks.of("run", "eval-rollout") == marks.of("other", "rollout") == Marks()


def test_the_file_is_this_users_alone_and_no_link_is_followed(marks, tmp_path):
    marks.add("run", "rollout", "stale@8", "mute", by="ann")
    assert stat.S_IMODE(marks.file.path.stat().st_mode) == 0o600
    assert stat.S_IMODE(marks.file.path.parent.stat().st_mode) == 0o700
    marks.file.path.unlink()
    marks.file.path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StoreError, match="cannot be written"):
        marks.add("run", "rollout", "stale@8", "mute", by="ann")
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize(
    "line", [b"{", b"[]", b"\xff\xfe", b'{"run": 1}', b'{"run":"run","split":"rollout"}', b"null"]
)
def test_lines_that_cannot_be_read_are_passed_over(marks, line):
    marks.add("run", "rollout", "stale@8", "mute", by="ann")
    with marks.file.path.open("ab") as file:
        file.write(line + b"\n")
    marks.add("run", "rollout", "truncated@9", "mute", by="ann")
    assert marks.of("run", "rollout").muted == {("stale", ""), ("truncated", "")}


def test_what_cannot_be_understood_or_kept_is_refused(marks, monkeypatch):
    with pytest.raises(StoreError, match="seen 'shout'"):
        marks.add("run", "rollout", "stale@8", "shout", by="ann")
    monkeypatch.setattr(incidents, "MOST_BYTES", 10)
    with pytest.raises(StoreError, match="at most 10 are kept"):
        IncidentMarks(marks.file.path).add("run", "rollout", "stale@8", "mute", by="ann")
