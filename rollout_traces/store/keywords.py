"""The further arguments of `Store.search` as a type, for editors and type checkers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict

from rollout_traces.store.scope import Which
from rollout_traces.store.store_tables import Steps


class QueryKeywords(TypedDict, total=False):
    """Arguments of `Store.query` behind `run` and `text`."""

    split: str | None
    where: str
    order_by: str | None
    limit: int
    after: str | None
    steps: Steps
    rows: Which
    columns: Sequence[str] | None
