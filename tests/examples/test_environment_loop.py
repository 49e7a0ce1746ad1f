"""The lanes of a real environment loop, bar by bar against the times that its tools and engines wrote themselves."""

from __future__ import annotations

import json
from statistics import median

import environment_loop

from rollout_traces.inspector.pages.lanes import lanes
from rollout_traces.inspector.view import SplitView
from rollout_traces.inspector.workspace import Workspace


def test_every_bar_is_where_the_loop_itself_says_it_was(trackio_dir, tmp_path):
    own_times = tmp_path / "own.jsonl"
    environment_loop.main(["--steps", "2", "--rollouts", "16", "--own-times", str(own_times)])
    noted = [json.loads(line) for line in own_times.read_text().splitlines()]
    workspace = Workspace(folder=trackio_dir)
    view = SplitView(workspace, "environment-loop", "seed-0", "rollout")
    for step in (0, 1):
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
    assert [phase.step for phase in lanes(view, 1, minutes=5).phases] == [0]
    workspace.close()
