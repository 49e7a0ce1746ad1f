"""Conversations encoded with real tokenizers and their own templates come back turn by turn."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from rollout_traces.decode import TranscriptDecoder
from tests.decode.builders import check_invariants
from tests.decode.conversations import Messages, desk_conversations, own_conversations
from tests.decode.fidelity import RULES, encode, read, score

pytestmark = pytest.mark.slow

Load = Callable[[str], Any]


def both_sets() -> list[Messages]:
    """Our own conversations, and the real ones where they are found."""
    return own_conversations() + desk_conversations()


@pytest.mark.parametrize("name", RULES)
class TestRealTokenizers:
    def test_every_turn_equals_what_the_template_rendered(self, name: str, real_tokenizer: Load) -> None:
        result = score(name, real_tokenizer(name), both_sets())
        assert result.turns > 300
        assert result.equal == result.turns, "\n".join(result.misses)
        assert result.calls_equal == result.calls > 50

    def test_a_random_cut_keeps_every_whole_turn(self, name: str, real_tokenizer: Load) -> None:
        tokenizer = real_tokenizer(name)
        decoder = TranscriptDecoder(tokenizer)
        rng = np.random.default_rng(5)
        for messages in both_sets()[::3]:
            encoded = encode(name, tokenizer, messages)
            whole = decoder.decode(encoded.ids, loss_mask=encoded.loss_mask)
            first, last = sorted(rng.integers(0, len(encoded.ids), 2).tolist())
            cut = decoder.decode(encoded.ids[first:last], loss_mask=encoded.loss_mask[first:last])
            check_invariants(cut, decoder, encoded.ids[first:last])
            kept = {(turn.start + first, read(turn)[:2]) for turn in cut.turns}
            inside = [turn for turn in whole.turns if first <= turn.start and turn.stop < last]
            assert all((turn.start, read(turn)[:2]) in kept for turn in inside[1:])

    def test_sampled_tokens_are_the_assistants_alone(self, name: str, real_tokenizer: Load) -> None:
        tokenizer = real_tokenizer(name)
        decoder = TranscriptDecoder(tokenizer)
        for messages in own_conversations(6):
            encoded = encode(name, tokenizer, messages)
            transcript = decoder.decode(encoded.ids, loss_mask=encoded.loss_mask)
            sampled = {turn.role for turn in transcript.turns if turn.n_sampled}
            assert sampled == {"assistant"}
            assert sum(turn.n_sampled for turn in transcript.turns) == encoded.loss_mask.sum()

    def test_random_ids_of_the_whole_vocabulary_give_valid_transcripts(
        self, name: str, real_tokenizer: Load
    ) -> None:
        tokenizer = real_tokenizer(name)
        decoder = TranscriptDecoder(tokenizer)
        rng = np.random.default_rng(6)
        for _ in range(300):
            ids = rng.integers(-2, decoder.detokenizer.n_ids + 2, rng.integers(0, 60))
            check_invariants(decoder.decode(ids, loss_mask=rng.random(len(ids)) < 0.5), decoder, ids)
