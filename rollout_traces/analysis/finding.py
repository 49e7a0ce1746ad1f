"""One column in which two selections of rollouts differ."""

from __future__ import annotations

from dataclasses import dataclass

from rollout_traces.analysis.compare import Effect
from rollout_traces.analysis.detail import Detail
from rollout_traces.analysis.diagnoses.base import number, percent


@dataclass(frozen=True)
class Finding:
    """A column in which A and B differ.

    Attributes:
        column: the column.
        value: the value whose share differs; None for a number.
        a: mean, or share, of A.
        b: of B.
        n_a: rollouts of A that know the column.
        n_b: rollouts of B that know it.
        rows_a: rollouts of A that have the value; `n_a` for a number.
        rows_b: of B.
        effect: how far they differ, with interval and p.
        new: the value occurs in A alone.
        detail: parts, examples and picture; None beyond the first `MOST`.
        consequences: what follows from it.
        query: a SELECT that gives its figures again.
    """

    column: str
    value: str | None
    a: float
    b: float
    n_a: int
    n_b: int
    rows_a: int
    rows_b: int
    effect: Effect
    new: bool = False
    detail: Detail | None = None
    consequences: tuple[Finding, ...] = ()
    query: str = ""

    @property
    def queries(self) -> tuple[str, ...]:
        """SELECTs that give the figures of its sentence again, and those of what follows from it."""
        own = (self.query,) if self.detail is None else (self.detail.query, self.detail.since_query)
        return tuple(
            query for query in (*own, *(q for each in self.consequences for q in each.queries)) if query
        )

    @property
    def name(self) -> str:
        """Column and value."""
        return self.column if self.value is None else f"{self.column} {self.value}"

    @property
    def sentence(self) -> str:
        """What differs, in words: `stop_reason length: 2 % to 57 % on engine vllm-1, 0 of 2,611 elsewhere`."""
        d = self.detail
        form = percent if self.value is not None else number
        if d is not None and d.part is not None:
            text = f"{self.name}: {form(d.b)} to {form(d.a)} on {d.part}"
            if d.elsewhere is not None:
                hits = (
                    f"{d.elsewhere_rows:,} of {d.elsewhere_n:,}"
                    if self.value is not None
                    else form(d.elsewhere)
                )
                text += f", {hits} elsewhere"
        else:
            text = f"{self.name}: {form(self.b)} to {form(self.a)}"
            if self.value is not None:
                text += f" ({self.rows_b:,} of {self.n_b:,} to {self.rows_a:,} of {self.n_a:,})"
        if self.new:
            text += ", new"
        return text + (f", since step {d.since}" if d is not None and d.since is not None else "")
