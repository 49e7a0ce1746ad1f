from __future__ import annotations

import contextlib
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from rollout_traces.store import QueryError, Store, open_store
from tests.store.projects import PROJECT, conversation, make_ledger, store_values, write_step
from tests.store.query.strategies import nodes, satisfies, written

CHAT = [{"role": "user", "content": "hi"}]


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory):
    """A store of odd rows, and the rows as plain dicts."""
    import trackio.utils
    from trackio import sqlite_storage

    rng = np.random.default_rng(0)
    rows = []
    for n in range(120):
        row = {
            "reward": [None, 0.5, -0.25, 1, 2, 1e-3][rng.integers(6)],
            "n_sampled": [None, 0, 1, 3, 150][rng.integers(5)],
            "component/format": [None, 0.0, 1.0][rng.integers(3)],
            "source": [None, "a", "it's", 'say "x"', "back\\slash", "new\nline"][rng.integers(6)],
            "stop_reason": [None, "a", "B", "%"][rng.integers(4)],
            "flags": [None, [], ["truncated"], ["tied_group", "truncated"]][rng.integers(4)],
            "number": n,
        }
        rows.append({name: value for name, value in row.items() if value is not None})
    folder = tmp_path_factory.mktemp("odd")
    with pytest.MonkeyPatch.context() as patch:
        for module in (trackio.utils, sqlite_storage):
            patch.setattr(module, "TRACKIO_DIR", folder)
        for row in rows:
            store_values(conversation("chat", CHAT, **row), step=0)
    return open_store(PROJECT, folder=folder), rows


class TestMeaning:
    @settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(node=nodes())
    def test_sql_and_python_agree(self, table, node) -> None:
        store, rows = table
        found = store.query(where=written(node), limit=1000)
        assert sorted(row["number"] for row in found.rows) == [
            r["number"] for r in rows if satisfies(r, node)
        ]

    def test_not_keeps_the_unknown_and_unequal_does_not(self, table) -> None:
        store, rows = table
        unknown = sum("reward" not in row for row in rows)
        ones = sum(row.get("reward") == 1 for row in rows)
        assert store.count(where="not reward = 1") == len(rows) - ones
        assert store.count(where="reward != 1") == len(rows) - ones - unknown

    def test_a_text_is_compared_with_another_column(self, table) -> None:
        store, rows = table
        same = [r["number"] for r in rows if "source" in r and r["source"] == r.get("stop_reason")]
        found = store.query(where="source = stop_reason", limit=1000)
        assert same and sorted(row["number"] for row in found.rows) == same


class TestRefusals:
    @pytest.mark.parametrize(
        ("where", "said"),
        [
            ("rewrd < 1", "no column 'rewrd'. Did you mean reward?"),
            ("format > 1", "Did you mean component/format?"),
            ("reward < 'x'", "reward holds numbers; found 'x'"),
            ("reward in (1, 'x')", "reward holds numbers"),
            ("uid = 5", "uid holds texts, which stand in quotes"),
            ("uid has 'x'", "uid is no list of names"),
        ],
    )
    def test_what_a_column_does_not_take(self, store: Store, where: str, said: str) -> None:
        with pytest.raises(QueryError) as caught:
            store.query(where=where)
        assert said in str(caught.value)
        assert where[caught.value.start : caught.value.stop] == where.split()[0]

    def test_an_unknown_sort_key_is_pointed_at(self, store: Store) -> None:
        with pytest.raises(QueryError) as caught:
            store.query(order_by="-reward, stp")
        assert (caught.value.start, caught.value.stop) == (9, 12)


INJECTIONS = [
    "reward < 1; DROP TABLE traces",
    "source = '' OR 1=1 --'",
    "`reward) OR 1=1 --` = 1",
    "`m0` = 1",
    "`t.reward` = 1",
    '`reward" = 1 --` = 1',
    "source = 'x\\' OR 1=1 --'",
    "flags has '%'",
    "flags has '|'",
    "source contains '%'",
    "text '\" OR words MATCH \"a'",
    "text contains '\\' OR 1=1 --'",
    "uid in ('a', (SELECT 1))",
    "reward = 1 UNION SELECT * FROM runs",
    "`sqlite_master` = 1",
]


class TestInjection:
    @pytest.mark.parametrize("where", INJECTIONS)
    def test_text_of_a_query_never_becomes_sql(self, store: Store, where: str) -> None:
        with contextlib.suppress(QueryError):
            assert store.count(where=where) == 0
        assert store.count() == 10

    @pytest.mark.parametrize("column", ["reward; DROP TABLE traces", "1) --", "m0", "t.doc", "`reward`x"])
    def test_nor_do_names_of_columns(self, store: Store, column: str) -> None:
        for ask in (store.facets, store.histogram, lambda c: store.query(order_by=c)):
            with pytest.raises(QueryError):
                ask(column)

    def test_metadata_names_of_a_hostile_trace_never_become_sql(self, trackio_dir: Path) -> None:
        names = ['"); DROP TABLE traces; --', "a b", "`x`", "", "x" * 10_000, "']"]
        store_values(conversation("chat", CHAT, **dict.fromkeys(names, 1.0)), step=0)
        store = open_store(PROJECT)
        assert store.count() == 1
        assert store.count(where='`a b` = 1 and `"); DROP TABLE traces; --` = 1') == 1
        seen = set(store.query().rows[0].values)
        assert {name[:200] for name in names if name} <= seen


class TestNumbers:
    def test_a_name_with_a_backquote_is_one_that_can_be_written(self, trackio_dir: Path) -> None:
        store_values(conversation("chat", CHAT, **{"odd`name": 3}), step=0)
        store = open_store(PROJECT)
        assert "odd`name" in [column.name for column in store.columns()]
        assert store.count(where="`odd``name` = 3") == 1 and store.count(where="`odd``name` = 4") == 0

    def test_infinite_and_huge_numbers_compare(self, trackio_dir: Path) -> None:
        write_step(make_ledger([[0.0]], step=0), (0,))
        store_values(conversation("chat", CHAT, x=math.inf, y=2**62), step=0)
        store = open_store(PROJECT)
        assert store.count(where="x > 1e308 and y = 4611686018427387904") == 1
        assert store.count(where="y < 99999999999999999999999999") == 1

    def test_pages_go_on_behind_an_infinite_number(self, trackio_dir: Path) -> None:
        for x in (math.inf, math.inf, -math.inf, 1.0, None):
            store_values(conversation("chat", CHAT, x=x), step=0)
        store = open_store(PROJECT)
        first = store.query(order_by="-x", limit=1)
        second = store.query(order_by="-x", limit=10, after=first.next)
        assert [row["x"] for row in first.rows + second.rows] == [math.inf, math.inf, 1.0, -math.inf, None]

    def test_a_histogram_spans_numbers_whose_range_is_no_float(self, trackio_dir: Path) -> None:
        for x in (-1.5e308, 0.0, 1.5e308, math.inf, None):
            store_values(conversation("chat", CHAT, x=x), step=0)
        found = open_store(PROJECT).histogram("x", bins=3)
        assert (sum(found.counts), found.counts[0], found.unknown, found.infinite) == (
            3,
            1,
            1,
            ((math.inf, 1),),
        )
        assert found.edges[0] == -1.5e308 and all(map(math.isfinite, found.edges))


def test_a_number_is_empty_where_it_is_unknown(tmp_path: Path, trackio_dir: Path) -> None:
    write_step(make_ledger([[1.0, np.nan, 0.0]], step=0), ())
    with contextlib.closing(open_store(PROJECT, folder=trackio_dir, index_path=tmp_path / "index")) as store:
        found = [store.query(where=f"reward is {what}", rows="all").rows for what in ("empty", "not empty")]
    assert [[row["sample"] for row in rows] for rows in found] == [[1], [0, 2]]


@pytest.mark.parametrize("where", ["abs(source) > 1", "flags + 1 > 2"])
def test_what_is_no_number_is_refused_where_one_is_meant(
    tmp_path: Path, trackio_dir: Path, where: str
) -> None:
    write_step(
        make_ledger([[1.0, 0.0]], step=0, source=np.array(["a", "b"], object), flags={0: ("truncated",)}), ()
    )
    with contextlib.closing(open_store(PROJECT, folder=trackio_dir, index_path=tmp_path / "index")) as store:
        with pytest.raises(QueryError, match="expected a number"):
            store.query(where=where, rows="all")
        assert store.query(where="abs(reward) > 0.5", rows="all").total == 1
