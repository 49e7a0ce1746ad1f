"""Which rows of a table are meant, as the FROM and the WHERE of a statement."""

from __future__ import annotations

from dataclasses import dataclass, replace

from rollout_traces.store.query.compiler import Sql
from rollout_traces.store.scope import Rows

KEYS = {"traces": "doc", "ledger": "row"}
"""Each table's primary key, which decides between rows that are equal otherwise."""


@dataclass(frozen=True)
class Selection:
    """Rows of a table, alias `t`.

    Attributes:
        table: `traces` or `ledger`.
        condition: what they satisfy.
        access: how SQLite gets at them, see `Scope.access`; empty where it chooses itself.
        matches: full-text expressions that their conversations match, all of them.
    """

    table: Rows
    condition: Sql
    access: str
    matches: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        """The expression of the primary key."""
        return f"t.{KEYS[self.table]}"

    @property
    def outer_key(self) -> str:
        """The same of the table that is read first."""
        return "words.rowid" if self.matches else self.key

    @property
    def tables(self) -> str:
        """What stands behind FROM.

        With a search the full-text index is read once, in order, and its rows are looked up; as a set of
        rows to test against (`IN`) it would first be copied, which takes longer than reading it.
        """
        if not self.matches:
            return f"{self.table} t{self.access}"
        return f"words CROSS JOIN {self.table} t ON {self.key} = words.rowid"

    @property
    def where(self) -> Sql:
        """What stands behind WHERE."""
        if not self.matches:
            return self.condition
        return Sql("words MATCH ?", (" AND ".join(self.matches),)).and_(self.condition)

    def narrowed(self, condition: Sql) -> Selection:
        """Those of the rows that satisfy a further condition."""
        return replace(self, condition=self.condition.and_(condition))

    def matching(self, expression: str) -> Selection:
        """Those of the rows whose conversation also matches a full-text expression."""
        return replace(self, matches=(*self.matches, expression))
