"""AReaL's episodes while they run, in the process whose executor runs them: their stages, and their spans.

The trainer finds a row's spans again by the end of its tokens and logprobs, where it is the same process. A rollout worker
of single-controller mode is another: what is in flight there is said, and when its turns ran stays unobserved.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import sys
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

from rollout_traces.integrations.base import contained, wrap_once
from rollout_traces.integrations.followed import Followed, begin, current, prompt_text
from rollout_traces.model.spans import Span

EXECUTOR, TASK = "areal.infra.workflow_executor", "_RolloutTaskInput"
"""The module of AReaL's executor, and what it makes of each prompt that it is given."""
PROMPTS = ("messages", "prompt", "question")
"""Keys of AReaL's data that can hold what is asked."""
TOKENS_IN_DIGEST = 256
"""Tokens from a row's end by which it is found again."""
MOST_WAITING = 20_000
"""Rows whose spans wait for the trainer; the oldest go."""
MOST_ALIKE = 64
"""Rows of equal tokens and logprobs whose spans wait; the oldest go."""


@dataclass(frozen=True)
class Noted:
    """A row's spans, and its id while it was in flight, as they were noted."""

    spans: Sequence[Span]
    live: str


_waiting: OrderedDict[bytes, deque[Noted]] = OrderedDict()


def install() -> None:
    """Follows what AReaL's executors of this process are given from now on."""
    module = sys.modules.get(EXECUTOR)
    task = getattr(module, TASK, None)
    if task is None or getattr(task, "_rollout_traces", False):
        return
    from areal.api import AsyncRewardWrapper

    @functools.wraps(task, updated=())
    def made(*args: Any, **kwargs: Any) -> Any:
        given = task(*args, **kwargs)
        followed = contained("areal")(_followed_task)(given)
        return given if followed is None else followed

    made._rollout_traces = True  # type: ignore[attr-defined]
    setattr(module, TASK, made)
    wrap_once(AsyncRewardWrapper, "__call__", _scored)


def noted_of(trajectory: Mapping[str, Any]) -> list[Noted | None]:
    """Takes out what was noted of the rows of a dict with local tensors, each once."""
    found: list[Noted | None] = []
    for row in range(len(trajectory["input_ids"])):
        key = _key(trajectory, row)
        alike = _waiting.get(key)
        found.append(None if alike is None else alike.popleft())
        if not alike:
            _waiting.pop(key, None)
    return found


class _Followed:
    """A workflow whose episodes are followed.

    Args:
        workflow: the trainer's.
        known: what is known of all of its episodes of a task.
    """

    def __init__(self, workflow: Any, known: Mapping[str, Any]) -> None:
        self._workflow = workflow
        self._known = known

    def __getattr__(self, name: str) -> Any:
        return getattr(self._workflow, name)

    async def arun_episode(self, engine: Any, data: Any) -> Any:
        """The workflow's own."""
        followed = contained("areal")(self._begin)(engine, data)
        if followed is None:
            return await self._workflow.arun_episode(engine, data)
        with followed.running():
            result = await self._workflow.arun_episode(engine, data)
        if result is None:
            followed.live.stage("aborted", "gave nothing")
        else:
            followed.live.stage("done")
            contained("areal")(_keep)(followed, result)
        return result

    def _begin(self, engine: Any, data: Any) -> Followed:
        _watch(engine)
        return Followed(begin(_prompt(data), **self._known))


def _followed_task(task: Any) -> Any:
    """A task of an executor with its workflow followed; of a group the workflow inside, an episode each."""
    split = "eval-rollout" if task.is_eval else "rollout"
    known = {"split": split, "group": str(task.task_id)}
    group = task.workflow
    if hasattr(group, "group_size") and hasattr(group, "workflow"):
        followed = _copied(group, _Followed(group.workflow, known))
    else:
        followed = _Followed(group, known)
    return dataclasses.replace(task, workflow=followed)


def _keep(followed: Followed, result: Any) -> None:
    """Keeps what was noted until the trainer has the rows: of tensors [g, T], or one a request of an agent."""
    rows = [result] if "input_ids" in result else [each.to_tensor_dict() for each in result.values()]
    noted = Noted(followed.noted, followed.live.id)
    for trajectory in rows:
        for row in range(len(trajectory["input_ids"])):
            _waiting.setdefault(_key(trajectory, row), deque(maxlen=MOST_ALIKE)).append(noted)
    while len(_waiting) > MOST_WAITING:
        _waiting.popitem(last=False)


def _copied(group: Any, inner: Any) -> Any:
    """AReaL's group of a workflow, with another workflow inside."""
    made = object.__new__(type(group))
    made.__dict__.update(group.__dict__, workflow=inner)
    return made


def _watch(engine: Any) -> None:
    """Has an engine say when an episode that is followed samples."""

    def around(agenerate: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def wrapped(request: Any, *args: Any, **kwargs: Any) -> Any:
            followed = current.get()
            if followed is None:
                return await agenerate(request, *args, **kwargs)
            followed.tokenizer = getattr(request, "tokenizer", None)
            with followed.sampling() as span:
                response = await agenerate(request, *args, **kwargs)
                contained("areal")(_describe)(span, engine, request, response)
            contained("areal")(followed.sampled)(response.output_tokens)
            return response

        return wrapped

    wrap_once(engine, "agenerate", around)


def _describe(span: Span, engine: Any, request: Any, response: Any) -> None:
    """The server that sampled a turn, and the version that it began with."""
    server = getattr(engine, "rid_to_address", {}).get(request.rid)
    if server is not None:
        span["engine"] = str(server)
    if response.output_versions:
        span["version"] = int(response.output_versions[0])


def _scored(call: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    async def wrapped(self: Any, *args: Any, **kwargs: Any) -> Any:
        followed, name = current.get(), getattr(self.reward_fn, "__name__", None)
        with nullcontext() if followed is None else followed.scoring(name):
            return await call(self, *args, **kwargs)

    return wrapped


def _prompt(data: Any) -> str | None:
    if not isinstance(data, Mapping):
        return None
    return next((prompt_text(data[key]) for key in PROMPTS if key in data), None)


def _key(trajectory: Mapping[str, Any], row: int) -> bytes:
    """Makes the key that tells a row from others: the end of its tokens and of their logprobs."""
    present = trajectory["attention_mask"][row].bool()
    digest = hashlib.blake2b(digest_size=16)
    for name in ("input_ids", "logprobs", "versions"):
        if name in trajectory:
            digest.update(trajectory[name][row][present][-TOKENS_IN_DIGEST:].double().numpy().tobytes())
    return digest.digest()
