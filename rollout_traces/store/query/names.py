"""Names that a query can use: columns, flags, and the figures of a rollout's group."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from rollout_traces.store.columns.schema import INTERNAL, Kind, quoted

ColumnKind = Literal["number", "text", "tags", "mixed"]

_KINDS: Mapping[Kind, ColumnKind] = {
    "bool": "number",
    "int": "number",
    "float": "number",
    "text": "text",
    "tags": "tags",
    "mixed": "mixed",
}
ALIASES = {
    "tool": "tool_names",
    "tools": "tool_names",
    "error": "error_signatures",
    "label": "labels",
    "note": "notes",
}
"""Shorter names that people type."""
GROUP = {
    "group.mean": ("group_mean", "mean reward of the rollout's group"),
    "group.std": ("group_std", "population standard deviation of the group's rewards"),
    "group.size": ("group_rows", "rollouts in the group"),
    "group.tied": ("group_tied", "1 where all rewards of the group are known and equal, with two or more"),
    "group.min": ("group_min", "lowest reward of the group"),
    "group.max": ("group_max", "highest reward of the group"),
}
"""Name in a query -> column of the group's figures, and what it means."""
ANSWER = ("answer", "parsed_answer")
"""Columns that hold the answer; the first that is known counts."""


def group_column(name: str) -> str:
    """The column of `rollouts` that holds a figure of the group; a name that no column of a run has."""
    return f"__{GROUP[name][0]}"


@dataclass(frozen=True)
class QueryColumn:
    """A column that a query can name.

    Attributes:
        kind: what its values are.
        sql: the SQL that reads it.
        reads: columns of the table that it needs; a figure of the group by its name in a query.
    """

    name: str
    kind: ColumnKind
    sql: str
    reads: tuple[str, ...]

    @property
    def uncast(self) -> str:
        """The SQL that leaves booleans as they are."""
        return self.sql.removeprefix("CAST(").removesuffix(" AS TINYINT)")

    @property
    def number(self) -> str:
        """The SQL that reads it as a number, null where it is none."""
        return f"TRY_CAST({self.sql} AS DOUBLE)" if self.kind != "tags" else "CAST(NULL AS DOUBLE)"


@dataclass(frozen=True)
class Names:
    """The names of one state of the table.

    Attributes:
        kinds: the kind of every column.
        all_flags: gives the names of the flags that this version raises or that rows have; asked only where a name is
            no column.
    """

    kinds: Mapping[str, Kind]
    all_flags: Callable[[], frozenset[str]] = frozenset

    def column(self, name: str) -> QueryColumn | None:
        """The column of a name, None where there is none."""
        if name in GROUP:
            return QueryColumn(name, "number", group_column(name), (name,))
        if name == "answer":
            both = ", ".join(quoted(each) for each in ANSWER)
            return QueryColumn(name, "text", f"coalesce({both})", ANSWER)
        name = name if name in self.kinds else ALIASES.get(name, name)
        kind = self.kinds.get(name)
        if kind is None or name in INTERNAL:
            return None
        sql = quoted(name)
        return QueryColumn(name, _KINDS[kind], f"CAST({sql} AS TINYINT)" if kind == "bool" else sql, (name,))

    def is_flag(self, name: str) -> bool:
        """Tells whether there is a flag of that name."""
        return name in self.flags

    @cached_property
    def flags(self) -> frozenset[str]:
        """The names of all flags."""
        return self.all_flags()

    @cached_property
    def all(self) -> tuple[str, ...]:
        """Every column's name."""
        return (*(name for name in self.kinds if name not in INTERNAL), *GROUP, *ALIASES)

    def hint(self, name: str) -> str:
        """Guesses what was meant by a name that is none, as a sentence behind a blank; else nothing."""
        near = difflib.get_close_matches(name, [*self.all, *self.flags], n=1) or [
            known for known in self.all if known.endswith("/" + name)
        ]
        return f" Did you mean {near[0]}?" if near else ""

    def flag_hint(self, name: str) -> str:
        """The same for a flag."""
        near = difflib.get_close_matches(name, list(self.flags), n=1)
        return f" Did you mean {near[0]}?" if near else f" Flags: {', '.join(sorted(self.flags))}."
