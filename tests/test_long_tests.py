"""The list of long cases names cases that there are."""

from __future__ import annotations

from tests.conftest import LONG_TESTS

ROOT = LONG_TESTS.parents[1]


def test_each_is_one_that_there_is_and_each_stands_once_in_order():
    listed = LONG_TESTS.read_text().splitlines()
    assert listed == sorted(set(listed))
    for case in listed:
        file, *_, function = case.partition("[")[0].split("::")
        assert f"def {function}(" in (ROOT / file).read_text(), (
            f"{case}: no such test; rename or remove its line"
        )
