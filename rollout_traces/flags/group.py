"""Flags about a rollout among its group, and in the step."""

from __future__ import annotations

from typing import Annotated

import numpy as np

from rollout_traces.flags.detect import Population, RowFlags
from rollout_traces.flags.registry import make_flag, population_flag
from rollout_traces.ledger.groups import known_rewards
from rollout_traces.metrics.diversity import FIRST_TOKENS, PAIRWISE_ROLLOUTS
from rollout_traces.metrics.groups import noise_amplified, tie_causes
from rollout_traces.metrics.shapes import trajectories
from rollout_traces.metrics.view import StepView
from rollout_traces.model.packed_batch import PackedBatch, hash_ids
from rollout_traces.model.transcript import Flag

_NAMED = 4
"""Equal completions that a sentence names."""


@population_flag(
    meaning="the rollouts of a group answer different prompts, so that they are compared with strangers",
    needs=("group_ids",),
    splits=("rollout",),
)
def group_prompt_mismatch(population: Population) -> RowFlags:
    """Different prompt keys inside a group.

    Where the trainer gives no keys, the tokens before the first sampled one are compared; a prompt that goes on
    where the group's shortest one ends is a later call of the same rollout. Of an episode of several rows the
    first one counts, and rows that left another one do not. An environment whose first message differs from
    rollout to rollout wants `prompt_keys`.
    """
    keys, given = population.ledger.get("prompt_key"), population.batch.row_lists.get("prompt_keys")
    several = [group for group in population.groups if len(set(keys[group])) > 1]
    if not several:
        return
    opening, batch = _opening_rows(population), population.batch
    lengths = batch.prompt_stops - batch.offsets[:-1]
    for group in several:
        named = [row for row in group.tolist() if given is not None and given[row] is not None]
        by_names = len(named) == len(group)
        rows = named if by_names else [row for row in group.tolist() if lengths[row]]
        rows = [row for row in rows if opening[row] and keys[row] is not None]
        different = {keys[row] for row in rows}
        if len(different) < 2 or (not by_names and _all_begin_alike(batch, rows, lengths)):
            continue
        text = f"The {len(rows)} rollouts of the group answer {len(different)} different prompts."
        for row in rows:
            yield row, make_flag("group_prompt_mismatch", text)


@population_flag(
    meaning="all rewards of the group are equal, so that it teaches nothing",
    needs=("rewards", "group_ids"),
    splits=("rollout",),
    of_group=True,
    given="reward",
)
def tied_group(population: Population) -> RowFlags:
    """Groups that the metric `group/tie_share` counts, with the first cause that holds."""
    view = _view(population).episodes
    causes = tie_causes(view)
    for code, rows in enumerate(view.groups.rows()):
        if causes[code] is not None:
            text = _tie_text(rows, view.rewards[rows], str(causes[code]))
            yield from _on_the_group(population, view, rows, make_flag("tied_group", text))


@population_flag(
    meaning="the group's rewards differ by less than 1% of the reward range, which normalisation blows up",
    needs=("rewards", "group_ids"),
    splits=("rollout",),
    of_group=True,
    given="reward",
)
def noise_amplified_group(population: Population) -> RowFlags:
    """Groups that the metric `group/noise_amplified_share` counts: 0 < std < 1 % of the reward range.

    The range is the declared one, else what the step spans.
    """
    view = _view(population).episodes
    low, high = view.reward_span
    noisy = noise_amplified(view, view.groups)
    for code, rows in enumerate(view.groups.rows()):
        if not noisy[code]:
            continue
        rewards = view.rewards[rows][np.isfinite(view.rewards[rows])]
        std = float(rewards.std())
        largest = float(np.abs(rewards - rewards.mean()).max() / std)
        text = (
            f"The group's rewards have std {std:.3g}, {std / (high - low):.2%} of the range {low:.4g} to "
            f"{high:.4g}; divided by it the largest advantage is {largest:.1f}."
        )
        yield from _on_the_group(population, view, rows, make_flag("noise_amplified_group", text))


@population_flag(
    severity="info",
    meaning="a reward lies far from its group's median (continuous rewards, groups of 8 or more)",
    needs=("rewards", "group_ids"),
    given="reward",
)
def reward_outlier(
    population: Population,
    *,
    deviations: Annotated[float, "median absolute deviations from the median"] = 5.0,
    min_rollouts: Annotated[int, "rollouts that a group needs"] = 8,
) -> RowFlags:
    """|reward - median| > 5 x median |reward - median|; rewards are continuous when over half are different."""
    rewards_B = known_rewards(population.ledger)
    for group in population.groups:
        rows = group[np.isfinite(rewards_B[group])]
        if len(rows) < min_rollouts:
            continue
        rewards = rewards_B[rows]
        distances = np.abs(rewards - np.median(rewards))
        mad = float(np.median(distances))
        if 2 * len(np.unique(rewards)) <= len(rows) or mad <= 0:
            continue
        for index in np.flatnonzero(distances > deviations * mad).tolist():
            text = (
                f"Reward {rewards[index]:.4g} lies {distances[index] / mad:.1f} median absolute deviations from "
                f"its group's median {np.median(rewards):.4g}."
            )
            yield rows[index], make_flag("reward_outlier", text)


@population_flag(
    meaning="completions of the group are equal or nearly so", needs=("tokens", "group_ids"), of_group=True
)
def duplicate_completions(
    population: Population,
    *,
    distance: Annotated[float, "Jaccard distance of token bigrams that counts as nearly equal"] = 0.05,
    min_tokens: Annotated[int, "sampled tokens below which a completion is too short to tell"] = 16,
    tokens: Annotated[int, "first sampled tokens that are compared"] = FIRST_TOKENS,
) -> RowFlags:
    """Jaccard distance 1 - |A and B| / |A or B| of the sets of token bigrams of the first 512 sampled tokens.

    Bigrams, because small vocabularies (digits, moves) share their token sets without being equal. In groups
    of more than 64 only equal completions are looked for beyond the first 64.
    """
    sampled = population.sampled
    counts, starts = sampled.segments.counts, sampled.segments.starts
    samples = population.ledger.get("sample")
    for group in population.groups:
        rows = group[counts[group] >= min_tokens]
        if len(rows) < 2:
            continue
        positions = [sampled.positions[starts[row] : starts[row] + counts[row]] for row in rows.tolist()]
        written = [population.batch.input_ids[at] for at in positions]
        _, codes = np.unique([hash_ids(ids) for ids in written], return_inverse=True)
        equal = codes[:, None] == codes[None, :]
        near = equal.copy()
        heads = [ids[:tokens] for ids in written[:PAIRWISE_ROLLOUTS]]
        near[: len(heads), : len(heads)] |= _bigram_distances(heads) < distance
        np.fill_diagonal(near, False)
        for index in np.flatnonzero(near.any(axis=1)).tolist():
            twins = rows[near[index]]
            how = "equal" if equal[index][near[index]].all() else "nearly equal"
            names = ", ".join(map(str, samples[twins[:_NAMED]].tolist())) + (
                ", …" if len(twins) > _NAMED else ""
            )
            text = (
                f"The completion is {how} to {len(twins)} of the {len(group) - 1} others of its group "
                f"(samples {names})."
            )
            yield rows[index], make_flag("duplicate_completions", text)


@population_flag(
    meaning="one row carries far more than its part of the step's update",
    needs=("advantages", "prox_logprobs or logprobs"),
    splits=("rollout",),
    given="advantage",
)
def dominates_update(
    population: Population,
    *,
    share: Annotated[float, "of the update, above which it fires"] = 0.1,
    times: Annotated[float, "its equal part that a row must carry as well"] = 5.0,
) -> RowFlags:
    """update_share > 0.1, and more than five times what each trained row would carry if all carried the same."""
    shares = population.ledger.get("update_share")
    n = int((np.isfinite(shares) & (population.ledger.get("trained") == 1)).sum())
    for row in np.flatnonzero(shares > max(share, times / max(n, 1))).tolist():
        text = f"The row carries {shares[row]:.1%} of the update of {n} trained rollouts."
        yield row, make_flag("dominates_update", text)


def _view(population: Population) -> StepView:
    return StepView(
        population.ledger, population.batch, population.settings, not_given=population.batch.not_given
    )


def _on_the_group(population: Population, view: StepView, rows: np.ndarray, flag: Flag) -> RowFlags:
    """A group's flag on all of its rows, of which `rows` of the view stand for one episode each."""
    group = view.ledger.get("group")[rows[0]]
    for row in np.flatnonzero(population.ledger.get("group") == group).tolist():
        yield row, flag


def _opening_rows(population: Population) -> list[bool]:
    """Marks the rows that open their rollout: the first of its episode or trajectory, and no branch of another row."""
    ledger, batch = population.ledger, population.batch
    parents, episodes, groups = (ledger.get(name).tolist() for name in ("parent", "episode", "group"))
    later = {row for rows in trajectories(batch, ledger.get("group")) for row in rows[1:]}
    seen: set[tuple[int, str]] = set()
    opening = []
    for row, (parent, episode, group) in enumerate(zip(parents, episodes, groups, strict=True)):
        again = episode is not None and (group, episode) in seen
        opening.append(parent is None and not again and row not in later)
        if episode is not None:
            seen.add((group, episode))
    return opening


def _all_begin_alike(batch: PackedBatch, rows: list[int], lengths: np.ndarray) -> bool:
    """Tells whether every row begins with the shortest prompt among them; prompts have `lengths` [B] tokens."""
    shortest = min(rows, key=lambda row: int(lengths[row]))
    n = int(lengths[shortest])
    prompt = batch.input_ids[batch.row(shortest)][:n]
    return all(np.array_equal(batch.input_ids[batch.row(row)][:n], prompt) for row in rows)


def _tie_text(rows: np.ndarray, rewards: np.ndarray, cause: str) -> str:
    """Says what a tied group has in common; rewards are NaN where the reward function failed."""
    known = rewards[np.isfinite(rewards)]
    common = "" if cause == "other" else f", {cause.replace('_', ' ')}"
    if not len(known):
        return f"The reward of all {len(rows)} rollouts of the group failed."
    failed = len(rewards) - len(known)
    if not failed:
        return f"All {len(rows)} rollouts of the group have reward {known[0]:.4g}{common}."
    return (
        f"The {len(known)} of {len(rows)} rollouts of the group whose reward did not fail all have reward "
        f"{known[0]:.4g}{common}."
    )


def _bigram_distances(heads: list[np.ndarray]) -> np.ndarray:
    """Jaccard distances [R, R] between the bigram sets of R token sequences of two tokens or more."""
    keys = [np.unique((head[:-1].astype(np.int64) << 32) | head[1:]) for head in heads]
    _, codes = np.unique(np.concatenate(keys), return_inverse=True)
    sets = np.zeros((len(heads), int(codes.max()) + 1), np.float32)
    sets[np.repeat(np.arange(len(heads)), [len(key) for key in keys]), codes.reshape(-1)] = 1
    both = sets @ sets.T
    sizes = np.diag(both)
    return 1 - both / (sizes[:, None] + sizes[None, :] - both)
