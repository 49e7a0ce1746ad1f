"""Which function is called once which module of a trainer has been imported. No imports: loaded at start."""

from __future__ import annotations

TRIGGERS: dict[str, tuple[str, str]] = {
    "areal.api.cli_args": ("rollout_traces.integrations.areal", "extend_config"),
    "areal.trainer.rl_trainer": ("rollout_traces.integrations.areal", "install"),
    "trl.trainer.grpo_trainer": ("rollout_traces.integrations.trl", "install"),
    "trl.trainer.rloo_trainer": ("rollout_traces.integrations.trl", "install_rloo"),
    "verl.trainer.ppo.ray_trainer": ("rollout_traces.integrations.verl", "install"),
    "verl.trainer.ppo.v1.trainer_base": ("rollout_traces.integrations.verl_v1", "install"),
}
