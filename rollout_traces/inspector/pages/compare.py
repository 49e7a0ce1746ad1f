"""Two rollouts side by side: what they share, where they part, what differs."""

from __future__ import annotations

from typing import Any

import numpy as np

from rollout_traces.errors import StoreError
from rollout_traces.inspector.pages.base import Page
from rollout_traces.inspector.pages.figures import axis_range, chosen_by, flag_severities
from rollout_traces.inspector.pages.images import image
from rollout_traces.inspector.pages.incidents import run_alarms, worn_listed
from rollout_traces.inspector.pages.rollouts import sample_card, told_population
from rollout_traces.inspector.pages.share import share
from rollout_traces.inspector.payload import rollout_payload
from rollout_traces.inspector.workspace import Request, Workspace
from rollout_traces.store import Group, RunInfo, Store
from rollout_traces.trace.conversion import TraceRecord, read_transcript

COMPARED = (
    "reward",
    "raw_reward",
    "advantage",
    "success",
    "n_tokens",
    "n_sampled",
    "n_environment",
    "n_thinking",
    "n_turns",
    "n_tool_calls",
    "n_tool_errors",
    "version_min",
    "version_max",
    "staleness_max",
    "mean_logprob",
    "mismatch_k3",
    "update_share",
)
MOST_STEPS_OF_A_PROMPT = 400


def compare(workspace: Workspace, request: Request) -> dict[str, Any]:
    """Two rollouts: those named as `a` and `b`, else the best and the worst of the group."""
    store = workspace.store(request.project)
    group = _group(store, request)
    ids = [request.text("a") or None, request.text("b") or None]
    ids = _fill(ids, [row.id for row in group.traces if row.id is not None] if group else [])
    if None in ids:
        raise StoreError(
            "Comparing needs two rollouts and fewer were kept here. Pick a group with two or more kept, or pin "
            "one under Rollouts (x), open another and compare."
        )
    records = [store.record(str(trace_id)) for trace_id in ids]
    severities = flag_severities()
    sides = []
    for trace_id, record in zip(ids, records, strict=True):
        payload = rollout_payload(str(trace_id), record, severities)
        names = ["reward", *(key for key in record.metadata if key.startswith("component/"))]
        ranges = {name: axis_range(workspace, request, name) for name in names}
        run = _run_of(store, str(trace_id))
        sides.append(
            payload
            | {"ranges": ranges, "run": run.name if run else None}
            | worn_side(workspace, request, payload, run)
        )
    return {
        "sides": sides,
        "shared": shared_prefix(*records),
        "deltas": deltas(*(record.metadata for record in records)),
        "candidates": _cards(workspace, request, group),
        "range": axis_range(workspace, request, "reward"),
        "severities": severities,
    }


def prompt_history(workspace: Workspace, request: Request) -> dict[str, Any]:
    """The rollouts that answer the same prompt, step by step, from the ledger of all rows."""
    store = workspace.store(request.project)
    key = request.text("prompt_key")
    if not key:
        return {"steps": []}
    quoted = key.replace("\\", "\\\\").replace("'", "\\'")
    page = store.query(
        request.run,
        request.split,
        where=f"prompt_key = '{quoted}'",
        rows="all",
        limit=10_000,
        order_by="step",
    )
    by_step: dict[int, list[Any]] = {}
    for row in page.rows:
        by_step.setdefault(row.step, []).append(row)
    steps = []
    for step, rows in sorted(by_step.items())[-MOST_STEPS_OF_A_PROMPT:]:
        rewards = [row["reward"] for row in rows if row["reward"] is not None]
        successes = [row["success"] for row in rows if row["success"] is not None]
        steps.append(
            {
                "step": step,
                "n": len(rows),
                "reward": float(np.mean(rewards)) if rewards else None,
                "pass_rate": float(np.mean(successes)) if successes else None,
                "traced": [row["trace_uid"] for row in rows if row["trace_uid"] is not None],
                "group": rows[0]["group"],
            }
        )
    return {"steps": steps, "range": axis_range(workspace, request, "reward")}


def population(workspace: Workspace, request: Request) -> dict[str, Any]:
    """How many rollouts of the step were kept."""
    groups = workspace.store(request.project).groups(request.run, request.split, request.step)
    return {
        "step": request.step,
        "n_traced": groups.n_traces,
        "n_rows": groups.n_rollouts or told_population(groups),
        "chosen_by": chosen_by(groups.selected_by),
    }


def shared_prefix(a: TraceRecord, b: TraceRecord) -> int | None:
    """Tokens that both rollouts begin with; None where one has no token data."""
    first, second = read_transcript(a), read_transcript(b)
    if first is None or second is None:
        return None
    ids_a, ids_b = first.tokens.input_ids, second.tokens.input_ids
    n = min(len(ids_a), len(ids_b))
    different = np.flatnonzero(ids_a[:n] != ids_b[:n])
    return int(different[0]) if len(different) else n


def deltas(a: Any, b: Any) -> list[dict[str, Any]]:
    """Numbers that both or either have, side by side."""
    extra = [k for k in {**a, **b} if k.startswith(("component/", "sample/", "extra/"))]
    rows = []
    for name in [
        *COMPARED[:3],
        *sorted(k for k in extra if k.startswith("component/")),
        *COMPARED[3:],
        *sorted(k for k in extra if not k.startswith("component/")),
    ]:
        left, right = a.get(name), b.get(name)
        if left is None and right is None:
            continue
        numeric = all(isinstance(value, (int, float)) for value in (left, right))
        rows.append({"name": name, "a": left, "b": right, "delta": right - left if numeric else None})
    for name in ("stop_reason", "discard_reason", "parsed_answer", "selected_by"):
        if a.get(name) is not None or b.get(name) is not None:
            rows.append({"name": name, "a": a.get(name), "b": b.get(name), "delta": None})
    return rows


def _group(store: Store, request: Request) -> Group | None:
    """The group asked for, else the one of the step whose kept rollouts differ most."""
    if request.number("step") is None:
        return None
    groups = store.groups(request.run, request.split, request.step).groups
    wanted = request.number("group")
    if wanted is not None:
        found = next((group for group in groups if group.group == wanted), None)
        if found is not None and (len(found.traces) > 1 or request.text("a") or request.text("b")):
            return found
    spread = [group for group in groups if len(group.traces) > 1]
    return max(spread, key=_spread, default=None)


def _spread(group: Group) -> float:
    rewards = [row["reward"] for row in group.traces if row["reward"] is not None]
    return max(rewards) - min(rewards) if rewards else 0.0


def _cards(workspace: Workspace, request: Request, group: Group | None) -> list[dict[str, Any]]:
    if group is None:
        return []
    alarms = run_alarms(workspace, request)
    return [sample_card(row, alarms.worn_by(row)) for row in group.traces]


def worn_side(
    workspace: Workspace, request: Request, payload: dict[str, Any], run: RunInfo | None
) -> dict[str, Any]:
    """A side's flags as its run's rows wear them; all of them where the run or step is not known.

    Returns:
        `flags`, those that it wears, with the sentences; `explains` and `usual_flags` as on a card.
    """
    metadata = payload["metadata"]
    step, split = metadata.get("step"), metadata.get("split")
    if run is None or type(step) is not int or not isinstance(split, str):
        return {}
    alarms = run_alarms(workspace, Request({"project": request.project, "run": run.id, "split": split}))
    listed = worn_listed(alarms.worn_of(metadata, step))
    return listed | {"flags": [flag for flag in payload["flags"] if flag["name"] in listed["flags"]]}


def _run_of(store: Store, trace_id: str) -> RunInfo | None:
    """The run that a trace belongs to; its id begins with the run's."""
    return next((run for run in store.runs() if trace_id.startswith(f"{run.id}:")), None)


def _fill(ids: list[str | None], best_first: list[str]) -> list[str | None]:
    """The best for the left and the worst for the right, where they were not named."""
    left = ids[0] or next((i for i in best_first if i != ids[1]), None)
    right = ids[1] or next((i for i in reversed(best_first) if i != left), None)
    return [left, right]


PAGE = Page(
    name="compare", title="Compare", key="2", functions=(compare, image, prompt_history, population, share)
)
