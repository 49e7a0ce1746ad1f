"""A filter of the query language as a condition for SQL over the relation `rollouts`."""

from __future__ import annotations

import re
from typing import Any

from rollout_traces.store.asking import Asking
from rollout_traces.store.query.names import GROUP
from rollout_traces.store.scope import Scope

_COLUMN = re.compile(r'\bt\.("(?:[^"]|"")*"|\w+)')


def sql_condition(asking: Asking, where: str) -> tuple[str, tuple[Any, ...]]:
    """A condition without an alias, and its parameters.

    What the filter language can say and one row's columns cannot (searches, figures of the group) is answered
    first and becomes a list of rows.

    Args:
        asking: a state of the table.
        where: the filter.

    Raises:
        QueryError: it cannot be understood.
    """
    asked = asking.asked(Scope(where=where, rows="all"))
    if not asked.found and not any(name in GROUP for name in asked.columns):
        return _COLUMN.sub(r"\1", asked.condition.text), asked.condition.parameters
    found = asking.run(
        asked,
        f"SELECT t.row FROM rollouts t WHERE {asked.condition.text}",
        asked.condition.parameters,
        ["row"],
    )
    return '"row" in (select unnest(?))', (found["row"].to_pylist(),)
