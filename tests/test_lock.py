"""What an installation takes: every file by its hash, from public places, and nothing that the project asks for left out."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
LEFT_OUT = {"torch"}
"""Built for the machine, see constraints.txt."""
PYTHONS = ("3.10", "3.11", "3.12", "3.13")


def read(name: str) -> dict[str, Any]:
    """A TOML file of the project."""
    return pytest.importorskip("tomllib").loads((ROOT / name).read_text())


def locked() -> dict[str, list[str]]:
    """Name -> versions, one or several where Pythons need different ones."""
    versions: dict[str, list[str]] = {}
    for package in read("uv.lock")["package"]:
        versions.setdefault(canonicalize_name(package["name"]), []).append(package.get("version", ""))
    return versions


def asked_for() -> list[Requirement]:
    """What pyproject.toml asks for, extras of the tests included, but for what belongs to single trainers."""
    tables = read("pyproject.toml")["project"]
    extras = tables["optional-dependencies"]
    own = [r for r in map(Requirement, extras["test"]) if canonicalize_name(r.name) == "rollout-traces"]
    named = {extra for one in own for extra in one.extras}
    listed = [*tables["dependencies"], *extras["test"], *(one for extra in named for one in extras[extra])]
    return [one for one in map(Requirement, listed) if canonicalize_name(one.name) != "rollout-traces"]


class TestAskedFor:
    def test_nothing_is_installed_that_the_package_never_imports(self):
        """S3 is reached through fsspec, which finds its file system by name."""
        source = "\n".join(path.read_text() for path in (ROOT / "rollout_traces").rglob("*.py"))
        imported = set(re.findall(r"^\s*(?:import|from) (\w+)|import_module\(\"(\w+)", source, re.MULTILINE))
        modules = {name for pair in imported for name in pair} | {"s3fs"}
        tables = read("pyproject.toml")["project"]
        extras = tables["optional-dependencies"]
        used = [one for extra in extras.keys() - {"test", "docs"} for one in extras[extra]]
        names = {Requirement(one).name for one in [*tables["dependencies"], *used]} - {"rollout-traces"}
        assert {name.replace("-", "_") for name in names} - modules == {"pyyaml"}
        assert "yaml" in modules


class TestLock:
    @pytest.mark.parametrize("python", PYTHONS)
    def test_holds_what_the_project_asks_for_in_a_version_that_fits(self, python):
        versions = locked()
        here = default_environment() | {"python_version": python, "python_full_version": f"{python}.1"}
        for one in asked_for():
            name = canonicalize_name(one.name)
            if name in LEFT_OUT or (one.marker and not one.marker.evaluate(here)):
                continue
            assert name in versions, f"{one}: run uv lock"
            assert any(one.specifier.contains(version, prereleases=True) for version in versions[name]), one

    def test_leaves_out_what_is_built_for_a_machine(self):
        assert not LEFT_OUT & set(locked())

    def test_has_a_hash_for_every_file(self):
        files = [
            file
            for package in read("uv.lock")["package"]
            for file in [*package.get("wheels", ()), *filter(None, [package.get("sdist")])]
        ]
        assert len(files) > 1000
        assert all(file["hash"].startswith("sha256:") for file in files)

    def test_names_the_public_index_alone(self):
        hosts = set(re.findall(r"https?://([^/\"]+)", (ROOT / "uv.lock").read_text()))
        assert hosts == {"pypi.org", "files.pythonhosted.org"}


class TestBounds:
    @pytest.mark.parametrize("name", ["trackio", "gradio", "transformers", "duckdb", "trl"])
    def test_no_further_major_version_of_what_broke_with_one(self, name):
        bounds = [one for one in asked_for() if one.name == name]
        assert bounds
        assert all(any(part.operator == "<" for part in one.specifier) for one in bounds)
