"""axe-core from the npm registry, for the tests that look for barriers."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

VERSION = "4.14.1"
FOLDER = Path(__file__).resolve().parents[2] / "artifacts" / "npm"
RULES = {"runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "best-practice"]}


def axe_source() -> str:
    """The script, fetched once by npm. Where the registry cannot be reached the test fails in CI and is skipped elsewhere."""
    script = FOLDER / "node_modules" / "axe-core" / "axe.min.js"
    if not script.exists():
        FOLDER.mkdir(parents=True, exist_ok=True)
        command = ["npm", "install", "--prefix", str(FOLDER), "--ignore-scripts", "--no-audit", "--no-fund"]
        try:
            subprocess.run([*command, f"axe-core@{VERSION}"], check=True, capture_output=True, timeout=120)
        except (OSError, subprocess.SubprocessError) as error:
            why = f"axe-core {VERSION} cannot be had from the npm registry: {error}"
            (pytest.fail if os.environ.get("CI") else pytest.skip)(why)
    return script.read_text()


def serious(page: object, source: str) -> list[str]:
    """The serious and critical faults of what a page shows, one line each with its first elements."""
    page.evaluate(source)  # type: ignore[attr-defined]
    found = page.evaluate("rules => axe.run(document, rules)", RULES)  # type: ignore[attr-defined]
    return [
        f"{fault['id']} ({fault['impact']}): {[node['html'][:160] for node in fault['nodes'][:3]]}"
        for fault in found["violations"]
        if fault["impact"] in ("serious", "critical")
    ]
