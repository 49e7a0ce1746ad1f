"""Perturbations drawn at random: which nodes, which part, which shape, when, how long, how much."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from tests.perturbations.change import Change, Part, Perturbation
from tests.perturbations.keys import key_of
from tests.perturbations.logged import MEASURED, SCHEDULE, SETTING, begun_again
from tests.perturbations.replayed import NODES as REPLAYED
from tests.perturbations.run import EVAL, TRAIN, Run
from tests.perturbations.text import FOREIGN, draw_phrase

BEFORE = ("source", "engine", "extra/host", "extra/worker", "extra/suite")
"""Columns that are known before anything is sampled; stop reasons and versions only afterwards."""
FIXED = ("times", "again", "like")
"""Ways of changing whose size stays as it was drawn."""
SHARES = ("set", "null", "tie", "write")
"""Ways of changing whose size is a share."""
DIFFERS = 0.02
"""Share of a planned course's largest value from which it is said to be another."""


@dataclass(frozen=True)
class Node:
    """A quantity that may be perturbed.

    Attributes:
        name: the node.
        how: as in `Change`.
        sizes: smallest and largest size; drawn on a logarithmic scale.
        signs: -1, 1 or both.
        late: whether it is computed after the stop reason is known.
        needs: a column or component of the world without which it is nothing.
        split: the split that it touches.
        unbounded: whether a handful of rows may carry it.
        weight: how often it is drawn beside the others.
    """

    name: str
    how: str
    sizes: tuple[float, float]
    signs: tuple[int, ...] = (-1, 1)
    late: bool = False
    needs: str = "step"
    split: str = TRAIN
    unbounded: bool = False
    weight: float = 1.0


NODES = (
    Node("logit", "add", (0.3, 3.0), weight=3),
    Node("log_length", "add", (0.05, 0.8), unbounded=True, weight=2),
    Node("n_prompt", "add", (10, 120)),
    Node("calls", "add", (0.3, 2.0), needs="timing/tool"),
    Node("error_rate", "add", (0.05, 0.8), (1,), needs="timing/tool", weight=2),
    Node("timing/tool", "scale", (0.1, 1.5), needs="timing/tool", unbounded=True),
    Node("limit", "scale", (0.4, 2.0), (-1,)),
    Node("stop_reason", "set", (0.01, 0.4), (1,)),
    Node("success", "set", (0.05, 0.6), (1,), late=True),
    Node("component/judge", "add", (0.03, 0.5), late=True, needs="component/judge", weight=2),
    Node("component/judge", "scale", (0.1, 1.0), (-1,), late=True, needs="component/judge"),
    Node("component/correct", "scale", (0.1, 1.0), (-1,), late=True, needs="component/correct"),
    Node("component/brevity", "scale", (0.2, 1.0), late=True, needs="component/brevity"),
    Node("format_logit", "add", (0.4, 4.0), needs="component/format"),
    Node("reward", "add", (0.05, 0.8), late=True, unbounded=True, weight=2),
    Node("reward", "scale", (0.1, 1.0), late=True),
    Node("reward", "set", (0.05, 0.9), (1,), late=True),
    Node("reward", "tie", (0.1, 0.9), (1,), late=True),
    Node("reward", "bias", (0.05, 0.6), late=True),
    Node("reward_status", "set", (0.01, 0.5), (1,), late=True, weight=2),
    Node("entropy", "add", (0.01, 0.25), late=True, weight=2),
    Node("mismatch", "add", (0.2, 4.0), late=True, unbounded=True, weight=2),
    Node("mismatch_k1", "add", (0.001, 0.05), late=True),
    Node("clip_share", "add", (0.002, 0.1), (1,), late=True),
    Node("advantage", "scale", (0.1, 1.5), late=True),
    Node("weight", "scale", (1.0, 4.0), (1,), late=True, unbounded=True),
    Node("lag", "add", (0.5, 5.0), (1,)),
    Node("flag", "add", (0.02, 0.6), (1,), late=True, weight=2),
    Node("null", "null", (0.03, 1.0), (1,), late=True, weight=2),
    Node("value", "set", (0.05, 1.0), (1,), weight=2),
    Node("error_signatures", "set", (0.2, 1.0), (1,), needs="timing/tool"),
    Node("discard_reason", "set", (0.02, 0.5), (1,), late=True, needs="discard_reason", weight=2),
    Node("kept", "set", (0.1, 0.7), (1,)),
    Node("written", "write", (0.05, 0.9), (1,), weight=3),
    Node("system", "set", (0.3, 1.0), (1,)),
    Node("logged", "add", (3.0, 40.0), weight=4),
    Node("logit", "add", (0.3, 2.5), split=EVAL, weight=2),
    Node("log_length", "add", (0.1, 0.8), split=EVAL),
    Node("attempt", "set", (1.0, 1.0), (1,)),
)
HIGHEST: Mapping[str, float] = {"add": 60.0, "scale": 5.0, "bias": 3.0, "like": 1.0}


def draw_perturbations(run: Run, rng: np.random.Generator, how_many: int) -> tuple[Perturbation, ...]:
    """Some perturbations of a world.

    Args:
        run: the healthy run, for what columns and values the world has.
        rng: what they are drawn from.
        how_many: how many.
    """
    return tuple(_draw(run, rng, number) for number in range(1, how_many + 1))


def _draw(run: Run, rng: np.random.Generator, number: int) -> Perturbation:
    nodes = [n for n in NODES if n.needs in run.c and (n.split == TRAIN or run.spec.evaluated_every)]
    if run.texts:
        nodes = [n for n in nodes if n.name in REPLAYED]
    weights = np.asarray([n.weight for n in nodes])
    node = nodes[int(rng.choice(len(nodes), p=weights / weights.sum()))]
    changes = _changes(run, rng, node)
    beside = [
        n for n in nodes if n.name in ("logit", "log_length", "entropy", "mismatch") and n.split == node.split
    ]
    if rng.random() < 0.2 and beside:
        other = beside[int(rng.integers(len(beside)))]
        if other.name != node.name:
            changes += _changes(run, rng, other)
    early = not node.late or len(changes) > 1
    part = () if node.name in ("logged", "attempt") else _part(run, rng, early, changes)
    shape, onset, length = _when(run, rng, node)
    if changes[0].how == "again":
        shape, length = _until_it_is_the_same(run, changes[0], onset)
    carriers = 0
    if node.unbounded and len(changes) == 1 and node.split == TRAIN and rng.random() < 0.3:
        shape, length, carriers, part = "spike", int(rng.integers(1, 3)), int(rng.integers(1, 5)), ()
        changes = (replace(changes[0], size=abs(changes[0].size) * 5),)
    return Perturbation(number, changes, part, node.split, shape, onset, length, run.spec.n_steps, carriers)


def _changes(run: Run, rng: np.random.Generator, node: Node) -> tuple[Change, ...]:
    """The changes of a node that was drawn, with its sizes and values."""
    size = float(np.exp(rng.uniform(*np.log(node.sizes)))) * float(rng.choice(node.signs))
    more = _SPECIAL.get(node.name)
    return more(run, rng, size) if more else (Change(node.name, node.how, size, _value(rng, node, run)),)


def _value(rng: np.random.Generator, node: Node, run: Run) -> str | float | None:
    if node.how != "set":
        return None
    return {
        "stop_reason": str(rng.choice(["abort", "length", "content_filter"])),
        "reward_status": str(rng.choice(["timeout", "error"])),
        "error_signatures": str(
            rng.choice(["ConnectionError: <host>", "Timeout after <n> s", "KeyError: <str>"])
        ),
        "success": float(rng.integers(0, 2)),
        "reward": float(np.round(rng.choice([0.0, 1.0, rng.normal(0, 1)]), 2)),
        "discard_reason": str(rng.choice(["stale", "environment_error"])),
        "kept": 0.0,
        "system": f"You are a {rng.choice(['terse', 'helpful', 'strict', 'patient'])} model. Be brief.",
    }[node.name]


def _one_flag(run: Run, rng: np.random.Generator, size: float) -> tuple[Change, ...]:
    names = ("repetition", "thinking_unclosed", "retokenized", "mask_leak", "gibberish")
    return (Change(f"flag {rng.choice(names)}", "add", size),)


def _one_null(run: Run, rng: np.random.Generator, size: float) -> tuple[Change, ...]:
    names = ("mismatch_k3", "mean_logprob", "success", "n_turns", "clip_share")
    return (Change(f"null {rng.choice(names)}", "null", size),)


def _one_value(run: Run, rng: np.random.Generator, size: float) -> tuple[Change, ...]:
    """A value of a column that rows take: a new one, which comes, or a known one, so that others go."""
    column = str(rng.choice([c for c in BEFORE if c in run.c]))
    known = run.values[column]
    value = (
        f"{known[0].rstrip('0123456789')}9"
        if rng.random() < 0.5 or len(known) < 2
        else str(rng.choice(known))
    )
    return (Change(column, "set", size, value),)


def _one_phrase(run: Run, rng: np.random.Generator, size: float) -> tuple[Change, ...]:
    phrase = str(rng.choice(FOREIGN)) if rng.random() < 0.15 else draw_phrase(rng)
    write = Change("written", "write", size, phrase)
    if "component/judge" in run.c and rng.random() < 0.4:
        return (write, Change("liked", "like", float(rng.uniform(0.1, 0.4))))
    return (write,)


def _one_scalar(run: Run, rng: np.random.Generator, size: float) -> tuple[Change, ...]:
    kind = str(rng.choice([MEASURED, SCHEDULE, SETTING], p=[0.75, 0.15, 0.1]))
    key = str(rng.choice(_keys(run, kind) or _keys(run, MEASURED)))
    if run.kinds.get(key, MEASURED) == SCHEDULE and rng.random() < 0.4 and _bends(run.logged[key]):
        return (Change(f"logged {key}", "again", 1.0),)
    if run.kinds.get(key, MEASURED) != MEASURED:
        return (Change(f"logged {key}", "times", float(rng.choice([-2.3, -0.7, 0.7, 2.3]))),)
    if rng.random() < 0.1:
        return (Change(f"logged {key}", "null", 1.0),)
    return (Change(f"logged {key}", "add", size),)


def _keys(run: Run, kind: str) -> list[str]:
    """Scalars of a kind; of measured ones those that are there and move in the second half."""
    keys = [key for key in run.logged if run.kinds.get(key, MEASURED) == kind]
    if kind != MEASURED:
        return keys
    late = {key: run.logged[key][run.spec.n_steps // 2 :] for key in keys}
    return [k for k in keys if np.isfinite(late[k]).sum() > 1 and np.nanstd(late[k]) > 0]


def _bends(values: np.ndarray) -> bool:
    return bool(np.ptp(values) > DIFFERS * np.abs(values).max())


def _until_it_is_the_same(run: Run, change: Change, onset: int) -> tuple[str, int]:
    """The shape and the length of a course begun anew: while it differs from the planned one."""
    values = run.logged[change.node.removeprefix("logged ")]
    differs = np.abs(begun_again(values, onset) - values) > DIFFERS * np.abs(values).max()
    last = int(np.flatnonzero(differs)[-1]) if differs.any() else onset
    n = len(values)
    return ("level", n) if last == n - 1 else ("window", last - onset + 1)


def _one_attempt(run: Run, rng: np.random.Generator, size: float) -> tuple[Change, ...]:
    """A second attempt with other settings, seen in what is logged and in how the policy behaves."""
    name = str(rng.choice(["lr", "kl", "grad_norm"]))
    how = "times" if name == "lr" else "scale"
    key = key_of(run.spec.habits.trainer, name)
    set_to = Change(f"logged {key}", how, float(rng.choice([-1.6, -0.7, 0.7, 1.6])))
    return (Change("attempt", "set", 1.0, "2"), set_to)


_SPECIAL: Mapping[str, Callable[[Run, np.random.Generator, float], tuple[Change, ...]]] = {
    "flag": _one_flag,
    "null": _one_null,
    "value": _one_value,
    "written": _one_phrase,
    "logged": _one_scalar,
    "attempt": _one_attempt,
}


def _part(run: Run, rng: np.random.Generator, early: bool, changes: tuple[Change, ...]) -> Part:
    """The rows that are touched: all in half of the draws, else one value of a column, or two."""
    if rng.random() < 0.5:
        return ()
    set_here = {ch.node for ch in changes}
    columns = [c for c in BEFORE if c in run.c and len(run.values[c]) > 1 and c not in set_here]
    if not early:
        columns += [
            c
            for c, some in (
                ("stop_reason", (run.c["stop_reason"] == 1).mean() > 0.05),
                ("staleness_max", run.spec.lag > 1),
            )
            if some
        ]
    if not columns:
        return ()
    column = str(rng.choice(columns))
    if column == "staleness_max":
        return ((column, str(int(rng.integers(1, run.spec.lag + 1)))),)
    known = run.values[column] if column != "stop_reason" else ["length"]
    many = 2 if len(known) >= 4 and rng.random() < 0.25 else 1
    return tuple((column, str(v)) for v in sorted(rng.choice(known, many, replace=False)))


def _when(run: Run, rng: np.random.Generator, node: Node) -> tuple[str, int, int]:
    """A shape with its first step and its length."""
    n = run.spec.n_steps
    shapes = ("spike", "window", "level", "ramp")
    odds = {"written": (0.05, 0.2, 0.35, 0.4), "attempt": (0, 0, 1, 0), "logged": (0.4, 0.2, 0.25, 0.15)}
    shape = str(rng.choice(shapes, p=odds.get(node.name, (0.15, 0.3, 0.35, 0.2))))
    onset = int(rng.integers(max(n // 5, 3), max(int(0.85 * n), 5)))
    if shape == "spike":
        return shape, onset, int(rng.integers(1, 4))
    if shape == "window":
        length = int(rng.integers(4, max(n // 3, 6)))
        return shape, min(onset, n - length - 2), length
    if shape == "ramp":
        length = int(rng.integers(5, max(min(60, n // 4), 6) + 1))
        return shape, min(onset, n - length), length
    return shape, min(onset, n - 4), n


def resized(p: Perturbation, ratio: float) -> Perturbation:
    """A perturbation made larger or smaller, within what its nodes bear."""
    changes = []
    for change in p.changes:
        if change.node == "attempt" or change.how in FIXED:
            changes.append(change)
        elif change.how in SHARES:
            changes.append(replace(change, size=float(np.clip(change.size * ratio, 0.005, 1.0))))
        else:
            most = HIGHEST[change.how] if change.node != "logit" else 5.0
            changes.append(replace(change, size=float(np.clip(change.size * ratio, -most, most))))
    return replace(p, changes=tuple(changes))
