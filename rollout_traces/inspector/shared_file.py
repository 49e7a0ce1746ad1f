"""One HTML file that holds what a page shows, and needs no server: the answers that the page would have got, read once.

What a pattern finds is hidden in it: in text, and its tokens lose their ids, as a run's hook does.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, cast

import numpy as np

from rollout_traces.errors import ConfigError, StoreError
from rollout_traces.inspector.assets import (
    STYLE,
    bundle,
    inlined,
    made_by,
    policy_hash,
    written_head,
)
from rollout_traces.inspector.pages.around import GroupPushes, group_pushes, step_means
from rollout_traces.inspector.pages.compare import compare, run_of
from rollout_traces.inspector.pages.explain import AskedSides, explain
from rollout_traces.inspector.pages.figures import population
from rollout_traces.inspector.pages.group import group
from rollout_traces.inspector.pages.rollouts import rollout
from rollout_traces.inspector.pages.run import run_report
from rollout_traces.inspector.payload import packed, unpacked, utf16_positions
from rollout_traces.inspector.workspace import (
    Names,
    ProjectView,
    SplitView,
    Workspace,
    as_json,
    as_plain,
    seen,
)
from rollout_traces.model.plain_values import plain, texts_in, with_texts
from rollout_traces.model.units import MB
from rollout_traces.steps.redact import HIDDEN, Redaction
from rollout_traces.store import RowPage, StepGroups, Store, TraceRow
from rollout_traces.trace.conversion import DETAILS_KEY, TRACK_KEY, TraceRecord, read_details, read_transcript
from rollout_traces.trace.packing import pack_transcript

MOST_ROLLOUTS = 64
MOST_EXAMPLES = 12
"""Rollouts that an explanation's file holds as examples."""


@dataclass(frozen=True)
class Shared:
    """The subject that is to be shared; the first of these that is given counts.

    Attributes:
        run: id or name of the run, for a group and an explanation.
        compared: two rollouts side by side, by uid or trace id.
        group: step and group.
        explained: the run's report; with `step`, also what changed there.
        step: see `explained`.
        rollouts: rollouts by uid or trace id.
        patterns: regular expressions of what is hidden.
    """

    project: str
    run: str = ""
    split: str = "rollout"
    compared: tuple[str, str] | None = None
    group: tuple[int, int] | None = None
    explained: bool = False
    step: int | None = None
    rollouts: tuple[str, ...] = ()
    patterns: Sequence[str] = field(default_factory=tuple)


def shared_contents(workspace: Workspace, wanted: Shared) -> dict[str, Any]:
    """Reads what the page of `shared_page` shows.

    Args:
        workspace: where it is read from.
        wanted: what.

    Returns:
        Plain values.

    Raises:
        StoreError: a rollout, group or run is not there, or there are more rollouts than `MOST_ROLLOUTS`.
        ConfigError: a pattern cannot be understood.
    """
    hiding = Hiding(wanted.patterns)
    reading = HidingWorkspace(workspace, hiding) if wanted.patterns else workspace
    whole = ProjectView(reading, wanted.project)
    if wanted.compared is not None:
        held = _compared(whole, *wanted.compared)
    elif wanted.group is not None:
        held = _group(_of_run(whole, wanted), *wanted.group)
    elif wanted.explained:
        held = _explained(_of_run(whole, wanted), wanted)
    elif wanted.rollouts:
        held = _rollouts(whole, wanted.rollouts)
    else:
        raise StoreError("nothing to share: name rollouts, two to compare, a group or an explanation.")
    held = {"compare": None, "group": None, "run": None, "explanation": None, "population": None, **held}
    held["around"] = _around(SplitView(reading, **held["place"]), held["rollouts"])
    held["steps"] = sorted(
        {each["metadata"]["step"] for each in held["rollouts"] if "step" in each["metadata"]}
    )
    held["made"] = made_by() + (" · parts are hidden" if wanted.patterns else "")
    return _hidden(hiding, held) if wanted.patterns else held


def _of_run(view: ProjectView, wanted: Shared) -> SplitView:
    run = view.store.run(wanted.run).name
    return SplitView(view.workspace, view.project, run, wanted.split)


def _rollouts(view: ProjectView, names: Iterable[str]) -> dict[str, Any]:
    ids = list(dict.fromkeys(view.store.find(name) for name in names))
    of_first = _of_trace(view, ids[0])
    shown = _read(view, ids)
    many = f"{len(shown)} rollouts" if len(shown) > 1 else _named(shown[0])
    return {
        "title": f"{many} · {of_first.run}",
        "place": _place(of_first),
        "start": {"page": "rollouts", "id": ids[0]},
        "rollouts": shown,
        "said": f"{many} of {view.project}",
    }


def _compared(view: ProjectView, *names: str) -> dict[str, Any]:
    left, right = (view.store.find(name) for name in names)
    of_left = _of_trace(view, left)
    step = view.store.record(left).metadata.get("step")
    answer = as_plain(compare(of_left, a=left, b=right))
    sides = answer["sides"]
    return {
        "title": f"{_named(sides[0])} and {_named(sides[1])} · {of_left.run}",
        "place": _place(of_left),
        "start": {"page": "compare", "a": left, "b": right},
        "rollouts": sides,
        "compare": {**answer, "sides": [], "candidates": []},
        "population": None if step is None else as_plain(population(of_left, step)),
        "said": f"two rollouts of {view.project}",
    }


def _group(view: SplitView, step: int, number: int) -> dict[str, Any]:
    answer = group(view, step, number)
    ids = [member.id for member in answer.members if member.id is not None]
    return {
        "title": f"step {step}, group {number} · {view.run}",
        "place": _place(view),
        "start": {"page": "group", "step": step, "group": number},
        "rollouts": _read(view, ids),
        "group": as_plain(replace(answer, groups=[number])),
        "population": as_plain(population(view, step)),
        "said": f"a group of {view.project}",
    }


def _explained(view: SplitView, wanted: Shared) -> dict[str, Any]:
    start: dict[str, Any] = {"page": "run"}
    held: dict[str, Any] = {"run": as_plain(replace(run_report(view), settings=None))}
    ids: list[str] = []
    at = ""
    if wanted.step is not None:
        answer = as_plain(explain(view, AskedSides(wanted.step)))
        start |= {"step": wanted.step, "explain": 1}
        at = f", step {wanted.step}"
        held["explanation"] = _without_phrases(answer) if wanted.patterns else answer
        ids = _examples(held["explanation"])[:MOST_EXAMPLES]
    return {
        **held,
        "title": f"{view.run}{at}",
        "place": _place(view),
        "start": start,
        "rollouts": _read(view, ids),
        "said": f"a run of {view.project}",
    }


def _without_phrases(answer: Mapping[str, Any]) -> dict[str, Any]:
    """A phrase may be a part of what is to be hidden, in which no pattern finds anything."""
    left_out = "Phrases are left out of this file, because something was hidden in it."
    return {**answer, "phrases": [], "winners": [], "remarks": [*answer["remarks"], left_out]}


def _examples(answer: Mapping[str, Any]) -> list[str]:
    named = [
        *(i for each in answer["findings"] if each["detail"] for i in each["detail"]["examples"]),
        *(i for each in answer["carried"] for i in each["ids"]),
        *(i for found in ("phrases", "winners") for each in answer[found] for i in each["examples"]),
    ]
    return list(dict.fromkeys(i for i in named if i))


def _read(view: ProjectView, ids: Sequence[str]) -> list[dict[str, Any]]:
    """Rollouts with their own labels; the names of others are not included."""
    if len(ids) > MOST_ROLLOUTS:
        raise StoreError(f"{len(ids)} rollouts; one file holds at most {MOST_ROLLOUTS}. Name fewer.")
    return [written_rollout(_of_trace(view, trace_id), trace_id) for trace_id in ids]


def written_rollout(view: SplitView, trace_id: str) -> dict[str, Any]:
    """A rollout as a page without a server shows it, to which no label can be added."""
    shown = as_plain(rollout(view, trace_id))
    return shown | {"labels": shown["labels"] | {"names": [], "author": "", "may_label": False}}


def _around(view: SplitView, shown: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Reads what overlays need of the steps and groups of the rollouts; of a group's ids those that are shown."""
    found: dict[str, Any] = {}
    known = [each["metadata"] for each in shown if each["tokens"] is not None]
    for step, number in dict.fromkeys((m.get("step"), m.get("group")) for m in known):
        if step is None:
            continue
        with suppress(StoreError):  # the page says that it is not there
            found[f"step {step} {number}"] = as_plain(step_means(view, step))
        with suppress(StoreError):
            if number is not None:
                pushes = _pushes_on(group_pushes(view, step, number), shown)
                found[f"group {step} {number}"] = as_plain(pushes)
    return found


def _pushes_on(pushes: GroupPushes, shown: Sequence[Mapping[str, Any]]) -> GroupPushes:
    """The pushes on the token ids of rollouts: others would show what rollouts that are not shared wrote."""
    tracks = [unpacked(each["tokens"]["arrays"]["ids"]) for each in shown if each["tokens"] is not None]
    ids = set(np.concatenate(tracks).tolist())
    there = [at for at, token in enumerate(pushes.ids) if token in ids]
    return replace(
        pushes,
        ids=[pushes.ids[at] for at in there],
        up=[pushes.up[at] for at in there],
        down=[pushes.down[at] for at in there],
    )


def _of_trace(view: ProjectView, trace_id: str) -> SplitView:
    run = run_of(view.store, trace_id)
    split = str(view.store.record(trace_id).metadata.get("split") or "rollout")
    return SplitView(view.workspace, view.project, run.name if run else "", split)


def _place(view: SplitView) -> dict[str, str]:
    return {"project": view.project, "run": view.run, "split": view.split}


def _named(shown: Mapping[str, Any]) -> str:
    m = shown["metadata"]
    parts = [f"{name} {m[name]}" for name in ("step", "group", "sample") if m.get(name) is not None]
    return ", ".join(parts) or "a rollout"


def _hidden(hiding: Hiding, held: Mapping[str, Any]) -> dict[str, Any]:
    """Hides in everything that is text; ids of traces that the page goes by stay."""
    kept = ("rollouts", "around", "start")
    return {
        **{key: value if key in kept else hiding.value(value) for key, value in held.items()},
        "rollouts": [hiding.payload(each) for each in held["rollouts"]],
    }


def shared_page(held: Mapping[str, Any]) -> str:
    """One HTML file.

    Args:
        held: what it shows, see `shared_contents`.

    Returns:
        The file's text. Its Content-Security-Policy names the hashes of its one script and its one style sheet
        and allows nothing else: no request, no frame, no form, no other script.
    """
    files = bundle()
    script, style = inlined(files.modules, "components/shared/script.js"), files.files[STYLE].decode()
    hashes = [policy_hash(code.encode()) for code in (script, style)]
    policy = f"default-src 'none'; script-src {hashes[0]}; style-src {hashes[1]}; base-uri 'none'; form-action 'none'"
    text = as_json(held).decode()
    return (
        f"{written_head(policy, str(held.get('title', '')))}<style>{style}</style></head><body>\n"
        f'<script type="application/json" id="rt-held">{_inside_script(text)}</script>\n'
        f"<script>{script}</script>\n</body></html>\n"
    )


def _inside_script(text: str) -> str:
    """JSON that no sign of can end the element that it stands in."""
    for sign in "<>&\u2028\u2029":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return text


LARGEST = 64 * MB
"""Bytes of a file that a browser is sent."""


@dataclass(frozen=True)
class SharedFile:
    """The file's text, and its name."""

    html: str
    name: str


def share(
    view: SplitView,
    what: str,
    id: str = "",
    a: str = "",
    b: str = "",
    step: int | None = None,
    group: int | None = None,
    hide: Names = (),
) -> SharedFile:
    """The file of a rollout (`id`), of two (`a` and `b`), of a group (`step`, `group`) or of the run's report.

    `what` says which: `rollout`, `compare`, `group` or `explain`. The texts of `hide` are hidden in it.

    Raises:
        StoreError: `what` is something else, it is not there, or the file is too large.
    """
    known = {
        "rollout": {"rollouts": (id,)},
        "compare": {"compared": (a, b)},
        "group": {"group": (step or 0, group or 0)},
        "explain": {"explained": True, "step": step},
    }
    if what not in known:
        raise StoreError(f"what: seen {seen(what)}, expected rollout, compare, group or explain.")
    if what == "group" and step is None:
        raise StoreError("step: none named. Pick one with the step pager.")
    patterns = tuple(re.escape(text) for text in hide if text)
    wanted = Shared(view.project, run=view.run, split=view.split, patterns=patterns, **known[what])  # type: ignore[arg-type]
    page = shared_page(shared_contents(view.workspace, wanted))
    size = len(page.encode())
    if size > LARGEST:
        raise StoreError(
            f"the file has {size:,} bytes; a browser is sent at most {LARGEST:,}. Use `rollout-traces share`."
        )
    return SharedFile(page, f"{what}.html")


CUT = ("prompt", "reply", "snippet")
"""Columns that hold the beginning of a text: a pattern may find nothing in a part of what it is to hide."""


class Hiding:
    """The patterns of what is hidden.

    Args:
        patterns: regular expressions of Python.

    Raises:
        ConfigError: one is none, or finds the empty text.
    """

    def __init__(self, patterns: Sequence[str]) -> None:
        self._patterns = [_compiled(pattern) for pattern in patterns]

    def pieces(self, message: Mapping[str, Any]) -> list[str]:
        """Finds what the patterns match in the texts of a message."""
        return [match[0] for text in texts_in(message) for p in self._patterns for match in p.finditer(text)]

    def record(self, record: TraceRecord) -> TraceRecord:
        """A trace with everything hidden that the patterns find in it."""
        transcript = read_transcript(record)
        if transcript is None:
            return TraceRecord(self.value(record.messages), self.value(record.metadata), ())
        changed, hide = Redaction(self.pieces, Counter()).apply(transcript)
        messages = plain(changed.messages())
        root = {
            "id": "rollout",
            "kind": "span",
            DETAILS_KEY: hide(read_details(record)),
            TRACK_KEY: pack_transcript(changed, messages),
        }
        return TraceRecord(messages, hide(record.metadata), [root])

    def value(self, value: Any) -> Any:
        """Plain values with every text hidden in; the characters keep their number as a browser counts."""

        def hidden(text: str) -> str:
            for pattern in self._patterns:
                text = pattern.sub(lambda match: HIDDEN * int(utf16_positions(match[0])[-1]), text)
            return text

        return with_texts(value, hidden)

    def payload(self, payload: Mapping[str, Any]) -> dict[str, Any]:
        """A rollout as the page draws it: hidden in, and without the ids of tokens whose text is hidden."""
        tokens = payload["tokens"]
        shown = self.value({key: value for key, value in payload.items() if key not in ("tokens", "id")})
        if tokens is not None:
            tokens = {**tokens, "arrays": _without_hidden_ids(tokens["arrays"], shown["raw"])}
        return {**shown, "id": payload["id"], "tokens": tokens}


class HidingWorkspace(Workspace):
    """A workspace whose stores hide.

    Args:
        beneath: the workspace that reads.
        hiding: what is hidden.
    """

    def __init__(self, beneath: Workspace, hiding: Hiding) -> None:
        super().__init__(server_url=beneath.server_url, space=beneath.space, folder=beneath.folder)
        self._beneath = beneath
        self._hiding = hiding

    def store(self, project: str) -> Store:
        """The store of a project, hiding."""
        return cast(Store, _HidingStore(self._beneath.store(project), self._hiding))

    def version(self, project: str) -> int:
        """The number of the last refresh."""
        return self._beneath.version(project)


class _HidingStore:
    """A store whose traces hide, and whose rows have no beginnings of texts."""

    def __init__(self, beneath: Store, hiding: Hiding) -> None:
        self._beneath = beneath
        self._hiding = hiding

    def __getattr__(self, name: str) -> Any:
        return getattr(self._beneath, name)

    def record(self, trace_id: str) -> TraceRecord:
        """One whole trace."""
        return self._hiding.record(self._beneath.record(trace_id))

    def query(self, *asked: Any, **named: Any) -> RowPage:
        """Rows of a query."""
        page = self._beneath.query(*asked, **named)
        return RowPage(_without_cut(page.rows), page.total, page.next)

    def groups(self, run: str, split: str, step: int) -> StepGroups:
        """The groups of a step."""
        found = self._beneath.groups(run, split, step)
        hidden = [
            replace(each, prompt="", traces=_without_cut(each.traces), rows=_without_cut(each.rows))
            for each in found.groups
        ]
        return replace(found, groups=tuple(hidden))


def _without_cut(rows: Sequence[TraceRow]) -> tuple[TraceRow, ...]:
    kept = [{name: value for name, value in row.values.items() if name not in CUT} for row in rows]
    return tuple(replace(row, values=values) for row, values in zip(rows, kept, strict=True))


def _compiled(pattern: str) -> re.Pattern[str]:
    try:
        found = re.compile(pattern)
    except re.error as error:
        raise ConfigError(f"--redact-pattern {pattern!r}: no regular expression: {error}.") from error
    if found.match("") is not None:
        raise ConfigError(
            f"--redact-pattern {pattern!r}: finds the empty text. Expected what must not be shared."
        )
    return found


def _without_hidden_ids(arrays: Mapping[str, Any], raw: str) -> dict[str, Any]:
    units = np.frombuffer(raw.encode("utf-16-le", "surrogatepass"), "<u2")
    before = np.concatenate([np.zeros(1, np.int64), np.cumsum(units == ord(HIDDEN))])
    starts, stops = unpacked(arrays["starts"]), unpacked(arrays["stops"])
    ids = unpacked(arrays["ids"]).astype(np.int32)
    ids[before[stops] > before[starts]] = -1
    return {**arrays, "ids": packed(ids)}
