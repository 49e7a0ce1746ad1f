"""A world whose rows were really logged: `python examples/tiny_grpo.py --max-rollout-traces-per-step 80`.

Each draw of its noise shows the rows of a step, its scalars with them, at a step nearby: what differs between draws is
what steps differ by. A perturbation changes columns, and what hangs on them is computed again: rewards from components,
advantages from rewards, the gradient's norm from advantages and mismatches.
`python -m tests.perturbations.replayed PROJECT` writes the stored file from a Trackio project.
"""

from __future__ import annotations

import argparse
import functools
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tests.perturbations.logged import perturbed_scalar
from tests.perturbations.run import Run, sigmoid
from tests.perturbations.spec import stream
from tests.perturbations.update import DRAWN_FLAGS, group_normalized

STORED = Path(__file__).parent / "replayed"
NAME = "replayed"
NEARBY = 3
"""Most steps by which a step's rows are moved."""
NODES = frozenset(
    [
        "log_length",
        "n_prompt",
        "logit",
        "success",
        "component/correct",
        "component/brevity",
        "reward",
        "reward_status",
        "mismatch",
        "mismatch_k1",
        "clip_share",
        "advantage",
        "lag",
        "flag",
        "null",
        "value",
        "kept",
        "written",
        "logged",
    ]
)
"""What can be perturbed in rows that are already there."""
NUMBERS = [
    "reward",
    "success",
    "advantage",
    "n_prompt",
    "n_sampled",
    "n_environment",
    "n_turns",
    "n_tool_calls",
    "n_tool_errors",
    "staleness_max",
    "mean_logprob",
    "mismatch_k1",
    "mismatch_k3",
    "mismatch_abs_max",
    "clip_share",
    "update_share",
]
TEXTS = ("written", "prompt", "ground_truth")
WEIGHTS = {"correct": 0.8, "format": 0.15, "brevity": 0.05}


@functools.cache
def _stored() -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Columns of all rows, training first, each split by step; and logged scalars by key."""
    table = pq.read_table(STORED / "rollouts.parquet").to_pydict()
    scalars = pq.read_table(STORED / "metrics.parquet").to_pydict()
    n_steps = max(table["step"]) + 1
    logged = {key: np.full(n_steps, np.nan) for key in dict.fromkeys(scalars["key"])}
    for key, step, value in zip(scalars["key"], scalars["step"], scalars["value"], strict=True):
        if step < n_steps:
            logged[key][step] = value
    return table, logged


def n_stored_steps() -> int:
    """Steps of the stored run."""
    return int(max(_stored()[0]["step"])) + 1


def replay(run: Run) -> Run:
    """Computes a run from stored rows."""
    table, logged = _stored()
    rows, shown, of_step = _rows(run, table)
    c = run.c
    c["step"] = shown
    split = np.asarray([s == "eval-rollout" for s in table["split"]])[rows]
    c["split"] = split.astype(np.int64)
    group = np.asarray(table["group"], np.int64)[rows]
    run.group = np.unique(shown * 2000 + split * 1000 + group, return_inverse=True)[1]
    c["group"], c["sample"] = group, np.asarray(table["sample"], np.int64)[rows]
    keys = sorted(set(table["prompt_key"]))
    c["prompt"] = np.asarray([keys.index(k) for k in table["prompt_key"]])[rows]
    for name in table:
        if name in NUMBERS or name.startswith("component/"):
            c[name] = np.asarray([np.nan if v is None else v for v in table[name]], float)[rows]
    run.texts = {name: [table[name][r] for r in rows] for name in TEXTS}
    run.logged = {key: values[of_step] for key, values in logged.items() if np.isfinite(values).all()}
    flags = [set(f or ()) for f in table["flags"]]
    run.flags = {f: np.asarray([f in one for one in flags])[rows] for f in sorted(set().union(*flags))}
    stops = [s or "stop" for s in table["stop_reason"]]
    run.values["stop_reason"] = ["stop", "length", *sorted(set(stops) - {"stop", "length"})]
    c["stop_reason"] = np.asarray([run.values["stop_reason"].index(s) for s in stops])[rows]
    _places(run)
    _perturbed(run)
    return run


def _rows(run: Run, table: dict[str, Any]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Stored rows, the step at which each is shown, and the stored step behind each step."""
    step = np.asarray(table["step"], np.int64)
    evaluation = np.asarray([s == "eval-rollout" for s in table["split"]])
    n = run.spec.n_steps
    moved = stream(run.spec.seed, NAME, run.noise, "steps").integers(-NEARBY, NEARBY + 1, n)
    of_step = np.clip(np.arange(n) + moved, 0, n_stored_steps() - 1)
    found = [(np.flatnonzero((step == of) & ~evaluation), t) for t, of in enumerate(of_step)]
    asked = np.unique(step[evaluation])
    beside = stream(run.spec.seed, NAME, run.noise, "evaluations").integers(-1, 2, len(asked))
    of_evaluation = asked[np.clip(np.arange(len(asked)) + beside, 0, len(asked) - 1)]
    found += [
        (np.flatnonzero((step == of) & evaluation), t) for t, of in zip(asked, of_evaluation, strict=True)
    ]
    shown = np.concatenate([np.full(len(rows), t) for rows, t in found])
    return np.concatenate([rows for rows, _ in found]), shown, of_step


def _places(run: Run) -> None:
    """Engines and hosts, which the stored run does not have: drawn, so that there are parts."""
    c, rng = run.c, run.rng("places")
    run.values["source"], c["source"] = ["arithmetic"], np.zeros(run.n, np.int64)
    run.values["engine"] = [f"vllm-{i}" for i in range(run.spec.engines)]
    run.values["extra/host"] = [f"node-{i + 1}" for i in range(run.spec.hosts)]
    c["engine"] = rng.integers(0, run.spec.engines, run.n)
    c["extra/host"] = c["engine"] % run.spec.hosts
    for column in ("source", "engine", "extra/host"):
        c[column] = run.at(column, c[column])
    run.values["attempt"], c["attempt"] = ["1", "2"], np.zeros(run.n, np.int64)
    run.values["system"] = ["Solve the problem with the calculator, then give the result in \\boxed{}."]
    run.values["tools"] = ['[{"name": "calculator", "parameters": {"expression": {"type": "string"}}}]']
    c["system"] = c["tools"] = np.zeros(run.n, np.int64)
    lag = np.nan_to_num(c["staleness_max"])
    c["lag"] = c["staleness_max"] = np.clip(np.round(run.at("lag", lag)), 0, c["step"])
    run.dropped = np.zeros(run.n, bool)
    run.kept = run.at("kept", np.ones(run.n)) > 0.5


def _perturbed(run: Run) -> None:
    c, rng = run.c, run.rng("replayed")
    before = {name: c[name].copy() for name in ("advantage", "mismatch_k3", "reward")}
    c["n_prompt"] = np.round(run.at("n_prompt", c["n_prompt"]))
    c["log_length"] = np.log(np.maximum(c["n_sampled"], 1))
    longer = run.at("log_length", c["log_length"])
    c["n_sampled"] = np.where(longer == c["log_length"], c["n_sampled"], np.round(np.exp(longer)))
    _successes(run, rng.random(run.n))
    run.write()
    total = c["reward"].copy()
    for name, weight in WEIGHTS.items():
        column = f"component/{name}"
        if column in c:
            changed = run.at(column, c[column])
            total = total + weight * np.nan_to_num(changed - before.get(column, c[column]))
            c[column] = changed
    total = total + WEIGHTS["correct"] * np.nan_to_num(c.pop("solved_more"))
    run.values["reward_status"], c["reward_status"] = ["ok", "timeout", "error"], np.zeros(run.n, np.int64)
    c["reward_status"] = run.at("reward_status", c["reward_status"])
    c["reward"] = np.where(c["reward_status"] == 0, run.at("reward", total), np.nan)
    _update(run, before)
    for name in DRAWN_FLAGS:
        raised = rng.random(run.n) < run.at(f"flag {name}", np.zeros(run.n))
        run.flags[name] = run.flags.get(name, np.zeros(run.n, bool)) | raised
    run.flags["tied_group"] = c["tied"] > 0
    for name in ("mismatch_k3", "mean_logprob", "success", "n_turns", "clip_share"):
        c[name] = run.at(f"null {name}", c[name])
    run.logged = {key: perturbed_scalar(run, key, values) for key, values in run.logged.items()}


def _successes(run: Run, uniform: np.ndarray) -> None:
    """Successes with a chance that a perturbation shifts: those of a prompt fail or succeed as often as they did."""
    c = run.c
    solved = np.nan_to_num(c["success"])
    count = np.bincount(c["prompt"])
    usual = (np.bincount(c["prompt"], solved) + 1)[c["prompt"]] / (count + 2)[c["prompt"]]
    drawn = np.where(solved > 0, uniform * usual, usual + uniform * (1 - usual))
    logit = np.log(usual / (1 - usual))
    shifted = run.at("logit", logit)
    after = np.where(shifted == logit, solved, drawn < sigmoid(shifted))
    c["correct"] = after
    c["solved_more"] = after - solved
    if "component/correct" in c:
        c["component/correct"] = c["component/correct"] + c["solved_more"]
    c["success"] = run.at("success", after.astype(float))


def _update(run: Run, before: dict[str, np.ndarray]) -> None:
    """Advantages where a group's rewards changed, mismatches, and what the trainer logs of them."""
    c = run.c
    was, _ = group_normalized(run, before["reward"])
    now, spread = group_normalized(run, np.where(run.kept, c["reward"], np.nan))
    c["tied"] = (spread < 1e-9).astype(float)
    advantage = np.where(np.isfinite(was), before["advantage"] + now - was, now)
    c["advantage"] = run.at("advantage", np.where(run.train & np.isfinite(c["reward"]), advantage, np.nan))
    with np.errstate(divide="ignore", invalid="ignore"):
        distance = np.log(np.maximum(c["mismatch_k3"], 1e-9))
    moved = run.at("mismatch", distance) - distance
    c["mismatch_k3"] = c["mismatch_k3"] * np.exp(moved)
    c["mismatch_abs_max"] = c["mismatch_abs_max"] * np.exp(moved / 2)
    c["mismatch_k1"] = run.at("mismatch_k1", c["mismatch_k1"])
    c["clip_share"] = np.clip(run.at("clip_share", c["clip_share"]), 0, 1)
    n, rows = run.spec.n_steps, run.train & run.kept

    def spread_of(values: np.ndarray) -> np.ndarray:
        known = rows & np.isfinite(values)
        count = np.bincount(c["step"][known], minlength=n)
        return np.sqrt(np.bincount(c["step"][known], values[known] ** 2, n) / np.maximum(count, 1))

    size = (0.2 + spread_of(c["advantage"])) / (0.2 + spread_of(before["advantage"]))
    off = (1 + 2 * spread_of(c["mismatch_k3"])) / (1 + 2 * spread_of(before["mismatch_k3"]))
    if "train/grad_norm" in run.logged:
        run.logged["train/grad_norm"] = run.logged["train/grad_norm"] * size * off


def export(project: str) -> None:
    """Writes the stored file from a Trackio project with one run whose rollouts are all traced."""
    import rollout_traces as rt

    store = rt.open_store(project=project)
    store.refresh()
    run = store.runs()[0].name
    table = store.rollouts(runs=[run])
    components = [name for name in table.column_names if name.startswith("component/")]
    names = [
        "split",
        "step",
        "group",
        "sample",
        "prompt_key",
        *NUMBERS,
        *components,
        "stop_reason",
        "flags",
        "trace_uid",
        "id",
    ]
    rows = table.select([n for n in names if n in table.column_names]).to_pylist()
    for row in rows:
        row |= (
            _said(store.messages(row.pop("id"))) if row.pop("trace_uid", None) else dict.fromkeys(TEXTS, "")
        )
    columns = {name: pa.array([row.get(name) for row in rows]) for name in rows[0]}
    floats = {n: a.cast(pa.float32()) for n, a in columns.items() if pa.types.is_floating(a.type)}
    keep = {"compression": "zstd", "compression_level": 19}
    STORED.mkdir(exist_ok=True)
    pq.write_table(pa.table(columns | floats), STORED / "rollouts.parquet", **keep)
    wanted = (
        "select step, key, value from metrics where run = ? and (key like 'train/%' or key like 'time/%')"
    )
    pq.write_table(store.table().sql(wanted, [run]), STORED / "metrics.parquet", **keep)


def _said(messages: list[dict[str, Any]]) -> dict[str, str]:
    """What the policy wrote in a conversation, and the question before it."""
    wrote = [str(m.get("content") or "") for m in messages if m.get("role") == "assistant"]
    first = next((i for i, m in enumerate(messages) if m.get("role") == "assistant"), len(messages))
    asked = [str(m.get("content") or "") for m in messages[:first] if m.get("role") == "user"]
    return {"written": "\n".join(wrote), "prompt": asked[-1] if asked else "", "ground_truth": ""}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("project")
    export(parser.parse_args().project)
