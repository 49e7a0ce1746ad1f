"""Writes the samples of writers whose code could not be run: from the names and kinds of their fields alone.

python -m tests.sources.make_samples_by_fields
"""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np

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


def verifiers_results() -> None:
    """An evaluation of verifiers before v1."""
    shared = {"info": {"level": "easy"}, "timing": {"generation_ms": 12.5}, "is_truncated": False}
    records = [
        {
            "example_id": example, "task": "sums", "prompt": CHAT[:1], "completion": CHAT[1:], "answer": "5",
            "reward": reward, "stop_condition": "no_tools", "metrics": {"exact": reward}, **shared,
        }
        for example, reward in ((0, 1.0), (0, 0.0), (1, 1.0))
    ]  # fmt: skip
    _lines(OUT / "verifiers-results/results.jsonl", records)


def atif() -> None:
    """An agent's trajectory of two calls with their tokens, and the trial's result beside it."""
    folder = OUT / "atif/trial-1/agent"
    folder.mkdir(parents=True, exist_ok=True)

    def call(prompt: list[int], completion: list[int]) -> dict[str, Any]:
        logprobs = [-0.25 * (n + 1) for n in range(len(completion))]
        return {"prompt_token_ids": prompt, "completion_token_ids": completion, "logprobs": logprobs}

    steps = [
        {"step_id": 1, "source": "user", "message": "What is 2 + 3?"},
        {
            "step_id": 2, "source": "agent", "message": "", "reasoning_content": "Use the tool.",
            "tool_calls": [{"tool_call_id": "c1", "function_name": "add", "arguments": {"a": 2, "b": 3}}],
            "observation": {"results": [{"source_call_id": "c1", "content": "5"}]}, "metrics": call([1, 2], [3, 4]),
        },
        {"step_id": 3, "source": "agent", "message": "It is 5.", "metrics": call([1, 2, 3, 4, 5], [6, 7, 8])},
    ]  # fmt: skip
    trajectory = {
        "schema_version": "ATIF-v1.4", "session_id": "s1", "agent": {"name": "solver", "version": "1", "model_name": "m"},
        "steps": steps, "final_metrics": {"total_steps": 3},
    }  # fmt: skip
    (folder / "trajectory.json").write_text(json.dumps(trajectory))
    result = {"task_name": "sums", "verifier_result": {"rewards": {"reward": 1.0}}}
    (folder.parent / "result.json").write_text(json.dumps(result))


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


def skyrl_training() -> None:
    """A step's training input: prompts padded on the left, responses on the right, values for responses alone."""
    arrays = {
        "sequences": [[0, 5, 6, 7, 8, 2], [4, 5, 6, 9, 2, 0]],
        "attention_mask": [[0, 1, 1, 1, 1, 1], [1, 1, 1, 1, 1, 0]],
        "response_mask": [[1, 1, 1], [1, 1, 0]],
        "loss_mask": [[1, 0, 1], [1, 1, 0]],
    }
    floats = {
        "rollout_logprobs": [[-0.5, -0.25, -1.0], [-0.125, -2.0, 0.0]],
        "action_log_probs": [[-0.5, -0.25, -1.25], [-0.125, -1.5, 0.0]],
        "advantages": [[0.5, 0.5, 0.5], [-0.5, -0.5, 0.0]],
        "rewards": [[0.0, 0.0, 1.0], [0.0, 0.0, 0.0]],
    }
    data = {name: np.asarray(values, np.int64) for name, values in arrays.items()}
    data |= {name: np.asarray(values, np.float32) for name, values in floats.items()}
    path = OUT / "skyrl-training/dumped_data/global_step_12_training_input.pkl"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(pickle.dumps(data, protocol=4))


if __name__ == "__main__":
    for make in (chat, verifiers_results, atif, areal_segments, skyrl_training):
        make()
