"""A run as tables: noisy rewards that drift, lengths that grow, sources, engines, steps of different size.

Everything is drawn from a seed. A run is written in stages over arrays of all its rows at once; a cause is a
set of functions that change a stage's arrays from a step on (`causes.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from tests.stories.sentences import sentences

STAGES = ("layout", "ability", "text", "lengths", "tools", "rewards", "policy", "flags", "metrics")
Stage = Callable[["World"], None]


@dataclass(frozen=True)
class Kind:
    """What a run is like.

    Attributes:
        n_sources: how many sources.
        mixing: `random` in every step, or `alternating` by step.
        n_engines: inference engines.
        tools: whether one of the sources calls tools.
        groups: fewest and most groups of a step.
        group_size: rollouts of a group.
        learning: `linear`, `sigmoid` or `saturating` success over the run.
        lag: most versions that a sample may be old.
        resumed: whether a second attempt repeats some steps.
        evaluated: whether there is an evaluation split.
        components: whether the reward has named components.
    """

    n_sources: int = 3
    mixing: str = "random"
    n_engines: int = 2
    tools: bool = True
    groups: tuple[int, int] = (12, 24)
    group_size: int = 8
    learning: str = "linear"
    lag: int = 2
    resumed: bool = False
    evaluated: bool = True
    components: bool = True


KINDS: Mapping[str, Kind] = {
    "mixed": Kind(),
    "plain": Kind(n_sources=1, n_engines=1, tools=False, lag=0, components=False),
    "alternating": Kind(mixing="alternating", n_engines=3),
    "sigmoid": Kind(learning="sigmoid", n_engines=4),
    "saturating": Kind(learning="saturating", n_sources=2),
    "ragged": Kind(groups=(4, 40), group_size=4),
    "resumed": Kind(resumed=True),
    "asynchronous": Kind(lag=6, n_engines=4, group_size=4, groups=(16, 32)),
    "small": Kind(groups=(4, 6), n_sources=2, evaluated=False),
    "agent": Kind(n_sources=1, group_size=4, groups=(16, 20), learning="sigmoid"),
}
SOURCES = ("math", "code", "search", "chat")
ENGINES = ("vllm-0", "vllm-1", "sglang-0", "sglang-1")
TOOLS = {"code": "python", "search": "web_search", "math": "calculator", "chat": "lookup"}
USUAL_ERRORS = ("TypeError: unsupported operand", "HTTP <n>: not found", "SyntaxError: invalid syntax")


@dataclass
class World:
    """A run while it is being written.

    Attributes:
        rng: what everything is drawn from.
        kind: what the run is like.
        n_steps: steps of training.
        at: the step at which a cause begins.
        c: columns of all rows, training and evaluation, name -> array [N].
        flags: sets of flags, one a row.
        logged: metric key -> (steps, values).
        columns: further columns of the ledger, name -> [N] text, None where unknown.
    """

    rng: np.random.Generator
    kind: Kind
    n_steps: int
    at: int
    c: dict[str, Any] = field(default_factory=dict)
    flags: list[set[str]] = field(default_factory=list)
    logged: dict[tuple[str, str], tuple[list[int], list[float]]] = field(default_factory=dict)
    columns: dict[str, Any] = field(default_factory=dict)

    @property
    def n(self) -> int:
        return len(self.c["step"])

    @property
    def train(self) -> np.ndarray:
        return self.c["split"] == "rollout"

    @property
    def after(self) -> np.ndarray:
        """Rows from the cause's step on."""
        return self.c["step"] >= self.at

    def share(self, rows: np.ndarray, probability: Any) -> np.ndarray:
        """A random part of some rows, as a mask."""
        return rows & (self.rng.random(self.n) < probability)

    def flag(self, rows: np.ndarray, name: str) -> None:
        for row in np.flatnonzero(rows):
            self.flags[row].add(name)


@dataclass(frozen=True)
class Story:
    """A finished run.

    Attributes:
        rollouts: the relation of rollouts.
        metrics: the relation of logged numbers.
        run: its name.
        at: the step of the planted cause, None for a healthy run.
        cause: its name, None for a healthy run.
        replies: what every rollout wrote, traced or not.
    """

    rollouts: pa.Table
    metrics: pa.Table
    run: str
    at: int | None
    cause: str | None
    replies: tuple[str, ...] = ()


def write_run(
    seed: int,
    kind: str = "mixed",
    cause: str | None = None,
    changes: Mapping[str, Stage] | None = None,
    *,
    n_steps: int = 100,
    at: int | None = None,
    run: str = "run",
) -> Story:
    """Writes a run.

    Args:
        seed: everything is drawn from it.
        kind: a name of `KINDS`.
        cause: the name of what is planted.
        changes: stage -> what the cause changes after that stage.
        n_steps: steps of training.
        at: the cause's step; drawn from the middle of the run where it is not given.
        run: the run's name.
    """
    rng = np.random.default_rng([seed, 77])
    where = at if at is not None else int(rng.integers(n_steps // 3, 3 * n_steps // 4))
    world = World(rng, KINDS[kind], n_steps, where)
    for stage in STAGES:
        _STAGES[stage](world)
        if changes and stage in changes:
            changes[stage](world)
        if stage == "layout":
            world.flags = [set() for _ in range(world.n)]
    return Story(
        rollouts=_rollouts(world, run),
        metrics=_metrics(world, run),
        run=run,
        at=where if cause else None,
        cause=cause,
        replies=tuple(world.c["reply"]),
    )


def _walk(w: World, scale: float, rho: float = 0.5) -> np.ndarray:
    """[n_steps] an autoregressive disturbance with the standard deviation `scale`."""
    noise = w.rng.normal(0, scale * np.sqrt(1 - rho**2), w.n_steps)
    values = np.empty(w.n_steps)
    last = w.rng.normal(0, scale)
    for step in range(w.n_steps):
        last = rho * last + noise[step]
        values[step] = last
    return values


def _layout(w: World) -> None:
    k, rng = w.kind, w.rng
    sources = list(SOURCES[: k.n_sources]) if k.n_sources > 1 else ["code" if k.tools else "math"]
    shares = rng.dirichlet(np.full(len(sources), 20.0))
    pools = {s: [f"{s}-{i:04d}" for i in range(int(rng.integers(150, 400)))] for s in sources}
    cursor = dict.fromkeys(sources, 0)
    steps, groups, samples, keys, of, splits, attempts, superseded = ([] for _ in range(8))
    again = int(rng.integers(w.n_steps // 4, w.n_steps // 2)) if k.resumed else -1

    def lay(step: int, attempt: str, old: bool) -> None:
        n_groups = int(rng.integers(k.groups[0], k.groups[1] + 1))
        if k.mixing == "alternating":
            drawn = [sources[step % len(sources)]] * n_groups
        else:
            drawn = list(rng.choice(sources, n_groups, p=rng.dirichlet(shares * 40)))
        for g, source in enumerate(drawn):
            pool = pools[source]
            key = pool[cursor[source] % len(pool)]
            cursor[source] += 1
            for sample in range(k.group_size):
                steps.append(step), groups.append(g), samples.append(sample), keys.append(key)
                of.append(source), splits.append("rollout"), attempts.append(attempt), superseded.append(old)
        if k.evaluated and step % 10 == 0 and not old:
            for g in range(40):
                source = sources[g % len(sources)]
                for sample in range(2):
                    steps.append(step), groups.append(g), samples.append(sample)
                    keys.append(f"eval-{source}-{g:03d}"), of.append(source), splits.append("eval-rollout")
                    attempts.append(attempt), superseded.append(False)

    for step in range(w.n_steps):
        lay(step, "2" if k.resumed and step >= again else "1", False)
        if k.resumed and again <= step < again + 4:
            lay(step, "1", True)
    w.c = {
        "step": np.asarray(steps),
        "group": np.asarray(groups),
        "sample": np.asarray(samples),
        "prompt_key": np.asarray(keys, object),
        "source": np.asarray(of, object),
        "split": np.asarray(splits, object),
        "attempt": np.asarray(attempts, object),
        "superseded": np.asarray(superseded, bool),
    }
    w.c["engine"] = rng.choice(np.asarray(ENGINES[: k.n_engines], object), w.n)


def _curve(w: World) -> np.ndarray:
    """[n_steps] log-odds of success that the policy has gained."""
    t = np.linspace(0, 1, w.n_steps)
    if w.kind.learning == "sigmoid":
        middle, width = w.rng.uniform(0.3, 0.6), w.rng.uniform(0.06, 0.12)
        return 2.5 / (1 + np.exp(-(t - middle) / width))
    if w.kind.learning == "saturating":
        return 2.6 * (1 - np.exp(-t / 0.3))
    return w.rng.uniform(0.8, 1.8) * t


def _ability(w: World) -> None:
    rng, c = w.rng, w.c
    gained = _curve(w) + _walk(w, 0.12)
    of_source = {s: rng.normal(-0.6, 0.5) for s in SOURCES}
    hardness = {key: rng.normal(0, 1.2) for key in sorted(set(c["prompt_key"]))}
    c["hardness"] = np.asarray([hardness[key] for key in c["prompt_key"]])
    start = np.asarray([of_source[s] for s in c["source"]])
    c["logit"] = start + gained[c["step"]] - c["hardness"] - 0.2 * (~w.train)


def _text(w: World) -> None:
    rng, c = w.rng, w.c
    bank = np.asarray(sentences(), object)
    weight = rng.dirichlet(np.full(len(bank), 0.7))
    drawn = rng.choice(bank, (w.n, 3), p=weight)
    c["reply"] = np.asarray([" ".join(row) for row in drawn], object)
    c["answer"] = np.asarray([str(v) for v in rng.integers(0, 60, w.n)], object)
    c["prompt"] = np.asarray([f"Question {key}: please solve it." for key in c["prompt_key"]], object)


def _lengths(w: World) -> None:
    rng, c = w.rng, w.c
    t = c["step"] / w.n_steps
    grown = rng.uniform(0.0, 0.7) * t + _walk(w, 0.05)[c["step"]]
    base = {s: rng.uniform(5.2, 6.6) for s in SOURCES}
    start = np.asarray([base[s] for s in c["source"]])
    c["log_length"] = start + grown + 0.12 * c["hardness"] + rng.normal(0, 0.45, w.n)
    of_key = {key: int(rng.normal(180, 30)) for key in sorted(set(c["prompt_key"]))}
    c["n_prompt"] = np.asarray([max(of_key[key], 20) for key in c["prompt_key"]])
    c["limit"] = np.full(w.n, 4096)


def _tools(w: World) -> None:
    rng, c = w.rng, w.c
    calls_tools = (
        w.kind.tools & (c["source"] != "math") if w.kind.n_sources > 1 else np.full(w.n, w.kind.tools)
    )
    c["tool"] = np.where(calls_tools, [TOOLS[s] for s in c["source"]], None)
    c["n_calls"] = np.where(calls_tools, 1 + rng.poisson(1.5, w.n), 0)
    c["error_rate"] = np.where(calls_tools, 0.04, 0.0)
    c["signature"] = rng.choice(np.asarray(USUAL_ERRORS, object), w.n)
    c["tool_seconds"] = np.where(calls_tools, rng.lognormal(-0.5, 0.4, w.n), np.nan)


def _rewards(w: World) -> None:
    rng, c = w.rng, w.c
    c["n_errors"] = rng.binomial(c["n_calls"], np.clip(c["error_rate"], 0, 1))
    c["n_sampled"] = np.minimum(np.exp(c["log_length"]).astype(int) + 8, c["limit"])
    cut = c["n_sampled"] >= c["limit"]
    c["stop_reason"] = np.where(cut, "length", "stop").astype(object)
    logit = c["logit"] - 1.2 * np.minimum(c["n_errors"], 2) - 6.0 * cut
    c["success"] = (rng.random(w.n) < 1 / (1 + np.exp(-logit))).astype(float)
    formatted = 1 / (1 + np.exp(-(1.5 + 2.0 * c["step"] / w.n_steps)))
    c["format"] = (rng.random(w.n) < formatted).astype(float)
    c["judge"] = np.clip(0.35 + 0.3 * c["success"] + rng.normal(0, 0.15, w.n), 0, 1)
    c["extra"] = np.zeros(w.n)
    c["extra_name"] = ""
    c["status"] = np.full(w.n, "ok", object)
    slow = w.share(np.ones(w.n, bool), 0.004)
    c["status"][slow] = "timeout"


def _policy(w: World) -> None:
    rng, c = w.rng, w.c
    t = c["step"] / w.n_steps
    c["reward"] = (
        c["success"] + 0.2 * c["format"] + 0.3 * c["judge"] + c["extra"]
        if w.kind.components
        else c["success"] + c["extra"]
    )
    c["reward"] = np.where(c["status"] == "ok", c["reward"], np.nan)
    c["entropy"] = 0.55 - 0.2 * t + _walk(w, 0.02)[c["step"]]
    c["mean_logprob"] = -np.abs(c["entropy"] + rng.normal(0, 0.08, w.n))
    c["mismatch_k3"] = np.exp(rng.normal(-6.8, 0.5, w.n) + _walk(w, 0.1)[c["step"]])
    c["mismatch_k1"] = rng.normal(0, 0.004, w.n)
    c["mismatch_abs_max"] = np.exp(rng.normal(-0.7, 0.4, w.n))
    c["train_version"] = c["step"].copy()
    lag = rng.integers(0, w.kind.lag + 1, w.n)
    c["version_max"] = np.maximum(c["train_version"] - lag, 0)
    c["version_min"] = np.maximum(c["version_max"] - (rng.random(w.n) < 0.15 * (w.kind.lag > 0)), 0)
    c["update_weight"] = rng.gamma(4.0, 1.0, w.n)
    c["selected"] = np.full(w.n, None, object)


def groups_of(w: World) -> tuple[np.ndarray, int]:
    """Group of every row over the whole run, and how many."""
    c = w.c
    code = c["step"].astype(np.int64) * 1000 + c["group"]
    code = code * 4 + 2 * (c["split"] == "eval-rollout") + c["superseded"]
    _, index = np.unique(code, return_inverse=True)
    return index, int(index.max()) + 1


def _flags(w: World) -> None:
    c = w.c
    index, n_groups = groups_of(w)
    reward = c["reward"]
    known = np.isfinite(reward)
    size = np.bincount(index, minlength=n_groups)
    n_known = np.bincount(index, known, n_groups)
    mean = np.bincount(index, np.where(known, reward, 0), n_groups) / np.maximum(n_known, 1)
    centred = np.where(known, reward - mean[index], 0.0)
    spread = np.sqrt(np.bincount(index, centred**2, n_groups) / np.maximum(n_known, 1))
    c["advantage"] = np.where(known, centred / (spread[index] + 1e-4), np.nan)
    tied = (spread < 1e-9) & (n_known >= 2)
    w.flag(tied[index] & (size[index] > 1), "tied_group")
    w.flag(c["stop_reason"] == "length", "truncated")
    w.flag(c["train_version"] - c["version_min"] > 4, "stale")
    w.flag(c["version_min"] != c["version_max"], "mixed_versions")
    w.flag(c["mismatch_k3"] > 0.01, "logprob_mismatch")
    w.flag(w.share(np.ones(w.n, bool), 0.01), "repetition")
    w.flag(w.share(np.ones(w.n, bool), 0.03), "thinking_unclosed")
    w.flag(w.share(np.ones(w.n, bool), 0.02), "retokenized")
    w.flag(c["n_errors"] > 0, "tool_error")


def _metrics_stage(w: World) -> None:
    rng = w.rng
    steps = list(range(w.n_steps))
    t = np.linspace(0, 1, w.n_steps)
    grad = np.exp(rng.normal(-0.5, 0.25, w.n_steps) + _walk(w, 0.15))
    grad *= np.where(rng.random(w.n_steps) < 0.02, rng.uniform(2, 6, w.n_steps), 1)
    entropy = np.asarray([w.c["entropy"][w.c["step"] == s].mean() for s in steps])
    series = {
        "train/loss": 0.02 * rng.standard_t(4, w.n_steps),
        "train/grad_norm": grad,
        "train/lr": np.full(w.n_steps, 1e-6),
        "train/entropy": entropy,
        "train/kl": 0.001 + 0.01 * t + np.abs(rng.normal(0, 0.0008, w.n_steps)),
        "time/step": np.exp(rng.normal(3.5, 0.1, w.n_steps)),
    }
    for key, values in series.items():
        w.logged[("", key)] = (steps, [float(v) for v in values])


_STAGES: Mapping[str, Stage] = {
    "layout": _layout,
    "ability": _ability,
    "text": _text,
    "lengths": _lengths,
    "tools": _tools,
    "rewards": _rewards,
    "policy": _policy,
    "flags": _flags,
    "metrics": _metrics_stage,
}

TEXT_FLAGS = (
    "thinking_unclosed",
    "retokenized",
    "tool_error",
    "template_drift",
    "mask_shifted",
    "eos_untrained",
    "tool_call_unparsed",
    "gibberish",
    "bos_anomaly",
)
"""Flags that only a decoded rollout can carry."""


def _kept(w: World) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Which rows became traces, why, and the chance of the random part."""
    rng, c = w.rng, w.c
    n = w.n
    reasons = np.full(n, None, object)
    probability = np.full(n, np.nan)
    code = c["step"] * 4 + 2 * (c["split"] == "eval-rollout") + c["superseded"]
    order = np.lexsort((rng.random(n), code))
    starts = np.flatnonzero(np.r_[True, np.diff(code[order]) != 0])
    for start, stop in zip(starts, np.r_[starts[1:], n], strict=True):
        rows = order[start:stop]
        k = min(16, len(rows))
        reasons[rows[:k]] = "random"
        probability[rows] = k / len(rows)
        best = rows[k:][np.argsort(np.nan_to_num(c["reward"][rows[k:]], nan=-9))]
        for row in best[:4]:
            reasons[row] = "worst"
        for row in best[-4:]:
            reasons[row] = reasons[row] or "best"
    return np.asarray([r is not None for r in reasons]), reasons, probability


def _rollouts(w: World, run: str) -> pa.Table:
    c = w.c
    traced, reasons, probability = _kept(w)

    def known(values: np.ndarray, where: np.ndarray, kind: pa.DataType) -> pa.Array:
        return pa.array(values, kind, mask=~where, from_pandas=True)

    weight = np.abs(np.nan_to_num(c["advantage"])) * c["update_weight"] * w.train
    code = c["step"] * 4 + 2 * (c["split"] == "eval-rollout") + c["superseded"]
    total = np.bincount(code, weight)
    train = w.train
    flags = [sorted(f for f in row if traced[i] or f not in TEXT_FLAGS) for i, row in enumerate(w.flags)]
    columns: dict[str, pa.Array] = {
        "run": pa.array([run] * w.n),
        "id": pa.array([f"{run}-{i}" for i in range(w.n)]),
        "uid": pa.array([f"{run}-{i}" for i in range(w.n)]),
        "split": pa.array(c["split"]),
        "step": pa.array(c["step"], pa.int64()),
        "group": pa.array(c["group"], pa.int64()),
        "sample": pa.array(c["sample"], pa.int64()),
        "attempt": pa.array(c["attempt"]),
        "late": pa.array(np.zeros(w.n, bool)),
        "superseded": pa.array(c["superseded"]),
        "prompt_key": pa.array(c["prompt_key"]),
        "source": pa.array(c["source"]),
        "engine": pa.array(c["engine"]),
        "trained": pa.array(train.astype(int), pa.int64()),
        "reward": pa.array(c["reward"], pa.float64(), from_pandas=True),
        "reward_status": pa.array(c["status"]),
        "success": pa.array(c["success"].astype(int), pa.int64()),
        "advantage": known(c["advantage"], train, pa.float64()),
        "n_prompt": pa.array(c["n_prompt"], pa.int64()),
        "n_sampled": pa.array(c["n_sampled"], pa.int64()),
        "n_turns": pa.array(1 + c["n_calls"], pa.int64()),
        "n_tool_calls": known(c["n_calls"], traced, pa.int64()),
        "n_tool_errors": known(c["n_errors"], traced, pa.int64()),
        "stop_reason": pa.array(c["stop_reason"]),
        "version_min": pa.array(c["version_min"], pa.int64()),
        "version_max": pa.array(c["version_max"], pa.int64()),
        "staleness_max": pa.array(c["train_version"] - c["version_min"], pa.int64()),
        "mean_logprob": pa.array(c["mean_logprob"], pa.float64()),
        "mismatch_k1": known(c["mismatch_k1"], train, pa.float64()),
        "mismatch_k3": known(c["mismatch_k3"], train, pa.float64()),
        "mismatch_abs_max": known(c["mismatch_abs_max"], train, pa.float64()),
        "update_share": known(weight / np.maximum(total[code], 1e-12), train, pa.float64()),
        "timing/tool": pa.array(c["tool_seconds"], pa.float64(), from_pandas=True),
        "traced": pa.array(traced),
        "selected_by": pa.array(reasons, pa.string()),
        "selected_probability": known(probability, traced, pa.float64()),
        "flags": pa.array(flags, pa.list_(pa.string())),
        "tool_names": pa.array(
            [
                [t] if t is not None and k and n else ([] if k else None)
                for t, k, n in zip(c["tool"], traced, c["n_calls"], strict=True)
            ],
            pa.list_(pa.string()),
        ),
        "error_signatures": pa.array(
            [
                [s] if k and n else ([] if k else None)
                for s, k, n in zip(c["signature"], traced, c["n_errors"], strict=True)
            ],
            pa.list_(pa.string()),
        ),
        "prompt": pa.array(c["prompt"]),
        "reply": known(c["reply"], traced, pa.string()),
        "answer": pa.array(c["answer"]),
    }
    columns.update({name: pa.array(values, pa.string()) for name, values in w.columns.items()})
    if w.kind.components:
        columns["component/correct"] = pa.array(c["success"])
        columns["component/format"] = pa.array(0.2 * c["format"])
        columns["component/judge"] = pa.array(0.3 * c["judge"])
        if c["extra_name"]:
            columns[f"component/{c['extra_name']}"] = pa.array(c["extra"])
    return pa.table(columns)


def _metrics(w: World, run: str) -> pa.Table:
    rows: list[tuple[str, str, str | None, int, str, float]] = []
    for (split, key), (steps, values) in w.logged.items():
        rows += [(run, split, "1", step, key, value) for step, value in zip(steps, values, strict=True)]
    names = ("run", "split", "attempt", "step", "key", "value")
    return pa.table({name: [row[i] for row in rows] for i, name in enumerate(names)})
