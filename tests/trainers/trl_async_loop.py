"""TRL's real `AsyncGRPOTrainer`, its data set, planners, collator and loss; compared with what was stored.

Standing in: the rollout worker (through TRL's own protocol for one), the transfer of weights, and the attention
kernel, which needs a GPU: the same attention in plain torch. Run by `make test-trainers` in TRL's environment.
"""

from __future__ import annotations

import os
import queue
import random
import tempfile
import time
from pathlib import Path

from trl_grpo import FOLDER, metric_steps, stored, tiny_model

# isort: split
# What is imported above sets the environment in which TRL opens its Trackio run.
import numpy as np
import torch
from datasets import Dataset
from trl.experimental.async_grpo import AsyncGRPOConfig, AsyncGRPOTrainer, async_grpo_trainer, packing
from trl.experimental.async_grpo.async_rollout_worker import RolloutSample

from rollout_traces.integrations import trl_async
from rollout_traces.trace.conversion import read_ledger, read_transcript
from tests.generator import tiny_tokenizer
from tests.trainers.areal_compare import rows_of
from tests.trainers.result import report

STEPS, PER_STEP, GROUP = 8, 64, 4
ANSWERS = ("The answer is 6.", "I do not know.", "<think>\nhm\n</think>\n\nSix.")


class Attention:
    """Variable-length causal attention as the kernel computes it, a sequence at a time."""

    def flash_attn_varlen_func(self, q, k, v, cu_seqlens_q, cu_seqlens_k, *longest, softmax_scale, **options):
        out = torch.empty_like(q)
        for a, b, c, d in zip(cu_seqlens_q, cu_seqlens_q[1:], cu_seqlens_k, cu_seqlens_k[1:], strict=False):
            query, key, value = (x.transpose(0, 1)[None] for x in (q[a:b], k[c:d], v[c:d]))
            n, m = query.shape[2], key.shape[2]
            seen = torch.ones(n, m, dtype=torch.bool).tril(m - n)
            made = torch.nn.functional.scaled_dot_product_attention(
                query, key, value, attn_mask=seen, scale=softmax_scale, enable_gqa=True
            )
            out[a:b] = made[0].transpose(0, 1)
        return out


class Worker:
    """A rollout worker in this process: fills the queue before training, its versions moving with the steps."""

    def __init__(self, tokenizer) -> None:
        self.rollout_buffer, self.metrics_queue = queue.Queue(), queue.Queue()
        self.made: list[RolloutSample] = []
        rng = random.Random(0)
        for n in range((STEPS + 4) * PER_STEP):
            group = n // GROUP
            version = max(1, n // PER_STEP - rng.choice([0, 1, 1, 5]))
            self.made.append(self._sample(tokenizer, rng, group, version))
            self.rollout_buffer.put(self.made[-1])

    def _sample(self, tokenizer, rng, group: int, version: int) -> RolloutSample:
        chat = [{"role": "user", "content": f"What is 2*3? v{group}"}]
        prompt = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=False)
        answer = rng.choice(ANSWERS)
        ids = [*tokenizer.encode(answer, add_special_tokens=False), tokenizer.eos_token_id]
        mask = [0] * len(prompt) + [1] * len(ids)
        if rng.random() < 0.2:
            mask[-2] = 0  # a tail that TRL demoted to context
        reward = float("6" in answer)
        return RolloutSample(
            prompt=chat,
            completion=[{"role": "assistant", "content": answer}],
            input_ids=np.asarray([*prompt, *ids]),
            completion_mask=np.asarray(mask),
            old_log_probs=np.asarray([0.0] * len(prompt) + [-rng.random() for _ in ids], np.float32),
            advantage=reward - 0.5,
            model_version=version,
            group_id=group,
            metrics={"reward": reward, "reward_std": 0.5, "rewards/right": reward},
        )

    def start(self) -> None: ...

    def stop(self) -> None: ...

    def update_model_version(self, model_version: int) -> None: ...

    def check_health(self, stale_after_s: float) -> None:
        raise RuntimeError("the queue ran empty")


class Weights:
    """A transfer of weights to nowhere."""

    def init_weight_transfer(self) -> None: ...

    def pause(self) -> None: ...

    def send_weights(self, iterator) -> None:
        for _ in iterator:
            pass

    def resume(self) -> None: ...

    def destroy(self) -> None: ...


def train(project: str) -> AsyncGRPOTrainer:
    """Trains with the hook attached; what each step really trained on is kept on the trainer."""
    packing._flash_attn = Attention
    async_grpo_trainer.get_peak_flops_per_device = lambda *_: 1e12
    tokenizer = tiny_tokenizer("qwen3")
    folder = Path(tempfile.mkdtemp())
    tiny_model(tokenizer).save_pretrained(folder)
    config = AsyncGRPOConfig(
        output_dir=str(FOLDER / "out"),
        per_device_train_batch_size=PER_STEP // 2,
        gradient_accumulation_steps=2,
        max_steps=STEPS,
        max_staleness=3,
        token_budget=0,
        logging_steps=1,
        report_to="trackio",
        project=project,
        run_name="r1",
        use_cpu=True,
        bf16=False,
        save_strategy="no",
        disable_tqdm=True,
        trackio_space_id=None,
    )
    trainer = AsyncGRPOTrainer(
        model=str(folder),
        args=config,
        train_dataset=Dataset.from_list([{"prompt": [{"role": "user", "content": "What is 2*3?"}]}] * 8),
        processing_class=tokenizer,
        rollout_worker=Worker(tokenizer),
        weight_transfer=Weights(),
    )
    trl_async.attach(trainer, max_rollout_traces_per_step=10_000, selection="all")
    trainer.trained = {}
    inner = trainer.training_step

    def keep(model, inputs, num_items_in_batch=None):
        real = inputs["attention_mask"].bool()
        step = trainer.state.global_step + 1
        trainer.trained.setdefault(step, []).append(int(inputs["token_index"].ge(0).sum()))
        trainer.widths = int(real.sum())
        return inner(model, inputs, num_items_in_batch)

    trainer.training_step = keep
    trainer.train()
    return trainer


def check(project: str, trainer: AsyncGRPOTrainer) -> int:
    """Every stored row is a sample of the worker, in the order of its queue, at the step that trained on it."""
    made = {}
    for sample in trainer.rollout_worker.made:
        made.setdefault((sample.group_id, *sample.input_ids.tolist()), []).append(sample)
    by_step, compared = stored(project), 0
    assert sorted(by_step) == list(range(1, STEPS + 1)) == metric_steps(project, "train/loss")
    for step, records in by_step.items():
        n_tokens = 0
        kept = [record for record in records if "discard_reason" not in record.metadata]
        assert len(kept) == PER_STEP, (step, len(kept))
        for record in records:
            meta, tokens = record.metadata, read_transcript(record).tokens
            versions = tokens.tracks["versions"]
            candidates = made[(meta["group"], *tokens.input_ids.tolist())]
            [sample, *_] = [
                one
                for one in candidates
                if one.model_version == versions.max()
                and one.completion_mask.tolist() == tokens.loss_mask.astype(int).tolist()
                and np.allclose(
                    one.old_log_probs[tokens.loss_mask],
                    tokens.tracks["logprobs"][tokens.loss_mask],
                    atol=1e-3,
                )
            ]
            candidates[:] = [one for one in candidates if one is not sample]
            assert meta["reward"] == sample.metrics["reward"]
            assert meta["advantage"] == sample.advantage
            stale = meta.get("discard_reason") == trl_async.STALE
            lag = meta["train_version"] - sample.model_version
            read_ahead = 1  # the loader takes a sample a micro-batch early, perhaps before the version moved
            limit = trainer.args.max_staleness
            assert lag > limit if stale else lag <= limit + read_ahead, (meta, sample.model_version)
            n_tokens += 0 if stale else int(sample.completion_mask.sum())
            compared += 1
        assert sum(trainer.trained[step]) == n_tokens, (step, trainer.trained[step], n_tokens)
    assert not any(record.metadata.get("written_by") for records in by_step.values() for record in records)
    ledgers = [read_ledger(one) for _, one in rows_of(FOLDER / "trackio", project, "rollout/steps")]
    assert sum(ledger.n_rows for ledger in ledgers) == compared
    return compared


def main() -> None:
    """Trains and checks."""
    start = time.time()
    trainer = train("trl-async")
    rows = check("trl-async", trainer)
    print(f"trl-async: {STEPS} steps in {time.time() - start:.1f} s, rows trained on and stale ones")
    report("TRL: asynchronous GRPO", "trl_async", "trl", rows=rows, equal=rows)
    assert os.environ["TRACKIO_DIR"] == str(FOLDER / "trackio")


if __name__ == "__main__":
    main()
