"""Selection: which rows of a step become traces under its cap, by a policy."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, cast

import numpy as np

from rollout_traces.errors import ConfigError
from rollout_traces.ledger.columns import NULL_INT, Ledger
from rollout_traces.ledger.groups import GroupIndex, known_rewards, reward_failed, tie_decided, tied_groups
from rollout_traces.model.text import short_hash


@dataclass(frozen=True)
class Selected:
    """One row that becomes a trace.

    Attributes:
        row: its row in the hand-over.
        selected_by: why: `random`, `best`, `worst`, `alarm:longest`, ...
        probability: chance of the row having been chosen, for `random` ones the share they stand for.
    """

    row: int
    selected_by: str
    probability: float


@dataclass(frozen=True, eq=False)
class SelectionRequest:
    """The question to a policy: the rows it sees, and how many it may choose.

    Attributes:
        ledger: every row of the hand-over, flags included.
        limit: how many rows may be chosen: the cap less what earlier calls of the step took.
        seed: what random choices are drawn from; equal seeds choose equally.
        traced_prompts: prompt key -> number of times it was traced before in this run.
        step: the trainer's global step.
        split: `rollout` or `eval-rollout`.
    """

    ledger: Ledger
    limit: int
    seed: int
    traced_prompts: Mapping[str, int] = field(default_factory=dict)
    step: int = 0
    split: str = "rollout"

    def generator(self) -> np.random.Generator:
        """A random generator of this run, step and split."""
        return np.random.default_rng([self.seed, self.step & 0xFFFFFFFF, len(self.split)])


class SelectionPolicy(Protocol):
    """Chooses at most `request.limit` different rows."""

    def __call__(self, request: SelectionRequest) -> Sequence[Selected]:
        """Chooses rows, in the order they should be logged."""
        ...


def first(request: SelectionRequest) -> list[Selected]:
    """Takes the first rows as they were handed over."""
    return [Selected(row, "first", 1.0) for row in range(min(request.limit, request.ledger.n_rows))]


def random_rows(request: SelectionRequest) -> list[Selected]:
    """Draws rows uniformly without replacement; each row's chance is limit / rows."""
    n = request.ledger.n_rows
    take = max(min(request.limit, n), 0)
    rows: list[int] = request.generator().permutation(n)[:take].tolist()
    return [Selected(row, "random", take / n) for row in sorted(rows)]


def extremes(request: SelectionRequest) -> list[Selected]:
    """Takes the highest and the lowest rewards in turn; rows without a reward come last.

    Equal rewards keep the order handed over.
    """
    reward = request.ledger.get("reward").astype(np.float64)
    known = np.flatnonzero(np.isfinite(reward))
    ascending = known[np.argsort(reward[known], kind="stable")].tolist()
    descending = known[np.argsort(-reward[known], kind="stable")].tolist()
    chosen: dict[int, str] = {}
    for best, worst in zip(descending, ascending, strict=True):
        chosen.setdefault(best, "best")
        chosen.setdefault(worst, "worst")
    for row in np.flatnonzero(~np.isfinite(reward)).tolist():
        chosen[row] = "no reward"
    return [Selected(row, reason, 1.0) for row, reason in list(chosen.items())[: request.limit]]


def fixed_prompts(request: SelectionRequest) -> list[Selected]:
    """Takes the prompts with the lowest hash of (prompt key, seed).

    As long as a prompt is handed over it keeps its place, so that a reader meets the same prompts at
    every evaluation. Each prompt gives its first sample before any gives its second.
    """
    keys = request.ledger.get("prompt_key").tolist()
    take = min(request.limit, len(keys))
    seen: dict[str, int] = {}
    places = []
    for row, key in enumerate(keys):
        prompt = f"row {row}" if key is None else str(key)
        sample = seen[prompt] = seen.get(prompt, -1) + 1
        places.append((sample, short_hash(f"{request.seed} {prompt}"), row))
    share = take / len(keys) if keys else 0.0
    return [Selected(row, "fixed_prompts", share) for _, _, row in sorted(places)[:take]]


def all_rows(request: SelectionRequest) -> list[Selected]:
    """Takes every row; the cap then only says whether traces are wanted at all."""
    return [Selected(row, "all", 1.0) for row in range(request.ledger.n_rows)]


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
    quarter = limit // 4
    spend(quarter, groups.halves(whole, quarter))
    spend(quarter // 2 * 2, groups.pairs(others))
    spend(limit // 5, _alarms(request.ledger))
    spend(limit, _in_turn([groups.dead(), _discarded(request.ledger)]))
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
        self._tied: list[int] = []
        index = GroupIndex.of(ledger.get("group"))
        failed = reward_failed(ledger)
        tied = tied_groups(index, rewards, failed)
        decided = tie_decided(index, rewards, failed)
        for group, rows in self._rows.items():
            code = index.codes[rows[0]]
            if decided[code] and np.isfinite(self._reward[rows]).any():
                (self._tied if tied[code] else self.mixed).append(group)

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

    def dead(self) -> list[tuple[int, str]]:
        """One row of each group with equal rewards."""
        return [(self._rows[group][0], "tied group") for group in self._tied]

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


def _discarded(ledger: Ledger) -> list[tuple[int, str]]:
    """The rows that the trainer left out."""
    reasons = ledger.get("discard_reason").tolist()
    return [(row, f"discarded:{reason}") for row, reason in enumerate(reasons) if reason is not None]


def _rows_by_group(groups: np.ndarray) -> dict[int, list[int]]:
    rows: dict[int, list[int]] = {}
    for row, group in enumerate(groups.tolist()):
        rows.setdefault(group, []).append(row)
    return rows


def _in_turn(queues: list[list]) -> Iterator:
    """The first of each queue, then the second of each, and so on."""
    for depth in range(max(map(len, queues), default=0)):
        yield from (queue[depth] for queue in queues if depth < len(queue))


POLICIES: Mapping[str, SelectionPolicy] = {
    "portfolio": portfolio,
    "fixed_prompts": fixed_prompts,
    "first": first,
    "random": random_rows,
    "extremes": extremes,
    "all": all_rows,
}
"""The policies that `RolloutLogger(selection=...)` knows by name."""


def policy_named(selection: str | Callable[[SelectionRequest], Any]) -> SelectionPolicy:
    """The policy of a name.

    Args:
        selection: a key of `POLICIES`, or a callable, which is returned as it is. It may answer with
            `Selected` values or with plain row numbers.

    Raises:
        ConfigError: no policy has that name.
    """
    if not isinstance(selection, str):
        return cast(SelectionPolicy, selection)
    if selection not in POLICIES:
        raise ConfigError(
            f"selection: seen {selection!r}. Expected one of {', '.join(POLICIES)}, or a callable that takes "
            "a SelectionRequest and returns row numbers."
        )
    return POLICIES[selection]


def default_policy(split: str) -> SelectionPolicy:
    """`fixed_prompts` for evaluation, so that the same prompts are seen every time; `portfolio` for training."""
    return fixed_prompts if split.startswith("eval") else portfolio


def choose(policy: SelectionPolicy, request: SelectionRequest) -> list[Selected]:
    """Applies a policy and holds it to its promise.

    Args:
        request: what the policy may see. A limit of 0 or less, or no rows, chooses nothing; for `all` the limit
            is the number of rows.

    Returns:
        Different rows, at most `request.limit` of them; what a policy answers beyond that is cut.

    Raises:
        ConfigError: the answer is not a sequence of rows of the hand-over.
    """
    n = request.ledger.n_rows
    if request.limit <= 0 or n == 0:
        return []
    if policy is all_rows:
        request = replace(request, limit=n)
    chosen: dict[int, Selected] = {}
    for answer in _answers(policy, request):
        selected = _checked(policy, answer)
        if not 0 <= selected.row < n:
            raise ConfigError(
                f"selection {_name(policy)}: seen row {selected.row}. Expected rows from 0 to {n - 1}."
            )
        chosen.setdefault(selected.row, selected)
    return list(chosen.values())[: request.limit]


def _answers(policy: SelectionPolicy, request: SelectionRequest) -> Iterable[Any]:
    answers = policy(request)
    if not isinstance(answers, Iterable):
        raise ConfigError(
            f"selection {_name(policy)}: seen {type(answers).__name__}. Expected a sequence of row numbers."
        )
    return answers


def _checked(policy: SelectionPolicy, answer: Any) -> Selected:
    try:
        given = answer if isinstance(answer, Selected) else Selected(answer, _name(policy), 1.0)
        row = int(given.row)
        if row != given.row:
            raise ValueError(f"row {given.row!r} is no row number")
        return Selected(row, str(given.selected_by), float(given.probability))
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"selection {_name(policy)}: seen {answer!r} ({type(answer).__name__}). Expected a row number, or Selected with a row number, a "
            "reason and a probability."
        ) from error


def _name(policy: SelectionPolicy) -> str:
    return getattr(policy, "__name__", type(policy).__name__)
