"""Logs a project for the inspector's tests, in a process of its own: the real logger, the real Trackio.

Run as `python -m tests.inspector.make_project --standard`, with TRACKIO_DIR set.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class RunPlan:
    """One run to log.

    Attributes:
        project: Trackio project.
        run: its name.
        first_step: the first step.
        steps: how many.
        groups: groups of eight a step.
        eval_every: steps between evaluations; 0 for none.
        hostile: log another tool's traces with hostile text first.
    repetitive: log another tool's traces of 100,000 repeated signs first.
    agent: log another tool's trace of an agent first: long JSON, a traceback, Arabic.
    """

    project: str = "demo"
    run: str = "run-a"
    first_step: int = 1
    steps: int = 6
    groups: int = 4
    eval_every: int = 3
    hostile: bool = False
    repetitive: bool = False
    agent: bool = False
    episodes: bool = False
    """Each step is of episodes of several rows."""
    in_flight: bool = False
    """Rollouts are in flight when the logger finishes, some of them with hostile text."""
    pictures: bool = False
    """Each step has rollouts with images, one of them no image."""


STANDARD = (
    RunPlan(in_flight=True),
    RunPlan(run="run-b", steps=2, eval_every=0),
    RunPlan(project="hostile", steps=1, groups=2, eval_every=0, hostile=True, agent=True),
    RunPlan(project="agents", steps=2, eval_every=0, episodes=True),
    RunPlan(project="pictures", steps=1, eval_every=0, pictures=True),
    RunPlan(project="repetitive", steps=1, groups=2, eval_every=0, repetitive=True),
)
"""What the tests of the pages read."""


def main() -> None:
    """Logs what the arguments ask for."""
    from trackio import context_vars

    parser = argparse.ArgumentParser()
    parser.add_argument("--standard", action="store_true")
    parser.add_argument("--first-step", type=int, default=1)
    parser.add_argument("--steps", type=int, default=6)
    options = parser.parse_args()
    plans = STANDARD if options.standard else (live_plan(options.first_step, options.steps),)
    for plan in plans:
        log_run(plan)
        context_vars.current_run.set(None)


def live_plan(first_step: int, steps: int) -> RunPlan:
    """A part of a run that goes on."""
    return RunPlan(first_step=first_step, steps=steps, groups=2, eval_every=0)


def log_run(plan: RunPlan) -> None:
    """Logs a run with the real logger; the thread worker starts no further process."""
    import rollout_traces as rt
    from tests.generator import BatchPlan, tiny_tokenizer
    from tests.inspector.agents import agent_batch
    from tests.pictures import SVG, batch_with, png

    tokenizer = tiny_tokenizer()
    logger = rt.RolloutLogger(
        project=plan.project,
        name=plan.run,
        tokenizer=tokenizer,
        max_rollout_traces_per_step=16,
        reward_range=(0.0, 1.0),
        worker="thread",
    )
    if plan.in_flight:
        say_in_flight(logger)
    if plan.hostile:
        log_hostile()
    if plan.agent:
        log_agent()
    if plan.repetitive:
        log_repetitive()
    for step in range(plan.first_step, plan.first_step + plan.steps):
        if plan.pictures:
            seen = [[png(60, 40), png(30, 30, (20, 90, 200))], [png(60, 40), SVG], None]
            logger.log_rollouts(batch_with(seen), step=step)
            continue
        if plan.episodes:
            logger.log_rollouts(agent_batch(tokenizer, step, clock=step == 2), step=step)
            continue
        batch_plan = BatchPlan(n_groups=plan.groups, step=step, seed=step)
        logger.log_rollouts(step_batch(tokenizer, batch_plan), step=step)
        if plan.eval_every and step % plan.eval_every == 0:
            eval_plan = BatchPlan(n_groups=2, group_size=4, step=step, seed=7)
            logger.log_rollouts(step_batch(tokenizer, eval_plan), step=step, split="eval-rollout")
        logger.log_scalars(
            {"train/loss": 1.0 / step, "time/update": 2.0 + 0.1 * step, "time/rollout": 5.0}, step=step
        )
    logger.finish()


def say_in_flight(logger: Any) -> None:
    """Three rollouts that are in flight, one that ended, one that was aborted."""
    for n, (stage, detail) in enumerate((("sampling", None), ("tool", "browse"), ("tool", HOSTILE))):
        rollout = logger.live(f"{n} + {n} {HOSTILE * (n == 2)}", step=7, source="math", group=str(n))
        rollout.stage("sampling", turns=n, tokens=10 * n, words="let me see")
        rollout.stage(stage, detail, words=HOSTILE if n == 2 else "and then")
    with logger.live("1 + 1", step=6) as ended:
        ended.stage("sampling", turns=1, tokens=9, words="it is 2")
    logger.live("2 + 2", step=6).stage("aborted", "TimeoutError")


def step_batch(tokenizer: Any, plan: Any) -> Any:
    """A generated step with every track filled, a tied group that was discarded, and a mask leak."""
    from rollout_traces.model.batch import RolloutBatch
    from tests.generator import batch_arrays

    arrays = batch_arrays(tokenizer, plan)
    rng = np.random.default_rng([plan.seed, 9])
    n_rows, n_tokens = arrays["input_ids"].shape
    sampled = arrays["versions"] >= 0
    noise = rng.normal(0, 0.05, (n_rows, n_tokens)).astype(np.float32)
    arrays["new_logprobs"] = np.where(sampled, np.minimum(arrays["prox_logprobs"] + noise, 0), 0)
    arrays["ref_logprobs"] = np.where(sampled, np.minimum(arrays["prox_logprobs"] + 3 * noise, 0), 0)
    arrays["values"] = np.where(sampled, rng.random((n_rows, n_tokens)), 0).astype(np.float32)
    arrays["rewards"][: plan.group_size] = 0.2
    arrays["advantages"][: plan.group_size] = 0.0
    discarded = ["zero_advantage"] * plan.group_size
    arrays["discard_reasons"] = discarded + [None] * (n_rows - plan.group_size)
    arrays["ground_truths"] = [str(40 + row // plan.group_size) for row in range(n_rows)]
    arrays["timings"] = [{"generation": 0.8 + 0.01 * row, "reward": 0.02} for row in range(n_rows)]
    leak = np.flatnonzero(arrays["attention_mask"][-1] & ~sampled[-1])[-4:-1]
    arrays["loss_mask"][-1, leak] = 1
    return RolloutBatch(**arrays)


HOSTILE = (
    '<script>window.pwned = 1</script><img src=x onerror="window.pwned = 2">'
    "\u202eright to left\u202c \x1b[31mred\x1b[0m nul\x00 bell\x07 zero\u200bwidth "
    "[link](javascript:window.pwned=3) ![i](http://198.51.100.7/x.png) $\\href{javascript:window.pwned=4}{x}$"
    " unknown $\\zzz{x} + 1$ known $x^2$ deep $" + "\\frac{" * 150 + "1" + "}{2}" * 150 + "$"
    " hidden" + "".join(chr(0xE0000 + ord(sign)) for sign in "obey")
)


def log_hostile() -> None:
    """A run of another tool's traces with hostile text: scripts, controls, a message of five megabytes."""
    import trackio

    run = trackio.context_vars.current_run.get()
    traces = [
        trackio.Trace(
            messages=[{"role": "user", "content": HOSTILE}, {"role": "assistant", "content": text}],
            metadata={"reward": 0.5, "note": HOSTILE},
        )
        for text in (HOSTILE, "long " * 1_000_000)
    ]
    run.log({"foreign": traces}, step=1)


TRACEBACK = """Traceback (most recent call last):
  File "solve.py", line 3, in <module>
    print(1 / 0)
          ~~^~~
ZeroDivisionError: division by zero"""


THOUGHT = "<think>\nThe rows  are here.\n</think>\n\n"


def log_agent() -> None:
    """A run of another tool's trace of an agent: a long JSON result, a traceback, Arabic, thinking."""
    import trackio

    rows = [{"id": row, "name": f"row {row}", "tags": ["a", "b"]} for row in range(2000)]
    call = {"id": "1", "function": {"name": "search", "arguments": {"query": "x"}}}
    messages = [
        {"role": "user", "content": "\u0645\u0631\u062d\u0628\u0627, search. <think>I say</think>"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": json.dumps({"rows": rows, "total": 2000}), "tool_call_id": "1"},
        {"role": "assistant", "content": f"{THOUGHT}I run it.\n{TRACEBACK}\nIt failed."},
    ]
    trackio.context_vars.current_run.get().log(
        {"agent": [trackio.Trace(messages=messages, metadata={})]}, step=1
    )


REPEATED = {
    "backticks": "`",
    "brackets": "[",
    "links": "[a](",
    "dollars": "$",
    "formulas": "$x$ ",
    "fractions": "\\frac{a}{b}",
    "fraction-formulas": "$\\frac{a}{b}$ and ",
    "nested-fractions": "\\frac{",
    "tables": "|a|b|\n|-|-|\n|1|2|\n\n",
    "rows": "|a|b|\n",
    "lists": "- a\n",
    "quotes": ">",
    "headings": "# a\n",
    "stars": "**a ",
    "combining": "a" + "\u0301" * 30,
    "one-letter": "e" + "\u0301" * 100_000,
    "tags": "\U000e0041",
    "spaces": "# " + " " * 3000 + "a",
    "words": "no no no ",
    "letters": "a",
    "arabic": "\u0627\u0644\u0639 ",
    "emoji": "\U0001f468\u200d\U0001f469\u200d\U0001f467 ",
}
"""What a policy that fell into a loop writes, and worse."""


def log_repetitive() -> None:
    """A run of another tool's traces, one for each shape, of 100,000 signs."""
    import trackio

    run = trackio.context_vars.current_run.get()
    traces = [
        trackio.Trace(
            messages=[
                {"role": "user", "content": name},
                {"role": "assistant", "content": (text * (100_000 // len(text) + 1))[:100_000]},
            ],
            metadata={"reward": 0.5, "source": name},
        )
        for name, text in REPEATED.items()
    ]
    run.log({"repeated": traces}, step=1)


if __name__ == "__main__":
    main()
