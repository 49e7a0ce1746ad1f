"""A site's files, and the answers that its pages get from them."""

from __future__ import annotations

import gzip
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from rollout_traces.errors import ConfigError, StoreError
from rollout_traces.inspector.pages import around, rollouts, run
from rollout_traces.inspector.server import answered
from rollout_traces.inspector.site import write_site
from rollout_traces.inspector.workspace import SplitView, answer_of, as_plain, read_request

ASK = Path(__file__).with_name("ask.mjs")
COMPONENT = Path(__file__).resolve().parents[3] / "rollout_traces/inspector/components/site"
PLACE = {"project": "demo", "run": "run-a", "split": "rollout"}
needs_node = pytest.mark.skipif(shutil.which("node") is None, reason="needs node")


def asked_of(site: Path, questions: list[tuple[str, dict[str, Any]]]) -> list[dict[str, Any]]:
    done = subprocess.run(
        ["node", str(ASK), str(site)],
        input=json.dumps(questions),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def everything_in(data: Path) -> str:
    """All text of a site's answers."""
    return "\n".join(gzip.decompress(path.read_bytes()).decode() for path in data.rglob("*.gz"))


FILTERS = (
    "",
    "reward < 0.5",
    "reward >= 1 and n_sampled > 20 or advantage < 0",
    "not reward = 1",
    "not (reward = 1 or truncated)",
    "reward != 1",
    "reward = null",
    "reward is not null and discard_reason is null",
    "discard_reason is empty",
    "success",
    "not success",
    "truncated",
    "(truncated)",
    "flags has 'truncated'",
    "flags has duplicate_completions",
    "'truncated' in flags",
    "flags = 'duplicate_completions'",
    "flags != duplicate_completions",
    "flags in ('truncated', 'tied_group')",
    "flags is empty",
    "flags is not empty",
    "flags contains 'UPLI'",
    "step between 2 and 4",
    "step in [2, 4]",
    "step in (2, 4)",
    "step not in (2, 4, 6)",
    "step not between 2 and 4",
    "stop_reason = 'stop'",
    "stop_reason = stop",
    "stop_reason != length",
    "stop_reason in ('stop', null)",
    "stop_reason like 'st%'",
    "stop_reason like 'ST_P'",
    "stop_reason not like 'st%'",
    "stop_reason ~ '^st.p$'",
    "stop_reason !~ '(?i)STOP'",
    "stop_reason contains 'TO'",
    "source > 'b'",
    "run = run-a",
    "tool = 'calculator'",
    "tool_names has calculator",
    "n_sampled / n_turns > 20",
    "n_sampled/n_turns > 20",
    "n_sampled % 2 = 1",
    "(n_sampled + 1) * 2 >= 60",
    "reward - -1 > 1.5",
    "-reward < 0",
    "n_sampled / 0 > 1",
    "abs(advantage) > 0.5",
    "len(flags) > 1",
    "len(stop_reason) = 4",
    "min(reward, advantage) < 0 and max(reward, 0.5) > 0.5",
    "round(advantage, 1) = 0.3",
    "group.std < 0.1",
    "group.tied or group.mean > 0.7",
    "`reward` = 1",
    "1 > reward",
    "reward == 1 && !truncated || reward <> 1",
    "true = success",
    "text 'apples'",
    "text contains 'oxe'",
    "text ~ 'boxed.\\d+'",
    "not text 'apples'",
    "prompt contains 'apples'",
    "reply ~ 'answer is'",
    "reply contains answer",
    "reward > 0 order by n_sampled desc, reward",
    "order by -n_sampled",
)
SEARCHES = (
    "answer",
    "The ANSWER is",
    '"answer is"',
    "boxed{",
    "boxed{4",
    "\\boxed",
    "zzz",
    "apples boxes",
    "é",
)
SORTS = (
    "-reward",
    "n_sampled",
    "-update_share",
    "reward,-n_sampled",
    "stop_reason desc, step",
    "-len(flags)",
)
WRONG = (
    "constructor > 1",
    "rewrd < 1",
    "reward <",
    "reward < 'a'",
    "flags has 'nope'",
    "reward has 'x'",
    "(reward = 1",
    "reward ~ '1'",
)


@needs_node
class TestTheList:
    def compared(self, workspace, site, asked):
        asked = [
            {**PLACE, "step": 3, "text": "", "sort": "", "scope": "all", "where": "", **each}
            for each in asked
        ]
        found = asked_of(site, [("samples", each) for each in asked])
        for each, answer in zip(asked, found, strict=True):
            mine, theirs = answer.get("ok"), json.loads(answered(rollouts.samples, workspace, each))["ok"]
            assert mine, (each["where"], answer)
            for side in (mine, theirs):
                side.pop("columns"), side.pop("next")
                for group in side["groups"] or ():
                    group.pop("rows", None)
            changed = {key: (mine[key], value) for key, value in theirs.items() if mine[key] != value}
            assert not changed, (each["where"] or each, changed)

    def test_filters_find_what_the_store_finds(self, workspace, site):
        self.compared(workspace, site, [{"where": where} for where in FILTERS])

    def test_searches_find_what_the_store_finds(self, workspace, site):
        self.compared(workspace, site, [{"text": text} for text in SEARCHES])
        self.compared(workspace, site, [{"text": text, "scope": "step"} for text in SEARCHES])

    def test_sorts_as_the_store_does(self, workspace, site):
        self.compared(workspace, site, [{"sort": sort} for sort in SORTS])
        self.compared(workspace, site, [{"sort": sort, "scope": "step"} for sort in SORTS])

    def test_a_step_has_its_groups(self, workspace, site):
        steps = [{"step": step, "scope": "step"} for step in range(1, 7)]
        self.compared(workspace, site, [*steps, *({**each, "where": "reward > 0"} for each in steps)])
        self.compared(workspace, site, [{"split": "eval-rollout", "step": 3, "scope": "step"}])

    def test_refuses_what_the_store_refuses_and_points_at_it(self, workspace, site):
        asked = [
            {**PLACE, "step": 3, "text": "", "sort": "", "scope": "all", "where": where} for where in WRONG
        ]
        for each, answer in zip(asked, asked_of(site, [("samples", each) for each in asked]), strict=True):
            wanted = json.loads(answered(rollouts.samples, workspace, each))["error"]
            assert answer["error"]["kind"] == wanted["kind"] == "QueryError", each
            assert answer["error"]["start"] == wanted["start"], (each, answer, wanted)


@needs_node
class TestTheOtherAnswers:
    def test_are_those_of_the_inspector(self, workspace, site):
        def theirs(function, asked):
            return as_plain(answer_of(function, workspace, read_request(function, asked)))

        listed = theirs(rollouts.samples, {**PLACE, "step": 2})
        card = listed["groups"][0]["samples"][0]
        opened = {**PLACE, "step": 2, "group": card["group"], "sample": card["sample"]}
        questions = [
            ("rollout", {**PLACE, "id": card["id"]}),
            ("rollout", opened),
            ("metrics", {**PLACE, "names": []}),
            ("metrics", {**PLACE, "names": ["rollout/reward/std", "none of that name"]}),
            ("step_means", {**PLACE, "step": 2}),
            ("group_pushes", {**PLACE, "step": 2, "group": card["group"]}),
            ("run_report", PLACE),
            ("rollout", {**PLACE, "step": 99, "group": 0, "sample": 0}),
            ("explain", {**PLACE, "step": 9999}),
            ("figures", PLACE),
        ]
        functions = {
            "rollout": rollouts.rollout,
            "metrics": rollouts.metrics,
            "step_means": around.step_means,
            "group_pushes": around.group_pushes,
        }
        found = asked_of(site, questions)
        for (name, asked), answer in list(zip(questions, found, strict=True))[:6]:
            mine, wanted = answer["ok"], theirs(functions[name], asked)
            for side in (mine, wanted):
                side.pop("labels", None)
            assert mine == wanted, name
        assert found[6]["ok"] == {**theirs(run.run_report, PLACE), "settings": None}
        assert all("not in this site" in each["error"]["message"] for each in found[7:])


class TestTheFolder:
    def test_holds_nothing_of_other_runs(self, site):
        data = everything_in(site / "data")
        assert "run-a" in data
        assert "run-b" not in data

    def test_names_no_run_of_which_the_settings_differ(self, workspace, tmp_path):
        report = run.run_report(SplitView(workspace, "demo", "run-b"))
        assert report.settings is not None and report.settings.run == "run-a"
        write_site(workspace, "demo", "run-b", tmp_path / "site")
        data = everything_in(tmp_path / "site" / "data")
        assert "run-b" in data
        assert "run-a" not in data

    def test_asks_nobody_but_its_own_server_and_has_no_script_inside(self, site):
        page = (site / "index.html").read_text("utf-8")
        assert "default-src 'none'; script-src 'self'; style-src 'self'" in page.replace("&#x27;", "'")
        assert re.findall(r"<script[^>]*>", page) == re.findall(r'<script src="site\.js\?\w+" defer>', page)
        assert "<style" not in page and " style=" not in page
        assert not re.findall(r"""(?:src|href)="(?!site\.js|style\.css|data:|\?)""", page)

    def test_is_small(self, site):
        size = sum(path.stat().st_size for path in (site / "data").rglob("*") if path.is_file())
        assert size / 120 < 6_000

    def test_needs_few_lines_of_script(self):
        assert sum(len(path.read_text("utf-8").splitlines()) for path in COMPONENT.glob("*.js")) <= 800

    def test_stands_only_where_nothing_else_stood(self, workspace, tmp_path):
        (tmp_path / "notes.txt").write_text("mine")
        with pytest.raises(ConfigError, match="no site of ours"):
            write_site(workspace, "demo", "run-b", tmp_path)
        assert (tmp_path / "notes.txt").read_text() == "mine"

    def test_replaces_the_site_before_it(self, workspace, tmp_path):
        folder = tmp_path / "site"
        write_site(workspace, "demo", "run-b", folder)
        (folder / "data" / "old.gz").write_bytes(b"")
        n, size = write_site(workspace, "demo", "run-b", folder, ["rollout"])
        assert n == 32 and size > 0
        assert not (folder / "data" / "old.gz").exists()

    def test_stands_in_the_folder_that_one_is_in(self, workspace, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        write_site(workspace, "demo", "run-b", Path())
        assert (tmp_path / "index.html").is_file()

    def test_of_a_run_without_kept_rollouts_is_refused(self, workspace, tmp_path):
        with pytest.raises(StoreError, match="no rollout was kept"):
            write_site(workspace, "demo", "run-b", tmp_path / "site", ["none"])
