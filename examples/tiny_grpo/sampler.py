"""Batched sampling of multi-turn rollouts with a KV cache, and weights that may change half-way."""

from __future__ import annotations

import itertools
from collections import deque
from dataclasses import dataclass, field

import torch
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from .task import TOOLS, Episode, Problem, World

MAX_SAMPLED = 150  # tokens the model may write in one rollout, over all its turns


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
    turn_start: int = 0
    n_turns: int = 0
    stop_reason: str | None = None

    @property
    def done(self) -> bool:
        """Whether nothing will be added any more."""
        return self.stop_reason is not None and not self.forced

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
        """Give every row one token a turn of the loop: the next forced one, or a sampled one."""
        rows = [rollout for group in self.groups for rollout in group if not rollout.done]
        padded = self.tokenizer.pad(
            {"input_ids": [row.ids for row in rows]}, padding_side="left", return_tensors="pt"
        )
        inputs, mask = padded["input_ids"].to(model.device), padded["attention_mask"].to(model.device)
        positions = (mask.cumsum(1) - 1).clamp(min=0)
        cache = None
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
            for row, token, logprob, entropy in zip(rows, tokens, chosen, entropies, strict=True):
                if row.forced:
                    row.put_in(1)
                elif not row.done:
                    row.append(token, version, logprob, entropy)
                    self._after_sampled(row, token)
            if len(self._complete()) >= n_groups:
                return
            keep = [index for index, row in enumerate(rows) if not row.done]
            inputs = torch.tensor([[row.ids[-1]] for row in rows], device=model.device)
            mask = torch.nn.functional.pad(mask, (0, 1), value=1)
            positions = positions[:, -1:] + 1
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
            reply, row.stop_reason = row.episode.reply(text)
            row.n_turns += 1
            if reply:
                rendered = self._render([reply], reply_next=row.stop_reason is None)
                row.forced.extend(self.tokenizer.encode("\n") + rendered)
        if row.stop_reason is None and row.n_sampled >= self.max_sampled:
            row.stop_reason = "length"
            row.forced.clear()

    def _render(
        self, messages: list[dict[str, str]], reply_next: bool, tools: list | None = None
    ) -> list[int]:
        text = self.tokenizer.apply_chat_template(
            messages, tools=tools, tokenize=False, add_generation_prompt=reply_next
        )
        return self.tokenizer.encode(text, add_special_tokens=False)
