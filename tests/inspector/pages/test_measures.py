"""What Health measures, and a measure taken apart by a column."""

from __future__ import annotations

import numpy as np
import pytest

from rollout_traces.errors import StoreError
from rollout_traces.flags import needs_text
from rollout_traces.inspector.pages.health import StepSummary, flag_shares, summarise
from rollout_traces.inspector.pages.measures import FLAGGED, MEASURES, MOST_VALUES, breakdown, series_by
from rollout_traces.ledger.columns import NULL_INT, Ledger
from rollout_traces.metrics import check_keys
from rollout_traces.settings.run_settings import RunSettings


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


KEYS = [key for measure in MEASURES for key in measure.keys]


def summary(ledger: Ledger, **declared) -> StepSummary:
    """What Health says of a ledger."""
    return summarise(ledger, "rollout", KEYS, RunSettings.create(**declared))


def measured(ledger: Ledger) -> dict[str, float]:
    """All measures of a ledger."""
    return summary(ledger).metrics


class TestTies:
    def test_equal_rewards_of_two_or_more_are_tied(self):
        ledger = rows(group=[0, 0, 1, 1, 2], reward=[0.5, 0.5, 0.5, 0.6, 1.0])
        assert measured(ledger)["group/tie_share"] == 1 / 2

    def test_an_unknown_reward_is_not_tied(self):
        assert measured(rows(group=[0, 0], reward=[0.5, None]))["group/tie_share"] == 0

    def test_reasons_say_what_the_group_has_in_common(self):
        ledger = rows(
            group=[0, 0, 1, 1, 2, 2, 3, 3, 4, 4],
            reward=[1.0, 1.0, 0.0, 0.0, 0.3, 0.3, 0.0, 0.0, 0.2, 0.2],
            stop_reason=["stop"] * 6 + ["length"] * 2 + ["stop"] * 2,
            reward_status=["ok"] * 8 + ["timeout"] * 2,
        )
        assert summary(ledger).ties == {
            "all best": (1 / 5, 1),
            "all worst": (1 / 5, 1),
            "all at 0.3": (1 / 5, 1),
            "all truncated": (1 / 5, 1),
            "all failed reward": (1 / 5, 1),
        }

    def test_wasted_tokens_are_those_sampled_in_tied_groups(self):
        ledger = rows(group=[0, 0, 1, 1], reward=[1.0, 1.0, 0.0, 1.0], n_sampled=[10, 20, 30, 40])
        assert measured(ledger)["group/wasted_token_share"] == pytest.approx(0.3)


class TestShares:
    def test_truncation_discards_and_versions(self):
        ledger = rows(
            group=[0, 0, 0, 0],
            reward=[1.0] * 4,
            stop_reason=["length", "stop", "stop", None],
            discard_reason=[None, "zero_advantage", None, "zero_advantage"],
            version_min=[3, 3, 4, None],
            version_max=[4, 3, 4, None],
        )
        found = measured(ledger)
        assert found["stop/length_share"] == pytest.approx(1 / 3)
        assert found["discarded/share"] == 0.5
        assert found["staleness/mixed_share"] == pytest.approx(1 / 3)

    def test_a_failed_reward_is_not_part_of_the_mean(self):
        ledger = rows(group=[0, 0], reward=[1.0, 0.0], reward_status=["ok", "timeout"])
        assert measured(ledger)["reward/mean"] == 1.0 and measured(ledger)["reward/failed_share"] == 0.5

    def test_no_share_of_failed_rewards_where_the_step_gave_no_status(self):
        ledger = rows(group=[0, 0], reward=[1.0, 0.0], reward_status=[None, None])
        assert "reward/failed_share" not in measured(ledger)

    def test_the_update_of_three_rollouts(self):
        ledger = rows(group=[0] * 5, update_share=[0.4, 0.3, 0.1, 0.1, 0.1])
        assert measured(ledger)["update/top3_share"] == pytest.approx(0.8)

    def test_what_is_unknown_everywhere_is_absent(self):
        assert set(measured(rows(group=[0, 1]))) == {"discarded/share", FLAGGED}

    def test_flags_of_kept_rows_do_not_move_the_share_of_flagged_ones(self):
        """Seen once: Health's share of flagged rows moved with the cap."""
        ledger = rows(group=[0, 1], flags=[("tool_error",), ("truncated", "tool_error")])
        assert measured(ledger)[FLAGGED] == 0.5

    def test_every_measure_has_a_filter_or_an_order_and_is_a_metric(self):
        assert all(measure.where or measure.order for measure in MEASURES)
        check_keys([key for key in KEYS if key != FLAGGED])


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


def text(*values):
    column = np.empty(len(values), object)
    column[:] = values
    return column


def mean(ledger):
    return float(np.nanmean(ledger.get("reward")))


class TestSeriesBy:
    def test_each_value_has_its_own_line_the_most_frequent_first(self):
        ledger = Ledger(
            {
                "step": np.asarray([1, 1, 1, 2, 2]),
                "engine": text("a", "b", "b", "b", None),
                "reward": np.asarray([0.5, 0.0, 1.0, 0.25, 9.0]),
            }
        )
        assert series_by(ledger, "engine", [1, 2], mean) == [("b", [0.5, 0.25]), ("a", [0.5, None])]

    def test_unknown_values_have_no_line(self):
        ledger = Ledger(
            {"step": np.asarray([1, 1]), "version_max": np.asarray([NULL_INT, 3]), "reward": np.ones(2)}
        )
        assert series_by(ledger, "version_max", [1], mean) == [(3, [1.0])]

    def test_rare_values_are_left_out(self):
        names = [f"s{i}" for i in range(MOST_VALUES + 3)]
        ledger = Ledger(
            {"step": np.ones(len(names), int), "source": text(*names), "reward": np.ones(len(names))}
        )
        assert len(series_by(ledger, "source", [1], mean)) == MOST_VALUES


class TestABreakdownOfTheRun:
    """Three steps of eight rollouts, as the store's tests log them."""

    def test_has_a_number_a_step_for_each_value_of_a_column(self, ask):
        assert ask(breakdown, name="reward/mean", by="prompt_key") == {
            "by": "prompt_key",
            "steps": [0, 1, 2],
            "series": [["prompt-0", [0.5] * 3], ["prompt-1", [0.25] * 3]],
        }
        assert ask(breakdown, name="reward/mean", by="stop_reason")["series"] == []

    def test_counts_flagged_rollouts(self, ask):
        found = ask(breakdown, name=FLAGGED, by="prompt_key")
        assert found["series"] == [["prompt-0", [0.25] * 3], ["prompt-1", [0.5] * 3]]

    def test_of_a_measure_or_by_a_column_that_there_is_not_is_refused(self, ask):
        with pytest.raises(StoreError, match=r"no measure 'nope' by 'source'\. Columns: source, engine"):
            ask(breakdown, name="nope", by="source")
        with pytest.raises(StoreError, match="no measure 'reward/mean' by 'uid'"):
            ask(breakdown, name="reward/mean", by="uid")
