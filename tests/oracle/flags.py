"""The second opinion on the flags that need no text: which rows carry which, by plain loops."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

from tests.oracle.given import FLOAT_TRACKS, GivenStep, plain
from tests.oracle.metrics import describe, episodes_of, loops, part_of, quantile, tied
from tests.oracle.rows import Row, failed, finite, mismatches, reward_of, versions_tell

COMPARED = (
    "mask_leak",
    "untrained_sampled",
    "row_masked",
    "ends_unsampled",
    "truncated",
    "repetition",
    "mixed_versions",
    "version_order",
    "logprob_mismatch",
    "logprob_out_of_range",
    "nonfinite",
    "tied_group",
    "noise_amplified_group",
    "reward_outlier",
    "dominates_update",
    "group_prompt_mismatch",
)


def flags_of(rows: list[Row], step: GivenStep) -> list[set[str]]:
    """The names of `COMPARED` that each row carries."""
    training = step.split == "rollout"
    found: list[set[str]] = [set() for _ in rows]
    sources = {_mask_source(part) for call in step.calls for part in call}
    source = sources.pop() if len(sources) == 1 else "given"
    for row, names in zip(rows, found, strict=True):
        names |= _of_row(row, source, training)
    _of_groups(rows, step, training, found)
    _dominating(rows, training, found)
    return found


def _mask_source(part: dict[str, Any]) -> str:
    if "response_mask" in part:
        return "given"
    return (
        "versions"
        if versions_tell({k: plain(v) for k, v in part.items() if k != "train_version"})
        else "loss_mask"
    )


def _of_row(row: Row, source: str, training: bool) -> set[str]:
    names = set()
    n = len(row.ids)
    versions = row.tracks.get("versions")
    if training and source != "loss_mask" and _leaks(row, versions, source):
        names.add("mask_leak")
    if (
        training
        and source != "loss_mask"
        and any(row.loss)
        and any(s and not x for s, x in zip(row.sampled, row.loss, strict=True))
    ):
        names.add("untrained_sampled")
    if training and n and not any(row.loss):
        names.add("row_masked")
    if any(row.sampled) and not row.sampled[-1]:
        names.add("ends_unsampled")
    if row.columns["stop_reason"] == "length":
        names.add("truncated")
    if loops(row):
        names.add("repetition")
    if _broken(row):
        names.add("nonfinite")
    logprobs = [p for (p,) in row.over(row.sampled, "logprobs") or []]
    if any(p > 0.01 for p in logprobs) or (
        training and len(logprobs) >= 32 and all(p == 0 for p in logprobs)
    ):
        names.add("logprob_out_of_range")
    if training and _far_apart(row):
        names.add("logprob_mismatch")
    return names | (_of_versions(row, versions, training) if versions is not None else set())


def _leaks(row: Row, versions: list[float] | None, source: str) -> bool:
    known = versions is not None and any(v >= 0 for v in versions)
    for t, in_loss in enumerate(row.loss):
        unsampled = not row.sampled[t]
        if source == "versions":
            leaked = in_loss and unsampled and known
        else:
            leaked = in_loss and (unsampled or (known and versions[t] < 0))  # type: ignore[index]
        if leaked:
            return True
    return False


def _of_versions(row: Row, versions: list[float], training: bool) -> set[str]:
    names = set()
    turns = row.tracks.get("turn_ids")
    for t in range(1, len(row.ids)):
        both = row.sampled[t] and row.sampled[t - 1] and versions[t] >= 0 and versions[t - 1] >= 0
        same_turn = turns is None or turns[t] == turns[t - 1]
        if both and same_turn and versions[t] != versions[t - 1]:
            names.add("mixed_versions")
    seen = [v for v, s in zip(versions, row.sampled, strict=True) if s and v >= 0]
    falls = any(later < earlier for earlier, later in pairwise(seen))
    ahead = training and row.train_version is not None and any(v > row.train_version for v in seen)
    return names | ({"version_order"} if falls or ahead else set())


def _far_apart(row: Row) -> bool:
    d = mismatches(row)
    versions = row.tracks.get("versions")
    seen = versions is not None and any(v >= 0 for v, s in zip(versions, row.sampled, strict=True) if s)
    if seen and row.train_version is not None and len(d) and versions is not None:
        pairs = zip(row.sampled, versions, row.tracks["prox_logprobs"], row.tracks["logprobs"], strict=True)
        d = [
            max(-20.0, min(20.0, above - below))
            for sampled, version, above, below in pairs
            if sampled and version == row.train_version and finite(above) and finite(below)
        ]
    return len(d) >= 16 and math.fsum(math.exp(abs(x)) for x in d) / len(d) > 1.05


def _broken(row: Row) -> bool:
    used = [s or x for s, x in zip(row.sampled, row.loss, strict=True)]
    for name in FLOAT_TRACKS:
        if any(not finite(value) for (value,) in row.over(used, name) or []):
            return True
    excused = row.columns["discard_reason"] is not None or failed(row)
    for name in ("rewards", "raw_rewards", "advantages"):
        value = row.values.get(name)
        if value is not None and (math.isinf(value) or (math.isnan(value) and not excused)):
            return True
    named = [
        *row.values.get("reward_components", {}).values(),
        *row.values.get("sample_metrics", {}).values(),
    ]
    return any(value is not None and math.isinf(value) for value in named)


def _of_groups(rows: list[Row], step: GivenStep, training: bool, found: list[set[str]]) -> None:
    part = part_of(rows, step)
    rewarded = any("rewards" in row.values for row in rows)
    members: dict[Any, list[int]] = {}
    for b, row in enumerate(rows):
        members.setdefault(row.group, []).append(b)
    together = any(len(group) > 1 for group in members.values())
    if training and rewarded and together:
        for group in episodes_of(part).groups:
            names = _of_rewards(group, part.span)
            for b in members[group[0].group]:
                found[b] |= names
    for group in members.values():
        if len({_episode(rows[b], b) for b in group}) < 2:
            continue
        if rewarded:
            for b in _outliers([(b, reward_of(rows[b])) for b in group]):
                found[b].add("reward_outlier")
        if training and together:
            for b in _strangers([(b, rows[b]) for b in group]):
                found[b].add("group_prompt_mismatch")


def _of_rewards(group: list[Row], span: tuple[float, float]) -> set[str]:
    if tied(group):
        return {"tied_group"}
    known = [reward for row in group if (reward := reward_of(row)) is not None]
    std = describe("x", known)["x/std"] if known else 0.0
    return {"noise_amplified_group"} if 0 < std < 0.01 * (span[1] - span[0]) else set()


def _episode(row: Row, b: int) -> Any:
    return ("alone", b) if row.columns["episode"] is None else row.columns["episode"]


def _outliers(pairs: list[tuple[int, float | None]]) -> list[int]:
    known = [(b, reward) for b, reward in pairs if reward is not None]
    rewards = sorted(reward for _, reward in known)
    if len(known) < 8 or 2 * len(set(rewards)) <= len(rewards):
        return []
    median = quantile(rewards, 0.5)
    mad = quantile(sorted(abs(reward - median) for reward in rewards), 0.5)
    return [b for b, reward in known if mad > 0 and abs(reward - median) > 5 * mad]


def _strangers(group: list[tuple[int, Row]]) -> list[int]:
    """The rows of a group that answer different prompts, by the given keys or by their tokens."""
    keys = {b: row.values.get("prompt_keys") for b, row in group}
    prompts = {b: row.ids[: row.columns["n_prompt"]] for b, row in group}
    all_named = all(key is not None for key in keys.values())
    seen, opening = set(), []
    for b, row in group:
        episode = row.columns["episode"]
        first = row.columns["parent"] is None and (episode is None or episode not in seen)
        seen.add(episode)
        if first and (all_named or prompts[b]):
            opening.append(b)
    different = {keys[b] if keys[b] is not None else tuple(prompts[b]) for b in opening}
    if len(different) < 2:
        return []
    if not all_named:
        shortest = min((prompts[b] for b in opening), key=len)
        ids = {b: row.ids for b, row in group}
        if all(ids[b][: len(shortest)] == shortest for b in opening):
            return []
    return opening


def _dominating(rows: list[Row], training: bool, found: list[set[str]]) -> None:
    if not training:
        return
    shares = [row.columns["update_share"] for row in rows]
    n = sum(s is not None and row.columns["trained"] == 1 for s, row in zip(shares, rows, strict=True))
    for share, names in zip(shares, found, strict=True):
        if share is not None and share > max(0.1, 5 / max(n, 1)):
            names.add("dominates_update")
