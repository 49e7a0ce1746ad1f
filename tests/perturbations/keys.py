"""How trainers name what they log."""

from __future__ import annotations

from collections.abc import Mapping

_TRL_TIME = "profiling/Time taken: GRPOTrainer"

KEYS: Mapping[str, Mapping[str, str]] = {
    "loss": {
        "plain": "train/loss",
        "verl": "actor/pg_loss",
        "areal": "ppo_actor/update/actor_loss/avg",
    },
    "grad_norm": {
        "plain": "train/grad_norm",
        "verl": "actor/grad_norm",
        "areal": "ppo_actor/update/grad_norm",
    },
    "kl": {"plain": "train/kl", "verl": "actor/kl_loss", "areal": "ppo_actor/update/approx_kl/avg"},
    "entropy": {
        "plain": "train/entropy",
        "verl": "actor/entropy",
        "areal": "ppo_actor/update/entropy/avg",
    },
    "lr": {
        "plain": "train/lr",
        "verl": "actor/lr",
        "trl": "train/learning_rate",
        "areal": "ppo_actor/update/lr",
    },
    "clip_share": {
        "plain": "train/clip_fraction",
        "verl": "actor/pg_clipfrac",
        "trl": "train/clip_ratio/region_mean",
        "areal": "ppo_actor/update/clip_ratio/avg",
    },
    "mismatch_max": {
        "plain": "mismatch/max",
        "verl": "training/rollout_probs_diff_max",
        "trl": "train/sampling/sampling_logp_difference/max",
    },
    "length_mean": {
        "plain": "length/mean",
        "verl": "response_length/mean",
        "trl": "train/completions/mean_length",
        "areal": "ppo_actor/seq_len/avg",
    },
    "length_max": {
        "plain": "length/max",
        "verl": "response_length/max",
        "trl": "train/completions/max_length",
        "areal": "ppo_actor/seq_len/max",
    },
    "length_min": {
        "plain": "length/min",
        "verl": "response_length/min",
        "trl": "train/completions/min_length",
        "areal": "ppo_actor/seq_len/min",
    },
    "truncated": {
        "plain": "length/truncated",
        "verl": "response_length/clip_ratio",
        "trl": "train/completions/clipped_ratio",
        "areal": "ppo_actor/no_eos_ratios/avg",
    },
    "reward_mean": {
        "plain": "reward/mean",
        "verl": "critic/score/mean",
        "trl": "train/reward",
        "areal": "ppo_actor/task_reward/avg",
    },
    "reward_max": {
        "plain": "reward/max",
        "verl": "critic/score/max",
        "areal": "ppo_actor/task_reward/max",
    },
    "reward_min": {
        "plain": "reward/min",
        "verl": "critic/score/min",
        "areal": "ppo_actor/task_reward/min",
    },
    "equal": {"plain": "reward/equal_groups", "trl": "train/frac_reward_zero_std"},
    "dropped": {
        "plain": "sampling/dropped_groups",
        "verl": "train/num_dropped_prompts",
        "trl": "train/dropped_groups",
        "areal": "dynamic_sampling/rejected",
    },
    "gen_batches": {"verl": "train/num_gen_batches"},
    "time": {
        "plain": "time/step",
        "verl": "timing_s/step",
        "trl": "train/step_time",
        "areal": "timeperf/step",
    },
    "time_gen": {
        "plain": "time/generate",
        "verl": "timing_s/gen",
        "trl": f"{_TRL_TIME}._generate",
        "areal": "timeperf/rollout",
    },
    "time_update": {
        "plain": "time/update",
        "verl": "timing_s/update_actor",
        "trl": f"{_TRL_TIME}.compute_loss",
        "areal": "timeperf/train_step",
    },
    "time_sync": {
        "plain": "time/sync",
        "verl": "timing_s/update_weights",
        "trl": f"{_TRL_TIME}._move_model_to_vllm",
        "areal": "timeperf/update_weights",
    },
    "time_save": {
        "plain": "time/checkpoint",
        "verl": "timing_s/save_checkpoint",
        "areal": "timeperf/save",
    },
    "time_eval": {"plain": "time/eval", "verl": "timing_s/testing", "areal": "timeperf/eval"},
    "throughput": {
        "plain": "perf/tokens_per_second",
        "verl": "perf/throughput",
        "trl": "train/train_tokens_per_second",
    },
    "mfu": {"plain": "perf/mfu", "verl": "perf/mfu/actor"},
    "step_tokens": {"plain": "perf/tokens", "verl": "perf/total_num_tokens"},
    "memory": {
        "plain": "memory/allocated_gb",
        "verl": "perf/max_memory_allocated_gb",
        "trl": "train/gpu_memory_gb",
        "areal": "memory/allocated_gb",
    },
    "n_tokens": {
        "plain": "counters/tokens",
        "trl": "train/num_tokens",
        "areal": "train/total_tokens",
    },
    "n_samples": {"plain": "counters/samples", "verl": "training/samples_seen"},
    "epoch": {
        "plain": "counters/epoch",
        "verl": "training/epoch",
        "trl": "train/epoch",
        "areal": "train/epoch",
    },
    "global_step": {
        "plain": "counters/step",
        "verl": "training/global_step",
        "trl": "train/global_step",
        "areal": "train/global_step",
    },
    "elapsed": {"plain": "time/elapsed", "trl": "train/elapsed_hours", "areal": "timeperf/elapsed"},
    "clip_range": {
        "plain": "train/clip_range",
        "verl": "actor/clip_ratio_high",
        "trl": "train/epsilon",
        "areal": "ppo_actor/eps_clip",
    },
    "batch": {
        "plain": "data/batch_size",
        "verl": "data/train_batch_size",
        "trl": "train/batch_size",
        "areal": "ppo_actor/update/n_seqs",
    },
    "temperature": {
        "plain": "sampling/temperature",
        "verl": "rollout_config/temperature",
        "trl": "train/temperature",
        "areal": "gconfig/temperature",
    },
    "kl_coef": {
        "plain": "train/kl_coef",
        "verl": "actor/kl_coef",
        "trl": "train/beta",
        "areal": "ppo_actor/kl_ctl",
    },
    "score": {"plain": "eval/score", "verl": "val-core/all/acc/mean@2"},
    "benchmark": {
        "plain": "eval/benchmark",
        "verl": "val-core/aime24/acc/mean@4",
        "trl": "eval/aime24",
        "areal": "eval/aime24",
    },
    "profiled": {"plain": "profiler/idle_share", "verl": "perf/profiler/bubble_share"},
    "warmup_loss": {
        "plain": "train/warmup_loss",
        "verl": "critic/vf_loss",
        "trl": "train/sft_loss",
    },
}
"""Name -> trainer -> key; a trainer that is not there writes the plain one, if there is any."""


def key_of(trainer: str, name: str) -> str | None:
    """A trainer's key of a scalar, None where it logs none; a name with a `/` is a key already."""
    if "/" in name:
        return name
    known = KEYS[name]
    return known.get(trainer, known.get("plain"))
