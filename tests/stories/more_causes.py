"""Eleven further causes. Rules were changed after some of them had failed on other seeds; not after `UNTUNED`."""

from __future__ import annotations

import numpy as np

from tests.stories.causes import Cause
from tests.stories.world import World


def judge_hacked(w: World) -> None:
    c = w.c
    c["judge"] = c["judge"] + 0.03 * np.clip(c["step"] - w.at, 0, 40) * w.train
    lost = w.rng.random(w.n) < np.clip(0.03 * (c["step"] - w.at), 0, 0.9)
    c["success"] = np.where(w.train, c["success"], c["success"] * ~lost)


def judge_rescaled(w: World) -> None:
    w.c["judge"][w.after] *= 2.5


def engine_without_end(w: World) -> None:
    w.c["log_length"][w.after & (w.c["engine"] == "vllm-1")] += 0.7


def weights_pushed_seldom(w: World) -> None:
    c = w.c
    late = (c["step"] - w.at) % 8
    for name in ("version_min", "version_max"):
        c[name] = np.where(w.after, np.maximum(c[name] - late, 0), c[name])


def gradient_explodes(w: World) -> None:
    steps, values = w.logged[("", "train/grad_norm")]
    w.logged[("", "train/grad_norm")] = (
        steps,
        [v * (8.0 if s >= w.at else 1.0) for s, v in zip(steps, values, strict=True)],
    )


def system_prompt_grows(w: World) -> None:
    w.c["n_prompt"][w.after] += 150


def half_unparsed(w: World) -> None:
    rows = w.after & (w.c["tool"] == "web_search")
    w.flag(w.share(rows, 0.5), "tool_call_unparsed")


def search_rewards_lost(w: World) -> None:
    w.c["status"][w.share(w.after & (w.c["source"] == "search"), 0.4)] = "timeout"


def answers_halve(w: World) -> None:
    w.c["log_length"][w.after & w.train] -= 0.7


def more_turns_in_a_source(w: World) -> None:
    rows = w.after & (w.c["source"] == "code")
    w.c["n_calls"][rows] += 2


def tools_slow_on_one_engine(w: World) -> None:
    w.c["tool_seconds"][w.after & (w.c["engine"] == "vllm-0")] *= 5


UNTUNED = ("answers halve", "more turns in a source", "tools slow on one engine")
"""Causes that were run once, after the last change of a rule."""
SEVERAL = ("mixed", "sigmoid", "asynchronous")
CAUSES = {
    "judge hacked without a phrase": Cause({"rewards": judge_hacked}, ["reward_and_purpose", "reward_changed"], [], ("mixed", "sigmoid")),
    "judge rescaled": Cause({"rewards": judge_rescaled}, ["reward_changed"], ["judge"]),
    "one engine never ends": Cause({"lengths": engine_without_end}, ["engine_off"], ["vllm-1"], SEVERAL),
    "weights pushed every eighth step": Cause({"policy": weights_pushed_seldom}, ["weights_not_synchronised"], [], ("mixed", "plain", "ragged")),
    "gradient explodes": Cause({"metrics": gradient_explodes}, ["update_moved"], ["grad_norm"]),
    "system prompt grows": Cause({"lengths": system_prompt_grows}, ["data_mix"], [], ("mixed", "ragged", "plain")),
    "tool calls unparsed": Cause({"tools": half_unparsed}, ["tools_failing"], ["tool_call_unparsed"]),
    "rewards of a source time out": Cause({"rewards": search_rewards_lost}, ["reward_function"], ["search"]),
    "answers halve": Cause({"lengths": answers_halve}, ["outcome_moved"], ["n_sampled"]),
    "more turns in a source": Cause({"tools": more_turns_in_a_source}, ["outcome_moved"], ["n_turns", "code"]),
    "tools slow on one engine": Cause({"tools": tools_slow_on_one_engine}, ["slower"], ["vllm-0"], SEVERAL),
}  # fmt: skip
