"""The read side as one object: what pages, commands and notebooks ask."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypedDict

import pyarrow as pa

from rollout_traces.errors import StoreError
from rollout_traces.model.text import encodable, table, titled
from rollout_traces.model.transcript import columns_of
from rollout_traces.store import questions, search, steps
from rollout_traces.store.asking import EVERYTHING, Asking, Attempts, Scope, Steps, Which, within_64_bits
from rollout_traces.store.index import Index, Progress
from rollout_traces.store.labels import Entry, LabelBook, checked_place
from rollout_traces.store.query.nodes import literal
from rollout_traces.store.questions import Measure
from rollout_traces.store.reading import conversation_text
from rollout_traces.store.rows import (
    RUN_TABLE,
    ColumnInfo,
    Histogram,
    RowPage,
    RunInfo,
    StepGroups,
    StepInfo,
    every_row,
    run_cells,
)
from rollout_traces.store.scalars import Scalars, draw_curves
from rollout_traces.store.source import LocalSource, Source
from rollout_traces.store.tables import StoreTables

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from typing_extensions import Unpack

    from rollout_traces.model.batch import RolloutBatch
    from rollout_traces.store.live import LiveRuns

log = logging.getLogger(__name__)


class Filter(TypedDict, total=False):
    """Arguments of `Store.query` that say which rollouts of a run and split are meant."""

    where: str
    steps: Steps
    rows: Which
    attempts: Attempts


class QueryKeywords(Filter, total=False):
    """Arguments of `Store.query` beside `run` and `text`."""

    split: str | None
    order_by: str | None
    limit: int
    after: str | None
    columns: Sequence[str] | None


class FilterAndText(Filter, total=False):
    """As `Filter`, with what conversations must hold."""

    text: str | None


class WhichRows(FilterAndText, total=False):
    """All arguments of `Store.query` that say which rollouts are meant."""

    run: str | None
    split: str | None


class Store(StoreTables):
    """The traces and ledgers of one project, read only.

    Args:
        source: where they are.
        index_path: the index's folder; by default where the source says.
    """

    def __init__(self, source: Source, index_path: Path | None = None) -> None:
        super().__init__(_index_of(source, index_path), Scalars(source))

    @property
    def project(self) -> str:
        """The project's name."""
        return self.source.project

    def __repr__(self) -> str:
        return f"<Store of {self.source.label}: {', '.join(map(repr, (run.name for run in self.runs()))) or 'no runs'}>"

    def _repr_html_(self) -> str:
        return titled(f"Store of {self.source.label}", table(RUN_TABLE, list(map(run_cells, self.runs()))))

    def plot(self, run: str, *keys: str, ax: Axes | None = None) -> Axes:
        """Draws logged scalars of a run over its steps, every value where it is.

        Args:
            run: id or name of the run.
            *keys: names of scalars, such as `rollout/reward/mean`; the mean rewards of all splits by default.
            ax: where to draw; a new figure by default.

        Returns:
            Matplotlib's axes.

        Raises:
            MissingExtra: matplotlib is not installed.
            StoreError: no such run, or a scalar that it does not have.
        """
        return draw_curves(self.metrics(run), self.run(run).name, keys, ax)

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

    def keep_condensed(self) -> None:
        """For a project that is read for long and large: see `RolloutTable.keep_condensed`."""
        self._index.table.keep_condensed()

    def rebuild(self, progress: Progress | None = None) -> int:
        """Builds the index anew.

        Args:
            progress: called with traces done and traces in all.

        Returns:
            Number of traces.
        """
        return self._index.rebuild(progress)

    def index_anew(self) -> int:
        """Removes the index's files and builds it again, so that nothing of what was deleted stays in it."""
        return self._index.rebuild(None, "rollouts were deleted")

    @property
    def index_path(self) -> Path:
        """The index's folder."""
        return self._index.folder

    @cached_property
    def live(self) -> LiveRuns:
        """The rollouts in flight of its runs, where its files lie on this machine."""
        from rollout_traces.store.live import LiveRuns

        return LiveRuns(self.source.live_folder())

    @property
    def labels(self) -> LabelBook:
        """Labels and notes on the project's rollouts."""
        return self._index.labels

    def label(
        self,
        rollout: str,
        text: str,
        author: str,
        *,
        kind: Literal["label", "note"] = "label",
        turn: int | None = None,
        tokens: tuple[int, int] | None = None,
    ) -> Entry:
        """Puts a label or a note on a traced rollout, one of its turns or a range of its tokens.

        Args:
            rollout: its uid or trace id, or the beginning of either.
            text: the label or the note.
            author: who writes it.
            kind: `label` or `note`.
            turn: on this turn alone.
            tokens: on these tokens alone: the first and the one behind the last.

        Raises:
            StoreError: there is no such rollout, turn or token, or the text is none that can be kept.
        """
        trace_id = self.find(rollout)
        if turn is not None or tokens is not None:
            checked_place(self.transcript(trace_id), turn, tokens)
        return self.labels.add(kind, self.uid(trace_id), text, author, turn=turn, tokens=tokens)

    @property
    def side_folder(self) -> str:
        """The place of this project's side tables, see `store.columns`: a folder, or an address."""
        return self.source.side_folder()

    def forget_answers(self) -> None:
        """Drops remembered counts and scans; they are forgotten by themselves when rows come."""
        self._index.answers.forget()

    def close(self) -> None:
        """Closes files and connections."""
        self._index.close()
        self.source.close()

    def attempts(self) -> list[tuple[str, str, str, int]]:
        """Run id, split, attempt and the first step of the split that the attempt wrote."""
        with self._index.snapshot() as connection:
            return connection.execute(
                "SELECT run_id, split, attempt, first_step FROM attempts JOIN runs USING (run)"
                " ORDER BY run, split, attempt"
            ).fetchall()

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
        """The steps of a split that have traces or a ledger, in order; what a later attempt superseded is not counted."""
        run_id = self._run_id(run)
        with self._index.snapshot() as connection:
            # else the table is asked, which may have to be loaded
            if not steps.is_resumed(connection, run_id):
                return steps.list_steps(connection, run_id, split, {})

        def answer(asking: Asking) -> list[StepInfo]:
            lost = steps.superseded(asking, run_id, split)
            return steps.list_steps(asking.connection, run_id, split, lost)

        return self.ask(answer)

    def summaries(self, run: str, split: str, step: int) -> list[str]:
        """The ids of a step's summaries in order of arrival: of each attempt, and of each part that came late."""
        place = (self._run_id(run), split, within_64_bits(step))
        with self._index.snapshot() as connection:
            return steps.list_summaries(connection, place)

    def groups(self, run: str, split: str, step: int) -> StepGroups:
        """The groups of a step: their traces, and the rewards of all their rollouts from the ledger."""
        run_id = self._run_id(run)
        place = (run_id, split, within_64_bits(step))
        return self.ask(lambda asking: steps.list_groups(asking, place))

    def columns(self, rows: Which = "traces") -> list[ColumnInfo]:
        """The columns that a query can name.

        Args:
            rows: of traced rollouts, or of all.
        """
        return self.ask(lambda asking: asking.columns(rows))

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
        rows: Which = "traces",
        columns: Sequence[str] | None = None,
        attempts: Attempts = "all",
    ) -> RowPage:
        """Rollouts that satisfy a filter, in order, page by page.

        Args:
            run: id or name of the run; all runs when None.
            split: the split; all when None.
            where: a filter such as `reward < 0.5 and flags has 'truncated'` (docs/query.md).
            text: words and "quoted phrases" that the conversation must hold, all of them.
            order_by: sort keys such as `-reward, step`; unknown values come last. By default those of the
                filter's `order by`, else the newest step first, then group and sample.
            limit: most rows in the page, 1 to 10,000.
            after: `next` of the page before.
            steps: first and last step, both included, None for an open end.
            rows: `traces`, or `all` for every rollout there was.
            columns: columns that the rows carry; all when None.
            attempts: `newest` leaves out what a later attempt superseded, unless the filter speaks of `superseded`.

        Returns:
            The page, with the number of rows that match in all.

        Raises:
            QueryError: filter or sort cannot be understood; the text points at the place.
            StoreError: no such run, no such cursor, no such column.
        """
        scope = self._scope(run, split, where, text, steps, rows, attempts)
        return self.ask(lambda asking: questions.page(asking, scope, order_by, limit, after, columns))

    def search(
        self, text: str | None = None, run: str | None = None, **asked: Unpack[QueryKeywords]
    ) -> RowPage:
        """Rollouts as `query` gives them; where words are searched for, each with the place in `snippet`.

        Args:
            text: words or "quoted phrases" to look for; code such as `boxed{4` is found as written.
            run: id or name of the run; all runs when None.
            asked: further arguments of `query`; what their filter looks for in texts counts too.

        Returns:
            A page of `query`, each row with a `snippet` of text around the first thing found.
        """
        page = self.query(run=run, text=text, **asked)
        looked_for = Scope(text=encodable(text or ""), where=encodable(asked.get("where") or "")).looked_for()
        if not looked_for:
            return page
        found = self.source.texts_of([row.id for row in page.rows if row.id], spans=False)
        texts = {key: conversation_text(messages) for key, (messages, *_) in found.items()}
        around = search.snippets(texts, looked_for, self._index.engine)
        rows = tuple(
            replace(row, values={**row.values, "snippet": around[row.id]}) if row.id in around else row
            for row in page.rows
        )
        return RowPage(rows, page.total, page.next)

    def count(self, run: str | None = None, split: str | None = None, **which: Unpack[FilterAndText]) -> int:
        """Counts the rollouts that satisfy a filter; arguments as for `facets`."""
        scope = self._counted(run=run, split=split, **which)
        return self.ask(lambda asking: questions.count(asking, scope))

    def facets(self, column: str, limit: int = 50, **which: Unpack[WhichRows]) -> list[tuple[Any, int]]:
        """A column's values and how many rollouts have each, most frequent first, None for unknown.

        Args:
            column: the column; of lists of names every name counts.
            limit: most values.
            which: `run`, `split`, `where`, `text`, `steps`, `rows` and `attempts` as for `query`, attempts `newest` by default.
        """
        scope = self._counted(**which)
        return self.ask(lambda asking: questions.facets(asking, scope, column, limit))

    def histogram(self, column: str, bins: int = 20, **which: Unpack[WhichRows]) -> Histogram:
        """Counts of a numeric column in bins of equal width; further arguments as for `facets`."""
        scope = self._counted(**which)
        return self.ask(lambda asking: questions.histogram(asking, scope, column, bins))

    def aggregate(
        self, by: Sequence[str], measures: Sequence[Measure], **which: Unpack[WhichRows]
    ) -> pa.Table:
        """Figures by the values of some columns; splits, and runs where there are several, are never mixed.

        Args:
            by: columns whose values are separated.
            measures: `Measure("mean", "mismatch_k3")` and the like.
            which: as for `facets`; `rows` are `all` by default.

        Returns:
            A row a combination of values, with `rollouts` and the figures.
        """
        which.setdefault("rows", "all")
        scope = self._counted(**which)
        return self.ask(lambda asking: questions.aggregate(asking, scope, by, measures))

    def _counted(self, **which: Unpack[WhichRows]) -> Scope:
        """The rows that a figure speaks of: those of the newest attempts, unless others are asked for."""
        which.setdefault("attempts", "newest")
        return self._scope(**which)

    def batch(self, run: str, step: int, split: str = "rollout", *, complete: bool = False) -> RolloutBatch:
        """The kept rollouts of a step as the batch that was logged; how many of all they are is logged as a warning.

        Args:
            run: the run's name or id; its step and split follow.
            complete: refuse a step that was not kept whole, with its tokens.

        Returns:
            Numpy arrays: ids and masks [B, T] are exact, float tracks have the precision of a trace, float16.

        Raises:
            StoreError: no rollout of the step was kept, or not all were where `complete` asks for them.
        """
        from rollout_traces.sources.formats.own_export import batch_of_records

        rows = list(self._kept_records(run, step, split))
        n = self.count(run, split=split, steps=(step, step), rows="all")
        if not n:
            raise StoreError(f"step {step} of {split}: the run has no rollouts there.")
        without = sum(row.get("input_ids") is None for row in rows)
        said = f"step {step} of {split}: {len(rows):,} of {n:,} rollouts were kept, {without:,} of these without token ids"
        if not rows or (complete and (len(rows) < n or without)):
            raise StoreError(
                f"{said}. Log with a tokenizer, selection='all' and a cap of as many rollouts as a step has, to have a "
                "whole batch; import with --tokenizer."
            )
        if len(rows) < n or without:
            log.warning("%s.", said)
        return batch_of_records(rows)

    def _kept_records(self, run: str, step: int, split: str) -> Iterator[dict[str, Any]]:
        """The kept rollouts of a step as an export writes them."""
        steps = (step, step)
        found = every_row(
            self,
            questions.MAX_LIMIT,
            run=run,
            split=split,
            attempts="newest",
            steps=steps,
            order_by="group, sample",
        )
        for row in found:
            if row.id is None:
                continue
            known = {k: v for k, v in row.as_dict().items() if v is not None}
            record = {**self.record(row.id).metadata, **known, "messages": self.messages(row.id)}
            transcript = self.transcript(row.id)
            if transcript is not None and len(transcript.tokens):
                record |= columns_of(transcript.tokens)
            yield {**record, "step": step, "split": split, "run": row.run}

    def raw_record(self, rollout: str) -> str:
        """The text of the record that an imported rollout was read from.

        Args:
            rollout: its trace's id or uid, or the beginning of one; of a rollout without a trace its uid.

        Raises:
            StoreError: it was not imported, not on this machine, or the record cannot be read any more.
        """
        from rollout_traces.sources.state import raw_record

        origin = self._origin_of(rollout)
        if not isinstance(origin, str):
            raise StoreError(f"{rollout!r} was not imported from a file: it has no raw record.")
        if not isinstance(self.source, LocalSource):
            raise StoreError(f"{origin}: read on the machine that imported it, from its own project.")
        return raw_record(self.source.path.parent, self.project, origin).decode("utf-8", "replace")

    def _origin_of(self, rollout: str) -> Any:
        """Looks up the place a rollout was read from: its trace says it, and its row, also where it has no trace."""
        try:
            return self.record(rollout).metadata.get("origin")
        except StoreError:
            found = self.query(where=f"uid = {literal(rollout)}", rows="all", limit=1).rows
            if not found:
                raise
            return found[0].get("origin")


def _index_of(source: Source, folder: Path | None) -> Index:
    from rollout_traces.store.export_index import ExportIndex
    from rollout_traces.store.export_source import ExportSource

    return ExportIndex(source, folder) if isinstance(source, ExportSource) else Index(source, folder)
