"""Pages one after another are the whole table in order."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rollout_traces.analysis import Selection
from rollout_traces.analysis.selections import narrowed
from rollout_traces.store import Store, open_store
from tests.store.projects import PROJECT, make_ledger, write_step


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Twenty steps of twelve rollouts: tied rewards, unknown ones, infinite ones, and numbers without ties."""
    import trackio.utils
    from trackio import sqlite_storage

    folder = tmp_path_factory.mktemp("trackio")
    rng = np.random.default_rng(3)
    with pytest.MonkeyPatch.context() as patch:
        for module in (trackio.utils, sqlite_storage):
            patch.setattr(module, "TRACKIO_DIR", folder)
        for step in (*range(10, 20), *range(10)):
            rewards = rng.choice(
                [0.0, 0.5, 1.0, np.nan, np.inf, -np.inf], (3, 4), p=[0.4, 0.2, 0.3, 0.06, 0.02, 0.02]
            )
            ledger = make_ledger(
                rewards.tolist(),
                step=step,
                traced=(0, 5),
                advantage=rng.normal(size=12),
                n_sampled=rng.integers(0, 10_000, 12),
                **({"component/late": rng.random(12)} if step > 15 else {}),
            )  # fmt: skip
            write_step(ledger, (0, 5))
    yield folder


@pytest.fixture(scope="module")
def shared(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    opened = open_store(PROJECT, folder=folder, index_path=tmp_path_factory.mktemp("index"))
    yield opened
    opened.close()


def walk(store: Store, limit: int, **asked: Any) -> list[str]:
    """The uids of all pages, one after another."""
    found: list[str] = []
    after = None
    while True:
        page = store.query(limit=limit, after=after, rows="all", **asked)
        found += [str(row["uid"]) for row in page.rows]
        after = page.next
        if after is None:
            assert len(found) == page.total
            return found


@pytest.mark.parametrize(
    "order_by",
    [
        None,
        "-advantage",
        "advantage",
        "-reward",
        "reward, -n_sampled",
        "-n_sampled, step",
        "component/late",
        "-component/late, -step",
        "source, -reward",
        "advantage + reward",
        "-group.mean, step",
        "-traced, reward",
        "-uid",
    ],
)
@pytest.mark.parametrize("where", ["", "reward > 0.2 or reward is null", "group.std > 0"])
@pytest.mark.parametrize("limit", [70, 150])
def test_its_pages_are_those_of_the_whole_table_in_order(
    shared: Store, order_by: str | None, where: str, limit: int
) -> None:
    expected = walk(shared, 240, order_by=order_by, where=where)
    assert walk(shared, limit, order_by=order_by, where=where) == expected


def test_unknown_values_come_last_either_way(shared: Store) -> None:
    for order_by in ("reward", "-reward"):
        rows = shared.query(order_by=order_by, rows="all", limit=240).rows
        known = [row.get("reward") is not None for row in rows]
        assert known == sorted(known, reverse=True) and not all(known)


def test_a_page_may_carry_nothing_but_where_its_rows_are(shared: Store) -> None:
    whole = shared.query(limit=5, rows="all")
    for columns in ([], ["step"], ["id", "reward"]):
        page = shared.query(limit=5, rows="all", columns=columns)
        assert [(row.id, row.run, row.step) for row in page.rows] == [
            (row.id, row.run, row.step) for row in whole.rows
        ]
        assert {name for row in page.rows for name in row.values} <= {"reward"}


def test_of_a_search_what_rollouts_without_a_trace_say_is_unknown(tmp_path, trackio_dir):
    """Seen once: those with a word against "those without", nine tenths of which were rollouts whose text nobody had."""
    write_step(
        make_ledger([[1.0, 0.0, 1.0, 0.0]], step=0, traced=(0, 1)), (0, 1), {0: [("assistant", "a heron")]}
    )
    with contextlib.closing(open_store(PROJECT, folder=trackio_dir, index_path=tmp_path / "index")) as store:
        sides = narrowed(Selection(), "text 'heron'", store.sql_condition("text 'heron'"))
        table = store.table()
        rows = [
            table.sql(f"select sample from rollouts where {each.where}", each.params)
            .column("sample")
            .to_pylist()
            for each in sides
        ]
    assert rows == [[0], [1]]


def test_a_rollout_that_does_not_know_a_column_is_on_neither_side_of_it(shared):
    table = shared.table()
    n = [
        table.sql(f"select count(*) as n from rollouts where {each.where}", each.params)
        .column("n")[0]
        .as_py()
        for each in narrowed(Selection(), "reward > 0.2", shared.sql_condition("reward > 0.2"))
    ]
    rewards = shared.ledger().get("reward")
    assert n == [int((rewards > 0.2).sum()), int((rewards <= 0.2).sum())]
