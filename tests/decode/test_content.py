"""Tool results and the calls they answer."""

from __future__ import annotations

import time

from rollout_traces.decode.content import Body, pair_results
from rollout_traces.model.transcript import ToolCall


def make_call(number: int, name: str = "search") -> ToolCall:
    return ToolCall(name=name, arguments={}, raw="", id=f"call_{number}", start=0, stop=0)


def make_turns(n_calls: int) -> list[tuple[str, Body]]:
    """One answer with many calls, and their results in the opposite order."""
    calls = tuple(make_call(number) for number in range(n_calls))
    results = [("tool", Body("", call_id=call.id)) for call in reversed(calls)]
    return [("assistant", Body("", tool_calls=calls)), *results]


def processor_time_of(n_calls: int) -> float:
    turns = make_turns(n_calls)
    best = float("inf")
    for _ in range(3):
        start = time.process_time()
        pair_results(turns)
        best = min(best, time.process_time() - start)
    return best


class TestPairResults:
    def test_an_id_wins_over_the_order(self):
        assert pair_results(make_turns(3)) == [
            (None, None),
            ("call_2", "search"),
            ("call_1", "search"),
            ("call_0", "search"),
        ]

    def test_without_ids_the_next_call_of_the_name_is_taken_else_the_next(self):
        calls = (make_call(0, "add"), make_call(1, "search"), make_call(2, "add"))
        results = [("tool", Body("", name=name)) for name in ("search", "", "other", "add")]
        assert pair_results([("assistant", Body("", tool_calls=calls)), *results])[1:] == [
            ("call_1", "search"),
            ("call_0", "add"),
            ("call_2", "other"),
            (None, "add"),
        ]

    def test_a_call_is_answered_once(self):
        calls = (make_call(0), make_call(0))
        results = [("tool", Body("", call_id="call_0"))] * 3
        assert pair_results([("assistant", Body("", tool_calls=calls)), *results])[1:] == [
            ("call_0", "search"),
            ("call_0", "search"),
            ("call_0", None),
        ]

    def test_an_unknown_id_takes_no_call(self):
        turns = [
            ("assistant", Body("", tool_calls=(make_call(0),))),
            ("tool", Body("", call_id="another")),
            ("tool", Body("")),
        ]
        assert pair_results(turns)[1:] == [("another", None), ("call_0", "search")]

    def test_a_new_answers_calls_replace_those_left_open(self):
        turns = [
            ("assistant", Body("", tool_calls=(make_call(0),))),
            ("assistant", Body("", tool_calls=(make_call(1),))),
            ("tool", Body("")),
        ]
        assert pair_results(turns)[2] == ("call_1", "search")

    def test_the_cost_grows_with_the_calls_and_not_with_their_square(self):
        assert processor_time_of(16_000) < 24 * processor_time_of(2_000)
