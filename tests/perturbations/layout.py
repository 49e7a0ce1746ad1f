"""Which rows a run has: steps, groups, prompts that come again, sources, engines, hosts, versions."""

from __future__ import annotations

import numpy as np

from tests.perturbations.habits import since
from tests.perturbations.run import Run
from tests.perturbations.spec import Spec

ENGINES = ("vllm-0", "vllm-1", "sglang-0", "sglang-1", "vllm-2", "vllm-3", "sglang-2", "sglang-3")


def lay_out(run: Run) -> None:
    """Lays out the rows of training, then those of the evaluations."""
    train, evaluation = _train_groups(run), _eval_groups(run)
    size = np.r_[np.full(len(train["step"]), run.spec.group_size), np.full(len(evaluation["step"]), 2)]
    c = run.c
    for name in ("step", "group", "source", "prompt"):
        c[name] = np.repeat(np.r_[train[name], evaluation[name]], size)
    c["split"] = np.repeat(
        np.r_[np.zeros(len(train["step"]), np.int64), np.ones(len(evaluation["step"]), np.int64)], size
    )
    run.group = np.repeat(np.arange(len(size)), size)
    starts = np.cumsum(size) - size
    c["sample"] = np.arange(run.n) - starts[run.group]
    run.values["source"] = list(run.spec.sources)
    run.kept, run.dropped = np.ones(run.n, bool), np.zeros(run.n, bool)
    _places(run)
    _nodes(run)


def _train_groups(run: Run) -> dict[str, np.ndarray]:
    spec = run.spec
    n_groups = planned_groups(run)
    step = np.repeat(np.arange(spec.n_steps), n_groups)
    group = np.arange(len(step)) - (np.cumsum(n_groups) - n_groups)[step]
    n = len(spec.sources)
    if spec.alternating or n == 1:
        source = step % n
    else:
        by_step = planned_shares(run)
        u = run.rng("source").random(len(step))
        source = np.minimum((u[:, None] > np.cumsum(by_step, axis=1)[step]).sum(axis=1), n - 1)
    return {"step": step, "group": group, "source": source, "prompt": _prompts(run, source)}


def planned_groups(run: Run) -> np.ndarray:
    """[n_steps] groups of each step, as the run's settings have them."""
    spec = run.spec
    groups = run.constants("groups").integers(spec.groups[0], spec.groups[1] + 1, spec.n_steps)
    if spec.habits.larger_batch:
        groups[since(spec.n_steps, spec.habits.larger_batch) :] *= 2
    return groups


def planned_shares(run: Run) -> np.ndarray:
    """[n_steps, sources] the share of each source, which may drift or change once by design."""
    spec, n = run.spec, len(run.spec.sources)
    shares = run.constants("shares").dirichlet(np.full(n, 15.0))
    by_step = np.tile(shares, (spec.n_steps, 1))
    if spec.shifting:
        later = run.constants("later shares").dirichlet(np.full(n, 8.0))
        by_step += np.linspace(0, 1, spec.n_steps)[:, None] * (later - shares)
    if spec.habits.curriculum:
        second = run.constants("second phase").dirichlet(np.full(n, 2.0))
        by_step[since(spec.n_steps, spec.habits.curriculum) :] = second
    return by_step


def evaluation_steps(spec: Spec) -> np.ndarray:
    """The steps at which a world is evaluated; at least one where it is evaluated at all."""
    if not spec.evaluated_every:
        return np.zeros(0, np.int64)
    steps = np.arange(0, spec.n_steps, spec.evaluated_every)
    first, last = (since(spec.n_steps, when) for when in spec.habits.evaluated)
    during = steps[(steps >= first) & (steps <= last)]
    return during if during.size else steps[:1]


def _prompts(run: Run, source: np.ndarray) -> np.ndarray:
    """A prompt of each group's source.

    The prompts of a source come in epochs, each in an order of its own or all in the same.
    """
    rng = run.rng("prompts")
    prompt = np.empty(len(source), np.int64)
    for s in range(len(run.spec.sources)):
        mine = np.flatnonzero(source == s)
        pool = max(16, int(len(source) / len(run.spec.sources) / run.spec.visits))
        epochs = [rng.permutation(pool) for _ in range(len(mine) // pool + 1)]
        if run.spec.habits.same_order:
            epochs = [epochs[0]] * len(epochs)
        prompt[mine] = np.concatenate(epochs)[: len(mine)] + s * 100_000
    return prompt


def _eval_groups(run: Run) -> dict[str, np.ndarray]:
    spec = run.spec
    steps = evaluation_steps(spec)
    group = np.tile(np.arange(spec.eval_prompts), len(steps))
    source = group % len(spec.sources)
    return {
        "step": np.repeat(steps, spec.eval_prompts),
        "group": group,
        "source": source,
        "prompt": 50_000 + group + source * 100_000,
    }


def _places(run: Run) -> None:
    """Engines, hosts, workers, suites: where a row was sampled and what it belongs to."""
    spec, c, rng = run.spec, run.c, run.rng("places")
    n_groups = int(run.group[-1]) + 1
    by_row, by_group = rng.integers(0, spec.engines, run.n), rng.integers(0, spec.engines, n_groups)
    c["engine"] = by_row if spec.engine_of == "row" else by_group[run.group]
    run.values["engine"] = list(ENGINES[: spec.engines])
    c["extra/host"] = c["engine"] % spec.hosts
    run.values["extra/host"] = [f"node-{i + 1}" for i in range(spec.hosts)]
    if spec.workers:
        c["extra/worker"] = rng.integers(0, spec.workers, n_groups)[run.group]
        run.values["extra/worker"] = [f"w{i + 1}" for i in range(spec.workers)]
    if spec.suites:
        c["extra/suite"] = (c["prompt"] * 7919 // 13) % spec.suites
        run.values["extra/suite"] = ["alpha", "beta", "gamma", "delta"][: spec.suites]
    share = 0.6 ** np.arange(spec.lag + 1)
    c["lag"] = rng.choice(spec.lag + 1, run.n, p=share / share.sum()).astype(float)
    c["lag"][~run.train] = 0.0


def _nodes(run: Run) -> None:
    """What perturbations of the layout do: values that come and go, versions that fall behind, rows that are lost."""
    c, rng = run.c, run.rng("attempt")
    for column in ("source", "engine", "extra/host", "extra/worker", "extra/suite"):
        if column in c:
            c[column] = run.at(column, c[column])
    c["lag"] = np.minimum(np.maximum(np.round(run.at("lag", c["lag"])), 0.0), c["step"])
    c["staleness_max"] = c["lag"]
    again = (
        int(rng.integers(run.spec.n_steps // 4, run.spec.n_steps // 2))
        if run.spec.resumed
        else run.spec.n_steps
    )
    run.values["attempt"] = ["1", "2"]
    c["attempt"] = run.at("attempt", (c["step"] >= again).astype(np.int64))
    run.kept = run.at("kept", np.ones(run.n)) > 0.5
