"""Batched sampling of multi-turn rollouts with a KV cache, and weights that may change half-way."""

from __future__ import annotations

import itertools
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from .task import TOOLS, Episode, Problem, World

MAX_SAMPLED = 150  # tokens the model may write in one rollout, over all its turns
BEGAN = time.time() - time.thread_time()


def now() -> float:
    """Seconds since the epoch, by this thread's processor time: other work of the machine is no part of them."""
    return BEGAN + time.thread_time()


@dataclass
class Rollout:
    """One sampled sequence and the environment that answers it.

    Attributes:
        ids: All tokens so far. The lists below run along it.
        sampled: Whether the model wrote the token.
        versions: Policy version that sampled it, -1 if it was not sampled.
        logprobs: Its log-probability when it was sampled, else 0.
        entropies: Entropy of the distribution it was drawn from, else 0.
        turn_ids: Index of the sampled turn it belongs to, -1 if it was not sampled.
        forced: Tokens of the environment that are still to be put in.
        waits: Turns of the sampler's loop until its tool has answered.
        timings: When its turns were sampled and its tools ran, as spans.
        stop_reason: ``stop``, ``length`` or ``max_turns`` once it is done.
    """

    episode: Episode
    group_id: int
    ids: list[int] = field(default_factory=list)
    sampled: list[bool] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    entropies: list[float] = field(default_factory=list)
    turn_ids: list[int] = field(default_factory=list)
    forced: deque[int] = field(default_factory=deque)
    waits: int = 0
    timings: list[dict[str, Any]] = field(default_factory=list)
    turn_start: int = 0
    n_turns: int = 0
    stop_reason: str | None = None
    running: dict[str, Any] | None = None

    @property
    def done(self) -> bool:
        """Whether nothing will be added any more."""
        return self.stop_reason is not None and not self.forced

    def begin(self, kind: str, **known: Any) -> None:
        """Note that a span of this turn runs from now on."""
        self.running = {"kind": kind, "turn": self.n_turns, "start": now(), **known}

    def begin_turn(self, version: int) -> None:
        """Note that a turn is sampled from now on, where the environment has had its say."""
        if not (self.waits or self.forced or self.done):
            self.begin("generate", version=version)

    def end(self) -> None:
        """Note that the span that runs, if any, is over; a tool that has not answered goes on."""
        if self.running is not None and not self.waits:
            self.timings.append({**self.running, "end": now()})
            self.running = None

    @property
    def n_sampled(self) -> int:
        """Tokens the model wrote."""
        return sum(self.sampled)

    def append(self, token: int, version: int = -1, logprob: float = 0.0, entropy: float = 0.0) -> None:
        """Add one token; ``version`` -1 says that the environment put it in."""
        self.ids.append(token)
        self.sampled.append(version >= 0)
        self.versions.append(version)
        self.logprobs.append(logprob)
        self.entropies.append(entropy)
        self.turn_ids.append(self.n_turns if version >= 0 else -1)

    def put_in(self, count: int) -> None:
        """Move ``count`` of the forced tokens into the rollout."""
        for _ in range(count):
            self.append(self.forced.popleft())
        self.turn_start = len(self.ids)


class Sampler:
    """Keeps groups of rollouts in flight and hands out those that are complete.

    A few more groups are in flight than a step needs. Those that are not complete when the step has
    enough go on in the next step with the new weights: their tokens carry two policy versions, and
    those that were complete but not needed are one version old when they are trained on.

    Args:
        tokenizer: With a chat template.
        group_size: Rollouts of each problem.
        seed: Seeds the draws.
        world: What the environment does.
        max_sampled: Tokens the model may write in one rollout.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerFast,
        group_size: int,
        seed: int,
        world: World | None = None,
        max_sampled: int = MAX_SAMPLED,
    ) -> None:
        self.world = world or World()
        self.tokenizer = tokenizer
        self.group_size = group_size
        self.max_sampled = max_sampled
        self.generator = torch.Generator().manual_seed(seed)
        self.group_ids = itertools.count()
        self.groups: deque[list[Rollout]] = deque()

    def start(self, problem: Problem) -> None:
        """Put the group of one problem in flight."""
        prompt = self._render(Episode(problem).opening(), reply_next=True, tools=TOOLS)
        group_id = next(self.group_ids)
        hosts = itertools.islice(itertools.cycle(self.world.hosts), self.group_size)
        group = [Rollout(Episode(problem, host, self.world.short), group_id) for host in hosts]
        for rollout in group:
            rollout.forced.extend(prompt)
            rollout.put_in(len(prompt))
        self.groups.append(group)

    @torch.inference_mode()
    def collect(self, model: LlamaForCausalLM, version: int, n_groups: int) -> list[list[Rollout]]:
        """Sample until ``n_groups`` groups are complete and return them, the oldest first."""
        if len(self._complete()) < n_groups:
            self._decode(model, version, n_groups)
        taken = self._complete()[:n_groups]
        for group in taken:
            self.groups.remove(group)
        return taken

    def _complete(self) -> list[list[Rollout]]:
        return [group for group in self.groups if all(rollout.done for rollout in group)]

    def _decode(self, model: LlamaForCausalLM, version: int, n_groups: int) -> None:
        """Give every row one token a turn of the loop: the next forced one, or a sampled one; none while it waits."""
        rows = [rollout for group in self.groups for rollout in group if not rollout.done]
        padded = self.tokenizer.pad(
            {"input_ids": [row.ids for row in rows]}, padding_side="left", return_tensors="pt"
        )
        inputs, mask = padded["input_ids"].to(model.device), padded["attention_mask"].to(model.device)
        positions = (mask.cumsum(1) - 1).clamp(min=0)
        cache = None
        for row in rows:
            row.begin_turn(version)
        while True:
            output = model(
                input_ids=inputs,
                attention_mask=mask,
                position_ids=positions,
                past_key_values=cache,
                use_cache=True,
                logits_to_keep=1,
            )
            cache = output.past_key_values
            logprobs_B_V = output.logits[:, -1].float().log_softmax(-1).cpu()
            probs_B_V = logprobs_B_V.exp()
            drawn = self._draw(probs_B_V)
            chosen = logprobs_B_V.gather(1, drawn).squeeze(1).tolist()
            entropies = (-probs_B_V * logprobs_B_V).sum(1).tolist()
            tokens = drawn.squeeze(1).tolist()
            grew = [not row.waits for row in rows]
            for row, token, logprob, entropy in zip(rows, tokens, chosen, entropies, strict=True):
                if row.waits:
                    row.waits -= 1
                    row.end()
                elif row.forced:
                    row.put_in(1)
                    row.begin_turn(version)
                elif not row.done:
                    row.append(token, version, logprob, entropy)
                    self._after_sampled(row, token)
            if len(self._complete()) >= n_groups:
                for row in rows:
                    row.end()
                return
            keep = [index for index, row in enumerate(rows) if not row.done]
            inputs = torch.tensor([[row.ids[-1]] for row in rows], device=model.device)
            mask = torch.cat([mask, torch.tensor(grew, device=model.device)[:, None].to(mask)], 1)
            positions = positions[:, -1:] + mask[:, -1:]
            if len(keep) < 0.8 * len(rows):  # the finished rows leave the cache
                index = torch.tensor(keep, device=model.device)
                rows = [rows[i] for i in keep]
                inputs, mask, positions = inputs[index], mask[index], positions[index]
                cache.batch_select_indices(index)

    def _draw(self, probs_B_V: torch.Tensor) -> torch.Tensor:
        """Draw one token a row, [B, 1]: several times faster on a CPU than ``torch.multinomial``."""
        cumulated = probs_B_V.cumsum(1)
        points = torch.rand((len(cumulated), 1), generator=self.generator) * cumulated[:, -1:]
        return torch.searchsorted(cumulated, points)

    def _after_sampled(self, row: Rollout, token: int) -> None:
        """Let the environment answer a turn that has just ended; stop a rollout that is too long."""
        if token == self.tokenizer.eos_token_id:
            text = self.tokenizer.decode(row.ids[row.turn_start : -1])
            row.end()
            reply, row.stop_reason = row.episode.reply(text)
            if reply and reply["role"] == "tool":
                failed = {"error": reply["content"]} if reply["content"].startswith("error") else {}
                row.begin("tool", name="calculator", **failed)
                row.waits = row.episode.host.waits
                row.end()
            row.n_turns += 1
            if reply:
                rendered = self._render([reply], reply_next=row.stop_reason is None)
                row.forced.extend(self.tokenizer.encode("\n") + rendered)
        if row.stop_reason is None and row.n_sampled >= self.max_sampled:
            row.stop_reason = "length"
            row.end()
            row.forced.clear()

    def _render(
        self, messages: list[dict[str, str]], reply_next: bool, tools: list | None = None
    ) -> list[int]:
        text = self.tokenizer.apply_chat_template(
            messages, tools=tools, tokenize=False, add_generation_prompt=reply_next
        )
        return self.tokenizer.encode(text, add_special_tokens=False)
