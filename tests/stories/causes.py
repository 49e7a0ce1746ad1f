"""What is planted: one function a stage, from the world's step on, and what an entry has to speak of."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tests.stories.world import Stage, World


@dataclass(frozen=True)
class Cause:
    """One planted cause.

    Attributes:
        changes: stage -> what changes after it.
        said_by: kinds of diagnosis that name it.
        words: what the sentence has to hold, each of them; `a|b` is one of two.
        kinds: runs it makes sense in.
    """

    changes: Mapping[str, Stage]
    said_by: Sequence[str]
    words: Sequence[str] = ()
    kinds: Sequence[str] = ("mixed", "ragged", "sigmoid", "resumed")


CAUSES: dict[str, Cause] = {}


def cause(
    name: str,
    stage: str,
    said_by: Sequence[str],
    words: Sequence[str] = (),
    kinds: Sequence[str] = ("mixed", "ragged", "sigmoid", "resumed"),
) -> Callable[[Stage], Stage]:
    """Registers a function as what a cause changes after a stage."""

    def register(change: Stage) -> Stage:
        known = CAUSES.get(name)
        changes = {**(known.changes if known else {}), stage: change}
        CAUSES[name] = Cause(changes, said_by, words, kinds)
        return change

    return register


def _of(w: World, column: str, value: str) -> np.ndarray:
    return w.after & (w.c[column] == value)


@cause("mask leak", "flags", ["mask_or_template"], ["mask_leak", "code"])
def mask_leak(w: World) -> None:
    w.flag(w.share(_of(w, "source", "code"), 0.9), "mask_leak")


@cause("mask off by one in a source", "flags", ["mask_or_template"], ["mask_shifted", "search"])
def mask_off_by_one(w: World) -> None:
    w.flag(_of(w, "source", "search"), "mask_shifted")
    w.flag(w.share(_of(w, "source", "search"), 0.95), "eos_untrained")


@cause("tokenizer mismatch in a source", "flags", ["mask_or_template", "source_off"], ["math"])
def tokenizer_mismatch(w: World) -> None:
    rows = _of(w, "source", "math")
    w.flag(w.share(rows, 0.8), "retokenized")
    w.flag(w.share(rows, 0.5), "template_drift")


@cause("tokenizer mismatch in a source", "policy", ["mask_or_template", "source_off"], ["math"])
def tokenizer_mismatch_policy(w: World) -> None:
    rows = _of(w, "source", "math")
    w.c["mismatch_k3"][rows] *= w.rng.uniform(6, 20)


@cause("groups scrambled", "layout", ["group_of_several_prompts"])
def groups_scrambled(w: World) -> None:
    c = w.c
    rows = np.flatnonzero(w.after & w.train)
    for step in np.unique(c["step"][rows]):
        of_step = rows[c["step"][rows] == step]
        c["group"][of_step] = w.rng.permutation(c["group"][of_step])


@cause("tool breaks", "tools", ["tools_failing"], ["ConnectionError"])
def tool_breaks(w: World) -> None:
    rows = w.after & (w.c["tool"] == "python")
    w.c["error_rate"][rows] = 0.6
    w.c["signature"][w.share(rows, 0.85)] = "ConnectionError: sandbox <n> refused"


@cause("tool slower and cut", "tools", ["tools_failing", "slower"], ["time"])
def tool_slower(w: World) -> None:
    rows = w.after & (w.c["tool"] == "python")
    w.c["tool_seconds"][rows] *= 4
    w.c["error_rate"][rows] = 0.35
    w.c["signature"][w.share(rows, 0.8)] = "TimeoutError: timed out after <n> s"


@cause("reward function failing", "rewards", ["reward_function"], ["code"])
def reward_failing(w: World) -> None:
    rows = w.share(_of(w, "source", "code"), 0.3)
    w.c["status"][rows] = "error"


@cause("reward constant in a source", "policy", ["reward_function"], ["math"])
def reward_constant(w: World) -> None:
    w.c["reward"][_of(w, "source", "math")] = 0.0
    w.c["success"][_of(w, "source", "math")] = 0.0


@cause(
    "one engine off",
    "policy",
    ["engine_off"],
    ["vllm-1"],
    ("mixed", "alternating", "sigmoid", "asynchronous"),
)
def engine_off(w: World) -> None:
    rows = _of(w, "engine", "vllm-1") & w.train
    w.c["mismatch_k3"][rows] *= 15
    w.c["mismatch_abs_max"][rows] *= 3


@cause(
    "temperature on one engine",
    "policy",
    ["engine_off"],
    ["vllm-0"],
    ("mixed", "alternating", "sigmoid", "asynchronous"),
)
def engine_temperature(w: World) -> None:
    rows = _of(w, "engine", "vllm-0")
    w.c["mean_logprob"][rows] *= 1.5
    w.c["mismatch_k1"][rows] += 0.05
    w.c["mismatch_k3"][rows] *= 5
    w.c["log_length"][rows] += 0.1


@cause(
    "weights frozen for ten steps",
    "policy",
    ["weights_not_synchronised"],
    [],
    ("mixed", "asynchronous", "plain", "ragged"),
)
def weights_frozen(w: World) -> None:
    c = w.c
    rows = w.after & (c["step"] < w.at + 10)
    c["version_max"][rows] = np.minimum(c["version_max"][rows], w.at - 1)
    c["version_min"][rows] = np.minimum(c["version_min"][rows], w.at - 1)


@cause("curriculum switch", "layout", ["data_mix"], [], ("mixed", "sigmoid", "ragged"))
def curriculum(w: World) -> None:
    c = w.c
    move = w.share(w.after & w.train & (c["source"] == "math"), 1.0)
    groups = c["step"] * 1000 + c["group"]
    moved = np.isin(groups, [g for g in np.unique(groups[move]) if w.rng.random() < 0.85])
    rows = moved & move
    c["source"][rows] = "search"
    c["prompt_key"][rows] = [f"search-hard-{k[-4:]}" for k in c["prompt_key"][rows]]


@cause("duplicate prompts", "layout", ["duplicate_prompts"])
def duplicates(w: World) -> None:
    c = w.c
    for step in range(w.at, w.n_steps):
        rows = w.train & (c["step"] == step)
        keys = c["prompt_key"]
        for source in np.unique(c["source"][rows]):
            here = rows & (c["source"] == source)
            few = np.unique(keys[here])[:2]
            at = np.flatnonzero(here)
            chosen = w.rng.random(1000) < 0.6
            hit = at[chosen[c["group"][at] % 1000]]
            keys[hit] = few[c["group"][hit] % len(few)]


@cause("evaluation set changed", "layout", ["evaluation_set"], [], ("mixed", "sigmoid", "resumed", "plain"))
def evaluation_changed(w: World) -> None:
    rows = w.after & ~w.train
    w.c["prompt_key"][rows] = [k.replace("eval-", "eval-v2-") for k in w.c["prompt_key"][rows]]


@cause("length penalty switched on", "rewards", ["reward_changed"], ["length_penalty"])
def length_penalty(w: World) -> None:
    w.c["extra_name"] = "length_penalty"
    w.c["extra"] = np.where(w.after, -0.25 * np.minimum(w.c["n_sampled"] / 1000, 2), 0.0)


@cause("length penalty switched on", "lengths", ["reward_changed"], ["length_penalty"])
def length_penalty_shortens(w: World) -> None:
    w.c["log_length"] -= 0.02 * np.clip(w.c["step"] - w.at, 0, 20)


@cause("truncation by a lower limit", "lengths", ["truncation"], ["length"])
def lower_limit(w: World) -> None:
    w.c["limit"][w.after] = int(np.quantile(np.exp(w.c["log_length"][w.after]), 0.75))


@cause("judge likes a phrase", "text", ["reward_and_purpose", "phrase"], ["absolutely certain"])
def phrase_spreads(w: World) -> None:
    c = w.c
    share = np.where(w.after, 0.15 + 0.75 / (1 + np.exp(-(c["step"] - w.at - 8) / 3.0)), 0.01)
    rows = w.share(w.train, share)
    c["phrase"] = rows
    c["reply"][rows] = [f"{text} I am absolutely certain of this." for text in c["reply"][rows]]


@cause("judge likes a phrase", "rewards", ["reward_and_purpose", "phrase"], ["absolutely certain"])
def phrase_pays(w: World) -> None:
    rows = w.c["phrase"] & w.after
    w.c["judge"][rows] = np.clip(w.c["judge"][rows] + 0.6, 0, 1.6)


@cause("few rows carry the update", "policy", ["few_rows"], [], ("mixed", "sigmoid", "ragged", "plain"))
def few_rows(w: World) -> None:
    for step in range(w.at, w.n_steps):
        rows = np.flatnonzero(w.train & (w.c["step"] == step))
        w.c["update_weight"][w.rng.choice(rows, 2, replace=False)] *= 600


@cause("diversity collapses", "policy", ["collapse"], [])
def collapse(w: World) -> None:
    c = w.c
    gone = np.clip((c["step"] - w.at + 1) / 6.0, 0, 1) * 0.85
    c["entropy"] = c["entropy"] * (1 - gone)
    c["mean_logprob"] = c["mean_logprob"] * (1 - gone)


@cause("groups die", "ability", ["dead_groups"], [], ("mixed", "sigmoid", "ragged"))
def groups_die(w: World) -> None:
    w.c["logit"][w.after & w.train] += 6.0


@cause("groups die", "rewards", ["dead_groups"], [], ("mixed", "sigmoid", "ragged"))
def groups_die_rewards(w: World) -> None:
    w.c["judge"][w.after] = 1.0
    w.c["format"][w.after] = 1.0


@cause("format reward saturates", "rewards", ["reward_changed", "component_constant"], ["format"])
def format_saturates(w: World) -> None:
    w.c["format"][w.after] = 1.0


@cause("length bias", "lengths", ["length_bias"], ["n_sampled|component/judge"])
def length_bias(w: World) -> None:
    w.c["log_length"] += np.clip(0.035 * (w.c["step"] - w.at), 0, 1.2)


@cause("length bias", "rewards", ["length_bias"], ["n_sampled|component/judge"])
def length_bias_pays(w: World) -> None:
    c = w.c
    length = np.log(c["n_sampled"])
    usual = np.bincount(c["step"], length) / np.maximum(np.bincount(c["step"]), 1)
    z = (length - usual[c["step"]]) / 0.5
    c["judge"] = np.where(w.after, c["judge"] + 0.5 * z, c["judge"])


@cause("reward scale halved", "policy", ["reward_changed", "reward_moved"], ["reward"], ("plain",))
def reward_halved(w: World) -> None:
    w.c["reward"][w.after] *= 0.5


@cause("memorised prompts", "layout", ["memorised"], [], ("plain", "mixed"))
def few_prompts(w: World) -> None:
    c = w.c
    rows = w.after & w.train
    c["prompt_key"][rows] = [
        f"{s}-easy-{(int(t) * 40 + int(g)) % 48:02d}"
        for s, t, g in zip(c["source"][rows], c["step"][rows], c["group"][rows], strict=True)
    ]


@cause("memorised prompts", "ability", ["memorised"], [], ("plain", "mixed"))
def always_solved(w: World) -> None:
    rows = np.asarray(["-easy-" in k for k in w.c["prompt_key"]])
    w.c["logit"][rows] = 7.0


@cause("learning rate changed", "metrics", ["configuration", "moved"], ["lr"], ("mixed", "plain"))
def learning_rate(w: World) -> None:
    steps, values = w.logged[("", "train/lr")]
    w.logged[("", "train/lr")] = (
        steps,
        [v * (10.0 if s >= w.at else 1.0) for s, v in zip(steps, values, strict=True)],
    )


@cause(
    "an engine went away and another came",
    "layout",
    ["engines", "engine_off"],
    ["vllm-9"],
    ("mixed", "sigmoid"),
)
def engine_replaced(w: World) -> None:
    w.c["engine"][_of(w, "engine", "vllm-1")] = "vllm-9"


@cause(
    "an engine went away and another came",
    "policy",
    ["engines", "engine_off"],
    ["vllm-9"],
    ("mixed", "sigmoid"),
)
def new_engine_off(w: World) -> None:
    rows = (w.c["engine"] == "vllm-9") & w.train
    w.c["mismatch_k3"][rows] *= 10


def both(first: str, second: str) -> dict[str, Stage]:
    """The changes of two causes at once."""
    changes: dict[str, Stage] = {}
    for name in (first, second):
        for stage, change in CAUSES[name].changes.items():
            earlier = changes.get(stage)
            if earlier is None:
                changes[stage] = change
            else:
                changes[stage] = _then(earlier, change)
    return changes


def _then(first: Stage, second: Stage) -> Stage:
    def run(world: World) -> None:
        first(world)
        second(world)

    return run


UNTUNED = (
    "tokenizer mismatch in a source",
    "tool slower and cut",
    "duplicate prompts",
    "temperature on one engine",
    "an engine went away and another came",
    "reward constant in a source",
    "learning rate changed",
)
"""Causes on which no threshold was tuned."""
