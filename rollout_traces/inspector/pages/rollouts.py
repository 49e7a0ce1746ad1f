"""The page to read rollouts: samples of a step, one rollout, the split's metrics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from rollout_traces.alarms.worn import Worn
from rollout_traces.errors import StoreError
from rollout_traces.inspector.pages.around import around
from rollout_traces.inspector.pages.base import Page
from rollout_traces.inspector.pages.figures import (
    axis_range,
    chosen_by,
    chosen_over_steps,
    flag_severities,
    run_progress,
    split_series,
)
from rollout_traces.inspector.pages.images import image
from rollout_traces.inspector.pages.incidents import (
    RunAlarms,
    run_alarms,
    usual_listed,
    usual_marked,
    worn_listed,
)
from rollout_traces.inspector.pages.labels import annotate, labels
from rollout_traces.inspector.pages.share import share
from rollout_traces.inspector.payload import rollout_payload
from rollout_traces.inspector.workspace import Request, Workspace
from rollout_traces.store import Group, StepGroups, Store, TraceRow
from rollout_traces.store import RowPage as Rows

PAGE_ROWS = 100
MOST_OF_A_STEP = 10_000


def samples(workspace: Workspace, request: Request) -> dict[str, Any]:
    """The list on the left: groups of a step, or a flat list when sorted or over all steps."""
    store = workspace.store(request.project)
    everywhere = request.text("scope") == "all"
    groups = store.groups(request.run, request.split, request.step)
    alarms = run_alarms(workspace, request)
    common = {
        "usual": usual_listed(alarms),
        "step": request.step,
        "range": axis_range(workspace, request, "reward"),
        "severities": flag_severities(),
        "columns": [column.name for column in store.columns()],
        "scope": "all" if everywhere else "step",
    }
    population: dict[str, Any]
    if everywhere:
        counted = store.steps(request.run, request.split)
        known = [info.n_rollouts for info in counted if info.n_rollouts is not None]
        population = {
            "n_traced": sum(info.n_traces for info in counted),
            "n_rows": sum(known) or None,
            "chosen_by": chosen_over_steps(workspace, request),
        }
    else:
        population = {
            "n_traced": groups.n_traces,
            "n_rows": groups.n_rollouts or told_population(groups),
            "chosen_by": chosen_by(groups.selected_by),
        }
        if groups.n_rollouts is None:
            common["note"] = (
                "its ledger is not there yet; rewards shown are those of kept rollouts"
                if population["n_rows"]
                else "no ledger was logged: how many there were is unknown"
            )
    if everywhere or request.text("sort"):
        return common | population | _flat(store, request, alarms, everywhere)
    wanted = _matching(store, request)
    shown = [_group(group, wanted, alarms) for group in groups.groups]
    if wanted is not None:
        shown = [group for group in shown if group["samples"]]
    return common | population | {"groups": shown, "n_matched": sum(len(group["samples"]) for group in shown)}


def rollout(workspace: Workspace, request: Request) -> dict[str, Any]:
    """One rollout with its tokens, by id or by step, group and sample."""
    store = workspace.store(request.project)
    trace_id = request.text("id") or find_sample(store, request)
    record = store.record(trace_id)
    payload = rollout_payload(trace_id, record, flag_severities())
    names = ["reward", *(key for key in record.metadata if key.startswith("component/"))]
    attempt = record.metadata.get("attempt")
    if attempt is not None:
        payload["superseded"] = store.run(request.run).is_superseded(
            str(attempt), int(record.metadata["step"])
        )
    payload["labels"] = labels(workspace, Request({**request.values, "id": trace_id}))
    payload["ranges"] = {name: axis_range(workspace, request, name) for name in names}
    payload["flags"] = usual_marked(payload["flags"], record.metadata, run_alarms(workspace, request))
    return payload


def metrics(workspace: Workspace, request: Request) -> dict[str, Any]:
    """Names of the run's scalars, and those asked for (the usual ones when none) over the steps."""
    found = split_series(workspace, request, request.names("names"))
    return found | {"progress": run_progress(workspace, request)}


def find_sample(store: Store, request: Request) -> str:
    """The id of the rollout at a step, group and sample.

    Raises:
        StoreError: there is no such trace.
    """
    group, sample = request.number("group"), request.number("sample")
    parts = [
        f"{name} = {value}" for name, value in (("group", group), ("sample", sample)) if value is not None
    ]
    steps = (request.step, request.step)
    page = store.query(
        request.run, request.split, where=" and ".join(parts), steps=steps, limit=1, columns=["sample"]
    )
    if not page.rows or page.rows[0].id is None:
        raise StoreError(
            f"step {request.step}, group {group}, sample {sample} of {request.split} was not kept as a trace. "
            "Pick another on the left, or see its row under Explore."
        )
    return page.rows[0].id


def told_population(groups: StepGroups) -> int | None:
    """How many rollouts there were, as the traces of a step without a ledger say; None when they do not."""
    populations = [row["population"] for group in groups.groups for row in group.traces]
    return max((n for n in populations if isinstance(n, int)), default=None)


def _matching(store: Store, request: Request) -> dict[str, TraceRow] | None:
    """The step's traces that satisfy filter and search, by id; None when there is neither."""
    if not request.text("where") and not request.text("text"):
        return None
    page = _found(store, request, steps=(request.step, request.step), limit=MOST_OF_A_STEP)
    return {row.id: row for row in page.rows if row.id is not None}


def _flat(store: Store, request: Request, alarms: RunAlarms, everywhere: bool) -> dict[str, Any]:
    page = _found(
        store,
        request,
        order_by=request.text("sort") or None,
        limit=PAGE_ROWS,
        after=request.text("after") or None,
        steps=(None, None) if everywhere else (request.step, request.step),
    )
    return {
        "groups": None,
        "samples": [sample_card(row, alarms.worn_by(row)) for row in page.rows],
        "n_matched": page.total,
        "next": page.next,
    }


def _found(store: Store, request: Request, **asked: Any) -> Rows:
    """Traces that satisfy the filter; those that are searched for carry a `snippet` of what was found."""
    asked |= {"run": request.run, "split": request.split, "where": request.text("where")}
    return store.search(request.text("text"), **asked)


def _group(group: Group, wanted: Mapping[str, TraceRow] | None, alarms: RunAlarms) -> dict[str, Any]:
    traces = group.traces
    if wanted is not None:
        traces = tuple(wanted[row.id] for row in group.traces if row.id is not None and row.id in wanted)
    return {
        "group": group.group,
        "prompt": group.prompt,
        "mean": group.reward_mean,
        "n": group.n_rollouts if group.from_ledger else _told_size(group),
        "tied": group.tied and group.from_ledger,
        "zero_advantage": group.zero_advantage,
        "rewards": _dots(group.rewards, group.traces),
        **_of_group(group, alarms),
        "samples": [sample_card(row, alarms.worn_by(row)) for row in traces],
    }


def _of_group(group: Group, alarms: RunAlarms) -> dict[str, list[str]]:
    """Flags of the group that its rows do not wear: `flags`, and those that are usual in this run.

    A tie is marked by `tied`; it is among the usual ones where it is usual.
    """
    names = {name for row in group.traces for name in alarms.worn_by(row).of_group}
    places = {(row.step, row.get("source")) for row in group.traces}
    usual = names.intersection(*(alarms.usual_at(*place) for place in places))
    return {"flags": sorted(names - usual - {"tied_group"}), "usual_flags": sorted(usual)}


def _told_size(group: Group) -> int:
    """How many rollouts the group has, as its traces say."""
    sizes = [row["group_size"] for row in group.traces if isinstance(row["group_size"], int)]
    return max(sizes, default=group.n_rollouts)


def _dots(rewards: Sequence[float | None], traces: Sequence[TraceRow]) -> list[dict[str, Any]]:
    """All rewards of a group, best first, each marked when it belongs to a trace."""
    left = Counter(row["reward"] for row in traces)
    dots = []
    for reward in sorted(rewards, key=lambda value: (value is None, -(value or 0.0))):
        traced = left[reward] > 0
        left[reward] -= traced
        dots.append({"reward": reward, "traced": traced})
    return dots


def sample_card(row: TraceRow, worn: Worn | None = None) -> dict[str, Any]:
    """What the list shows of a rollout.

    Args:
        row: the rollout.
        worn: which of its flags are abnormal for the run; all are shown when None.
    """
    known: Mapping[str, Any] = row.values
    numbers = ("group", "sample", "reward", "advantage", "n_tokens", "n_sampled", "staleness_max")
    return {
        "id": row.id,
        "step": row.step,
        "words": known.get("reply") or known.get("prompt") or "",
        "prompt": known.get("prompt") or "",
        "snippet": known.get("snippet"),
        **({"flags": list(known.get("flags") or ())} if worn is None else worn_listed(worn)),
        "labels": list(known.get("labels") or ()),
        "discard_reason": known.get("discard_reason"),
        "late": bool(known.get("late")),
        "superseded": bool(known.get("superseded")),
        "stop_reason": known.get("stop_reason"),
        "selected_by": known.get("selected_by"),
        **{name: known.get(name) for name in numbers},
    }


PAGE = Page(
    name="rollouts",
    title="Rollouts",
    key="1",
    functions=(samples, rollout, metrics, around, image, share, labels, annotate),
)
