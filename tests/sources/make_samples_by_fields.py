"""Writes the samples of writers whose code could not be run: from the names and kinds of their fields alone.

python -m tests.sources.make_samples_by_fields
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

OUT = Path(__file__).parent / "samples"
CHAT = [{"role": "user", "content": "What is 2 + 3?"}, {"role": "assistant", "content": "It is 5."}]
CALL = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 2, "b": 3}'}}


def _lines(path: Path, records: list[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(record) + "\n" for record in records))


def chat() -> None:
    """Conversations with whatever else a program kept of them."""
    tool = [CHAT[0], {"role": "assistant", "content": "", "tool_calls": [CALL]}]
    tool += [{"role": "tool", "tool_call_id": "c1", "content": "5"}, CHAT[1]]
    records = [
        {"messages": CHAT, "reward": 1.0, "step": 3, "group_id": 7, "length_penalty": 0.25, "source": "sums"},
        {"messages": tool, "reward": 0.5, "step": 3, "group_id": 7, "tools": [{"type": "function"}]},
        {"prompt": "What is 4 * 7?", "completion": "28", "reward": 1.0, "step": 4, "finish_reason": "stop"},
    ]
    _lines(OUT / "chat/conversations.jsonl", records)


def areal_segments() -> None:
    """AReaL's newer dump: segments by role in place of prompt and completion."""
    texts = [
        ("prompt", "<|im_start|>user\nWhat is 2 + 3?<|im_end|>\n<|im_start|>assistant\n"),
        ("gen", "It is 5.<|im_end|>"),
        ("context", "\n<|im_start|>user\nSure?<|im_end|>\n<|im_start|>assistant\n"),
        ("gen", "Yes.<|im_end|>"),
    ]
    records = [
        {
            "task_id": task, "sample_idx": sample, "seqlen": 40, "prompt_len": 20, "head_version": 2, "tail_version": 3,
            "reward": float(sample), "segments": [{"role": r, "len": len(t), "text": t} for r, t in texts],
        }
        for task in (0,) for sample in (0, 1)
    ]  # fmt: skip
    _lines(OUT / "areal-segments/rollout/3/0.jsonl", records)


if __name__ == "__main__":
    for make in (chat, areal_segments):
        make()
