"""The train controller of main's second controller generation: batches come from the rollout controller."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

from areal.infra.rpc.rtensor import RTensor, clear_fetch_buffer, flatten_shard_ids


class GatewayTrainController:
    def __init__(self, train_engine: Any, config: Any, scheduler: Any) -> None:
        self.rollout: Any = None
        self.cleared = 0

    def connect_engine(self, rollout: Any, meta: Any) -> None:
        self.rollout = rollout

    def prepare_batch(
        self,
        dataloader: Any,
        workflow: Any,
        workflow_kwargs: dict[str, Any],
        should_accept_fn: str | None = None,
        group_size: int = 1,
        dynamic_bs: bool = False,
        reward_normalization: bool = False,
        drop_incomplete_group: bool = False,
    ) -> list[dict[str, Any]]:
        return self.rollout.prepare_batch(dataloader, workflow, workflow_kwargs, group_size=group_size)

    def compute_advantages(self, input_: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Advantages in the frame that is rolled left by one, as the mask beside them."""
        made = []
        for handles in filter(None, input_):
            ids = torch.empty(handles["input_ids"].shape)
            mask = RTensor.localize({"m": handles["loss_mask"]})["m"]
            made.append(
                RTensor.remotize(
                    {
                        "advantages": torch.ones_like(ids),
                        "loss_mask": torch.roll(mask.float(), -1, -1),
                    },
                    node_addr="n:1",
                )
            )
        return made

    def ppo_update(self, input_: list[dict[str, Any]]) -> None: ...

    def clear_batches(self, *targets: Any) -> None:
        self.cleared += clear_fetch_buffer(flatten_shard_ids(list(targets)))

    def is_data_parallel_head(self) -> bool:
        return True

    def export_stats(self) -> dict[str, float]:
        return {"ppo_actor/loss": 0.5}

    def get_device_stats(self) -> Any:
        return SimpleNamespace(log=lambda *_: None)

    def destroy(self) -> None: ...
