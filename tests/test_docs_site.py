"""The docs as a site: every page renders without a warning, and asks nobody else for anything."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
ASKED = re.compile(r"""<(?:script|link|img|iframe)[^>]*\s(?:src|href)="(https?:)?//""")


def test_the_docs_render_without_a_warning_and_load_nothing_from_elsewhere(tmp_path: Path) -> None:
    pytest.importorskip("sphinx")
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "-b", "html", str(ROOT / "docs"), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    pages = list(tmp_path.glob("*.html"))
    assert len(pages) >= len(list((ROOT / "docs").glob("*.md")))
    for page in pages:
        assert not ASKED.search(page.read_text("utf-8")), page.name
