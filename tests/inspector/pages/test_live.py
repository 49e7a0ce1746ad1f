"""What runs now, as a page is told it: counts, order, stages, and what a reader should know."""

from __future__ import annotations

from collections import deque
from dataclasses import replace

import pytest

from rollout_traces.errors import StoreError
from rollout_traces.inspector.pages import live as page
from rollout_traces.inspector.pages.live import MOST_ROWS, SILENT, LiveAnswer, said_of
from rollout_traces.model.live_lines import InFlight, StageSaid
from rollout_traces.store.live import LiveLook, LiveRow, LiveWriterSeen

WRITER = LiveWriterSeen("node-0", 3, 1.0, False, False, 0.0, 0, True)


def row(key: str, fate: str = "running", writer: LiveWriterSeen = WRITER, **of: float | str) -> LiveRow:
    """A rollout that samples, where nothing else is said; `seconds`, `silent`, `at` and `stage` may be."""
    stage = str(of.get("stage", fate if fate in ("done", "aborted") else "sampling"))
    rollout = InFlight(key, begun=0.0, at=float(of.get("at", 0.0)), stage=stage)
    return LiveRow(rollout, writer, fate, float(of.get("seconds", 10.0)), 2.0, float(of.get("silent", 0.0)))


def told(*rows: LiveRow, limit: int = 10, landed: dict | None = None) -> LiveAnswer:
    writers = list(dict.fromkeys(each.writer for each in rows))
    return said_of(LiveLook("run-a", "a1", list(rows), writers), landed or {}, limit)


class TestCounts:
    def test_of_a_run_that_nothing_was_said_of_are_none(self):
        assert said_of(None, {}, 5) == LiveAnswer("", 0, 0, 0, 0, {}, [], 0, [], [])

    def test_are_of_what_runs_what_was_lost_and_what_ended(self):
        rows = [row("a"), row("b", silent=SILENT), row("c", stage="queued", silent=1e4), row("d", "lost")]
        rows += [row("e", "done"), row("f", "aborted")]
        found = told(*rows)
        assert (found.run, found.n_running, found.n_silent) == ("run-a", 3, 1)
        assert (found.n_lost, found.n_ended, found.n_left_out) == (1, 2, 0)
        assert found.stages == {"queued": 1, "sampling": 2} and list(found.stages) == ["queued", "sampling"]

    @pytest.mark.parametrize("limit", [0, -1, MOST_ROWS + 1])
    def test_a_limit_beyond_its_bounds_is_refused(self, limit):
        with pytest.raises(StoreError, match=f"limit: 1 to {MOST_ROWS}. Seen {limit}"):
            told(row("a"), limit=limit)
        assert told(row("a"), limit=MOST_ROWS).n_running == 1 == told(row("a"), limit=1).n_running


class TestOrder:
    def test_the_silent_come_first_then_the_slowest_and_the_lost_last(self):
        rows = [row("fast", seconds=1), row("lost", "lost", seconds=99), row("slow", seconds=50)]
        found = told(*rows, row("silent", silent=SILENT, seconds=2))
        assert [each.id for each in found.rollouts] == ["silent", "slow", "fast", "lost"]
        assert [each.is_silent for each in found.rollouts] == [True, False, False, False]

    def test_those_beyond_the_limit_are_counted(self):
        found = told(*(row(str(n), seconds=n) for n in range(5)), limit=2)
        assert [each.id for each in found.rollouts] == ["4", "3"] and found.n_left_out == 3

    def test_the_newest_that_ended_are_shown(self, monkeypatch):
        monkeypatch.setattr(page, "MOST_ENDED", 2)
        found = told(*(row(str(n), "done", at=n) for n in (1, 3, 2)))
        assert [each.id for each in found.ended] == ["3", "2"] and found.n_ended == 3


class TestARollout:
    def test_leads_to_where_it_was_stored(self):
        found = told(row("a", "done"), row("b", "done"), row("c", "done"), landed={"a": "trace", "b": None})
        places = {each.id: (each.trace, each.is_stored) for each in found.ended}
        assert places == {"a": ("trace", True), "b": (None, True), "c": (None, False)}

    def test_has_the_times_of_its_stages(self):
        began = ((5.0, "queued"), (7.5, "sampling"), (9.25, "tool"))
        said = [StageSaid(at, at, stage, None, None, None, None) for at, stage in began]
        rollout = InFlight("a", begun=5.0, at=9.5, stage="tool", stages=deque(said))
        running = LiveRow(rollout, WRITER, "running", 10.0, 3.0, 0.0)
        assert [(each.stage, each.began, each.seconds) for each in page._stages(running)] == [
            ("queued", 0.0, 2.5),
            ("sampling", 2.5, 1.75),
            ("tool", 4.25, 3.0),
        ]
        ended = replace(running, fate="done", rollout=replace(rollout, stage="done"))
        assert page._stages(ended)[-1].seconds == 0.0
        assert page._stages(row("b")) == []


class TestRemarks:
    def test_of_a_writer_that_is_heard_there_are_none(self):
        assert told(row("a")).remarks == []

    @pytest.mark.parametrize(
        ("seen", "fates", "said"),
        [
            ({"clock": 90.0}, ["running"], "its clock is 90 s behind that of the files"),
            ({"clock": -90.0}, ["running"], "its clock is 90 s ahead of that of the files"),
            ({"is_finished": True}, ["lost"], "finished while 1 of its rollouts was running."),
            ({"is_finished": True}, ["lost"] * 2, "finished while 2 of its rollouts were running."),
            ({"silent": 30.0}, ["lost"], "was last seen 30 s ago: 1 of its rollouts was running then."),
            ({"silent": 30.0}, ["lost"] * 2, "was last seen 30 s ago: 2 of its rollouts were running then."),
            ({"texts": False}, ["running"], "says no prompts and words, since the run redacts."),
            ({"n_unreadable": 2}, ["running"], "2 lines of its file cannot be read"),
        ],
    )
    def test_name_the_writer_and_what_is_odd_of_it(self, seen, fates, said):
        writer = replace(WRITER, **seen)
        other = row("other", "lost", replace(WRITER, rank=4, is_finished=True))
        rows = [row(str(n), fate, writer) for n, fate in enumerate(fates)]
        remarks = told(*rows, other).remarks
        assert len(remarks) == 2 and said in remarks[0]
        assert remarks[0].startswith("Rank 3 on “node-0”") and remarks[1].startswith("Rank 4")
