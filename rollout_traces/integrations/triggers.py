"""Which function is called once which module of a trainer has been imported. No imports: loaded at start.

Unsloth puts classes of its own, made of TRL's source, in the place of TRL's as it is imported: they are hooked then.
"""

from __future__ import annotations

TRIGGERS: dict[str, tuple[str, str]] = {
    "areal.api.cli_args": ("rollout_traces.integrations.areal", "extend_config"),
    "areal.trainer.rl_trainer": ("rollout_traces.integrations.areal", "install"),
    "trl.trainer.grpo_trainer": ("rollout_traces.integrations.trl", "install"),
    "trl.trainer.rloo_trainer": ("rollout_traces.integrations.trl", "install_rloo"),
    "trl.experimental.async_grpo.async_grpo_trainer": ("rollout_traces.integrations.trl_async", "install"),
    "unsloth": ("rollout_traces.integrations.trl", "install_recompiled"),
    "verl.trainer.ppo.ray_trainer": ("rollout_traces.integrations.verl", "install"),
    "verl.trainer.ppo.v1.trainer_base": ("rollout_traces.integrations.verl_v1", "install"),
}
