"""Rewards, their components, successes and advantages."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from rollout_traces.ledger.groups import equal_ends
from rollout_traces.ledger.tokens import pick
from rollout_traces.metrics.registry import (
    QUANTILES,
    SPREAD,
    Key,
    describe,
    family,
    finite_of,
    key_parts,
    known,
    mean_of,
    renamed,
)
from rollout_traces.metrics.view import StepView, Values

REPRODUCED = 1e-4
"""Largest difference from the reward, relative to the largest one, with which weights reproduce it."""
_ALL = (*SPREAD, *(f"p{q:02d}" for q in QUANTILES))


@family(
    needs=("reward",),
    source="MaxEnt-GRPO, Telescope",
    keys=(
        Key("reward/{mean,std,min,max,p50}", "over rollouts whose reward function succeeded", default=True),
        Key("reward/{p00,p05,p25,p75,p95,p100}", "quantiles, linear interpolation at q(n - 1)"),
        Key("reward_nonfinite", "rewards given as NaN or infinite; absent when there are none", default=True),
    ),
)
def reward(view: StepView) -> Values:
    """mean, population std, min, max and quantiles of R over rows whose reward status is ok."""
    rewards = view.floats("reward")
    return describe("reward", rewards[~view.reward_failed & view.given("row_floats/rewards", rewards)], _ALL)


@family(
    needs=("reward_status",),
    keys=(Key("reward/failed_share", "rollouts whose reward function timed out or raised", default=True),),
)
def reward_failed(view: StepView) -> Values:
    """rows with a reward_status other than ok / rows; a status that is not given is ok."""
    return mean_of("reward/failed_share", view.reward_failed)


@family(
    needs=("component",),
    source="MaxEnt-GRPO",
    keys=(
        Key("reward/<component>/mean", "mean of one reward component", default=True),
        Key("reward/<component>/{std,min,max,p00,p05,p25,p50,p75,p95,p100}", "its spread and quantiles"),
        Key("reward/<component>_nonfinite", "values of it that are NaN or infinite"),
    ),
)
def reward_components(view: StepView) -> Values:
    """mean, population std, min, max and quantiles of each component."""
    result: Values = {}
    components = view.named("component")
    parts = key_parts(components)
    for name, values in components.items():
        given = ~view.reward_failed & view.given(f"reward_components/{name}", values)
        result |= describe(f"reward/{parts[name]}", values[given], _ALL)
    return result


@family(
    needs=("component", "reward"),
    source="practice, in place of MaxEnt-GRPO's ratio of means",
    keys=(Key("reward/<component>/share", "its part in the within-group variance of the reward", True),),
)
def reward_component_share(view: StepView) -> Values:
    """sum over groups of cov(w_c c, R) / sum over groups of var(R), which add up to 1 for R = sum w_c c.

    w_c is `component_weights[c]`, where the run declares them; a component without a declared weight has no
    share. Where none is declared, the weights are those with which the components reproduce the step's rewards,
    if there are such weights and no others do; else nothing is given. Rows where R or any component is not
    finite are left out, and so are groups whose rewards are all equal; nothing is given when no group's vary.
    """
    components = view.named("component")
    usable = np.isfinite(view.rewards) & np.all([np.isfinite(v) for v in components.values()], axis=0)
    weights = component_weights(view, components, usable) if usable.any() else {}
    rewards = np.where(usable, view.rewards, np.nan)
    alike = equal_ends(view.groups.min(rewards), view.groups.max(rewards))[view.groups.codes]
    usable &= ~alike
    total = view.groups.centred(np.where(usable, view.rewards, np.nan))
    variance = np.nansum(view.groups.mean(total**2))
    if not variance > 0:
        return {}
    parts = key_parts(components)
    result: Values = {}
    for name, weight in weights.items():
        part = view.groups.centred(np.where(usable, weight * components[name], np.nan))
        result |= known(f"reward/{parts[name]}/share", np.nansum(view.groups.mean(part * total)) / variance)
    return result


def component_weights(view: StepView, components: Mapping[str, np.ndarray], usable: np.ndarray) -> Values:
    """The weight of each component in the reward: declared, else found; empty when neither is known.

    Weights are found by least squares, with an intercept. They count when they reproduce every reward, and
    when the rows determine them: more rows than unknowns, and no component that is a combination of the others.

    Args:
        components: name -> float64 [B].
        usable: bool [B]; rows where all of them and the reward are finite.
    """
    declared = view.settings.component_weights
    if declared:
        return {name: float(declared[name]) for name in components if name in declared}
    varying = {name: values for name, values in components.items() if np.ptp(values[usable]) > 0}
    columns = np.stack([*(values[usable] for values in varying.values()), np.ones(usable.sum())], axis=1)
    if len(columns) <= columns.shape[1]:
        return {}
    rewards = view.rewards[usable]
    scale = np.abs(columns).max(axis=0)
    found, _, rank, _ = np.linalg.lstsq(columns / scale, rewards, rcond=1e-8)
    exact = np.abs(columns / scale @ found - rewards).max() <= REPRODUCED * max(1.0, np.abs(rewards).max())
    if not exact or rank < columns.shape[1]:
        return {}
    weights = dict(zip(varying, (found / scale)[:-1].tolist(), strict=True))
    return {name: weights.get(name, 0.0) for name in components}


@family(
    needs=("success",),
    source="AReno, corrected: declared for the run, not reward > 0",
    keys=(Key("success/mean", "rollouts that succeeded, among those where it is known", default=True),),
)
def success(view: StepView) -> Values:
    """mean of the declared success field, or of reward >= the declared threshold."""
    return mean_of("success/mean", view.floats("success"))


@family(needs=("answered",), keys=(Key("format_share", "rollouts with a parsed answer", default=True),))
def format_share(view: StepView) -> Values:
    """rows with a parsed answer / rows where that is known."""
    return mean_of("format_share", view.floats("answered"))


@family(
    reads="tokens",
    needs=("advantages",),
    source="AReno, Telescope",
    keys=(
        Key("advantage/{mean,std}", "over loss tokens: long rollouts weigh more", default=True),
        Key("advantage/{min,max}", "over loss tokens"),
        Key("advantage_nonfinite", "loss tokens whose advantage is NaN or infinite", default=True),
    ),
)
def advantage(view: StepView) -> Values:
    """mean, population std, min and max of A over the loss tokens of rows that came with advantages."""
    return describe("advantage", pick(view.loss_advantages, view.in_loss.advantage_given))


@family(
    needs=("advantage",),
    source="AReno, Telescope",
    keys=(Key("advantage/row_{mean,std,min,max}", "every rollout weighs the same"),),
)
def advantage_rows(view: StepView) -> Values:
    """mean, population std, min and max over rows of the row's mean advantage."""
    return renamed(describe("row", view.known("advantage")), "row/", "advantage/row_")


@family(
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
def solved_groups(view: StepView) -> Values:
    """groups / groups of two or more whose successes are all known."""
    success, groups = view.floats("success"), view.groups
    known_groups = (groups.sizes >= 2) & groups.all(np.isfinite(success))
    solved, sizes = groups.count(success == 1)[known_groups], groups.sizes[known_groups]
    parts = {"none": solved == 0, "all": solved == sizes, "partial": (solved > 0) & (solved < sizes)}
    return {
        k: n for name, held in parts.items() for k, n in mean_of(f"group/solve_{name}_share", held).items()
    }


@family(
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
def reward_standard_error(view: StepView) -> Values:
    """sqrt(K/(K - 1) sum over groups of (sum of x - mean)^2) / n over n rows in K groups; two groups or more."""
    return standard_error("reward", view, view.rewards)


@family(
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
def success_standard_error(view: StepView) -> Values:
    """As `reward/standard_error`, of the known successes."""
    return standard_error("success", view, view.floats("success"))


def standard_error(name: str, view: StepView, values: np.ndarray) -> Values:
    """Standard error of the mean of the finite values [B], which are not independent inside a group.

    Groups without a finite value do not count; nothing with fewer than two groups.
    """
    usable = np.isfinite(values)
    K = int((view.groups.count(usable) > 0).sum())
    if K < 2:
        return {}
    off = values - values[usable].mean()
    squares = float(np.sum(view.groups.sum(off) ** 2))
    return {f"{name}/standard_error": math.sqrt(K / (K - 1) * squares) / int(usable.sum())}


@family(
    needs=("answer", "success"),
    source="self-consistency (Wang et al. 2023)",
    keys=(Key("group/maj@all", "chance that the commonest answer of a group is right, mean over groups"),),
)
def majority_vote(view: StepView) -> Values:
    """Over groups with two or more parsed answers of known success.

    An answer is right in the share of its rollouts that succeeded; among equally common answers each is as
    likely. Answers are compared as texts of 200 characters.
    """
    answers, success = view.ledger.get("answer").tolist(), view.floats("success")
    found = []
    for rows in view.groups.rows():
        votes: dict[str, list[float]] = {}
        for row in rows.tolist():
            if answers[row] is not None and math.isfinite(success[row]):
                votes.setdefault(answers[row], []).append(success[row])
        if sum(map(len, votes.values())) >= 2:
            most = max(map(len, votes.values()))
            found.append(np.mean([np.mean(each) for each in votes.values() if len(each) == most]))
    return mean_of("group/maj@all", np.asarray(found))


@family(
    needs=("success", "n_sampled"),
    keys=(
        Key(
            "tokens/completion_{solved,unsolved}/{mean,p50}",
            "sampled tokens of rollouts that did, did not succeed",
        ),
    ),
)
def length_by_success(view: StepView) -> Values:
    """mean and median of sampled tokens over rows of success 1, and of success 0."""
    success, lengths = view.floats("success"), view.floats("n_sampled")
    result: Values = {}
    for name, value in (("solved", 1), ("unsolved", 0)):
        mine = finite_of(lengths[success == value])[0]
        result |= describe(f"tokens/completion_{name}", mine, ("mean", "p50"))
    return result
