"""Changes of what belongs to a prompt: ground truths, wordings, system prompts, tools; evaluation prompts in training."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from rollout_traces.analysis.diagnosis import Diagnosis
from rollout_traces.analysis.kept_texts import EVERY_KEPT, KeptTexts, read_texts
from rollout_traces.analysis.relations import current
from rollout_traces.analysis.run_rows import ROUNDING
from rollout_traces.analysis.selections import RunScope, Selection
from rollout_traces.analysis.slow_change import PLAIN_CHANCE

FEWEST = 3
"""Prompts that change, below which nothing is said."""
TOGETHER = 0.8
"""Of all changes so many have to fit one step: what changes at every visit belongs to no prompt."""
WHAT = {
    "ground_truth": (
        "the ground truth",
        "Compare the expected answers before and after: a data set may have been relabelled or misread.",
    ),
    "prompt": ("the wording", "Compare two rollouts of one of these prompts, before and after."),
    "system": ("the system prompt", "Compare two rollouts of one of these prompts, before and after."),
    "tools": ("the tools", "Compare the tool schemas before and after."),
}
"""Text of a rollout -> what it is called, and what to do."""


def prompt_entries(run: RunScope) -> list[Diagnosis]:
    """Entries of what changed for prompts: by key of all rollouts, by text of those kept at random."""
    if not run.columns.has("prompt_key"):
        return []
    replaced = list(_evaluations_replaced(run))
    texts = read_texts(run.relations, run.columns, Selection(run.run, run.split))
    found = replaced + list(_evaluated_in_training(run, texts))
    if texts is not None:
        found += [entry for name in WHAT if (entry := changed(texts, name)) is not None]
    return found


def changed(texts: KeptTexts, name: str) -> Diagnosis | None:
    """The entry of a text that changed for several prompts at one step.

    Args:
        texts: kept rollouts.
        name: `ground_truth`, `prompt`, `system` or `tools`.
    """
    seen: dict[str, tuple[int, str]] = {}
    spans: list[tuple[int, int]] = []
    visits: dict[str, list[int]] = {}
    for i in np.argsort(texts.step, kind="stable").tolist():
        key, text, step = texts.prompt_key[i], texts.texts[name][i], int(texts.step[i])
        if key is None or text is None:
            continue
        visits.setdefault(key, []).append(step)
        if key in seen and seen[key][1] != text:
            spans.append((seen[key][0], step))
        seen[key] = step, text
    if len(spans) < FEWEST:
        return None
    # a change lies after the last visit with the old text, and at the first with the new one at the latest
    steps = sorted({step for _, step in spans})
    fits = [sum(old < step <= new for old, new in spans) for step in steps]
    at = int(np.argmax(fits))
    step, n = steps[at], fits[at]
    if n < max(FEWEST, TOGETHER * len(spans)):
        return None
    earliest = max(old for old, new in spans if old < step <= new) + 1
    both = sum(visits[key][0] < step <= visits[key][-1] for key in visits)
    what, advice = WHAT[name]
    sentence = f"{what} of {n} prompts changed at step {step}, of {both} that were asked before and after it."
    onset = (min(earliest, step), step)
    return Diagnosis("warn", sentence, advice, 0, (), None, "level", onset, step, name=f"{name} changed")


def _evaluated_in_training(run: RunScope, texts: KeptTexts | None) -> Iterator[Diagnosis]:
    """Evaluation prompts that training asks: by their text, or, of all rollouts, by their key."""
    for split in _evaluation_splits(run):
        known = [_by_key(run, split), None if texts is None else _by_text(run, split, texts)]
        seen = max((each for each in known if each), default=None)
        if seen is None:
            continue
        n, of, first, earliest = seen
        sentence = f"{n} {split} prompt{'s are' if n > 1 else ' is'} in training since step {first}, of {of} that are known."
        advice = "Remove them from training, or read the evaluation's scores without them."
        yield Diagnosis(
            "warn",
            sentence,
            advice,
            0,
            (),
            (),
            "level",
            (earliest, first),
            first,
            name="evaluation prompts in training",
        )


def _by_text(run: RunScope, split: str, texts: KeptTexts) -> tuple[int, int, int, int] | None:
    """How many prompts of an evaluation training asks, by their text; of how many, since when, and when it could first have."""
    which = Selection(run.run, split)  # a prompt's text is the same however its rollouts were chosen
    held_out = read_texts(run.relations, run.columns, which, condition=EVERY_KEPT)
    if held_out is None:
        return None
    known = {_plain(text) for text in held_out.texts["prompt"].tolist() if text}
    mine = np.asarray([bool(text) and _plain(text) in known for text in texts.texts["prompt"].tolist()])
    n = len({_plain(text) for text in texts.texts["prompt"][mine].tolist()})
    return (n, len(known), int(texts.step[mine].min()), int(texts.step.min())) if n else None


def _by_key(run: RunScope, split: str) -> tuple[int, int, int, int] | None:
    """The same by key, where training asks none of them until a step by which it would have by chance: keys that count the rows of two files meet from the start."""
    query = f"""
        with asked as (select distinct prompt_key from rollouts where run = ? and split = ? and prompt_key is not null),
        first_asked as (select prompt_key, min(step) as step from rollouts where {run.scope} and prompt_key is not null group by 1)
        select (select count(*) from asked) as n_known, count(*) as n, min(step) as first,
            (select min(step) from first_asked) as earliest, (select max(step) from first_asked) as latest
        from first_asked semi join asked using (prompt_key)"""
    [row] = run.relations.sql(query, [run.run, split, *run.params]).to_pylist()
    if row["n"] < FEWEST:
        return None
    before = (row["first"] - row["earliest"]) / max(row["latest"] - row["earliest"], 1)
    by_chance = row["n"] * np.log1p(-min(before, 1 - ROUNDING))
    return (row["n"], row["n_known"], row["first"], row["first"]) if by_chance < PLAIN_CHANCE else None


def _evaluations_replaced(run: RunScope) -> Iterator[Diagnosis]:
    """Evaluations that ask mostly other prompts than the evaluation before, where each asked mostly the same until then."""
    for split in _evaluation_splits(run):
        asked = run.relations.sql(
            f"select step, list(distinct prompt_key) as keys from rollouts where run = ? and split = ? "
            f"and prompt_key is not null and {current(run.columns)} group by step order by step",
            [run.run, split],
        ).to_pylist()
        before: list[set[str]] = []
        for at, row in enumerate(asked):
            keys = set(row["keys"])
            kept = len(keys & before[-1]) / len(keys) if before else 1.0
            usual = all(len(b & a) >= TOGETHER * len(b) for a, b in pairwise(before))
            if kept <= 1 - TOGETHER and usual and len(before) > 1 and len(keys) >= FEWEST:
                step, last = int(row["step"]), int(asked[at - 1]["step"])
                sentence = f"{split} asks other prompts since step {step}: {len(keys - before[-1])} of {len(keys)} were not asked at step {last}."
                advice = "Its scores before and after cannot be compared: compare the data files."
                yield Diagnosis(
                    "warn",
                    sentence,
                    advice,
                    0,
                    (),
                    (),
                    "level",
                    (last + 1, step),
                    step,
                    name="evaluation prompts replaced",
                )
                before = []
            before.append(keys)


def _evaluation_splits(run: RunScope) -> list[str]:
    """The evaluations of a run; none for an evaluation itself."""
    found = run.relations.sql(
        f"select distinct split from rollouts where run = ? and split like 'eval%' and {current(run.columns)} order by 1",
        [run.run],
    )
    splits = [str(split) for split in found.column("split").to_pylist()]
    return [] if run.split in splits else splits


def _plain(text: str) -> str:
    return " ".join(text.split())
