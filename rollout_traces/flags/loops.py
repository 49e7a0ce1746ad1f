"""The flag of long and early loops."""

from __future__ import annotations

from typing import Annotated

from rollout_traces.flags.base import Flag, Population
from rollout_traces.flags.registry import make_flag, population_flag
from rollout_traces.metrics.loops import Loop, longest_loops
from rollout_traces.metrics.repetition import FILLED, LONGEST_PERIOD, WINDOW


@population_flag(
    "loop",
    family="text",
    severity="warn",
    meaning="the policy writes the same stretch several times in a row, of any length, anywhere in the rollout",
    needs=("tokens",),
)
def loop(
    population: Population,
    *,
    rounds: Annotated[int, "times that a stretch must be written in a row"] = 3,
    min_tokens: Annotated[int, "tokens that all rounds together must have"] = 192,
) -> dict[int, list[Flag]]:
    """The longest such stretch of a rollout; what `repetition` speaks of, a short period at the end, is not said again."""
    sampled = population.sampled
    starts, counts = sampled.segments.starts, sampled.segments.counts
    found = {}
    for row, seen in longest_loops(sampled, rounds=rounds, min_tokens=min_tokens).items():
        if _is_repetition(seen, int(counts[row])):
            continue
        first = int(starts[row])
        positions = sampled.positions[first + seen.start : first + seen.stop] - int(
            population.batch.offsets[row]
        )
        what = "token" if seen.period == 1 else f"{seen.period} tokens"
        text = (
            f"The same {what} {seen.covered / seen.period:.1f} times in a row, {seen.covered} tokens in all."
        )
        found[row] = [make_flag("loop", text, start=positions[0], stop=positions[-1] + 1)]
    return found


def _is_repetition(seen: Loop, n_sampled: int) -> bool:
    at_the_end = seen.stop - max(seen.start, n_sampled - WINDOW)
    return seen.period <= LONGEST_PERIOD and at_the_end > FILLED * WINDOW
