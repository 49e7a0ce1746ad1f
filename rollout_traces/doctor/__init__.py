"""Checks of an installation: what is there, what would work, what would not.

A check is one function of a file in this folder, registered by name.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args

Status = Literal["ok", "note", "warn", "fail"]
STATUSES: tuple[Status, ...] = get_args(Status)


@dataclass(frozen=True)
class CheckFinding:
    """One thing that a check saw.

    Attributes:
        status: `ok`, `note` (worth knowing), `warn` (works, but) or `fail` (does not work).
        subject: what it speaks of, a few words.
        seen: what was seen, one sentence.
        advice: what to do; empty when there is nothing to do.
    """

    status: Status
    subject: str
    seen: str
    advice: str = ""


ok, note, warn, fail = (partial(CheckFinding, status) for status in STATUSES)
"""Make a finding of that status, from what it speaks of, what was seen, and advice."""


@dataclass(frozen=True)
class Examination:
    """The subject of an examination, as the checks are given it.

    Attributes:
        project: a Trackio project, or None for what holds for all of them.
        tokenizer: a tokenizer's folder or name, or None.
        config: a trainer's YAML config, or None.
        chat_template_kwargs: arguments of the tokenizer's template.
        fix: mend what a check can mend.
    """

    project: str | None = None
    tokenizer: str | None = None
    config: Path | None = None
    chat_template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    fix: bool = False


Check = Callable[[Examination], Iterable[CheckFinding]]
CHECKS: dict[str, Check] = {}


def check(name: str) -> Callable[[Check], Check]:
    """Registers a check under the heading it is printed with."""

    def register(function: Check) -> Check:
        CHECKS[name] = function
        return function

    return register


def each_check(examination: Examination) -> Iterator[tuple[str, list[CheckFinding]]]:
    """Runs the checks one by one; one that raises becomes a finding and does not stop the others.

    Yields:
        Heading and findings of each check as it ends, in the order of registration.
    """
    for name, function in CHECKS.items():
        try:
            found = list(function(examination))
        except Exception as error:  # noqa: BLE001  said in the report, that is what it is for
            found = [fail(name, f"the check itself failed: {error!r}", "Please report this.")]
        yield name, found


for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")
