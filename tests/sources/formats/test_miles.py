"""miles' `--dump-details`: tensors with what its samples hold, conversations beside them, nothing twice."""

from __future__ import annotations

import dataclasses
import json
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rollout_traces.sources.problems import Problems
from tests.sources.reading import rows_of, runs_of

torch = pytest.importorskip("torch")
TURNS = [
    {"role": "user", "content": "What is 6 * 7?"},
    {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": "c", "type": "function", "function": {"name": "product", "arguments": "{}"}}],
    },
    {"role": "tool", "content": "42", "tool_call_id": "c"},
    {"role": "assistant", "content": "It is 42."},
]


def sample(index: int, **changed: Any) -> dict[str, Any]:
    """A sample as its `to_dict` gives it."""
    return {
        "group_index": 0, "index": index, "rollout_id": None, "prompt": "What is 6 * 7?", "tokens": [5, 6, 7, 8, 9],
        "response": "It is 42.", "response_length": 3, "reward": 1.0, "loss_mask": [1, 0, 1], "weight_versions": ["4"],
        "rollout_log_probs": [-0.5, 0.0, -0.25], "status": "completed", "metadata": {}, "adapter": None, **changed,
    }  # fmt: skip


def dump(folder: Path, samples: list[dict[str, Any]]) -> Path:
    (folder / "run/rollout_data").mkdir(parents=True)
    torch.save({"rollout_id": 3, "metadata": {}, "samples": samples}, folder / "run/rollout_data/3.pt")
    return folder / "run"


def test_a_conversation_of_several_turns_is_its_samples_and_no_run_of_its_own(tmp_path):
    run = dump(tmp_path, [sample(0), sample(1)])
    (run / "trajectory").mkdir()
    told = {
        "sample_index": 1,
        "group_index": 0,
        "status": "completed",
        "reward": 1.0,
        "prompt": "What is 6 * 7?",
    }
    (run / "trajectory/3.jsonl").write_text(json.dumps({**told, "messages": TURNS}) + "\n")
    assert [found.name for found in runs_of(run)] == ["run"]
    plain, with_tools = rows_of(run)
    assert [message["role"] for message in plain.conversation()] == ["user", "assistant"]
    assert [message["role"] for message in with_tools.conversation()] == [
        "user",
        "assistant",
        "tool",
        "assistant",
    ]
    assert with_tools.input_ids == [5, 6, 7, 8, 9] and list(with_tools.response_mask) == [0, 0, 1, 0, 1]


@pytest.mark.parametrize("kind", [np.float64, np.float32, np.float16, np.int64, np.bool_])
def test_arrays_of_a_mixture_of_experts_and_rewards_of_numpy_refuse_no_file(tmp_path, kind):
    problems = Problems()
    experts = np.zeros((4, 2, 2), np.int32)
    run = dump(tmp_path, [sample(0, rollout_routed_experts=experts, reward=kind(1)), sample(1)])
    for row in rows_of(run, problems):
        assert row.reward == 1.0
        np.testing.assert_array_equal(row.tracks["logprobs"][2:], [-0.5, np.nan, -0.25])
    assert not problems.counts


def test_the_adapter_that_a_sample_is_of_is_read_without_miles(tmp_path, monkeypatch):
    @dataclasses.dataclass(frozen=True)
    class AdapterRef:
        name: str
        slot: int

    module = types.ModuleType("miles.utils.types")
    AdapterRef.__module__, AdapterRef.__qualname__ = module.__name__, "AdapterRef"
    module.AdapterRef = AdapterRef  # type: ignore[attr-defined]
    with monkeypatch.context() as written:
        for name in ("miles", "miles.utils"):
            written.setitem(sys.modules, name, types.ModuleType(name))
        written.setitem(sys.modules, module.__name__, module)
        run = dump(tmp_path, [sample(0, adapter=AdapterRef("math", 1))])
    [row] = rows_of(run)
    assert row.extras["adapter"] == "math"


def test_what_would_run_code_is_refused_as_before(tmp_path):
    problems = Problems()
    run = dump(tmp_path, [sample(0, metadata={"where": Path("/")})])
    assert rows_of(run, problems) == []
    assert problems.counts == {"pickles_refused": 1}
