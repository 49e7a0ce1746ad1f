"""An environment loop on CPU: agents with tools that take their time, one of which hangs until it is given up.

Watch it in the pages Live and Lanes while it runs. Everything that takes time also writes its own times to a file, by which
the stages of Live and the bars of Lanes can be checked.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

import rollout_traces as rt

EXAMPLES = """examples:
  python examples/environment_loop.py                three steps of 24 rollouts, about a minute
  rollout-traces show --project environment-loop     in another terminal, then Live (L) and Lanes (T)
"""
FOLDER = Path(__file__).resolve().parents[1] / "docs"
WORDS = (
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
)
ENGINES = ("engine-0", "engine-1", "engine-2")
PLACES_AN_ENGINE = 3
GROUP = 4
MOST_TURNS = 4


async def search(word: str, rng: random.Random, pace: float) -> str:
    """Looks a word up in the documentation of this repository, behind a slow network."""
    await asyncio.sleep(pace * rng.uniform(0.3, 3))
    found = [path.name for path in sorted(FOLDER.glob("*.md")) if word in path.read_text("utf-8")]
    return f"{len(found)} pages: {', '.join(found[:5])}"


async def python(word: str, rng: random.Random, pace: float) -> str:
    """Counts in a process of its own."""
    code = f"import time; time.sleep({pace * rng.uniform(0.2, 1.5)}); print(sum(map(ord, {word!r})))"
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", code, stdout=asyncio.subprocess.PIPE)
    return (await process.communicate())[0].decode().strip()


async def browse(word: str, rng: random.Random, pace: float) -> str:
    """Opens a page."""
    await asyncio.sleep(pace * rng.uniform(0.5, 5))
    return f"<h1>{word}</h1>"


async def browse_what_hangs(word: str, rng: random.Random, pace: float) -> str:
    """Opens a page that nobody answers."""
    await asyncio.sleep(3600)
    return word


TOOLS = {"search": search, "python": python, "browse": browse}


async def score_format(length: int, rng: random.Random, pace: float) -> float:
    """A quick function."""
    return 0.5 * (length % 2)


async def score_judge(length: int, rng: random.Random, pace: float) -> float:
    """A slow one."""
    await asyncio.sleep(pace * rng.uniform(0.05, 0.4))
    return rng.random()


SCORES = {"format": score_format, "judge": score_judge}


@dataclass
class Episode:
    """One rollout: what was said, when, and how it ended."""

    number: int
    task: str
    engine: str
    messages: list[dict[str, Any]] = field(default_factory=list)
    spans: rt.Spans = field(default_factory=rt.Spans)
    scores: dict[str, float] = field(default_factory=lambda: dict.fromkeys(SCORES, 0.0))
    versions: list[int] = field(default_factory=list)
    stop_reason: str = "stop"
    n_tokens: int = 0
    live: str = ""


class Loop:
    """Samples the rollouts of a step at once.

    Args:
        logger: where they are said and logged.
        own_times: where everything writes its own times, a line of JSON each.
        pace: everything that takes time takes that many times as long.
        timeout: seconds after which a tool is given up.
    """

    def __init__(self, logger: rt.RolloutLogger, own_times: TextIO, pace: float, timeout: float) -> None:
        self.version = 0
        self._logger = logger
        self._own_times = own_times
        self._pace = pace
        self._timeout = timeout
        self._step = 0
        self._places: Mapping[str, asyncio.Semaphore] = {}

    async def sample(self, step: int, n: int) -> list[Episode]:
        """The rollouts of a step."""
        self._step = step
        self._places = {name: asyncio.Semaphore(PLACES_AN_ENGINE) for name in ENGINES}
        episodes = [
            Episode(at, f"Question {at // GROUP}: how is {WORDS[at // GROUP % len(WORDS)]} written?", ENGINES[at % len(ENGINES)])
            for at in range(n)
        ]  # fmt: skip
        await asyncio.gather(*(self._run(each, hangs=each.number == n - 1) for each in episodes))
        return episodes

    @contextmanager
    def _timed(self, episode: Episode, kind: str, turn: int | None, **known: Any) -> Iterator[None]:
        """Notes what runs inside as a span, and when it ran by itself."""
        known = known if turn is None else {"turn": turn, **known}
        with episode.spans(kind, **known):
            line = {"step": self._step, "rollout": episode.number, "kind": kind, "turn": turn}
            start = time.time()
            try:
                yield
            finally:
                times = {"name": known.get("name"), "start": start, "end": time.time()}
                self._own_times.write(json.dumps({**line, **times}) + "\n")

    async def _run(self, episode: Episode, *, hangs: bool) -> None:
        rng = random.Random(f"{self._step}/{episode.number}")
        group = str(episode.number // GROUP)
        episode.messages.append({"role": "user", "content": episode.task})
        with self._logger.live(episode.task, step=self._step, source="documentation", group=group) as live:
            episode.live = live.id
            turns = rng.randint(1, MOST_TURNS - 1)
            for turn in range(turns):
                tool, word = rng.choice(list(TOOLS)), rng.choice(WORDS)
                tool = "browse" if hangs and turn == turns - 1 else tool
                text = f"I do not know yet. Let me use {tool} to look at {word}."
                await self._say(episode, live, turn, text, rng)
                call = {"id": f"call-{turn}", "type": "function", "function": {"name": tool, "arguments": json.dumps({"word": word})}}  # fmt: skip
                episode.messages.append({"role": "assistant", "content": text, "tool_calls": [call]})
                live.stage("tool", tool)
                function = browse_what_hangs if hangs and turn == turns - 1 else TOOLS[tool]
                try:
                    with self._timed(episode, "tool", turn, name=tool):
                        result = await asyncio.wait_for(function(word, rng, self._pace), self._timeout)
                except asyncio.TimeoutError:
                    episode.stop_reason = "timeout"
                    live.stage("aborted", f"{tool}: no answer in {self._timeout:g} s")
                    return
                episode.messages.append({"role": "tool", "content": result, "tool_call_id": call["id"], "name": tool})  # fmt: skip
            text = f"The answer is {len(result)}."
            await self._say(episode, live, turns, text, rng)
            episode.messages.append({"role": "assistant", "content": text})
            for name, function in SCORES.items():
                live.stage("scoring", name)
                with self._timed(episode, "score", None, name=name):
                    episode.scores[name] = await function(len(result), rng, self._pace)

    async def _say(self, episode: Episode, live: Any, turn: int, text: str, rng: random.Random) -> None:
        """Waits for a place of its engine, then writes a text word by word."""
        live.stage("queued")
        with self._timed(episode, "queue", turn, engine=episode.engine):
            await self._places[episode.engine].acquire()
        try:
            live.stage("sampling", turns=turn + 1)
            with self._timed(episode, "generate", turn, engine=episode.engine, version=self.version):
                episode.versions.append(self.version)
                words = text.split(" ")
                for at in range(len(words)):
                    await asyncio.sleep(self._pace * rng.uniform(0.02, 0.2))
                    episode.n_tokens += 1
                    written = " ".join(words[: at + 1])
                    live.stage("sampling", turns=turn + 1, tokens=episode.n_tokens, words=written)
        finally:
            self._places[episode.engine].release()


def as_batch(episodes: list[Episode], step: int) -> rt.RolloutBatch:
    """A step's rollouts; those of the most turns are left out of the update."""
    is_long = [
        each.messages[-1]["role"] == "assistant" and len(each.versions) == MOST_TURNS for each in episodes
    ]
    return rt.RolloutBatch.from_messages(
        [each.messages for each in episodes],
        timings=[each.spans.noted for each in episodes],
        rewards=[sum(each.scores.values()) for each in episodes],
        reward_components={name: [each.scores[name] for each in episodes] for name in SCORES},
        stop_reasons=[each.stop_reason for each in episodes],
        discard_reasons=["too_long" if long else None for long in is_long],
        group_ids=[each.number // GROUP for each in episodes],
        engine_ids=[each.engine for each in episodes],
        sources=["documentation"] * len(episodes),
        extras=[{"live": each.live} for each in episodes],
        known_columns=[
            {
                "n_sampled": each.n_tokens,
                "version_min": min(each.versions),
                "version_max": max(each.versions),
                "staleness_max": step - 1 - min(each.versions),
                "trained": not long,
            }
            for each, long in zip(episodes, is_long, strict=True)
        ],
        train_version=step - 1,
    )


def main(argv: list[str] | None = None) -> None:
    """Runs the loop and logs it."""
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--project", default="environment-loop", help="Trackio project (default: %(default)s)"
    )
    parser.add_argument("--name", help="name of the run")
    parser.add_argument("--steps", type=int, default=3, help="default: %(default)s")
    parser.add_argument("--rollouts", type=int, default=24, help="rollouts a step (default: %(default)s)")
    parser.add_argument(
        "--pace", type=float, default=1.0, help="how slow everything is (default: %(default)s)"
    )
    parser.add_argument(
        "--timeout", type=float, default=20.0, help="seconds of a tool (default: %(default)s)"
    )
    parser.add_argument("--own-times", type=Path, help="file for the times that everything writes by itself")
    args = parser.parse_args(argv)
    logger = rt.RolloutLogger(project=args.project, name=args.name, max_rollout_traces_per_step=args.rollouts)
    with (args.own_times or Path(os.devnull)).open("w", encoding="utf-8") as own_times:
        loop = Loop(logger, own_times, args.pace, args.timeout)
        for step in range(1, args.steps + 1):
            episodes = asyncio.run(loop.sample(step, args.rollouts))
            logger.log_rollouts(as_batch(episodes, step), step=step)
            began = time.time()
            time.sleep(args.pace)  # the update
            loop.version += 1
            phases = {"phase/update/start": began, "phase/update/end": time.time()}
            logger.log_scalars({**phases, "funnel/prompts_loaded": args.rollouts // GROUP + 1}, step=step)
            logger.close_step(step)
    logger.finish()


if __name__ == "__main__":
    main()
