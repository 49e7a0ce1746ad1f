from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Annotated

import numpy as np
import pytest

from rollout_traces.capture.host_copy import capture
from rollout_traces.errors import ConfigError
from rollout_traces.flags import REGISTRY, make_flag, population_flag, row_flag
from rollout_traces.flags.detect import (
    FlagErrors,
    Population,
    TracedRow,
    flag_population,
    flag_row,
    off_flags,
)
from rollout_traces.flags.registry import check_parameters
from rollout_traces.model.batch import RolloutBatch
from rollout_traces.model.transcript import Flag
from tests.flags.steps import STEP, population_of


def register_short(min_tokens: int = 3) -> None:
    @population_flag("very_short", family="mine", severity="info", meaning="few sampled tokens")
    def very_short(
        population: Population, *, below: Annotated[int, "sampled tokens that are enough"] = min_tokens
    ) -> Iterator[tuple[int, Flag]]:
        for row, n in enumerate(population.ledger.get("n_sampled")):
            if n < below:
                yield row, make_flag("very_short", f"{n} sampled tokens.", start=n * 0, stop=n)


class TestDefinitions:
    def test_every_flag_of_the_definitions_exists_with_its_family_and_severity(self):
        expected = {
            "mask": {
                "mask_leak": "error",
                "untrained_sampled": "warn",
                "row_masked": "info",
                "eos_untrained": "warn",
                "mask_shifted": "error",
                "ends_unsampled": "info",
                "pad_attended": "error",
            },
            "text": {
                "truncated": "warn",
                "no_end_marker": "warn",
                "repetition": "warn",
                "loop": "warn",
                "gibberish": "warn",
                "empty_completion": "warn",
                "tool_call_unparsed": "warn",
                "tool_error": "warn",
                "thinking_unclosed": "warn",
            },
            "policy": {
                "stale": "warn",
                "mixed_versions": "info",
                "logprob_mismatch": "warn",
                "logprob_out_of_range": "error",
                "version_order": "warn",
                "sampled_foreign_turn": "warn",
                "header_drift": "warn",
                "bos_anomaly": "warn",
                "nonfinite": "error",
                "retokenized": "info",
                "template_drift": "warn",
                "prefix_broken": "error",
            },
            "group": {
                "group_prompt_mismatch": "warn",
                "tied_group": "warn",
                "noise_amplified_group": "warn",
                "reward_outlier": "info",
                "duplicate_completions": "warn",
                "dominates_update": "warn",
            },
        }
        for family, flags in expected.items():
            assert {n: s.severity for n, s in REGISTRY.items() if s.family == family} == flags

    def test_those_for_the_whole_population_need_no_text(self):
        whole = {name for name, spec in REGISTRY.items() if spec.population is not None}
        assert whole >= {
            "mask_leak", "untrained_sampled", "row_masked", "ends_unsampled", "truncated", "repetition",
            "empty_completion", "stale", "mixed_versions", "logprob_mismatch", "nonfinite", "tied_group",
            "noise_amplified_group", "reward_outlier", "duplicate_completions", "dominates_update",
        }  # fmt: skip

    def test_both_detectors_of_a_flag_say_the_same_of_it(self):
        for name in ("mask_leak", "logprob_mismatch", "empty_completion"):
            assert REGISTRY[name].population is not None
            assert REGISTRY[name].row is not None

    def test_both_detectors_have_the_same_thresholds(self):
        spec = REGISTRY["logprob_mismatch"]
        assert spec.population.parameters == spec.row.parameters

    def test_every_threshold_has_a_meaning(self):
        for spec in REGISTRY.values():
            for parameter in spec.parameters:
                assert parameter.meaning, f"{spec.name}.{parameter.name}"


class TestRegistering:
    def test_a_flag_of_ones_own_is_found_and_takes_its_threshold(self, own_flags, step):
        register_short()
        batch = step.batch()
        assert not flag_population(population_of(batch), only=["very_short"])
        found = flag_population(population_of(batch, {"very_short.below": 10_000}), only=["very_short"])
        assert set(found) == set(range(batch.n_rows))
        assert found[0][0].severity == "info"
        assert type(found[0][0].stop) is int

    def test_a_taken_name_is_refused(self, own_flags):
        register_short()
        with pytest.raises(ConfigError, match="'very_short' is registered already"):
            register_short()

    def test_a_flag_may_have_both_detectors(self, own_flags):
        register_short()

        @row_flag("very_short", family="mine", severity="info", meaning="few sampled tokens")
        def in_text(row: TracedRow):
            return []

        assert REGISTRY["very_short"].population is not None
        assert REGISTRY["very_short"].row is not None

    def test_an_unknown_threshold_is_refused_by_name(self):
        check_parameters({"repetition.share": 0.7, "stale.limit": 4})
        with pytest.raises(ConfigError, match=r"repetition has no parameter 'shares'.*repetition\.share"):
            check_parameters({"repetition.shares": 0.7})
        with pytest.raises(ConfigError, match="no flag 'repeat'"):
            check_parameters({"repeat.share": 0.7})

    def test_a_threshold_of_another_kind_is_refused(self):
        check_parameters({"stale.limit": None, "no_end_marker.explained_by": ["length"]})
        with pytest.raises(ConfigError, match=r"'repetition\.share': seen '0\.7'\. Expected a number"):
            check_parameters({"repetition.share": "0.7"})
        with pytest.raises(ConfigError, match=r"seen None\. Expected a number"):
            check_parameters({"repetition.share": None})
        with pytest.raises(ConfigError, match=r"seen 'length'\. Expected a list"):
            check_parameters({"no_end_marker.explained_by": "length"})

    def test_every_flag_has_an_alert_threshold(self, own_flags):
        check_parameters({f"{name}.alert_above": 0.5 for name in REGISTRY})
        check_parameters({"truncated.alert_above": None})
        with pytest.raises(ConfigError, match=r"seen 30\. Expected a share from 0 to 1"):
            check_parameters({"truncated.alert_above": 30})
        with pytest.raises(ConfigError, match="'alert_above', which every flag has"):

            @row_flag("own", family="mine", severity="info", meaning="takes the name")
            def own(row: TracedRow, *, alert_above: float = 1.0):
                return []


class TestContainment:
    def test_a_detector_that_raises_costs_its_own_flag_only(self, own_flags, step, decoder):
        @population_flag("broken", family="mine", severity="info", meaning="raises")
        def broken(population: Population):
            raise ZeroDivisionError("on purpose")

        @row_flag("broken_row", family="mine", severity="info", meaning="raises")
        def broken_row(row: TracedRow):
            yield Flag("broken_row", "info", "first")
            raise KeyError("on purpose")

        step.rows[5].tracks["loss_mask"][:] = 0
        batch = step.batch()
        errors = FlagErrors()
        found = flag_population(population_of(batch), errors=errors)
        assert "row_masked" in {flag.name for flag in found[5]}
        transcript = decoder.decode_batch(batch, [1])[0]
        flag_row(TracedRow(transcript, batch, 1), errors=errors)
        flag_row(TracedRow(transcript, batch, 1), errors=errors)
        assert errors.counts == {"broken": 1, "broken_row": 2}
        assert errors.first["broken"] == "ZeroDivisionError: on purpose"
        assert errors.total == 3

    @pytest.mark.parametrize(
        "answer", [[(0, "not a flag")], [(99, Flag("odd", "info", "row 99"))], [("0", None)], [1], None]
    )
    def test_a_detector_that_answers_nonsense_is_counted(self, own_flags, step, answer):
        @population_flag("odd", family="mine", severity="info", meaning="nonsense")
        def odd(population: Population):
            return answer

        errors = FlagErrors()
        flag_population(population_of(step.batch()), only=["odd"], errors=errors)
        assert errors.counts == {"odd": 1}

    def test_rows_without_tokens_raise_nothing(self, step):
        for row in step.rows[:2]:
            row.splice(0, len(row), [], sampled=False)
        errors = FlagErrors()
        for rows in (step.rows[:1], step.rows[:6]):
            short = replace(step, rows=rows)
            flag_population(population_of(short.batch(), {"stale.limit": 1}), errors=errors)
        assert not errors.counts, errors.first

    def test_a_hand_over_without_rows_raises_nothing(self):
        nothing = np.zeros((0, 4), np.int64)
        batch = RolloutBatch(
            nothing, nothing, nothing, logprobs=nothing * 0.0, rewards=np.zeros(0), extras=[]
        )
        errors = FlagErrors()
        assert flag_population(population_of(capture([batch], step=1, split="rollout")), errors=errors) == {}
        assert not errors.counts, errors.first


class TestMissingInputs:
    def test_what_is_off_says_what_it_lacks(self, step):
        off = off_flags(step.batch(without=("prox_logprobs", "versions", "rewards", "stop_reasons")))
        assert off["logprob_mismatch"] == ("prox_logprobs",)
        assert off["mixed_versions"] == ("versions",)
        assert off["tied_group"] == ("rewards",)
        assert off["truncated"] == ("stop_reasons",)
        assert off["untrained_sampled"] == ("response_mask",)
        assert off["template_drift"] == ("tokenizer",)

    def test_a_flag_with_two_detectors_is_on_while_one_can_work(self, step):
        assert "mask_leak" not in off_flags(step.batch(without=("versions",)))

    def test_a_threshold_without_a_default_switches_its_flag_on(self, step):
        batch = step.batch()
        assert off_flags(batch)["stale"] == ("stale.limit",)
        assert "stale" not in off_flags(batch, parameters={"stale.limit": 2})

    def test_a_tokenizer_switches_on_what_encodes_again(self, step, tokenizer):
        off = off_flags(step.batch(), tokenizer=tokenizer)
        assert "template_drift" not in off
        assert "retokenized" not in off
        assert "retokenized" in off_flags(step.batch(), only=["retokenized"])
        assert "retokenized" in off_flags(step.batch(), parameters={"retokenized.context": 3})

    def test_staleness_is_unknown_without_the_trained_version(self, step):
        assert off_flags(step.batch(train_version=None), parameters={"stale.limit": STEP})["stale"] == (
            "train_version",
        )
