"""The second opinion on a step's rows: each column of the ledger by a plain loop, from docs/metrics.md alone."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tests.oracle.given import FLOAT_TRACKS, GivenStep, plain

NORMAL_REASONS = {
    "max_tokens": "length",
    "max_new_tokens": "length",
    "eos": "stop",
    "end_turn": "stop",
}


@dataclass
class Row:
    """One rollout without its padding.

    Attributes:
        ids: its tokens.
        loss: whether each is in the loss.
        sampled: whether the policy sampled it.
        tracks: values a token by name; a track that the row came without is absent.
        values: what was given of the row: a name is absent where the row came without it, None where unknown.
        group: which rows belong together.
        columns: what the ledger should say, None where unknown.
    """

    ids: list[int]
    loss: list[bool]
    sampled: list[bool]
    tracks: dict[str, list[float]]
    values: dict[str, Any]
    group: Any
    train_version: int | None
    columns: dict[str, Any] = field(default_factory=dict)

    def over(self, mask: list[bool], *names: str) -> list[tuple[float, ...]] | None:
        """The values of tracks at the tokens of a mask; None where the row came without one of them."""
        if any(name not in self.tracks for name in names):
            return None
        return [tuple(self.tracks[name][t] for name in names) for t in range(len(self.ids)) if mask[t]]

    def policy_track(self) -> str | None:
        """The logprobs under the weights being updated: prox where the row came with them, else the rollout's."""
        return next((name for name in ("prox_logprobs", "logprobs") if name in self.tracks), None)

    def advantages(self) -> list[float] | None:
        """The advantages of the loss tokens: the tokens' own, else the row's."""
        n_loss = sum(self.loss)
        if "advantages" in self.tracks:
            return [a for (a,) in self.over(self.loss, "advantages") or []]
        row = self.values.get("advantages")
        return None if row is None else [row] * n_loss


def rows_of(step: GivenStep) -> list[Row]:
    """The rows of a step with their columns, in the order handed over."""
    rows: list[Row] = []
    train_version = next(
        (part["train_version"] for call in step.calls for part in call if "train_version" in part), None
    )
    for call in step.calls:
        wide = {name: _overflows(call, name) for name in FLOAT_TRACKS}
        for part in call:
            rows += _rows_of_part(part, train_version, wide)
    for row in rows:
        row.columns = _columns(row, step.settings)
        row.columns["split"] = step.split
    _fill_groups(rows)
    _fill_update_shares(rows)
    return rows


def finite(value: Any) -> bool:
    return value is not None and math.isfinite(value)


def log_ratio(above: float, below: float) -> float | None:
    """Clamped difference of two logprobs, None where either is not finite."""
    return max(-20.0, min(20.0, above - below)) if finite(above) and finite(below) else None


def failed(row: Row) -> bool:
    return row.columns["reward_status"] not in (None, "ok")


def reward_of(row: Row) -> float | None:
    """The known reward: finite, and its reward function did not fail."""
    reward = row.columns["reward"]
    return reward if finite(reward) and not failed(row) else None


def mean(values: list[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _overflows(call: list[dict[str, Any]], name: str) -> bool:
    for part in call:
        values = plain(part.get(name))
        if values is None or not values or not isinstance(values[0], list):
            continue
        mask = plain(part["attention_mask"])
        for row, attended in zip(values, mask, strict=True):
            for value, is_token in zip(row, attended, strict=True):
                if is_token and finite(value) and abs(value) > 65519:
                    return True
    return False


def _rows_of_part(part: dict[str, Any], train_version: int | None, wide: dict[str, bool]) -> list[Row]:
    given = {name: plain(value) for name, value in part.items() if name != "train_version"}
    tells = versions_tell(given)
    found = []
    for b, attended in enumerate(given["attention_mask"]):
        at = [t for t, value in enumerate(attended) if value]
        loss = [given["loss_mask"][b][t] > 0 for t in at]
        if "response_mask" in given:
            sampled = [given["response_mask"][b][t] > 0 for t in at]
        elif tells:
            sampled = [given["versions"][b][t] >= 0 for t in at]
        else:
            sampled = list(loss)
        tracks: dict[str, list[float]] = {}
        values: dict[str, Any] = {}
        for name, column in given.items():
            if name in ("versions", "turn_ids"):
                tracks[name] = [column[b][t] for t in at]
            elif name in FLOAT_TRACKS and isinstance(column[0], list):
                kind = np.float32 if wide[name] else np.float16
                tracks[name] = [float(kind(np.float32(column[b][t]))) for t in at]
            elif name in ("reward_components", "sample_metrics"):
                values[name] = {key: of_name[b] for key, of_name in column.items()}
            elif name not in ("input_ids", "attention_mask", "loss_mask", "response_mask"):
                values[name] = column[b]
        if "rewards" not in values and "token_rewards" in given:
            values["rewards"] = math.fsum(given["token_rewards"][b][t] for t in at)
        ids = [given["input_ids"][b][t] for t in at]
        found.append(Row(ids, loss, sampled, tracks, values, values["group_ids"], train_version))
    return found


def versions_tell(given: dict[str, Any]) -> bool:
    """Versions mark what was sampled, unless none is negative while the loss leaves tokens out."""
    if "versions" not in given:
        return False
    tokens = [
        (b, t) for b, row in enumerate(given["attention_mask"]) for t, is_token in enumerate(row) if is_token
    ]
    marked = any(given["versions"][b][t] < 0 for b, t in tokens)
    return marked or all(given["loss_mask"][b][t] > 0 for b, t in tokens)


def _columns(row: Row, settings: dict[str, Any]) -> dict[str, Any]:
    given, n = row.values, len(row.ids)
    status = given.get("reward_statuses")
    reason = given.get("stop_reasons")
    reward = given.get("rewards")
    columns: dict[str, Any] = {
        "reward": _known(reward),
        "raw_reward": _known(given.get("raw_rewards")),
        "reward_status": None if status is None else status.lower(),
        "stop_reason": None if reason is None else _normal(reason),
        "discard_reason": given.get("discard_reasons"),
        "source": given.get("sources"),
        "engine": given.get("engine_ids"),
        "episode": given.get("episode_ids"),
        "parent": given.get("parents"),
        "answer": _short(given.get("parsed_answers")),
        "ground_truth": _short(given.get("ground_truths")),
        "answered": int(given["parsed_answers"] is not None) if "parsed_answers" in given else None,
    }
    success = given.get("successes")
    columns["success"] = None if success is None else int(bool(success))
    threshold = settings.get("success_threshold")
    if "successes" not in given and threshold is not None and finite(reward) and status in (None, "ok"):
        columns["success"] = int(reward >= threshold)
    for kind, prefix in (("reward_components", "component"), ("sample_metrics", "sample")):
        for name, value in given.get(kind, {}).items():
            columns[f"{prefix}/{name}"] = _known(value)
    columns |= {f"timing/{name}": value for name, value in _timings(given.get("timings")).items()}
    for name, value in (given.get("extras") or {}).items():
        columns[f"extra/{name}"] = value
    first = next((t for t in range(n) if row.sampled[t]), n)
    lengths = {
        "n_prompt": first,
        "n_sampled": sum(row.sampled),
        "n_environment": n - first - sum(row.sampled),
        "n_turns": len(turns(row)),
    }
    kept = columns["discard_reason"] is None
    columns |= lengths if n else dict.fromkeys(lengths)
    columns["trained"] = int(kept and any(row.loss)) if n or not kept else None
    columns |= _versions(row) | _mismatch(row) | _advantage(row) | {"clip_share": _clip_share(row, settings)}
    return columns


def turns(row: Row) -> list[list[int]]:
    """Positions of each sampled turn: broken by unsampled tokens and where the turn id changes."""
    found: list[list[int]] = []
    numbers = row.tracks.get("turn_ids")
    for t, is_sampled in enumerate(row.sampled):
        if not is_sampled:
            continue
        goes_on = t > 0 and row.sampled[t - 1] and (numbers is None or numbers[t] == numbers[t - 1])
        if goes_on:
            found[-1].append(t)
        else:
            found.append([t])
    return found


def _versions(row: Row) -> dict[str, Any]:
    seen = [int(v) for (v,) in row.over(row.sampled, "versions") or [] if v >= 0]
    columns: dict[str, Any] = {"version_min": min(seen, default=None), "version_max": max(seen, default=None)}
    known = bool(seen) and row.train_version is not None
    columns["staleness_max"] = row.train_version - min(seen) if known else None  # type: ignore[operator]
    return columns


def _mismatch(row: Row) -> dict[str, Any]:
    logprobs = [p for (p,) in row.over(row.sampled, "logprobs") or [] if finite(p)]
    d = mismatches(row)
    return {
        "mean_logprob": mean(logprobs),
        "mismatch_k1": mean([-x for x in d]),
        "mismatch_k3": mean([math.expm1(x) - x for x in d]),
        "mismatch_abs_max": max((abs(x) for x in d), default=None),
        "log_ratio_sum": math.fsum(d) if d else None,
    }


def mismatches(row: Row) -> list[float]:
    """d = prox - rollout logprob of the sampled tokens, where both are finite."""
    pairs = row.over(row.sampled, "prox_logprobs", "logprobs") or []
    return [d for above, below in pairs if (d := log_ratio(above, below)) is not None]


def _advantage(row: Row) -> dict[str, Any]:
    own = _known(row.values.get("advantages"))
    if "advantages" not in row.tracks:
        return {"advantage": own, "advantage_abs_max": None}
    known = [a for a in row.advantages() or [] if finite(a)]
    return {
        "advantage": mean(known) if known else own,
        "advantage_abs_max": max((abs(a) for a in known), default=None),
    }


def _clip_share(row: Row, settings: dict[str, Any]) -> float | None:
    decided = [c for c in clipping(row, settings) if c is not None]
    return mean([float(c != "no") for c in decided])


def clipping(row: Row, settings: dict[str, Any]) -> list[str | None]:
    """For each loss token: `low`, `high` or `no`; None where ratio or advantage is unknown."""
    pairs = row.over(row.loss, "new_logprobs", "prox_logprobs")
    advantages = row.advantages()
    if "clip_low" not in settings or pairs is None or advantages is None:
        return []
    found: list[str | None] = []
    for (new, prox), advantage in zip(pairs, advantages, strict=True):
        d = log_ratio(new, prox)
        if d is None or not finite(advantage):
            found.append(None)
        elif math.exp(d) < 1 - settings["clip_low"] and advantage < 0:
            found.append("low")
        elif math.exp(d) > 1 + settings["clip_high"] and advantage > 0:
            found.append("high")
        else:
            found.append("no")
    return found


def _fill_groups(rows: list[Row]) -> None:
    members: dict[Any, list[Row]] = {}
    for row in rows:
        row.columns["sample"] = len(members.setdefault(row.group, []))
        members[row.group].append(row)
    for of_group in members.values():
        written: dict[tuple[int, ...], int] = {}
        for row in of_group:
            tokens = tuple(t for t, s in zip(row.ids, row.sampled, strict=True) if s)
            row.columns["equal_to"] = written.setdefault(tokens, row.columns["sample"]) if tokens else None


def _fill_update_shares(rows: list[Row]) -> None:
    updates: list[float | None] = []
    for row in rows:
        policy, advantages = row.policy_track(), row.advantages()
        discarded = row.values.get("discard_reasons") is not None
        if discarded or (row.ids and not any(row.loss)):
            updates.append(0.0)
        elif not row.ids or policy is None or advantages is None:
            updates.append(None)
        else:
            updates.append(_update(row, policy, advantages))
    total = math.fsum(update for update in updates if update is not None)
    known = any("advantages" in row.tracks or row.values.get("advantages") is not None for row in rows)
    for row, update in zip(rows, updates, strict=True):
        row.columns["update_share"] = update / total if total > 0 and known and update is not None else None


def _update(row: Row, policy: str, advantages: list[float]) -> float:
    total = 0.0
    at = [t for t, in_loss in enumerate(row.loss) if in_loss]
    for t, advantage in zip(at, advantages, strict=True):
        p = row.tracks[policy][t]
        weight = 1.0
        if "prox_logprobs" in row.tracks and "logprobs" in row.tracks:
            d = log_ratio(row.tracks["prox_logprobs"][t], row.tracks["logprobs"][t])
            weight = math.exp(d) if d is not None else 1.0
        if "loss_weights" in row.tracks:
            weight *= abs(row.tracks["loss_weights"][t])
        if finite(advantage) and not math.isnan(p) and finite(weight):
            total += abs(advantage) * weight * -math.expm1(min(p, 0.0))
    return total


def _known(value: Any) -> float | None:
    """NaN stands for unknown in a ledger; infinities stay."""
    return None if value is None or math.isnan(value) else float(value)


def _normal(reason: str) -> str:
    name = reason.strip().lower().replace("-", "_").replace(" ", "_")
    return NORMAL_REASONS.get(name, name)


def _short(value: Any) -> str | None:
    text = None if value is None else str(value)
    return text if text is None or len(text) <= 200 else text[:199] + "…"


def _timings(given: Any) -> dict[str, float]:
    """Seconds by name; of spans their sums, when the first began, and those of each reward function."""
    if not isinstance(given, list):
        return given or {}
    good = [span for span in given if span["end"] >= span["start"]]
    found: dict[str, float] = {"start": min(span["start"] for span in good)}
    for span in good:
        for name in (span["kind"], *([f"score/{span['name']}"] if span["kind"] == "score" else [])):
            found[name] = found.get(name, 0.0) + span["end"] - span["start"]
    return found
