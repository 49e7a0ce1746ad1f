"""The lanes and the stages of a real environment loop, against the times that its tools and engines wrote themselves."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from statistics import median

import pytest

from rollout_traces.inspector.pages.lanes import lanes
from rollout_traces.inspector.pages.live import live, live_rollout
from rollout_traces.inspector.workspace import SplitView, Workspace
from tests.inspector.told import told

STAGE = {"queue": "queued", "generate": "sampling", "tool": "tool", "score": "scoring"}
ROLLOUTS = 16


@pytest.fixture
def ran(trackio_dir, tmp_path):
    """The project after two steps, and what the loop wrote itself."""
    own_times = tmp_path / "own.jsonl"
    options = ["--steps", "2", "--rollouts", str(ROLLOUTS), "--pace", "0.1", "--timeout", "8"]
    loop = (
        Path(__file__).parents[2] / "examples/environment_loop.py"
    )  # a browser test of this worker may have a loop
    subprocess.run([sys.executable, loop, *options, "--name", "run", "--own-times", own_times], check=True)
    workspace = Workspace(folder=trackio_dir)
    yield workspace, [json.loads(line) for line in own_times.read_text().splitlines()]
    workspace.close()


def test_every_bar_is_where_the_loop_itself_says_it_was(ran):
    workspace, noted = ran
    view = SplitView(workspace, "environment-loop", "run", "rollout")
    for step in (1, 2):
        answer = lanes(view, step)
        own = {
            (line["rollout"], line["kind"], line["turn"], line["name"]): line
            for line in noted
            if line["step"] == step
        }
        spans = answer.spans
        excess = []
        for at, kind in enumerate(spans.kind):
            rollout = answer.rollouts[spans.rollout[at]]
            turn = spans.turn[at] if spans.turn[at] >= 0 else None
            name = answer.names[spans.name[at]] if spans.name[at] >= 0 else None
            line = own.pop((rollout.group * 4 + rollout.sample, answer.kinds[kind], turn, name))
            starts, ends = (
                answer.began + spans.start[at] / 1000,
                answer.began + (spans.start[at] + spans.ms[at]) / 1000,
            )
            assert starts <= line["start"] + 0.003 and ends >= line["end"] - 0.003, line
            excess.append(line["start"] - starts + ends - line["end"])
        assert not own, "everything that ran has a bar"
        assert median(excess) < 0.01 and max(excess) < 0.5
        assert answer.tail is not None and (answer.tail.kind, answer.tail.name) == ("tool", "browse")
        assert not answer.said, "one machine has one clock"
    assert [phase.step for phase in lanes(view, 2, minutes=5).phases] == [1]


def test_every_stage_in_flight_took_as_long_as_the_loop_says(ran):
    workspace, noted = ran
    place = {"project": "environment-loop", "run": "run"}
    ended = told(live, workspace, place)["ended"]
    hung = [row for row in ended if row["detail"] == "browse: no answer in 8 s"]
    assert len(ended) == 2 * ROLLOUTS and len(hung) >= 2
    stored = {
        row["extra/live"]: (row["step"], row["group"] * 4 + row["sample"])
        for row in workspace.store("environment-loop")
        .rollouts(columns=["extra/live", "step", "group", "sample"])
        .to_pylist()
    }
    for row in ended:
        step, rollout = stored[row["id"]]
        own = [line for line in noted if (line["step"], line["rollout"]) == (step, rollout)]
        stages = told(live_rollout, workspace, {**place, "id": row["id"]})["stages"]
        shown = [stage for stage in stages if stage["stage"] not in ("done", "aborted")]
        assert [stage["stage"] for stage in shown] == [STAGE[line["kind"]] for line in own]
        for stage, line in zip(shown, own, strict=True):
            assert stage["detail"] == line["name"]
            assert stage["began"] == pytest.approx(line["start"] - own[0]["start"], abs=0.3), (stage, line)
            assert stage["seconds"] == pytest.approx(line["end"] - line["start"], abs=0.3)
