"""Two sets of causes that were written before any rule was made for them, and run once before any was changed.

Rules were mended after `FIRST` had been looked at, on other seeds than those reported. `SECOND` was run when that
was done and not before, so its figures say what the rules do with causes that nobody had in mind. An entry counts
when its sentence names what was planted, whatever kind of diagnosis it is.
"""

from __future__ import annotations

import numpy as np

from tests.stories.causes import Cause
from tests.stories.world import World, groups_of


def _logged(w: World, key: str, change) -> None:
    """Changes a logged number from the cause's step on: `change(value, steps since)`."""
    steps, values = w.logged[("", key)]
    w.logged[("", key)] = (
        steps,
        [change(v, s - w.at) if s >= w.at else v for s, v in zip(steps, values, strict=True)],
    )


def wrong_reference(w: World) -> None:
    """Another checkpoint is loaded as the reference: the policy is at once farther from it."""
    _logged(w, "train/kl", lambda v, since: v + 0.012)


def judge_of_five_grades(w: World) -> None:
    c = w.c
    c["judge"] = np.where(w.after, np.round(4 * c["judge"]) / 4, c["judge"])


def tool_turns_tokenized_again(w: World) -> None:
    """Text of a tool turn is tokenized again, in one source and only where tools were called twice or more."""
    rows = w.after & w.train & (w.c["source"] == "code") & (w.c["n_calls"] >= 2)
    w.c["mismatch_k3"][rows] *= 6
    w.c["mismatch_abs_max"][rows] *= 3


def answer_in_the_prompt(w: World) -> None:
    rows = w.after & (w.c["source"] == "search")
    w.c["n_prompt"][rows] += 9


def answer_is_read_off(w: World) -> None:
    w.c["logit"][w.after & (w.c["source"] == "search")] += 2.0


def advantages_by_batch(w: World) -> None:
    """Advantages are divided by the spread of the batch and no longer by that of their group."""
    c = w.c
    index, n_groups = groups_of(w)
    known = np.isfinite(c["reward"])
    mean = np.bincount(index, np.where(known, c["reward"], 0.0), n_groups)
    mean /= np.maximum(np.bincount(index, known, n_groups), 1)
    centred = c["reward"] - mean[index]
    for step in range(w.at, w.n_steps):
        rows = w.train & (c["step"] == step)
        c["advantage"][rows] = centred[rows] / (np.nanstd(c["reward"][rows]) + 1e-4)


def engine_of_older_weights(w: World) -> None:
    """One engine was restarted from the base model and says it has the newest version."""
    w.c["logit"][w.after & (w.c["engine"] == "vllm-1")] -= 1.6


def slow_calls_earn_nothing(w: World) -> None:
    """The grader gives 0 where the interpreter took long."""
    c = w.c
    slow = np.nan_to_num(c["tool_seconds"]) > 0.85
    rows = w.after & (c["tool"] == "python") & slow
    for name in ("success", "format", "judge"):
        c[name][rows] = 0.0


def rows_have_locales(w: World) -> None:
    of = np.asarray(["en", "en", "en", "de", "fr"], object)
    w.columns["extra/locale"] = of[w.c["group"] % 5]


def decimal_commas_are_wrong(w: World) -> None:
    rows = w.after & (w.columns["extra/locale"] == "de") & (w.c["source"] == "math")
    w.c["success"][w.share(rows, 0.8)] = 0.0


def fewer_turns(w: World) -> None:
    c = w.c
    rows = w.after & (c["n_calls"] > 2)
    c["n_calls"][rows] = 2
    c["logit"][rows] -= 0.8


def evaluation_with_another_template(w: World) -> None:
    w.c["n_prompt"][w.after & ~w.train] += 17


def evaluation_solves_less(w: World) -> None:
    w.c["logit"][w.after & ~w.train] -= 0.3


def loader_stands_still(w: World) -> None:
    """For twelve steps the loader gives the prompts of one."""
    c = w.c
    keys = {
        (g, s): k
        for g, s, k in zip(
            *(c[name][w.train & (c["step"] == w.at)] for name in ("group", "source", "prompt_key")),
            strict=True,
        )
    }
    of_source: dict[str, list[str]] = {}
    for (_, source), key in sorted(keys.items()):
        of_source.setdefault(source, []).append(key)
    for row in np.flatnonzero(w.train & (c["step"] > w.at) & (c["step"] < w.at + 12)):
        known = of_source.get(c["source"][row])
        if known:
            c["prompt_key"][row] = known[c["group"][row] % len(known)]


def reward_doubled_in_a_source(w: World) -> None:
    w.c["reward"][w.after & (w.c["source"] == "code")] *= 2.0


def prompts_cut_at_the_left(w: World) -> None:
    c = w.c
    rows = w.after & w.train & (c["n_prompt"] > 185)
    c["n_prompt"][rows] = 185
    c["logit"][rows] -= 0.7


def node_lags_more_and_more(w: World) -> None:
    c = w.c
    rows = w.after & (c["engine"] == "vllm-1")
    late = (c["step"][rows] - w.at) // 3
    for name in ("version_min", "version_max"):
        c[name][rows] = np.maximum(c[name][rows] - late, 0)


def coarser_cache(w: World) -> None:
    w.c["mismatch_k3"][w.after] *= 1.9
    w.c["mismatch_abs_max"][w.after] *= 1.3


def stop_string_added(w: World) -> None:
    """A stop string cuts a third of a source's answers short; the others are as they were."""
    source = "search" if w.kind.n_sources > 2 else "code"
    rows = w.share(w.after & (w.c["source"] == source), 0.3)
    w.c["log_length"][rows] = w.rng.normal(3.2, 0.2, int(rows.sum()))
    w.c["logit"][rows] -= 2.0


def entropy_bonus(w: World) -> None:
    risen = 1 + 0.025 * np.clip(w.c["step"] - w.at, 0, 30)
    w.c["entropy"] *= risen
    w.c["mean_logprob"] *= risen


def sandbox_without_network(w: World) -> None:
    rows = w.share(w.after & (w.c["tool"] == "python"), 0.12)
    w.c["error_rate"][rows] = 0.9
    w.c["signature"][rows] = "gaierror: name resolution failed"


def rows_have_graders(w: World) -> None:
    w.columns["extra/grader"] = np.asarray([f"grader-{v}" for v in w.rng.integers(0, 4, w.n)], object)


def one_grader_is_stuck(w: World) -> None:
    rows = w.after & (w.columns["extra/grader"] == "grader-2")
    w.c["judge"][rows] = 0.5


def refusals(w: World) -> None:
    rows = w.share(w.after & w.train, 0.12)
    w.c["reply"][rows] = "I am sorry, but I cannot help with that request."
    w.c["log_length"][rows] = w.rng.normal(3.0, 0.15, int(rows.sum()))
    w.c["refused"] = rows


def refusals_earn_nothing(w: World) -> None:
    w.c["success"][w.c["refused"]] = 0.0


SEVERAL = ("mixed", "sigmoid", "asynchronous")
SOURCES = ("mixed", "sigmoid", "ragged")
FIRST = {
    "wrong reference model": Cause({"metrics": wrong_reference}, (), ["kl"], ("mixed", "plain", "sigmoid")),
    "judge of five grades": Cause({"rewards": judge_of_five_grades}, (), ["judge"]),
    "tool turns tokenized again": Cause({"policy": tool_turns_tokenized_again}, (), ["mismatch", "code"], SOURCES),
    "answer in the prompt": Cause({"lengths": answer_in_the_prompt, "ability": answer_is_read_off}, (), ["search"], SOURCES),
    "advantages by batch": Cause({"flags": advantages_by_batch}, (), ["dvantage"]),
    "engine of older weights": Cause({"ability": engine_of_older_weights}, (), ["vllm-1"], SEVERAL),
    "slow calls earn nothing": Cause({"rewards": slow_calls_earn_nothing}, (), ["code|python|timing/tool", "reward|success|judge|format|correct"], SOURCES),
    "decimal commas are wrong": Cause({"layout": rows_have_locales, "rewards": decimal_commas_are_wrong}, (), ["locale de"], SOURCES),
    "fewer turns": Cause({"tools": fewer_turns}, (), ["n_turns|n_tool_calls"]),
    "evaluation with another template": Cause({"lengths": evaluation_with_another_template, "ability": evaluation_solves_less}, (), ["eval"], ("mixed", "sigmoid", "plain")),
    "loader stands still": Cause({"layout": loader_stands_still}, (), ["rompt"], ("mixed", "plain", "sigmoid")),
    "reward doubled in a source": Cause({"policy": reward_doubled_in_a_source}, (), ["reward", "code"], SOURCES),
    "prompts cut at the left": Cause({"tools": prompts_cut_at_the_left}, (), ["n_prompt"]),
    "a node lags more and more": Cause({"policy": node_lags_more_and_more}, (), ["vllm-1"], ("mixed", "sigmoid", "asynchronous")),
    "coarser cache": Cause({"policy": coarser_cache}, (), ["mismatch"]),
    "stop string added": Cause({"lengths": stop_string_added}, (), ["n_sampled"], SOURCES),
    "entropy bonus": Cause({"policy": entropy_bonus}, (), ["entropy|logprob"]),
    "sandbox without network": Cause({"tools": sandbox_without_network}, (), ["gaierror"]),
    "one grader is stuck": Cause({"layout": rows_have_graders, "rewards": one_grader_is_stuck}, (), ["grader-2"], SOURCES),
    "refusals": Cause({"lengths": refusals, "rewards": refusals_earn_nothing}, (), ["cannot help|sorry|n_sampled"]),
}  # fmt: skip


def limit_on_one_engine(w: World) -> None:
    rows = w.after & (w.c["engine"] == "vllm-0")
    w.c["limit"][rows] = int(np.quantile(np.exp(w.c["log_length"][rows]), 0.85))


def optimiser_state_lost(w: World) -> None:
    _logged(w, "train/grad_norm", lambda v, since: v * (1 + 4 * 0.85**since))


def harder_prompts_in_a_source(w: World) -> None:
    c = w.c
    rows = w.after & w.train & (c["source"] == "code")
    c["prompt_key"][rows] = [f"{key}-v2" for key in c["prompt_key"][rows]]
    c["harder"] = rows


def harder_prompts_are_solved_less(w: World) -> None:
    w.c["logit"][w.c["harder"]] -= 1.8


def judge_samples(w: World) -> None:
    """The judge is sampled at a temperature: as good on average, and noisier."""
    c = w.c
    noise = w.rng.normal(0, 0.3, w.n)
    c["judge"] = np.where(w.after, np.clip(c["judge"] + noise, 0, 1), c["judge"])


def search_is_cut(w: World) -> None:
    """Results of a search are cut, so the model asks again and writes more."""
    rows = w.after & (w.c["tool"] == "web_search")
    w.c["n_calls"][rows] += w.rng.binomial(1, 0.7, int(rows.sum()))
    w.c["log_length"][rows] += 0.3


def rewards_are_cached(w: World) -> None:
    """The cache of the reward function forgets the answer in its key: a group shares the first rollout's reward."""
    c = w.c
    index, n_groups = groups_of(w)
    hit = (w.rng.random(n_groups) < 0.4)[index] & w.after
    _, first = np.unique(index, return_index=True)
    for name in ("success", "format", "judge"):
        c[name] = np.where(hit, c[name][first][index], c[name])


def engine_thinks_first(w: World) -> None:
    rows = w.share(w.after & (w.c["engine"] == "vllm-1"), 0.35)
    w.c["log_length"][rows] += 1.1
    w.c["thinks"] = rows


def engine_thinks_first_flags(w: World) -> None:
    w.flag(w.share(w.c["thinks"], 0.5), "thinking_unclosed")


def labels_flip(w: World) -> None:
    rows = w.share(w.after & (w.c["source"] == "math"), 0.3)
    w.c["success"][rows] = 1.0 - w.c["success"][rows]


def rows_have_regions(w: World) -> None:
    of = np.asarray(["eu", "us", "us", "asia"], object)
    w.columns["extra/region"] = of[w.rng.integers(0, 4, w.n)]


def region_is_slow(w: World) -> None:
    rows = w.after & (w.columns["extra/region"] == "asia")
    w.c["tool_seconds"][rows] *= 2.2


def rewards_unknown_of_long_answers(w: World) -> None:
    """The judge refuses long inputs."""
    long = w.c["n_sampled"] > np.quantile(w.c["n_sampled"], 0.85)
    w.c["status"][w.after & long] = "error"


SECOND = {
    "limit on one engine": Cause({"lengths": limit_on_one_engine}, (), ["vllm-0"], SEVERAL),
    "optimiser state lost": Cause({"metrics": optimiser_state_lost}, (), ["grad_norm"]),
    "harder prompts in a source": Cause({"layout": harder_prompts_in_a_source, "ability": harder_prompts_are_solved_less}, (), ["code"], SOURCES),
    "judge samples": Cause({"rewards": judge_samples}, (), ["judge"]),
    "search results are cut": Cause({"tools": search_is_cut}, (), ["search", "n_turns|n_tool_calls|n_sampled"], SOURCES),
    "rewards are cached": Cause({"rewards": rewards_are_cached}, (), ["equal rewards|tie|reward"]),
    "one engine thinks first": Cause({"lengths": engine_thinks_first, "flags": engine_thinks_first_flags}, (), ["vllm-1"], SEVERAL),
    "labels flip": Cause({"rewards": labels_flip}, (), ["math", "success|correct|reward"], SOURCES),
    "a region is slow": Cause({"layout": rows_have_regions, "tools": region_is_slow}, (), ["region asia"], SOURCES),
    "rewards of long answers unknown": Cause({"rewards": rewards_unknown_of_long_answers}, (), ["reward"]),
}  # fmt: skip
