"""Spans of many rollouts on one clock, against what a plain loop over them finds."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from rollout_traces.analysis.lanes import Tail, aligned, covered, lanes_of, tail_of
from rollout_traces.model.spans import packed


def rollout(
    rng: random.Random,
    begins: float,
    turns: int,
    engine: str,
    *,
    skew: float = 0.0,
    tool: str = "search",
    last: float = 0.0,
) -> list[dict[str, Any]]:
    """Spans of a rollout; its engine's clock is off by `skew`, and `last` is how long its last tool takes."""
    spans, at = [], begins
    for turn in range(turns):
        took = rng.uniform(0.2, 1.0)
        spans.append(
            {
                "kind": "generate",
                "start": at + skew,
                "end": at + took + skew,
                "turn": turn,
                "engine": engine,
                "version": 1,
            }
        )
        at += took + rng.uniform(0.01, 0.05)
        took = last if turn == turns - 1 and last else rng.uniform(0.1, 0.4)
        spans.append({"kind": "tool", "start": at, "end": at + took, "turn": turn, "name": tool})
        at += took + rng.uniform(0.01, 0.05)
    spans.append({"kind": "score", "start": at, "end": at + 0.1, "name": "judge"})
    return sorted(spans, key=lambda span: span["start"])


def lanes(rollouts: list[list[dict[str, Any]]], engines: list[str | None] | None = None):
    return lanes_of([packed(spans, 10_000) for spans in rollouts], engines or [None] * len(rollouts))


class TestLanes:
    def test_every_span_is_where_it_was_to_the_millisecond(self):
        rng = random.Random(1)
        given = [rollout(rng, 1.76e9 + rng.random() * 9, rng.randint(1, 5), f"e{at % 3}") for at in range(30)]
        found = lanes(given)
        flat = [(row, span) for row, spans in enumerate(given) for span in spans]
        first = min(span["start"] for _, span in flat)
        assert found.began == pytest.approx(first, abs=1e-6)
        for at, (row, span) in enumerate(flat):
            assert found.row[at] == row and abs(found.start[at] - (span["start"] - first) * 1000) <= 1.01
            assert abs(found.ms[at] - (span["end"] - span["start"]) * 1000) <= 0.51
        assert found.given.tolist() == [len(spans) for spans in given]

    def test_a_tool_is_in_the_lane_of_the_engine_that_called_it(self):
        moved = [
            {"kind": "generate", "start": 0.0, "end": 1.0, "turn": 0, "engine": "a"},
            {"kind": "tool", "start": 1.0, "end": 2.0, "turn": 0},
            {"kind": "generate", "start": 2.0, "end": 3.0, "turn": 1, "engine": "b"},
            {"kind": "tool", "start": 3.0, "end": 4.0, "turn": 1},
        ]
        found = lanes([moved])
        assert [found.names[at] for at in found.engine] == ["a", "a", "b", "b"]
        own = [{key: value for key, value in span.items() if key != "engine"} for span in moved]
        assert lanes([own], ["row's"]).names == ["row's"]

    def test_nothing_is_no_span(self):
        found, clocks = aligned(lanes_of([None, "", "{"], [None] * 3))
        assert (
            not len(found.row) and not clocks and tail_of(found) is None and found.given.tolist() == [0, 0, 0]
        )


class TestClocks:
    @pytest.mark.parametrize("skew", [-3600.0, -2.0, 0.7, 86_400.0])
    def test_an_engine_whose_clock_is_off_is_set_right_and_said(self, skew):
        rng = random.Random(2)
        given = [rollout(rng, 100.0 + at, 4, f"e{at % 2}", skew=skew if at % 2 else 0.0) for at in range(20)]
        found, clocks = aligned(lanes(given))
        right, wrong = clocks
        assert right.moved == 0 and not right.said
        assert abs(wrong.moved + skew * 1000) < 60 and wrong.low <= wrong.moved <= wrong.high
        assert ("ahead" if skew > 0 else "behind") in wrong.said and "e1" in wrong.said
        for row in range(20):
            own = found.take(found.row == row)
            order = np.lexsort((own.kind, own.turn))
            ordered = own.take(order[own.turn[order] >= 0])
            assert (ordered.start[1:] >= ordered.end[:-1] - 5).all(), "a rollout's turns follow each other"

    def test_clocks_that_agree_are_left_alone(self):
        rng = random.Random(3)
        before = lanes([rollout(rng, 100.0 + at, 3, f"e{at % 4}") for at in range(40)])
        found, clocks = aligned(before)
        assert (found.start == before.start).all() and not any(clock.said or clock.moved for clock in clocks)

    def test_what_no_shift_mends_is_said_and_drawn_as_it_came(self):
        rng = random.Random(4)
        given = [rollout(rng, 100.0, 3, "e0", skew=5.0 if at % 2 else -5.0) for at in range(6)]
        before = lanes(given)
        found, (clock,) = aligned(before)
        assert (found.start == before.start).all() and "no one shift" in clock.said

    def test_an_engine_far_from_all_others_is_said(self):
        alone = [{"kind": "generate", "start": 9000.0, "end": 9001.0, "turn": 0, "engine": "far"}]
        _, clocks = aligned(lanes([rollout(random.Random(5), 10.0, 2, "near"), alone]))
        assert [clock.engine for clock in clocks if clock.said] == ["far"]
        assert "behind all others" in next(clock.said for clock in clocks if clock.said)


class TestTail:
    def test_the_rollouts_that_hold_a_step_up_are_named_with_what_they_did(self):
        rng = random.Random(6)
        given = [rollout(rng, 0.0, 4, "e0") for _ in range(509)]
        given += [rollout(rng, 0.0, 3, "e0", tool="browse", last=41 + at) for at in range(3)]
        found = lanes(given)
        tail = tail_of(found)
        ends = sorted(max(span["end"] for span in spans) for spans in given)
        assert tail.rows == (509, 510, 511) and (tail.kind, tail.name) == ("tool", "browse")
        assert tail.held == pytest.approx(ends[-1] - ends[-4], abs=0.01)
        assert str(tail) == f"3 of 512 rollouts hold the step for {tail.held:.3g} s: tool “browse”"
        inside = sum(
            max(0.0, span["end"] - max(span["start"], ends[-4]))
            for spans in given[-3:]
            for span in spans
            if span.get("name") == "browse"
        )
        assert tail.seconds == pytest.approx(inside, abs=0.05)

    def test_time_of_which_no_span_tells_is_said_so(self):
        quiet = [
            {"kind": "generate", "start": 0.0, "end": 1.0, "turn": 0},
            {"kind": "score", "start": 50.0, "end": 50.1},
        ]
        found = lanes([rollout(random.Random(at), 0.0, 2, "e") for at in range(20)] + [quiet])
        assert str(tail_of(found)).endswith("no span tells in what")

    def test_a_mixture_says_its_share(self):
        assert str(Tail(8, 0, 2000, "tool", "x", 0.9, (1,), 0.45)).endswith(
            "holds the step for 2 s: tool “x”, 45% of it"
        )

    def test_rollouts_that_end_together_hold_nothing_up(self):
        assert tail_of(lanes([rollout(random.Random(7), 0.0, 3, "e")] * 40)) is None


class TestCovered:
    def test_it_is_what_counting_milliseconds_finds(self):
        rng = np.random.default_rng(8)
        for _ in range(200):
            start = rng.integers(0, 60, rng.integers(0, 12))
            end = start + rng.integers(0, 15, len(start))
            plain = {ms for a, b in zip(start.tolist(), end.tolist(), strict=True) for ms in range(a, b)}
            assert covered(start, end) == len(plain)
