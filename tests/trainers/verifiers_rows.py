"""verifiers' real message graph, traces and episodes, which prime-rl trains on; compared with what was stored.

Real: `prepare_turn`, `commit`, branches with their tokens, masks, logprobs and advantages, rewards, `Episode.to_record`.
Standing in: the environment and the inference server; a monitor with the signature of prime-rl's, which is on no
registry, and its rule that a turn of several branches is trained on in the first.
"""

from __future__ import annotations

import asyncio
import random
import time

from adapter_rows import FOLDER, Comparison, Row

# isort: split
# What is imported above sets where Trackio writes.
from verifiers.v1.configs.agent import WireAgentConfig
from verifiers.v1.episode import EnvInfo, Episode, GroupInfo, PolicySpan, TrainRunInfo, TrainWorkInfo
from verifiers.v1.graph import prepare_turn
from verifiers.v1.serve.delta import DeltaStreamer
from verifiers.v1.task import WireTaskData
from verifiers.v1.trace import AgentInfo, ModelCall, Trace, TraceTask
from verifiers.v1.types import AssistantMessage, Response, ToolMessage, TurnTokens, UserMessage

from rollout_traces.integrations import prime_rl
from tests.generator import tiny_tokenizer
from tests.trainers.live_watch import Watched

STEPS, GROUPS, GROUP = 8, 16, 4


class Sampler:
    """Renders messages token by token and samples at random."""

    def __init__(self, tokenizer, rng: random.Random) -> None:
        self.tokenizer, self.rng = tokenizer, rng

    def words(self) -> str:
        return " ".join(
            self.rng.choice(["six", "42", "so then", "look", "yes"]) for _ in range(self.rng.randrange(1, 6))
        )

    def turn(self, trace: Trace, known: list) -> list:
        """A model call over `known`, [(message, ids)]; the same with its answer."""
        pending = prepare_turn(trace, [message for message, _ in known])
        prompt, spans = [], []
        for _, ids in known:
            spans.append((len(prompt), len(prompt) + len(ids)))
            prompt += ids
        scaffold = self.ids("<|im_start|>assistant\n")
        text = self.words()
        completion = self.ids(f"{text}<|im_end|>")
        answer = AssistantMessage(content=text)
        tokens = TurnTokens(
            prompt_ids=[*prompt, *scaffold],
            completion_ids=completion,
            completion_logprobs=[-self.rng.random() * 3 for _ in completion],
            message_spans=spans,
        )
        response = Response(id="r", created=0, model="m", message=answer, finish_reason="stop", tokens=tokens)
        node = pending.commit(response)
        trace.calls.append(ModelCall(node=node, finish_reason="stop"))
        return [*known, (answer, [*scaffold, *completion])]

    def ids(self, text: str) -> list[int]:
        return self.tokenizer.encode(text, add_special_tokens=False)

    def said(self, role: str, message) -> tuple:
        return message, self.ids(f"<|im_start|>{role}\n{message.content}<|im_end|>\n")


def episode(sampler: Sampler, step: int, group: int) -> Episode:
    """One to four turns; some go back to an earlier turn and take another way from there."""
    rng = sampler.rng
    task = TraceTask(type="Task", data=WireTaskData(idx=group, prompt=f"What is 6*{group}?"))
    trace = Trace(task=task, agent=AgentInfo(config=WireAgentConfig(), name="solver"))
    known = [sampler.said("user", UserMessage(content=f"What is 6*{step}{group}?"))]
    states = [known]
    for turn in range(rng.randrange(1, 5)):
        if turn and rng.random() < 0.3:
            known = rng.choice(states)
        if turn:
            known = [
                *known,
                sampler.said("tool", ToolMessage(content=sampler.words(), tool_call_id=f"c{turn}")),
            ]
        known = sampler.turn(trace, known)
        states.append(known)
    trace.record_reward("right", rng.choice([0.0, 1.0]))
    trace.record_reward("short", rng.random(), weight=0.5)
    trace.record_metric("turns", len(states) - 1)
    made = Episode(
        env=EnvInfo(id="demo"), task=task, group=GroupInfo(id=f"{step}-{group}"), ok=True, traces=[trace]
    )
    made.record_run(
        TrainRunInfo(id="run", work=TrainWorkInfo(step=step, policy=PolicySpan(start=step, end=step)))
    )
    return made


def one_step(sampler: Sampler, step: int) -> list[Episode]:
    """A step's episodes, with each group's advantages on their sampled tokens."""
    episodes = []
    for group in range(GROUPS):
        mine = [episode(sampler, step, group) for _ in range(GROUP)]
        mean = sum(one.traces[0].reward for one in mine) / GROUP
        for one in mine:
            for node in one.traces[0].nodes:
                if node.sampled:
                    node.advantages = [one.traces[0].reward - mean] * sum(node.mask)
        episodes += mine
    return episodes


def rows_of_step(episodes: list[Episode]) -> list[Row]:
    """The branches, each turn in the loss of the first of them."""
    rows = []
    for one in episodes:
        [trace] = one.traces
        trained: set[int] = set()
        for branch in trace.branches:
            mask: list[bool] = []
            for node in branch.nodes:
                mask += [value and id(node) not in trained for value in node.mask]
            trained |= {id(node) for node in branch.nodes}
            rows.append(
                Row(
                    ids=branch.token_ids,
                    trained=mask,
                    sampled=branch.sampled_mask,
                    reward=trace.reward,
                    group=one.group.id,
                    episode=one.id,
                    tracks={"logprobs": branch.logprobs, "advantages": branch.advantages},
                    metadata={
                        "sample/turns": trace.metrics["turns"],
                        **{f"component/{name}": reward.score for name, reward in trace.rewards.items()},
                    },
                )
            )
    return rows


class Monitor:
    """With the signatures of prime-rl's monitors."""

    async def log_episodes(self, episodes, step: int, kind: str, subset: str) -> None: ...

    async def log_live(self, events: list[dict]) -> None: ...


async def grow(sampler: Sampler, monitor: Monitor, step: int) -> tuple[int, str]:
    """A trace that is told of while it grows, by verifiers' own deltas.

    Returns:
        Its turns, and what it said last.
    """
    task = TraceTask(type="Task", data=WireTaskData(idx=step, prompt=f"Live {step}?"))
    trace = Trace(task=task, agent=AgentInfo(config=WireAgentConfig(), name="solver"))
    dispatch = {"kind": "train", "env": "demo", "group": f"live-{step}", "step": step}

    async def send(delta: dict) -> None:
        await monitor.log_live([{"delta": delta, "dispatch": dispatch}])

    streamer = DeltaStreamer(lambda: [trace], send)
    for phase in ("boot", "agent"):
        getattr(trace.timing, phase).start = time.time()
        await streamer.flush()
        await asyncio.sleep(0.3)
    known = [sampler.said("user", UserMessage(content=f"Live {step}?"))]
    turns = sampler.rng.randrange(1, 4)
    for turn in range(turns):
        if turn:
            known = [*known, sampler.said("tool", ToolMessage(content="found", tool_call_id=f"c{turn}"))]
        known = sampler.turn(trace, known)
        await streamer.flush()
    trace.timing.scoring.start = time.time()
    await streamer.flush()
    await asyncio.sleep(0.3)
    await monitor.log_live([{"done": trace.id}])
    return turns, known[-1][0].content


def check_live(watched: Watched, grown: dict[int, tuple[int, str]]) -> None:
    """Each trace that grew was seen in its stages, with its turns and last words."""
    by_step = {watched.last(key, "step"): key for key in watched.lines}
    assert set(by_step) == set(grown), (by_step, grown)
    for step, (turns, words) in grown.items():
        key = by_step[step]
        assert watched.stages(key)[-4:] == ["booting", "sampling", "scoring", "done"], watched.stages(key)
        assert (watched.last(key, "turns"), watched.last(key, "words")) == (turns, words)
        assert watched.last(key, "prompt") == f"Live {step}?" and watched.last(key, "source") == "demo"
    print(f"prime-rl: {len(grown)} traces seen in flight, by verifiers' own deltas")


def main() -> None:
    """Builds episodes, gives them to a watched monitor, and compares."""
    sampler = Sampler(tiny_tokenizer("qwen2_5"), random.Random(0))
    comparison = Comparison("prime-rl, verifiers", "verifiers", sampler.tokenizer)
    monitor = Monitor()
    prime_rl.attach(monitor, comparison.logger)
    with Watched(FOLDER, "rows") as watched:
        grown = {step: asyncio.run(grow(sampler, monitor, step)) for step in range(4)}
        time.sleep(1)
    check_live(watched, grown)
    for step in range(STEPS):
        start = time.perf_counter()
        episodes = one_step(sampler, step)
        done = time.perf_counter()
        asyncio.run(monitor.log_episodes(episodes, step, "train", "all"))
        asyncio.run(monitor.log_episodes(episodes, step, "train", "effective"))
        comparison.timed(done - start, time.perf_counter() - done)
        comparison.add(step, rows_of_step(episodes))
    comparison.finish()


if __name__ == "__main__":
    main()
