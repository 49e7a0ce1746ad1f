"""Numbers that should hold whatever the task is, and what it usually means when they do not."""

from __future__ import annotations

from collections.abc import Mapping

RATIO_TOLERANCE = 0.05
NLL_TOLERANCE = 0.1


def identity_checks(scalars: Mapping[str, float], split: str = "rollout") -> list[str]:
    """What the sampler identities of a step say is wrong.

    Args:
        scalars: a step's metrics, the split in front of their keys.
        split: `rollout` or `eval-rollout`.

    Returns:
        One sentence each, with its number and its usual cause; empty when the identities hold.
    """
    found = []
    ratio = scalars.get(f"{split}/identity/mean_ratio")
    if ratio is not None and abs(ratio - 1) > RATIO_TOLERANCE:
        k1 = scalars.get(f"{split}/mismatch/k1")
        cause = "the two engines differ in more than rounding"
        if k1 is not None and k1 < 0:
            cause = "the logged logprobs look scaled by another temperature or top-p than the trainer's"
        found.append(
            f"At staleness 0 the mean of e^(prox - rollout logprob) is {ratio:.3f} and should be 1: {cause}."
        )
    gap = scalars.get(f"{split}/identity/nll_minus_entropy")
    if gap is not None and abs(gap) > NLL_TOLERANCE:
        found.append(
            f"At staleness 0 the mean of -rollout logprob exceeds the mean entropy by {gap:+.3f} nats and should "
            "equal it: the tokens were drawn from another distribution than the one whose entropy was computed."
        )
    return found
