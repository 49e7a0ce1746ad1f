"""The table of a batch's fields in docs/logging.md is its docstring: `python -m tests.model.test_batch_table` writes it."""

from __future__ import annotations

from pathlib import Path

from rollout_traces.model.batch import RolloutBatch
from tests.metrics.test_metrics_page import attributes_of, escaped

PAGE = Path(__file__).resolve().parents[2] / "docs" / "logging.md"
HEAD, END = "| field | what |\n| --- | --- |\n", "\n\n"


def page_with_table() -> str:
    """docs/logging.md as it should be."""
    before, rest = PAGE.read_text().split(HEAD)
    rows = [f"| `{name}` | {escaped(meaning)} |" for name, meaning in attributes_of(RolloutBatch)]
    return before + HEAD + "\n".join(rows) + END + rest.split(END, 1)[1]


def test_the_table_is_what_the_class_says():
    assert PAGE.read_text() == page_with_table()


def test_every_field_stands_in_it():
    assert [name for name, _ in attributes_of(RolloutBatch)] == list(RolloutBatch.__dataclass_fields__)


if __name__ == "__main__":
    PAGE.write_text(page_with_table())
