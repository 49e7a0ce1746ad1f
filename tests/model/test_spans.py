"""Spans of time: how they are noted, checked, added up and packed."""

from __future__ import annotations

import math
import time
from typing import Any

import orjson
import pytest

from rollout_traces.model import spans
from rollout_traces.model.spans import (
    Packed,
    Spans,
    as_seconds,
    checked,
    packed,
    read_packed,
    seconds_of_scoring,
    unpacked,
)


def span(kind: str = "generate", start: float = 100.0, seconds: float = 1.0, **more: Any) -> dict[str, Any]:
    return {"kind": kind, "start": start, "end": start + seconds, **more}


class TestNoting:
    def test_what_runs_inside_is_timed_on_the_wall_clock(self):
        noted, before = Spans(), time.time()
        with noted("tool", turn=2, name="search") as one:
            time.sleep(0.02)
            one["engine"] = "worker-1"
        (found,) = noted.noted
        assert found.items() >= {"kind": "tool", "turn": 2, "name": "search", "engine": "worker-1"}.items()
        assert before - 0.01 <= found["start"] and 0.02 <= found["end"] - found["start"] < 5

    def test_what_raises_inside_is_its_error_and_raised_on(self):
        noted = Spans()
        with pytest.raises(TimeoutError), noted("tool", name="browse"):
            raise TimeoutError
        assert noted.noted[0]["error"] == "TimeoutError" and noted.noted[0]["end"] >= noted.noted[0]["start"]


class TestChecking:
    @pytest.mark.parametrize(
        ("bad", "said"),
        [
            ("a text", "expected a mapping"),
            ({}, "kind: seen 'None'"),
            (span("boot"), "kind: seen 'boot'"),
            ({"kind": ["tool"], "start": 1, "end": 2}, "kind"),
            (span(start=math.nan), "start"),
            ({"kind": "tool", "start": None, "end": 2.0}, "start: seen 'None'"),
            ({"kind": "tool", "start": True, "end": 2.0}, "start: seen 'True'"),
            (span(start=1.76e12), "not milliseconds"),
            (span(seconds=-2.0), "end: 2 s before start"),
        ],
    )
    def test_a_bad_span_is_said_and_its_siblings_stay(self, bad, said):
        found, refused = checked([span(start=5.0), bad, span("tool", start=3.0)])
        assert [one["start"] for one in found] == [3.0, 5.0]
        assert len(refused) == 1 and said in refused[0]

    def test_what_is_not_understood_of_a_good_span_is_left_out(self):
        (found,), refused = checked(
            [span(turn="first", version=2.5, name="n" * 500, engine="\ud800", more=1)]
        )
        assert not refused and set(found) == {"kind", "start", "end", "name", "engine"}
        assert len(found["name"]) == spans.SHORT and found["engine"].encode()

    @pytest.mark.parametrize(
        ("at", "kept"),
        [
            (0, True),
            (spans.LARGEST_EXACT - 1, True),
            (spans.LARGEST_EXACT, False),
            (-1, False),
            (True, False),
            (1.0, False),
        ],
    )
    def test_a_turn_or_a_version_is_a_whole_number_within_bounds(self, at, kept):
        (found,), refused = checked([span(turn=at, version=at)])
        assert not refused and ("turn" in found, "version" in found) == (kept, kept)


class TestSums:
    def test_they_are_by_kind_with_the_first_start(self):
        given = [span("generate", 10, 2), span("tool", 12, 1), span("generate", 14, 0.5)]
        assert as_seconds(given) == {"generate": 2.5, "tool": 1.0, "start": 10}
        assert as_seconds([]) == {}

    def test_a_call_for_several_rows_is_split_among_them(self):
        shared = span("score", 10, 3, name="judge")
        own = span("score", 20, 0.5, name="judge")
        found = seconds_of_scoring(
            [[shared, span("score", 10, 3, name="format")], [shared, own], [dict(shared)]]
        )
        assert found == [{"judge": 1.0, "format": 3.0}, {"judge": 1.5}, {"judge": 1.0}]


class TestPacking:
    def test_spans_come_back_to_the_millisecond(self):
        given = [
            span("queue", 1764000000.1234, 0.2506),
            span("generate", 1764000000.375, 2.0, turn=0, version=7, engine="e1"),
            span("tool", 1764000002.375, 1.5, turn=0, name="bröwse", error="TimeoutError"),
        ]
        back = read_packed(packed(given, 10))
        for one, was in zip(back, given, strict=True):
            assert {k: v for k, v in one.items() if k not in ("start", "end")} == {
                k: v for k, v in was.items() if k not in ("start", "end")
            }
            assert abs(one["start"] - was["start"]) <= 0.00051 and abs(one["end"] - was["end"]) <= 0.00102

    def test_the_longest_are_held_where_there_are_too_many_and_how_many_there_were(self):
        given = [span(start=float(at), seconds=float(at % 5)) for at in range(50)]
        text = packed(given, 10)
        read = unpacked(text)
        assert read.n == 50 and read.n_held == 10 and set(read.columns["ms"]) == {4000}
        assert read.columns["at"] == sorted(read.columns["at"])
        assert packed([], 10) is None

    def test_spans_that_began_before_the_first_one_ended_are_whole(self):
        given = [span(start=1.0), span("tool", start=1.0), span("score", start=3.0)]
        assert [one["start"] for one in read_packed(packed(given, 2))] == [1.0, 1.0]

    GOOD = {"start": 5.0, "n": 2, "kind": [4, 3], "at": [0, 7], "ms": [1, 2], "name": [-1, 0], "texts": ["a"]}

    def test_a_packed_text_is_plain(self):
        assert read_packed(orjson.dumps(self.GOOD).decode()) == [
            {"kind": "score", "start": 5.0, "end": 5.001},
            {"kind": "tool", "start": 5.007, "end": 5.007 + 0.002, "name": "a"},
        ]

    @pytest.mark.parametrize(
        "bad",
        [{"start": "x"}, {"start": None}, {"n": 1}, {"n": None}, {"kind": [4, 9]}, {"kind": [4, -1]}, {"kind": 5}, {"kind": []},
         {"at": [0.5, 1]}, {"at": [0]}, {"at": [True, 1]}, {"ms": [0, -1]}, {"ms": [2**60, 1]}, {"turn": [-2, 0]},
         {"name": [0, 1]}, {"name": ["a", "a"]}, {"texts": [5]}, {"texts": None}, {"version": {"a": 1, "b": 2}}],
    )  # fmt: skip
    def test_what_somebody_else_wrote_is_no_span(self, bad):
        assert unpacked(orjson.dumps({**self.GOOD, **bad}).decode()).n_held == 0

    @pytest.mark.parametrize(
        "text", [None, "", "[]", "null", "{", "7", '"text"', '{"start": 1e999, "n": 1, "kind": [1]}']
    )
    def test_no_json_of_ours_is_no_span(self, text):
        assert unpacked(text) == Packed()
