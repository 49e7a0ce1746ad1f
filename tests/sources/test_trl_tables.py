"""Which rows of a table are those of the table before it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rollout_traces.sources.formats.trl_parquet import n_repeated
from rollout_traces.sources.trl_tables import LoggedTable, row_metadata

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
TEXTS = st.lists(st.sampled_from("abc"), max_size=6)


def rows(texts, step: int = 1) -> list[dict]:
    return [{"step": step, "completion": text} for text in texts]


def test_the_same_batch_at_a_later_step_is_repeated_whole():
    assert n_repeated(rows("abc"), rows("abc", 2), whole_only=True) == 3


def test_a_new_training_batch_repeats_nothing_though_it_begins_as_the_last_one_ended():
    assert n_repeated(rows("abc"), rows("cde"), whole_only=True) == 0


def test_an_evaluation_behind_a_training_batch_leaves_the_end_of_it_in_the_queue():
    assert n_repeated(rows("abcd"), rows("cdxy"), whole_only=False) == 2
    assert n_repeated(rows("abcd"), rows("wxyz"), whole_only=False) == 0


@given(TEXTS, TEXTS)
def test_what_is_repeated_is_the_end_of_the_one_and_the_beginning_of_the_other(before, now):
    n = n_repeated(rows(before), rows(now, 2), whole_only=False)
    assert n == 0 or before[-n:] == now[:n]
    assert n == max(k for k in range(len(now) + 1) if k <= len(before) and (k == 0 or before[-k:] == now[:k]))


@given(
    st.lists(
        st.fixed_dictionaries({"step": JSON, "prompt": JSON, "completion": JSON, "right": JSON}), max_size=4
    )
)
def test_whatever_a_table_holds_each_row_is_a_rollout(records):
    table = LoggedTable(1, "id", "r", 3, "", "rollout", records=records, rewards=["right"], weights=[0.5])
    rollouts = table.rollouts()
    assert len(rollouts) == len(records)
    for row, record in zip(rollouts, records, strict=True):
        assert isinstance(row.step, int) and abs(row.step) < 2**53
        assert ("unreadable" in row_metadata(row, record)) == (not row.messages)
