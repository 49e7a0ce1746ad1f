"""The table of docs/trainers.md holds what the trainers' scripts printed."""

from __future__ import annotations

import json

from tests.integrations import test_generated_layouts
from tests.trainers.table import FIGURES, LAYOUTS, PAGE, REAL, ROWS_OF_LAYOUTS, render, written


def test_the_page_has_the_table_of_the_last_figures():
    assert written(PAGE.read_text()) == render(json.loads(FIGURES.read_text()))


def test_every_row_that_was_compared_was_equal():
    figures = json.loads(FIGURES.read_text())
    assert set(figures) == set(REAL)
    assert all(found["equal"] == found["rows"] >= 500 for found in figures.values())


def test_as_many_rows_are_made_in_a_mirrored_layout_as_the_table_says():
    assert test_generated_layouts.ROWS == ROWS_OF_LAYOUTS
    assert set(test_generated_layouts.LAYOUTS) == set(LAYOUTS)
