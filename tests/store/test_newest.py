"""Pages that begin with the newest step are found among the newest steps alone, and are the same pages."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from rollout_traces.store import Store, open_store
from tests.store.projects import PROJECT, RUN, make_ledger, write_step

STEPS = [4, 0, 9, 2, 7, 1, 8, 3, 6, 5]
"""In the order of arrival, which is not that of the steps."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Ten steps that arrived in another order; two of the three kept rollouts of each hold the word."""
    import trackio.utils
    from trackio import sqlite_storage

    folder = tmp_path_factory.mktemp("trackio")
    with pytest.MonkeyPatch.context() as patch:
        for module in (trackio.utils, sqlite_storage):
            patch.setattr(module, "TRACKIO_DIR", folder)
        for step in STEPS:
            said = {0: "plums and pears", 1: "plums", 4: "cherries" if step != 3 else "cherries, medlars"}
            texts = {row: (("user", "What is it?"), ("assistant", text)) for row, text in said.items()}
            ledger = make_ledger([[1.0, 0.0, 0.5], [0.25, 0.5]], step=step, traced=tuple(said))
            write_step(ledger, tuple(said), texts)
        write_step(make_ledger([[0.0, 1.0]], step=99, split="eval-rollout", batch="e", traced=(0,)), (0,))
    yield folder


@pytest.fixture
def store(folder: Path, tmp_path: Path) -> Iterator[Store]:
    opened = open_store(PROJECT, folder=folder, index_path=tmp_path / "index")
    yield opened
    opened.close()


ASKED = [
    {},
    {"text": "plums"},
    {"text": "plums pears"},
    {"text": "medlars"},
    {"text": "plums", "where": "reward > 0.5"},
    {"where": "text 'pears' or text 'medlars'"},
    {"where": "text contains 'lum' and text 'pears'"},
    {"where": "step < 4 and reward <= 0.5"},
    {"where": "group = 1", "rows": "all"},
    {"text": "cherries", "split": "rollout", "run": RUN, "steps": (2, 8)},
    {"where": "reward > 0.4", "split": "rollout"},
    {"text": "quinces"},
]


class TestPagesOfTheNewestSteps:
    @pytest.mark.parametrize("asked", ASKED, ids=str)
    @pytest.mark.parametrize("limit", [1, 3, 7])
    def test_joined_they_are_the_whole_in_order(self, store: Store, asked: dict, limit: int) -> None:
        whole = store.query(order_by="step, group, sample", limit=1000, **asked).rows
        wanted = sorted(whole, key=lambda row: (-row.step, row["group"], row["sample"]))
        found, after = [], None
        while True:
            page = store.query(limit=limit, after=after, **asked)
            assert page.total == len(wanted)
            found += page.rows
            after = page.next
            if after is None:
                break
        assert [row["uid"] for row in found] == [row["uid"] for row in wanted]

    def test_several_words_must_all_occur(self, store: Store) -> None:
        assert store.count(text="plums pears") == 10
        assert store.count(text="plums cherries") == 0
        assert store.count(text='plums "plums and pears"', where="step >= 5") == 5

    def test_what_was_read_for_one_word_is_no_answer_for_another(self, store: Store) -> None:
        assert store.count(text="pears") == store.count(text="cherries") == 10
        assert store.count(text="pears", where="text contains 'ears'") == 10
        assert store.count(text="cherries", where="text contains 'ears'") == 0
        assert store.count(text="pears", where="text contains 'err'") == 0
        assert store.count(text="cherries", where="text contains 'err'") == 10
