"""Groups: ties and what causes them, spread, lengths, correlations with the reward, pass@k."""

from __future__ import annotations

import math

import numpy as np

from rollout_traces.ledger.groups import TIE_TOLERANCE, ZERO_ADVANTAGE, GroupIndex, equal_ends, tied_groups
from rollout_traces.metrics.registry import TINY, Key, describe, family, finite_of, key_parts, mean_of, share
from rollout_traces.metrics.view import StepView, Values
from rollout_traces.model.text import words

NOISE_SHARE = 0.01
"""A reward spread below this share of the reward range is noise that normalisation blows up."""
TIE_CAUSES = words(
    "all_failed_reward all_truncated all_unparsed identical_completions all_best all_worst other"
)
"""Causes for which a group is tied; a group counts under the first that holds."""


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
    needs=("reward", "group_ids"),
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
def group_ties(view: StepView) -> Values:
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
    result |= {f"group/tie_cause/{name}_share": int((causes == name).sum()) / several for name in TIE_CAUSES}
    lengths = view.groups.sum(view.floats("n_sampled"))
    if len(view.known("n_sampled")):
        wasted, total = float(lengths[tied].sum()), float(lengths.sum())
        result |= {
            "group/wasted_tokens": wasted,
            **({"group/wasted_token_share": wasted / total} if total else {}),
        }
    return result


@family(
    needs=("advantage", "group_ids"),
    source="MaxEnt-GRPO and Telescope, kept apart from ties",
    keys=(Key("group/zero_advantage_share", "groups of two or more with max |A| <= 1e-8", default=True),),
)
def group_zero_advantage(view: StepView) -> Values:
    """groups with max |A| <= 1e-8 / groups of two or more with a known advantage.

    A is the token's over loss tokens, else the row's; what is unknown or not finite is left out.
    """
    per_token, groups = view.floats("advantage_abs_max"), view.groups
    largest = np.where(np.isnan(per_token), np.abs(view.floats("advantage")), per_token)
    usable = (groups.sizes >= 2) & (groups.count(np.isfinite(largest)) > 0)
    return share("group/zero_advantage_share", groups.max(largest) <= ZERO_ADVANTAGE, usable)


@family(
    needs=("reward",),
    keys=(
        Key("group/reward_std_mean", "mean over groups of the population std of their rewards", default=True),
        Key("group/noise_amplified_share", "groups with 0 < std < 1 % of the reward range", default=True),
        Key("group/single_share", "groups of one rollout"),
        Key("group/size_mean", "rollouts in a group"),
    ),
)
def group_spread(view: StepView) -> Values:
    """Spread of rewards inside groups of two or more; the range is the declared one, else the step's."""
    if not len((view.whole or view).known("reward")):
        return {}
    groups = view.groups
    several = groups.count(np.isfinite(view.rewards)) >= 2
    return {
        **mean_of("group/size_mean", groups.sizes),
        **mean_of("group/single_share", groups.sizes == 1),
        **mean_of("group/reward_std_mean", groups.std(view.rewards)[several]),
        **share("group/noise_amplified_share", noise_amplified(view, groups), several),
    }


def noise_amplified(view: StepView, groups: GroupIndex) -> np.ndarray:
    """bool [K]: not tied, and the rewards' std is below 1 % of the reward range."""
    low, high = view.reward_span
    std = groups.std(view.rewards)
    with np.errstate(invalid="ignore"):
        tied = tied_groups(groups, view.rewards, view.reward_failed)
        return ~tied & (std > 0) & (std < NOISE_SHARE * (high - low))


def gini(values: np.ndarray) -> float:
    """Gini coefficient with the correction n/(n - 1), so that 1 is reachable.

    `G = 2 * sum(i * x_i) / (n * sum(x)) - (n + 1) / n`, values ascending, i from 1, times n/(n - 1).

    Args:
        values: finite numbers of one group.

    Returns:
        0 (all equal) to 1 (one has everything); NaN for fewer than two values, a negative one, or a
        sum of 0.
    """
    n = len(values)
    total = float(values.sum())
    if n <= 1 or values.min() < 0 or total == 0:
        return math.nan
    ranks = np.arange(1, n + 1)
    raw = 2 * float(ranks @ np.sort(values)) / (n * total) - (n + 1) / n
    return raw * n / (n - 1)


def mean_gini(key: str, view: StepView, values: np.ndarray) -> Values:
    """Mean over groups of their Gini coefficient [B values], nothing when no group has one."""
    return mean_of(key, np.asarray([gini(finite_of(values[rows])[0]) for rows in view.groups.rows()]))


@family(
    needs=("n_sampled", "group_ids"),
    source="Telescope, corrected",
    keys=(
        Key("group/length_gini_mean", "mean over groups of the Gini coefficient of sampled tokens"),
        Key("group/length_max_median_ratio_mean", "mean over groups of longest / median sampled tokens"),
        Key("group/length_cv_mean", "mean over groups of std / mean of sampled tokens"),
    ),
)
def group_lengths(view: StepView) -> Values:
    """Over groups of two or more. A median of 0 gives a ratio of 1 when the maximum is 0, else nothing."""
    lengths = view.floats("n_sampled")
    ratios, variations = [], []
    for rows in view.groups.rows():
        mine = finite_of(lengths[rows])[0]
        if len(mine) < 2:
            continue
        median, longest, mean = float(np.median(mine)), float(mine.max()), float(mine.mean())
        if median > 0 or longest == 0:
            ratios.append(longest / median if median > 0 else 1.0)
        if mean > 0:
            variations.append(float(mine.std()) / mean)
    return {
        **mean_gini("group/length_gini_mean", view, lengths),
        **mean_of("group/length_max_median_ratio_mean", np.asarray(ratios)),
        **mean_of("group/length_cv_mean", np.asarray(variations)),
    }


@family(
    source="Telescope, corrected",
    keys=(
        Key("group/reward_gini_mean", "on binary rewards: a pass rate of the solved groups in disguise"),
        Key("group/<sample metric>_gini_mean", "the same of one of the trainer's own metrics"),
    ),
)
def group_ginis(view: StepView) -> Values:
    """Mean over groups of the Gini coefficient of rewards and of sample metrics."""
    metrics = view.named("sample")
    named = {"reward": view.rewards, **{part: metrics[name] for name, part in key_parts(metrics).items()}}
    found = [mean_gini(f"group/{part}_gini_mean", view, values) for part, values in named.items()]
    return {key: value for each in found for key, value in each.items()}


def pooled_correlation(view: StepView, values: np.ndarray) -> tuple[float, float] | None:
    """Correlation of the reward with another quantity inside groups.

    Both are centred in their group; r = sum(dx dy) / sqrt(sum(dx^2) sum(dy^2)). z is Fisher's
    `atanh(r) * sqrt(n - K - 2)` for n rows in K groups: centring costs one degree of freedom a group. Values of a
    group that are equal by the rule for ties deviate by 0: a mean of equal numbers may be off by rounding.

    Args:
        values: float64 [B].

    Returns:
        r and z, None when either is equal in every group or n is at most K + 2.
    """
    usable = np.isfinite(view.rewards) & np.isfinite(values)
    n_groups = int((view.groups.count(usable) > 0).sum())
    freedom = int(usable.sum()) - n_groups - 2
    if freedom <= 0:
        return None
    dx, dy = (_deviations(view.groups, np.where(usable, x, np.nan))[usable] for x in (view.rewards, values))
    if not (dx.any() and dy.any()):
        return None
    r = float(np.clip((dx @ dy) / np.sqrt((dx @ dx) * (dy @ dy)), -1, 1))
    return r, math.atanh(max(TINY - 1, min(1 - TINY, r))) * math.sqrt(freedom)


def _deviations(groups: GroupIndex, values: np.ndarray) -> np.ndarray:
    """float64 [B]: values less their group's mean; 0 where those of a group are equal by the rule for ties."""
    equal = equal_ends(groups.min(values), groups.max(values))
    return np.where(equal[groups.codes], 0.0, groups.centred(values))


@family(
    needs=("reward", "group_ids"),
    keys=(
        Key(
            "group/reward_corr_length",
            "within-group correlation of reward and sampled tokens; none where either is equal in every group by the rule for ties",
            default=True,
        ),
        Key("group/reward_corr_{turns,tool_calls,thinking_share}", "the same with other quantities"),
        Key("group/reward_corr_<what>_z", "its Fisher z; beyond +-3 it is not chance"),
    ),
)
def group_correlations(view: StepView) -> Values:
    """Pooled within-group correlation of the reward; a quantity must be known for every rollout."""
    sampled = view.floats("n_sampled")
    with np.errstate(invalid="ignore", divide="ignore"):
        thinking_share = view.floats("n_thinking") / sampled
    quantities = {
        "length": sampled,
        "turns": view.floats("n_turns"),
        "tool_calls": view.floats("n_tool_calls"),
        "thinking_share": thinking_share,
    }
    result = {}
    for name, values in quantities.items():
        if name in ("tool_calls", "thinking_share") and not np.isfinite(values).all():
            continue
        found = pooled_correlation(view, values)
        if found is not None:
            result[f"group/reward_corr_{name}"], result[f"group/reward_corr_{name}_z"] = found
    return result


@family(
    needs=("success",),
    source="Chen et al. 2021 (pass@k), Yao et al. 2024 (pass^k)",
    keys=(
        Key(
            "group/pass@<k>",
            "chance that at least one of k rollouts succeeds, over groups with k or more known",
        ),
        Key("group/pass^<k>", "chance that all of k rollouts succeed, over groups with k or more known"),
        Key("group/pass_<k>_n", "groups behind pass@k and pass^k, where these are not all that tell"),
    ),
)
def pass_at_k(view: StepView) -> Values:
    """pass@k = 1 - C(n-c, k)/C(n, k), pass^k = C(c, k)/C(n, k), mean over groups with n >= k.

    k = 1, 2, 4, ... and the largest group's size; n rollouts of known success, c successes. Where some group
    is too small for a k, values of different k speak of different groups, and the number of groups is given.
    """
    success = view.floats("success")
    n_known = view.groups.count(np.isfinite(success))
    n_solved = view.groups.count(success == 1)
    n_with_known = int((n_known > 0).sum())
    result = {}
    for k in _ks(int(n_known.max(initial=0))):
        pairs = [(n, c) for n, c in zip(n_known.tolist(), n_solved.tolist(), strict=True) if n >= k]
        at_least_one = sum(1 - math.comb(n - c, k) / math.comb(n, k) for n, c in pairs)
        result[f"group/pass@{k}"] = at_least_one / len(pairs)
        result[f"group/pass^{k}"] = sum(math.comb(c, k) / math.comb(n, k) for n, c in pairs) / len(pairs)
        if len(pairs) < n_with_known:
            result[f"group/pass_{k}_n"] = float(len(pairs))
    return result


@family(
    needs=("group_scalars",),
    source="MaxEnt-GRPO",
    keys=(Key("group/<name>/{mean,std,min,max}", "one of the caller's own values of a group"),),
)
def group_scalars(view: StepView) -> Values:
    """mean, population std, min and max over groups of what the caller gives as `group_scalars`."""
    result: Values = {}
    for name, part in key_parts(view.group_scalars).items():
        result |= describe(f"group/{part}", np.asarray(view.group_scalars[name], np.float64))
    return result


def _ks(largest: int) -> list[int]:
    powers = [2**i for i in range(largest.bit_length()) if 2**i <= largest]
    return powers if not powers or powers[-1] == largest else [*powers, largest]
