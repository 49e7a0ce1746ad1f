"""Settings that a run declares once: clip bounds, what counts as solved, ranges for display."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

from rollout_traces.errors import ConfigError

CONFIG_KEY = "rollout_traces"
"""The key of the settings in the run's config, as the mapping that `RunSettings.as_config` gives."""
FLAG_PARAMETERS = "flag_parameters"
"""The key of the flags' thresholds among them, so that a reader judges as the run did."""
WRITTEN_BESIDE = (FLAG_PARAMETERS, "tokenizer")
"""Keys that the logger writes among the settings and that are none."""


@dataclass(frozen=True)
class Range:
    """The declared range of a metric, for display only.

    Attributes:
        min: smallest value expected.
        max: largest value expected.
        invert: lower is better.
    """

    min: float
    max: float
    invert: bool = False

    def __post_init__(self) -> None:
        if not (math.isfinite(self.min) and math.isfinite(self.max) and self.min < self.max):
            raise ConfigError(
                f"range: seen min={self.min!r}, max={self.max!r}. Expected finite numbers, min below max."
            )


@dataclass(frozen=True)
class RunSettings:
    """The settings that a run declares about itself.

    Attributes:
        reward_range: range of the reward; None = take the observed minimum and maximum.
        metric_ranges: metric name -> range.
        success_threshold: a reward of at least this is a success, where the trainer gives no
            `successes`; None = unknown.
        component_weights: reward component -> its weight in the reward; where none is declared they are
            found from the step, if there are weights that reproduce its rewards and no others do. A component
            whose weight is neither declared nor found has no share.
        clip_low: PPO's lower clip bound e: ratios below 1 - e are clipped; None = unknown.
        clip_high: PPO's upper clip bound e: ratios above 1 + e are clipped; None = unknown.
        importance_cap: importance weight above which the trainer truncates (TIS); None = it does not, or unknown.
        importance_band: importance weights outside which the trainer masks a token (IcePop); None = likewise.
        tools: names of the declared tools; calls of others are counted as unknown.
        samples_per_prompt: rollouts asked for per prompt; None = unknown.
    """

    reward_range: Range | None = None
    metric_ranges: Mapping[str, Range] = field(default_factory=dict)
    success_threshold: float | None = None
    component_weights: Mapping[str, float] = field(default_factory=dict)
    clip_low: float | None = None
    clip_high: float | None = None
    importance_cap: float | None = None
    importance_band: Range | None = None
    tools: tuple[str, ...] = ()
    samples_per_prompt: int | None = None

    @classmethod
    def create(cls, **given: Any) -> RunSettings:
        """Builds settings from what a caller or a stored config gives.

        Args:
            **given: fields of the class; a range as `(min, max)`, or a mapping with `min`, `max` and perhaps `invert`. None
                is not declared.

        Returns:
            The settings.

        Raises:
            ConfigError: a range or a name cannot be understood.
        """
        unknown = sorted(set(given) - set(cls.__dataclass_fields__))
        if unknown:
            raise ConfigError(
                f"run settings: unknown {unknown[0]!r}. Expected {', '.join(cls.__dataclass_fields__)}."
            )
        known = {key: value for key, value in given.items() if value is not None}
        for key in known.keys() & {"reward_range", "importance_band"}:
            known[key] = parse_range(key, known[key])
        named = known.get("metric_ranges", {}).items()
        ranges = {str(name): parse_range(f"metric_ranges[{name!r}]", value) for name, value in named}
        known["metric_ranges"] = {name: span for name, span in ranges.items() if span is not None}
        known["tools"] = tuple(map(str, known.get("tools", ())))
        return cls(**known)

    @classmethod
    def from_config(cls, config: Mapping[str, Any] | None) -> RunSettings:
        """Reads the settings that a run's config carries under `CONFIG_KEY`; defaults when it has none."""
        stored = (config or {}).get(CONFIG_KEY)
        if not isinstance(stored, Mapping):
            return cls()
        return cls.create(**{key: value for key, value in stored.items() if key in cls.__dataclass_fields__})

    @classmethod
    def declared(cls, config: Mapping[str, Any] | None, **given: Any) -> RunSettings:
        """The settings of a run that is being set up.

        Args:
            config: the run's config; a mapping under `CONFIG_KEY` declares settings.
            **given: fields of the class that override it where they are not None.

        Raises:
            ConfigError: a setting cannot be understood, or there is no such setting.
        """
        stored = (config or {}).get(CONFIG_KEY, {})
        if not isinstance(stored, Mapping):
            raise ConfigError(
                f"config[{CONFIG_KEY!r}]: seen {stored!r}. Expected a mapping of {', '.join(cls.__dataclass_fields__)}."
            )
        settings = {key: value for key, value in stored.items() if key not in WRITTEN_BESIDE}
        return cls.create(
            **{**settings, **{name: value for name, value in given.items() if value is not None}}
        )

    @cached_property
    def declared_names(self) -> frozenset[str]:
        """The fields that were declared."""
        return frozenset(self.as_config())

    def as_config(self) -> dict[str, Any]:
        """Plain values for the run's config, without what was not declared."""
        return {key: value for key, value in asdict(self).items() if value not in (None, (), {})}


def parse_range(key: str, value: Any) -> Range | None:
    """Reads one declared range.

    Args:
        key: what to call it in an error.
        value: `(min, max)`, a mapping with `min`, `max` and perhaps `invert`, a `Range`, or None.

    Raises:
        ConfigError: it is none of these, or empty or upside down.
    """
    if value is None or isinstance(value, Range):
        return value
    try:
        if isinstance(value, Mapping) and set(value) <= {"min", "max", "invert"}:
            return Range(float(value["min"]), float(value["max"]), bool(value.get("invert", False)))
        if isinstance(value, Sequence) and not isinstance(value, str) and len(value) == 2:
            return Range(float(value[0]), float(value[1]))
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"{key}: seen {value!r}. Expected (min, max), or min, max and invert.") from error
    raise ConfigError(f"{key}: seen {value!r}. Expected (min, max), or min, max and invert.")
