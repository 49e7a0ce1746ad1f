"""Two nodes whose clocks disagree: two processes, one with a clock that is ahead, watched while they sample."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

import rollout_traces as rt
from rollout_traces.cluster.forwarding import NodeClock
from rollout_traces.inspector.pages.lanes import lanes
from rollout_traces.inspector.pages.live import live
from rollout_traces.inspector.workspace import SplitView, Workspace
from rollout_traces.spool.record import Record
from tests.cluster.rank_of_a_node import ROLLOUTS
from tests.inspector.told import told
from tests.until import until
from tests.worker.test_ranks import free_port

AHEAD = 7.0
ROOT = Path(__file__).resolve().parents[2]


class Answers:
    """Rank 0, whose clock differs by so many seconds."""

    def __init__(self, apart: float) -> None:
        self.apart = apart

    def ask(self, meta, body=b""):
        return {"time": time.time() + self.apart}


class TestANodesClock:
    @pytest.mark.parametrize("apart", [-3600.0, -AHEAD, 0.5])
    def test_that_differs_moves_every_time_of_a_hand_over_and_says_so(self, apart):
        clock = NodeClock("node-1")
        clock.ask(Answers(apart), {})
        span = {"kind": "tool", "start": 100.0, "end": 101.5, "turn": 2, "name": "browse"}
        rows = [[span], {"start": 90.0, "tool": 1.5}, None, [{"kind": "tool", "start": "soon"}]]
        record = Record("rollouts", {"row_lists": {"timings": rows, "sources": ["a"] * 4}, "notes": ["x"]})
        right = clock.put_right(record).meta
        assert right["row_lists"]["sources"] == ["a"] * 4
        first, sums, none, bad = right["row_lists"]["timings"]
        assert first[0]["start"] == pytest.approx(100 + apart, abs=0.05) and first[0]["turn"] == 2
        assert first[0]["end"] - first[0]["start"] == pytest.approx(1.5)
        assert sums["start"] == pytest.approx(90 + apart, abs=0.05) and sums["tool"] == 1.5
        assert none is None and bad == rows[3]
        way = "behind" if apart > 0 else "ahead of"
        assert right["notes"][0] == "x" and f"{abs(apart):.1f} s {way} rank 0's" in right["notes"][1]

    def test_that_agrees_leaves_a_hand_over_as_it_is(self):
        clock = NodeClock("node-1")
        clock.ask(Answers(0.03), {})
        record = Record("rollouts", {"row_lists": {"timings": [[{"start": 1.0}]]}})
        assert clock.put_right(record) is record and clock.behind == 0


@pytest.mark.slow
def test_of_a_node_that_is_ahead_is_said_and_every_bar_is_where_it_really_was(trackio_dir, tmp_path):
    port = str(free_port())
    ranks = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.cluster.rank_of_a_node", str(rank), "127.0.0.1", port, ahead, tmp_path],
            cwd=ROOT,
        )
        for rank, ahead in enumerate(("0", str(AHEAD)))
    ]  # fmt: skip
    until(lambda: (trackio_dir / "p.db").exists(), 120)
    workspace = Workspace(folder=trackio_dir)
    until(lambda: len(rt.open_store("p").live.look().rows) == 2, 60)
    until(lambda: all(row.rollout.stage == "tool" for row in rt.open_store("p").live.look().rows))
    answer = told(live, workspace, {"project": "p", "run": "run"})
    assert {row["node"] for row in answer["rollouts"]} == {"node-0", "node-1"}
    assert max(row["seconds"] for row in answer["rollouts"]) < 60, "what is ahead is not a negative time"
    (remark,) = answer["remarks"]
    assert "Rank 1 on “node-1”: its clock is" in remark and "ahead of that of the files" in remark
    (tmp_path / "go").touch()
    assert [rank.wait(180) for rank in ranks] == [0, 0]

    epoch = time.time() - time.monotonic()
    own = {
        (f"{rank}/{number}", kind): (epoch + began, epoch + ended)
        for path in tmp_path.glob("own-*.json")
        for rank, number, kind, began, ended in json.loads(path.read_text())
    }
    workspace.refresh("p")
    view = SplitView(workspace, "p", "run", "rollout")
    found = lanes(view, 1, by="rollout")
    assert len(found.spans.lane) == len(own) == 2 * ROLLOUTS * 3
    for lane, kind, start, ms in zip(
        found.spans.lane, found.spans.kind, found.spans.start, found.spans.ms, strict=True
    ):
        began, ended = own[found.lanes[lane].name, found.kinds[kind]]
        assert found.began + start / 1000 == pytest.approx(began, abs=0.1)
        assert ms / 1000 == pytest.approx(ended - began, abs=0.1)
    assert any("node-1: its clock is 7.0 s ahead of rank 0's" in text for text in found.said)
    workspace.close()
