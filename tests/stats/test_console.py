"""What a terminal shows of a commit and of a rollout."""

from __future__ import annotations

import io
import re
import threading

import numpy as np
import pytest
from rich.console import Console

from rollout_traces.model.text import clipped_text, harmless, one_line
from rollout_traces.stats.console import (
    CompletionPrinter,
    copy_rows,
    mask_line,
    number,
    print_scalars,
    rollout_overview,
    token_line,
)
from tests.builders import make_transcript
from tests.generator import BatchPlan, rollout_batch, tiny_tokenizer
from tests.metrics.builders import make_ledger


def printed(renderable, width: int = 120) -> str:
    out = io.StringIO()
    Console(file=out, width=width, color_system=None).print(renderable)
    return out.getvalue()


class TestScalars:
    def test_values_are_aligned_and_sorted_by_key(self):
        out = io.StringIO()
        print_scalars({"b": 2.0, "a": 0.123456}, title="step 3", console=Console(file=out, width=14))
        lines = [line for line in out.getvalue().splitlines() if re.search(r"[ab] ", line)]
        assert [line.split()[0] for line in lines] == ["a", "b"]
        assert len({len(line.rstrip()) for line in lines}) == 1

    @pytest.mark.parametrize(
        ("value", "text"), [(512.0, "512"), (0.123456, "0.1235"), (1e-9, "1e-09"), (-3.0, "-3")]
    )
    def test_numbers_are_short(self, value, text):
        assert number(value) == text

    def test_nothing_to_show_prints_nothing(self):
        out = io.StringIO()
        print_scalars({}, title="step 3", console=Console(file=out))
        assert out.getvalue() == ""


class TestRollout:
    transcript = make_transcript(
        [
            ("system", "Be brief."),
            ("user", "What is 2+3?"),
            ("tool", "Error: no"),
            ("assistant", "It is [bold]5[/bold]"),
        ],
        thinking="easy",
        calls=[("calculator", {"expression": "2+3"})],
    )
    ledger = make_ledger(reward=[1.0], n_prompt=[9], n_sampled=[4], stop_reason=["stop"], advantage=[0.5])

    def test_it_shows_turns_calls_results_outcome_tokens_and_mask(self):
        text = printed(rollout_overview(self.transcript, self.ledger, 0, title="rollout, step 3"))
        for part in (
            "What is 2+3?",
            "thinking: easy",
            "call: calculator",
            "tool: Error: no",
            "reward 1, advantage +0.5",
        ):
            assert part in text, part
        assert "9 prompt + 4 sampled tokens, stopped by stop" in text
        assert "It is [bold]5[/bold]" in text  # markup of a rollout is text

    def test_it_is_bounded_whatever_the_rollout_holds(self):
        long = make_transcript(
            [("user", "x " * 50_000), ("tool", "y" * 50_000), ("assistant", "z " * 50_000)]
        )
        assert len(printed(rollout_overview(long, self.ledger, 0))) < 6_000

    def test_a_rollout_cannot_steer_the_terminal(self):
        evil = make_transcript([("user", "\x1b[2J\x1b]0;owned\x07 \u202e"), ("assistant", "\x9b31m")])
        text = printed(rollout_overview(evil, self.ledger, 0))
        assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]", text)
        assert "\\x1b[2J" in text

    def test_the_loss_mask_is_said_as_runs(self):
        transcript = make_transcript([("user", "Hi"), ("assistant", "a b")])
        mask = transcript.tokens.loss_mask
        first, last = np.flatnonzero(mask)[[0, -1]]
        assert (
            mask_line(transcript)
            == f"loss mask: {mask.sum()} of {len(mask)} tokens trained, at {first}:{last + 1}"
        )

    def test_the_first_tokens_stand_with_their_text(self):
        assert token_line(self.transcript).startswith('tokens 100:"<|system|>')


class TestText:
    def test_clipping_says_what_is_missing(self):
        assert clipped_text("a" * 90, 60) == "a" * 40 + " … 30 characters … " + "a" * 20

    def test_newlines_stay_in_text_and_are_spelled_out_on_a_line(self):
        assert harmless("a\nb\t\r") == "a\nb\t\\x0d" and one_line("a\nb", 9) == "a\\nb"

    def test_surrogates_are_spelled_out(self):
        assert harmless("\ud800") == "\\ud800"


class TestPrinter:
    def test_it_prints_no_more_than_its_limit_and_another_group_each_step(self):
        tokenizer = tiny_tokenizer()
        out = io.StringIO()
        printer = CompletionPrinter(tokenizer, 2, Console(file=out, width=200, color_system=None))
        groups = [
            rollout_batch(tokenizer, BatchPlan(n_groups=1, group_size=4, seed=seed)) for seed in range(2)
        ]
        for step in range(2):
            printer.show(groups, step=step, split="rollout")
        printer.close()
        assert out.getvalue().count("loss mask:") == 4 and printer.skipped == 0
        questions = set(re.findall(r"(\w+ has \d+ \w+) and gets", out.getvalue()))
        assert len(questions) == 2

    def test_what_it_was_given_may_change_at_once(self):
        batch = rollout_batch(tiny_tokenizer())
        rows = copy_rows(batch, 1, 3)
        before = batch.input_ids[1:3].clone()
        batch.input_ids.zero_()
        assert rows.n_rows == 2 and (rows.input_ids == before).all()
        assert rows.stop_reasons == batch.stop_reasons[1:3]
        assert rows.train_version == batch.train_version

    def test_when_it_is_behind_steps_are_skipped_and_counted(self):
        printer = CompletionPrinter(
            object(), 1, Console(file=io.StringIO())
        )  # nothing can be decoded with this
        batch = rollout_batch(tiny_tokenizer())
        for step in range(20):
            printer.show(batch, step=step, split="rollout")
        printer.close()
        assert printer.skipped == 20

    def test_a_terminal_that_takes_nothing_does_not_hold_the_end_of_training_up(self):
        writing, released = threading.Event(), threading.Event()

        class Stuck(io.StringIO):
            def write(self, text: str) -> int:
                writing.set()
                released.wait(60)
                return len(text)

        tokenizer = tiny_tokenizer()
        printer = CompletionPrinter(tokenizer, 1, Console(file=Stuck()))
        batch = rollout_batch(tokenizer)
        printer.show(batch, step=0, split="rollout")
        assert writing.wait(60)
        for step in range(1, 4):
            printer.show(batch, step=step, split="rollout")
        closing = threading.Thread(target=printer.close, args=(0.1,), daemon=True)
        closing.start()
        closing.join(30)
        still_closing = closing.is_alive()
        released.set()
        assert not still_closing
        assert printer.skipped == 3
