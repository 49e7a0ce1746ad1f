"""Figures in words: a number near a thousand is written out."""

from __future__ import annotations

import pytest

from rollout_traces.analysis.in_words import number


@pytest.mark.parametrize(
    ("value", "text"),
    [(999.4, "999"), (999.7, "1,000"), (-999.7, "\u22121,000"), (1234.5, "1,234"), (0.9996, "1"), (0.00149, "0.00149")],
)  # fmt: skip
def test_a_number_below_a_thousand_that_rounds_to_it_is_written_out(value, text):
    """Seen once: "n_sampled rose from 519 to 1e+03"."""
    assert number(value) == text
