"""How many tokens went into thinking."""

from __future__ import annotations

from rollout_traces.decode import TranscriptDecoder
from rollout_traces.ledger.text_facts import blocks, thinking_tokens
from tests.generator import tiny_tokenizer


def spent(answer: str) -> int:
    tokenizer = tiny_tokenizer("qwen3")
    prompt = tokenizer.encode(
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n", add_special_tokens=False
    )
    written = tokenizer.encode(f"{answer}<|im_end|>", add_special_tokens=False)
    mask = [0] * len(prompt) + [1] * len(written)
    return thinking_tokens(TranscriptDecoder(tokenizer).decode(prompt + written, loss_mask=mask))


class TestThinkingTokens:
    def test_a_turn_of_two_blocks_counts_both(self):
        first, second = "<think>\nWait a moment.\n</think>\n\n", "<think>\nLet me see.\n</think>\n\nFour."
        assert spent(f"{first}{second}") == spent(f"{first}Four.") + spent(second) > 4

    def test_what_is_said_outside_does_not_count(self):
        assert spent("Four.") == 0

    def test_blank_lines_inside_a_block_belong_to_it(self):
        assert blocks("<think>a\n\nb</think>c", "a\n\nb") == [(7, 11)]
        assert blocks("<think>a</think>x<think>b</think>c", "a\n\nb") == [(7, 8), (24, 25)]

    def test_a_piece_that_is_not_there_is_left_out(self):
        assert blocks("<think>a</think>", "z\n\na") == [(7, 8)]
