"""Which rows were superseded: a run that was resumed from an earlier step threw the weights of later ones away."""

from __future__ import annotations

from collections.abc import Mapping

from rollout_traces.store.columns.schema import literal

TRAINING = "rollout"

First = Mapping[tuple[int, str, str], int]
"""Run's number, split and attempt -> the first step of that split that the attempt wrote."""


def superseded_from(first: First) -> dict[tuple[int, str, str], int]:
    """The step from which an attempt's rows of a split are superseded by a later attempt.

    A later attempt supersedes a split from the first step that it wrote of it, steps that it has not come to
    included: they were sampled by weights that it did not go on from. It supersedes every split but training
    also from the first step that it trained, since what was evaluated behind that belongs to weights that
    were thrown away.

    Args:
        first: the first step of each attempt and split; attempts are texts ordered by time.

    Returns:
        The same keys -> that step; attempts that nothing supersedes are left out.
    """
    found: dict[tuple[int, str, str], int] = {}
    for run, split, attempt in first:
        later = [
            step
            for (other_run, other_split, other), step in first.items()
            if other_run == run and other > attempt and other_split in (split, TRAINING)
        ]
        if later:
            found[(run, split, attempt)] = min(later)
    return found


def superseded_sql(since: First) -> str:
    """SQL that is true of superseded rows and false of all others.

    Args:
        since: what `superseded_from` found.
    """
    cases = [
        f"WHEN run_no = {run} AND split = {literal(split)} AND attempt = {literal(attempt)} THEN step >= {step}"
        for (run, split, attempt), step in since.items()
    ]
    return f"CASE {' '.join(cases)} ELSE false END" if cases else "false"
