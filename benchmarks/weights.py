"""Whether the weights of random rows speak for the whole step: `python -m benchmarks.weights`.

Steps of 64 rows that come in 1, 5 and 19 calls, a cap of 16 and the portfolio, with memory for all tokens and for
half of them. The weights of the rows chosen at random (one over their stated probability) must add up to 64 in
expectation, and every row must weigh 1 on average.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter

import numpy as np

from rollout_traces.steps.judge import choose_rows
from rollout_traces.steps.run_state import StepOptions, StoredStep

N_ROWS, CAP = 64, 16
MEMORY = {"all": 10**9, "half": 900}
"""Tokens that may be held."""


def main() -> None:
    """Prints a line for each number of calls and memory."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=500, help="simulated steps of each case")
    n_steps = parser.parse_args().steps
    print(
        f"{n_steps} steps of {N_ROWS} rows, cap {CAP}: sum of weights, expected {N_ROWS}; weight a row, expected 1"
    )
    for memory, max_tokens in MEMORY.items():
        for n_calls in (1, 5, 19):
            print(line(memory, max_tokens, n_calls, n_steps), flush=True)


def line(memory: str, max_tokens: int, n_calls: int, n_steps: int) -> str:
    """One case, as text."""
    from tests.steps.test_open_step import calls, open_step

    started = time.process_time()
    sums, weights = np.zeros(n_steps), np.zeros((n_steps, N_ROWS))
    kept = np.zeros(n_steps)
    options = StepOptions(max_rollout_traces_per_step=CAP, seed=7)
    for number in range(n_steps):
        step = open_step(number, max_tokens, seed=7)
        for batch in calls(N_ROWS, n_calls, np.random.default_rng(number), number):
            step.add(batch)
        closed = step.closed()
        kept[number] = closed.batch.has_tokens.mean()
        for item in choose_rows(closed, closed.rows, options, StoredStep(), {}, Counter()):
            if item.selected_by == "random":
                weights[number, item.row] = 1 / item.probability
        sums[number] = weights[number].sum()
    rows = weights.mean(0)
    error = weights.std(0) / np.sqrt(n_steps)
    z = (rows - 1) / np.maximum(error, 1e-12)
    return (
        f"  memory for {memory}, {n_calls:2} calls: {sums.mean():7.3f} +- {sums.std() / np.sqrt(n_steps):.3f}; "
        f"a row {rows.min():.2f} to {rows.max():.2f}, z of rows: std {z.std():.2f}, largest {np.abs(z).max():.2f}; "
        f"{100 * kept.mean():.0f} % of rows kept their tokens; {time.process_time() - started:.0f} s of processor time"
    )


if __name__ == "__main__":
    main()
