"""Episodes that reached the trainer as several rows: the tree, what was trained, the way through time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rollout_traces.errors import StoreError
from rollout_traces.inspector.pages.base import Page
from rollout_traces.inspector.pages.compare import population
from rollout_traces.inspector.pages.episode_tree import KINDS, Leaving, depths, leaving, parent_rows
from rollout_traces.inspector.pages.figures import axis_range, flag_severities
from rollout_traces.inspector.pages.images import image
from rollout_traces.inspector.pages.rollouts import rollout
from rollout_traces.inspector.workspace import Request, Workspace
from rollout_traces.store import Store, TraceRow
from rollout_traces.trace.conversion import read_transcript
from rollout_traces.transcript import Transcript

MOST_ROWS = 10_000
"""Rows of a step that are looked at."""
MOST_BRANCHES = 200
"""Rows of an episode that are drawn."""
FIGURES = (
    "trained",
    "discard_reason",
    "reward",
    "advantage",
    "n_sampled",
    "n_turns",
    "n_tool_calls",
    "stop_reason",
)
STARTS = ("timing/start", "timing/started", "timing/start_time")
"""Timings that say when a row began, seconds on one clock."""


def episodes(workspace: Workspace, request: Request) -> dict[str, Any]:
    """The episodes of a step, and the chosen one as a tree.

    The episode is named by `episode`, or by `group` and `sample` of one of its rows; else the first of several
    rows is chosen.
    """
    store = workspace.store(request.project)
    rows, n_beyond = _rows(store, request)
    found: dict[str, list[TraceRow]] = {}
    for row in rows:
        found.setdefault(str(row["episode"]), []).append(row)
    if not found:
        raise StoreError(
            f"Step {request.step} of {request.split} has no episodes: no row has an `episode_ids`."
        )
    chosen = _chosen(found, request)
    return {
        "step": request.step,
        "episodes": [_listed(name, of) for name, of in found.items()],
        "range": axis_range(workspace, request, "reward"),
        "severities": flag_severities(),
        "kinds": KINDS,
        "n_beyond": n_beyond,
        "tree": _tree(store, chosen, found[chosen]),
    }


def _rows(store: Store, request: Request) -> tuple[list[TraceRow], int]:
    """The rows of a step that belong to an episode, and how many rows of the step were not looked at."""
    steps = (request.step, request.step)
    page = store.query(
        request.run, request.split, rows="all", steps=steps, limit=MOST_ROWS, order_by="group, sample"
    )
    rows = [row for row in page.rows if row["episode"] is not None and not row["superseded"]]
    return rows, page.total - len(page.rows)


def _chosen(found: Mapping[str, Sequence[TraceRow]], request: Request) -> str:
    wanted = request.text("episode")
    if wanted:
        if wanted not in found:
            raise StoreError(
                f"Step {request.step} has no episode {wanted[:80]!r}. Pick one of the {len(found)} listed."
            )
        return wanted
    group, sample = request.number("group"), request.number("sample")
    of_row = (
        name
        for name, rows in found.items()
        for row in rows
        if (row["group"], row["sample"]) == (group, sample)
    )
    several = (name for name, rows in found.items() if len(rows) > 1)
    return next(of_row, None) or next(several, None) or next(iter(found))


def _listed(name: str, rows: Sequence[TraceRow]) -> dict[str, Any]:
    return {
        "episode": name,
        "group": rows[0]["group"],
        "n_rows": len(rows),
        "n_kept": sum(row.id is not None for row in rows),
        "n_trained": sum(row["trained"] == 1 for row in rows),
        "reward": episode_reward(rows),
    }


def episode_reward(rows: Sequence[Any]) -> float | None:
    """The reward that counts: that of the first row that left no other, as groups and pass rates take it."""
    opening = next((row for row in rows if row["parent"] is None), rows[0])
    return opening["reward"]


def _tree(store: Store, name: str, rows: Sequence[TraceRow]) -> dict[str, Any]:
    shown = rows[:MOST_BRANCHES]
    transcripts = [None if row.id is None else read_transcript(store.record(row.id)) for row in shown]
    parents = parent_rows([_sample_id(store, row) for row in shown], [row["parent"] for row in shown])
    rewards = {row["reward"] for row in rows}
    lost = sum(row["parent"] is not None and at is None for row, at in zip(shown, parents, strict=True))
    return {
        "episode": name,
        "reward": episode_reward(rows),
        "one_reward": len(rewards) == 1,
        "n_rows": len(rows),
        "n_lost": lost,
        "clock": next((key for key in STARTS if all(row[key] is not None for row in shown)), None),
        "rows": [_branch(shown[at], depth, parents[at], transcripts, at) for at, depth in depths(parents)],
        "differs": _differing(shown),
    }


def _sample_id(store: Store, row: TraceRow) -> str | None:
    """The row's sample id; of older ledgers the kept rows' details alone know it."""
    if row["sample_id"] is not None or row.id is None:
        return row["sample_id"]
    given = store.details(row.id).get("sample_id")
    return None if given is None else str(given)


def _branch(
    row: TraceRow, depth: int, parent: int | None, transcripts: Sequence[Transcript | None], at: int
) -> dict[str, Any]:
    transcript = transcripts[at]
    left = (
        leaving(transcript, transcripts[parent], opens=False)
        if parent is not None
        else Leaving("opening" if row["parent"] is None else "unknown")
    )
    return {
        "at": at,
        "depth": depth,
        "parent": parent,
        "id": row.id,
        "group": row["group"],
        "sample": row["sample"],
        "name": row["sample_id"],
        "left": vars(left),
        "flags": list(row["flags"] or ()),
        "values": {key: row[key] for key in FIGURES},
        "seconds": _seconds(row),
        "start": next((row[key] for key in STARTS if row[key] is not None), None),
        "extras": {key: value for key, value in row.values.items() if _names_a_part(key)},
        "turns": [] if transcript is None else [_turn(turn) for turn in transcript.turns],
    }


def _turn(turn: Any) -> dict[str, Any]:
    called = [call.name for call in turn.tool_calls]
    return {"role": turn.role, "n": len(turn), "size": len(turn.raw), "name": turn.name, "calls": called}


def _seconds(row: TraceRow) -> float | None:
    """The seconds that its timings add up to."""
    known = [
        float(value)
        for key, value in row.values.items()
        if key.startswith("timing/") and key not in STARTS and isinstance(value, (int, float))
    ]
    return sum(known) if known else None


def _names_a_part(key: str) -> bool:
    return key.startswith("extra/") or key in ("source", "engine")


def _differing(rows: Sequence[TraceRow]) -> list[str]:
    """Columns by which the trainer itself distinguishes the rows."""
    names = {key for row in rows for key in row.values if _names_a_part(key)}
    return sorted(key for key in names if len({str(row[key]) for row in rows}) > 1)[:4]


PAGE = Page(name="episodes", title="Episodes", key="8", functions=(episodes, rollout, image, population))
