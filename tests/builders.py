"""Small hand-made parts for tests that need no tokenizer."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from rollout_traces.model.packed_batch import PackedBatch
from rollout_traces.model.transcript import TokenTrack, ToolCall, Transcript, Turn

MARKERS = {
    role: (f"<|{role}|>\n", "<|end|>\n") for role in ("system", "user", "assistant", "tool", "context")
}


def make_transcript(
    turns: Sequence[tuple[str, str]],
    *,
    thinking: str | None = None,
    calls: Sequence[tuple[str, dict]] = (),
    **track: Any,
) -> Transcript:
    """A transcript with one token a word or marker; thinking and calls go into the last assistant turn.

    Args:
        turns: (role, content) pairs.
        thinking: text between think markers.
        calls: (name, arguments) pairs.
        **track: token tracks [n], or callables of n that make them.
    """
    last = max((i for i, (role, _) in enumerate(turns) if role == "assistant"), default=-1)
    built: list[Turn] = []
    texts: list[str] = []
    sampled: list[bool] = []
    for index, (role, content) in enumerate(turns):
        opener, closer = MARKERS[role]
        body = content
        if index == last and thinking is not None:
            body = f"<think>{thinking}</think>{content}"
        raws = [f"[call {name} {arguments}]" for name, arguments in calls] if index == last else []
        body += "".join(raws)
        raw = opener + body + closer
        words = [opener, *_split(body), closer]
        start = len(texts)
        texts += words
        sampled += [role == "assistant" and i > 0 for i in range(len(words))]
        stop = len(texts)
        built.append(
            Turn(
                role=role,  # type: ignore[arg-type]
                start=start,
                stop=stop,
                body_start=start + 1,
                body_stop=stop - 1,
                raw_bytes=raw.encode(),
                raw=raw,
                content=content,
                thinking=thinking if index == last else None,
                tool_calls=tuple(
                    ToolCall(name, arguments, text, f"call_{index}_{i}", start + 1, stop - 1)
                    for i, ((name, arguments), text) in enumerate(zip(calls, raws, strict=True))
                )
                if index == last
                else (),
                tool_call_id="call_0" if role == "tool" else None,
                n_sampled=len(words) - 1 if role == "assistant" else 0,
                versions=((7, len(words) - 1),) if role == "assistant" else (),
            )
        )
    lengths = np.asarray([len(text) for text in texts], np.int64)
    stops = np.cumsum(lengths)
    n = len(texts)
    vocabulary: dict[str, int] = {}
    ids = np.asarray([vocabulary.setdefault(text, 100 + len(vocabulary)) for text in texts], np.int64)
    mask = np.asarray(sampled, bool)
    tracks = {name: value(n) if callable(value) else np.asarray(value) for name, value in track.items()}
    tokens = TokenTrack(
        input_ids=ids,
        loss_mask=mask.copy(),
        response_mask=mask,
        char_starts=stops - lengths,
        char_stops=stops,
        special=np.asarray([text.startswith("<|") for text in texts], bool),
        tracks=tracks,
    )
    return Transcript(tuple(built), tokens, "template", warnings=("made by hand",))


def _split(text: str) -> list[str]:
    return re.findall(r"\s*[^\s]{1,5}|\s+", text)


def make_packed_batch(
    rows: Sequence[Sequence[int]], sampled: Sequence[Sequence[int]], **fields: Any
) -> PackedBatch:
    """A host batch from token ids and sampled masks, one list a row."""
    lengths = np.asarray([len(row) for row in rows], np.int64)
    mask = np.asarray([flag for row in sampled for flag in row], bool)
    defaults: dict[str, Any] = {
        "batch_id": "0123456789ab",
        "step": 3,
        "split": "rollout",
        "offsets": np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)]),
        "input_ids": np.asarray([token for row in rows for token in row], np.int64),
        "loss_mask": mask.copy(),
        "response_mask": mask,
        "response_mask_source": "given",
        "tracks": {},
        "n_tokens": lengths,
        "has_tokens": np.ones(len(rows), bool),
        "group_ids": np.arange(len(rows)),
    }
    return PackedBatch(**{**defaults, **fields})
