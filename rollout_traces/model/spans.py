"""Spans of time of a rollout: what its turns waited for, sampled, called and were scored by, and when.

A row of `RolloutBatch.timings` is a mapping of names to seconds, or a list of spans
`{kind, start, end, turn, engine, version, name, error}`.
"""

from __future__ import annotations

import math
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import orjson

from rollout_traces.model.text import MOST, encodable
from rollout_traces.model.units import LARGEST_EXACT, MS

KINDS = ("queue", "prefill", "generate", "tool", "score")
"""The kinds of a span; where spans are packed, a kind's place here stands for it."""
MOST_OF_A_ROW = 10_000
"""Spans of a rollout that are kept with its trace, the longest ones."""
MOST_OF_A_STEP = 200_000
"""Spans of a step that its ledger holds, spread evenly over its rollouts."""
FEWEST_OF_A_ROW = 16
"""Spans of a rollout that a ledger holds however many rollouts there are."""
LATEST = 1e11
"""Seconds since the epoch above which a time was given in milliseconds."""
SHORT = 100
"""Characters of an engine's, tool's or reward function's name."""
OPTIONAL = ("turn", "version")
NUMBERS = ("kind", "at", "ms", *OPTIONAL)
"""Numbers of a packed span: its kind's place in `KINDS`, milliseconds behind the first, its milliseconds, ..."""
TEXTS = ("name", "engine", "error")
"""Texts of a packed span, places in `texts`."""
UNKNOWN = -1
OF_TIME = "Spans of time"
"""The beginning of a step's notes about spans."""
Span = dict[str, Any]


class Spans:
    """Notes the spans of one rollout while it is sampled; `timings=[spans.noted, ...]` hands them over.

    spans = Spans()
    with spans("generate", turn=0, engine="engine-3", version=17):
        reply = engine.generate(...)
    with spans("tool", turn=0, name="search"):
        result = search(...)

    Attributes:
        noted: the spans so far. What raises inside one is its `error`, and raised on.
    """

    def __init__(self) -> None:
        self.noted: list[Span] = []

    @contextmanager
    def __call__(self, kind: str, **known: Any) -> Iterator[Span]:
        """Times what runs inside.

        Args:
            kind: one of `KINDS`.
            **known: `turn`, `engine`, `version`, `name`, as far as they are known before.

        Yields:
            The span, to which what is known later can be added.
        """
        begun = (
            time.perf_counter()
        )  # first: a thread that waits between the two makes a span longer, not end too early
        span: Span = {"kind": kind, "start": time.time(), **known}
        try:
            yield span
        except BaseException as error:
            span["error"] = type(error).__name__
            raise
        finally:
            span["end"] = span["start"] + time.perf_counter() - begun  # also where the clock is set meanwhile
            self.noted.append(span)


def checked(given: Any) -> tuple[list[Span], list[str]]:
    """The spans of a row that can be understood, by their start, and what was seen of each other one.

    Args:
        given: what a trainer gave as a row's list.
    """
    found, refused = [], []
    for value in given:
        why = _refusal(value)
        if why:
            refused.append(why)
        else:
            found.append(_canonical(value))
    return sorted(found, key=lambda span: span["start"]), refused


def _refusal(value: Any) -> str:
    if not isinstance(value, Mapping):
        return f"seen {type(value).__name__}, expected a mapping with kind, start and end"
    if value.get("kind") not in KINDS:
        return f"kind: seen {str(value.get('kind'))[:MOST]!r}, expected one of {', '.join(KINDS)}"
    for key in ("start", "end"):
        at = value.get(key)
        if isinstance(at, bool) or not isinstance(at, (int, float)) or not math.isfinite(at):
            return f"{key}: seen {str(at)[:MOST]!r}, expected seconds since the epoch"
        if abs(at) >= LATEST:
            return f"{key}: seen {at:.6g}, expected seconds since the epoch, not milliseconds"
    if value["end"] < value["start"]:
        return f"end: {value['start'] - value['end']:.6g} s before start"
    return ""


def _canonical(value: Mapping[str, Any]) -> Span:
    span: Span = {"kind": value["kind"], "start": float(value["start"]), "end": float(value["end"])}
    for key in OPTIONAL:
        at = value.get(key)
        if isinstance(at, int) and not isinstance(at, bool) and 0 <= at < LARGEST_EXACT:
            span[key] = at
    for key in ("name", "engine", "error"):
        if value.get(key) is not None:
            span[key] = encodable(str(value[key])[:SHORT])
    return span


def longest(spans: Sequence[Span], most: int) -> Sequence[Span]:
    """The longest of some spans, in their order."""
    if len(spans) <= most:
        return spans
    by_length = sorted(range(len(spans)), key=lambda at: spans[at]["start"] - spans[at]["end"])
    return [spans[at] for at in sorted(by_length[:most])]


def as_seconds(spans: Iterable[Span]) -> dict[str, float]:
    """Adds spans up: seconds by kind, and `start`, when the first began."""
    found: dict[str, float] = {}
    starts = []
    for span in spans:
        found[span["kind"]] = found.get(span["kind"], 0.0) + span["end"] - span["start"]
        starts.append(span["start"])
    return {**found, "start": min(starts)} if starts else found


def seconds_of_scoring(rows: Sequence[Sequence[Span]]) -> list[dict[str, float]]:
    """By reward function, the seconds spent on each row; a call for several rows is split evenly among them."""
    shared: Counter[tuple[str, float, float]] = Counter(
        call for spans in rows for call in {_call(span) for span in spans if span["kind"] == "score"}
    )
    found = []
    for spans in rows:
        seconds: defaultdict[str, float] = defaultdict(float)
        for name, start, end in {_call(span) for span in spans if span["kind"] == "score"}:
            seconds[name] += (end - start) / shared[name, start, end]
        found.append(dict(seconds))
    return found


def _call(span: Span) -> tuple[str, float, float]:
    return span.get("name", ""), span["start"], span["end"]


def most_of_a_row(n_rows: int) -> int:
    """Shares a ledger's room among its rows: spans of each that it holds, of a step of so many rollouts."""
    return max(FEWEST_OF_A_ROW, min(MOST_OF_A_ROW, MOST_OF_A_STEP // max(n_rows, 1)))


def packed(spans: Sequence[Span], most: int) -> str | None:
    """Spans as one text, to the millisecond; the longest ones where there are more than `most`. None for no span."""
    if not spans:
        return None
    start = spans[0]["start"]
    held = longest(spans, most)
    texts: dict[str, int] = {}
    columns: dict[str, list[int]] = {
        "kind": [KINDS.index(span["kind"]) for span in held],
        "at": [round((span["start"] - start) * MS) for span in held],
        "ms": [round((span["end"] - span["start"]) * MS) for span in held],
        **{key: [span.get(key, UNKNOWN) for span in held] for key in OPTIONAL},
        **{
            key: [texts.setdefault(span[key], len(texts)) if key in span else UNKNOWN for span in held]
            for key in TEXTS
        },
    }
    known = {key: column for key, column in columns.items() if any(at != UNKNOWN for at in column)}
    return orjson.dumps({"start": start, "n": len(spans), **known, "texts": list(texts)}).decode()


@dataclass(frozen=True)
class Packed:
    """The packed form of S spans, as `packed` makes it.

    Attributes:
        start: when the first span began, seconds since the epoch.
        n: how many spans there were; S are held.
        columns: S numbers of each of `NUMBERS` and `TEXTS`, -1 where unknown.
        texts: what those of `TEXTS` stand for.
    """

    start: float = 0.0
    n: int = 0
    columns: Mapping[str, list[int]] = field(default_factory=lambda: {key: [] for key in (*NUMBERS, *TEXTS)})
    texts: Sequence[str] = ()

    @property
    def n_held(self) -> int:
        """The number of spans that are held, S."""
        return len(self.columns["kind"])


def unpacked(text: str | None) -> Packed:
    """Reads what `packed` made; no spans where it is something else."""
    try:
        found = orjson.loads(text or "{}")
        nothing = [UNKNOWN] * len(found["kind"])
        columns = {key: found.get(key, nothing) for key in (*NUMBERS, *TEXTS)}
        read = Packed(float(found["start"]), int(found["n"]), columns, found["texts"])
        return read if _is_good(read) else Packed()
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError):
        return Packed()


def _is_good(read: Packed) -> bool:
    lows = {"at": -LARGEST_EXACT, "kind": 0, "ms": 0}
    highs = {"kind": len(KINDS), **dict.fromkeys(TEXTS, len(read.texts))}
    return (
        math.isfinite(read.start)
        and read.n >= read.n_held > 0
        and all(isinstance(text, str) for text in read.texts)
        and all(
            len(column) == read.n_held
            and set(map(type, column)) == {int}
            and min(column) >= lows.get(key, UNKNOWN)
            and max(column) < highs.get(key, LARGEST_EXACT)
            for key, column in read.columns.items()
        )
    )


def read_packed(text: str) -> list[Span]:
    """The spans that `packed` holds."""
    read = unpacked(text)
    found: list[Span] = []
    for at in range(read.n_held):
        begin = read.start + read.columns["at"][at] / MS
        span: Span = {"kind": KINDS[read.columns["kind"][at]], "start": begin}
        span["end"] = begin + read.columns["ms"][at] / MS
        span |= {key: read.columns[key][at] for key in OPTIONAL if read.columns[key][at] != UNKNOWN}
        span |= {key: read.texts[read.columns[key][at]] for key in TEXTS if read.columns[key][at] != UNKNOWN}
        found.append(span)
    return found
