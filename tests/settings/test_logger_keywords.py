"""Editors and type checkers know every option of a logger: `python -m tests.settings.test_logger_keywords` writes the type."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest

import rollout_traces as rt
from rollout_traces.settings.logger_options import LoggerOptions, option_names

REPOSITORY = Path(__file__).resolve().parents[2]
MODULE = REPOSITORY / "rollout_traces" / "settings" / "logger_keywords.py"
BY_POSITION = ("project", "name")
HEAD = '''"""The options of `RolloutLogger(...)` as a type, for editors and type checkers.

Generated from `LoggerOptions` by `python -m tests.settings.test_logger_keywords`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypedDict


class LoggerKeywords(TypedDict, total=False):
    """Keyword arguments of a logger; None leaves a default."""

'''


TYPED = "import rollout_traces as rt\nstore = rt.open_store('p')\n{}\n"
WRONG = {
    "option": "rt.RolloutLogger('p', quiet_second=3.0)",
    "kind": "rt.RolloutLogger('p', quiet_seconds='soon')",
    "split": "rt.RolloutLogger('p').log_rollouts({}, step=1, spilt='rollout')",
    "query": "store.query(wher='reward > 1')",
    "search": "store.search('words', wher='reward > 1')",
    "rows": "store.query(rows='every')",
    "name": "store.transcrip('b0-1')",
    "none": "store.transcript('b0-1').turns",
    "opening": "rt.open_store('p', server='http://here')",
}
RIGHT = (
    "rt.RolloutLogger('p', quiet_seconds=3.0, selection='all', reward_range=None)",
    "rt.RolloutLogger('p').log_rollouts({}, step=1, split='rollout')",
    "split: str = store.search('words', where='reward > 1', limit=3).rows[0].split",
    "found = store.transcript('b0-1')\nassert found is not None\nrole: str = found.turns[0].role",
)


def module() -> str:
    """The generated module."""
    kept = [item for item in fields(LoggerOptions) if item.name not in BY_POSITION]
    types = {item.name: str(item.type).removesuffix(" | None") for item in kept}
    lines = [
        f"    {name}: {kind}" + ("" if kind == "Any" else " | None") + "\n" for name, kind in types.items()
    ]
    return HEAD + "".join(lines)


def checked(folder: Path, scripts: dict[str, str]) -> str:
    """What mypy says of a user's scripts; it has the package's types in its cache where `make types` ran before."""
    for name, script in scripts.items():
        (folder / f"{name}.py").write_text(script)
    command = [sys.executable, "-m", "mypy", *(str(folder / f"{name}.py") for name in scripts)]
    return subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False).stdout


class TestLoggerKeywords:
    def test_the_module_is_what_the_options_say(self):
        assert MODULE.read_text() == module()

    @pytest.fixture(scope="class")
    def said(self, tmp_path_factory):
        """What mypy says of all scripts below."""
        scripts = {f"wrong_{name}": TYPED.format(line) for name, line in WRONG.items()}
        right = {f"right_{number}": TYPED.format(line) for number, line in enumerate(RIGHT)}
        return checked(tmp_path_factory.mktemp("scripts"), scripts | right)

    @pytest.mark.timeout(900)
    @pytest.mark.parametrize("name", WRONG)
    def test_a_type_checker_catches(self, said, name):
        assert f"wrong_{name}.py:3" in said, said

    def test_a_type_checker_takes_what_is_right(self, said):
        assert "right_" not in said, said

    def test_the_docstring_names_every_option(self):
        named = rt.RolloutLogger.__doc__ or ""
        assert [name for name in option_names() if f"`{name}`" not in named and f"{name}:" not in named] == []


if __name__ == "__main__":
    MODULE.write_text(module())
