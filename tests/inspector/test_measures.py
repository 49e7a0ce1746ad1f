"""What Health measures."""

from __future__ import annotations

import numpy as np
import pytest

from rollout_traces.inspector.pages.health import flag_shares, needs_text, summarise
from rollout_traces.inspector.pages.measures import MEASURES, tie_reasons, tied_rows
from rollout_traces.ledger.columns import NULL_INT, Ledger


def rows(**columns) -> Ledger:
    """A ledger of plain lists."""
    made = {}
    for name, values in columns.items():
        if name in ("reward", "update_share", "mismatch_k3", "mismatch_abs_max"):
            made[name] = np.asarray([np.nan if v is None else v for v in values], float)
        elif all(isinstance(v, (int, type(None))) for v in values) and name not in (
            "stop_reason",
            "discard_reason",
            "trace_uid",
            "selected_by",
            "reward_status",
        ):
            made[name] = np.asarray([NULL_INT if v is None else v for v in values], np.int64)
        else:
            column = np.empty(len(values), object)
            column[:] = values
            made[name] = column
    return Ledger(made)


def measured(ledger: Ledger) -> dict[str, float | None]:
    """All measures of a ledger."""
    return summarise(ledger, 0.0, 1.0)["measures"]


class TestTies:
    def test_equal_rewards_of_two_or_more_are_tied(self):
        ledger = rows(group=[0, 0, 1, 1, 2], reward=[0.5, 0.5, 0.5, 0.6, 1.0])
        assert tied_rows(ledger).tolist() == [True, True, False, False, False]
        assert measured(ledger)["tied"] == pytest.approx(1 / 3)

    def test_an_unknown_reward_or_group_is_not_tied(self):
        assert not tied_rows(rows(group=[0, 0], reward=[0.5, None])).any()
        assert not tied_rows(rows(group=[None, None], reward=[0.5, 0.5])).any()

    def test_reasons_say_what_the_group_has_in_common(self):
        ledger = rows(
            group=[0, 0, 1, 1, 2, 2, 3, 3, 4, 4],
            reward=[1.0, 1.0, 0.0, 0.0, 0.3, 0.3, 0.0, 0.0, 0.2, 0.2],
            stop_reason=["stop"] * 6 + ["length"] * 2 + ["stop"] * 2,
            reward_status=["ok"] * 8 + ["timeout"] * 2,
        )
        assert tie_reasons(ledger, 0.0, 1.0) == {
            "all best": 1,
            "all worst": 1,
            "all at 0.3": 1,
            "all truncated": 1,
            "all failed to be rewarded": 1,
        }

    def test_wasted_tokens_are_those_sampled_in_tied_groups(self):
        ledger = rows(group=[0, 0, 1, 1], reward=[1.0, 1.0, 0.0, 1.0], n_sampled=[10, 20, 30, 40])
        assert measured(ledger)["wasted"] == pytest.approx(0.3)


class TestShares:
    def test_truncation_discards_and_versions(self):
        ledger = rows(
            group=[0, 0, 0, 0],
            reward=[1.0] * 4,
            stop_reason=["length", "stop", "stop", "stop"],
            discard_reason=[None, "zero_advantage", None, "zero_advantage"],
            version_min=[3, 3, 4, None],
            version_max=[4, 3, 4, None],
            staleness_max=[2, 1, 0, None],
        )
        found = measured(ledger)
        assert found["truncated"] == 0.25
        assert found["discarded"] == 0.5
        assert found["mixed"] == pytest.approx(1 / 3)
        assert found["staleness"] == 1.0

    def test_the_update_of_three_rollouts(self):
        assert measured(rows(group=[0] * 5, update_share=[0.4, 0.3, 0.1, 0.1, 0.1]))["top3"] == pytest.approx(
            0.8
        )

    def test_what_is_unknown_everywhere_is_none(self):
        found = measured(rows(group=[0, 1]))
        for key in (
            "reward",
            "truncated",
            "staleness",
            "mixed",
            "mismatch",
            "top3",
            "tool_errors",
            "reward_failures",
        ):
            assert found[key] is None, key

    def test_every_measure_has_a_filter_or_an_order(self):
        assert all(measure.where or measure.order for measure in MEASURES)


class TestFlagShares:
    def test_flags_without_text_are_shares_of_all(self):
        flags = [("truncated",), (), (), ()]
        assert not needs_text("truncated")
        assert flag_shares(rows(flags=flags, trace_uid=[None] * 4)) == {"truncated": (0.25, 1)}

    def test_flags_that_need_text_are_estimated_from_the_random_part(self):
        assert needs_text("tool_error")
        ledger = rows(
            flags=[("tool_error",), ("tool_error",), (), ()],
            trace_uid=["a", "b", "c", None],
            selected_by=["alarm", "random", "random", None],
        )
        assert flag_shares(ledger) == {"tool_error": (0.5, 2)}
