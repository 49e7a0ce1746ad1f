"""Samples as rows of a data set: chat, preference pairs, scored completions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from rollout_traces.export.training.samples import TrainingOptions, TrainingSample


def sft_rows(
    found: Iterable[TrainingSample], options: TrainingOptions, left_out: Counter[str]
) -> Iterator[dict[str, Any]]:
    """Whole conversations: `messages`, and `tools` where there were any."""
    for sample in found:
        yield {"messages": [*sample.prompt, *sample.completion], **_beside(sample)}


def reward_rows(
    found: Iterable[TrainingSample], options: TrainingOptions, left_out: Counter[str]
) -> Iterator[dict[str, Any]]:
    """Scored completions: `prompt`, `completion`, `reward`; those without a reward are left out."""
    for sample in found:
        if sample.reward is None:
            left_out["no reward"] += 1
            continue
        yield {"prompt": list(sample.prompt), "completion": list(sample.completion), **_beside(sample)}


def dpo_rows(
    found: Iterable[TrainingSample], options: TrainingOptions, left_out: Counter[str]
) -> Iterator[dict[str, Any]]:
    """A pair a group: `prompt`, `chosen`, `rejected`, and the reward of each."""
    groups: dict[tuple[Any, ...], list[TrainingSample]] = {}
    for sample in found:
        if sample.group is None or sample.reward is None:
            left_out["no reward" if sample.group is not None else "no group"] += 1
        else:
            groups.setdefault((*sample.group, sample.key), []).append(sample)
    for members in groups.values():
        pair = best_pair(members, options)
        if pair is None:
            left_out["no pair in its group"] += len(members)
            continue
        chosen, rejected = pair
        left_out["neither best nor worst of its group"] += len(members) - 2
        yield {
            "prompt": list(chosen.prompt),
            "chosen": list(chosen.completion),
            "rejected": list(rejected.completion),
            "score_chosen": chosen.reward,
            "score_rejected": rejected.reward,
            "uid_rejected": rejected.uid,
            **{name: value for name, value in _beside(chosen).items() if name != "reward"},
        }


def best_pair(
    members: list[TrainingSample], options: TrainingOptions
) -> tuple[TrainingSample, TrainingSample] | None:
    """The pair of a group whose rewards are furthest apart among those that margin and lengths allow.

    Args:
        members: samples of one group, all with a reward.
        options: `margin` and `match_length`.

    Returns:
        The better and the worse one; None where no two fit. Of equally good pairs the one nearest in length.
    """

    def fits(a: TrainingSample, b: TrainingSample) -> bool:
        gap = _reward(a) - _reward(b)
        return (
            gap > 0
            and gap >= options.margin
            and a.completion != b.completion
            and (options.match_length is None or _length_gap(a, b) <= options.match_length)
        )

    pairs = [(a, b) for a in members for b in members if fits(a, b)]
    return max(
        pairs, key=lambda pair: (_reward(pair[0]) - _reward(pair[1]), -_length_gap(*pair)), default=None
    )


def _length_gap(a: TrainingSample, b: TrainingSample) -> float:
    return abs(a.n_sampled - b.n_sampled) / max(a.n_sampled, b.n_sampled, 1)


def _reward(sample: TrainingSample) -> float:
    assert sample.reward is not None
    return sample.reward


def _beside(sample: TrainingSample) -> Mapping[str, Any]:
    tools = {"tools": list(sample.tools)} if sample.tools else {}
    return {**tools, "uid": sample.uid, "prompt_key": sample.key, "reward": sample.reward, **sample.about}


ROWS = {"sft": sft_rows, "dpo": dpo_rows, "reward": reward_rows}
