"""Scalars to the trackers, at a step that never goes back."""

from __future__ import annotations

import trackio


class StatsLogger:
    def __init__(self, config, ft_spec):
        self.exp_config = config
        self.config = config.stats_logger
        self.ft_spec = ft_spec
        self._last_commit_step = -1
        self._trackio_enabled = self.config.trackio.mode != "disabled"
        if self._trackio_enabled:
            trackio.init(
                project=self.config.trackio.project or self.config.experiment_name,
                name=self.config.trackio.name or self.config.trial_name,
            )

    def state_dict(self):
        return {"last_commit_step": self._last_commit_step}

    def load_state_dict(self, state_dict):
        self._last_commit_step = state_dict["last_commit_step"]

    def close(self):
        if self._trackio_enabled:
            trackio.finish()

    def commit(self, epoch: int, step: int, global_step: int, data: dict | list[dict]):
        items = [data] if isinstance(data, dict) else data
        log_step = max(global_step, self._last_commit_step + 1)
        for index, item in enumerate(items):
            if self._trackio_enabled:
                trackio.log(item, step=log_step + index)
        self._last_commit_step = log_step + len(items) - 1
