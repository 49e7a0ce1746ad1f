"""The tests that the pages on security name are there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
NAMED = re.compile(r"`((?:tests/[\w./-]+)?(?:::\w+)?)`")


@pytest.mark.parametrize("page", ["SECURITY.md", "docs/attacks.md"])
def test_every_test_that_is_named_exists(page: str):
    missing, n_named = [], 0
    for line in (ROOT / page).read_text("utf-8").splitlines():
        file = ""
        for named in filter(None, NAMED.findall(line)):
            at, _, name = named.partition("::")
            file, n_named = at or file, n_named + 1
            path = ROOT / file
            is_there = path.is_file() and (
                not name or re.search(rf"^class {name}\b", path.read_text("utf-8"), re.M)
            )
            missing += [] if is_there else [named]
    assert not missing
    assert n_named > 20
