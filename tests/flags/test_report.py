from __future__ import annotations

from rollout_traces.flags import Flag, alerts, curves, describe_off, flag_metrics

LEAK = Flag("mask_leak", "error", "leaked")
CUT = Flag("truncated", "warn", "cut")
TOOL = Flag("tool_error", "warn", "failed")


class TestFlagMetrics:
    def test_flags_without_text_are_shares_of_all_rows(self):
        shares = flag_metrics({0: [CUT, CUT], 3: [CUT, LEAK]}, 8, "rollout")
        assert shares["rollout/flags/truncated_share"] == 2 / 8
        assert shares["rollout/flags/mask_leak_share"] == 1 / 8
        assert shares["rollout/flags/repetition_share"] == 0
        assert not [key for key in shares if "random" in key]

    def test_flags_of_the_text_are_shares_of_the_random_rows(self):
        shares = flag_metrics({}, 512, "eval-rollout", random_flags={4: [TOOL, TOOL], 9: [], 11: [], 12: []})
        assert shares["eval-rollout/flags/tool_error_random_share"] == 1 / 4
        assert shares["eval-rollout/flags/random_share_n"] == 4
        assert "eval-rollout/flags/tool_error_share" not in shares

    def test_what_is_off_has_no_key(self):
        shares = flag_metrics({}, 8, "rollout", off={"truncated": ("stop_reasons",)})
        assert "rollout/flags/truncated_share" not in shares
        assert "rollout/flags/mask_leak_share" in shares

    def test_flags_about_training_have_no_key_on_evaluation(self):
        assert "eval-rollout/flags/tied_group_share" not in flag_metrics({}, 8, "eval-rollout")

    def test_a_flag_on_request_has_a_key_when_one_of_its_thresholds_is_set(self):
        key = "rollout/flags/retokenized_random_share"
        assert key not in flag_metrics({}, 8, "rollout", random_flags={0: []})
        assert key in flag_metrics(
            {}, 8, "rollout", random_flags={0: []}, parameters={"retokenized.context": 6}
        )

    def test_no_rows_give_no_key(self):
        assert flag_metrics({}, 0, "rollout", random_flags={}) == {}


class TestDescribeOff:
    def test_flags_are_named_with_what_they_lack(self):
        off = {"stale": ("stale.limit",), "retokenized": ("tokenizer",), "template_drift": ("tokenizer",)}
        expected = "Flags that are off: stale (no stale.limit); retokenized, template_drift (no tokenizer)."
        assert describe_off(off) == expected
        assert describe_off({}) == ""


class TestAlerts:
    def test_any_leak_alerts_as_an_error(self):
        (alert,) = alerts({"rollout/flags/mask_leak_share": 1 / 512})
        assert alert.level == "error"
        assert alert.title == "mask_leak on rollout"
        assert "0.2% of the step's rollouts" in alert.text

    def test_a_mismatch_alerts_above_five_percent(self):
        assert not alerts({"rollout/flags/logprob_mismatch_share": 0.05})
        assert alerts({"rollout/flags/logprob_mismatch_share": 0.06})[0].level == "warn"

    def test_a_share_that_stays_high_alerts_once_and_again_after_it_fell(self):
        high, low = {"rollout/flags/mask_leak_share": 0.5}, {"rollout/flags/mask_leak_share": 0.0}
        assert alerts(high, previous=low)
        assert not alerts(high, previous=high)
        assert alerts(high, previous=low)

    def test_thresholds_can_be_set_and_unknown_keys_are_passed_over(self):
        shares = {
            "rollout/flags/tool_error_random_share": 0.4,
            "rollout/flags/random_share_n": 10,
            "rollout/x": 9,
        }
        assert not alerts(shares)
        (alert,) = alerts(shares, {"tool_error.alert_above": 0.3, "repetition.share": 0.1})
        assert "40.0% of 10 rollouts read at random" in alert.text
        assert alert.text.endswith("Alerts above 30.0%.")

    def test_an_alert_can_be_switched_off(self):
        shares = {"rollout/flags/mask_leak_share": 0.5, "rollout/flags/truncated_share": 0.6}
        assert [alert.title for alert in alerts(shares, {"mask_leak.alert_above": None})] == [
            "truncated on rollout"
        ]

    def test_the_worst_comes_first_and_a_flag_alerts_once_a_split(self):
        shares = {
            "rollout/flags/logprob_mismatch_share": 0.5,
            "rollout/flags/mask_leak_share": 0.1,
            "rollout/flags/mask_leak_random_share": 0.1,
        }
        assert [alert.title for alert in alerts(shares)] == [
            "mask_leak on rollout",
            "logprob_mismatch on rollout",
        ]

    def test_a_share_that_is_not_a_number_alerts_nobody(self):
        assert not alerts({"rollout/flags/mask_leak_share": float("nan")})


class TestCurves:
    def test_a_flags_curve_begins_at_the_first_step_that_raised_it(self):
        raised: set[str] = set()
        key = "rollout/flags/truncated_share"
        assert curves({key: 0.0, "rollout/reward/mean": 0.5}, raised) == {"rollout/reward/mean": 0.5}
        assert curves({key: 0.25}, raised) == {key: 0.25}
        assert curves({key: 0.0}, raised) == {key: 0.0}
