"""The settings of a hooked trainer's logging, from arguments and environment variables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rollout_traces.settings.environment import as_environment, read_environment
from rollout_traces.settings.logger_options import HERE, LoggerOptions


@dataclass
class HookOptions(LoggerOptions):
    """The options of the `RolloutLogger` that a hook makes, and the hook's own.

    Attributes:
        check_only: look at the first rollouts as `rollout-traces check` does, and end the script; nothing is logged.
    """

    check_only: bool = field(default=False, metadata=HERE)


class HookSettings:
    """The options of `HookOptions` that were given; each can be an environment variable, `ROLLOUT_TRACES_` and its name.

    Args:
        **given: fields of `HookOptions`; None leaves the trainer's own or the default.

    Raises:
        TypeError: there is no such option.
    """

    def __init__(self, **given: Any) -> None:
        self._given = {name: value for name, value in given.items() if value is not None}
        HookOptions.of(**self._given)

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> HookSettings:
        """Reads the variables that are set.

        Raises:
            ConfigError: a variable cannot be understood; the text names it.
        """
        return cls(**read_environment(HookOptions, environment))

    @property
    def max_rollout_traces_per_step(self) -> int:
        """Rollouts that become traces, per step and split; 0 where it was not given."""
        return int(self._given.get("max_rollout_traces_per_step", 0))

    def as_environment(self) -> dict[str, str]:
        """The variables that give these settings to a child process."""
        return as_environment(self._given)

    def given(self) -> dict[str, Any]:
        """The settings by name."""
        return dict(self._given)

    def over(self, defaults: Mapping[str, Any]) -> dict[str, Any]:
        """Arguments for a `RolloutLogger`: these settings over the trainer's own."""
        return {**{key: value for key, value in defaults.items() if value is not None}, **self._given}
