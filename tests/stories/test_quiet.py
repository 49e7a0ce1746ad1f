"""Healthy runs are quiet: few rows wear anything, and hardly an incident opens in 100 steps.

A run of the kind `asynchronous` grows stale from its sixth step on, which the worker cannot yet know to be usual: it
opens an incident. In the kinds `small` and `agent` more rows are read or call tools, so more carry a fact of their own.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import numpy as np
import pytest

from rollout_traces.alarms.incidents import over_steps
from rollout_traces.alarms.signals import signals_of, watched
from rollout_traces.alarms.worn import usual_flags, worn
from rollout_traces.ledger.columns import Ledger
from tests.stories.world import KINDS, Story, write_run

QUIET = tuple(kind for kind in KINDS if kind not in ("asynchronous", "small", "agent"))


@dataclass(frozen=True)
class Looked:
    """What a reader sees of a run.

    Attributes:
        n_rows: its rollouts.
        n_flagged: those that carry a flag.
        n_wearing: those that wear one.
        incidents: names.
    """

    n_rows: int
    n_flagged: int
    n_wearing: int
    incidents: tuple[str, ...]

    @property
    def share(self) -> float:
        """Share of the rows that wear anything."""
        return self.n_wearing / self.n_rows


def ledgers(story: Story) -> dict[int, Ledger]:
    """The ledger of each training step."""
    table = story.rollouts.to_pydict()
    rows_of = defaultdict(list)
    for row, (step, split, old) in enumerate(
        zip(table["step"], table["split"], table["superseded"], strict=True)
    ):
        if split == "rollout" and not old:
            rows_of[step].append(row)
    return {step: _ledger(table, rows_of[step]) for step in sorted(rows_of)}


def _ledger(table: dict[str, list], rows: list[int]) -> Ledger:
    def objects(values: list) -> np.ndarray:
        found = np.empty(len(rows), object)
        found[:] = values
        return found

    def column(name: str) -> list:
        return [table[name][row] for row in rows]

    flags = np.empty(len(rows), object)
    for at, names in enumerate(column("flags")):
        flags[at] = tuple(names or ())
    return Ledger(
        {
            "group": np.asarray(column("group")),
            "source": objects(column("source")),
            "flags": flags,
            "trace_uid": objects([uid if kept else None for uid, kept in zip(column("uid"), column("traced"), strict=True)]),
            "selected_by": objects(column("selected_by")),
            "reward_status": objects(column("reward_status")),
            "n_tool_calls": _integers(column("n_tool_calls")),
            "n_tool_errors": _integers(column("n_tool_errors")),
            "mismatch_k3": np.asarray(column("mismatch_k3"), float),
            "mean_logprob": np.asarray(column("mean_logprob"), float),
        }
    )  # fmt: skip


def _integers(values: list) -> np.ndarray:
    from rollout_traces.ledger.columns import NULL_INT

    return np.asarray([NULL_INT if value is None else value for value in values], np.int64)


def look(story: Story) -> Looked:
    """Reads a run as the inspector does."""
    steps = ledgers(story)
    signals = [signals_of(ledger, step) for step, ledger in steps.items()]
    usual, incidents = usual_flags(signals), over_steps(signals, watched()).incidents
    rows = [
        (step, source, flags)
        for step, ledger in steps.items()
        for source, flags in zip(ledger.get("source"), ledger.get("flags"), strict=True)
    ]
    wearing = sum(bool(worn(flags, step, source, usual, incidents).names) for step, source, flags in rows)
    flagged = sum(bool(flags) for _, _, flags in rows)
    return Looked(len(rows), flagged, wearing, tuple(each.name for each in incidents))


@pytest.fixture(scope="module")
def looked() -> dict[str, Looked]:
    """Every kind of healthy run, 100 steps each."""
    found = {kind: look(write_run(5, kind)) for kind in KINDS}
    for kind, seen in found.items():
        print(
            f"{kind:13} {seen.n_rows:6} rows, {seen.n_flagged / seen.n_rows:6.1%} carry a flag, "
            f"{seen.share:5.1%} wear one, incidents: {', '.join(seen.incidents) or 'none'}"
        )
    return found


@pytest.mark.parametrize("kind", QUIET)
def test_at_most_a_twentieth_of_the_rows_wears_anything(looked, kind):
    assert looked[kind].share <= 0.05


def test_over_all_kinds_a_twentieth_of_the_rows_wears_anything_at_most(looked):
    assert sum(seen.n_wearing for seen in looked.values()) <= 0.05 * sum(
        seen.n_rows for seen in looked.values()
    )


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "asynchronous"])
def test_at_most_one_incident_opens_in_a_hundred_steps(looked, kind):
    assert len(looked[kind].incidents) <= 1


def test_a_planted_fault_is_worn_and_opens_an_incident():
    from tests.stories.causes import CAUSES

    story = write_run(5, "mixed", "mask leak", CAUSES["mask leak"].changes)
    seen = look(story)
    opened = [int(name.split("@")[1]) for name in seen.incidents if name.startswith("mask_leak@")]
    assert opened == [story.at]
