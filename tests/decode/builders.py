"""Rows written as pieces of text with their mask, and what every transcript must satisfy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from rollout_traces.decode import TranscriptDecoder
from rollout_traces.model.transcript import Transcript
from tests.decode.toy import chatml_tokenizer, special_tokens_of, toy_tokenizer, trl_templates

S, E = "<|im_start|>", "<|im_end|>"


@dataclass(frozen=True)
class Row:
    """A rollout written by hand.

    Attributes:
        ids: its token ids.
        mask: bool, the mask of each token's piece.
        edges: token positions where the pieces begin, and the end.
    """

    ids: np.ndarray
    mask: np.ndarray
    edges: list[int]


def row(tokenizer: Any, *pieces: tuple[int, str]) -> Row:
    """Encodes `(mask, text)` pieces one by one, as a rollout engine and an environment would."""
    encoded = [tokenizer.encode(text, add_special_tokens=False) for _, text in pieces]
    lengths = [len(ids) for ids in encoded]
    return Row(
        np.array([i for ids in encoded for i in ids], np.int64),
        np.repeat([bool(mask) for mask, _ in pieces], lengths),
        [0, *np.cumsum(lengths).tolist()],
    )


@lru_cache(maxsize=1)
def chatml() -> tuple[Any, TranscriptDecoder]:
    """A ChatML tokenizer and its decoder."""
    tokenizer = chatml_tokenizer()
    return tokenizer, TranscriptDecoder(tokenizer)


@lru_cache(maxsize=64)
def of_template(name: str, *, special: bool = True) -> tuple[Any, TranscriptDecoder]:
    """A toy tokenizer with one of TRL's templates, its markers special tokens or plain text."""
    template = trl_templates()[name]
    tokens = special_tokens_of(template) if special else ()
    tokenizer = toy_tokenizer(template, tokens, bos_token="<|bos|>", eos_token="<|eos|>", pad_token="<|pad|>")
    return tokenizer, TranscriptDecoder(tokenizer)


def said(transcript: Transcript) -> list[tuple[str, str]]:
    """Role and content of every turn."""
    return [(turn.role, turn.content) for turn in transcript.turns]


def check_invariants(transcript: Transcript, decoder: TranscriptDecoder, ids: Sequence[int]) -> None:
    """What holds for every transcript: a partition in tokens, bytes and characters; encodable text."""
    n = len(ids)
    position = 0
    for turn in transcript.turns:
        assert turn.start == position < turn.stop
        assert turn.start <= turn.body_start <= turn.body_stop <= turn.stop
        assert turn.raw == turn.raw_bytes.decode("utf-8", "replace")
        assert 0 <= turn.n_sampled <= turn.stop - turn.start
        for text in (turn.content, turn.thinking or "", turn.name or "", turn.tool_call_id or ""):
            text.encode("utf-8")
        for call in turn.tool_calls:
            assert turn.start <= call.start <= call.stop <= turn.stop
            call.raw.encode("utf-8")
        position = turn.stop
    assert position == n
    data = decoder.detokenizer.detokenize(np.asarray(ids, np.int64)).data
    assert b"".join(turn.raw_bytes for turn in transcript.turns) == data
    tokens = transcript.tokens
    assert tokens.char_starts.tolist() == [0, *tokens.char_stops.tolist()][:n]
    assert (tokens.char_starts <= tokens.char_stops).all()
    assert n == 0 or tokens.char_stops[-1] == len(transcript.raw)
    assert "".join(transcript.token_texts()) == transcript.raw
    transcript.messages()
