"""What is in a shared file, and what is not."""

from __future__ import annotations

import html
import json
import re

import numpy as np
import pytest

from rollout_traces.errors import ConfigError, StoreError
from rollout_traces.inspector import shared_file
from rollout_traces.inspector.payload import unpacked
from rollout_traces.inspector.shared_file import (
    Hiding,
    HidingWorkspace,
    Shared,
    share,
    shared_contents,
    shared_page,
)
from tests.inspector.share.conftest import HIDDEN_BY_THE_RUN, SECRET
from tests.inspector.told import told

PATTERNS = (r'key "sk-\d+ . \w+"',)


def texts_of(value: object) -> list[str]:
    """Every string in plain values."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, dict):
        return [text for pair in value.items() for item in pair for text in texts_of(item)]
    return [text for item in value for text in texts_of(item)] if isinstance(value, (list, tuple)) else []


def everything(longest: str, workspace: object) -> list[Shared]:
    other = next(row.id for row in workspace.store("share").query().rows if row.id != longest)
    return [
        Shared("share", rollouts=(longest,)),
        Shared("share", compared=(longest, other)),
        Shared("share", run="run", group=(1, 0)),
        Shared("share", run="run", explained=True, step=1),
    ]


class TestTheFile:
    def test_a_rollout_of_8000_tokens_takes_at_most_a_megabyte_and_a_half(self, workspace, longest):
        page = shared_page(shared_contents(workspace, Shared("share", rollouts=(longest,))))
        assert len(page.encode()) <= 1_500_000

    def test_its_policy_allows_its_own_script_and_style_and_nothing_else(self, workspace, longest):
        page = shared_page(shared_contents(workspace, Shared("share", rollouts=(longest,))))
        policy = html.unescape(re.search(r'Content-Security-Policy" content="([^"]*)"', page)[1])
        rules = dict(rule.split(" ", 1) for rule in policy.split("; "))
        assert rules.pop("default-src") == "'none'"
        assert re.fullmatch(r"'sha256-[\w+/=]+'", rules.pop("script-src"))
        assert re.fullmatch(r"'sha256-[\w+/=]+'", rules.pop("style-src"))
        assert set(rules.values()) == {"'none'"}
        assert page.lower().count("<script") == page.lower().count("</script") == 2

    def test_the_ids_of_a_group_that_are_held_are_those_of_its_shown_rollouts(self, workspace, longest):
        short = min(workspace.store("share").query().rows, key=lambda row: row["n_tokens"]).id
        held = shared_contents(workspace, Shared("share", rollouts=(short,)))
        [ids] = [each["ids"] for key, each in held["around"].items() if key.startswith("group")]
        own = unpacked(held["rollouts"][0]["tokens"]["arrays"]["ids"])
        assert set(ids) <= set(own.tolist())

    @pytest.mark.parametrize(
        ("wanted", "said"),
        [
            (Shared("share"), "nothing to share"),
            (Shared("share", rollouts=("nobody",)), "nobody"),
            (Shared("share", run="run", group=(1, 99)), "group 99"),
        ],
    )
    def test_what_is_not_there_is_said(self, workspace, wanted, said):
        with pytest.raises(StoreError, match=said):
            shared_contents(workspace, wanted)


class TestHiding:
    def test_without_a_pattern_the_secret_is_there(self, workspace, longest):
        held = shared_contents(workspace, Shared("share", rollouts=(longest,)))
        assert any(SECRET in text for text in texts_of(held))

    @pytest.mark.parametrize("what", range(4))
    def test_what_a_pattern_finds_is_in_no_text_of_any_kind_of_file(self, workspace, longest, what):
        wanted = everything(longest, workspace)[what]
        hiding = Shared(**{**vars(wanted), "patterns": PATTERNS})
        held = shared_contents(workspace, hiding)
        said = "\n".join(texts_of(held))
        assert "sk-4711" not in said
        assert ("█" in said) == (what < 3)
        assert "parts are hidden" in held["made"]

    @pytest.mark.parametrize("what", range(4))
    def test_what_the_runs_hook_hid_stays_hidden(self, workspace, longest, what):
        held = shared_contents(workspace, everything(longest, workspace)[what])
        assert HIDDEN_BY_THE_RUN not in "\n".join(texts_of(held))

    def test_hidden_text_leaves_no_token_ids_and_moves_no_other_token(self, workspace, longest):
        open_, hidden = (
            shared_contents(workspace, Shared("share", rollouts=(longest,), patterns=patterns))["rollouts"][0]
            for patterns in ((), PATTERNS)
        )
        before, after = (unpacked(each["tokens"]["arrays"]["ids"]) for each in (open_, hidden))
        starts, stops = (unpacked(hidden["tokens"]["arrays"][name]) for name in ("starts", "stops"))
        units = np.frombuffer(hidden["raw"].encode("utf-16-le"), "<u2")
        masked = np.array([0x2588 in units[a:b] for a, b in zip(starts, stops, strict=True)])
        assert masked.sum() > (before == -1).sum() > 0
        assert (after[masked] == -1).all()
        elsewhere = ~masked & (stops > starts)
        assert (after[elsewhere] == before[elsewhere]).all()
        assert len(open_["raw"]) == len(hidden["raw"])

    def test_no_list_has_the_beginning_of_a_text_that_may_cut_a_secret(self, workspace, longest):
        hiding = HidingWorkspace(workspace, Hiding(PATTERNS)).store("share")
        shown, hidden = (store.query().rows for store in (workspace.store("share"), hiding))
        row = next(each for each in shown if each.values.get("reply"))
        assert {"prompt", "reply"} <= row.values.keys()
        assert len(shown) == len(hidden)
        assert not any(name in each.values for each in hidden for name in ("prompt", "reply", "snippet"))
        of_step = "run", "rollout", 1
        assert any(group.prompt for group in workspace.store("share").groups(*of_step).groups)
        assert not any(group.prompt for group in hiding.groups(*of_step).groups)
        traces = [trace for group in hiding.groups(*of_step).groups for trace in group.traces]
        assert traces and not any("reply" in trace.values for trace in traces)

    @pytest.mark.parametrize(("pattern", "said"), [("(", "no regular expression"), ("x*", "empty text")])
    def test_a_pattern_that_hides_nothing_is_refused(self, workspace, longest, pattern, said):
        with pytest.raises(ConfigError, match=said):
            shared_contents(workspace, Shared("share", rollouts=(longest,), patterns=(pattern,)))


class TestTheServersFunction:
    def test_texts_to_hide_are_taken_as_they_are_written(self, workspace, longest):
        asked = {"project": "share", "what": "rollout", "id": longest, "hide": ["sk-4711", "("]}
        answer = told(share, workspace, asked)
        assert answer["name"] == "rollout.html"
        assert "sk-4711" not in answer["html"]

    def test_anything_else_is_refused(self, workspace):
        with pytest.raises(StoreError, match="expected rollout, compare, group or explain"):
            told(share, workspace, {"project": "share", "what": "everything"})


class TestTheCommand:
    def test_writes_the_file(self, workspace, longest, tmp_path, monkeypatch):
        from typer.testing import CliRunner

        from rollout_traces.cli import build_app

        out = tmp_path / "page.html"
        done = CliRunner().invoke(
            build_app(["share"]),
            ["share", longest, "-p", "share", "--redact-pattern", "sk-.*", "-o", str(out)],
        )
        assert done.exit_code == 0, done.output
        [held] = re.findall(r'id="rt-held">(.*?)</script>', out.read_text("utf-8"))
        assert json.loads(held)["rollouts"][0]["id"] == longest
        assert "sk-4711" not in held

    def test_writes_the_report_of_a_named_run(self, workspace, tmp_path, monkeypatch):
        from typer.testing import CliRunner

        from rollout_traces.cli import build_app

        seen: list[Shared] = []
        monkeypatch.setattr(
            shared_file,
            "shared_contents",
            lambda of, wanted: seen.append(wanted) or shared_contents(of, wanted),
        )
        asked = ["share", "run", "-p", "share", "--explain", "--step", "1", "-o", str(tmp_path / "page.html")]
        done = CliRunner().invoke(build_app(["share"]), asked)
        assert done.exit_code == 0, done.output
        assert [(wanted.run, wanted.step, wanted.rollouts) for wanted in seen] == [("run", 1, ())]

    @pytest.mark.parametrize("arguments", [[], ["x", "y", "--explain"], ["--group", "three"]])
    def test_asks_for_one_thing(self, arguments, workspace):
        from typer.testing import CliRunner

        from rollout_traces.cli import build_app

        done = CliRunner().invoke(build_app(["share"]), ["share", "-p", "share", *arguments])
        assert isinstance(done.exception, ConfigError), done.output
