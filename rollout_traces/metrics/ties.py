"""Groups that teach nothing, and groups that teach noise."""

from __future__ import annotations

import numpy as np

from rollout_traces.ledger.groups import GroupIndex
from rollout_traces.ledger.rewards import TIE_TOLERANCE, tied_groups
from rollout_traces.metrics.aggregate import known, share
from rollout_traces.metrics.registry import Key, family
from rollout_traces.metrics.view import StepView

ZERO_ADVANTAGE = 1e-8
NOISE_SHARE = 0.01
"""A reward spread below this share of the reward range is noise that normalisation blows up."""
TIE_CAUSES = (
    "all_failed_reward",
    "all_truncated",
    "all_unparsed",
    "identical_completions",
    "all_best",
    "all_worst",
    "other",
)
"""What a tied group has in common; a group counts under the first that holds."""


def tie_causes(view: StepView) -> np.ndarray:
    """object [K]: a name of `TIE_CAUSES` for each tied group, None for the others."""
    groups = view.groups
    tied = tied_groups(groups, view.rewards, view.reward_failed)
    success, answered = view.floats("success"), view.floats("answered")
    low, high = view.reward_span
    tolerance = TIE_TOLERANCE * max(1.0, abs(high), abs(low))
    varied = high - low > tolerance
    best, worst = groups.all(success == 1), groups.all(success == 0)
    if varied:
        best |= groups.min(view.rewards) >= high - tolerance
        worst |= groups.max(view.rewards) <= low + tolerance
    holds = {
        "all_failed_reward": groups.all(view.reward_failed),
        "all_truncated": groups.all(view.truncated),
        "all_unparsed": groups.all(answered == 0),
        "identical_completions": identical_completions(view),
        "all_best": best,
        "all_worst": worst,
        "other": np.ones(len(groups), bool),
    }
    causes = np.full(len(groups), None, object)
    for name in reversed(TIE_CAUSES):
        causes[tied & holds[name]] = name
    return causes


def identical_completions(view: StepView) -> np.ndarray:
    """bool [K]: groups of two or more whose rollouts sampled the very same tokens; False where that is unknown."""
    # of a part, the rollout that all are equal to may lie outside of it
    groups, equal_to = view.groups, view.floats("equal_to")
    with np.errstate(invalid="ignore"):
        return (groups.sizes >= 2) & groups.all(equal_to == groups.min(equal_to)[groups.codes])


@family(
    "group_ties",
    reads="ledger",
    needs=("reward", "group_ids"),
    source="practice",
    keys=(
        Key("group/tie_share", "groups of two or more whose rewards are all equal", default=True),
        Key(
            "group/tie_cause/{all_failed_reward,all_truncated,all_unparsed,identical_completions,all_best,all_worst,other}_share",
            "groups tied for that cause, the first that holds; they add up to tie_share",
        ),
        Key("group/wasted_tokens", "sampled tokens in tied groups", default=True),
        Key("group/wasted_token_share", "sampled tokens in tied groups / sampled tokens", default=True),
    ),
)
def group_ties(view: StepView) -> dict[str, float]:
    """tied groups / groups of two or more, by cause, and the sampled tokens spent on them.

    Best and worst are the ends of the declared reward range, else of the whole step's rewards, or all
    successes and no success. Causes are told apart in the order of the keys: `all_best` are the groups whose
    rewards are all the best and which were not all truncated, and so on.
    """
    causes = tie_causes(view)
    tied = causes != None  # noqa: E711  elementwise over an object array
    several = int((view.groups.sizes >= 2).sum())
    if not several or not (np.isfinite(view.rewards) | view.reward_failed).any():
        return {}
    result = {"group/tie_share": int(tied.sum()) / several}
    for name in TIE_CAUSES:
        result[f"group/tie_cause/{name}_share"] = int((causes == name).sum()) / several
    lengths = view.floats("n_sampled")
    if np.isfinite(lengths).any():
        wasted, total = float(view.groups.sum(lengths)[tied].sum()), float(np.nansum(lengths))
        result |= {"group/wasted_tokens": wasted} | known(
            "group/wasted_token_share", wasted / total if total else None
        )
    return result


@family(
    "group_zero_advantage",
    reads="ledger",
    needs=("advantage", "group_ids"),
    source="MaxEnt-GRPO and Telescope, kept apart from ties",
    keys=(Key("group/zero_advantage_share", "groups of two or more with max |A| <= 1e-8", default=True),),
)
def group_zero_advantage(view: StepView) -> dict[str, float]:
    """groups with max |A| <= 1e-8 / groups of two or more with a known advantage.

    A is the token's over loss tokens, else the row's; what is unknown or not finite is left out.
    """
    per_token, groups = view.floats("advantage_abs_max"), view.groups
    largest = np.where(np.isnan(per_token), np.abs(view.floats("advantage")), per_token)
    usable = (groups.sizes >= 2) & (groups.count(np.isfinite(largest)) > 0)
    return share("group/zero_advantage_share", groups.max(largest) <= ZERO_ADVANTAGE, usable)


@family(
    "group_spread",
    reads="ledger",
    needs=("reward",),
    source="practice",
    keys=(
        Key("group/reward_std_mean", "mean over groups of the population std of their rewards", default=True),
        Key("group/noise_amplified_share", "groups with 0 < std < 1 % of the reward range", default=True),
        Key("group/single_share", "groups of one rollout"),
        Key("group/size_mean", "rollouts in a group"),
    ),
)
def group_spread(view: StepView) -> dict[str, float]:
    """Spread of rewards inside groups of two or more; the range is the declared one, else the step's."""
    groups = view.groups
    if not len(groups):
        return {}
    result = {"group/size_mean": float(groups.sizes.mean())} | share("group/single_share", groups.sizes == 1)
    several = groups.count(np.isfinite(view.rewards)) >= 2
    if several.any():
        result |= known("group/reward_std_mean", groups.std(view.rewards)[several].mean())
        result |= share("group/noise_amplified_share", noise_amplified(view, groups), several)
    return result


def noise_amplified(view: StepView, groups: GroupIndex) -> np.ndarray:
    """bool [K]: not tied, and the rewards' std is below 1 % of the reward range."""
    low, high = view.reward_span
    std = groups.std(view.rewards)
    with np.errstate(invalid="ignore"):
        tied = tied_groups(groups, view.rewards, view.reward_failed)
        return ~tied & (std > 0) & (std < NOISE_SHARE * (high - low))
