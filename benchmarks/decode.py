"""Speed of decoding conversations of a service desk, beside the tokenizer's own decoding in the same run.

Needs the Qwen2.5 tokenizer, fetched with `npm pack`; it fails when that cannot be had. Times are processor time of
this one thread, best of several passes. Run it from the repository's root:

    python -m benchmarks.decode
"""

from __future__ import annotations

import logging
import platform
import time
from collections.abc import Callable

import numpy as np

from rollout_traces.decode import TranscriptDecoder
from rollout_traces.decode.detokenizer import char_ends
from rollout_traces.model.packed_batch import PackedBatch
from tests.decode.conversations import desk_conversations
from tests.decode.fidelity import Encoded, encode
from tests.decode.real_tokenizers import load_tokenizer

PASSES = 9
TOKENIZER = "qwen2_5"


def best_seconds(work: Callable[[], object]) -> float:
    """Processor seconds of the fastest of several passes."""
    work()
    times = []
    for _ in range(PASSES):
        start = time.process_time()
        work()
        times.append(time.process_time() - start)
    return min(times)


def packed_batch(rows: list[Encoded]) -> PackedBatch:
    """The rows as a hand-over gives them to the decoder."""
    lengths = np.array([len(row.ids) for row in rows], np.int64)
    loss_mask = np.concatenate([row.loss_mask for row in rows])
    return PackedBatch(
        batch_id="0" * 12,
        step=0,
        split="rollout",
        offsets=np.concatenate([[0], np.cumsum(lengths)]),
        input_ids=np.concatenate([row.ids for row in rows]),
        loss_mask=loss_mask,
        response_mask=loss_mask,
        response_mask_source="given",
        tracks={"versions": np.where(loss_mask, 3, -1).astype(np.int32)},
        n_tokens=lengths,
        has_tokens=np.ones(len(rows), bool),
        group_ids=np.arange(len(rows)),
    )


def main() -> None:
    """Prints the table."""
    logging.getLogger("transformers").setLevel(logging.ERROR)
    tokenizer = load_tokenizer(TOKENIZER)
    conversations = desk_conversations()
    start = time.process_time()
    decoder = TranscriptDecoder(tokenizer)
    built = time.process_time() - start
    rows = [encode(TOKENIZER, tokenizer, messages) for messages in conversations]
    ids = [row.ids.tolist() for row in rows]
    n_tokens = sum(map(len, ids))
    batch, everything = packed_batch(rows), list(range(len(rows)))
    n_turns = sum(len(transcript.turns) for transcript in decoder.decode_batch(batch, everything))

    def detokenize_with_offsets() -> None:
        for row in rows:
            text = decoder.detokenizer.detokenize(row.ids)
            char_ends(text.data, text.starts, [0, len(text.data)])

    works: list[tuple[str, Callable[[], object]]] = [
        ("tokenizer.decode: text", lambda: [tokenizer.decode(row) for row in ids]),
        (
            "tokenizers decode_batch: text",
            lambda: tokenizer.backend_tokenizer.decode_batch(ids, skip_special_tokens=False),
        ),
        ("bytes and token offsets", lambda: decoder.detokenizer.detokenize(batch.input_ids)),
        ("text and character offsets, row by row", detokenize_with_offsets),
        (
            "whole transcripts, row by row",
            lambda: [decoder.decode(r.ids, loss_mask=r.loss_mask) for r in rows],
        ),
        ("whole transcripts, as a batch", lambda: decoder.decode_batch(batch, everything)),
    ]
    print(f"{platform.machine()}, Python {platform.python_version()}, numpy {np.__version__}, one thread")
    print(
        f"{len(rows)} conversations, {n_tokens} tokens, {n_turns} turns, {n_turns / len(rows):.0f} turns each"
    )
    print(f"table built, verified on {decoder.detokenizer.n_ids} ids, dialect learned: {built:.2f} s, once")
    print(f"{'':<42}{'M tokens/s':>12}{'us/turn':>10}")
    for label, work in works:
        seconds = best_seconds(work)
        print(f"{label:<42}{n_tokens / seconds / 1e6:>12.1f}{seconds / n_turns * 1e6:>10.1f}")


if __name__ == "__main__":
    main()
