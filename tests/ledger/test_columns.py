"""The ledger's columns survive packing, and their schema is enforced."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rollout_traces.errors import StoreError
from rollout_traces.ledger.columns import NULL_INT, Ledger, kind_of, pack, unpack
from rollout_traces.model import packed_arrays


def column_of(values):
    column = np.empty(len(values), object)
    for row, value in enumerate(values):
        column[row] = value
    return column


def make_ledger(n: int = 4) -> Ledger:
    return Ledger(
        {
            "uid": column_of([f"ab-{row}" for row in range(n)]),
            "step": np.arange(n) + 10,
            "reward": np.linspace(0, 1, n),
            "flags": column_of([("truncated",) if row % 2 else () for row in range(n)]),
        }
    )


class TestPacking:
    def test_every_kind_of_column_comes_back(self):
        ledger = make_ledger().with_columns(
            version_min=np.asarray([3, NULL_INT, -1, 2**40]),
            advantage=np.asarray([np.nan, 0.1, 1e300, -np.inf]),
            source=column_of(["gsm8k", None, "Zoë", ""]),
        )
        back = unpack(pack(ledger))
        for name, column in ledger.columns.items():
            np.testing.assert_array_equal(back.columns[name], column)

    @example([2**63 - 1, 1 - 2**63, None, 0])
    @given(st.lists(st.one_of(st.none(), st.integers(1 - 2**63, 2**63 - 1)), min_size=1, max_size=30))
    def test_any_integers_come_back(self, values):
        column = np.asarray([NULL_INT if value is None else value for value in values], np.int64)
        np.testing.assert_array_equal(unpack(pack(Ledger({"step": column}))).columns["step"], column)

    @given(st.lists(st.floats(allow_nan=True, allow_infinity=True), min_size=1, max_size=30))
    def test_any_floats_come_back_exactly(self, values):
        column = np.asarray(values, np.float64)
        np.testing.assert_array_equal(unpack(pack(Ledger({"reward": column}))).columns["reward"], column)

    def test_an_empty_ledger_comes_back(self):
        assert unpack(pack(Ledger({"step": np.zeros(0, np.int64)}))).n_rows == 0

    def test_five_hundred_rows_of_thirty_columns_stay_within_sixty_kilobytes_as_base64(self):
        rng = np.random.default_rng(0)
        floats = {f"sample/m{i}": rng.normal(size=512).astype(np.float32).astype(float) for i in range(14)}
        ints = {
            name: rng.integers(0, 5000, 512) for name in ("n_prompt", "n_sampled", "n_environment", "step")
        }
        ledger = make_ledger(512).with_columns(**floats, **ints)
        assert len(pack(ledger)) * 4 / 3 <= 60 * 1024

    def test_damaged_bytes_are_refused(self):
        with pytest.raises(StoreError, match="ledger: damaged"):
            unpack(pack(make_ledger())[:-9])

    def test_columns_longer_than_the_rows_are_refused_before_any_is_unpacked(self):
        columns = [{"name": "reward", "kind": "float"}] * 20
        made_up = packed_arrays.pack({"rows": 1, "columns": columns}, {"reward": np.zeros(2**22, np.uint8)})
        tracemalloc.start()
        with pytest.raises(StoreError, match="4194304 values of 1 rows"):
            unpack(made_up)
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert most < 2**24


class TestColumns:
    def test_an_absent_column_reads_as_unknown(self):
        ledger = make_ledger(2)
        assert np.isnan(ledger.get("advantage")).all()
        assert ledger.get("source").tolist() == [None, None]
        assert ledger.get("n_turns").tolist() == [NULL_INT, NULL_INT]

    def test_an_absent_column_cannot_be_written_to(self):
        with pytest.raises(ValueError, match="read-only"):
            make_ledger().get("advantage")[0] = 1.0
        assert np.isnan(make_ledger().get("advantage")).all()

    def test_a_row_is_plain_values_with_none_for_the_unknown(self):
        row = (
            make_ledger(2)
            .with_columns(n_turns=np.asarray([NULL_INT, 2]), advantage=np.asarray([np.nan, 1.0]))
            .row(0)
        )
        assert row == {
            "uid": "ab-0",
            "step": 10,
            "reward": 0.0,
            "flags": [],
            "n_turns": None,
            "advantage": None,
        }

    def test_prefixed_columns_have_their_prefixes_kind(self):
        assert kind_of("component/format") == "float"

    def test_an_unknown_column_is_refused_by_name(self):
        with pytest.raises(StoreError, match="no column 'rewrad'"):
            make_ledger().get("rewrad")
