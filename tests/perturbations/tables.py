"""A run as the analysis sees it: the relations `rollouts` and `metrics`, and texts of kept rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from tests.perturbations.run import Run
from tests.perturbations.text import answers, prompts, truths, written
from tests.stories.relations import TableRelations

SPLITS = ("rollout", "eval-rollout")
TEXT_FLAGS = ("thinking_unclosed", "retokenized", "tool_error", "gibberish")
"""Flags that only a decoded rollout can carry."""
TRACED_ONLY = ("n_tool_calls", "n_tool_errors", "error_signatures")
"""Columns that are known of traced rows alone."""
INTEGERS = [
    "success",
    "n_prompt",
    "n_sampled",
    "n_environment",
    "n_turns",
    "n_tool_calls",
    "n_tool_errors",
    "staleness_max",
    "version_min",
    "version_max",
    "train_version",
]
INTERNAL = (
    "step",
    "group",
    "sample",
    "split",
    "prompt",
    "hardness",
    "logit",
    "log_length",
    "correct",
    "entropy",
    "lag",
    "tied",
)
OF_TRAINING = ("advantage", "mismatch_k1", "mismatch_k3", "mismatch_abs_max", "clip_share", "update_share")


class Relations(TableRelations):
    """A run's relations, with what kept rows wrote.

    Args:
        run: a computed run.
        cap: traces a step; the world's own where None, 0 for all.
        name: the run's name.
    """

    def __init__(self, run: Run, cap: int | None = None, name: str = "run") -> None:
        self._run = run
        self._traced = selection(run, run.spec.cap if cap is None else cap)
        super().__init__(rollouts(run, self._traced, name), metrics(run, name))

    def texts(self, uids: Sequence[str]) -> pa.Table:
        """What kept rollouts say, by uid; a rollout that is not kept has no row."""
        run, traced = self._run, self._traced[0]
        rows = [r for r in (int(u.rsplit("-", 1)[1]) for u in uids) if r < run.n and traced[r]]
        wrote, asked = written(run, rows), prompts(run, rows)
        return pa.table(
            {
                "uid": pa.array([f"u-{r}" for r in rows], pa.string()),
                "written": pa.array(wrote, pa.string()),
                "tool_results": pa.nulls(len(rows), pa.string()),
                "prompt": pa.array(asked, pa.string()),
                "system": pa.array([run.values["system"][run.c["system"][r]] for r in rows], pa.string()),
                "tools": pa.array(
                    [
                        run.values["tools"][run.c["tools"][r]] if run.c["tools"][r] >= 0 else None
                        for r in rows
                    ],
                    pa.string(),
                ),
                "ground_truth": pa.array([str(v) for v in truths(run)[rows]], pa.string()),
            }
        )


def selection(run: Run, cap: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Which rows became traces, why (codes of `random`, `best`, -1), and the chance of the random part.

    Three quarters of a cap are drawn at random, the rest are the best rewards of what remains.
    """
    u = run.rng("selection").random(run.n)
    place = run.c["step"] * 2 + run.c["split"]
    reason, chance = np.full(run.n, -1), np.full(run.n, np.nan)
    order = np.lexsort((u, place))
    order = order[run.kept[order]]
    starts = np.flatnonzero(np.r_[True, np.diff(place[order]) != 0])
    for start, stop in zip(starts, np.r_[starts[1:], len(order)], strict=True):
        rows = order[start:stop]
        k = min(max(cap * 3 // 4, 1), len(rows)) if cap else len(rows)
        reason[rows[:k]], chance[rows] = 0, k / len(rows)
        if cap:
            best = rows[k:][np.argsort(-np.nan_to_num(run.c["reward"][rows[k:]], nan=-9), kind="stable")]
            reason[best[: cap - k]] = 1
    return reason >= 0, reason, chance


def rollouts(run: Run, traced: tuple[np.ndarray, np.ndarray, np.ndarray], name: str = "run") -> pa.Table:
    """The relation `rollouts`, a row a rollout."""
    c, (kept, reason, chance) = run.c, traced
    uid = pa.array([f"u-{i}" for i in range(run.n)])
    columns: dict[str, Any] = {
        "run": pa.repeat(pa.scalar(name), run.n),
        "id": uid,
        "uid": uid,
        "trace_uid": pa.array([f"t-{i}" if k else None for i, k in enumerate(kept)], pa.string()),
        "split": texts_of(c["split"], SPLITS),
        "step": pa.array(c["step"], pa.int64()),
        "group": pa.array(c["group"], pa.int64()),
        "sample": pa.array(c["sample"], pa.int64()),
        "attempt": texts_of(c["attempt"], run.values["attempt"]),
        "late": pa.array(np.zeros(run.n, bool)),
        "superseded": pa.array(np.zeros(run.n, bool)),
        "trained": pa.array((run.train & (c.get("discard_reason", -1) < 0)).astype(np.int64)),
        "prompt_key": pa.array(np.char.add("p", c["prompt"].astype(str))),
        "traced": pa.array(kept),
        "selected_by": texts_of(reason, ("random", "best")),
        "selected_probability": pa.array(chance, mask=~kept | ~np.isfinite(chance)),
        "train_version": pa.array(c["step"], pa.int64()),
        "version_max": pa.array((c["step"] - c["lag"]).astype(np.int64)),
        "version_min": pa.array((c["step"] - c["lag"]).astype(np.int64)),
    }
    for column, values in c.items():
        if column in INTERNAL or column in columns or column in ("system", "tools"):
            continue
        known = np.isfinite(values) if values.dtype.kind == "f" else values >= 0
        if column in TRACED_ONLY:
            known = known & kept
        if column in OF_TRAINING:
            known = known & run.train
        if column == "error_signatures":
            columns[column] = _tags(values, known, kept, run.values[column])
        elif column in run.values:
            columns[column] = texts_of(np.where(known, values, -1), run.values[column])
        elif column in INTEGERS:
            columns[column] = pa.array(
                np.where(known, np.nan_to_num(values), 0).astype(np.int64), mask=~known
            )
        else:
            columns[column] = pa.array(values, pa.float64(), mask=~known)
    columns["flags"] = _flags(run, kept)
    columns["prompt"] = _previews(run, kept, prompts)
    columns["reply"] = _previews(run, kept, written)
    columns["answer"] = pa.array(answers(run).astype(str))
    columns["ground_truth"] = pa.array(truths(run).astype(str))
    return pa.table(columns).filter(pa.array(run.kept))


def texts_of(codes: np.ndarray, values: Sequence[str]) -> pa.Array:
    """Codes as texts; -1 is unknown."""
    indices = pa.array(codes.astype(np.int32), mask=codes < 0)
    return pa.DictionaryArray.from_arrays(indices, pa.array(list(values), pa.string())).cast(pa.string())


def _tags(codes: np.ndarray, known: np.ndarray, traced: np.ndarray, values: Sequence[str]) -> pa.Array:
    lists = [
        ([values[code]] if k else []) if t else None for code, k, t in zip(codes, known, traced, strict=True)
    ]
    return pa.array(lists, pa.list_(pa.string()))


def _flags(run: Run, traced: np.ndarray) -> pa.Array:
    names = sorted(run.flags)
    matrix = np.stack([run.flags[f] & (traced if f in TEXT_FLAGS else True) for f in names])
    rows, which = np.nonzero(matrix.T)
    offsets = np.r_[0, np.cumsum(np.bincount(rows, minlength=run.n))]
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), pa.array(names).take(pa.array(which)))


def _previews(run: Run, traced: np.ndarray, texts: Any) -> pa.Array:
    rows = np.flatnonzero(traced)
    previews = np.full(run.n, None, object)
    previews[rows] = [t[:160] for t in texts(run, rows)]
    return pa.array(previews, pa.string())


def metrics(run: Run, name: str = "run") -> pa.Table:
    """The relation `metrics`, a number a row."""
    parts = []
    second = run.c["attempt"] == 1
    begins = int(run.c["step"][second].min()) if second.any() else run.spec.n_steps
    for key, values in run.logged.items():
        steps = np.flatnonzero(run.shown.get(key, np.ones(run.spec.n_steps, bool)))
        parts.append(
            pa.table(
                {
                    "run": pa.repeat(pa.scalar(name), len(steps)),
                    "split": pa.repeat(
                        pa.scalar("rollout" if key.startswith("rollout/") else None, pa.string()), len(steps)
                    ),
                    "step": pa.array(steps, pa.int64()),
                    "key": pa.repeat(pa.scalar(key), len(steps)),
                    "value": pa.array(values[steps], pa.float64()),
                    "attempt": pa.array(np.where(steps >= begins, "2", "1").astype(str)),
                }
            )
        )
    return pa.concat_tables(parts)
