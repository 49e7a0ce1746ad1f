"""A whole group at a glance: every sample's figures and actions, where they part, what winners say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson

from rollout_traces.alarms.worn import Worn
from rollout_traces.errors import StoreError
from rollout_traces.inspector.pages.base import Page
from rollout_traces.inspector.pages.compare import population
from rollout_traces.inspector.pages.figures import axis_range, flag_severities
from rollout_traces.inspector.pages.incidents import run_alarms, usual_listed, worn_listed
from rollout_traces.inspector.pages.phrases import telling_phrases
from rollout_traces.inspector.pages.prefix_tree import Branch, prefix_tree, shared_length
from rollout_traces.inspector.pages.share import share
from rollout_traces.inspector.workspace import Request, Workspace
from rollout_traces.store import Group, Store, TraceRow
from rollout_traces.trace.conversion import read_details, read_transcript
from rollout_traces.transcript import Transcript

FIGURES = ("reward", "advantage", "n_sampled", "n_turns", "n_tool_calls", "n_tool_errors", "stop_reason")
PREVIEW = 160
"""Characters of a branch or an action that are shown."""
MOST_MEMBERS = 256


@dataclass(frozen=True)
class Member:
    """One sample of the group.

    Attributes:
        values: its columns; of the trace where it was kept, else of the ledger.
        id: the trace's id; None where the ledger alone knows it.
        transcript: the decoded rollout; None where it was not kept or has no token data.
        failed_turns: turns whose tool result says that the call failed.
    """

    values: Mapping[str, Any]
    id: str | None = None
    transcript: Transcript | None = None
    failed_turns: frozenset[int] = frozenset()


def group(workspace: Workspace, request: Request) -> dict[str, Any]:
    """All samples of a group, best first, with their actions, the tree of their prefixes and telling phrases."""
    store = workspace.store(request.project)
    groups = store.groups(request.run, request.split, request.step).groups
    chosen = _chosen(groups, request)
    members = _members(store, request, chosen)
    alarms = run_alarms(workspace, request)
    kept = [at for at, member in enumerate(members) if member.transcript is not None]
    return {
        "step": request.step,
        "group": chosen.group,
        "groups": [each.group for each in groups if each.group is not None],
        "prompt": chosen.prompt,
        "mean": chosen.reward_mean,
        "tied": chosen.tied,
        "n_rollouts": chosen.n_rollouts,
        "range": axis_range(workspace, request, "reward"),
        "severities": flag_severities(),
        "usual": usual_listed(alarms),
        "components": _components(members),
        "members": [_described(member, alarms.worn_of(member.values, request.step)) for member in members],
        "tree": _tree(members, kept) if kept else None,
        "phrases": _phrases(members, kept),
    }


def _chosen(groups: Sequence[Group], request: Request) -> Group:
    wanted = request.number("group")
    named = [each for each in groups if each.group is not None]
    found = next((each for each in named if each.group == wanted), None)
    if found is None and named and wanted is None:
        found = max(named, key=lambda each: len(each.traces))
    if found is None:
        raise StoreError(f"step {request.step} has no group {wanted}. Pick a group under Rollouts.")
    return found


def _members(store: Store, request: Request, chosen: Group) -> list[Member]:
    """Every rollout of the group, best reward first: the kept ones, and the others from the ledger."""
    kept = [_kept(store, row) for row in chosen.traces]
    samples = {member.values.get("sample") for member in kept}
    steps = (request.step, request.step)
    page = store.query(
        request.run,
        request.split,
        where=f"group = {chosen.group}",
        rows="all",
        steps=steps,
        limit=MOST_MEMBERS,
    )
    others = [Member(row.as_dict()) for row in page.rows if row["sample"] not in samples]
    return sorted([*kept, *others], key=lambda member: -(_reward(member) or 0.0))


def _kept(store: Store, row: TraceRow) -> Member:
    if row.id is None:
        return Member(row.as_dict())
    record = store.record(row.id)
    flags = read_details(record).get("flags") or ()
    failed = frozenset(flag["turn"] for flag in flags if flag.get("name") == "tool_error" and "turn" in flag)
    return Member(row.as_dict(), row.id, read_transcript(record), failed)


def _reward(member: Member) -> float | None:
    value = member.values.get("reward")
    return float(value) if isinstance(value, (int, float)) else None


def _components(members: Sequence[Member]) -> list[str]:
    names = {name for member in members for name in member.values if name.startswith("component/")}
    return sorted(name for name in names if any(member.values.get(name) is not None for member in members))


def _described(member: Member, worn: Worn) -> dict[str, Any]:
    names = [*FIGURES, *(name for name in member.values if name.startswith("component/"))]
    return {
        "id": member.id,
        "sample": member.values.get("sample"),
        **worn_listed(worn),
        "values": {name: member.values.get(name) for name in names},
        "turns": turns_of(member),
        "actions": [] if member.transcript is None else actions(member.transcript, member.failed_turns),
    }


def turns_of(member: Member) -> list[dict[str, Any]]:
    """The turns of a kept sample: `role`, `n` tokens, names of the tools it `calls`, whether a call or result `failed`."""
    if member.transcript is None:
        return []
    return [
        {
            "role": turn.role,
            "n": len(turn),
            "calls": [call.name or "unparsed" for call in turn.tool_calls],
            "failed": at in member.failed_turns or not all(call.parsed for call in turn.tool_calls),
        }
        for at, turn in enumerate(member.transcript.turns)
    ]


def actions(transcript: Transcript, failed_turns: frozenset[int] = frozenset()) -> list[dict[str, Any]]:
    """What the policy did, in order: its tool calls, and what it said last.

    Args:
        transcript: the rollout.
        failed_turns: turns whose tool result says that the call failed.

    Returns:
        `kind` (`call` or `answer`), `name`, `text` (arguments or answer, in part), `failed`, `turn`; equal
        actions of two samples have equal `name` and `text`.
    """
    found: list[dict[str, Any]] = []
    failures = {
        turn.tool_call_id
        for at, turn in enumerate(transcript.turns)
        if at in failed_turns and turn.tool_call_id
    }
    last = max((at for at, turn in enumerate(transcript.turns) if turn.role == "assistant"), default=-1)
    for at, turn in enumerate(transcript.turns):
        if turn.role != "assistant":
            continue
        for call in turn.tool_calls:
            text = (_arguments(call.arguments) if call.parsed else call.raw)[:PREVIEW]
            failed = not call.parsed or call.id in failures
            found.append(
                {"kind": "call", "name": call.name or "unparsed", "text": text, "failed": failed, "turn": at}
            )
        if at == last and turn.content.strip():
            said = turn.content.strip()
            found.append(
                {"kind": "answer", "name": "answer", "text": said[-PREVIEW:], "failed": False, "turn": at}
            )
    return found


def _arguments(arguments: Any) -> str:
    return arguments if isinstance(arguments, str) else orjson.dumps(arguments, default=str).decode()


def _tree(members: Sequence[Member], kept: Sequence[int]) -> dict[str, Any]:
    """The prefix tree of the kept members from where their prompt ends."""
    transcripts = [members[at].transcript for at in kept]
    ids = [np.asarray(each.tokens.input_ids) for each in transcripts if each is not None]
    sampled = [np.flatnonzero(each.tokens.response_mask) for each in transcripts if each is not None]
    first = min((int(places[0]) for places in sampled if len(places)), default=0)
    root = prefix_tree(ids, min(first, shared_length(ids)))
    return {"prompt_tokens": root.start, "root": _drawn(root, members, kept)}


def _drawn(branch: Branch, members: Sequence[Member], kept: Sequence[int]) -> dict[str, Any]:
    places = [kept[at] for at in branch.members]
    rewards = [reward for at in places if (reward := _reward(members[at])) is not None]
    text = _text(members[places[0]].transcript, branch.start, branch.stop)
    return {
        "n_tokens": branch.stop - branch.start,
        "start": branch.start,
        "text": text[:PREVIEW],
        "members": places,
        "mean": float(np.mean(rewards)) if rewards else None,
        "children": [_drawn(child, members, kept) for child in branch.children],
    }


def _text(transcript: Transcript | None, start: int, stop: int) -> str:
    if transcript is None or stop <= start:
        return ""
    tokens = transcript.tokens
    return transcript.raw[int(tokens.char_starts[start]) : int(tokens.char_stops[stop - 1])]


def _phrases(members: Sequence[Member], kept: Sequence[int]) -> dict[str, Any]:
    """Phrases of the kept members above the mean of all members against those below it."""
    rewards = [reward for member in members if (reward := _reward(member)) is not None]
    mean = float(np.mean(rewards)) if rewards else 0.0
    sides: tuple[list[str], list[str]] = ([], [])
    for at in kept:
        reward, transcript = _reward(members[at]), members[at].transcript
        if reward is None or transcript is None or reward == mean:
            continue
        sides[reward < mean].append(_said(transcript))
    won, lost = telling_phrases(*sides)
    return {
        "n_winners": len(sides[0]),
        "n_losers": len(sides[1]),
        "winners": [vars(phrase) for phrase in won],
        "losers": [vars(phrase) for phrase in lost],
    }


def _said(transcript: Transcript) -> str:
    spoken = [turn for turn in transcript.turns if turn.role == "assistant"]
    return "\n".join(f"{turn.thinking or ''}\n{turn.content}" for turn in spoken)


PAGE = Page(name="group", title="Group", key="5", functions=(group, population, share))
