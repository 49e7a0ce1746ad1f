from __future__ import annotations

from rollout_traces.flags import Flag, curves, describe_off, flag_metrics

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


class TestCurves:
    def test_a_flags_curve_begins_at_the_first_step_that_raised_it(self):
        raised: set[str] = set()
        key = "rollout/flags/truncated_share"
        assert curves({key: 0.0, "rollout/reward/mean": 0.5}, raised) == {"rollout/reward/mean": 0.5}
        assert curves({key: 0.25}, raised) == {key: 0.25}
        assert curves({key: 0.0}, raised) == {key: 0.0}
