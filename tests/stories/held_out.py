"""Sixteen causes that were written before any rule was made for them, and run once before any was changed.

The first figure is that of the rules as they were; what was mended after it is measured on other seeds.
"""

from __future__ import annotations

import numpy as np

from tests.stories.causes import Cause
from tests.stories.world import World, groups_of


def zeros_of_a_source(w: World) -> None:
    """The reward function times out on a source, catches it, and returns 0."""
    rows = w.share(w.after & (w.c["source"] == "code"), 0.4)
    for name in ("success", "format", "judge"):
        w.c[name][rows] = 0.0


def retriever_is_useless(w: World) -> None:
    w.c["logit"][w.after & (w.c["source"] == "search")] -= 2.0


def retriever_is_asked_again(w: World) -> None:
    rows = w.after & (w.c["source"] == "search")
    w.c["n_calls"][rows] += 1
    w.c["tool_seconds"][rows] *= 0.5


def source_drops_out(w: World) -> None:
    c = w.c
    rows = w.after & w.train & (c["source"] == "code")
    c["source"][rows] = "math"
    c["prompt_key"][rows] = [f"math-{key[-4:]}" for key in c["prompt_key"][rows]]


def lower_top_p(w: World) -> None:
    w.c["mean_logprob"][w.after] *= 0.75
    w.c["mismatch_k1"][w.after] += 0.04
    w.c["mismatch_k3"][w.after] *= 2


def second_bos(w: World) -> None:
    w.flag(w.after, "bos_anomaly")


def one_token_more(w: World) -> None:
    w.c["n_prompt"][w.after] += 1


def advantages_not_scaled(w: World) -> None:
    c = w.c
    index, n_groups = groups_of(w)
    known = np.isfinite(c["reward"])
    size = np.maximum(np.bincount(index, known, n_groups), 1)
    mean = np.bincount(index, np.where(known, c["reward"], 0.0), n_groups) / size
    c["advantage"] = np.where(w.after, c["reward"] - mean[index], c["advantage"])


def gradient_shrinks(w: World) -> None:
    _scale(w, "train/grad_norm", 0.45)


def one_engine_stays_behind(w: World) -> None:
    c = w.c
    rows = w.after & (c["engine"] == "vllm-1")
    for name in ("version_min", "version_max"):
        c[name][rows] = np.minimum(c[name][rows], w.at - 1)
    c["mismatch_k3"][rows] *= 1 + 0.3 * np.clip(c["step"][rows] - w.at, 0, 30)


def judge_swapped(w: World) -> None:
    w.c["judge"][w.after] += 0.1


def seeded_engine(w: World) -> None:
    """Rollouts of a group that the engine sampled are one and the same."""
    c = w.c
    index, _ = groups_of(w)
    rows = np.flatnonzero(w.after & w.train & (c["engine"] == "vllm-0"))
    _, first, of = np.unique(index[rows], return_index=True, return_inverse=True)
    for name in ("reply", "answer", "log_length", "success", "format", "judge"):
        if name in c:
            c[name][rows] = c[name][rows[first]][of]
    c["same"] = (index, index[rows])


def seeded_engine_flags(w: World) -> None:
    index, again = w.c.pop("same")
    w.flag(np.isin(index, np.flatnonzero(np.bincount(again) >= 2)), "duplicate_completions")


def prompts_shorter(w: World) -> None:
    w.c["n_prompt"][w.after] = np.maximum(w.c["n_prompt"][w.after] - 90, 20)


def format_forgotten(w: World) -> None:
    w.c["format"][w.share(w.after, 0.5)] = 0.0


def other_language(w: World) -> None:
    rows = w.share(w.train, np.clip(0.04 * (w.c["step"] - w.at), 0, 0.6))
    w.c["foreign"] = rows
    w.c["reply"][rows] = [f"{text} 因此我们得到最终的答案。" for text in w.c["reply"][rows]]


def other_language_flags(w: World) -> None:
    w.flag(w.c["foreign"], "gibberish")


def kl_unbound(w: World) -> None:
    steps, values = w.logged[("", "train/kl")]
    w.logged[("", "train/kl")] = (
        steps,
        [v + 0.004 * max(s - w.at, 0) for s, v in zip(steps, values, strict=True)],
    )


def lr_unlearns(w: World) -> None:
    w.c["logit"] -= 0.25 * np.clip(w.c["step"] - w.at, 0, 16)


def lr_narrows(w: World) -> None:
    gone = np.clip((w.c["step"] - w.at + 1) / 8.0, 0, 1) * 0.7
    w.c["entropy"] *= 1 - gone
    w.c["mean_logprob"] *= 1 - gone
    w.c["mismatch_k3"][w.after] *= 2


def lr_jumps(w: World) -> None:
    _scale(w, "train/grad_norm", 4.0)
    _scale(w, "train/loss", 5.0)


def half_groups(w: World) -> None:
    keep = ~(w.after & w.train & (w.c["sample"] >= w.kind.group_size // 2))
    w.c = {name: values[keep] for name, values in w.c.items()}


def prompts_cut(w: World) -> None:
    rows = w.after & (w.c["source"] == "search")
    w.c["n_prompt"][rows] = np.minimum(w.c["n_prompt"][rows], 150)


def prompts_cut_harder(w: World) -> None:
    w.c["logit"][w.after & (w.c["source"] == "search")] -= 0.8


def calls_decay(w: World) -> None:
    rows = w.share(w.c["tool"] == "web_search", np.clip(0.03 * (w.c["step"] - w.at), 0, 0.35))
    w.flag(rows, "tool_call_unparsed")


def _scale(w: World, key: str, by: float) -> None:
    steps, values = w.logged[("", key)]
    w.logged[("", key)] = (
        steps,
        [v * (by if s >= w.at else 1.0) for s, v in zip(steps, values, strict=True)],
    )


SEVERAL = ("mixed", "sigmoid", "asynchronous")
SOURCES = ("mixed", "sigmoid", "ragged")
CAUSES = {
    "rewards of a source become 0": Cause({"rewards": zeros_of_a_source}, ["reward_function", "reward_changed", "reward_moved"], ["code"]),
    "retriever finds nothing": Cause({"ability": retriever_is_useless, "tools": retriever_is_asked_again}, ["outcome_moved", "reward_moved", "reward_changed", "tools_failing"], ["search"]),
    "a source drops out": Cause({"layout": source_drops_out}, ["data_mix"], ["code"], SOURCES),
    "top_p lowered": Cause({"policy": lower_top_p}, ["sampler_mismatch", "outcome_moved"], ["mismatch|logprob"]),
    "second BOS": Cause({"lengths": one_token_more, "flags": second_bos}, ["mask_or_template"], ["bos_anomaly"]),
    "advantages not scaled": Cause({"flags": advantages_not_scaled, "metrics": gradient_shrinks}, ["update_moved", "outcome_moved", "moved"], ["grad_norm|advantage"]),
    "one engine stays behind": Cause({"policy": one_engine_stays_behind}, ["weights_not_synchronised", "engine_off"], ["vllm-1"], ("sigmoid", "asynchronous")),
    "judge swapped": Cause({"rewards": judge_swapped}, ["reward_changed", "reward_moved"], ["judge"]),
    "seeded engine": Cause({"text": seeded_engine, "lengths": seeded_engine, "rewards": seeded_engine, "flags": seeded_engine_flags}, ["duplicate_completions", "mask_or_template", "engine_off", "moved"], ["duplicate_completions"], SEVERAL),
    "system prompt lost": Cause({"lengths": prompts_shorter, "rewards": format_forgotten}, ["data_mix"], ["n_prompt"]),
    "language drifts": Cause({"text": other_language, "flags": other_language_flags}, ["mask_or_template", "outcome_moved", "moved"], ["gibberish"]),
    "KL coefficient zeroed": Cause({"metrics": kl_unbound}, ["update_moved", "moved"], ["kl"]),
    "learning rate too high": Cause({"ability": lr_unlearns, "policy": lr_narrows, "metrics": lr_jumps}, ["update_moved", "collapse"], ["grad_norm|entropy|logprob"]),
    "group size halved": Cause({"layout": half_groups}, ["group_size", "data_mix", "moved"], ["roup size|group/size"]),
    "prompts of a source cut": Cause({"lengths": prompts_cut, "ability": prompts_cut_harder}, ["data_mix"], ["search"], SOURCES),
    "tool calls decay": Cause({"flags": calls_decay}, ["tools_failing"], ["tool_call_unparsed"]),
}  # fmt: skip
