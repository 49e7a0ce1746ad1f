"""rLLM: `{train,val}_step_<N>_epoch_<E>/episode_*.json`, one episode a file, its trajectories step by step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from rollout_traces.sources.base import EVAL, TRAIN, Claim, FileFormat, FileReading, Found, Head, number_in
from rollout_traces.sources.chat import Record, messages_of
from rollout_traces.sources.rows import NO_TOKENS, RolloutRow, number, numbers, scalars


class Rllm(FileFormat):
    """`training_step, episode_id, task, is_correct, trajectories: [{steps: [{chat_completions, model_response, reward}]}]`."""

    name = "rllm"
    title = "rLLM, logged episodes"

    def claim(self, head: Head) -> Claim | None:
        if not head.path.name.startswith("episode_") or not head.has("training_step", "episode_id"):
            return None
        folder = head.path.parent
        step = number_in(r"_step_(\d+)", folder.name)
        split = EVAL if folder.name.startswith(("val", "test", "eval")) else TRAIN
        lacks = (*NO_TOKENS, "advantages")
        return Claim(head.above(r".*_step_\d+.*"), step, split, lacks)

    def read(self, reading: FileReading) -> Iterator[RolloutRow]:
        episode = reading.whole()
        if episode is None:
            return
        rows: list[RolloutRow] = []
        for n, trajectory in enumerate(
            reading.mappings(None, "trajectories", episode.get("trajectories")), 1
        ):
            steps = reading.mappings(None, f"steps of trajectory {n}", trajectory.get("steps"))
            if not steps:
                text = f"trajectory {n} has no steps; it is passed over."
                reading.note("rows_refused", text)
            with reading.refusing(n, "the trajectory"):
                made: list[RolloutRow] = []
                for at, branch in enumerate(_branches(steps), len(rows) + 1):
                    made.append(_row(episode, trajectory, branch, reading.found, at))
                    made[-1].parent = made[-2].sample_id if len(made) > 1 else None
                rows += made
        yield from rows


def _branches(steps: Sequence[Record]) -> list[list[Record]]:
    """Runs of steps whose conversations grow; a step that does not continue the one before begins another."""
    branches: list[list[Record]] = []
    for step in steps:
        chat = step.get("chat_completions") or []
        before = branches[-1][-1].get("chat_completions") or [] if branches else None
        if before is not None and chat[: len(before)] == before:
            branches[-1].append(step)
        else:
            branches.append([step])
    return branches


def _row(episode: Record, trajectory: Record, steps: list[Record], found: Found, n: int) -> RolloutRow:
    last = steps[-1]
    chat = last.get("chat_completions") or []
    messages = messages_of(chat) or []
    response = last.get("model_response")
    if isinstance(response, str) and response and (not messages or messages[-1]["role"] != "assistant"):
        messages.append({"role": "assistant", "content": response})
    reward = number(trajectory.get("reward"))
    identity = str(episode.get("episode_id"))
    termination = episode.get("termination_reason")
    return RolloutRow(
        step=int(episode.get("training_step") or found.claim.step or 0),
        split=found.claim.split,
        line=n,
        messages=messages or None,
        reward=reward if reward is not None else number(last.get("reward")),
        success=episode.get("is_correct"),
        metrics={**numbers(episode.get("metrics")), **numbers(trajectory.get("signals"))},
        group=f"{identity.partition(':')[0] or episode.get('task_hash')}:{trajectory.get('name')}",
        prompt_key=episode.get("task_hash"),
        episode=identity,
        sample_id=f"{identity}#{n}",
        source=str(trajectory.get("name")) if trajectory.get("name") else None,
        stop_reason=None
        if termination is None
        else _STOPS.get(str(termination).lower(), str(termination).lower()),
        ground_truth=(episode.get("task") or {}).get("ground_truth")
        if isinstance(episode.get("task"), Mapping)
        else None,
        timings=numbers(episode.get("timing")) or None,
        extras=scalars(episode.get("metadata")),
    )


_STOPS = {
    "env_done": "stop",
    "max_response_length_exceeded": "length",
    "max_prompt_length_exceeded": "length",
}
