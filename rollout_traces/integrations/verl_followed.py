"""verl's agent loops while they run, in the workers that run them: their stages, and their spans.

verl loads its plugin in every process that imports it, so also in those workers. What was noted of a rollout goes back to
the trainer with it, under `NOTED` of its `extra_fields`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import orjson

from rollout_traces.integrations.base import contained, wrap_once
from rollout_traces.integrations.followed import Followed, begin, current, prompt_text
from rollout_traces.model.spans import Span

NOTED = "rollout_traces"
"""The key of `extra_fields` with a rollout's spans and its id while it was in flight: a text, which every transport takes."""


def install() -> None:
    """Follows every agent loop that this process runs from now on."""
    from verl.experimental.agent_loop.agent_loop import AgentLoopWorker

    wrap_once(AgentLoopWorker, "_run_agent_loop", _followed)
    wrap_once(AgentLoopWorker, "_compute_score", _scored)


def install_tools() -> None:
    """Follows the tools that verl's tool agent loop calls."""
    from verl.experimental.agent_loop.tool_agent_loop import ToolAgentLoop

    wrap_once(ToolAgentLoop, "_call_tool", _called)


def noted_columns(rows: Sequence[Any]) -> dict[str, Any]:
    """`timings` and `extras` of rows, of what verl brought back under `NOTED` of each."""
    noted = [orjson.loads(row) if isinstance(row, str) else {} for row in rows]
    found: dict[str, Any] = {}
    if any(row.get("spans") for row in noted):
        found["timings"] = [row.get("spans") for row in noted]
    if any(row.get("live") for row in noted):
        found["extras"] = [{"live": row["live"]} if row.get("live") else {} for row in noted]
    return found


def _followed(run: Callable[..., Any]) -> Callable[..., Any]:
    """`_run_agent_loop`: a rollout from its beginning to where it is handed on."""

    async def wrapped(self: Any, sampling_params: Any, trajectory: Any, **kwargs: Any) -> Any:
        followed = contained("verl")(_begin)(self, trajectory, kwargs)
        if followed is None:
            return await run(self, sampling_params, trajectory, **kwargs)
        with followed.running():
            result = await run(self, sampling_params, trajectory, **kwargs)
        followed.live.stage("done")
        return result

    return wrapped


def _begin(worker: Any, trajectory: Mapping[str, Any], given: Mapping[str, Any]) -> Followed:
    wrap_once(worker.llm_client, "generate", _sampled)
    known = {
        "step": trajectory.get("step"),
        "split": "eval-rollout" if trajectory.get("validate") else "rollout",
        "source": given.get("data_source"),
        "group": given.get("uid"),
    }
    return Followed(begin(prompt_text(list(given["raw_prompt"])), **known), worker.tokenizer)


def _sampled(generate: Callable[..., Any]) -> Callable[..., Any]:
    """The client's `generate`, which says when a rollout that is followed samples."""

    async def wrapped(*args: Any, **kwargs: Any) -> Any:
        followed = current.get()
        if followed is None:
            return await generate(*args, **kwargs)
        with followed.sampling() as span:
            output = await generate(*args, **kwargs)
            contained("verl")(_describe)(span, output)
        contained("verl")(followed.sampled)(output.token_ids)
        return output

    return wrapped


def _describe(span: Span, output: Any) -> None:
    """The version that a turn began with, where the server says."""
    version = (getattr(output, "extra_fields", None) or {}).get("min_global_steps")
    if version is not None:
        span["version"] = int(version)


def _called(call: Callable[..., Any]) -> Callable[..., Any]:
    async def wrapped(self: Any, tool_call: Any, *args: Any, **kwargs: Any) -> Any:
        followed = current.get()
        with nullcontext() if followed is None else followed.tool(str(getattr(tool_call, "name", ""))):
            return await call(self, tool_call, *args, **kwargs)

    return wrapped


def _scored(score: Callable[..., Any]) -> Callable[..., Any]:
    """`_compute_score`, behind which a rollout is handed on; a loop that gave its own reward is not scored there."""

    async def wrapped(self: Any, outputs: Any, *args: Any, **kwargs: Any) -> Any:
        followed = current.get()
        if followed is None:
            return await score(self, outputs, *args, **kwargs)
        scores = self.reward_loop_worker_handles is not None and not _has_reward(outputs)
        with followed.scoring() if scores else nullcontext():
            result = await score(self, outputs, *args, **kwargs)
        contained("verl")(_hand_on)(followed, outputs)
        return result

    return wrapped


def _has_reward(outputs: Any) -> bool:
    return bool(outputs) and getattr(outputs[-1], "reward_score", None) is not None


def _hand_on(followed: Followed, outputs: Sequence[Any]) -> None:
    for output in outputs:
        noted = {"spans": followed.noted, "live": followed.live.id}
        output.extra_fields[NOTED] = orjson.dumps(noted).decode()
