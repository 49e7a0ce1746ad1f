"""The filter of keys that were asked for: the one reader of `full`, names of several patterns, patterns and `!` patterns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase

from rollout_traces.errors import ConfigError

FULL = "full"
SLIM = "slim"
SLIM_DENIES = ("*/min", "*/max", "*/std", "*/p[0-9]*", "*_min", "*_max", "timeperf/*", "*/timeperf/*")
NAMED: Mapping[str, tuple[str, ...]] = {FULL: ("*",), SLIM: ("*", *(f"!{glob}" for glob in SLIM_DENIES))}
"""Names that stand for patterns."""


class KeyFilter:
    """Keeps the keys that were asked for.

    Args:
        keys: `fnmatch` patterns of keys to keep, those that start with `!` of keys to leave out, or names that
            stand for patterns. Only patterns to leave out: everything else is kept.
        named: name -> the patterns that it stands for.
        setting: what to call the keys in an error.

    Raises:
        ConfigError: neither a pattern nor a list of them.
    """

    def __init__(
        self,
        keys: str | Sequence[str] = FULL,
        named: Mapping[str, Sequence[str]] = NAMED,
        setting: str = "keys",
    ) -> None:
        given = [keys] if isinstance(keys, str) else list(keys)
        if not given or not all(isinstance(name, str) and name for name in given):
            expected = ", ".join(map(repr, named))
            raise ConfigError(f"{setting}: seen {keys!r}. Expected {expected}, or patterns such as 'loss/*'.")
        patterns = [pattern for name in given for pattern in named.get(name, (name,))]
        self._denied = tuple(pattern[1:] for pattern in patterns if pattern.startswith("!"))
        self._kept = tuple(pattern for pattern in patterns if not pattern.startswith("!")) or ("*",)

    def __call__(self, key: str) -> bool:
        """Tells whether a key is kept."""
        if any(fnmatchcase(key, pattern) for pattern in self._denied):
            return False
        return any(pattern == "*" or fnmatchcase(key, pattern) for pattern in self._kept)

    def keep(self, values: Mapping[str, float]) -> dict[str, float]:
        """The values whose keys are kept."""
        return {key: value for key, value in values.items() if self(key)}
