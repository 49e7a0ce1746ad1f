"""The contents of a site's files: the answers that the pages would have got, and the rows that they filter."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rollout_traces.errors import StoreError
from rollout_traces.inspector.asking import as_plain
from rollout_traces.inspector.pages.around import group_pushes, image, step_means
from rollout_traces.inspector.pages.explain import AskedSides, explain
from rollout_traces.inspector.pages.figures import population_over_steps, sample_card, scalars
from rollout_traces.inspector.pages.incidents import run_alarms
from rollout_traces.inspector.pages.rollouts import AskedSamples, metrics, rollout, samples
from rollout_traces.inspector.pages.run import RunAnswer, run_report
from rollout_traces.inspector.pages.shell import ListedRun, SplitSteps
from rollout_traces.inspector.workspace import SplitView
from rollout_traces.store import TraceRow
from rollout_traces.store.asking import meanings
from rollout_traces.store.reading import part_text

PAGE = 10_000
CHUNK_ROLLOUTS = 24
"""Rollouts of a file, unless its last group has more."""
MOST_EXPLAINED = 12
"""Steps of a split whose explanation is written down: those of its diagnoses, then those of its events."""
PARTS = ("text", "prompt", "reply")
"""The parts of a conversation that are searched."""
OF_STEP = ("n_traced", "n_rows", "chosen_by", "note", "groups")
COMMON = ("usual", "range", "severities")
LISTS = ("flags", "tool_names", "error_signatures", "labels", "labelled_by")
"""Columns of names."""
ANSWER = ("answer", "parsed_answer")

File = tuple[str, Any]
"""A file's name without its ending, and the plain values that it holds."""


@dataclass
class SiteOf:
    """A run's split as the files of a site.

    Attributes:
        folder: the folder of its files under `data`.
    """

    view: SplitView
    folder: str

    def __post_init__(self) -> None:
        self.rows = _kept(self.view)
        self.explained: list[int] = []
        self.images: dict[str, str] = {}

    def steps(self) -> SplitSteps:
        """The split as the frame lists it."""
        infos = self.view.store.steps(self.view.run, self.view.split)
        n_rows = sum(info.n_rollouts or info.n_traces for info in infos)
        return SplitSteps(self.view.split, [info.step for info in infos], len(self.rows), n_rows)

    def files(self) -> Iterator[File]:
        """All of them; `explained` and `images` are known when they were read."""
        report = run_report(self.view)
        yield self._named("run"), as_plain(replace(report, settings=None))  # they name the run before
        for step in _worth_explaining(report):
            try:
                yield self._named(f"explain-{step}"), as_plain(explain(self.view, AskedSides(step)))
            except StoreError:
                continue  # nothing to compare it with: the page says that it is not there
            self.explained.append(step)
        yield self._named("metrics"), _all_metrics(self.view)
        chunks = list(_chunks(self.rows))
        yield self._named("list"), self.listed() | {"chunks": [first for first, _ in chunks]}
        yield self._named("texts"), self.texts()
        for number, (_, rows) in enumerate(chunks):
            held = self._rollouts(rows)
            yield self._named(f"rollouts-{number}"), held
            for each in held["rollouts"]:
                yield from self._images(each)

    def _named(self, name: str) -> str:
        return f"{self.folder}/{name}"

    def texts(self) -> list[list[str]]:
        """Collects what is searched in each row's conversation: `PARTS`."""
        found = self.view.store.source.texts_of([str(row.id) for row in self.rows], spans=False)
        kept = [found.get(str(row.id), ("[]",))[0] for row in self.rows]
        return [[part_text(messages, part) for part in PARTS] for messages in kept]

    def listed(self) -> dict[str, Any]:
        """Rows with what lists show of them and filters ask for, and the groups of each step."""
        alarms = run_alarms(self.view)
        cards = [as_plain(sample_card(row, alarms.worn_by(row))) for row in self.rows]
        at = {row.id: number for number, row in enumerate(self.rows)}
        steps = {step: as_plain(samples(self.view, step, AskedSamples())) for step in self.steps().steps}
        for answer in steps.values():
            for group in answer["groups"]:
                group["rows"] = [at[card["id"]] for card in group.pop("samples")]
        columns, arrived = _columns(self.view, self.rows)
        some: dict[str, Any] = next(iter(steps.values()), {})
        return {
            "cards": {name: [card[name] for card in cards] for name in (cards[0] if cards else ())},
            "columns": columns,
            "arrived": arrived,
            "flags": sorted({*some.get("severities", ()), *_tags(columns, "flags")}),
            "steps": {step: {name: answer[name] for name in OF_STEP} for step, answer in steps.items()},
            "means": {step: as_plain(step_means(self.view, step)) for step in steps},
            "population": {**as_plain(population_over_steps(self.view)), "note": None},
            "common": {name: some.get(name) for name in COMMON}
            | {"columns": sorted(name for name, each in columns.items() if each["values"])},
        }

    def _rollouts(self, rows: Sequence[TraceRow]) -> dict[str, Any]:
        """Some rollouts with their tokens, and what overlays need of their groups."""
        shown = [as_plain(rollout(self.view, str(row.id))) for row in rows]
        pushes = {}
        for step, group in dict.fromkeys((row.step, row.get("group")) for row in rows):
            try:
                if group is not None:
                    pushes[f"{step} {group}"] = as_plain(group_pushes(self.view, step, group))
            except StoreError:
                continue  # no advantages: the overlay is not offered
        labels = ({**each["labels"], "names": [], "author": "", "may_label": False} for each in shown)
        return {
            "rollouts": [each | {"labels": own} for each, own in zip(shown, labels, strict=True)],
            "pushes": pushes,
        }

    def _images(self, shown: dict[str, Any]) -> Iterator[File]:
        for number, each in enumerate(shown.get("images", ())):
            if each["left_out"] is None:
                name = self.images.setdefault(shown["id"], f"{self.folder}/image-{len(self.images)}")
                yield f"{name}-{number}", as_plain(image(self.view, shown["id"], number))


def listed_run(view: SplitView, splits: list[SplitSteps]) -> ListedRun:
    """The run as the frame lists it, without what needs a server."""
    info = view.store.run(view.run)
    named = (info.id, info.name, info.name, info.started)
    return ListedRun(*named, info.n_traces, info.n_rollouts, splits, "", [])


def _kept(view: SplitView) -> list[TraceRow]:
    """All kept rollouts of a split, in the order of lists: newest step first, then group and sample."""
    rows: list[TraceRow] = []
    after = None
    while True:
        page = view.store.query(view.run, view.split, limit=PAGE, after=after)
        rows += page.rows
        if page.next is None:
            return rows
        after = page.next


def _columns(view: SplitView, rows: Sequence[TraceRow]) -> tuple[dict[str, Any], list[int]]:
    """The columns that some row knows, by name: kind, and a value a row; of others those that every run may have.

    And the rows' order of arrival, in which equal ones are sorted.
    """
    infos = view.store.columns()
    table = view.store.rollouts(
        where="traced", columns=[each.name for each in infos], runs=[view.run], splits=[view.split]
    )
    known = table.to_pydict()
    at = {key: number for number, key in enumerate(known["id"])}
    order = [at[row.id] for row in rows]
    found: dict[str, Any] = {
        name: {"kind": "tags" if name in LISTS else "mixed", "values": []} for name in meanings()
    }
    for each in infos:
        if table.column(each.name).null_count < table.num_rows:
            values = [_plain(known[each.name][number]) for number in order]
            found[each.name] = {"kind": each.kind, "values": values}
    answers = [found[name]["values"] for name in ANSWER if name in found and found[name]["values"]]
    if answers:
        first = [next((v for v in both if v is not None), None) for both in zip(*answers, strict=True)]
        found["answer"] = {"kind": "text", "values": first}
    return found, order


def _plain(value: Any) -> Any:
    return int(value) if isinstance(value, bool) else value


def _tags(columns: dict[str, Any], name: str) -> set[str]:
    values = columns[name]["values"] if name in columns else ()
    return {tag for tags in values for tag in tags or ()}


def _all_metrics(view: SplitView) -> dict[str, Any]:
    """Every series of the run; `shown` are the usual ones."""
    return as_plain(replace(metrics(view, tuple(scalars(view))), shown=metrics(view).shown))


def _chunks(rows: Sequence[TraceRow]) -> Iterator[tuple[int, list[TraceRow]]]:
    """Rows cut where a group ends: the number of the first, and the rows."""
    first = 0
    for at in range(1, len(rows) + 1):
        if at < len(rows):
            same = (rows[at].step, rows[at].get("group")) == (rows[at - 1].step, rows[at - 1].get("group"))
            if at - first < CHUNK_ROLLOUTS or same:
                continue
        yield first, list(rows[first:at])
        first = at


def _worth_explaining(report: RunAnswer) -> list[int]:
    steps = [d.step for d in report.diagnoses] + [event.step for event in report.events]
    return list(dict.fromkeys(step for step in steps if step is not None))[:MOST_EXPLAINED]
