"""Which versions are installed, without importing them."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from importlib import metadata

from rollout_traces.doctor.base import CheckFinding, Examination, check

OLDEST = {"trackio": (0, 43), "transformers": (4, 51), "numpy": (1, 26), "torch": (2, 1), "gradio": (6, 0)}
"""Oldest versions that the project is tested with."""
_TRAIN = "pip install 'rollout-traces[train]' where nothing else brings it; a trainer does."
OPTIONAL = {
    "gradio": "pip install 'rollout-traces[inspector]' for `rollout-traces show`.",
    "torch": _TRAIN,
    "transformers": _TRAIN,
}


@check("Installed")
def versions(examination: Examination) -> Iterator[CheckFinding]:
    """Python, and the packages that logging, training and looking need."""
    yield CheckFinding("python", "ok", platform.python_version())
    yield CheckFinding("rollout-traces", "ok", metadata.version("rollout-traces"))
    for name, oldest in OLDEST.items():
        try:
            version = metadata.version(name)
        except metadata.PackageNotFoundError:
            advice = OPTIONAL.get(name, f"pip install '{name}>={_text(oldest)}'")
            yield CheckFinding(name, "note" if name in OPTIONAL else "fail", "not installed", advice)
            continue
        if _numbers(version) < oldest:
            yield CheckFinding(
                name,
                "warn",
                f"{version}, tested from {_text(oldest)}",
                f"pip install '{name}>={_text(oldest)}'",
            )
        else:
            yield CheckFinding(name, "ok", version)


def _numbers(version: str) -> tuple[int, ...]:
    parts = version.split("+")[0].split(".")
    return tuple(int(part) for part in parts[:2] if part.isdigit())


def _text(numbers: tuple[int, ...]) -> str:
    return ".".join(map(str, numbers))
