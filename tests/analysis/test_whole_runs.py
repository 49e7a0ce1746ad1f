"""Odd runs, whole: an answer or "unobserved", of `explain`, of a step, of the judge in the worker; and what the eye sees is named."""

from __future__ import annotations

import math
import string

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rollout_traces.alarms.figures import figures_of, scalar_figures
from rollout_traces.alarms.online import Trail, judge
from rollout_traces.alarms.worn import rises, usual_flags
from rollout_traces.analysis import Selection, diagnose, explain, run_report
from rollout_traces.analysis.selections import RunScope
from rollout_traces.ledger.columns import Ledger
from tests.analysis.builders import table
from tests.flags.test_text import SENTENCES
from tests.stories.relations import TEXTS, TableRelations

NUMBERS = st.sampled_from([0.0, 1.0, 0.5, -3.0, 1e12, math.nan, math.inf, -math.inf, None])
METRICS = {"run": pa.string(), "split": pa.string(), "step": pa.int64(), "key": pa.string(), "value": pa.float64(), "attempt": pa.string()}  # fmt: skip


@st.composite
def runs(draw) -> dict:
    """A run of 1 to 24 steps, some of them without rollouts, of whatever a trainer may log."""
    n_steps = draw(st.integers(1, 24))
    n_groups, size = draw(st.sampled_from([(1, 1), (1, 4), (3, 1), (3, 3), (6, 4)]))
    seed = draw(st.integers(0, 2**16))
    rng = np.random.default_rng(seed)
    kind = draw(st.sampled_from(["drawn", "equal", "unknown", "odd"]))
    odd = draw(st.lists(NUMBERS, min_size=1, max_size=5))
    empty = draw(st.sets(st.integers(0, n_steps - 1), max_size=3))
    names = draw(st.sampled_from(["few", "one", "once", "many"]))
    grouped = draw(st.booleans())
    rows = []
    for step in set(range(n_steps)) - empty:
        for at in range(n_groups * size):
            n = len(rows)
            rewards = {
                "drawn": float(rng.random() < 0.5),
                "equal": 0.7,
                "unknown": None,
                "odd": odd[n % len(odd)],
            }
            source = {
                "few": ("math", "code")[n % 2],
                "one": "math",
                "once": "once" if not n else "math",
                "many": f"s{n}",
            }
            rows.append(
                {
                    "step": step, "group": at // size if grouped else None, "prompt_key": f"p{at // size}", "reward": rewards[kind],
                    "source": source[names], "extra/note": f"v{n}", "n_sampled": odd[n % len(odd)], "uid": str(n), "traced": True,
                    "selected_by": "random", "selected_probability": 1.0, "flags": ["truncated"] if rng.random() < 0.3 else [],
                    "reply": list(SENTENCES.values())[n % len(SENTENCES)],
                }
            )  # fmt: skip
    scalars = [(step, f"k{i}", odd[(step + i) % len(odd)]) for step in range(n_steps) for i in range(3)]
    return {"rows": rows, "scalars": scalars, "n_steps": n_steps}


def relations(rows: list[dict], scalars: list[tuple]) -> TableRelations:
    """Rollouts, logged scalars and what the rollouts wrote."""
    plain = pa.table(
        {
            name: pa.array([value[i] for value in ((("run", "", s, k, v, "") for s, k, v in scalars))], kind)
            for i, (name, kind) in enumerate(METRICS.items())
        }
    )
    columns = {
        name: pa.array([row.get(name) for row in rows], KINDS.get(name, pa.string()))
        for name in ("run", "split", "id", *(rows[0] if rows else KINDS))
        if name not in ("run", "split", "id")
    }
    known = {"run": pa.array(["run"] * len(rows)), "split": pa.array(["rollout"] * len(rows))}
    known["id"] = pa.array([str(i) for i in range(len(rows))])
    texts = pa.Table.from_pylist([{"uid": row["uid"], "written": row["reply"] * 3} for row in rows], TEXTS)
    return TableRelations(pa.table({**known, **columns}), plain, texts)


KINDS = {
    "step": pa.int64(), "group": pa.int64(), "reward": pa.float64(), "n_sampled": pa.float64(), "traced": pa.bool_(),
    "selected_probability": pa.float64(), "flags": pa.list_(pa.string()),
}  # fmt: skip


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(runs())
def test_an_odd_run_is_answered(run):
    known = relations(run["rows"], run["scalars"])
    report = diagnose(known, "run")
    assert report.problems == ()
    scope = RunScope(known, "run", "rollout")
    rises(scope, usual_flags(scope))
    if run["rows"]:
        last = max(row["step"] for row in run["rows"])
        explain(known, Selection("run", "rollout", (last, last)))


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(runs())
def test_an_odd_run_is_judged_while_it_goes(run):
    trail, logged = Trail(), Trail()
    for step in range(run["n_steps"]):
        here = [row for row in run["rows"] if row["step"] == step]
        trail = judge(trail, figures_of(ledger(here), step, trail.names)).trail
        values = {key: value for at, key, value in run["scalars"] if at == step}
        logged = judge(logged, scalar_figures(values, step)).trail
    assert trail.n_steps == logged.n_steps == run["n_steps"]


def ledger(rows: list[dict]) -> Ledger:
    def objects(values: list) -> np.ndarray:
        column = np.empty(len(values), object)
        column[:] = values
        return column

    def floats(name: str) -> np.ndarray:
        return np.asarray([math.nan if row[name] is None else row[name] for row in rows], float)

    none = np.iinfo(np.int64).min
    return Ledger(
        {
            "group": np.asarray([none if row["group"] is None else row["group"] for row in rows], np.int64),
            "reward": floats("reward"),
            "n_sampled": floats("n_sampled"),
            "flags": objects([tuple(row["flags"]) for row in rows]),
            **{
                name: objects([row[name] for row in rows]) for name in ("prompt_key", "source", "selected_by")
            },
            "trace_uid": objects([row["uid"] for row in rows]),
        }
    )


OFF = {"jump": 2, "drop": 2, "ramp": 40}
"""Steps that the onset may be off by; a ramp may be told as slow change from the first step on."""
SHAPES = {
    "jump": lambda t: (t >= 40) * 1.0,
    "ramp": lambda t: np.clip((t - 40) / 10, 0, 1),
    "drop": lambda t: (t >= 40) * -1.0,
}


class TestWhatTheEyeSees:
    """A change of ten noise units that lasts is named, whatever the series is called."""

    @pytest.mark.parametrize("shape", ["jump", "drop"])
    @pytest.mark.parametrize("seed", range(3))
    def test_in_a_logged_scalar(self, shape, seed):
        rng = np.random.default_rng([seed, len(shape)])
        names = ["".join(rng.choice(list(string.ascii_letters + "/_."), 12)) for _ in range(8)]
        noise = rng.normal(5, 1, (len(names), 80))
        noise[3] += 10 * SHAPES[shape](np.arange(80))
        scalars = [
            (s, name, float(v))
            for name, values in zip(names, noise, strict=True)
            for s, v in enumerate(values)
        ]
        rows = [
            {"step": s, "group": g, "uid": f"{s}-{g}", "reply": "", "traced": False}
            for s in range(80)
            for g in range(2)
        ]
        found = diagnose(relations(rows, scalars), "run").diagnoses
        assert [
            d
            for d in found
            for name in d.series
            if name.column == names[3] and abs(d.step - 40) <= OFF[shape]
        ]

    @pytest.mark.parametrize("shape", SHAPES)
    @pytest.mark.parametrize("seed", range(2))
    def test_in_a_column_of_the_rollouts(self, shape, seed):
        rng = np.random.default_rng([seed, len(shape), 5])
        name = "sample/" + "".join(rng.choice(list(string.ascii_lowercase), 9))
        size = 10 / math.sqrt(24) * SHAPES[shape](np.arange(60))
        rows = [
            {"step": s, "group": g, name: float(rng.normal() + size[s])}
            for s in range(60)
            for g in range(6)
            for _ in range(4)
        ]
        found = diagnose(table(rows), "run").diagnoses
        assert [
            d for d in found for each in d.series if each.column == name and abs(d.step - 40) <= OFF[shape]
        ]


class TestNeverAllOrNothing:
    @pytest.mark.parametrize(
        "part", ["group_rows", "text_rows", "prompt_entries", "fault_entries", "logged_series", "with_flips", "setting_entries"]
    )  # fmt: skip
    def test_a_part_that_raises_is_said_in_a_line_and_the_others_remain(self, part, monkeypatch):
        def broken(*arguments: object) -> None:
            raise ZeroDivisionError("planted")

        monkeypatch.setattr(run_report, part, broken)
        rows = [
            {"step": s, "group": g, "reward": float((s + g + i) % 2 if s < 30 else 0)}
            for s in range(40)
            for g in range(8)
            for i in range(4)
        ]
        report = diagnose(table(rows), "run")
        assert any("planted" in problem for problem in report.problems)
        assert any(name.column == "reward" for d in report.diagnoses for name in d.series)
