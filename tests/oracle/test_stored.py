"""The same values through the logger and Trackio: as they are stored, and as Health, `stats` and `list` show them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import rollout_traces as rt
from rollout_traces.cli import build_app
from rollout_traces.inspector.pages.health import health
from rollout_traces.inspector.pages.measures import FLAGGED, MEASURES
from rollout_traces.inspector.workspace import Workspace
from rollout_traces.model.plain_values import finite_or_text
from rollout_traces.store.step_metrics import SHOWN
from tests.inspector.told import told
from tests.oracle.comparing import Comparison
from tests.oracle.flags import COMPARED, flags_of
from tests.oracle.given import GivenStep, draw_step
from tests.oracle.metrics import metrics_of
from tests.oracle.rows import Row, rows_of
from tests.oracle.test_functions import NOT_COMPARED


def log_steps(steps: list[GivenStep], settings: dict[str, Any]) -> None:
    """Logs steps 0, 1, ... of one run, the parts of a call as one hand-over."""
    logger = rt.RolloutLogger(
        "oracle",
        "run",
        max_rollout_traces_per_step=0,
        worker="thread",
        metric_keys="full",
        config={"rollout_traces": settings},
    )
    for number, step in enumerate(steps):
        for call in step.calls:
            logger.log_rollouts(call, step=number, split="rollout")
    assert logger.finish()


def opinions(steps: list[GivenStep], settings: dict[str, Any]) -> list[tuple[GivenStep, list[Row]]]:
    for step in steps:
        step.settings, step.split = settings, "rollout"
    return [(step, rows_of(step)) for step in steps]


def compare_stored(steps: list[GivenStep], settings: dict[str, Any]) -> Comparison:
    """Everything that one run stored, in every view."""
    both = opinions(steps, settings)
    log_steps(steps, settings)
    store = rt.open_store(project="oracle")
    found = Comparison()
    expected = {number: metrics_of(rows, step) for number, (step, rows) in enumerate(both)}
    _compare_scalars(found, store, expected, recovered=not settings.get("component_weights"))
    flags = {
        id(row): names for step, rows in both for row, names in zip(rows, flags_of(rows, step), strict=True)
    }
    _compare_rows(found, store, [rows for _, rows in both], flags)
    _compare_health(found, expected)
    _compare_stats(found, expected)
    _compare_list(found, [rows for _, rows in both])
    store.close()
    return found


def _compare_scalars(found: Comparison, store: Any, expected: Any, recovered: bool) -> None:
    logged: dict[int, dict[str, float]] = {number: {} for number in expected}
    for key, (steps, values) in store.metrics("run").items():
        split, _, name = key.partition("/")
        own = not name.startswith(("total/", "flags/")) and not name.endswith("histogram")
        if split == "rollout" and own and not (recovered and "reward/" in name and name.endswith("/share")):
            for step, value in zip(steps, values, strict=True):
                logged[step][name] = value
    for number, metrics in expected.items():
        found.mappings(f"scalars of step {number}", logged[number], metrics)


def _compare_rows(found: Comparison, store: Any, steps: list[list[Row]], flags: dict[int, set[str]]) -> None:
    for number, rows in enumerate(steps):
        ledger = store.ledger("run", "rollout", steps=(number, number))
        assert ledger.n_rows == len(rows)
        by_place = {(row["group"], row["sample"]): row for row in map(ledger.row, range(ledger.n_rows))}
        for row in rows:
            columns = dict(by_place[(row.group, row.columns["sample"])])
            carried = columns.get("flags") or ()
            for name in COMPARED:
                found.values(f"ledger of step {number}: flag {name}", name in carried, name in flags[id(row)])
            left_out = (*NOT_COMPARED, "flags", "run", "attempt", "late")
            columns = {name: value for name, value in columns.items() if name not in left_out}
            found.mappings(f"ledger of step {number}", columns, row.columns)


def _compare_health(found: Comparison, expected: Any) -> None:
    page = told(health, Workspace(), {"project": "oracle", "run": "run", "split": "rollout"})
    assert page["steps"] == sorted(expected)
    shown = {measure["key"]: measure["values"] for measure in page["measures"]}
    for measure in MEASURES:
        if measure.key == FLAGGED:
            continue
        values = shown.get(measure.key, [None] * len(expected))
        for number, value in zip(page["steps"], values, strict=True):
            found.values(f"Health, step {number}: {measure.key}", value, expected[number].get(measure.key))


def _compare_stats(found: Comparison, expected: Any) -> None:
    shown = run_command(["stats", "-p", "oracle", "--json"])["rows"]
    assert [row["step"] for row in shown] == sorted(expected)
    for row in shown:
        for key in SHOWN:
            found.values(f"stats, step {row['step']}: {key}", row[key], expected[row["step"]].get(key))


def _compare_list(found: Comparison, steps: list[list[Row]]) -> None:
    columns = ("step", "group", "sample", "reward", "n_sampled", "stop_reason", "mismatch_k3", "engine")
    listed = run_command(
        ["list", "-p", "oracle", "--all", "--json", "-n", "10000", "--columns", ",".join(columns)]
    )
    by_place = {(row["step"], row["group"], row["sample"]): row for row in listed["rows"]}
    for number, rows in enumerate(steps):
        for row in rows:
            seen = by_place[(number, row.group, row.columns["sample"])]
            for name in columns[3:]:
                found.values(
                    f"list, step {number}: {name}", seen.get(name), finite_or_text(row.columns.get(name))
                )


def run_command(arguments: list[str]) -> Any:
    result = CliRunner().invoke(build_app([arguments[0]]), arguments)
    assert result.exit_code == 0, result.output
    return json.loads(result.output)


def settings_of(seed: int) -> dict[str, Any]:
    settings = draw_step(seed).settings
    return {key: list(value) if isinstance(value, tuple) else value for key, value in settings.items()}


class TestStored:
    def test_a_run_of_random_steps_in_every_view(self, trackio_dir: Path):
        compare_stored([draw_step(seed) for seed in range(50, 58)], settings_of(51)).check(4_000)

    @pytest.mark.slow
    @pytest.mark.parametrize("seed", range(6))
    def test_runs_of_random_steps_in_every_view(self, trackio_dir: Path, seed: int):
        first = 30_000 + 100 * seed
        compare_stored([draw_step(n) for n in range(first, first + 60)], settings_of(first)).check(25_000)
