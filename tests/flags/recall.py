"""Recall of every flag on planted faults, and its false positives, with three real tokenizers.

    python -m tests.flags.recall [--trials 24]

Each fault is planted in another conversation of the data folder at each trial, in a step of 16 rollouts. One line a
flag: of how many trials the planted rows all carried it, with each tokenizer, and how many other rollouts did that
had not carried it before. The last lines add up.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from rollout_traces.decode import TranscriptDecoder
from rollout_traces.flags import REGISTRY
from tests.decode.real_tokenizers import load_tokenizer
from tests.flags.planted import GROUP, ROW, faults_for, try_fault
from tests.flags.steps import Step, desk_conversations, find_flags, healthy_step

TOKENIZERS = ("qwen2_5", "qwen3", "llama3_2")
GROUPS = 4


@dataclass
class Tally:
    """What came of the trials of one flag.

    Attributes:
        n: trials.
        n_found: in which the planted rows all carried the flag.
        n_right: in which the flag's range was right as well.
        n_false: other rows that carried it and had not before.
        n_others: other rows that were looked at.
    """

    n: int = 0
    n_found: int = 0
    n_right: int = 0
    n_false: int = 0
    n_others: int = 0

    @property
    def recall(self) -> float:
        """Share of the trials in which it was found."""
        return self.n_found / self.n


def steps_of(whole: Step, n: int) -> Iterator[Step]:
    """Steps of 16 rows in which row `ROW` is of another task each time, and another rollout of it."""
    size = len(GROUP)
    n_tasks = len(whole.rows) // size
    for trial in range(n):
        tasks = [(trial + offset) % n_tasks for offset in (1, 0, 2, 3)][:GROUPS]
        rows = []
        for task in tasks:
            members = whole.rows[task * size : (task + 1) * size]
            turn = (trial // n_tasks + trial) % size
            rows += members[turn:] + members[:turn]
        yield Step(whole.tokenizer, rows, size, whole.origin).copy()


def recall_of(tokenizer: Any, n_trials: int, flags: Sequence[str] = ()) -> dict[str, Tally]:
    """The tally of each flag.

    Args:
        tokenizer: what the conversations are written in.
        n_trials: trials of each fault.
        flags: those to look at; all when empty.
    """
    decoder = TranscriptDecoder(tokenizer)
    faults = [fault for fault in faults_for(tokenizer) if not flags or fault.flag in flags]
    parameters = {name: value for fault in faults for name, value in fault.parameters.items()}
    whole = healthy_step(tokenizer, desk_conversations(), "desk")
    tallies: dict[str, Tally] = {}
    for step in steps_of(whole, n_trials):
        before = find_flags(step.batch(), decoder, tokenizer, parameters=parameters)
        for fault in faults:
            carrying = {row for row in before.flags if before.named(fault.flag, row)}
            rows = None if REGISTRY[fault.flag].row is None else range(ROW - 2, ROW + 3)
            outcome = try_fault(fault, step, decoder, carrying, rows)
            tally = tallies.setdefault(fault.flag, Tally())
            tally.n += 1
            tally.n_found += outcome.found
            tally.n_right += outcome.range_right
            tally.n_false += outcome.elsewhere
            tally.n_others += outcome.others
    return tallies


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--trials", type=int, default=24)
    options = parser.parse_args(arguments)
    found = {name: recall_of(load_tokenizer(name), options.trials) for name in TOKENIZERS}
    flags = dict.fromkeys(flag for tallies in found.values() for flag in tallies)
    print(f"{'flag':24}" + "".join(f"{name:>24}" for name in TOKENIZERS) + f"{'false':>16}")
    for flag in flags:
        of_flag = [found[name].get(flag) for name in TOKENIZERS]
        cells = [f"{t.n_found}/{t.n} {t.recall:.1%}" if t else "not detectable" for t in of_flag]
        known = [tally for tally in of_flag if tally]
        false = f"{sum(t.n_false for t in known)}/{sum(t.n_others for t in known)}"
        print(f"{flag:24}" + "".join(f"{cell:>24}" for cell in cells) + f"{false:>16}")
    every = [tally for tallies in found.values() for tally in tallies.values()]
    print(
        f"{sum(t.n for t in every)} trials, {sum(t.n_found for t in every)} found, "
        f"{sum(t.n_right for t in every)} with the right range, {sum(t.n_false for t in every)} false of "
        f"{sum(t.n_others for t in every)} other rollouts; least recall {min(t.recall for t in every):.1%}"
    )


if __name__ == "__main__":
    main()
