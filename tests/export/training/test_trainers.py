"""What is written loads with `datasets`, and TRL's trainers take a step on it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rollout_traces.export.training import export_training
from rollout_traces.export.training_samples import TrainingOptions
from tests.generator import tiny_tokenizer

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def model() -> Any:
    """A randomly initialised transformer of a few thousand parameters."""
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(tiny_tokenizer()), hidden_size=16, intermediate_size=32, num_hidden_layers=1,
            num_attention_heads=2, num_key_value_heads=2, max_position_embeddings=512,
        )
    )  # fmt: skip


def loaded(store: Any, folder: Path, **options: Any) -> Any:
    import datasets

    export_training(store, folder, TrainingOptions(**options))
    return datasets.load_dataset(str(folder), cache_dir=str(folder.parent / "cache"))


def arguments(folder: Path) -> dict[str, Any]:
    return {
        "output_dir": str(folder), "max_steps": 1, "per_device_train_batch_size": 1, "report_to": [],
        "use_cpu": True, "bf16": False, "save_strategy": "no", "disable_tqdm": True, "gradient_checkpointing": False,
    }  # fmt: skip


@pytest.mark.parametrize("made", ["sft", "dpo", "reward"])
def test_what_is_loaded_is_what_was_written(store, tmp_path, made):
    import json

    found = loaded(store, tmp_path / "data", format=made, test_share=0.3)
    for name, split in found.items():
        rows = [json.loads(line) for line in (tmp_path / "data" / f"{name}.jsonl").read_text().splitlines()]
        for row, expected in zip(split, rows, strict=True):
            assert {key: value for key, value in row.items() if value is not None} == expected


def test_a_session_loads_as_lines_and_is_taken_for_an_agent_s_trace(store, tmp_path):
    """To decode one `datasets` needs teich: 0.3.6 reads it as a session of Pi's."""
    import datasets
    from datasets.packaged_modules.json.json import has_agent_traces_markers

    export_training(store, tmp_path / "data", TrainingOptions("hub"))
    path = max((tmp_path / "data" / "train").glob("*.jsonl"), key=lambda path: path.stat().st_size)
    cache = str(tmp_path / "cache")
    found = datasets.load_dataset("json", data_files=str(path), cache_dir=cache, parse_agent_traces=False)
    assert set(found["train"]["type"]) == {"session", "message"}
    assert has_agent_traces_markers(found["train"].features)


def test_sft_takes_a_step(store, tmp_path, model):
    from trl import SFTConfig, SFTTrainer

    found = loaded(store, tmp_path / "data", format="sft", thinking="reasoning_content")
    trainer = SFTTrainer(
        model,
        SFTConfig(**arguments(tmp_path), max_length=256),
        train_dataset=found["train"],
        processing_class=tiny_tokenizer(),
    )
    assert trainer.train().global_step == 1
    assert "calculator" in tiny_tokenizer().decode(next(iter(trainer.train_dataset))["input_ids"])


def test_dpo_takes_a_step(store, tmp_path, model):
    from trl import DPOConfig, DPOTrainer

    found = loaded(store, tmp_path / "data", format="dpo")
    model.save_pretrained(tmp_path / "model")
    trainer = DPOTrainer(
        str(tmp_path / "model"),
        args=DPOConfig(**arguments(tmp_path), max_length=256),
        train_dataset=found["train"],
        processing_class=tiny_tokenizer(),
    )
    assert trainer.train().global_step == 1
