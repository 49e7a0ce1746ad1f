"""The spans of many rollouts on one clock: whose clock is off, what held a step up, how long a lane was idle."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from rollout_traces.analysis.in_words import percent
from rollout_traces.model.spans import KINDS, NUMBERS, TEXTS, UNKNOWN, unpacked
from rollout_traces.model.text import duration, quoted

OF_ENGINE = (KINDS.index("queue"), KINDS.index("prefill"), KINDS.index("generate"))
"""Kinds that are timed by an engine's clock; tools and reward functions are timed by the rollout's own."""
BUSY = OF_ENGINE[1:]
"""Kinds in which an engine works."""
SECOND = 1000
"""Milliseconds."""
SLACK_MS = 2
"""Milliseconds by which neighbouring spans may overlap, each being rounded."""
TAIL_SHARE = 0.2
"""The share of a step's rollouts that can be its tail."""
TAIL_LEAST = 0.1
"""The least share of the step's time for which a tail holds it up."""
COLUMNS = ("row", "kind", "start", "ms", "turn", "version", "engine", "name", "error")
"""Arrays of `Lanes` with one value a span."""
MOSTLY = 0.8
"""The share of its time from which on a tail is said to be in one thing."""
FAR = 2**61
"""Milliseconds that no time is away."""


@dataclass(frozen=True, eq=False)
class Lanes:
    """S spans of B rollouts.

    Attributes:
        began: when the first of them began, seconds since the epoch.
        row: int [S], the rollout's place among those that were given.
        kind: int [S], places in `KINDS`.
        start: int64 [S], milliseconds behind `began`.
        ms: int64 [S].
        turn: int64 [S], -1 where unknown.
        version: int64 [S], -1 where unknown.
        engine: int [S], the engine that sampled it, or that its rollout was on; places in `names`, -1 where unknown.
        name: int [S], the tool or reward function; places in `names`, -1.
        error: int [S], places in `names`, -1.
        names: texts.
        given: int [B], how many spans each rollout had, 0 where none were logged.
    """

    began: float
    row: np.ndarray
    kind: np.ndarray
    start: np.ndarray
    ms: np.ndarray
    turn: np.ndarray
    version: np.ndarray
    engine: np.ndarray
    name: np.ndarray
    error: np.ndarray
    names: Sequence[str]
    given: np.ndarray

    @property
    def end(self) -> np.ndarray:
        """int64 [S]: milliseconds behind `began`."""
        return self.start + self.ms

    def take(self, which: np.ndarray) -> Lanes:
        """Some of the spans."""
        return replace(self, **{key: getattr(self, key)[which] for key in COLUMNS})

    def from_first(self) -> Lanes:
        """The same with the first span at 0."""
        first = int(self.start.min()) if len(self.start) else 0
        return replace(self, began=self.began + first / SECOND, start=self.start - first)


@dataclass(frozen=True)
class Clock:
    """Offset of an engine's clock from the rollouts', with its bounds.

    Attributes:
        engine: the engine.
        moved: milliseconds that were added to its spans, 0 where they fit.
        low: the least, and `high` the most that would make them fit; infinite where nothing limits it.
        said: what is odd, in words; empty where nothing is.
    """

    engine: str
    moved: int
    low: float
    high: float
    said: str


@dataclass(frozen=True)
class HeldUp:
    """Time for which a step's last rollouts held it up, and what took it.

    Attributes:
        of: how many rollouts were timed.
        begins: when all others had ended, milliseconds behind `began`; `ends`: when the last one did.
        kind: what they spent most of that time in; empty where most often nothing was logged.
        name: the tool or reward function of it.
        seconds: how long they spent in it.
    """

    of: int
    begins: int
    ends: int
    kind: str
    name: str
    seconds: float


@dataclass(frozen=True)
class Tail(HeldUp):
    """The few rollouts that end last, behind the widest gap.

    Attributes:
        rows: their places.
        share: `seconds` of the time in which they held the step up.
    """

    rows: tuple[int, ...]
    share: float

    @property
    def held(self) -> float:
        """Seconds for which they held the step up."""
        return (self.ends - self.begins) / SECOND

    def __str__(self) -> str:
        what = f"{self.kind} {quoted(self.name)}" if self.name else self.kind or "no span tells in what"
        if self.kind and self.share < MOSTLY:
            what += f", {percent(self.share)} of it"
        n = len(self.rows)
        return f"{n:,} of {self.of:,} rollouts {'holds' if n == 1 else 'hold'} the step for {duration(self.held)}: {what}"


def lanes_of(timings: Sequence[str | None], engines: Sequence[str | None]) -> Lanes:
    """The spans of B rollouts.

    Args:
        timings: packed spans of each, None where none were logged.
        engines: the engine of each as a whole.
    """
    read = [unpacked(text) for text in timings]
    began = min((each.start + min(each.columns["at"]) / SECOND for each in read if each.n_held), default=0.0)
    places: dict[str, int] = {}
    columns: dict[str, list[int]] = {key: [] for key in (*NUMBERS, *TEXTS)}
    of_row = np.full(len(read), UNKNOWN)
    bases = [round((each.start - began) * SECOND) for each in read]
    for number, each in enumerate(read):
        for key in NUMBERS:
            columns[key] += each.columns[key]
        own = [places.setdefault(text, len(places)) for text in each.texts]
        own.append(UNKNOWN)  # where -1 points
        for key in TEXTS:
            columns[key] += [own[at] for at in each.columns[key]]
        if (engine := engines[number]) is not None and each.n_held:
            of_row[number] = places.setdefault(engine, len(places))
    table = {key: np.asarray(column, np.int64) for key, column in columns.items()}
    row = np.repeat(np.arange(len(read)), [each.n_held for each in read])
    start = table.pop("at") + np.repeat(bases, [each.n_held for each in read]).astype(np.int64)
    given = np.asarray([each.n for each in read], np.int64)
    lanes = Lanes(began=began, row=row, start=start, names=list(places), given=given, **table)
    return replace(lanes, engine=_engines(lanes, of_row))


def _engines(lanes: Lanes, of_row: np.ndarray) -> np.ndarray:
    """int [S]: the engine of each span; of a tool that of the turn that called it, else the row's, else its first."""
    timed = np.isin(lanes.kind, OF_ENGINE)
    known = np.flatnonzero(timed & (lanes.engine >= 0))
    rows, first = np.unique(lanes.row[known], return_index=True)
    of_row = of_row.copy()
    of_row[rows] = np.where(of_row[rows] >= 0, of_row[rows], lanes.engine[known[first]])
    found = np.where(timed & (lanes.engine >= 0), lanes.engine, of_row[lanes.row])
    turns = _Turns(lanes, known)
    at = turns.at(lanes.row[~timed], lanes.turn[~timed])
    found[~timed] = np.where(at >= 0, turns.values_at(lanes.engine, at), found[~timed])
    return found


class _Turns:
    """Looks up the first of some spans by their rollout and turn.

    Args:
        lanes: the spans.
        which: int [K], places of those that are looked up.
    """

    def __init__(self, lanes: Lanes, which: np.ndarray) -> None:
        which = which[lanes.turn[which] >= 0]
        self._numbers = np.unique(lanes.turn)
        self._keys, first, self.inverse = np.unique(
            self._key(lanes.row[which], lanes.turn[which]), return_index=True, return_inverse=True
        )
        self.which = which
        self._first = which[first]

    def _key(self, row: np.ndarray, turn: np.ndarray) -> np.ndarray:
        return row * (len(self._numbers) + 1) + np.searchsorted(self._numbers, turn)

    def at(self, row: np.ndarray, turn: np.ndarray) -> np.ndarray:
        """int: the place among the turns that are known, -1 where it is not."""
        if not len(self._keys):
            return np.full(len(row), UNKNOWN)
        wanted = self._key(row, turn)
        near = np.minimum(np.searchsorted(self._keys, wanted), len(self._keys) - 1)
        there = (self._keys[near] == wanted) & np.isin(turn, self._numbers) & (turn >= 0)
        return np.where(there, near, UNKNOWN)

    def values_at(self, values: np.ndarray, at: np.ndarray) -> np.ndarray:
        """Values of the first span of each turn; of any where `at` is -1."""
        return values[self._first[at]] if len(self._first) else np.full(len(at), UNKNOWN)


def aligned(lanes: Lanes) -> tuple[Lanes, list[Clock]]:
    """The spans on the rollouts' clock, as far as their order tells what each engine's clock is off by.

    A turn is sampled before its tools run, the next turn after them, and a rollout is scored at its end. Where an engine's
    spans break that, and one shift mends it for all of them, they are shifted by the middle of what fits.
    """
    sampled = np.isin(lanes.kind, OF_ENGINE) & (lanes.turn >= 0) & (lanes.engine >= 0)
    clocks = []
    start = lanes.start.copy()
    low, high = _bounds(lanes, sampled)
    for place in np.unique(lanes.engine[sampled]).tolist():
        least, most = low.get(place, -math.inf), high.get(place, math.inf)
        moved, said = _shift(least, most)
        engine = lanes.names[place]
        if said:
            said = f"engine {quoted(engine)}: {said}"
        clocks.append(Clock(engine, moved, least, most, said))
        start[(lanes.engine == place) & np.isin(lanes.kind, OF_ENGINE)] += moved
    apart = _apart(lanes, start)
    clocks = [replace(clock, said=clock.said or apart.get(clock.engine, "")) for clock in clocks]
    return replace(lanes, start=start).from_first(), clocks


def _bounds(lanes: Lanes, sampled: np.ndarray) -> tuple[dict[int, float], dict[int, float]]:
    """By engine, the least and the most by which its spans can be moved without overlapping its rollouts' other spans."""
    score = KINDS.index("score")
    own = np.flatnonzero(~np.isin(lanes.kind, OF_ENGINE) & (lanes.kind != score))
    tools = _Turns(lanes, own)
    n = int(tools.inverse.max(initial=-1)) + 1
    first, last = np.full(n + 1, FAR), np.full(n + 1, -FAR)  # the last one where there is none
    np.minimum.at(first, tools.inverse, lanes.start[tools.which])
    np.maximum.at(last, tools.inverse, lanes.end[tools.which])
    scored = np.full(int(lanes.row.max(initial=0)) + 1, FAR)
    np.minimum.at(scored, lanes.row[lanes.kind == score], lanes.start[lanes.kind == score])
    row, turn, engine = lanes.row[sampled], lanes.turn[sampled], lanes.engine[sampled]
    behind = np.minimum(first[tools.at(row, turn)], scored[row]) - lanes.end[sampled]
    before = last[tools.at(row, turn - 1)] - lanes.start[sampled]
    low, high = np.full(len(lanes.names), -FAR), np.full(len(lanes.names), FAR)
    np.maximum.at(low, engine, before)
    np.minimum.at(high, engine, behind)
    return (
        {at: float(value) for at, value in enumerate(low.tolist()) if value > -FAR // 2},
        {at: float(value) for at, value in enumerate(high.tolist()) if value < FAR // 2},
    )


def _shift(low: float, high: float) -> tuple[int, str]:
    if low <= SLACK_MS and high >= -SLACK_MS:
        return 0, ""
    if low > high + 2 * SLACK_MS:
        return 0, (
            f"its spans overlap those of its rollouts' tools by up to {duration(max(low, -high) / SECOND)}, and no one shift of its "
            "clock mends it; they are drawn as they came"
        )
    if math.isinf(low) or math.isinf(high):
        moved = round(low if math.isinf(high) else high)
        known = f"at least {duration(abs(moved) / SECOND)}"
    else:
        moved = round((low + high) / 2)
        least, most = (duration(at / SECOND) for at in sorted((abs(low), abs(high))))
        known = most if least == most else f"{least} to {most}"
    return (
        moved,
        f"its clock is {'behind' if moved > 0 else 'ahead'} by {known}; its spans are moved by {duration(moved / SECOND)}",
    )


def _apart(lanes: Lanes, start: np.ndarray) -> dict[str, str]:
    """Engines all of whose spans lie before or behind all others of the step."""
    found = {}
    for place in np.unique(lanes.engine[lanes.engine >= 0]).tolist():
        own = (lanes.engine == place) & np.isin(lanes.kind, OF_ENGINE)
        if not own.any() or own.all():
            continue
        before = int(start[~own].min() - (start + lanes.ms)[own].max())
        behind = int(start[own].min() - (start + lanes.ms)[~own].max())
        if max(before, behind) > SLACK_MS:
            where = "before" if before > 0 else "behind"
            found[lanes.names[place]] = (
                f"engine {quoted(lanes.names[place])}: all of its spans lie {duration(max(before, behind) / SECOND)} {where} all others of the "
                "step, its clock may be off; they are drawn as they came"
            )
    return found


def tail_of(lanes: Lanes) -> Tail | None:
    """The rollouts behind the widest gap between the ends of a step's last rollouts, where they hold it up."""
    rows = np.unique(lanes.row)
    if len(rows) < 2:
        return None
    ends = np.full(int(rows.max()) + 1, np.iinfo(np.int64).min)
    np.maximum.at(ends, lanes.row, lanes.end)
    order = rows[np.argsort(ends[rows], kind="stable")]
    last = ends[order]
    most = max(1, math.ceil(TAIL_SHARE * len(order)))
    gaps = np.diff(last[-most - 1 :])
    at = len(order) - len(gaps) + int(gaps.argmax())
    begins, finish = int(last[at - 1]), int(last[-1])
    if finish - begins < TAIL_LEAST * (finish - int(lanes.start.min())) or begins == finish:
        return None
    held = tuple(sorted(order[at:].tolist()))
    kind, name, ms = _spent(lanes.take(np.isin(lanes.row, held)), begins, finish)
    whole = sum(int(ends[row]) - begins for row in held)
    silent = whole - _covered_of_rows(lanes, held, begins)
    if silent > ms:
        kind, name, ms = "", "", silent
    return Tail(len(order), begins, finish, kind, name, ms / SECOND, rows=held, share=ms / whole)


def _spent(lanes: Lanes, begins: int, finish: int) -> tuple[str, str, int]:
    """The kind and name in which most of a time was spent, and how much."""
    inside = np.clip(lanes.end, begins, finish) - np.clip(lanes.start, begins, finish)
    spent: Counter[tuple[int, int]] = Counter()
    for kind, name, ms in zip(lanes.kind.tolist(), lanes.name.tolist(), inside.tolist(), strict=True):
        spent[kind, name] += ms
    (kind, name), ms = spent.most_common(1)[0]
    return KINDS[kind], lanes.names[name] if name >= 0 else "", ms


def _covered_of_rows(lanes: Lanes, rows: Sequence[int], begins: int) -> int:
    found = 0
    for row in rows:
        own = lanes.row == row
        found += covered(np.maximum(lanes.start[own], begins), np.maximum(lanes.end[own], begins))
    return found


def covered(start: np.ndarray, end: np.ndarray) -> int:
    """Measures the time that some spans cover together, int [S]."""
    if not len(start):
        return 0
    order = np.argsort(start, kind="stable")
    start, reached = start[order], np.maximum.accumulate(end[order])
    gaps = np.maximum(start[1:] - reached[:-1], 0)
    return int(reached[-1] - start[0] - gaps.sum())
