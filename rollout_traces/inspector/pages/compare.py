"""Two rollouts side by side: what they share, where they part, what differs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from rollout_traces.errors import StoreError
from rollout_traces.inspector.pages.figures import (
    MOST_READ,
    Card,
    Drawn,
    Number,
    Range,
    axis_range,
    drawn_by,
    reward_ranges,
    worn_listed,
)
from rollout_traces.inspector.pages.incidents import cards, run_alarms
from rollout_traces.inspector.payload import rollout_payload
from rollout_traces.inspector.workspace import SplitView
from rollout_traces.metrics.shapes import shared_length
from rollout_traces.model.text import words
from rollout_traces.store import Group, RunInfo, Store, TraceRow
from rollout_traces.store.query.nodes import literal
from rollout_traces.store.rows import mean_of
from rollout_traces.trace.conversion import TraceRecord, read_transcript

REWARDS = ("reward", "raw_reward", "advantage")
COMPARED = words(
    """
    success n_tokens n_sampled n_environment written_characters n_thinking n_turns n_tool_calls n_tool_errors version_min version_max
    staleness_max mean_logprob mismatch_k3 update_share
    """
)
"""Compared behind the rewards and their components."""
NAMED = ("stop_reason", "discard_reason", "parsed_answer", "selected_by")
"""Compared last, without a difference."""
MOST_STEPS_OF_A_PROMPT = 400


@dataclass(frozen=True)
class Delta:
    """A value of both rollouts, or of either; `delta` is B minus A where both are numbers."""

    name: str
    a: Any
    b: Any
    delta: Number = None


@dataclass(frozen=True)
class CompareAnswer(Drawn):
    """Two rollouts.

    Attributes:
        sides: each as the conversation view takes it, with its `run`, the `ranges` of its rewards, and its flags as its
            run's rows wear them.
        shared: tokens that both begin with; None where one has no token data.
        deltas: numbers and names side by side.
        candidates: the rollouts of the group.
    """

    sides: list[dict[str, Any]]
    shared: int | None
    deltas: list[Delta]
    candidates: list[Card]


@dataclass(frozen=True)
class StepOfPrompt:
    """The rollouts of one prompt at a step, of the newest attempt; `traced` are the uids of those that were kept."""

    step: int
    n: int
    reward: Number
    pass_rate: Number
    traced: list[str]
    group: int | None


@dataclass(frozen=True)
class PromptHistoryAnswer:
    """The rollouts that answer the same prompt, step by step."""

    steps: list[StepOfPrompt]
    range: Range


def compare(
    view: SplitView, step: int | None = None, group: int | None = None, a: str = "", b: str = ""
) -> CompareAnswer:
    """Two rollouts: those named as `a` and `b`, else the best and the worst of the group."""
    store = view.store
    named = [store.find(each) if each else None for each in (a, b)]
    chosen = None if step is None else _group(view, step, group, any(named))
    best_first = [row.id for row in chosen.traces if row.id is not None] if chosen else []
    ids = [each for each in _filled(named, best_first) if each is not None]
    if len(ids) < 2:
        raise StoreError(
            "Comparing needs two rollouts and fewer were kept here. Pick a group with two or more kept, or pin "
            "one under Rollouts (x), open another and compare."
        )
    records = [store.record(trace_id) for trace_id in ids]
    return CompareAnswer(
        sides=[_side(view, *each) for each in zip(ids, records, strict=True)],
        shared=shared_prefix(*records),
        deltas=deltas(*(record.metadata for record in records)),
        candidates=[] if chosen is None else cards(view, chosen.traces),
        **drawn_by(view),
    )


def compare_two(
    view: SplitView, step: int | None = None, group: int | None = None, a: str = "", b: str = ""
) -> CompareAnswer:
    """The same without text and tokens, which `rollout` and `pages/rollouts/tokens` give."""
    found = compare(view, step, group, a, b)
    kept = ("id", "run", "metadata", "flags", "explains", "usual_flags", "ranges")
    return replace(found, sides=[{key: side[key] for key in kept if key in side} for side in found.sides])


def prompt_history(view: SplitView, prompt_key: str) -> PromptHistoryAnswer:
    """The rollouts of a run that answer the same prompt, step by step."""
    page = view.query(
        where=f"prompt_key = {literal(prompt_key)}",
        rows="all",
        attempts="newest",
        limit=MOST_READ,
        order_by="step",
    )
    by_step: dict[int, list[TraceRow]] = {}
    for row in page.rows:
        by_step.setdefault(row.step, []).append(row)
    steps = [
        StepOfPrompt(
            step,
            len(rows),
            mean_of(row.known_reward for row in rows),
            mean_of(row["success"] for row in rows),
            [row["trace_uid"] for row in rows if row["trace_uid"] is not None],
            rows[0]["group"],
        )
        for step, rows in sorted(by_step.items())[-MOST_STEPS_OF_A_PROMPT:]
    ]
    return PromptHistoryAnswer(steps, axis_range(view, "reward"))


def shared_prefix(a: TraceRecord, b: TraceRecord) -> int | None:
    """Tokens that both rollouts begin with; None where one has no token data."""
    first, second = read_transcript(a), read_transcript(b)
    if first is None or second is None or not len(first.tokens) or not len(second.tokens):
        return None
    return shared_length([first.tokens.input_ids, second.tokens.input_ids])


def deltas(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[Delta]:
    """Numbers that both or either have, side by side; then what they are called."""
    extra = sorted({k for k in (*a, *b) if k.startswith(("component/", "sample/", "extra/"))})
    components = [name for name in extra if name.startswith("component/")]
    numbers = [
        *REWARDS,
        *components,
        *COMPARED,
        *(name for name in extra if name not in components),
    ]
    known = [name for name in (*numbers, *NAMED) if a.get(name) is not None or b.get(name) is not None]
    return [Delta(name, a.get(name), b.get(name), _less(a.get(name), b.get(name))) for name in known]


def worn_side(view: SplitView, payload: Mapping[str, Any], run: RunInfo | None) -> dict[str, Any]:
    """A side's flags as its run's rows wear them; all of them where the run or step is not known.

    Returns:
        `flags`, those that it wears, with the sentences; `explains` and `usual_flags` as on a card.
    """
    metadata = payload["metadata"]
    step, split = metadata.get("step"), metadata.get("split")
    if run is None or type(step) is not int or not isinstance(split, str):
        return {}
    alarms = run_alarms(replace(view, run=run.id, split=split))
    listed = worn_listed(alarms.worn_of(metadata, step))
    return listed | {"flags": [flag for flag in payload["flags"] if flag["name"] in listed["flags"]]}


def _side(view: SplitView, trace_id: str, record: TraceRecord) -> dict[str, Any]:
    payload = rollout_payload(trace_id, record)
    run = run_of(view.store, trace_id)
    ranges = reward_ranges(view, record.metadata)
    return payload | {"ranges": ranges, "run": run.name if run else None} | worn_side(view, payload, run)


def _less(a: Any, b: Any) -> Number:
    return b - a if isinstance(a, (int, float)) and isinstance(b, (int, float)) else None


def _group(view: SplitView, step: int, wanted: int | None, is_named: bool) -> Group | None:
    """The group asked for, else the one of the step whose kept rollouts differ most."""
    groups = view.groups(step).groups
    if wanted is not None:
        found = next((group for group in groups if group.group == wanted), None)
        if found is not None and (len(found.traces) > 1 or is_named):
            return found
    return max((group for group in groups if len(group.traces) > 1), key=_spread, default=None)


def _spread(group: Group) -> float:
    rewards = [reward for row in group.traces if (reward := row.known_reward) is not None]
    return max(rewards) - min(rewards) if rewards else 0.0


def run_of(store: Store, trace_id: str) -> RunInfo | None:
    """The run that a trace belongs to; its id begins with the run's."""
    return next((run for run in store.runs() if trace_id.startswith(f"{run.id}:")), None)


def _filled(ids: list[str | None], best_first: list[str]) -> list[str | None]:
    """The best for the left and the worst for the right, where they were not named."""
    left = ids[0] or next((i for i in best_first if i != ids[1]), None)
    right = ids[1] or next((i for i in reversed(best_first) if i != left), None)
    return [left, right]
