"""The Lightning example of docs/trainers.md, in a real fit. Run by `make test-trainers` in an environment of its own."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

os.environ["TRACKIO_DIR"] = tempfile.mkdtemp()
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import lightning
import torch

import rollout_traces as rt
from tests.trainers.docs_example import batch, check, example


class Policy(lightning.LightningModule):
    """A module that samples in its training step, as one that is trained with reinforcement learning does."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        self.rollouts: dict = {}

    def training_step(self, rows, index):
        self.rollouts = batch(self.global_step + 1)
        return self.layer(rows).sum()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.01)


def main() -> None:
    """Runs the example and looks at what is stored."""
    logger = rt.RolloutLogger("lightning-example", "r1", max_rollout_traces_per_step=8)
    names = {"lightning": lightning, "logger": logger}
    exec(example("lightning.Callback"), names)
    trainer = lightning.Trainer(
        max_steps=3,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        callbacks=[names["Rollouts"]()],
    )
    trainer.fit(Policy(), torch.utils.data.DataLoader(torch.ones(8, 1), batch_size=2))
    check("lightning-example", [1, 2, 3], 4)


if __name__ == "__main__":
    main()
