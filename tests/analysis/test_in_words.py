"""Figures in words: none and all are said of nothing else, and a number near a thousand is written out."""

from __future__ import annotations

import pytest

from rollout_traces.analysis.in_words import number, percent


@pytest.mark.parametrize(
    ("share", "text"),
    [
        (0.0, "0%"), (1 / 40000, "<0.1%"), (-1 / 40000, ">\u22120.1%"), (0.004, "0.4%"), (0.9949, "99%"),
        (0.995, ">99%"), (0.99999, ">99%"), (-0.9975, "<\u221299%"), (1.0, "100%"), (1.5, "150%"),
    ],
)  # fmt: skip
def test_a_share_that_is_not_all_is_not_a_hundred_per_cent(share, text):
    assert percent(share) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(999.4, "999"), (999.7, "1,000"), (-999.7, "\u22121,000"), (1234.5, "1,234"), (0.9996, "1"), (0.00149, "0.00149"), (2.37e-5, "2.37e-5"), (2e-12, "2e-12")],
)  # fmt: skip
def test_a_number_below_a_thousand_that_rounds_to_it_is_written_out(value, text):
    """Seen once: "n_sampled rose from 519 to 1e+03"."""
    assert number(value) == text
