"""The equations of a world, from what a rollout is asked to what it earns; each node may be perturbed."""

from __future__ import annotations

import numpy as np

from tests.perturbations.layout import lay_out
from tests.perturbations.replayed import NAME, replay
from tests.perturbations.run import Run, sigmoid
from tests.perturbations.text import system_prompts, tool_schemas
from tests.perturbations.update import flag, log, update

SIGNATURES = ("TypeError: unsupported operand", "HTTP <n>: not found", "SyntaxError: invalid syntax")
MOST_CALLS = 10


def compute(run: Run) -> Run:
    """Computes all columns of a run."""
    if run.spec.world == NAME:
        return replay(run)
    lay_out(run)
    _ability(run)
    _lengths(run)
    _tools(run)
    _written(run)
    _sampling(run)
    _success(run)
    _components(run)
    _reward(run)
    _drop(run)
    update(run)
    flag(run)
    _unknown(run)
    log(run, learned(run))
    return run


def learned(run: Run) -> np.ndarray:
    """[n_steps] log-odds of success that the policy has gained."""
    spec, rng = run.spec, run.constants("curve")
    t, course = np.linspace(0, 1, spec.n_steps), spec.habits.learning
    if spec.learning != "flat" and course:
        late = spec.habits.bend
        return (
            spec.gain
            * {
                "plateaus": 0.5 * sigmoid((t - 0.2) / 0.03) + 0.5 * sigmoid((t - 0.7) / 0.03),
                "fast": 1 - np.exp(-t / 0.06),
                "late": sigmoid((t - 0.7) / 0.05),
                "hinge": np.maximum(0, t - late) / (1 - late),
            }[course]
        )
    if spec.learning == "sigmoid":
        middle, width = rng.uniform(0.3, 0.6), rng.uniform(0.08, 0.15)
        return spec.gain / (1 + np.exp(-(t - middle) / width))
    if spec.learning == "saturating":
        return spec.gain * (1 - np.exp(-t / 0.3))
    return spec.gain * t if spec.learning == "linear" else np.zeros(spec.n_steps)


def _of_prompt(run: Run, name: str, scale: float) -> np.ndarray:
    """[N] a normal property of each row's prompt."""
    known, index = np.unique(run.c["prompt"], return_inverse=True)
    return run.rng(f"prompt {name}").normal(0, scale, len(known))[index]


def _of_source(run: Run, name: str, middle: float, scale: float) -> np.ndarray:
    """[N] a constant of each row's source; a source that came anew has the first one's."""
    table = run.constants(name).normal(middle, scale, len(run.spec.sources))
    return table[np.where(run.c["source"] < len(table), run.c["source"], 0)]


def _ability(run: Run) -> None:
    c = run.c
    c["hardness"] = _of_prompt(run, "hardness", 1.1)
    gained = learned(run) + run.walk("ability", run.spec.walk)
    c["logit"] = _of_source(run, "start", -0.5, 0.4) + gained[c["step"]] - c["hardness"]
    c["logit"] = run.at("logit", c["logit"] + run.spec.habits.memorized * _times_seen(run))
    if run.spec.feedback:
        lost = np.bincount(c["step"], c["logit"] * run.train, run.spec.n_steps)
        mean = lost / np.maximum(np.bincount(c["step"], run.train, run.spec.n_steps), 1)
        before = np.r_[0.0, np.cumsum(mean - gained)[:-1]] / run.spec.n_steps
        c["logit"] = c["logit"] + run.spec.feedback * before[c["step"]]


def _times_seen(run: Run) -> np.ndarray:
    """[N] how often a row's prompt came before in training; 0 in evaluations."""
    first = np.unique(run.group, return_index=True)[1]
    first = first[run.train[first]]
    seen, count = np.zeros(int(run.group[-1]) + 1), {int(p): 0 for p in run.c["prompt"][first]}
    for row in first:
        prompt = int(run.c["prompt"][row])
        seen[run.group[row]] = count[prompt]
        count[prompt] += 1
    return seen[run.group]


def _lengths(run: Run) -> None:
    spec, c, rng = run.spec, run.c, run.rng("lengths")
    noise = rng.standard_t(spec.length_tail, run.n) * 0.4
    grown = spec.length_growth * np.linspace(0, 1, spec.n_steps) + run.walk("length", 0.04)
    c["log_length"] = (
        _of_source(run, "length", spec.log_length, 0.15) + grown[c["step"]] + 0.12 * c["hardness"] + noise
    )
    c["log_length"] = run.at("log_length", c["log_length"])
    c["n_prompt"] = np.maximum(np.round(200 + _of_prompt(run, "n_prompt", 35)), 30)
    c["n_prompt"] = np.round(run.at("n_prompt", c["n_prompt"]))


def _tools(run: Run) -> None:
    c, rng = run.c, run.rng("tools")
    uniform, failed = rng.random((MOST_CALLS, run.n)), rng.random((MOST_CALLS, run.n))
    seconds = rng.lognormal(-0.5, 0.4, run.n)
    share = np.clip(run.at("calls", np.full(run.n, run.spec.tools)) / MOST_CALLS, 0, 1)
    c["n_tool_calls"] = (uniform < share).sum(axis=0).astype(float)
    rate = run.at("error_rate", np.full(run.n, 0.05))
    c["n_tool_errors"] = ((uniform < share) & (failed < rate)).sum(axis=0).astype(float)
    c["n_turns"] = 1 + c["n_tool_calls"]
    if run.spec.tools:
        c["timing/tool"] = run.at("timing/tool", seconds * np.maximum(c["n_tool_calls"], 0.5))
    run.values["error_signatures"] = list(SIGNATURES)
    c["error_signatures"] = run.at("error_signatures", rng.integers(0, len(SIGNATURES), run.n))
    c["error_signatures"] = np.where(c["n_tool_errors"] > 0, c["error_signatures"], -1)


def _written(run: Run) -> None:
    """What perturbations make rows write and read; the text itself is put together when it is asked for."""
    c, sources = run.c, run.values["source"]
    run.values["system"], run.values["tools"] = system_prompts(sources), tool_schemas(sources)
    c["system"] = run.at("system", c["source"])
    c["tools"] = run.at("tools", c["source"] if run.spec.tools else np.full(run.n, -1))
    run.write()


def _sampling(run: Run) -> None:
    c = run.c
    limit = run.at("limit", np.full(run.n, float(run.spec.limit)))
    wanted = np.round(np.exp(np.clip(c["log_length"], 0, 13))) + 8 + 25 * c["n_tool_calls"]
    c["n_sampled"] = np.minimum(wanted, np.round(limit))
    c["n_environment"] = 40 * c["n_tool_calls"] + 15 * c["n_tool_errors"]
    run.values["stop_reason"] = ["stop", "length"]
    c["stop_reason"] = run.at("stop_reason", (c["n_sampled"] >= np.round(limit)).astype(np.int64))


def _success(run: Run) -> None:
    c, rng = run.c, run.rng("success")
    logit = c["logit"] - 0.9 * np.minimum(c["n_tool_errors"], 3) - 4.0 * (c["stop_reason"] == 1)
    if run.spec.graded:
        c["correct"] = np.round(10 * sigmoid(logit + rng.normal(0, 1.2, run.n))) / 10
        c["success"] = (c["correct"] >= 0.8).astype(float)
    else:
        c["success"] = (rng.random(run.n) < sigmoid(logit)).astype(float)
        c["correct"] = c["success"]
    c["success"] = run.at("success", c["success"])


def _components(run: Run) -> None:
    c, rng = run.c, run.rng("components")
    t = c["step"] / run.spec.n_steps
    asked = run.spec.components or {}
    formatted = run.at("format_logit", 1.5 + 1.5 * t)
    liked = sum((w for w in _liked(run)), np.zeros(run.n))
    drawn = {
        "correct": c["correct"],
        "format": (rng.random(run.n) < sigmoid(formatted)).astype(float),
        "judge": np.clip(0.35 + 0.3 * c["success"] + liked + rng.normal(0, 0.15, run.n), 0, 1),
        "brevity": -np.clip(c["n_sampled"] / run.spec.limit, 0, 1),
    }
    for name in asked:
        c[f"component/{name}"] = run.at(f"component/{name}", drawn[name])


def _liked(run: Run) -> list[np.ndarray]:
    """What the judge gives for each phrase, where a perturbation says that it likes what it spreads."""
    written = [p for p in run.perturbations for change in p.changes if change.how == "write"]
    liked = [next((ch.size for ch in p.changes if ch.how == "like"), 0.0) for p in written]
    return [like * rows for like, (_, rows) in zip(liked, run.phrases, strict=True)]


def _reward(run: Run) -> None:
    c, rng = run.c, run.rng("reward")
    weights = run.spec.components or {"correct": 1.0}
    total = sum(w * c.get(f"component/{name}", c["correct"]) for name, w in weights.items())
    total = total + run.spec.reward_noise * rng.standard_t(3, run.n)
    run.values["reward_status"] = ["ok", "timeout", "error"]
    c["reward_status"] = run.at("reward_status", (rng.random(run.n) < 0.003).astype(np.int64))
    c["reward"] = np.where(c["reward_status"] == 0, run.at("reward", total), np.nan)


DISCARDS = ("equal_rewards", "overlong")


def _drop(run: Run) -> None:
    """Leaves out groups whose rollouts all succeed or all fail, or rollouts that hit the limit.

    A step that would lose all its groups keeps them.
    """
    c, drops = run.c, run.spec.habits.drops
    if not drops:
        return
    trained = run.train & run.kept
    n = int(run.group[-1]) + 1
    correct = c["correct"][trained] >= 0.8
    solved, size = (np.bincount(run.group[trained], w, n) for w in (correct, None))
    equal = trained & ((solved == 0) | (solved == size))[run.group]
    left = np.bincount(c["step"], trained & ~equal, run.spec.n_steps)
    run.dropped = equal & (left > 0)[c["step"]]
    if drops == "gone":
        run.kept = run.kept & ~run.dropped
        return
    run.values["discard_reason"] = list(DISCARDS)
    if drops == "overlong":
        run.dropped = np.zeros(run.n, bool)
    overlong = run.train & (c["stop_reason"] == 1) & (drops == "overlong")
    reasons = np.where(run.dropped, 0, np.where(overlong, 1, -1))
    c["discard_reason"] = run.at("discard_reason", reasons)


NULLABLE = ("mismatch_k3", "mean_logprob", "advantage", "success", "n_turns", "clip_share")


def _unknown(run: Run) -> None:
    for name in NULLABLE:
        run.c[name] = run.at(f"null {name}", run.c[name])
