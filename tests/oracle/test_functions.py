"""The metrics and the ledger of random steps against a second opinion, through the functions."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from rollout_traces.capture.host_copy import capture
from rollout_traces.capture.part import GroupNumbers
from rollout_traces.flags.detect import Population, flag_population
from rollout_traces.ledger.build import build_ledger
from rollout_traces.metrics import rollout_metrics
from rollout_traces.model.batch import RolloutBatch
from rollout_traces.model.packed_batch import PackedBatch, concatenate
from rollout_traces.settings.run_settings import RunSettings
from tests.oracle.comparing import Comparison
from tests.oracle.flags import COMPARED, flags_of
from tests.oracle.given import GivenStep, draw_step
from tests.oracle.metrics import metrics_of
from tests.oracle.rows import rows_of

NOT_COMPARED = ("uid", "step", "group", "prompt_key", "timings")
"""Columns that are made up when a step is handed over; `group` is compared by who shares it, spans by their sums."""


def packed(step: GivenStep) -> PackedBatch:
    """The step as the worker sees it."""
    numbers = GroupNumbers()
    return concatenate(
        [
            capture([RolloutBatch(**part) for part in call], step=7, split=step.split, groups=numbers)
            for call in step.calls
        ]
    )


def compare(step: GivenStep) -> Comparison:
    """One step through `build_ledger` and `rollout_metrics`."""
    settings, batch = RunSettings.create(**step.settings), packed(step)
    ledger = build_ledger(batch, settings)
    rows = rows_of(step)
    found = Comparison()
    for b, row in enumerate(rows):
        columns = {name: value for name, value in ledger.row(b).items() if name not in NOT_COMPARED}
        found.mappings(f"seed {step.seed} row {b}", columns, row.columns)
    groups = ledger.get("group").tolist()
    ours = [sorted(i for i, g in enumerate(groups) if g == group) for group in groups]
    theirs = [sorted(i for i, other in enumerate(rows) if other.group == row.group) for row in rows]
    for b in range(len(rows)):
        found.values(f"seed {step.seed} row {b}: group", ours[b], theirs[b])
    raised = flag_population(Population(batch, ledger, settings=settings))
    for b, names in enumerate(flags_of(rows, step)):
        carried = {flag.name for flag in raised.get(b, ())}
        for name in COMPARED:
            found.values(f"seed {step.seed} row {b}: flag {name}", name in carried, name in names)
    metrics = rollout_metrics(batch, ledger, keys="full", settings=settings)
    recovered = () if step.settings.get("component_weights") else ("/share",)
    mine = {
        key.partition("/")[2]: value
        for key, value in metrics.items()
        if not (key.endswith(recovered) and "/reward/" in key)
    }
    found.mappings(f"seed {step.seed}", mine, metrics_of(rows, step))
    return found


def test_the_second_opinion_imports_nothing_of_the_package():
    for name in ("given", "rows", "metrics", "flags"):
        tree = ast.parse(Path(__file__).with_name(f"{name}.py").read_text())
        names = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
        names |= {one.name for node in ast.walk(tree) if isinstance(node, ast.Import) for one in node.names}
        assert names and not any(str(module).startswith("rollout_traces") for module in names)


class TestAgainstTheSecondOpinion:
    def test_twenty_thousand_values_of_random_steps(self):
        short = (compare(draw_step(seed)) for seed in range(40))
        long = (compare(draw_step(seed, long_rows=True)) for seed in range(1000, 1003))
        Comparison().add([*short, *long]).check(20_000)

    @pytest.mark.slow
    def test_half_a_million_values_of_random_steps(self):
        short = (compare(draw_step(seed)) for seed in range(10_000, 10_700))
        long = (compare(draw_step(seed, long_rows=True)) for seed in range(20_000, 20_030))
        Comparison().add([*short, *long]).check(500_000)
