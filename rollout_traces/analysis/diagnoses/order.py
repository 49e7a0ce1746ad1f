"""Diagnoses in causal order: what follows from another is nested under it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rollout_traces.analysis.diagnoses.base import (
    DATA,
    ENVIRONMENT,
    OTHER,
    OUTCOME,
    SAMPLER,
    UPDATE,
    Diagnosis,
)

AT_ONCE = 3
"""A consequence begins at most this many steps before its cause was seen ..."""
FOLLOWS = {SAMPLER: 4, UPDATE: 8, OUTCOME: 20, OTHER: 8, DATA: 3, ENVIRONMENT: 4}
"""... and at most this many after, by its tier: what is learned shows later than what is given."""
FIRST_OF_TIER = {
    "reward_and_purpose": 0,
    "length_bias": 0,
    "memorised": 0,
    "truncation": 1,
    "dead_groups": 2,
    "reward_moved": 4,
    "outcome_moved": 4,
    "new_phrase": 5,
    "slower": 4,
}
"""Inside a tier, what explains stands before what it explains; `USUAL_PLACE` where nothing is said."""
USUAL_PLACE = 3
WORST_FIRST = {"error": 0, "warn": 1, "info": 2}


def in_causal_order(found: Sequence[Diagnosis]) -> list[Diagnosis]:
    """One entry a cause, causes first, consequences nested under them.

    A diagnosis is nested under one of an earlier tier, or a surer one of its own kind, when it begins with it
    (not merely while it lasts: a cause that lasts to the end would hide every later one), and when it does
    not speak of another part of the rollouts.

    Args:
        found: in any order.
    """
    found = [_of_the_update(one, found) for one in found]
    heads: list[Diagnosis] = []
    below: list[list[Diagnosis]] = []
    for one in sorted(found, key=_place):
        under = next((i for i, head in enumerate(heads) if _follows(one, head)), None)
        if under is None:
            heads.append(one)
            below.append([])
        else:
            below[under].append(replace(one, advice=""))
    nested = [replace(head, consequences=tuple(rest)) for head, rest in zip(heads, below, strict=True)]
    return sorted(
        nested,
        key=lambda d: (
            WORST_FIRST[d.severity] == 2,
            d.tier,
            FIRST_OF_TIER.get(d.kind, USUAL_PLACE),
            WORST_FIRST[d.severity],
            d.step or 0,
        ),
    )


def _of_the_update(one: Diagnosis, found: Sequence[Diagnosis]) -> Diagnosis:
    """A mismatch everywhere that begins with a collapse or another gradient comes from the policy, not from engines."""
    if one.kind != "sampler_mismatch" or one.part is not None or one.step is None:
        return one
    causes = ("collapse", "update_moved")
    with_it = any(
        d.kind in causes and d.step is not None and abs(d.step - one.step) <= AT_ONCE for d in found
    )
    return replace(one, tier=OUTCOME) if with_it else one


def _place(d: Diagnosis) -> tuple[bool, int, int, int, float]:
    return (
        d.severity == "info",
        d.tier,
        FIRST_OF_TIER.get(d.kind, USUAL_PLACE),
        WORST_FIRST[d.severity],
        d.figures.get("p", 1e-9),
    )


def _follows(one: Diagnosis, head: Diagnosis) -> bool:
    if one.step is None or head.step is None:
        return False
    if one.tier == ENVIRONMENT and head.kind in ("mask_or_template", "evaluation_set"):
        return False
    if one.tier == head.tier and one.kind != head.kind and not _same_tier(one, head):
        return False
    if _ages_with(one, head):
        return True
    if not head.step - AT_ONCE <= one.step <= head.step + FOLLOWS[one.tier] and not _ends_with(one, head):
        return False
    return not _elsewhere(one, head)


def _ends_with(one: Diagnosis, head: Diagnosis) -> bool:
    """Whether it begins where the cause ended: the way back."""
    return head.last is not None and one.step is not None and abs(one.step - head.last - 1) <= AT_ONCE + 2


def _ages_with(one: Diagnosis, head: Diagnosis) -> bool:
    """Whether it speaks of an engine that got no newer weights: it departs further with every step."""
    if head.kind != "weights_not_synchronised" or head.part is None or one.part != head.part:
        return False
    return one.step is not None and head.step is not None and head.step <= one.step <= (head.last or one.step)


def _same_tier(one: Diagnosis, head: Diagnosis) -> bool:
    """Kinds of one tier that follow from another of it."""
    if head.kind in ("engine_off", "source_off", "weights_not_synchronised"):
        return one.kind in (
            "engines",
            "sampler_mismatch",
            "source_off",
            "engine_off",
            "weights_not_synchronised",
        )
    if head.kind == "group_of_several_prompts":
        return one.kind == "duplicate_prompts"
    if head.kind in ("tools_failing", "reward_function", "reward_changed"):
        return one.kind in ("slower", "reward_changed", "component_constant", "values_moved")
    return one.tier == OUTCOME


def _elsewhere(one: Diagnosis, head: Diagnosis) -> bool:
    """Whether two diagnoses speak of parts that have nothing to do with each other."""
    if one.part is None or head.part is None:
        return one.tier == SAMPLER and head.tier == ENVIRONMENT
    if one.part.column == head.part.column:
        return not set(one.part.values) & set(head.part.values)
    return True
