"""A run as a folder of files that any web server serves: the inspector's own pages over answers written down, gzipped, and the rows that they filter."""

from __future__ import annotations

import gzip
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rollout_traces.errors import ConfigError, StoreError
from rollout_traces.inspector.assets import STYLE, bundle, icon, inlined, made_by, written_head
from rollout_traces.inspector.pages.around import group_pushes, image, step_means
from rollout_traces.inspector.pages.explain import AskedSides, explain
from rollout_traces.inspector.pages.figures import MOST_READ, population_over_steps, scalars
from rollout_traces.inspector.pages.incidents import cards
from rollout_traces.inspector.pages.rollouts import AskedSamples, metrics, samples
from rollout_traces.inspector.pages.run import RunAnswer, run_report
from rollout_traces.inspector.pages.shell import ListedRun, SplitSteps, split_steps
from rollout_traces.inspector.shared_file import written_rollout
from rollout_traces.inspector.workspace import ProjectView, SplitView, Workspace, as_json, as_plain
from rollout_traces.store import TraceRow
from rollout_traces.store.asking import meanings
from rollout_traces.store.reading import part_text
from rollout_traces.store.rows import every_row

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
        # in the order of lists: the newest step first, then group and sample
        self.rows = list(every_row(self.view.store, MOST_READ, run=self.view.run, split=self.view.split))
        self.explained: list[int] = []
        self.images: dict[str, str] = {}

    def steps(self) -> SplitSteps:
        """The split as the frame lists it."""
        return split_steps(self.view.store, self.view.run, self.view.split)

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
        listed = as_plain(cards(self.view, self.rows))
        at = {row.id: number for number, row in enumerate(self.rows)}
        steps = {step: as_plain(samples(self.view, step, AskedSamples())) for step in self.steps().steps}
        for answer in steps.values():
            for group in answer["groups"]:
                group["rows"] = [at[card["id"]] for card in group.pop("samples")]
        columns, arrived = _columns(self.view, self.rows)
        some: dict[str, Any] = next(iter(steps.values()), {})
        return {
            "cards": {name: [card[name] for card in listed] for name in (listed[0] if listed else ())},
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
        pushes = {}
        for step, group in dict.fromkeys((row.step, row.get("group")) for row in rows):
            try:
                if group is not None:
                    pushes[f"{step} {group}"] = as_plain(group_pushes(self.view, step, group))
            except StoreError:
                continue  # no advantages: the overlay is not offered
        return {"rollouts": [written_rollout(self.view, str(row.id)) for row in rows], "pushes": pushes}

    def _images(self, shown: dict[str, Any]) -> Iterator[File]:
        for number, each in enumerate(shown.get("images", ())):
            if each["left_out"] is None:
                name = self.images.setdefault(shown["id"], f"{self.folder}/image-{len(self.images)}")
                yield f"{name}-{number}", as_plain(image(self.view, shown["id"], number))


def listed_run(view: SplitView, splits: list[SplitSteps]) -> ListedRun:
    """The run as the frame lists it, without what needs a server."""
    info = view.info
    named = (info.id, info.name, info.name, info.started)
    return ListedRun(*named, info.n_traces, info.n_rollouts, splits, "", [])


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


ENTRY = "components/site/script.js"
PAGES = ("run", "rollouts")
MARK = "rt-site"
"""The id by which a page knows that it is one of a site."""
SCRIPT = "site.js"
_COMPONENTS = Path(__file__).parent / "components"
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "base-uri 'none'; form-action 'none'"
)


def write_site(
    workspace: Workspace,
    project: str,
    run: str,
    out: Path,
    splits: Sequence[str] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> tuple[int, int]:
    """Writes a run as a folder that any web server serves.

    The folder appears under its name only when it is complete; a site that stood there goes.

    Args:
        workspace: where it is read from.
        run: the run's name or id.
        splits: these splits alone.
        progress: called with rollouts done and rollouts in all.

    Returns:
        Rollouts and bytes that were written.

    Raises:
        ConfigError: something else stands at `out`.
        StoreError: there is no such run, or nothing of it was kept.
    """
    out = out.resolve()  # `.` has no name
    _may_replace(out)
    view = ProjectView(workspace, project)
    info = view.store.run(run)
    named = [split for split in info.splits if splits is None or split in splits]
    parts = [SiteOf(SplitView(workspace, project, info.id, split), str(at)) for at, split in enumerate(named)]
    total = sum(len(part.rows) for part in parts)
    if not total:
        raise StoreError(f"run {info.name!r}: no rollout was kept, so there is nothing to show.")
    unfinished = out.with_name(f".{out.name}.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    try:
        done = 0
        for part in parts:
            for name, held in part.files():
                _write(unfinished / "data" / f"{name}.gz", held)
                done += len(held["rollouts"]) if "/rollouts-" in name else 0
                if progress is not None:
                    progress(done, total)
        _write(unfinished / "data" / "about.gz", _about(parts, info.name))
        _write_page(unfinished, info.name)
        if out.exists():
            shutil.rmtree(out)
        unfinished.replace(out)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return total, sum(path.stat().st_size for path in out.rglob("*") if path.is_file())


def _may_replace(out: Path) -> None:
    page = out / "index.html"
    ours = page.is_file() and f'id="{MARK}"' in page.read_text("utf-8", "replace")
    if out.exists() and not ours and not (out.is_dir() and not any(out.iterdir())):
        raise ConfigError(f"{out} is there and no site of ours. Name a folder that is empty or not there.")


def _write(path: Path, held: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(as_json(held), mtime=0))


def _about(parts: Sequence[SiteOf], name: str) -> Mapping[str, Any]:
    view = parts[0].view
    project = view.project.rstrip("/").rsplit("/", 1)[-1]  # of an export, not where it lies
    run = as_plain(listed_run(view, [part.steps() for part in parts]))
    return {
        "title": f"{project} / {name}",
        "made": made_by(),
        "catalog": {"projects": [{"name": project}], "project": project, "runs": [run]},
        "splits": [part.view.split for part in parts],
        "explained": [part.explained for part in parts],
        "images": {key: value for part in parts for key, value in part.images.items()},
    }


def _write_page(folder: Path, title: str) -> None:
    files = bundle()
    (folder / SCRIPT).write_text(inlined(files.modules, ENTRY), "utf-8")
    (folder / STYLE).write_bytes(files.files[STYLE])
    pages = "\n".join(
        f'<div class="rt-view rt-page" id="rt-{name}">{(_COMPONENTS / name / "template.html").read_text("utf-8")}</div>'
        for name in PAGES
    )
    (folder / "index.html").write_text(
        f"{written_head(_POLICY, title)}"
        f'<link rel="icon" type="image/svg+xml" href="{icon()}">\n'
        f'<link rel="stylesheet" href="{STYLE}?{files.digest}">\n'
        f'<script src="{SCRIPT}?{files.digest}" defer></script></head>\n<body id="{MARK}">\n{pages}\n</body></html>\n',
        "utf-8",
    )
