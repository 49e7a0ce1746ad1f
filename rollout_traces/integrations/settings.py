"""What a hooked trainer logs, from arguments and environment variables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from rollout_traces.settings.environment import as_environment, read_environment


@dataclass(frozen=True)
class HookSettings:
    """Options of the `RolloutLogger` that a hook makes; None leaves the trainer's own or the default.

    Each can be given as an environment variable, `ROLLOUT_TRACES_` and the name in capitals.

    Attributes:
        max_rollout_traces_per_step: rollouts that become traces, per step and split; 0: none.
        project: Trackio project, where the trainer opens no run of its own.
        name: run name, where the trainer opens no run of its own.
        selection: how the cap is spent.
        space_id: Hugging Face Space to log to.
        private: whether a Space that has to be created is private.
        server_url: self-hosted Trackio server to log to.
        ledger: whether every step's ledger of all rows is kept.
        all_rows_folder: folder that gets one JSON file a step with the text of every rollout.
        alert_webhook: address that gets every alert as JSON; a secret.
        max_disk_gb: gigabytes of the project's database above which steps keep their ledger only.
        chat_template: the Jinja template that prompts are rendered with.
        chat_template_kwargs: further arguments of the template; as a variable, JSON.
        check_only: look at the first rollouts as `rollout-traces check` does, and end the script; nothing is logged.
    """

    max_rollout_traces_per_step: int | None = None
    project: str | None = None
    name: str | None = None
    selection: str | None = None
    space_id: str | None = None
    private: bool | None = None
    server_url: str | None = None
    ledger: bool | None = None
    all_rows_folder: str | None = None
    alert_webhook: str | None = field(default=None, repr=False)
    max_disk_gb: float | None = None
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    check_only: bool | None = None

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> HookSettings:
        """Reads the variables that are set.

        Raises:
            ConfigError: a variable cannot be understood; the text names it.
        """
        return cls(**read_environment(cls, environment))

    def as_environment(self) -> dict[str, str]:
        """The variables that give these settings to a child process."""
        return as_environment(self.given())

    def given(self) -> dict[str, Any]:
        """The settings that are not None."""
        return {
            item.name: getattr(self, item.name)
            for item in fields(self)
            if getattr(self, item.name) is not None
        }

    def over(self, defaults: Mapping[str, Any]) -> dict[str, Any]:
        """Arguments for a `RolloutLogger`: these settings over the trainer's own."""
        return {**{key: value for key, value in defaults.items() if value is not None}, **self.given()}
