"""Which scalars are worth a chart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase

from rollout_traces.errors import ConfigError

FULL = "full"
SLIM = "slim"
SLIM_DENIES = ("*/min", "*/max", "*/std", "*/p[0-9]*", "*_min", "*_max", "timeperf/*", "*/timeperf/*")


class KeyFilter:
    """Keeps the keys that were asked for.

    Args:
        keys: `full` keeps all; `slim` leaves out minima, maxima, spreads, quantiles and timings; otherwise
            `fnmatch` patterns of keys to keep, those that start with `!` of keys to leave out. Only
            patterns to leave out: everything else is kept.

    Raises:
        ConfigError: neither.
    """

    def __init__(self, keys: str | Sequence[str] = FULL) -> None:
        patterns = [keys] if isinstance(keys, str) else list(keys)
        if not patterns or not all(isinstance(pattern, str) and pattern for pattern in patterns):
            raise ConfigError(
                f"keys: seen {keys!r}. Expected {FULL!r}, {SLIM!r}, or patterns such as 'loss/*'."
            )
        denied = [pattern[1:] for pattern in patterns if pattern.startswith("!")]
        allowed = [pattern for pattern in patterns if not pattern.startswith("!")]
        if SLIM in allowed:
            denied += SLIM_DENIES
        self._all = not allowed or FULL in allowed or SLIM in allowed
        self._allowed = tuple(pattern for pattern in allowed if pattern not in (FULL, SLIM))
        self._denied = tuple(denied)

    def __call__(self, key: str) -> bool:
        """Whether a key is kept."""
        if any(fnmatchcase(key, pattern) for pattern in self._denied):
            return False
        return self._all or any(fnmatchcase(key, pattern) for pattern in self._allowed)

    def keep(self, values: Mapping[str, float]) -> dict[str, float]:
        """The values whose keys are kept."""
        return {key: value for key, value in values.items() if self(key)}
