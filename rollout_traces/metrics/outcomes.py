"""Solved or not: shares of groups, votes, lengths by outcome, and how sure the means are."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np

from rollout_traces.metrics.aggregate import describe, known, share
from rollout_traces.metrics.registry import Key, family
from rollout_traces.metrics.view import StepView


@family(
    "solved_groups",
    reads="ledger",
    needs=("success", "group_ids"),
    source="prime-rl",
    keys=(
        Key(
            "group/solve_{none,all,partial}_share",
            "groups of two or more in which no, every or some rollout succeeded",
            default=True,
        ),
    ),
)
def solved_groups(view: StepView) -> dict[str, float]:
    """groups / groups of two or more whose successes are all known."""
    success, groups = view.floats("success"), view.groups
    solved = groups.count(success == 1)
    known_all = (groups.sizes >= 2) & groups.all(np.isfinite(success))
    return (
        share("group/solve_none_share", solved == 0, known_all)
        | share("group/solve_all_share", solved == groups.sizes, known_all)
        | share("group/solve_partial_share", (solved > 0) & (solved < groups.sizes), known_all)
    )


@family(
    "reward_standard_error",
    reads="ledger",
    needs=("reward",),
    source="Miller 2024, clustered standard errors",
    keys=(
        Key(
            "reward/standard_error",
            "standard error of reward/mean, rollouts clustered by group",
            default=True,
        ),
    ),
)
def reward_standard_error(view: StepView) -> dict[str, float]:
    """sqrt(K/(K - 1) sum over groups of (sum of x - mean)^2) / n over n rows in K groups; two groups or more."""
    return known("reward/standard_error", standard_error(view, view.rewards))


@family(
    "success_standard_error",
    reads="ledger",
    needs=("success",),
    source="Miller 2024, clustered standard errors",
    keys=(
        Key(
            "success/standard_error",
            "standard error of success/mean, rollouts clustered by group",
            default=True,
        ),
    ),
)
def success_standard_error(view: StepView) -> dict[str, float]:
    """As `reward/standard_error`, of the known successes."""
    return known("success/standard_error", standard_error(view, view.floats("success")))


def standard_error(view: StepView, values: np.ndarray) -> float | None:
    """Standard error of the mean of the finite values [B], which are not independent inside a group.

    Groups without a finite value do not count; None with fewer than two groups.
    """
    usable = np.isfinite(values)
    K = int((view.groups.count(usable) > 0).sum())
    if K < 2:
        return None
    off = np.where(usable, values - values[usable].mean(), 0)
    return math.sqrt(K / (K - 1) * float(np.sum(view.groups.sum(off) ** 2))) / int(usable.sum())


@family(
    "majority_vote",
    reads="ledger",
    needs=("answer", "success"),
    source="self-consistency (Wang et al. 2023)",
    keys=(Key("group/maj@all", "chance that the commonest answer of a group is right, mean over groups"),),
)
def majority_vote(view: StepView) -> dict[str, float]:
    """Over groups with two or more parsed answers of known success.

    An answer is right in the share of its rollouts that succeeded; among equally common answers each is as
    likely. Answers are compared as texts of 200 characters.
    """
    answers, success = view.ledger.get("answer").tolist(), view.floats("success")
    found = []
    for rows in view.groups.rows():
        votes = [(answers[row], success[row]) for row in rows.tolist() if answers[row] is not None]
        votes = [(answer, solved) for answer, solved in votes if math.isfinite(solved)]
        if len(votes) < 2:
            continue
        counts = Counter(answer for answer, _ in votes)
        most = max(counts.values())
        rights = [
            np.mean([solved for given, solved in votes if given == answer])
            for answer, n in counts.items()
            if n == most
        ]
        found.append(float(np.mean(rights)))
    return known("group/maj@all", np.mean(found) if found else None)


@family(
    "length_by_success",
    reads="ledger",
    needs=("success", "n_sampled"),
    source="practice",
    keys=(
        Key(
            "tokens/completion_{solved,unsolved}/{mean,p50}",
            "sampled tokens of rollouts that did, did not succeed",
        ),
    ),
)
def length_by_success(view: StepView) -> dict[str, float]:
    """mean and median of sampled tokens over rows of success 1, and of success 0."""
    success, lengths = view.floats("success"), view.floats("n_sampled")
    result: dict[str, float] = {}
    for name, value in (("solved", 1), ("unsolved", 0)):
        mine = lengths[(success == value) & np.isfinite(lengths)]
        result |= describe(f"tokens/completion_{name}", mine, ("mean", "p50"))
    return result
