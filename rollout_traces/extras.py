"""Which extra brings a package, said where the package is missing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rollout_traces.errors import ConfigError


class MissingExtra(ImportError, ConfigError):
    """A package is not installed. The text names it, what needs it, and the extra that brings it."""


@contextmanager
def extra(name: str, what: str) -> Iterator[None]:
    """Imports made inside come with an extra.

    Args:
        name: the extra, as in `rollout-traces[name]`.
        what: what needs it, as the subject of a sentence.

    Raises:
        MissingExtra: a package is not installed.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "a package").partition(".")[0]
        raise MissingExtra(
            f"{what} needs {package}: pip install 'rollout-traces[{name}]'.", name=error.name
        ) from error
