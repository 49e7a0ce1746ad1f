from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

import rollout_traces as rt
from rollout_traces.cli import build_app
from rollout_traces.inspector.pages.lanes import step_time
from rollout_traces.inspector.workspace import SplitView, Workspace, as_plain


def asked(*arguments: str) -> Result:
    return CliRunner().invoke(build_app(["lanes"]), ["lanes", *arguments])


@pytest.fixture
def project(trackio_dir: Path) -> Path:
    """A run of two steps of timed rollouts on two engines; in the second a browser holds it up for 40 s."""
    logger = rt.RolloutLogger(project="p", name="run-a", worker="thread")
    talk = [{"role": "user", "content": "6*7?"}, {"role": "assistant", "content": "42"}]
    for step in (1, 2):
        timings = []
        for row in range(8):
            at = 1.76e9 + step * 100
            spans = [
                {
                    "kind": "generate",
                    "start": at,
                    "end": at + 5 + row / 10,
                    "turn": 0,
                    "engine": f"e{row % 2}",
                }
            ]
            if (step, row) == (2, 7):
                spans.append(
                    {"kind": "tool", "start": at + 6, "end": at + 46, "turn": 0, "name": "browse \x1b[31m"}
                )
            timings.append(spans)
        logger.log_rollouts(
            rt.RolloutBatch.from_messages([talk] * 8, rewards=[1.0] * 8, timings=timings), step=step
        )
    logger.log_scalars({"phase/update/start": 1.76e9 + 206, "phase/update/end": 1.76e9 + 209}, step=2)
    logger.finish()
    return trackio_dir


def test_shows_each_lane_and_what_holds_the_newest_step_up(project: Path) -> None:
    said = asked("run-a").output
    assert "run-a, step 2: 46 s, 8 of 8 rollouts timed" in said
    rows = [
        re.split(r" {2,}", line.strip())
        for line in said.splitlines()
        if line.strip().startswith(("e0", "e1"))
    ]
    assert [(name, n, busy) for name, n, _, busy, _ in rows] == [
        ("e0", "4", "5.6 s"),
        ("e1", "4", "5.7 s"),
    ]
    assert "1 of 8 rollouts holds the step for 40.4 s: tool" in said and "\x1b" not in said
    assert "rollout-traces list run-a --all --where" in said and "update of step 2: 3 s" in said


def test_says_in_json_what_the_tool_for_agents_says(project: Path) -> None:
    workspace = Workspace(folder=project)
    workspace.refresh("p")
    found = as_plain(step_time(SplitView(workspace, "p", "run-a"), 1, "rollout"))
    workspace.close()
    assert json.loads(asked("run-a", "--step", "1", "--by", "rollout", "--json").output) == found
    assert len(found["lanes"]) == 8 and found["tail"] is None


def test_a_step_or_a_lane_that_is_none_is_refused(project: Path) -> None:
    refused = asked("--step", "9")
    assert refused.exit_code == 1
    assert str(refused.exception) == "--step 9: run-a has no rollouts there; steps of rollout: 1 to 2."
    assert asked("--by", "moon").exit_code == 1
