"""The table of docs/trainers.md holds what the trainers' scripts printed."""

from __future__ import annotations

import json

from tests.trainers.table import FIGURES, PAGE, REAL, render, written


def test_the_page_has_the_table_of_the_last_figures():
    assert written(PAGE.read_text()) == render(json.loads(FIGURES.read_text()))


def test_every_row_that_was_compared_was_equal():
    figures = json.loads(FIGURES.read_text())
    assert set(figures) <= set(REAL)
    assert all(found["equal"] == found["rows"] > 0 for found in figures.values())
