"""Fourteen more causes that were written before any rule was made for them, and run once before any was changed.

An entry counts when its sentence names what was planted, whatever kind of diagnosis it is.
"""

from __future__ import annotations

import numpy as np

from tests.stories.causes import Cause
from tests.stories.world import World, groups_of


def search_times_out(w: World) -> None:
    rows = w.share(w.after & (w.c["tool"] == "web_search"), 0.2)
    w.c["error_rate"][rows] = 0.9
    w.c["signature"][rows] = "HTTP <n>: upstream request timed out"
    w.c["tool_seconds"][rows] += 30.0


def engine_without_stop_token(w: World) -> None:
    rows = w.share(w.after & (w.c["engine"] == "vllm-1"), 0.2)
    w.c["log_length"][rows] = 9.0


def reward_clipped(w: World) -> None:
    w.c["reward"] = np.where(w.after, np.clip(w.c["reward"], 0.1, 1.0), w.c["reward"])


def system_prompt_changed(w: World) -> None:
    w.c["n_prompt"][w.after] += 14


def rows_have_ranks(w: World) -> None:
    w.columns["extra/rank"] = np.asarray([f"rank-{g % 8}" for g in w.c["group"]], object)


def rewards_of_a_rank_are_lost(w: World) -> None:
    rows = w.after & w.train & (w.columns["extra/rank"] == "rank-5")
    for name in ("success", "format", "judge"):
        w.c[name][rows] = 0.0


def filter_removed(w: World) -> None:
    """A quarter of the prompts cannot be solved; they were filtered out before."""
    keys = w.c["prompt_key"]
    hopeless = {key for key in sorted(set(keys[w.after & w.train])) if w.rng.random() < 0.25}
    rows = w.after & w.train & np.isin(keys.astype(str), sorted(hopeless))
    w.c["prompt_key"][rows] = [f"unfiltered-{key}" for key in keys[rows]]


def unfiltered_are_hopeless(w: World) -> None:
    w.c["logit"][[str(key).startswith("unfiltered") for key in w.c["prompt_key"]]] -= 6.0


def rows_have_languages(w: World) -> None:
    languages = np.asarray(["python", "python", "rust", "go"], object)
    code = (w.c["source"] == "code") if w.kind.n_sources > 1 else np.ones(w.n, bool)
    w.columns["extra/language"] = np.where(code, languages[w.c["group"] % 4], None)


def rust_is_gone(w: World) -> None:
    rows = w.after & (w.columns["extra/language"] == "rust")
    w.c["error_rate"][rows] = 0.9
    w.c["signature"][rows] = "rustc: command not found"


def template_changed(w: World) -> None:
    w.c["n_prompt"][w.after] += 4
    w.c["log_length"][w.after] += 0.05


def template_forgets_the_end(w: World) -> None:
    w.flag(w.share(w.after, 0.12), "thinking_unclosed")


def kl_held_down(w: World) -> None:
    steps, values = w.logged[("", "train/kl")]
    w.logged[("", "train/kl")] = (
        steps,
        [
            v * (0.3 + 0.7 * 0.7 ** (s - w.at + 1)) if s >= w.at else v
            for s, v in zip(steps, values, strict=True)
        ],
    )


def other_language_in_a_source(w: World) -> None:
    source = "search" if w.kind.n_sources > 2 else "code"
    rows = w.share(w.after & (w.c["source"] == source), 0.4)
    w.c["reply"][rows] = ["Por lo tanto, la respuesta final es la siguiente."] * int(rows.sum())


def neighbours_advantages(w: World) -> None:
    """The baseline is that of the next group in the batch."""
    c = w.c
    index, n_groups = groups_of(w)
    known = np.isfinite(c["reward"])
    mean = np.bincount(index, np.where(known, c["reward"], 0.0), n_groups)
    mean /= np.maximum(np.bincount(index, known, n_groups), 1)
    wrong = c["reward"] - np.roll(mean, -1)[index]
    c["advantage"] = np.where(w.after, 2.0 * wrong, c["advantage"])


def loss_is_nan(w: World) -> None:
    steps, values = w.logged[("", "train/loss")]
    lost = w.rng.random(w.n_steps) < 0.4
    w.logged[("", "train/loss")] = (
        steps,
        [np.nan if s >= w.at and lost[s] else v for s, v in zip(steps, values, strict=True)],
    )


def evaluation_hotter(w: World) -> None:
    w.c["mean_logprob"][w.after & ~w.train] *= 1.7


def evaluation_hotter_solves_less(w: World) -> None:
    w.c["logit"][w.after & ~w.train] -= 0.5


def answers_not_parsed(w: World) -> None:
    w.c["answer"][w.share(w.after, 0.25)] = "[invalid]"


def not_parsed_is_wrong(w: World) -> None:
    w.c["success"][w.c["answer"] == "[invalid]"] = 0.0


SEVERAL = ("mixed", "sigmoid", "asynchronous")
SOURCES = ("mixed", "sigmoid", "ragged")
CAUSES = {
    "search times out for a fifth": Cause({"tools": search_times_out}, (), ["timed out"]),
    "stop token missing on one engine": Cause({"lengths": engine_without_stop_token}, (), ["vllm-1"], SEVERAL),
    "reward clipped": Cause({"policy": reward_clipped}, (), ["reward"]),
    "system prompt changed": Cause({"lengths": system_prompt_changed}, (), ["n_prompt|rompts are"]),
    "rewards of one rank are lost": Cause({"layout": rows_have_ranks, "rewards": rewards_of_a_rank_are_lost}, (), ["rank-5"], ("mixed", "sigmoid", "plain")),
    "filter of prompts removed": Cause({"layout": filter_removed, "ability": unfiltered_are_hopeless}, (), ["tied|dead|hopeless|reward|success|correct|prompt_key"]),
    "sandbox without rust": Cause({"layout": rows_have_languages, "tools": rust_is_gone}, (), ["rust"], SOURCES),
    "chat template changed": Cause({"lengths": template_changed, "flags": template_forgets_the_end}, (), ["thinking_unclosed|n_prompt|rompts are"]),
    "KL coefficient raised": Cause({"metrics": kl_held_down}, (), ["kl"], ("mixed", "plain", "sigmoid")),
    "a source answers in Spanish": Cause({"text": other_language_in_a_source}, (), ["respuesta|por lo|siguiente"], SOURCES),
    "advantages of the next group": Cause({"flags": neighbours_advantages}, (), ["dvantage"]),
    "loss is NaN at times": Cause({"metrics": loss_is_nan}, (), ["loss"], ("mixed", "plain", "ragged")),
    "evaluation sampled hotter": Cause({"policy": evaluation_hotter, "ability": evaluation_hotter_solves_less}, (), ["eval"], ("mixed", "sigmoid", "plain")),
    "answers not parsed": Cause({"text": answers_not_parsed, "rewards": not_parsed_is_wrong}, (), ["invalid"]),
}  # fmt: skip
