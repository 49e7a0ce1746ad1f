"""What CI installs: every file by its hash, and nothing that the project asks for left out."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
LEFT_OUT = {"torch"}
"""Built for the machine, see constraints.txt."""


def locked() -> dict[str, str]:
    """Name -> version."""
    lines = (ROOT / "constraints-lock.txt").read_text().splitlines()
    return {
        canonicalize_name(found[1]): found[2]
        for line in lines
        if (found := re.match(r"([\w.-]+)==([^ ]+) \\$", line))
    }


def asked_for() -> list[Requirement]:
    """What pyproject.toml asks for, extras of the tests included, but for what belongs to single trainers."""
    tables = pytest.importorskip("tomllib").loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = tables["optional-dependencies"]
    own = [r for r in map(Requirement, extras["test"]) if canonicalize_name(r.name) == "rollout-traces"]
    named = {extra for one in own for extra in one.extras}
    listed = [*tables["dependencies"], *extras["test"], *(one for extra in named for one in extras[extra])]
    return [one for one in map(Requirement, listed) if canonicalize_name(one.name) != "rollout-traces"]


class TestLock:
    def test_holds_what_the_project_asks_for_in_a_version_that_fits(self):
        versions = locked()
        for one in asked_for():
            name = canonicalize_name(one.name)
            if name not in LEFT_OUT:
                assert name in versions, f"{one}: run .ci/lock"
                assert one.specifier.contains(versions[name], prereleases=True), one

    def test_agrees_with_the_constraints(self):
        versions = locked()
        for line in (ROOT / "constraints.txt").read_text().splitlines():
            name, _, version = line.partition("==")
            if version and name not in LEFT_OUT:
                assert versions[canonicalize_name(name)] == version

    def test_has_a_hash_for_every_file(self):
        text = (ROOT / "constraints-lock.txt").read_text()
        blocks = re.split(r"\n(?=[a-z0-9])", text)[1:]
        assert len(blocks) == len(locked())
        assert all("--hash=sha256:" in block for block in blocks)
        assert "://" not in text


class TestBounds:
    @pytest.mark.parametrize("name", ["trackio", "gradio", "transformers", "duckdb", "trl"])
    def test_no_further_major_version_of_what_broke_with_one(self, name):
        bounds = [one for one in asked_for() if one.name == name]
        assert bounds
        assert all(any(part.operator == "<" for part in one.specifier) for one in bounds)
