"""The signals that the pages read for many steps at once are those that the worker counts step by step."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from rollout_traces.alarms.incidents import over_steps
from rollout_traces.alarms.many_steps import filled
from rollout_traces.alarms.signals import EVERYWHERE, StepSignals, signals_of, watched
from rollout_traces.alarms.worn import usual_flags
from rollout_traces.ledger.columns import NULL_INT, Ledger
from rollout_traces.store import Store, open_store
from rollout_traces.store.step_metrics import by_step, of_closed_step
from rollout_traces.store.step_signals import signals_by_step
from tests.store.projects import PROJECT, make_ledger, trackio_in, write_step

STEPS = 24
FLAGS = (
    ("truncated",), ("truncated", "no_end_marker"), ("tied_group", "truncated"), ("gibberish",), ("repetition", "loop"),
    ("logprob_mismatch",), ("tool_error",), ("stale", "mixed_versions"), ("not_registered",), ("mask_leak",),
)  # fmt: skip
RUNS = {f"run-{seed}": f"{seed:x}" * 32 for seed in range(1, 7)}


def odd_ledger(step: int, seed: int) -> Ledger:
    """A step of a run in which everything that can be unknown is, somewhere, and what is rare grows later on."""
    rng = np.random.default_rng([seed, step])
    sizes = rng.integers(1, 7, rng.integers(3, 14))
    n = int(sizes.sum())

    def chosen(*values: object) -> np.ndarray:
        column = np.empty(n, object)
        column[:] = [values[at] for at in rng.integers(0, len(values), n)]
        return column

    group = np.repeat(rng.permutation(len(sizes)) * (10**12 if seed == 2 else 1), sizes)
    if seed == 3:
        group[rng.random(n) < 0.2] = NULL_INT
    share = 0.05 + (0.7 if step > 14 and seed % 2 else 0.0)
    flags = {row: FLAGS[rng.integers(0, len(FLAGS))] for row in np.flatnonzero(rng.random(n) < share)}
    traced = tuple(np.flatnonzero(rng.random(n) < (1.0 if seed == 4 else 0.6)).tolist())
    calls = rng.integers(0, 4, n)
    known = rng.random(n) < 0.8
    ledger = make_ledger(
        [[0.0] * size for size in sizes], step=step, batch=f"s{seed}-", traced=traced, flags=flags
    )
    return ledger.with_columns(
        group=group,
        source=chosen(*(("math", "code", None, "日本 ‘search’") if seed != 5 else ("math",))),
        selected_by=np.where([row in traced for row in range(n)], chosen("random", "panel", "alarm"), None),
        reward_status=chosen("ok", "ok", "timeout", None) if step % 3 else chosen(None),
        n_tool_calls=np.where(known, calls, NULL_INT),
        n_tool_errors=np.where(known, rng.binomial(calls, 0.8 if step > 16 else 0.1), NULL_INT),
        mismatch_k3=np.where(known, rng.random(n) * (9 if step > 18 else 1), np.nan),
        mean_logprob=np.where(rng.random(n) < 0.9, -rng.random(n), np.nan) if step != 4 else np.full(n, np.nan),
        late=(rng.random(n) < (1.0 if step == 7 else 0.1)).astype(np.int64),
        **({"attempt": chosen("2026-a", "2026-b", None)} if seed == 6 and step % 2 else {}),
    )  # fmt: skip


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    folder = tmp_path_factory.mktemp("trackio")
    with trackio_in(folder):
        for seed, run in enumerate(RUNS.items(), 1):
            for step in range(STEPS):
                write_step(odd_ledger(step, seed), (), run=run)
        opened = open_store(PROJECT, folder=Path(folder))
        yield opened
        opened.close()


def one_by_one(store: Store, run: str) -> list[StepSignals]:
    ledger = store.ledger_rows(run, "rollout")
    return [signals_of(of_closed_step(rows), step) for step, rows in by_step(ledger)]


def at_once(store: Store, run: str) -> list[StepSignals]:
    return filled(list(signals_by_step(store, run, "rollout", (None, None)).values()))


@pytest.mark.parametrize("run", RUNS)
def test_what_is_counted_is_the_same(store: Store, run: str) -> None:
    for expected, seen in zip(one_by_one(store, run), at_once(store, run), strict=True):
        assert seen.step == expected.step
        assert seen.levels == expected.levels
        assert seen.n_raised == {key: n for key, n in expected.n_raised.items() if n}
        assert seen.shares.items() <= expected.shares.items()
        assert seen.carriers.items() <= expected.carriers.items()
        left_out = [counts for key, counts in expected.shares.items() if key not in seen.shares]
        left_out += [counts for name, counts in expected.carriers.items() if name not in seen.carriers]
        assert not any(counts.hits for counts in left_out)


def test_the_same_incidents_open_and_the_same_flags_are_usual(store: Store) -> None:
    signals, opened = watched({"truncated.alert_above": 0.0}), set()
    for run in RUNS:
        expected, seen = one_by_one(store, run), at_once(store, run)
        assert over_steps(seen, signals).incidents == over_steps(expected, signals).incidents
        assert usual_flags(seen) == usual_flags(expected)
        opened |= {(one.signal, one.source != EVERYWHERE) for one in over_steps(seen, signals).incidents}
    assert len(opened) > 3, "The runs show too little to compare."


def test_parts_of_a_run_are_counted_as_the_whole(store: Store) -> None:
    whole = signals_by_step(store, "run-1", "rollout", (None, None))
    parts = [signals_by_step(store, "run-1", "rollout", steps) for steps in ((None, 9), (10, 10), (11, None))]
    assert whole == parts[0] | parts[1] | parts[2]


def test_a_split_without_rows_has_no_steps(store: Store) -> None:
    assert signals_by_step(store, "run-1", "eval-rollout", (None, None)) == {}
    assert filled([]) == []
