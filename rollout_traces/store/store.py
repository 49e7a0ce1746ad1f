"""The read side as one object: what pages, commands and notebooks ask."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from rollout_traces.store import search, steps
from rollout_traces.store.damage import damage_said
from rollout_traces.store.finder import Finder
from rollout_traces.store.index import Index, Progress
from rollout_traces.store.loading import find_trace
from rollout_traces.store.names import meanings
from rollout_traces.store.reading import conversation_text
from rollout_traces.store.rows import ColumnInfo, Histogram, Page, RunInfo, StepGroups, StepInfo
from rollout_traces.store.scalars import Scalars, Series
from rollout_traces.store.schema import queryable
from rollout_traces.store.scope import Rows, Scope, within_sqlite
from rollout_traces.store.source import Source

if TYPE_CHECKING:
    from rollout_traces.ledger.columns import Ledger
    from rollout_traces.trace.conversion import TraceRecord
    from rollout_traces.transcript import Transcript

Steps = tuple[int | None, int | None]
EVERYTHING: Steps = (None, None)


def storable(text: str) -> str:
    """Text without lone surrogates, which no database takes."""
    return text.encode("utf-8", "replace").decode()


class Store:
    """The traces and ledgers of one project, read only.

    Args:
        source: where they are.
        index_path: the index file; by default where the source says.
    """

    def __init__(self, source: Source, index_path: Path | None = None) -> None:
        self.source = source
        self._index = Index(source, index_path)
        self._finder = Finder(self._index)
        self._scalars = Scalars(source)

    @property
    def project(self) -> str:
        """The project's name."""
        return self.source.project

    def refresh(self, progress: Progress | None = None) -> int:
        """Indexes the traces that came since the last time; cheap when there are none.

        Args:
            progress: called with traces done and traces in all.

        Returns:
            Number of new traces.

        Raises:
            StoreError: the project cannot be read.
        """
        return self._index.refresh(progress)

    def rebuild(self, progress: Progress | None = None) -> int:
        """Builds the index anew.

        Args:
            progress: called with traces done and traces in all.

        Returns:
            Number of traces.
        """
        return self._index.rebuild(progress)

    @property
    def index_path(self) -> Path:
        """The index file."""
        return self._index.path

    def forget_answers(self) -> None:
        """Drops remembered counts and scans; they are forgotten by themselves when rows come."""
        self._finder.forget()

    def close(self) -> None:
        """Closes files and connections."""
        self._index.close()
        self.source.close()

    def runs(self) -> list[RunInfo]:
        """The project's runs, oldest first."""
        with self._index.snapshot() as connection:
            return steps.list_runs(connection)

    def run(self, run: str) -> RunInfo:
        """One run.

        Args:
            run: its id or name.

        Raises:
            StoreError: there is none, or several share the name.
        """
        run_id = self._run_id(run)
        return next(info for info in self.runs() if info.id == run_id)

    def splits(self, run: str) -> tuple[str, ...]:
        """The splits of a run, training first."""
        return self.run(run).splits

    def steps(self, run: str, split: str) -> list[StepInfo]:
        """The steps of a split that have traces or a ledger, in order."""
        run_id = self._run_id(run)
        with self._index.snapshot() as connection:
            return steps.list_steps(connection, run_id, split)

    def groups(self, run: str, split: str, step: int) -> StepGroups:
        """The groups of a step: their traces, and the rewards of all their rollouts from the ledger."""
        run_id = self._run_id(run)
        with self._index.snapshot() as connection:
            return steps.list_groups(connection, (run_id, split, within_sqlite(step)))

    def columns(self, rows: Rows = "traces") -> list[ColumnInfo]:
        """The columns that a query can name."""
        known = meanings()
        with self._index.snapshot() as connection:
            columns = queryable(connection, rows).values()
        return [
            ColumnInfo(c.name, c.kind, known.get(c.name) or known.get(c.name.split("/", 1)[0] + "/*", ""))
            for c in columns
        ]

    def query(
        self,
        run: str | None = None,
        split: str | None = None,
        where: str = "",
        text: str | None = None,
        order_by: str | None = None,
        limit: int = 50,
        after: str | None = None,
        steps: Steps = EVERYTHING,
        rows: Rows = "traces",
    ) -> Page:
        """Rollouts that satisfy a filter, in order, page by page.

        Args:
            run: id or name of the run; all runs when None.
            split: the split; all when None.
            where: a filter such as `reward < 0.5 and flags has 'truncated'` (docs/query.md).
            text: words and "quoted phrases" that the conversation must hold, all of them.
            order_by: sort keys such as `-reward, step`; unknown values come last. By default the newest
                step first, then group and sample.
            limit: most rows in the page, 1 to 10,000.
            after: `next` of the page before.
            steps: first and last step, both included, None for an open end.
            rows: `traces`, or `ledger` for every rollout that the ledgers know of.

        Returns:
            The page, with the number of rows that match in all.

        Raises:
            QueryError: filter or sort cannot be understood; the text points at the place.
            StoreError: no such run, no such cursor.
        """
        return self._finder.page(self._scope(run, split, where, text, steps, rows), order_by, limit, after)

    def search(self, text: str, run: str | None = None, **asked: Any) -> Page:
        """Rollouts whose conversation holds words or "quoted phrases", with the place in `snippet`.

        Args:
            text: what to look for; code such as `boxed{4` is found as written.
            run: id or name of the run; all runs when None.
            asked: further arguments of `query`.

        Returns:
            A page of `query`, each row with a `snippet` of text around the first thing found.
        """
        page = self.query(run=run, text=text, **asked)
        phrases = self._finder.phrases(Scope(text=text))
        found = self.source.messages_of([row.id for row in page.rows if row.id])
        rows = tuple(
            type(row)(
                row.id,
                row.run_id,
                row.run,
                row.split,
                row.step,
                {
                    **row.values,
                    "snippet": search.snippet(conversation_text(found.get(row.id or "", b"[]")), phrases),
                },
            )
            for row in page.rows
        )
        return Page(rows, page.total, page.next)

    def count(
        self,
        run: str | None = None,
        split: str | None = None,
        where: str = "",
        text: str | None = None,
        steps: Steps = EVERYTHING,
        rows: Rows = "traces",
    ) -> int:
        """How many rollouts satisfy a filter; arguments as for `query`."""
        return self._finder.count(self._scope(run, split, where, text, steps, rows))

    def facets(
        self,
        column: str,
        run: str | None = None,
        split: str | None = None,
        where: str = "",
        text: str | None = None,
        steps: Steps = EVERYTHING,
        rows: Rows = "traces",
        limit: int = 50,
    ) -> list[tuple[Any, int]]:
        """A column's values and how many rollouts have each, most frequent first, None for unknown.

        Args:
            column: the column; of lists of names every name counts.
            run: as for `query`, like the arguments after it.
            split: as for `query`.
            where: as for `query`.
            text: as for `query`.
            steps: as for `query`.
            rows: as for `query`.
            limit: most values.
        """
        return self._finder.facets(self._scope(run, split, where, text, steps, rows), column, limit)

    def histogram(
        self,
        column: str,
        bins: int = 20,
        run: str | None = None,
        split: str | None = None,
        where: str = "",
        text: str | None = None,
        steps: Steps = EVERYTHING,
        rows: Rows = "traces",
    ) -> Histogram:
        """Counts of a numeric column in bins of equal width; further arguments as for `query`."""
        return self._finder.histogram(self._scope(run, split, where, text, steps, rows), column, bins)

    def find(self, wanted: str) -> str:
        """The id of the trace that is meant.

        Args:
            wanted: a trace id or uid, or the beginning of one that no other shares.

        Raises:
            StoreError: there is none, or there are several.
        """
        with self._index.snapshot() as connection:
            return find_trace(connection, storable(wanted))

    def record(self, trace_id: str) -> TraceRecord:
        """One whole trace.

        Args:
            trace_id: its id.

        Raises:
            StoreError: there is none, or its JSON is damaged.
        """
        from rollout_traces.trace.conversion import TraceRecord

        stored = self.source.trace(storable(trace_id))
        with damage_said(f"trace {trace_id!r}: its stored JSON"):
            messages, metadata, spans = (
                orjson.loads(text) for text in (stored.messages, stored.metadata, stored.spans or b"[]")
            )
            return TraceRecord(
                list(messages), dict(metadata), [span for span in spans if isinstance(span, dict)]
            )

    def transcript(self, trace_id: str) -> Transcript | None:
        """The transcript of a trace, None where another tool wrote it.

        Raises:
            StoreError: there is no such trace, or its packed data is damaged or of a newer schema.
        """
        from rollout_traces.trace.conversion import read_transcript

        record = self.record(trace_id)
        with damage_said(f"trace {trace_id!r}: its token track"):
            return read_transcript(record)

    def details(self, trace_id: str) -> dict[str, Any]:
        """What is kept beside a trace: flags with their sentences, warnings, timings.

        Raises:
            StoreError: there is no such trace, or it is damaged.
        """
        from rollout_traces.trace.conversion import read_details

        record = self.record(trace_id)
        with damage_said(f"trace {trace_id!r}: its details"):
            return read_details(record)

    def ledger(self, run: str | None = None, split: str | None = None, steps: Steps = EVERYTHING) -> Ledger:
        """All rollouts of all steps, traced or not, as columns; steps in order.

        Args:
            run: id or name of the run; all runs when None.
            split: the split; all when None.
            steps: first and last step, both included, None for an open end.

        Returns:
            The ledger, with the columns `step` and `split`; without rows where there are none.
        """
        from rollout_traces.store.ledgers import read_ledgers

        with self._index.snapshot() as connection:
            return read_ledgers(connection, self._scope(run, split, "", None, steps, "ledger"))

    def metrics(self, run: str) -> Series:
        """A run's logged scalars: key -> steps and values, in order of arrival.

        Args:
            run: id or name of the run.
        """
        return self._scalars.of(self._run_id(run))

    def config(self, run: str) -> dict[str, Any]:
        """A run's configuration as it was logged."""
        return self.source.run_config(self._run_id(run))

    def _run_id(self, run: str) -> str:
        with self._index.reading() as connection:
            return steps.find_run_id(connection, run)

    def _scope(
        self,
        run: str | None,
        split: str | None,
        where: str,
        text: str | None,
        steps_between: Steps,
        rows: Rows,
    ) -> Scope:
        run_id = None if run is None else self._run_id(run)
        return Scope(run_id, split, steps_between, storable(where), storable(text or ""), rows)
