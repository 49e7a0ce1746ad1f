"""What the audit of CI says: of holes, of none, and where no index of advisories can be reached."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

AUDIT = Path(__file__).resolve().parent.parent / ".ci" / "audit"
HOLE = {"name": "left", "version": "1.0", "vulns": [{"id": "PYSEC-1", "fix_versions": []}]}
SAFE = {"name": "right", "version": "2.0", "vulns": []}
NOT_FOUND = {"name": "far", "skip_reason": "no index can be reached"}


def audited(folder: Path, packages: list[dict] | None) -> tuple[int, str]:
    """Runs the audit with a pip-audit that reports some packages; None: it reports nothing."""
    report = folder / "report.json"
    report.write_text("" if packages is None else json.dumps({"dependencies": packages, "fixes": []}))
    python = folder / "python"
    python.write_text(
        "#!/usr/bin/env bash\n"
        'case "$*" in\n'
        "  *pip\\ install*) exit 0;;\n"
        f'  *pip_audit*) echo "connection refused" >&2; cp {report} "${{@: -1}}"; exit 1;;\n'
        f'  *) exec {sys.executable} "$@";;\n'
        "esac\n"
    )
    python.chmod(0o755)
    done = subprocess.run(
        ["bash", str(AUDIT)],
        env={"PYTHON": str(python), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
    )
    return done.returncode, done.stdout


def test_a_hole_is_named_and_fails(tmp_path):
    code, said = audited(tmp_path, [HOLE, SAFE])
    assert code == 1
    assert "audit: left 1.0: PYSEC-1" in said and "2 of 2 packages looked up, 1 known holes" in said


def test_no_hole_passes(tmp_path):
    assert audited(tmp_path, [SAFE]) == (0, "audit: 1 of 1 packages looked up, 0 known holes\n")


@pytest.mark.parametrize("packages", [[NOT_FOUND, NOT_FOUND], []])
def test_no_index_is_said_and_is_no_all_clear(tmp_path, packages):
    code, said = audited(tmp_path, packages)
    assert (code, said) == (0, "audit: SKIPPED, no index of advisories can be reached from here\n")


def test_no_report_shows_what_went_wrong(tmp_path):
    code, said = audited(tmp_path, None)
    assert code == 0 and said.startswith("connection refused\naudit: SKIPPED")
