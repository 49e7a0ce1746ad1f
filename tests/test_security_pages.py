"""The tests that SECURITY.md names are there."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NAMED = re.compile(r"`((?:tests/[\w./-]+)?(?:::\w+)*)`")


def is_there(named: str) -> bool:
    """Whether a file, a class in it or a test of either is there: `tests/x.py::TestClass::test_name`."""
    at, *names = named.split("::")
    path = ROOT / at
    if not path.is_file():
        return False
    found: ast.AST | None = ast.parse(path.read_text("utf-8")) if names else None
    for name in names:
        inside = getattr(found, "body", ())
        found = next((node for node in inside if getattr(node, "name", "") == name), None)
    return not names or found is not None


def test_every_test_that_is_named_exists():
    missing, n_named = [], 0
    for line in (ROOT / "SECURITY.md").read_text("utf-8").splitlines():
        file = ""
        for named in filter(None, NAMED.findall(line)):
            at, _, name = named.partition("::")
            file, n_named = at or file, n_named + 1
            missing += [] if is_there(f"{file}::{name}" if name else file) else [named]
    assert not missing
    assert n_named > 20


def test_every_promise_names_a_test():
    promises = (ROOT / "SECURITY.md").read_text("utf-8").split("## Promises")[1].split("\nWhat ")[0]
    rows = [line for line in promises.splitlines() if line.startswith("| ")][2:]
    assert len(rows) > 40
    assert not [row for row in rows if not re.search(r"`tests/[\w/]+\.py(::\w+)*::test_\w+` \|$", row)]


def test_a_test_that_is_not_there_is_seen():
    assert is_there("tests/test_security_pages.py::test_a_test_that_is_not_there_is_seen")
    assert not is_there("tests/test_security_pages.py::TestNone") and not is_there("tests/none.py")
    assert not is_there("tests/inspector/test_guard.py::TestHost::test_none")
