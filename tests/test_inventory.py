"""What the product offers goes only on purpose: a line of `inventory.txt` is removed by hand, with its reason told."""

from __future__ import annotations

from tests.inventory import PAGE, inventory


def test_nothing_that_was_offered_is_gone():
    gone = set(PAGE.read_text("utf-8").splitlines()) - set(inventory())
    assert not gone, f"no longer offered: {sorted(gone)}"


def test_what_is_new_is_written_down():
    new = set(inventory()) - set(PAGE.read_text("utf-8").splitlines())
    assert not new, f"run python -m tests.inventory; new: {sorted(new)}"
