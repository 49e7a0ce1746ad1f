"""Sound data raises no flag of severity error, and little else."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import jinja2
import numpy as np
import pytest

from rollout_traces.capture.host_copy import capture
from rollout_traces.decode import TranscriptDecoder
from rollout_traces.flags.detect import TracedRow, flag_row
from rollout_traces.model.batch import RolloutBatch
from tests import generator
from tests.flags.conftest import decoder_of, tiny_steps
from tests.flags.steps import Flagged, desk_conversations, find_flags, healthy_step

EXPECTED = {"tool_error", "duplicate_completions", "template_drift", "loop"}
"""What is true of the healthy data: tools fail, similar answers, thinking kept in history, a flight booked four times."""


def raised(found: Flagged, severity: str) -> Counter[str]:
    assert not found.errors.total, found.errors.first
    return Counter(flag.name for flags in found.flags.values() for flag in flags if flag.severity == severity)


def templates() -> list[str]:
    import trl

    return sorted(path.stem for path in (Path(trl.__file__).parent / "chat_templates").glob("*.jinja"))


class TestHealthyConversations:
    @pytest.mark.parametrize("origin", ["made up", "desk"])
    def test_no_error_and_no_unexpected_warning(self, origin, tokenizer, decoder):
        found = find_flags(tiny_steps()[origin].batch(), decoder, tokenizer)
        assert not raised(found, "error")
        assert set(raised(found, "warn")) <= EXPECTED

    @pytest.mark.parametrize(
        "without", [("versions",), ("versions", "turn_ids"), ("logprobs", "prox_logprobs")]
    )
    def test_no_error_when_inputs_are_missing(self, without, step, tokenizer, decoder):
        found = find_flags(step.batch(without=without), decoder, tokenizer)
        assert not raised(found, "error")

    def test_no_error_on_the_generated_step_in_any_padding(self, tokenizer, decoder):
        for padding in ("left", "right", "both"):
            batch = generator.rollout_batch(
                tokenizer, generator.BatchPlan(n_groups=1, group_size=6, padding=padding, seed=3)
            )
            found = find_flags(capture([batch], step=10, split="rollout"), decoder, tokenizer)
            assert not raised(found, "error")

    @pytest.mark.slow
    @pytest.mark.parametrize("name", ["qwen2_5", "qwen3", "llama3_2"])
    def test_no_error_on_desk_conversations_with_real_tokenizers(self, name, real_tokenizer):
        tokenizer = real_tokenizer(name)
        step = healthy_step(tokenizer, desk_conversations(), "desk")
        found = find_flags(step.batch(), decoder_of(name), tokenizer)
        assert not raised(found, "error")
        assert set(raised(found, "warn")) <= EXPECTED


class TestPatternsOfTrainers:
    """What sound trainers hand over, odd as it looks."""

    def test_row_per_call_exports_with_untrained_history(self, step, tokenizer, decoder):
        for row in step.rows:
            start = row.runs()[-1][0]
            row.sampled[:start] = False
            for key, value in (("loss_mask", 0), ("versions", -1), ("turn_ids", -1)):
                row.tracks[key][:start] = value
        for without in ((), ("versions", "turn_ids")):
            found = find_flags(step.batch(without=without), decoder, tokenizer)
            assert not raised(found, "error")
            assert set(raised(found, "warn")) <= EXPECTED

    def test_no_newline_between_an_end_marker_and_the_next_opener(self, step, tokenizer, decoder):
        row, newline = step.rows[5], step.encode("\n")
        for _, stop in reversed(row.runs()[:-1]):
            row.splice(stop, stop + len(newline), [], sampled=False)
        found = find_flags(step.batch(), decoder, tokenizer)
        assert not raised(found, "error")
        assert {flag.name for flag in found.flags[5] if flag.severity == "warn"} <= EXPECTED

    def test_a_turn_cut_by_length_with_an_end_marker_that_was_not_sampled(self, step, tokenizer, decoder):
        row = step.rows[5]
        stop = row.runs()[0][1]
        for key, value in (("loss_mask", 0), ("versions", -1), ("turn_ids", -1)):
            row.tracks[key][stop - 1] = value
        found = find_flags(step.batch(), decoder, tokenizer)
        assert not raised(found, "error")
        assert set(raised(found, "warn")) <= EXPECTED

    def test_overlong_rows_that_are_masked_and_rows_that_end_on_a_result(self, step, tokenizer, decoder):
        step.rows[5].tracks["loss_mask"][:] = 0
        row = step.rows[6]
        row.splice(row.runs()[-1][0], len(row), [], sampled=False)
        found = find_flags(step.batch(), decoder, tokenizer)
        assert not raised(found, "error")
        assert set(raised(found, "warn")) <= EXPECTED
        assert {"row_masked", "ends_unsampled"} <= set(raised(found, "info"))


class TestEveryTemplate:
    """A conversation that the template itself wrote is sound under the template."""

    @pytest.mark.parametrize("name", templates())
    def test_its_own_rendering_raises_no_error_and_no_drift(self, name):
        tokenizer = generator.tiny_tokenizer(name)
        decoder = TranscriptDecoder(tokenizer)
        for plan in ({"n_calls": 1, "n_retries": 1}, {"n_calls": 2}, {"n_calls": 0, "n_retries": 2}):
            text = _render(tokenizer, list(generator.conversation(3, **plan).messages))
            if text is None:
                continue
            ids = np.asarray(tokenizer.encode(text, add_special_tokens=False))
            loss = np.zeros(len(ids), bool)
            for turn in decoder.decode(ids).turns:
                loss[turn.body_start : turn.stop] |= turn.role == "assistant"
            ones = np.ones((1, len(ids)), bool)
            batch = RolloutBatch(ids[None], ones, loss[None], stop_reasons=["stop"])
            host = capture([batch], step=1, split="rollout")
            row = TracedRow(decoder.decode_batch(host, [0])[0], host, 0, tokenizer=tokenizer)
            flags = flag_row(row)
            assert not [flag for flag in flags if flag.severity == "error"]
            assert not [flag for flag in flags if flag.name in ("template_drift", "no_end_marker")]


def _render(tokenizer, messages):
    for shape in (messages, messages[1:]):
        try:
            return tokenizer.apply_chat_template(shape, tokenize=False)
        except (jinja2.TemplateError, TypeError):
            pass
    return None
