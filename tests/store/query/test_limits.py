"""What is too long or too deep is one sentence about the query, never about the index."""

from __future__ import annotations

import pytest

from rollout_traces.store import QueryError, Store

LONG = [
    {"where": " or ".join(["reward > 0"] * 10_000)},
    {"where": "not " * 20_000 + "reward > 0"},
    {"where": "(" * 20_000 + "reward > 0" + ")" * 20_000},
    {"where": "reward in (" + ", ".join(["1"] * 10_000) + ")"},
    {"where": "text '" + "x" * 1_000_000 + "'"},
    {"text": "word " * 200_000},
    {"text": " ".join(f"w{at}" for at in range(101))},
    {"order_by": ", ".join(["reward"] * 10_000)},
    {"order_by": "x" * 1_000_000},
]
DEEP = ["not " * 30, "not " * 90]


@pytest.mark.parametrize("asked", LONG, ids=lambda asked: str(asked)[:24])
def test_what_is_too_much_points_at_the_query(store: Store, asked: dict[str, str]) -> None:
    with pytest.raises(QueryError) as said:
        store.query(**asked)  # type: ignore[arg-type]
    assert len(str(said.value)) < 200_000
    assert "cannot be read (" not in str(said.value)


@pytest.mark.parametrize("nots", DEEP, ids=["30", "90"])
def test_what_is_deep_is_answered_or_points_at_the_query(store: Store, nots: str) -> None:
    try:
        assert store.count(where=f"{nots}reward > 0") == store.count(where="reward > 0")
    except QueryError as error:
        assert "deep" in str(error)
