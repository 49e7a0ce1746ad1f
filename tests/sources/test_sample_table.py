"""docs/sources.md says of every sample who wrote it and what of it is read."""

from __future__ import annotations

from tests.sources.reading import SAMPLES
from tests.sources.sample_table import PAGE, WRITERS, page


def test_every_sample_has_its_writer():
    assert {folder.name for folder in SAMPLES.iterdir()} == set(WRITERS)


def test_the_table_is_what_the_samples_give():
    assert PAGE.read_text("utf-8") == page(), "run python -m tests.sources.sample_table"
