"""An environment loop on CPU whose turns, tools and reward functions are timed: lanes, funnel and reward functions of the inspector.

Three engines with two places each sample a word after the other; a calculator and a search sleep, and a browser hangs now and
then until its timeout. Everything that takes time also writes its own times to a file, by which the lanes can be checked.

    python examples/environment_loop.py --steps 3 && rollout-traces show --project environment-loop
"""

from __future__ import annotations

import argparse
import json
import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import rollout_traces as rt

ENGINES = ("engine-0", "engine-1", "engine-2")
PLACES_AN_ENGINE = 2
TOOLS = {"calculator": (0.01, 0.04), "search": (0.05, 0.2), "browse": (0.1, 0.3)}
"""The least and the most seconds that each tool sleeps."""
TIMEOUT = 1.5
"""Seconds after which a call of the browser that hangs is given up."""
TURNS = (1, 4)


class OwnTimes:
    """What really ran, written by itself: a line for everything that took time."""

    def __init__(self, path: Path) -> None:
        self._lock = threading.Lock()
        self._file = path.open("w", encoding="utf-8")

    @contextmanager
    def note(self, step: int, rollout: int, kind: str, name: str | None, turn: int | None) -> Iterator[None]:
        """Writes when what runs inside began and ended."""
        start = time.time()
        try:
            yield
        finally:
            line = {
                "step": step,
                "rollout": rollout,
                "kind": kind,
                "name": name,
                "turn": turn,
                "start": start,
            }
            with self._lock:
                self._file.write(json.dumps({**line, "end": time.time()}) + "\n")

    def close(self) -> None:
        """Closes the file."""
        self._file.close()


class Loop:
    """Samples the rollouts of a step, several at a time.

    Args:
        times: where everything writes its own times.
        seed: what words, tools and waits are drawn from.
    """

    def __init__(self, times: OwnTimes, seed: int) -> None:
        self._times = times
        self._seed = seed
        self._places = {name: threading.Semaphore(PLACES_AN_ENGINE) for name in ENGINES}
        self.version = 0

    def sample(self, step: int, n: int) -> rt.RolloutBatch:
        """The rollouts of a step as a batch."""
        with ThreadPoolExecutor(3 * len(ENGINES) * PLACES_AN_ENGINE) as pool:
            rows = list(pool.map(lambda at: self._rollout(step, at, n), range(n)))
        return rt.RolloutBatch.from_messages(
            [row["messages"] for row in rows],
            timings=[row["timings"] for row in rows],
            rewards=[row["format"] + row["judge"] for row in rows],
            reward_components={name: [row[name] for row in rows] for name in ("format", "judge")},
            stop_reasons=[row["stop_reason"] for row in rows],
            discard_reasons=["too_long" if row["turns"] == TURNS[1] else None for row in rows],
            group_ids=[at // 4 for at in range(n)],
            engine_ids=[row["engine"] for row in rows],
            sources=[f"environment-{at // 4 % 2}" for at in range(n)],
            known_columns=[row["known"] for row in rows],
            train_version=step,
        )

    def _rollout(self, step: int, at: int, n: int) -> dict[str, Any]:
        rng = random.Random(f"{self._seed}/{step}/{at}")
        spans = rt.Spans()
        messages: list[dict[str, Any]] = [{"role": "user", "content": f"Question {at // 4} of step {step}."}]
        engine = ENGINES[at % len(ENGINES)]
        hangs = at == n - 1
        turns = rng.randint(*TURNS)
        versions, words, stop_reason = [], 0, "stop"
        for turn in range(turns):
            with spans("queue", turn=turn, engine=engine), self._times.note(step, at, "queue", None, turn):
                self._places[engine].acquire()
            try:
                with spans("generate", turn=turn, engine=engine, version=self.version) as span:
                    versions.append(span["version"])
                    text = self._generate(step, at, turn, rng)
            finally:
                self._places[engine].release()
            words += len(text.split())
            last = turn == turns - 1
            tool = "browse" if last and hangs else rng.choice(list(TOOLS))
            if last and not hangs:
                messages.append({"role": "assistant", "content": text})
                break
            call = {"id": f"call-{turn}", "type": "function", "function": {"name": tool, "arguments": "{}"}}
            messages.append({"role": "assistant", "content": text, "tool_calls": [call]})
            try:
                with spans("tool", turn=turn, name=tool):
                    result = self._call(step, at, turn, tool, rng, hangs=last and hangs)
            except TimeoutError:
                result, stop_reason = "Error: no answer in time", "timeout"
            messages.append({"role": "tool", "content": result, "tool_call_id": call["id"], "name": tool})
        scores = {
            name: self._score(step, at, name, spans, function, rng) for name, function in SCORES.items()
        }
        if stop_reason == "timeout":
            scores = dict.fromkeys(scores, 0.0)
        known = {
            "n_sampled": words,
            "version_min": min(versions),
            "version_max": max(versions),
            "trained": turns < TURNS[1],
        }
        known["staleness_max"] = step - min(versions)
        return {"messages": messages, "timings": spans.noted, "stop_reason": stop_reason, "engine": engine, "turns": turns, "known": known, **scores}  # fmt: skip

    def _generate(self, step: int, at: int, turn: int, rng: random.Random) -> str:
        with self._times.note(step, at, "generate", None, turn):
            words = [
                rng.choice(("so", "the", "answer", "may", "be", "seven")) for _ in range(rng.randint(3, 30))
            ]
            time.sleep(0.004 * len(words))
        return " ".join(words)

    def _call(self, step: int, at: int, turn: int, tool: str, rng: random.Random, *, hangs: bool) -> str:
        with self._times.note(step, at, "tool", tool, turn):
            if hangs:
                time.sleep(TIMEOUT)
                raise TimeoutError(tool)
            time.sleep(rng.uniform(*TOOLS[tool]))
        return f"{tool} found nothing of interest."

    def _score(
        self,
        step: int,
        at: int,
        name: str,
        spans: rt.Spans,
        function: Callable[[random.Random], float],
        rng: random.Random,
    ) -> float:
        with spans("score", name=name), self._times.note(step, at, "score", name, None):
            return function(rng)


def score_format(rng: random.Random) -> float:
    """A quick function that gives 0 or 0.5."""
    return rng.choice((0.0, 0.5))


def score_judge(rng: random.Random) -> float:
    """A slow one."""
    time.sleep(rng.uniform(0.02, 0.08))
    return rng.random()


SCORES: dict[str, Callable[[random.Random], float]] = {"format": score_format, "judge": score_judge}


def main(argv: list[str] | None = None) -> None:
    """Runs the loop and logs it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--project", default="environment-loop", help="Trackio project (default: %(default)s)"
    )
    parser.add_argument("--steps", type=int, default=3, help="steps (default: %(default)s)")
    parser.add_argument("--rollouts", type=int, default=32, help="rollouts a step (default: %(default)s)")
    parser.add_argument("--own-times", type=Path, default=Path("own_times.jsonl"), help="file of what really ran (default: %(default)s)")  # fmt: skip
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(argv)
    times = OwnTimes(args.own_times)
    loop = Loop(times, args.seed)
    logger = rt.RolloutLogger(project=args.project, name=f"seed-{args.seed}", max_rollout_traces_per_step=8)
    for step in range(args.steps):
        batch = loop.sample(step, args.rollouts)
        logger.log_rollouts(batch, step=step)
        begun = time.time()
        time.sleep(0.2)  # the update
        loop.version += 1
        phases = {"phase/update/start": begun, "phase/update/end": time.time()}
        logger.log_scalars({**phases, "funnel/prompts_loaded": args.rollouts // 4 + 1}, step=step)
        logger.close_step(step, "rollout")
    times.close()
    logger.finish()


if __name__ == "__main__":
    main()
