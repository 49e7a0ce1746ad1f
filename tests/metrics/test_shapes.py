"""Lengths, turns, stop reasons, counters, discarded rollouts, tools."""

from __future__ import annotations

import math

import numpy as np
import pytest

from rollout_traces.metrics import ToolUse, tool_use
from rollout_traces.metrics.shapes import turn_key
from rollout_traces.settings.run_settings import RunSettings
from tests.builders import make_packed_batch, make_transcript
from tests.metrics.builders import make_ledger, of_batch, of_ledger


class TestLengths:
    def test_each_part_of_a_rollout_has_its_own_statistics(self):
        found = of_ledger(make_ledger(n_prompt=[10, 30], n_sampled=[4, 8], n_environment=[0, 2]))
        assert found["tokens/prompt/mean"] == 20.0 and found["tokens/prompt/std"] == 10.0
        assert found["tokens/completion/max"] == 8.0 and found["tokens/completion/p50"] == 6.0
        assert found["tokens/completion/p95"] == pytest.approx(7.8)
        assert found["tokens/environment/min"] == 0.0
        assert found["tokens/total/mean"] == 27.0

    def test_rollouts_that_were_cut_are_left_out_of_terminated_lengths(self):
        found = of_ledger(
            make_ledger(n_sampled=[4, 8, 100, 7], stop_reason=["stop", "abort", "length", None])
        )
        assert found["completion/mean_terminated"] == 6.0
        assert (found["completion/min_terminated"], found["completion/max_terminated"]) == (4.0, 8.0)

    def test_turns(self):
        found = of_ledger(make_ledger(n_turns=[1, 4]))
        assert (found["turns/mean"], found["turns/max"]) == (2.5, 4.0)


class TestStopReasons:
    def test_shares_are_over_rows_with_a_known_reason(self):
        found = of_ledger(make_ledger(stop_reason=["length", "stop", "stop", "abort", None]))
        assert found["stop/length_share"] == 0.25
        assert found["stop/stop_share"] == 0.5 and found["stop/abort_share"] == 0.25

    def test_no_truncation_is_a_share_of_zero_not_a_missing_key(self):
        assert of_ledger(make_ledger(stop_reason=["stop"]))["stop/length_share"] == 0.0

    def test_hostile_reasons_can_neither_break_keys_nor_flood_them(self):
        reasons = [f"a/b {n}<script>" for n in range(40)]
        keys = [key for key in of_ledger(make_ledger(stop_reason=reasons)) if key.startswith("stop/")]
        assert len(keys) <= 14 and all("<" not in key and key.count("/") == 1 for key in keys)


class TestCounters:
    def test_rollouts_tokens_prompts_and_what_was_expected(self):
        batch = make_packed_batch(
            [[1, 2], [3], [4, 5, 6]], [[0, 1], [1], [0, 0, 1]], group_ids=np.asarray([0, 0, 7])
        )
        found = of_batch(batch, settings=RunSettings(samples_per_prompt=2))
        assert (found["count/samples"], found["count/tokens"], found["count/prompts"]) == (3.0, 6.0, 2.0)
        assert found["count/expected_samples"] == 4.0

    def test_of_the_ledger_alone_tokens_are_counted_where_all_are_known(self):
        lengths = {"n_prompt": [1, 2], "n_sampled": [3, 4], "n_environment": [0, 5]}
        assert of_ledger(make_ledger(**lengths))["count/tokens"] == 15.0
        found = of_ledger(make_ledger(**{**lengths, "n_sampled": [3, None]}))
        assert "count/tokens" not in found and found["count/samples"] == 2.0
        assert "count/expected_samples" not in found and "count/messages" not in found

    def test_rollouts_whose_tokens_were_left_behind_are_said(self):
        batch = make_packed_batch(
            [[1], []], [[1], []], has_tokens=np.asarray([True, False]), n_tokens=np.asarray([1, 50])
        )
        found = of_batch(batch)
        assert found["count/without_tokens"] == 1.0 and found["count/tokens"] == 51.0


@pytest.mark.parametrize(
    ("turn", "key"), [(0, "turn/0"), (6, "turn/6"), (7, "turn/7_plus"), (8, "turn/7_plus")]
)
def test_late_turns_share_a_key(turn, key):
    assert turn_key(turn) == key


class TestDiscarded:
    def test_counts_by_reason_and_the_same_statistics_of_what_was_left_out(self):
        found = of_ledger(
            make_ledger(
                discard_reason=[None, "too_long", "too_long", "zero_advantage"],
                reward=[1.0, 0.0, 0.5, 0.0],
                n_sampled=[1, 9, 9, 3],
            )
        )
        assert found["discarded/share"] == 0.75
        assert found["discarded/too_long_count"] == 2.0 and found["discarded/zero_advantage_count"] == 1.0
        assert found["discarded/reward/mean"] == pytest.approx(0.5 / 3)
        assert found["discarded/tokens/completion/max"] == 9.0
        assert found["reward/mean"] == 0.375  # the step's own metrics speak of all rollouts

    def test_nothing_discarded_is_a_share_of_zero(self):
        assert of_ledger(make_ledger(reward=[1.0]))["discarded/share"] == 0.0


class TestSources:
    def test_few_sources_have_metrics_of_their_own(self):
        found = of_ledger(make_ledger(source=["math", "code/x", "math"], reward=[1.0, 0.0, 0.0]))
        assert found["source/math/reward/mean"] == 0.5
        assert found["source/code_x/reward/mean"] == 0.0

    def test_many_sources_have_not(self):
        found = of_ledger(make_ledger(source=[str(n) for n in range(9)], reward=[1.0] * 9))
        assert not [key for key in found if key.startswith("source/")]


class TestSampleMetrics:
    def test_the_trainers_own_metrics_pass_through(self):
        found = of_ledger(make_ledger(sample__calls=[1.0, 3.0, math.nan]))
        assert found["sample/calls/mean"] == 2.0 and "sample/calls_nonfinite" not in found


def use(errors: int = 0, unparsed: int = 0, **calls: int) -> ToolUse:
    return ToolUse(calls=calls, unparsed=unparsed, results=sum(calls.values()), errors=errors, messages=3)


class TestTools:
    def test_where_all_rollouts_were_decoded_the_keys_speak_of_the_step(self):
        ledger = make_ledger(reward=[1.0, 0.0])
        uses = {0: use(search=2, hallucinated=1), 1: use(search=1, errors=1, unparsed=4)}
        found = of_ledger(ledger, tool_use=uses, settings=RunSettings(tools=("search",)))
        assert found["tools/calls_mean"] == 2.0 and found["tools/unique"] == 2.0
        assert found["tools/errors_per_call"] == 0.25
        assert found["tools/unparsed_per_attempt"] == 0.5
        assert found["tool/search_calls"] == 3.0 and found["tool/unknown_calls"] == 1.0
        assert "tool/hallucinated_calls" not in found
        assert (found["count/tool_calls"], found["count/messages"]) == (8.0, 6.0)

    def test_otherwise_they_speak_of_the_random_part_and_say_so(self):
        ledger = make_ledger(reward=[1.0, 0.0, 0.0], selected_by=["random", "alarm:longest", None])
        found = of_ledger(ledger, tool_use={0: use(search=2), 1: use(search=50)})
        assert found["tools/calls_mean_of_random"] == 2.0
        assert found["tools/of_random_n"] == 1.0
        assert "tools/calls_mean" not in found and "count/tool_calls" not in found

    def test_thinking_is_known_for_traced_rows_and_estimated_on_the_random_ones(self):
        ledger = make_ledger(n_thinking=[10, 90, None], selected_by=["random", "alarm", None])
        found = of_ledger(ledger)
        assert found["tokens/thinking/mean_of_random"] == 10.0
        assert found["tokens/thinking/of_random_n"] == 1.0
        assert of_ledger(make_ledger(n_thinking=[10, 90]))["tokens/thinking/mean"] == 50.0

    def test_errors_stand_by_the_turn_they_followed(self):
        first = make_transcript(
            [("assistant", "a"), ("tool", "Error: x"), ("assistant", "b"), ("tool", "12")]
        )
        second = make_transcript([("assistant", "a"), ("tool", "Error: x"), ("tool", "Error: y")])
        uses = {0: tool_use(first), 1: tool_use(second)}
        found = of_ledger(make_ledger(reward=[1.0, 0.0]), tool_use=uses)
        assert found["turn/0/tool_errors_mean"] == 1.5 and found["turn/1/tool_errors_mean"] == 0.0

    def test_the_tool_use_of_a_transcript(self):
        transcript = make_transcript(
            [("user", "Hi"), ("tool", "Error: x"), ("tool", "12"), ("assistant", "ok")],
            calls=[("f", {}), ("f", {})],
        )
        assert tool_use(transcript) == ToolUse(
            {"f": 2}, unparsed=0, results=2, errors=1, messages=4, errors_by_turn=(0,)
        )
