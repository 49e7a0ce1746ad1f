"""Healthy runs of every kind are quiet: few rows wear anything, and no alert is raised in 100 steps."""

from __future__ import annotations

from collections import defaultdict
from functools import cache

import numpy as np
import pytest

from rollout_traces.ledger.columns import Ledger
from tests.alarms.healthy_runs import Looked, look
from tests.stories.world import KINDS, Story, write_run

NUMBERS = (
    "reward",
    "n_sampled",
    "n_prompt",
    "n_turns",
    "advantage",
    "update_share",
    "mismatch_k3",
    "mean_logprob",
)


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
            **{name: np.asarray(column(name), float) for name in NUMBERS if name in table},
        }
    )  # fmt: skip


def _integers(values: list) -> np.ndarray:
    from rollout_traces.ledger.columns import NULL_INT

    return np.asarray([NULL_INT if value is None else value for value in values], np.int64)


@cache
def looked(kind: str) -> Looked:
    """What is seen of a healthy run of 100 steps."""
    seen = look(ledgers(write_run(5, kind)).items())
    print(seen.line(kind))
    return seen


@pytest.mark.parametrize("kind", KINDS)
def test_at_most_a_twentieth_of_the_rows_wears_anything(kind):
    assert looked(kind).share <= 0.05


@pytest.mark.parametrize("kind", KINDS)
def test_no_alert_is_raised_in_a_hundred_steps(kind):
    assert looked(kind).alerts == ()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20, 26))
def test_runs_of_other_seeds_are_quiet_too(seed):
    for kind in KINDS:
        seen = look(ledgers(write_run(seed, kind)).items())
        print(seen.line(kind))
        assert seen.share <= 0.05 and not seen.alerts


def test_a_planted_fault_is_worn_and_opens_an_incident():
    from tests.stories.causes import CAUSES

    story = write_run(5, "mixed", "mask leak", CAUSES["mask leak"].changes)
    seen = look(ledgers(story).items())
    assert [step for step, text in seen.alerts if "mask_leak" in text] == [story.at]
    assert any("mask_leak" in name for name in seen.incidents)
