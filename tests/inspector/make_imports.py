"""Makes the projects that docs/sources.md shows: an imported prime-rl tree, a verl folder, and what TRL logs by itself.

Run as `python -m tests.inspector.make_imports`, with TRACKIO_DIR set; it needs torch and trl. The model of the TRL run is
tiny and first learns to add by imitation, so that its rollouts can be read; the run itself is a real `GRPOTrainer`'s.
"""

from __future__ import annotations

import json
import os
import random
import tempfile
from pathlib import Path
from typing import Any

SAMPLES = Path(__file__).resolve().parents[1] / "sources" / "samples"
IMITATIONS = 200
STEPS = 8


def problem(rng: random.Random) -> tuple[str, str]:
    """A question and its answer."""
    a, b = rng.randint(2, 9), rng.randint(2, 9)
    return f"What is {a} + {b}?", str(a + b)


def answer(question: str, right: str, rng: random.Random) -> str:
    """How a learner of moderate care answers."""
    said = right if rng.random() < 0.75 else str(rng.randint(4, 18))
    start = f"<think>\n{question.removeprefix('What is ').removesuffix('?')}, so add.\n</think>\n"
    return f"{start}The answer is \\boxed{{{said}}}." if rng.random() < 0.9 else f"{start}It is {said}."


def adder() -> tuple[Any, Any]:
    """A tiny model that has learned to answer, and its tokenizer."""
    import torch

    from examples.tiny_grpo.learner import token_logprobs
    from examples.tiny_grpo.model import make_model, train_tokenizer

    rng = random.Random(0)
    torch.manual_seed(0)
    torch.set_num_threads(1)
    texts = [text for _ in range(400) for q, a in [problem(rng)] for text in (q, answer(q, a, rng))]
    tokenizer = train_tokenizer([*texts, "user", "assistant", "system"])
    model = make_model(tokenizer)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(IMITATIONS):
        chats = []
        for _ in range(24):
            question, right = problem(rng)
            said = answer(question, right, rng)
            chats.append([{"role": "user", "content": question}, {"role": "assistant", "content": said}])
        rows = tokenizer.apply_chat_template(chats, return_dict=True, return_assistant_tokens_mask=True)
        ids = tokenizer.pad({"input_ids": rows["input_ids"]}, padding_side="right", return_tensors="pt")[
            "input_ids"
        ]
        written = torch.zeros_like(ids, dtype=torch.bool)
        for row, mask in enumerate(rows["assistant_masks"]):
            written[row, : len(mask)] = torch.tensor(mask, dtype=torch.bool)
        (-token_logprobs(model, ids, written).sum() / written.sum()).backward()
        optimizer.step()
        optimizer.zero_grad()
    return model, tokenizer


def trl_run() -> None:
    """A real GRPO training that reports to Trackio, and nothing of this package in it."""
    import re

    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    def correct(completions: list, right: list, log_extra: Any = None, **_: Any) -> list[float]:
        log_extra("expected", right)
        said = [re.findall(r"\\boxed\{(\d+)\}", c[-1]["content"])[-1:] for c in completions]
        return [float(s == [r]) for s, r in zip(said, right, strict=True)]

    def boxed(completions: list, **_: Any) -> list[float]:
        return [float("\\boxed{" in c[-1]["content"]) for c in completions]

    rng = random.Random(1)
    data = Dataset.from_list(
        [
            {"prompt": [{"role": "user", "content": q}], "right": a}
            for _ in range(64)
            for q, a in [problem(rng)]
        ]
    )
    model, tokenizer = adder()
    with tempfile.TemporaryDirectory() as folder:
        GRPOTrainer(
            model=model,
            reward_funcs=[correct, boxed],
            args=GRPOConfig(
                output_dir=folder,
                project="trl-sums",
                run_name="grpo",
                report_to="trackio",
                reward_weights=[1.0, 0.2],
                per_device_train_batch_size=16,
                per_device_eval_batch_size=16,
                num_generations=8,
                max_completion_length=48,
                max_steps=STEPS,
                learning_rate=3e-4,
                eval_strategy="steps",
                eval_steps=STEPS // 2,
                logging_steps=1,
                log_completions=True,
                num_completions_to_print=0,
                use_cpu=True,
                bf16=False,
                save_strategy="no",
                disable_tqdm=True,
            ),
            train_dataset=data,
            eval_dataset=data.select(range(2)),
            processing_class=tokenizer,
        ).train()


def verl_folder(folder: Path) -> None:
    """What verl's writer leaves, rows of it as in the sample of `make_samples`: text without special tokens."""
    rng = random.Random(2)
    dumped = folder / "rollout_data"
    dumped.mkdir(parents=True)
    for step in range(1, 13):
        with (dumped / f"{step}.jsonl").open("w") as file:
            for group in range(4):
                question, right = problem(rng)
                for sample in range(4):
                    said = answer(question, right, random.Random(step * 100 + group * 10 + sample))
                    score = float(f"boxed{{{right}}}" in said)
                    row = {
                        "input": f"user\n{question}\nassistant\n", "output": said, "gts": right, "score": score,
                        "step": step, "acc": bool(score), "uid": f"{step}{group}_{sample}_0",
                    }  # fmt: skip
                    file.write(json.dumps(row) + "\n")


def characters() -> Any:
    """The tokenizer of the prime-rl sample: one token a character, its number the character's, and two special ones."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    special = {"<|im_start|>": 0, "<|im_end|>": 1}
    inner = Tokenizer(models.WordLevel({**special, **{chr(n): n for n in range(2, 256)}}, unk_token="?"))
    inner.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    inner.decoder = decoders.Fuse()
    inner.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in special])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=inner,
        eos_token="<|im_end|>",
        pad_token="<|im_end|>",
        clean_up_tokenization_spaces=False,
    )
    tokenizer.chat_template = (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    return tokenizer


def main() -> None:
    """Makes the three projects."""
    from rollout_traces.sources.importing import import_rollouts

    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    import_rollouts(
        SAMPLES / "prime-rl" / "rollouts", "prime-rl", name="sums", worker="thread", tokenizer=characters()
    )
    with tempfile.TemporaryDirectory() as folder:
        verl_folder(Path(folder))
        import_rollouts(folder, "verl", name="gsm-sums", worker="thread")
    trl_run()


if __name__ == "__main__":
    main()
