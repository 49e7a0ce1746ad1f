"""The default: a fair sample, a whole group, contrasts, alarms and what was thrown away."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from rollout_traces.ledger.columns import NULL_INT, Ledger
from rollout_traces.ledger.groups import GroupIndex, known_rewards, reward_failed, tie_decided, tied_groups
from rollout_traces.selection.base import Selected, SelectionRequest

PASS_RATE_BANDS = 3


def portfolio(request: SelectionRequest) -> list[Selected]:
    """Spends a cap of N on five kinds of rows.

    A quarter at least is drawn uniformly at random: only those rows (`selected_by == "random"`) may
    estimate shares, each with the probability written on it. A quarter is one whole mixed group, its
    best and worst halves when it is larger. A quarter is best/worst pairs of further mixed groups
    across pass-rate bands, prompts traced before first. A fifth is alarms. The rest comes from groups
    with equal rewards and from discarded rows. What one kind leaves unused goes to the random part,
    whose size is fixed before it is drawn, so that it stays a fair sample; a row that both draw counts
    as random, and the places this frees are filled by further chance (`selected_by == "fill"`).
    """
    n = request.ledger.n_rows
    limit = min(request.limit, n)
    quarter = max(limit // 4, 1)
    reasons = _reasoned(request, limit, quarter)
    n_random = limit - len(reasons)
    order = request.generator().permutation(n).tolist()
    share = n_random / n if n else 0.0
    chosen = {row: Selected(row, reason, 1.0) for row, reason in reasons.items()}
    chosen |= {row: Selected(row, "random", share) for row in order[:n_random]}
    for row in order[n_random:]:
        if len(chosen) >= limit:
            break
        chosen.setdefault(row, Selected(row, "fill", share))
    return [chosen[row] for row in sorted(chosen)]


def _reasoned(request: SelectionRequest, limit: int, quarter: int) -> dict[int, str]:
    """Row -> reason for what is chosen on purpose, at most `limit` less the random quarter."""
    reasons: dict[int, str] = {}

    def spend(budget: int, candidates: Iterator[tuple[int, str]]) -> None:
        stop = min(len(reasons) + budget, limit - quarter)
        for row, reason in candidates:
            if len(reasons) >= stop:
                return
            reasons.setdefault(row, reason)

    groups = _Groups(request)
    whole, others = groups.split_whole()
    spend(limit // 4, groups.halves(whole, limit // 4))
    spend(limit // 4 // 2 * 2, groups.pairs(others))
    spend(limit // 5, _alarms(request.ledger))
    spend(limit, _dead_or_discarded(request.ledger, groups.tied))
    return reasons


class _Groups:
    """The groups of a step, by the spread of their rewards."""

    def __init__(self, request: SelectionRequest) -> None:
        ledger = request.ledger
        rewards = known_rewards(ledger)
        self._reward = np.where(np.isfinite(rewards), rewards, np.nan)
        self._rows = _rows_by_group(ledger.get("group"))
        keys = ledger.get("prompt_key").tolist()
        self._traced = {g: request.traced_prompts.get(keys[rows[0]], 0) for g, rows in self._rows.items()}
        known = self._reward[np.isfinite(self._reward)]
        self._low = float(known.min()) if len(known) else 0.0
        self._range = (float(np.ptp(known)) if len(known) else 0.0) or 1.0
        self.mixed: list[int] = []
        self.tied: list[int] = []
        index = GroupIndex.of(ledger.get("group"))
        failed = reward_failed(ledger)
        tied = tied_groups(index, rewards, failed)
        decided = tie_decided(index, rewards, failed)
        for group, rows in self._rows.items():
            code = index.codes[rows[0]]
            if decided[code] and np.isfinite(self._reward[rows]).any():
                (self.tied if tied[code] else self.mixed).append(group)

    def split_whole(self) -> tuple[int | None, list[int]]:
        """The group with the widest spread (one traced before, where there is one), and the others."""
        if not self.mixed:
            return None, []
        whole = max(
            self.mixed, key=lambda g: (self._traced[g] > 0, float(np.nanstd(self._reward[self._rows[g]])))
        )
        return whole, [group for group in self.mixed if group != whole]

    def halves(self, group: int | None, budget: int) -> Iterator[tuple[int, str]]:
        """The whole group where it fits, else its best and worst halves."""
        if group is None:
            return
        if len(self._rows[group]) <= budget:
            yield from ((row, "group") for row in self._rows[group])
            return
        best = self._best_first(group)
        for position in range(len(best) // 2):
            yield best[position], "group:best"
            yield best[-1 - position], "group:worst"

    def pairs(self, groups: list[int]) -> Iterator[tuple[int, str]]:
        """The best and the worst row of one group after another, pass-rate bands in turn."""
        bands: list[list[int]] = [[] for _ in range(PASS_RATE_BANDS)]
        for group in sorted(groups, key=lambda g: -self._traced[g]):
            rate = (float(np.nanmean(self._reward[self._rows[group]])) - self._low) / self._range
            bands[min(int(rate * PASS_RATE_BANDS), PASS_RATE_BANDS - 1)].append(group)
        for group in _in_turn(bands):
            best = self._best_first(group)
            yield best[0], "best"
            yield best[-1], "worst"

    def rows(self, group: int) -> list[int]:
        """The rows of a group, in the order handed over."""
        return self._rows[group]

    def _best_first(self, group: int) -> list[int]:
        rows = [row for row in self._rows[group] if np.isfinite(self._reward[row])]
        return sorted(rows, key=lambda row: (-self._reward[row], row))


def _alarms(ledger: Ledger) -> Iterator[tuple[int, str]]:
    """Rows that stand out, one of each kind in turn."""
    yield from _in_turn(
        [
            _largest(ledger.get("update_share"), "alarm:update"),
            _largest(ledger.get("mismatch_abs_max"), "alarm:mismatch"),
            _largest(_known_floats(ledger.get("n_sampled")), "alarm:longest"),
            _largest(_known_floats(ledger.get("staleness_max")), "alarm:stalest"),
            _rarest_flags(ledger.get("flags")),
            _largest(_known_floats(ledger.get("n_tool_errors")), "alarm:tool_error"),
        ]
    )


def _largest(values: np.ndarray, reason: str) -> list[tuple[int, str]]:
    """Rows by descending positive value."""
    rows = np.flatnonzero(np.isfinite(values) & (values > 0))
    return [(int(row), reason) for row in rows[np.argsort(-values[rows], kind="stable")]]


def _known_floats(values: np.ndarray) -> np.ndarray:
    return np.where(values == NULL_INT, np.nan, values.astype(np.float64))


def _rarest_flags(flags: np.ndarray) -> list[tuple[int, str]]:
    """One row a flag, the flags that fewest rows have first."""
    rows_by_flag: dict[str, list[int]] = {}
    for row, names in enumerate(flags.tolist()):
        for name in names or ():
            rows_by_flag.setdefault(name, []).append(row)
    rarest = sorted(rows_by_flag.items(), key=lambda item: (len(item[1]), item[0]))
    return [(rows[0], f"alarm:{name}") for name, rows in rarest]


def _dead_or_discarded(ledger: Ledger, tied: list[int]) -> Iterator[tuple[int, str]]:
    """One row of each group with equal rewards, and discarded rows, in turn."""
    by_group = _rows_by_group(ledger.get("group"))
    reasons = ledger.get("discard_reason").tolist()
    yield from _in_turn(
        [
            [(by_group[group][0], "dead group") for group in tied],
            [(row, f"discarded:{reason}") for row, reason in enumerate(reasons) if reason is not None],
        ]
    )


def _rows_by_group(groups: np.ndarray) -> dict[int, list[int]]:
    rows: dict[int, list[int]] = {}
    for row, group in enumerate(groups.tolist()):
        rows.setdefault(group, []).append(row)
    return rows


def _in_turn(queues: list[list]) -> Iterator:
    """The first of each queue, then the second of each, and so on."""
    for depth in range(max(map(len, queues), default=0)):
        yield from (queue[depth] for queue in queues if depth < len(queue))
