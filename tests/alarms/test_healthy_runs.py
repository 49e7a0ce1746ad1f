"""Healthy runs of real conversations: no flag of severity error, hardly a row that wears anything, no alert."""

from __future__ import annotations

import pytest

from rollout_traces.decode import TranscriptDecoder
from tests.alarms.healthy_runs import TOKENIZERS, Looked, look, real_run
from tests.decode.conftest import real_tokenizer  # noqa: F401  a fixture
from tests.generator import tiny_tokenizer


def is_quiet(seen: Looked, name: str) -> bool:
    print(seen.line(name))
    return not seen.n_errors and seen.share <= 0.05 and not seen.alerts and not seen.incidents


def test_thirty_steps_with_a_small_tokenizer_are_quiet():
    tokenizer = tiny_tokenizer("qwen3")
    assert is_quiet(look(real_run(tokenizer, TranscriptDecoder(tokenizer), 30)), "small")


@pytest.mark.slow
@pytest.mark.parametrize("name", TOKENIZERS)
def test_a_hundred_steps_with_a_real_tokenizer_are_quiet(name, real_tokenizer):  # noqa: F811
    tokenizer = real_tokenizer(name)
    seen = look(real_run(tokenizer, TranscriptDecoder(tokenizer), 100))
    assert seen.n_rows >= 2400 and is_quiet(seen, name)
