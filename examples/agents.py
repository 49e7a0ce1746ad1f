"""Agents with tools that take their time, one of which hangs: watch them in the page Live while they run."""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import rollout_traces as rt

EXAMPLES = """examples:
  python examples/agents.py                          three steps of 24 rollouts, about a minute
  rollout-traces show --project agents               in another terminal, then the page Live (L)
"""
FOLDER = Path(__file__).resolve().parents[1] / "docs"
WORDS = [
    "token",
    "rollout",
    "reward",
    "group",
    "turn",
    "tool",
    "step",
    "mask",
    "worker",
    "spool",
    "trace",
    "flag",
]
HANGS = 0.04
"""Share of calls of `browse` that never come back."""


@dataclass
class Episode:
    """One rollout: what was said, its spans of time and how it ended."""

    task: str
    group: int
    messages: list[dict[str, Any]]
    spans: rt.Spans = field(default_factory=rt.Spans)
    reward: float = 0.0
    stop_reason: str = "stop"
    live: str = ""
    n_tokens: int = 0


async def search(word: str, rng: random.Random) -> str:
    """Looks a word up in the documentation of this repository, behind a slow network."""
    await asyncio.sleep(rng.uniform(0.3, 3))
    found = [path.name for path in sorted(FOLDER.glob("*.md")) if word in path.read_text("utf-8")]
    return f"{len(found)} pages: {', '.join(found[:5])}"


async def python(word: str, rng: random.Random) -> str:
    """Counts in a process of its own."""
    code = f"import time; time.sleep({rng.uniform(0.2, 1.5)}); print(sum(map(ord, {word!r})))"
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", code, stdout=asyncio.subprocess.PIPE)
    return (await process.communicate())[0].decode().strip()


async def browse(word: str, rng: random.Random) -> str:
    """Opens a page; now and then nobody answers."""
    await asyncio.sleep(3600 if rng.random() < HANGS else rng.uniform(0.5, 5))
    return f"<h1>{word}</h1>"


TOOLS = {"search": search, "python": python, "browse": browse}


async def say(episode: Episode, live: Any, turn: int, text: str, rng: random.Random) -> None:
    """Writes a text word by word, as an engine streams it."""
    written = ""
    with episode.spans("generate", turn=turn, engine=f"engine-{episode.group % 2}"):
        for word in text.split(" "):
            await asyncio.sleep(rng.uniform(0.02, 0.2))
            written, episode.n_tokens = f"{written} {word}".strip(), episode.n_tokens + 1
            live.stage("sampling", turns=turn + 1, tokens=episode.n_tokens, words=written)


async def run(
    episode: Episode, logger: rt.RolloutLogger, step: int, seats: asyncio.Semaphore, seed: int
) -> None:
    """Runs one episode: a few turns with a tool each, then an answer."""
    rng = random.Random(seed)
    live = logger.live(episode.task, step=step, source="documentation", group=str(episode.group))
    episode.live = live.id
    with live:
        with episode.spans("queue"):
            await seats.acquire()
        try:
            for turn in range(rng.randint(1, 4)):
                tool, word = rng.choice([*TOOLS]), rng.choice(WORDS)
                await say(
                    episode, live, turn, f"I do not know yet. Let me use {tool} to look at {word}.", rng
                )
                call = {"id": f"call_{turn}", "type": "function"}
                call["function"] = {"name": tool, "arguments": json.dumps({"word": word})}
                episode.messages.append({"role": "assistant", "content": "", "tool_calls": [call]})
                live.stage("tool", tool)
                with episode.spans("tool", turn=turn, name=tool):
                    result = await TOOLS[tool](word, rng)
                episode.messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})
            await say(episode, live, turn + 1, f"The answer is {len(result)}.", rng)
            episode.messages.append({"role": "assistant", "content": f"The answer is {len(result)}."})
            live.stage("scoring")
            with episode.spans("score", name="even"):
                await asyncio.sleep(rng.uniform(0.05, 0.4))
                episode.reward = float(len(result) % 2 == 0)
        finally:
            seats.release()


async def sample(logger: rt.RolloutLogger, step: int, args: argparse.Namespace) -> list[Episode]:
    """Samples a step's rollouts at once; one that takes longer than the limit is aborted and kept as it is."""
    seats = asyncio.Semaphore(args.at_once)

    async def limited(number: int) -> Episode:
        task = f"Question {number // 4}: how is {WORDS[number // 4 % len(WORDS)]} written?"
        episode = Episode(task, number // 4, [{"role": "user", "content": task}])
        try:
            await asyncio.wait_for(run(episode, logger, step, seats, 1000 * step + number), args.timeout)
        except asyncio.TimeoutError:
            episode.stop_reason = "timeout"
        return episode

    return await asyncio.gather(*map(limited, range(args.rollouts)))


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--project", default="agents", help="Trackio project (default: %(default)s)")
    parser.add_argument("--name", help="name of the run")
    parser.add_argument("--steps", type=int, default=3, help="default: %(default)s")
    parser.add_argument("--rollouts", type=int, default=24, help="rollouts a step (default: %(default)s)")
    parser.add_argument("--at-once", type=int, default=16, help="rollouts at once (default: %(default)s)")
    parser.add_argument(
        "--timeout", type=float, default=25.0, help="seconds a rollout (default: %(default)s)"
    )
    args = parser.parse_args(argv)
    logger = rt.RolloutLogger(project=args.project, name=args.name, max_rollout_traces_per_step=args.rollouts)
    for step in range(1, args.steps + 1):
        episodes = asyncio.run(sample(logger, step, args))
        batch = rt.RolloutBatch.from_messages(
            [each.messages for each in episodes],
            rewards=[each.reward for each in episodes],
            group_ids=[each.group for each in episodes],
            stop_reasons=[each.stop_reason for each in episodes],
            timings=[each.spans.noted for each in episodes],
            extras=[{"live": each.live} for each in episodes],
        )
        logger.log_rollouts(batch, step=step)
        logger.close_step(step)
    logger.finish()


if __name__ == "__main__":
    main()
