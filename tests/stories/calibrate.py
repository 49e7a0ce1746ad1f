"""Prints how the analysis does on stories: `python -m tests.stories.calibrate --seeds 8`.

Thresholds are tuned on seeds from 1000 on (`--tuning`) and on the causes that are not in `UNTUNED`; what is
reported are the seeds below 1000 and all causes, and the further ones of `more_causes.py`.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from rollout_traces.analysis import Diagnosis, RunReport, Selection, diagnose, explain
from tests.stories import held_out, later_causes, more_causes, unseen_causes
from tests.stories.causes import CAUSES, UNTUNED, Cause, both
from tests.stories.relations import of_story
from tests.stories.world import KINDS, Story, write_run

PAIRS = (
    ("one engine off", "tool breaks"),
    ("mask leak", "reward function failing"),
    ("weights frozen for ten steps", "length penalty switched on"),
)
"""Stories of two causes at once."""
TUNING = 1000


@dataclass(frozen=True)
class Found:
    """How a planted cause was found.

    Attributes:
        rank: its place among the entries, from 1; None where it is not there.
        off: steps between what was said and what was planted; None where none was said.
        report: everything that was said.
    """

    rank: int | None
    off: int | None
    report: RunReport


SERIES_OF = {
    "engine_off": "engine",
    "source_off": "source",
    "group_of_several_prompts": "group/|success|reward|n_prompt",
    "tools_failing": "tool|error_signatures",
    "slower": "timing/",
    "reward_function": "reward",
    "data_mix": "source|n_prompt|group/size|success",
    "duplicate_prompts": "prompt|group/",
    "evaluation_set": "eval",
    "few_rows": "top3_share|update_share|advantage|grad_norm|loss",
    "collapse": "entropy|logprob|distinct",
    "dead_groups": "tie|tied|success|reward|correct",
    "length_bias": "n_sampled",
    "memorised": "success|reward|correct",
    "reward_and_purpose": "judge|eval|reward",
    "weights_not_synchronised": "staleness|mismatch|stale|version",
    "outcome_moved": "n_sampled|success|reward|n_turns",
    "reward_changed": "reward|component",
}
"""What a story calls its cause -> the series, or the columns of its part, in which it shows; where a story has words, these count."""
LATEST = 15
"""Steps before and after a cause within which an entry that names it begins."""


def names_it(entry: Diagnosis, cause: Cause, at: int | None = None) -> bool:
    """Whether an entry speaks of a cause: its series, part and figures hold the cause's words, and it begins then."""
    text = " ".join(
        [
            entry.sentence,
            entry.where,
            *(str(name) for name in entry.series),
            *(f"{c} {v}" for part in (entry.part or (), *entry.also) for c, v in part),
        ]
    )
    words = cause.words or ["|".join(SERIES_OF.get(kind, kind) for kind in cause.said_by)]
    told = all(any(word in text for word in alternatives.split("|")) for alternatives in words)
    return told and (at is None or abs(entry.step - at) <= LATEST)


def look(story: Story, cause: Cause, name: str) -> Found:
    """Where a planted cause stands in what is said of its run."""
    report = diagnose(of_story(story), story.run)
    for rank, entry in enumerate(report.diagnoses, start=1):
        if names_it(entry, cause, None if story.at is None else first_visible(story.at, name)):
            off = None if story.at is None else entry.step - first_visible(story.at, name)
            return Found(rank, off, report)
    return Found(None, None, report)


def first_visible(at: int, name: str) -> int:
    """The first step at which a cause can be seen: an evaluation's at the next evaluation."""
    return -(-at // 10) * 10 if name.startswith("evaluation") else at


def planted(name: str, cause: Cause, seeds: Sequence[int], n_steps: int = 100) -> Iterator[Story]:
    """The runs with one cause, one a seed, of the kinds that it makes sense in."""
    for seed in seeds:
        yield write_run(seed, cause.kinds[seed % len(cause.kinds)], name, cause.changes, n_steps=n_steps)


def table_of_causes(seeds: Sequence[int], causes: Mapping[str, Cause] = CAUSES) -> None:
    first = three = near = total = 0
    print(f"{'cause':42} {'first':>6} {'in 3':>6} {'step':>6}   rank and steps off, by seed")
    for name, cause in causes.items():
        found = [look(story, cause, name) for story in planted(name, cause, seeds)]
        a = sum(f.rank == 1 for f in found)
        b = sum(f.rank is not None and f.rank <= 3 for f in found)
        c = sum(f.off is not None and abs(f.off) <= 2 for f in found)
        first, three, near, total = first + a, three + b, near + c, total + len(found)
        cells = " ".join(
            "-" if f.rank is None else f"{f.rank}/{'?' if f.off is None else format(f.off, '+d')}"
            for f in found
        )
        mark = "*" if name in (*UNTUNED, *more_causes.UNTUNED) else " "
        print(
            f"{name:41}{mark} {a:>4}/{len(found)} {b:>4}/{len(found)} {c:>4}/{len(found)}   {cells}",
            flush=True,
        )
    print(
        f"{'all':42} {first / total:>6.1%} {three / total:>6.1%} {near / total:>6.1%}   of {total}; * never tuned on"
    )


def table_of_pairs(seeds: Sequence[int]) -> None:
    for names in PAIRS:
        hits = []
        for seed in seeds:
            story = write_run(seed, "mixed", " and ".join(names), both(*names))
            entries = diagnose(of_story(story), story.run).diagnoses[:3]
            hits.append(sum(any(names_it(entry, CAUSES[name]) for entry in entries) for name in names))
        print(
            f"two at once: {names[0]} + {names[1]}: both in the first three in {sum(h == 2 for h in hits)} of {len(hits)}"
        )


def table_of_healthy(seeds: Sequence[int]) -> None:
    errors = warnings = runs = 0
    most = 0
    for kind in KINDS:
        for seed in seeds:
            report = diagnose(of_story(write_run(seed, kind)), "run")
            told = [d for d in report.diagnoses if d.severity != "info"]
            n_errors = sum(d.severity == "error" for d in told)
            errors, warnings, runs = errors + n_errors, warnings + len(told) - n_errors, runs + 1
            most = max(most, len(told) - n_errors)
            for d in told:
                print(f"  healthy {kind} {seed}: {d.severity}: {d.sentence}")
    print(
        f"healthy: {runs} runs of 100 steps, {errors} errors, {warnings} warnings, {warnings / runs:.2f} on average, {most} at most"
    )


def table_of_comparisons(n: int, start: int) -> None:
    """Steps of healthy runs, each against the ten before it: how many show anything."""
    shown = 0
    kinds = list(KINDS)
    for at in range(n // 10):
        story = write_run(start + 300 + at, kinds[at % len(kinds)])
        relations = of_story(story)
        for step in np.random.default_rng(start + at).choice(np.arange(15, 100), 10, replace=False).tolist():
            found = explain(relations, Selection("run", "rollout", (step, step)))
            shown += any(finding.is_sure for finding in found.findings)
            for finding in found.findings[:1]:
                print(f"  {kinds[at % len(kinds)]} {step}: {finding.sentence}")
    print(f"comparisons of healthy steps: {shown} of {n} show anything, {shown / n:.1%}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--tuning", action="store_true", help="the seeds that thresholds are tuned on")
    parser.add_argument(
        "--only",
        choices=[
            "causes",
            "pairs",
            "healthy",
            "comparisons",
            "more",
            "held-out",
            "later",
            "unseen",
            "unseen-2",
        ],
    )
    parser.add_argument("--first", type=int, default=700, help="first seed of the held-out and later causes")
    asked = parser.parse_args()
    start = TUNING if asked.tuning else 0
    seeds = range(start, start + asked.seeds)
    began = time.process_time()
    if asked.only in (None, "causes"):
        table_of_causes(seeds)
    if asked.only in (None, "pairs"):
        table_of_pairs(seeds)
    if asked.only in (None, "healthy"):
        table_of_healthy(range(start, start + max(asked.seeds // 2, 1)))
    if asked.only in (None, "comparisons"):
        table_of_comparisons(200, start)
    if asked.only in (None, "more"):
        table_of_causes(range(start + 500, start + 500 + asked.seeds), more_causes.CAUSES)
    if asked.only in (None, "held-out"):
        table_of_causes(range(start + asked.first, start + asked.first + asked.seeds), held_out.CAUSES)
    if asked.only in (None, "later"):
        table_of_causes(range(start + asked.first, start + asked.first + asked.seeds), later_causes.CAUSES)
    if asked.only in (None, "unseen"):
        table_of_causes(range(start + asked.first, start + asked.first + asked.seeds), unseen_causes.FIRST)
    if asked.only in (None, "unseen-2"):
        table_of_causes(range(start + asked.first, start + asked.first + asked.seeds), unseen_causes.SECOND)
    print(f"{time.process_time() - began:.0f} s of processor time")


if __name__ == "__main__":
    main()
