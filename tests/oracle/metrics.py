"""The second opinion on a step's metrics: every key by a plain loop, from docs/metrics.md alone."""

from __future__ import annotations

import math
import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from tests.oracle.given import GivenStep
from tests.oracle.rows import (
    Row,
    clipping,
    failed,
    finite,
    log_ratio,
    mean,
    reward_of,
    turns,
)

SPREAD = ("mean", "std", "min", "max")
QUANTILES = ("p00", "p05", "p25", "p50", "p75", "p95", "p100")
LENGTHS = (*SPREAD, "p50", "p95")
Values = dict[str, float]


def metrics_of(rows: list[Row], step: GivenStep) -> Values:
    """Every metric of a step, without the split in front."""
    whole = part_of(rows, step)
    there = whole.there
    found = of_ledger(whole) | of_tokens(whole) | _discards(whole) | _update(whole)
    sources = sorted({row.columns["source"] for row in rows if row.columns["source"] is not None})
    if 2 <= len(sources) <= 8:
        for name in sources:
            some = [row for row in rows if row.columns["source"] == name]
            found |= under(f"source/{name}", of_ledger(Part(some, step.settings, whole.span, there)))
    left_out = [row for row in rows if row.columns["discard_reason"] is not None]
    if left_out:
        found |= under("discarded", of_ledger(Part(left_out, step.settings, whole.span, there)))
    return found


def part_of(rows: list[Row], step: GivenStep) -> Part:
    """The whole step."""
    there = {name for row in rows for name, value in row.columns.items() if _counts_as_known(value)}
    return Part(rows, step.settings, span_of(rows, step.settings), there, whole=True)


def _counts_as_known(value: Any) -> bool:
    return value is not None and not (isinstance(value, float) and not math.isfinite(value))


class Part:
    """Rows of a step, the range of the whole step's rewards, and the columns that any row of the step knows."""

    def __init__(
        self,
        rows: list[Row],
        settings: dict[str, Any],
        span: tuple[float, float],
        there: set[str],
        whole: bool = False,
    ) -> None:
        self.rows, self.settings, self.span, self.there, self.whole = rows, settings, span, there, whole
        groups: dict[Any, list[Row]] = {}
        for row in rows:
            groups.setdefault(row.group, []).append(row)
        self.groups = list(groups.values())
        self.several = [group for group in self.groups if len(group) > 1]

    def column(self, name: str) -> list[Any]:
        return [row.columns.get(name) for row in self.rows]


def span_of(rows: list[Row], settings: dict[str, Any]) -> tuple[float, float]:
    if "reward_range" in settings:
        return settings["reward_range"]
    known = [reward for row in rows if (reward := reward_of(row)) is not None]
    return (min(known), max(known)) if known else (0.0, 0.0)


def known_of(rows: list[Row], column: str) -> list[Any]:
    """The known values of a column."""
    return [row.columns[column] for row in rows if row.columns[column] is not None]


def describe(prefix: str, values: list[float], stats: tuple[str, ...] = SPREAD) -> Values:
    kept = sorted(value for value in values if math.isfinite(value))
    found: Values = {}
    if len(kept) < len(values):
        found[f"{prefix}_nonfinite"] = len(values) - len(kept)
    if not kept:
        return found
    average = math.fsum(kept) / len(kept)
    for stat in stats:
        if stat == "mean":
            value = average
        elif stat == "std":
            value = math.sqrt(math.fsum((x - average) ** 2 for x in kept) / len(kept))
        elif stat in ("min", "max"):
            value = kept[0] if stat == "min" else kept[-1]
        else:
            value = quantile(kept, int(stat[1:]) / 100)
        found[f"{prefix}/{stat}"] = value
    return found


def quantile(ascending: list[float], q: float) -> float:
    at = q * (len(ascending) - 1)
    low = min(int(at), len(ascending) - 1)
    high = min(low + 1, len(ascending) - 1)
    return ascending[low] + (at - low) * (ascending[high] - ascending[low])


def under(prefix: str, values: Values) -> Values:
    return {f"{prefix}/{key}": value for key, value in values.items()}


def put(key: str, value: float | None) -> Values:
    return {} if value is None or not math.isfinite(value) else {key: float(value)}


def share(key: str, hits: list[bool]) -> Values:
    return {key: sum(hits) / len(hits)} if hits else {}


# one row a rollout is enough


def of_ledger(part: Part) -> Values:
    found: Values = {}
    for family in (
        _rewards,
        _components,
        component_shares,
        _lengths_by_success,
        _lengths,
        _stops,
        _counts,
        _versions,
        _zero_advantages,
        _group_lengths,
        _ginis,
        _correlations,
        _advantage_rows,
        _largest_mismatch,
    ):
        found |= family(part)
    once = episodes_of(part)
    for family in (_outcomes, _ties, _spread, _pass_at_k):
        found |= family(once)
    return found


def episodes_of(part: Part) -> Part:
    """One row an episode: the first that left no other row, else the first; its length is the whole episode's."""
    members: dict[Any, list[Row]] = {}
    for number, row in enumerate(part.rows):
        episode = row.columns["episode"]
        members.setdefault(("alone", number) if episode is None else episode, []).append(row)
    chosen = {}
    for rows in members.values():
        stands = next((row for row in rows if row.columns["parent"] is None), rows[0])
        lengths = [row.columns["n_sampled"] for row in rows]
        length = None if None in lengths else sum(lengths)
        chosen[id(stands)] = replace(stands, columns={**stands.columns, "n_sampled": length})
    once = [chosen[id(row)] for row in part.rows if id(row) in chosen]
    return Part(once, part.settings, part.span, part.there)


def given_of(row: Row, name: str, kind: str | None = None) -> float | None:
    """A value as it was given, NaN included; None where it was not."""
    values = row.values if kind is None else row.values.get(kind, {})
    return values.get(name)


def _rewards(part: Part) -> Values:
    if "reward" not in part.there:
        return _failed_share(part)
    given = [given_of(row, "rewards") for row in part.rows if not failed(row)]
    values = [value for value in given if value is not None]
    known = [reward_of(row) for row in part.rows]
    found = describe("reward", values, (*SPREAD, *QUANTILES)) | _failed_share(part)
    return found | put("reward/standard_error", standard_error(part, known))


def _failed_share(part: Part) -> Values:
    return (
        share("reward/failed_share", [failed(row) for row in part.rows])
        if "reward_status" in part.there
        else {}
    )


def standard_error(part: Part, values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    by_row = dict(zip(map(id, part.rows), values, strict=True))
    if not known:
        return None
    average = math.fsum(known) / len(known)
    sums = []
    for group in part.groups:
        mine = [by_row[id(row)] for row in group]
        if any(value is not None for value in mine):
            sums.append(math.fsum(value - average for value in mine if value is not None))
    K = len(sums)
    return math.sqrt(K / (K - 1) * math.fsum(s * s for s in sums)) / len(known) if K > 1 else None


def _components(part: Part) -> Values:
    found: Values = {}
    for name in sorted(name[10:] for name in part.there if name.startswith("component/")):
        given = [given_of(row, name, "reward_components") for row in part.rows if not failed(row)]
        found |= describe(f"reward/{name}", [v for v in given if v is not None], (*SPREAD, *QUANTILES))
    for name in sorted(name[7:] for name in part.there if name.startswith("sample/")):
        given = [given_of(row, name, "sample_metrics") for row in part.rows]
        found |= describe(f"sample/{name}", [v for v in given if v is not None])
        found |= put(f"group/{name}_gini_mean", mean_gini(part, f"sample/{name}"))
    return found


def component_shares(part: Part) -> Values:
    """Shares of the within-group variance with the declared weights; undeclared ones are recovered elsewhere."""
    weights = part.settings.get("component_weights")
    names = sorted(name[10:] for name in part.there if name.startswith("component/"))
    if not weights or not names or "reward" not in part.there:
        return {}
    usable = [
        row
        for row in part.rows
        if reward_of(row) is not None and all(finite(row.columns.get(f"component/{name}")) for name in names)
    ]
    groups: dict[Any, list[Row]] = {}
    for row in usable:
        groups.setdefault(row.group, []).append(row)
    variance = 0.0
    covariance = dict.fromkeys(names, 0.0)
    for group in groups.values():
        rewards = [reward_of(row) for row in group]
        if equal(rewards):  # type: ignore[arg-type]
            continue
        off = [reward - mean(rewards) for reward in rewards]  # type: ignore[operator,arg-type]
        variance += math.fsum(x * x for x in off) / len(group)
        for name in names:
            values = [weights.get(name, 0.0) * row.columns[f"component/{name}"] for row in group]
            centre = mean(values)
            covariance[name] += math.fsum((v - centre) * x for v, x in zip(values, off, strict=True)) / len(
                group
            )  # type: ignore[operator]
    if not variance > 0:
        return {}
    return {f"reward/{name}/share": covariance[name] / variance for name in names if name in weights}


def _outcomes(part: Part) -> Values:
    success = [value for value in part.column("success") if value is not None]
    found = put("success/mean", mean(success))
    found |= put("success/standard_error", standard_error(part, part.column("success")))
    answered = [value for value in part.column("answered") if value is not None]
    found |= share("format_share", [value == 1 for value in answered])
    decided = [g for g in part.several if all(row.columns["success"] is not None for row in g)]
    solved = [(sum(row.columns["success"] for row in g), len(g)) for g in decided]
    found |= share("group/solve_none_share", [n == 0 for n, _ in solved])
    found |= share("group/solve_all_share", [n == size for n, size in solved])
    found |= share("group/solve_partial_share", [0 < n < size for n, size in solved])
    return found | put("group/maj@all", mean([v for g in part.groups if (v := _vote(g)) is not None]))


def _lengths_by_success(part: Part) -> Values:
    found: Values = {}
    for name, value in (("solved", 1), ("unsolved", 0)):
        lengths = known_of([row for row in part.rows if row.columns["success"] == value], "n_sampled")
        found |= describe(f"tokens/completion_{name}", lengths, ("mean", "p50"))
    return found


def _vote(group: list[Row]) -> float | None:
    votes = [(row.columns["answer"], row.columns["success"]) for row in group]
    votes = [(answer, solved) for answer, solved in votes if answer is not None and solved is not None]
    if len(votes) < 2:
        return None
    counts = Counter(answer for answer, _ in votes)
    top = [answer for answer, n in counts.items() if n == max(counts.values())]
    rights = [mean([solved for given, solved in votes if given == answer]) for answer in top]
    return mean(rights)  # type: ignore[arg-type]


def _lengths(part: Part) -> Values:
    found: Values = {}
    parts = {"prompt": "n_prompt", "completion": "n_sampled", "environment": "n_environment"}
    for name, column in parts.items():
        found |= describe(f"tokens/{name}", known_of(part.rows, column), LENGTHS)
    found |= describe("tokens/total", [len(row.ids) for row in part.rows if row.ids], LENGTHS)
    done = [row for row in part.rows if row.columns["stop_reason"] not in (None, "length")]
    ended = known_of(done, "n_sampled")
    for key, value in describe("completion", ended, ("mean", "min", "max")).items():
        found[f"{key}_terminated"] = value
    return found | describe("turns", known_of(part.rows, "n_turns"), ("mean", "max"))


def _stops(part: Part) -> Values:
    known = [reason for reason in part.column("stop_reason") if reason is not None]
    if not known:
        return {}
    counts = Counter(known)
    found = {f"stop/{reason}_share": n / len(known) for reason, n in counts.items()}
    return found | {"stop/length_share": counts["length"] / len(known)}


def _counts(part: Part) -> Values:
    found = {
        "count/samples": len(part.rows),
        "count/prompts": len(part.groups),
    }
    empty = sum(not row.ids for row in part.rows)
    if part.whole or not empty:
        found["count/tokens"] = sum(len(row.ids) for row in part.rows)
    if part.whole and empty:
        found["count/without_tokens"] = empty
    if "samples_per_prompt" in part.settings:
        found["count/expected_samples"] = len(part.groups) * part.settings["samples_per_prompt"]
    return {key: float(value) for key, value in found.items()}


def _versions(part: Part) -> Values:
    pairs = [
        (row.columns["version_min"], row.columns["version_max"])
        for row in part.rows
        if row.columns["version_min"] is not None
    ]
    if not pairs:
        return {}
    found = {"version/min": min(low for low, _ in pairs), "version/max": max(high for _, high in pairs)}
    return found | share("staleness/mixed_share", [low != high for low, high in pairs])


def equal(values: list[float]) -> bool:
    return max(values) - min(values) <= 1e-6 * max(1.0, *(abs(value) for value in values))


def tied(group: list[Row]) -> bool:
    """All rewards equal; those whose function failed are left out, unless all of them did."""
    if len(group) < 2:
        return False
    if all(failed(row) for row in group):
        return True
    known = [reward_of(row) for row in group if not failed(row)]
    return None not in known and len(known) >= 2 and equal(known)  # type: ignore[arg-type]


def cause_of(group: list[Row], span: tuple[float, float]) -> str:
    low, high = span
    margin = 1e-6 * max(1.0, abs(low), abs(high))
    known = [reward for row in group if (reward := reward_of(row)) is not None]
    equal_to = [row.columns["equal_to"] for row in group]
    varied = high - low > margin
    if all(failed(row) for row in group):
        return "all_failed_reward"
    if all(row.columns["stop_reason"] == "length" for row in group):
        return "all_truncated"
    if all(row.columns["answered"] == 0 for row in group):
        return "all_unparsed"
    if None not in equal_to and len(set(equal_to)) == 1:
        return "identical_completions"
    if all(row.columns["success"] == 1 for row in group) or (varied and min(known) >= high - margin):
        return "all_best"
    if all(row.columns["success"] == 0 for row in group) or (varied and max(known) <= low + margin):
        return "all_worst"
    return "other"


CAUSES = (
    "all_failed_reward",
    "all_truncated",
    "all_unparsed",
    "identical_completions",
    "all_best",
    "all_worst",
    "other",
)


def _ties(part: Part) -> Values:
    anything = any(reward_of(row) is not None or failed(row) for row in part.rows)
    if not part.several or not anything or "reward" not in part.there:
        return {}
    dead = [group for group in part.several if tied(group)]
    causes = Counter(cause_of(group, part.span) for group in dead)
    found = {"group/tie_share": len(dead) / len(part.several)}
    for cause in CAUSES:
        found[f"group/tie_cause/{cause}_share"] = causes[cause] / len(part.several)
    if not known_of(part.rows, "n_sampled"):
        return found
    wasted = sum(known_of([row for group in dead for row in group], "n_sampled"))
    total = sum(known_of(part.rows, "n_sampled"))
    found["group/wasted_tokens"] = float(wasted)
    return found | put("group/wasted_token_share", wasted / total if total else None)


def _zero_advantages(part: Part) -> Values:
    if "advantage" not in part.there:
        return {}
    largest = {}
    for row in part.rows:
        own, mean_of_row = row.columns["advantage_abs_max"], row.columns["advantage"]
        largest[id(row)] = own if own is not None else abs(mean_of_row) if finite(mean_of_row) else None
    usable = [g for g in part.several if any(largest[id(row)] is not None for row in g)]
    hits = [max(v for row in g if (v := largest[id(row)]) is not None) <= 1e-8 for g in usable]
    return share("group/zero_advantage_share", hits)


def _spread(part: Part) -> Values:
    if not part.groups or "reward" not in part.there:
        return {}
    found = {"group/size_mean": len(part.rows) / len(part.groups)}
    found |= share("group/single_share", [len(group) == 1 for group in part.groups])
    stds, noisy = [], []
    for group in part.groups:
        known = [reward for row in group if (reward := reward_of(row)) is not None]
        if len(known) >= 2:
            std = describe("x", known)["x/std"]
            stds.append(std)
            noisy.append(not tied(group) and 0 < std < 0.01 * (part.span[1] - part.span[0]))
    return found | put("group/reward_std_mean", mean(stds)) | share("group/noise_amplified_share", noisy)


def _group_lengths(part: Part) -> Values:
    if not part.several:
        return {}
    ratios, variations = [], []
    for group in part.several:
        lengths = sorted(known_of(group, "n_sampled"))
        if len(lengths) < 2:
            continue
        median, average = quantile(lengths, 0.5), math.fsum(lengths) / len(lengths)
        if median > 0 or lengths[-1] == 0:
            ratios.append(lengths[-1] / median if median > 0 else 1.0)
        if average > 0:
            variations.append(describe("x", lengths)["x/std"] / average)
    found = put("group/length_gini_mean", mean_gini(part, "n_sampled"))
    return (
        found
        | put("group/length_max_median_ratio_mean", mean(ratios))
        | put("group/length_cv_mean", mean(variations))
    )


def gini(values: list[float]) -> float | None:
    n, total = len(values), math.fsum(values)
    if n < 2 or min(values) < 0 or total == 0:
        return None
    weighted = math.fsum(rank * value for rank, value in enumerate(sorted(values), start=1))
    return (2 * weighted / (n * total) - (n + 1) / n) * n / (n - 1)


def mean_gini(part: Part, column: str) -> float | None:
    found = []
    for group in part.groups:
        values = [reward_of(row) if column == "reward" else row.columns.get(column) for row in group]
        coefficient = gini([value for value in values if finite(value)])  # type: ignore[misc]
        if coefficient is not None:
            found.append(coefficient)
    return mean(found)


def _ginis(part: Part) -> Values:
    return put("group/reward_gini_mean", mean_gini(part, "reward"))


def _correlations(part: Part) -> Values:
    if not part.several or "reward" not in part.there:
        return {}
    found: Values = {}
    for name, column in (("length", "n_sampled"), ("turns", "n_turns")):
        groups = [[(reward_of(row), row.columns[column]) for row in group] for group in part.groups]
        known = [[(r, x) for r, x in group if r is not None and x is not None] for group in groups]
        known = [group for group in known if group]
        freedom = sum(map(len, known)) - len(known) - 2
        if freedom <= 0:
            continue
        dx = [d for group in known for d in _from_their_mean([r for r, _ in group])]
        dy = [d for group in known for d in _from_their_mean([x for _, x in group])]
        scale = math.sqrt(math.fsum(a * a for a in dx) * math.fsum(b * b for b in dy))
        if scale > 0:
            r = max(-1.0, min(1.0, math.fsum(a * b for a, b in zip(dx, dy, strict=True)) / scale))
            found[f"group/reward_corr_{name}"] = r
            found[f"group/reward_corr_{name}_z"] = math.atanh(max(-1 + 1e-12, min(1 - 1e-12, r))) * math.sqrt(
                freedom
            )
    return found


def _from_their_mean(values: list[float]) -> list[float]:
    """What each value of a group is off their mean; nothing where the group is tied in them."""
    if max(values) - min(values) <= 1e-6 * max(1.0, *map(abs, values)):
        return [0.0] * len(values)
    average = math.fsum(values) / len(values)
    return [value - average for value in values]


def _pass_at_k(part: Part) -> Values:
    pairs = []
    for group in part.groups:
        known = [row.columns["success"] for row in group if row.columns["success"] is not None]
        if known:
            pairs.append((len(known), sum(known)))
    largest = max((n for n, _ in pairs), default=0)
    ks = [k for k in (1, 2, 4, 8, 16, 32) if k <= largest]
    found: Values = {}
    for k in ks if not ks or ks[-1] == largest else [*ks, largest]:
        mine = [(n, c) for n, c in pairs if n >= k]
        found[f"group/pass@{k}"] = math.fsum(
            1 - math.comb(n - c, k) / math.comb(n, k) for n, c in mine
        ) / len(mine)
        found[f"group/pass^{k}"] = math.fsum(math.comb(c, k) / math.comb(n, k) for n, c in mine) / len(mine)
        if len(mine) < len(pairs):
            found[f"group/pass_{k}_n"] = float(len(mine))
    return found


def _largest_mismatch(part: Part) -> Values:
    return put(
        "mismatch/abs_max", max((v for v in part.column("mismatch_abs_max") if v is not None), default=None)
    )


def _advantage_rows(part: Part) -> Values:
    values = [value for value in part.column("advantage") if finite(value)]
    return {key.replace("row/", "advantage/row_"): value for key, value in describe("row", values).items()}


def _discards(part: Part) -> Values:
    reasons = [reason for reason in part.column("discard_reason") if reason is not None]
    found = {"discarded/share": len(reasons) / len(part.rows)}
    return found | {f"discarded/{reason}_count": float(n) for reason, n in Counter(reasons).items()}


def _update(part: Part) -> Values:
    shares = sorted((s for s in part.column("update_share") if s is not None), reverse=True)
    total = math.fsum(shares)
    if not total > 0:
        return {}
    return {
        "update/top3_share": math.fsum(shares[:3]) / total,
        "update/ess_rows": total**2 / math.fsum(s * s for s in shares),
    }


# the population's tokens are needed


def of_tokens(part: Part) -> Values:
    found: Values = {}
    for family in (
        _advantages,
        _loss,
        _staleness,
        _mismatch_keys,
        _identities,
        _ppo,
        _importance,
        _entropy,
        _reference,
        _critic,
        _by_turn,
        _diversity,
        _repetition,
    ):
        found |= family(part)
    return found


def pooled(part: Part, mask: str, *names: str) -> list[tuple[float, ...]]:
    """The tracks' values at the tokens of a mask over all rows that came with them."""
    return [pair for row in part.rows for pair in row.over(getattr(row, mask), *names) or []]


def _advantages(part: Part) -> Values:
    given = [a for row in part.rows for a in row.advantages() or []]
    known = [a for a in given if math.isfinite(a)]
    found = describe("advantage", given) | share("advantage/positive_share", [a > 0 for a in known])
    pairs = [(a, p) for a, p in _advantages_with_logprobs(part) if math.isfinite(a) and math.isfinite(p)]
    if pairs:
        mean_a = math.fsum(a for a, _ in pairs) / len(pairs)
        mean_p = math.fsum(p for _, p in pairs) / len(pairs)
        found["advantage/logprob_covariance"] = math.fsum(
            (a - mean_a) * (p - mean_p) for a, p in pairs
        ) / len(pairs)
    return found


def _advantages_with_logprobs(part: Part) -> Iterator[tuple[float, float]]:
    for row in part.rows:
        policy, advantages = row.policy_track(), row.advantages()
        if policy is not None and advantages is not None:
            logprobs = [p for (p,) in row.over(row.loss, policy) or []]
            yield from zip(advantages, logprobs, strict=True)


def _loss(part: Part) -> Values:
    n_loss = sum(sum(row.loss) for row in part.rows if row.columns["discard_reason"] is None)
    n_tokens = sum(len(row.ids) for row in part.rows)
    return {"count/loss_tokens": float(n_loss)} | put(
        "tokens/loss_share", n_loss / n_tokens if n_tokens else None
    )


def stalenesses(row: Row) -> list[tuple[int, int]]:
    """Position and staleness of each sampled token of known version."""
    if row.train_version is None or "versions" not in row.tracks:
        return []
    versions = row.tracks["versions"]
    return [
        (t, int(row.train_version - versions[t])) for t, s in enumerate(row.sampled) if s and versions[t] >= 0
    ]


def _staleness(part: Part) -> Values:
    lags = [lag for row in part.rows for _, lag in stalenesses(row)]
    if not lags:
        return {}
    found = describe("staleness", lags, ("mean", "max"))
    for lag in range(4):
        found |= share(f"staleness/lag_{lag}_share", [seen == lag for seen in lags])
    found |= share("staleness/lag_4_plus_share", [seen >= 4 for seen in lags])
    ahead = sum(lag < 0 for lag in lags) / len(lags)
    return found | ({"staleness/ahead_share": ahead} if ahead else {})


def tokens_of_mismatch(row: Row) -> list[tuple[int, float, float, float]]:
    """Position, d, prox and rollout logprob of the sampled tokens that have both."""
    if "prox_logprobs" not in row.tracks or "logprobs" not in row.tracks:
        return []
    found = []
    for t, sampled in enumerate(row.sampled):
        above, below = row.tracks["prox_logprobs"][t], row.tracks["logprobs"][t]
        d = log_ratio(above, below)
        if sampled and d is not None:
            found.append((t, d, above, below))
    return found


def probability(logprob: float) -> float:
    return math.exp(min(logprob, 0.0))


def _mismatch_keys(part: Part) -> Values:
    by_row = [tokens_of_mismatch(row) for row in part.rows]
    given = pooled(part, "sampled", "prox_logprobs", "logprobs")
    lost = sum(log_ratio(above, below) is None for above, below in given)
    found = under("mismatch", measures(by_row)) | ({"mismatch_nonfinite": float(lost)} if lost else {})
    flat = [item for row in by_row for item in row]
    if flat:
        found |= _more_mismatch(by_row, flat)
    for name, holds in (
        ("0", lambda lag: lag == 0),
        ("1", lambda lag: lag == 1),
        ("2_plus", lambda lag: lag >= 2),
    ):
        some = []
        for row, items in zip(part.rows, by_row, strict=True):
            lags = dict(stalenesses(row))
            some.append([item for item in items if item[0] in lags and holds(lags[item[0]])])
        found |= under(f"mismatch/staleness_{name}", measures(some))
    return found


def measures(by_row: list[list[tuple[int, float, float, float]]]) -> Values:
    flat = [item for row in by_row for item in row]
    if not flat:
        return {}
    d, n = [item[1] for item in flat], len(flat)
    w = [math.exp(x) for x in d]
    sums = [math.fsum(item[1] for item in row) for row in by_row if row]
    top = max(sums)
    W = [math.exp(s - top) for s in sums]
    return {
        "k1": -math.fsum(d) / n,
        "k3": math.fsum(math.expm1(x) - x for x in d) / n,
        "prob_abs_diff": math.fsum(abs(probability(a) - probability(b)) for _, _, a, b in flat) / n,
        "mult_prob_error": math.fsum(math.exp(abs(x)) for x in d) / n,
        "sequence_log_ratio_mean": math.fsum(sums) / len(sums),
        "sequence_log_ratio_max": max(sums),
        "ess_share": math.fsum(w) ** 2 / (n * math.fsum(x * x for x in w)),
        "ess_share_sequence": math.fsum(W) ** 2 / (len(W) * math.fsum(x * x for x in W)),
        "chi2": math.fsum(x * x for x in w) / n - 1,
    }


def _more_mismatch(by_row: list[Any], flat: list[Any]) -> Values:
    apart = [abs(probability(a) - probability(b)) for _, _, a, b in flat]
    sums = [math.fsum(item[1] for item in row) for row in by_row if row]
    found = {
        "mismatch/prob_abs_diff_max": max(apart),
        "mismatch/prob_abs_diff_std": describe("x", apart)["x/std"],
        "mismatch/perplexity_ratio": mean(
            [math.exp(-s / len(row)) for s, row in zip(sums, filter(None, by_row), strict=True)]
        ),
        "mismatch/sequence_log_ratio_min": min(sums),
        "mismatch/sequence_log_ratio_abs_max": max(abs(s) for s in sums),
        "mismatch/sequence_chi2": mean([math.expm1(2 * max(-20.0, min(20.0, s))) for s in sums]),
    }
    p, q = [probability(a) for _, _, a, _ in flat], [probability(b) for _, _, _, b in flat]
    std_p, std_q = describe("x", p)["x/std"], describe("x", q)["x/std"]
    if std_p * std_q > 1e-12:
        mean_p, mean_q = math.fsum(p) / len(p), math.fsum(q) / len(q)
        covariance = math.fsum((a - mean_p) * (b - mean_q) for a, b in zip(p, q, strict=True)) / len(p)
        found["mismatch/prob_correlation"] = covariance / (std_p * std_q)
    for tenth in range(10):
        mine = [abs(d) for (_, d, _, b) in flat if min(int(probability(b) * 10), 9) == tenth]
        if mine:
            found[f"mismatch/probability_{tenth}/abs_mean"] = math.fsum(mine) / len(mine)
    return found  # type: ignore[return-value]


def _identities(part: Part) -> Values:
    ratios, gaps = [], []
    for row in part.rows:
        fresh = {t for t, lag in stalenesses(row) if lag == 0}
        ratios += [math.exp(d) for t, d, _, _ in tokens_of_mismatch(row) if t in fresh]
        if "logprobs" in row.tracks and "entropies" in row.tracks:
            pairs = [(row.tracks["logprobs"][t], row.tracks["entropies"][t]) for t in fresh]
            gaps += [-p - h for p, h in pairs if finite(p) and finite(h)]
    return put("identity/mean_ratio", mean(ratios)) | put("identity/nll_minus_entropy", mean(gaps))


def _ppo(part: Part) -> Values:
    given = pooled(part, "loss", "new_logprobs", "prox_logprobs")
    d = [log_ratio(new, prox) for new, prox in given]
    known = [x for x in d if x is not None]
    found = describe("ppo_ratio", [math.nan if x is None else math.exp(x) for x in d])
    found |= put("ppo/approx_kl", mean([math.expm1(x) - x for x in known]))
    found |= put("ppo/approx_kl_k1", mean([-x for x in known]))
    means = []
    for row in part.rows:
        mine = [
            x
            for pair in row.over(row.loss, "new_logprobs", "prox_logprobs") or []
            if (x := log_ratio(*pair)) is not None
        ]
        if mine:
            means.append(math.exp(math.fsum(mine) / len(mine)))
    for key, value in describe("x", means, ("mean", "min", "max")).items():
        found[key.replace("x/", "ppo_ratio/sequence_")] = value
    cut = [c for row in part.rows for c in clipping(row, part.settings) if c is not None]
    return (
        found
        | share("clip_share_low", [c == "low" for c in cut])
        | share("clip_share_high", [c == "high" for c in cut])
    )


def _importance(part: Part) -> Values:
    d = [log_ratio(above, below) for above, below in pooled(part, "loss", "prox_logprobs", "logprobs")]
    w = [math.exp(x) for x in d if x is not None]
    found = describe("importance", w, ("mean", "max", "p99"))
    found |= share("importance/above_2_share", [x > 2 for x in w])
    if "importance_cap" in part.settings:
        found |= share("importance/truncated_share", [x > part.settings["importance_cap"] for x in w])
    if "importance_band" in part.settings:
        low, high = part.settings["importance_band"]
        found |= share("importance/masked_share", [x < low or x > high for x in w])
    return found


def _entropy(part: Part) -> Values:
    found = describe("entropy", [h for (h,) in pooled(part, "sampled", "entropies")], ("mean", "p10", "p90"))
    without = [row for row in part.rows if "entropies" not in row.tracks]
    logprobs = [p for row in without for (p,) in row.over(row.sampled, "logprobs") or [] if finite(p)]
    return found | put("nll_estimate", mean([-p for p in logprobs]))


def _reference(part: Part) -> Values:
    d = []
    for row in part.rows:
        policy = row.policy_track()
        if policy is not None:
            pairs = row.over(row.sampled, "ref_logprobs", policy) or []
            d += [x for pair in pairs if (x := log_ratio(*pair)) is not None]
    return put("ref/k1", mean([-x for x in d])) | put("ref/k3", mean([math.expm1(x) - x for x in d]))


def _critic(part: Part) -> Values:
    pairs = []
    for row in part.rows:
        rewards = row.tracks.get("token_rewards")
        for t, in_loss in enumerate(row.loss):
            if not in_loss or "values" not in row.tracks:
                continue
            to_go = (
                reward_of(row)
                if rewards is None
                else math.fsum(rewards[t:])
                if all(map(math.isfinite, rewards[t:]))
                else None
            )
            if finite(to_go) and finite(row.tracks["values"][t]):
                pairs.append((to_go, row.tracks["values"][t]))
    returns = describe("x", [g for g, _ in pairs])  # type: ignore[misc]
    if not pairs or returns["x/std"] ** 2 <= 1e-12:
        return {}
    rest = describe("x", [g - v for g, v in pairs])["x/std"] ** 2  # type: ignore[operator]
    return {"values/explained_variance": 1 - rest / returns["x/std"] ** 2}


def _by_turn(part: Part) -> Values:
    tokens: dict[int, list[list[tuple[Row, int]]]] = {}
    for row in part.rows:
        for number, positions in enumerate(turns(row)):
            tokens.setdefault(min(number, 7), []).append([(row, t) for t in positions])
    found: Values = {}
    for number, mine in tokens.items():
        name = f"turn/{number}" if number < 7 else "turn/7_plus"
        flat = [item for turn in mine for item in turn]
        found[f"{name}/tokens_mean"] = len(flat) / len(mine)
        entropies = [row.tracks["entropies"][t] for row, t in flat if "entropies" in row.tracks]
        found |= put(f"{name}/entropy_mean", mean([h for h in entropies if finite(h)]))
        d = [
            log_ratio(row.tracks["prox_logprobs"][t], row.tracks["logprobs"][t])
            for row, t in flat
            if {"prox_logprobs", "logprobs"} <= set(row.tracks)
        ]
        found |= put(f"{name}/mismatch_k3", mean([math.expm1(x) - x for x in d if x is not None]))
    return found


def _diversity(part: Part) -> Values:
    measures_of: dict[str, list[tuple[float, int]]] = {}
    for group in part.groups:
        heads = [[i for i, s in zip(row.ids, row.sampled, strict=True) if s][:512] for row in group]
        heads = [head for head in heads if head]
        if len(heads) < 2:
            continue
        for n in (1, 2):
            grams = [tuple(head[i : i + n]) for head in heads for i in range(len(head) - n + 1)]
            if grams:
                measures_of.setdefault(f"distinct_{n}", []).append((len(set(grams)) / len(grams), len(group)))
        apart = []
        for i, one in enumerate(heads[:64]):
            for other in heads[i + 1 : 64]:
                apart.append(1 - len(set(one) & set(other)) / len(set(one) | set(other)))
        measures_of.setdefault("jaccard_distance", []).append((math.fsum(apart) / len(apart), len(group)))
    found: Values = {}
    for name, pairs in measures_of.items():
        found[f"diversity/{name}"] = math.fsum(v for v, _ in pairs) / len(pairs)
        found[f"diversity/{name}_micro"] = math.fsum(v * n for v, n in pairs) / sum(n for _, n in pairs)
    answers = []
    for group in part.groups:
        mine = [
            repr(row.values["parsed_answers"])
            for row in group
            if row.values.get("parsed_answers") is not None
        ]
        if len(mine) >= 2:
            answers.append(len(set(mine)) / len(mine))
    ratios = []
    for row in part.rows:
        head = [i for i, s in zip(row.ids, row.sampled, strict=True) if s]
        if len(head) >= 32:
            raw = b"".join(i.to_bytes(4, "little", signed=True) for i in head[:512])
            ratios.append(len(raw) / len(zlib.compress(raw, 6)))
    return (
        found
        | put("diversity/unique_answer_share", mean(answers))
        | put("diversity/compression_ratio", mean(ratios))
    )


def _repetition(part: Part) -> Values:
    return share("repetition_share", [loops(row) for row in part.rows if row.ids])


def loops(row: Row) -> bool:
    """A period of at most 64 fills over half of the last 256 sampled tokens, without a break."""
    tail = [i for i, s in zip(row.ids, row.sampled, strict=True) if s][-256:]
    for period in range(1, min(64, len(tail) - 1) + 1):
        longest = run = 0
        for at in range(period, len(tail)):
            run = run + 1 if tail[at] == tail[at - period] else 0
            longest = max(longest, run)
        covered = longest + period
        if longest and covered >= 129 and covered >= 2 * period:
            return True
    return False
