"""What a package index and a repository's page show of the project."""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
import yaml

from rollout_traces import __version__

ROOT = Path(__file__).resolve().parents[1]
BLOB = "https://github.com/rollout-traces/rollout-traces/blob/main/"
RAW = "https://raw.githubusercontent.com/rollout-traces/rollout-traces/main/"


class TestReadme:
    def test_every_link_and_picture_has_a_whole_address_that_leads_to_a_file(self) -> None:
        targets = re.findall(r"\]\(([^)\s]+)\)", (ROOT / "README.md").read_text("utf-8"))
        assert len(targets) > 15 and all(target.startswith("https://") for target in targets)
        own = [t.removeprefix(BLOB).removeprefix(RAW) for t in targets if t.startswith((BLOB, RAW))]
        assert [path for path in own if not (ROOT / path.partition("#")[0]).is_file()] == []


class TestCitation:
    def test_has_the_version(self) -> None:
        assert yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"] == __version__


class TestIssueTemplates:
    @pytest.mark.parametrize(
        "path", sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml")), ids=lambda p: p.name
    )
    def test_are_forms(self, path: Path) -> None:
        form = yaml.safe_load(path.read_text())
        if path.name != "config.yml":
            assert form["name"] and form["description"]
            assert all(part["attributes"]["label"] for part in form["body"])


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sdist and the wheel."""
    folder = tmp_path_factory.mktemp("built")
    uv = Path(sys.executable).with_name("uv")
    if not uv.exists():
        pytest.skip("uv is not installed")
    command = [
        str(uv),
        "build",
        "-q",
        "--no-build-isolation",
        "--python",
        sys.executable,
        "-o",
        str(folder),
        str(ROOT),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return folder


class TestFiles:
    def test_the_sdist_has_docs_examples_and_tests(self, built: Path) -> None:
        [path] = built.glob("*.tar.gz")
        with tarfile.open(path) as archive:
            names = {name.partition("/")[2] for name in archive.getnames()}
        assert {
            "docs/cli.md",
            "examples/tiny_grpo.py",
            "tests/test_shelf.py",
            "CHANGELOG.md",
            "CITATION.cff",
        } <= names
        assert {"docs/images/rollouts.png", "CONTRIBUTING.md", "LICENSE", "uv.lock"} <= names

    def test_the_wheel_has_the_example_and_the_page(self, built: Path) -> None:
        [path] = built.glob("*.whl")
        names = zipfile.ZipFile(path).namelist()
        assert any(re.match(r"rollout_traces/example_run/run=\w+/part-0\.parquet", name) for name in names)
        assert "rollout_traces/example_run/_rollout_traces/about.json" in names
        assert "rollout_traces/py.typed" in names and not any(name.startswith("tests/") for name in names)
