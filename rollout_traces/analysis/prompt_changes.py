"""Changes of what belongs to a prompt: its length, ground truths, wordings, system prompts, tools; evaluation prompts in training."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np

from rollout_traces.analysis.curves import Part, SeriesName
from rollout_traces.analysis.diagnosis import Diagnosis
from rollout_traces.analysis.in_words import number, part_filter, part_text, steps_filter
from rollout_traces.analysis.kept_texts import EVERY_KEPT, KeptTexts, read_texts
from rollout_traces.analysis.relations import as_arrays, current
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
    """Entries of what changed for prompts: by key and length of all rollouts, by text of those kept at random."""
    if not run.columns.has("prompt_key"):
        return []
    evaluations = _evaluation_splits(run)
    texts = read_texts(run.relations, run.columns, Selection(run.run, run.split))
    found = [*_evaluations_replaced(run, evaluations), *_evaluated_in_training(run, evaluations, texts)]
    read = [changed(texts, name) for name in WHAT] if texts is not None else []
    of_texts = [each for each in read if each is not None]
    longer = _lengths_changed(run, evaluations) if run.columns.has("n_prompt") else None
    if longer is not None and not any(_meet(longer, other) for other in of_texts):
        of_texts.append(longer)
    return found + of_texts


def _meet(one: Diagnosis, other: Diagnosis) -> bool:
    return one.onset[0] <= other.onset[1] and other.onset[0] <= one.onset[1]


def changed(texts: KeptTexts, name: str) -> Diagnosis | None:
    """The entry of a text that changed for several prompts at one step.

    Args:
        texts: kept rollouts.
        name: `ground_truth`, `prompt`, `system` or `tools`.
    """
    found = _changed_at(texts.prompt_key, texts.step, texts.texts[name])
    what, advice = WHAT[name]
    if found is None:
        return None
    return _entry(name, f"{what} of {len(found.keys)} prompts changed", advice, found)


def _lengths_changed(run: RunScope, evaluations: Sequence[str]) -> Diagnosis | None:
    """The entry of prompts that have another number of tokens from a step on, of all rollouts; those of an evaluation under those of training."""
    found = [each for split in (run.split, *evaluations) if (each := _length_changed(run, split)) is not None]
    return replace(found[0], consequences=tuple(found[1:])) if found else None


def _length_changed(run: RunScope, split: str) -> Diagnosis | None:
    source = run.columns.expression("source")
    of = RunScope(run.relations, run.run, split, run.columns)
    known = f"from rollouts where {of.scope} and prompt_key is not null"
    other = f"select prompt_key {known} group by 1 having min(n_prompt) < max(n_prompt) limit {FEWEST}"
    if run.relations.sql(other, of.params).num_rows < FEWEST:  # which is usual, and spares all visits
        return None
    rows = as_arrays(
        run.relations.sql(
            f"select prompt_key, step, min(n_prompt) as n, min({source}) as source {known} "
            "group by 1, 2 having min(n_prompt) = max(n_prompt) order by step",
            of.params,
        )
    )
    found = _changed_at(rows["prompt_key"], rows["step"], rows["n"])
    if found is None:
        return None
    n_longer = sum(after > before for before, after in zip(found.before, found.after, strict=True))
    if max(n_longer, len(found.keys) - n_longer) < TOGETHER * len(found.keys):  # as examples drawn anew
        return None
    source_of = dict(zip(rows["prompt_key"].tolist(), rows["source"].tolist(), strict=True))
    sources = {source_of[key] for key in found.keys}
    if 2 * len(found.keys) < sum(source_of[key] in sources for key in found.asked):  # as after one odd step
        return None
    others = {source_of[key] for key in set(found.asked).difference(found.keys)}
    part: Part | None = (
        None if sources & others or sources == {None} or len(sources) > 1 else (("source", str(*sources)),)
    )
    whose = f" on {part_text(part)}" if part else ""
    before, after = (number(float(np.mean(each))) for each in (found.before, found.after))
    what = f"n_prompt of {len(found.keys)} prompts{whose} changed from {before} to {after}"
    advice = "Compare the system prompt, the chat template and the tokenizer before and after."
    entry = _entry("n_prompt", what if split == run.split else f"{split}: {what}", advice, found)
    return replace(
        entry,
        series=(SeriesName("n_prompt" if split == run.split else f"{split}/n_prompt"),),
        part=part,
        where=" and ".join(filter(None, (part_filter(part), steps_filter(found.step, None)))),
    )


@dataclass(frozen=True)
class _Changed:
    """A change of several prompts: their keys, what each had and has, its step, the first that it may be, and the keys of all that were asked before and after it."""

    keys: list[str]
    before: list[Any]
    after: list[Any]
    step: int
    earliest: int
    asked: list[str]


def _changed_at(keys: np.ndarray, steps: np.ndarray, values: np.ndarray) -> _Changed | None:
    """The step at which what belongs to a prompt changed for several of them together; None where it did not.

    Args:
        keys: object [N], prompt keys, None where unknown.
        steps: int [N].
        values: object or number [N], None where unknown.
    """
    seen: dict[str, tuple[int, Any]] = {}
    spans: list[tuple[str, int, int, Any, Any]] = []
    visits: dict[str, list[int]] = {}
    for i in np.argsort(steps, kind="stable").tolist():
        key, value, step = keys[i], values[i], int(steps[i])
        if key is None or value is None:
            continue
        visits.setdefault(key, []).append(step)
        if key in seen and seen[key][1] != value:
            spans.append((key, seen[key][0], step, seen[key][1], value))
        seen[key] = step, value
    if len(spans) < FEWEST:
        return None
    # a change lies after the last visit with the old value, and at the first with the new one at the latest
    among = sorted({step for _, _, step, *_ in spans})
    fits = [sum(old < step <= new for _, old, new, *_ in spans) for step in among]
    at = int(np.argmax(fits))
    step, n = among[at], fits[at]
    if n < max(FEWEST, TOGETHER * len(spans)):
        return None
    those = [each for each in spans if each[1] < step <= each[2]]
    named, olds, _, before, after = map(list, zip(*those, strict=True))
    both = [key for key, at in visits.items() if at[0] < step <= at[-1]]
    return _Changed(named, before, after, step, min(max(olds) + 1, step), both)


def _entry(name: str, what: str, advice: str, found: _Changed) -> Diagnosis:
    sentence = f"{what} at step {found.step}, of {len(found.asked)} that were asked before and after it."
    onset = (found.earliest, found.step)
    return Diagnosis(
        "warn", sentence, advice, 0, (), None, "level", onset, found.step, name=f"{name} changed"
    )


def _evaluated_in_training(
    run: RunScope, evaluations: Sequence[str], texts: KeptTexts | None
) -> Iterator[Diagnosis]:
    """Evaluation prompts that training asks: by their text, or, of all rollouts, by their key."""
    for split in evaluations:
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


def _evaluations_replaced(run: RunScope, evaluations: Sequence[str]) -> Iterator[Diagnosis]:
    """Evaluations that ask mostly other prompts than the evaluation before, where each asked mostly the same until then."""
    for split in evaluations:
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
