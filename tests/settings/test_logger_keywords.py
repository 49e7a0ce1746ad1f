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


def module() -> str:
    """The generated module."""
    kept = [item for item in fields(LoggerOptions) if item.name not in BY_POSITION]
    types = {item.name: str(item.type).removesuffix(" | None") for item in kept}
    lines = [
        f"    {name}: {kind}" + ("" if kind == "Any" else " | None") + "\n" for name, kind in types.items()
    ]
    return HEAD + "".join(lines)


def checked(folder: Path, scripts: dict[str, str]) -> str:
    """What mypy says of a user's scripts."""
    for name, script in scripts.items():
        (folder / f"{name}.py").write_text(script)
    command = [
        sys.executable,
        "-m",
        "mypy",
        "--config-file=",
        f"--cache-dir={folder}",
        "--follow-imports=silent",
    ]
    paths = [str(folder / f"{name}.py") for name in scripts]
    return subprocess.run(
        [*command, *paths], cwd=REPOSITORY, capture_output=True, text=True, check=False
    ).stdout


class TestLoggerKeywords:
    def test_the_module_is_what_the_options_say(self):
        assert MODULE.read_text() == module()

    @pytest.mark.timeout(900)
    def test_a_type_checker_takes_options_and_catches_a_typo_and_a_wrong_type(self, tmp_path):
        made = "import rollout_traces as rt\nrt.RolloutLogger('p', {})\n"
        said = checked(
            tmp_path,
            {
                "good": made.format("quiet_seconds=3.0, selection='all', reward_range=None"),
                "typo": made.format("quiet_second=3.0"),
                "kind": made.format("quiet_seconds='soon'"),
            },
        )
        assert "typo.py:2" in said and "kind.py:2" in said and "good.py" not in said, said

    def test_the_docstring_names_every_option(self):
        named = rt.RolloutLogger.__doc__ or ""
        assert [name for name in option_names() if f"`{name}`" not in named and f"{name}:" not in named] == []


if __name__ == "__main__":
    MODULE.write_text(module())
