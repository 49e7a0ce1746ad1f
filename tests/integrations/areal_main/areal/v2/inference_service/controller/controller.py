"""The rollout controller of main's second controller generation: batches of handles, one dict a prompt."""

from __future__ import annotations

from typing import Any

import torch

from areal.infra.rpc.rtensor import RTensor

PROMPT, ANSWER = [5, 6, 7], [8, 9]


class RolloutControllerV2:
    def __init__(self, config: Any, scheduler: Any) -> None:
        self.version = 0
        self.pending: list[int] = []
        self.made: list[dict[str, torch.Tensor]] = []

    def set_version(self, version: int) -> None:
        self.version = version

    def submit(self, data: Any, workflow: Any, workflow_kwargs: Any = None, group_size=1, is_eval=False):
        self.pending.append(group_size)

    def wait(self, count: int, timeout: float | None = None, raise_timeout: bool = True):
        groups, self.pending = self.pending[:count], self.pending[count:]
        return [RTensor.remotize(self._group(size), node_addr="n:1") for size in groups]

    def prepare_batch(
        self,
        dataloader: Any,
        workflow: Any,
        workflow_kwargs: dict[str, Any] | None = None,
        should_accept_fn: Any = None,
        group_size: int = 1,
        dynamic_bs: bool = False,
        reward_normalization: bool = False,
        drop_incomplete_group: bool = False,
    ) -> list[dict[str, Any] | None]:
        groups = [RTensor.remotize(self._group(group_size), node_addr="n:1") for _ in next(iter(dataloader))]
        return [*groups, None]

    def export_stats(self) -> dict[str, float]:
        return {"rollout/accepted": 1.0}

    def pause(self) -> None: ...

    def resume(self) -> None: ...

    def destroy(self) -> None: ...

    def _group(self, size: int) -> dict[str, torch.Tensor]:
        """Rows of growing length, padded with zeros in every key."""
        width = len(PROMPT) + len(ANSWER) + size
        keys = ("input_ids", "loss_mask", "versions", "turn_ids")
        made = {key: torch.zeros(size, width, dtype=torch.int64) for key in keys}
        made["attention_mask"] = torch.zeros(size, width, dtype=torch.bool)
        made["logprobs"] = torch.zeros(size, width)
        made["rewards"] = torch.arange(size).float()
        for row in range(size):
            ids = [*PROMPT, *ANSWER, *range(10, 10 + row)]
            n, p = len(ids), len(PROMPT)
            made["input_ids"][row, :n] = torch.tensor(ids)
            made["attention_mask"][row, :n] = True
            made["loss_mask"][row, p:n] = 1
            made["versions"][row, :n] = torch.tensor([-1] * p + [self.version] * (n - p))
            made["turn_ids"][row, :n] = torch.tensor([-1] * p + [0] * (n - p))
            made["logprobs"][row, p:n] = -0.5
        self.made.append(made)
        return made
