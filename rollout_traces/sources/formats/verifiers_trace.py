"""verifiers v1 and prime-rl: `traces.jsonl`, one episode a line, each a tree of messages with their tokens.

A trace is a graph of messages; each path from a root to a leaf is what the policy once saw and wrote, and
becomes a row. The rows of an episode share its id, and a branch's parent is the row whose path it left.
prime-rl writes an episode twice: under `all` when it ends, under `effective` when it is trained on.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from rollout_traces.model.text import SAID
from rollout_traces.sources.base import EVAL, TRAIN, Claim, FileReading, Format, Head, number_in, split_of
from rollout_traces.sources.chat import Record, messages_of
from rollout_traces.sources.rows import NO_TOKENS, RolloutRow, number, numbers, scalars

NOT_TRAINED = "not_in_a_batch"
"""Discard reason of episodes that prime-rl saw and trained on in no batch."""
_FLOATS = {
    "logprobs": "logprobs",
    "advantages": "advantages",
    "reference_logprobs": "ref_logprobs",
    "trainer_logprobs": "prox_logprobs",
    "entropies": "entropies",
}
_EPISODE_ID = re.compile(rb'^\s*\{"id":\s*"([^"]+)"')


class VerifiersTrace(Format):
    """`{id, env, task, group, run, traces: [{nodes: [{parent, message, sampled, token_ids, mask, ...}]}]}`."""

    name = "verifiers"
    title = "verifiers v1 or prime-rl, traces.jsonl"
    tokens = "where the client recorded them"

    def claim(self, head: Head) -> Claim | None:
        if not head.has("id", "traces") or not head.keys & {"env", "task"}:
            return None
        folders = [parent.name for parent in head.path.parents]
        step = number_in(r"^step_(\d+)$", *folders[:4])
        lacks = ["policy versions of single tokens"]
        if b'"token_ids":[' not in head.raw.replace(b" ", b""):
            lacks = [*NO_TOKENS, *lacks]
        if step is None:
            return Claim(head.path.parent, None, split_of(head.path.parent.name), lacks, head.path.name)
        at = next(n for n, name in enumerate(folders) if re.match(r"^step_\d+$", name))
        root = head.path.parents[at + 1]
        root = root.parent if root.name == "rollouts" else root
        return Claim(root, step, EVAL if "eval" in folders[:at] else TRAIN, lacks, folders[0])

    def rows(self, reading: FileReading) -> Iterator[tuple[RolloutRow, int, int]]:
        subset, claim = reading.path.parent.name, reading.found.claim
        effective = _effective_files(claim.root) if subset == "all" else ()
        trained = frozenset[str]().union(*(_ids(path, path.stat().st_size) for path in effective))
        for record in reading.records():
            episode = record.value
            if isinstance(episode.get("id"), str) and episode["id"] in trained:
                continue
            traces = episode.get("traces")
            if not isinstance(traces, list) or not traces:
                text = f"the episode has no trace{_first_error(episode)}; it is passed over."
                reading.note("episodes_without_trace", text, record.number)
                continue
            for trace in reading.mappings(record.number, "traces", traces):
                rows: list[RolloutRow] = []
                with reading.refusing(record.number, "the trace"):
                    rows = list(rows_of_trace(episode, trace, claim, record.number))
                for row in rows:
                    if effective:
                        row.discard_reason = NOT_TRAINED
                    yield row, record.stop, record.number


def paths_of(nodes: Sequence[Record]) -> list[list[int]]:
    """Every path from a root to a leaf, as node numbers, in the order of the leaves.

    Args:
        nodes: nodes with their `parent`, a number of an earlier or later node, or None.

    Raises:
        ValueError: a parent that is not there, or a circle.
    """
    parents = [node.get("parent") for node in nodes]
    for parent in parents:
        if parent is not None and not (isinstance(parent, int) and 0 <= parent < len(nodes)):
            raise ValueError(f"a node's parent is {parent!r} of {len(nodes)} nodes")
    inner = {parent for parent in parents if parent is not None}
    paths: list[list[int]] = []
    for leaf in range(len(nodes)):
        if leaf in inner:
            continue
        path: list[int] = []
        at: int | None = leaf
        while at is not None:
            path.append(at)
            if len(path) > len(nodes):
                raise ValueError("the nodes' parents go in a circle")
            at = parents[at]
        paths.append(path[::-1])
    if nodes and not paths:
        raise ValueError("the nodes' parents go in a circle")
    return paths


def rows_of_trace(episode: Record, trace: Record, claim: Claim, line: int) -> Iterator[RolloutRow]:
    """One row a path from a root to a leaf of a trace.

    Args:
        episode: the record that `Episode.to_record` makes.
        trace: one of its `traces`.
        claim: step and split, where the record does not say.
        line: the record's line, for messages.

    Raises:
        ValueError: the trace's nodes, tokens or masks do not fit each other.
    """
    nodes = trace.get("nodes") or []
    if not nodes:
        raise ValueError("it has no nodes")
    common = _common(episode, trace, claim, line)
    identity = str(trace.get("id") or f"{episode.get('id')}-{line}")
    written: list[tuple[str, list[int]]] = []
    seen: set[int] = set()
    for number_of_branch, path in enumerate(paths_of(nodes)):
        name = identity if number_of_branch == 0 else f"{identity}/{number_of_branch}"
        branch = [nodes[n] for n in path]
        row = RolloutRow(**common, sample_id=name, parent=_parent(written, path))
        row.identity = f"{episode.get('id')}/{name}" if trace.get("id") else None
        row.messages = messages_of([node.get("message") or {} for node in branch])
        first = next((n for n, node in enumerate(branch) if node.get("sampled")), None)
        row.n_prompt_messages = first
        row.tools = (
            next((list(node["tools"]) for node in branch[:1] if node.get("tools")), None)
            or trace.get("tools")
            or None
        )
        _add_tokens(row, branch, [n in seen for n in path])
        _add_stop(row, trace, path)
        written.append((name, path))
        seen.update(path)
        yield row


def _common(episode: Record, trace: Record, claim: Claim, line: int) -> dict[str, Any]:
    run, group = episode.get("run") or {}, episode.get("group") or {}
    work = run.get("work") or {}
    policy = work.get("policy") or {}
    step = claim.step if claim.step is not None else work.get("step", 0)
    rewards = {k: v for k, v in (trace.get("rewards") or {}).items() if isinstance(v, Mapping)}
    known = [(number(r.get("score")), float(r.get("weight", 1.0))) for r in rewards.values()]
    task = trace.get("task") or episode.get("task") or {}
    data = task.get("data") or {}
    agent = (trace.get("agent") or {}).get("name")
    errors = [*(trace.get("errors") or []), *(episode.get("errors") or [])]
    env = episode.get("env") or {}
    timing = trace.get("timing") or {}
    extras = {"agent": agent, "env": env.get("id"), "task": task.get("type"), "policy_end": policy.get("end")}
    if errors:
        extras["error"] = str(errors[-1].get("message", errors[-1].get("type", "")))[:500]
    return {
        "step": int(step),
        "split": EVAL if work.get("type") == "eval" or run.get("type") == "eval" else claim.split,
        "line": line,
        "reward": sum((s or 0.0) * w for s, w in known) if known else None,
        "components": {name: number(r.get("score")) for name, r in rewards.items()},
        "metrics": numbers(trace.get("metrics")),
        "group": group.get("id"),
        "prompt_key": task.get("key") or task.get("hash"),
        "episode": episode.get("id"),
        "source": env.get("name") or env.get("id") or None,
        "ground_truth": data.get("answer"),
        "reward_status": "timeout" if trace.get("is_timeout") else "error" if errors and not known else None,
        "timings": _timings(timing) or None,
        "extras": scalars({k: v for k, v in extras.items() if v is not None}),
    }


def _add_tokens(row: RolloutRow, branch: Sequence[Record], shared: Sequence[bool]) -> None:
    """The branch's tokens end to end; what an earlier branch has already is not in the loss again."""
    ids: list[int] = []
    response: list[bool] = []
    loss: list[bool] = []
    weights: list[float] = []
    for node, before in zip(branch, shared, strict=True):
        tokens = node.get("token_ids") or []
        mask = node.get("mask") or [False] * len(tokens)
        if len(mask) != len(tokens):
            raise ValueError(f"{len(mask)} mask values beside {len(tokens)} tokens of a message")
        weighed = [0.0] * len(tokens) if before else _weights(node, mask)
        ids += tokens
        response += [bool(value) for value in mask]
        loss += [
            not before and (bool(value) or weight != 0) for value, weight in zip(mask, weighed, strict=True)
        ]
        weights += weighed
    if not ids:
        return
    row.input_ids, row.response_mask, row.loss_mask = ids, response, loss
    if any(node.get("loss_weights") for node in branch):
        row.tracks["loss_weights"] = weights
    for key, name in _FLOATS.items():
        if any(node.get(key) is not None for node in branch):
            row.tracks[name] = spread(branch, key)


def _weights(node: Record, mask: Sequence[Any]) -> list[float]:
    """Adds up the parts (`rl`, `ce`, `ref_kl`) of each token's weight in the loss, for the tokens of a message.

    Without a weight of its own a sampled token weighs 1; prime-rl's `echo` gives weights to what tools answered too.
    """
    parts = {"rl": [float(bool(value)) for value in mask], **(node.get("loss_weights") or {})}
    return [float(sum(values)) for values in zip(*parts.values(), strict=True)]


def spread(branch: Sequence[Record], key: str) -> list[float | None]:
    """A value for each sampled token of a branch, at its place; None elsewhere.

    Args:
        branch: its messages.
        key: what the values stand under, one for each sampled token of a message.
    """
    found: list[float | None] = []
    for node in branch:
        values = iter(node.get(key) or ())
        mask = node.get("mask") or [False] * len(node.get("token_ids") or [])
        found += [next(values, None) if sampled else None for sampled in mask]
    return found


def _parent(written: Sequence[tuple[str, list[int]]], path: list[int]) -> str | None:
    """The earlier branch that shares the longest beginning, where any is shared."""
    best, name = 0, None
    for other, nodes in written:
        shared = next(
            (n for n, (a, b) in enumerate(zip(nodes, path, strict=False)) if a != b),
            min(len(nodes), len(path)),
        )
        if shared > best:
            best, name = shared, other
    return name or (written[0][0] if written else None)


def _add_stop(row: RolloutRow, trace: Record, path: Sequence[int]) -> None:
    on_path = set(path)
    calls = [c for c in trace.get("calls") or [] if isinstance(c, Mapping) and c.get("node") in on_path]
    finish = calls[-1].get("finish_reason") if calls else None
    row.stop_reason = "length" if finish == "length" else trace.get("stop_condition") or finish


def _timings(timing: Record) -> dict[str, float]:
    found = {}
    for name, span in timing.items():
        if isinstance(span, Mapping) and isinstance(span.get("end"), (int, float)) and span["end"]:
            found[name] = max(0.0, span["end"] - span.get("start", 0.0))
        elif isinstance(span, Mapping) and isinstance(span.get("duration"), (int, float)):
            found[name] = float(span["duration"])
    return found


def _first_error(episode: Record) -> str:
    given = episode.get("errors")
    errors = [error for error in given if isinstance(error, Mapping)] if isinstance(given, list) else []
    return f" ({errors[-1].get('type')}: {str(errors[-1].get('message'))[:SAID]})" if errors else ""


@lru_cache
def _effective_files(root: Path) -> tuple[Path, ...]:
    """The run's files of episodes that were trained on."""
    return tuple(sorted(root.glob("**/step_*/*/effective/traces.jsonl")))


@lru_cache(maxsize=4096)
def _ids(path: Path, size: int) -> frozenset[str]:
    """Ids of a file's episodes."""
    found = set()
    with path.open("rb") as file:
        for raw in file:
            match = _EPISODE_ID.match(raw[:SAID])
            if match:
                found.add(match[1].decode())
    return frozenset(found)
