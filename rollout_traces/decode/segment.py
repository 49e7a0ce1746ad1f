"""A row's bytes cut into turns by the dialect's markers alone."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

from rollout_traces.decode.markers import ROLE_ALIASES, FoundMarker, Markers, Pattern, Row
from rollout_traces.model.transcript import Role

_WHITESPACE = b" \t\r\n"


@dataclass(slots=True)
class Segment:
    """A turn in bytes.

    Attributes:
        role: who wrote it.
        start: its first byte.
        body_start: first byte after its opening marker.
        body_stop: one past the last byte of its body.
        stop: one past its last byte.
        name: the tool's name written in its opener.
        call_id: the call's id written in its opener.
        warning: what was odd, empty when nothing was.
    """

    role: Role
    start: int
    body_start: int
    body_stop: int
    stop: int
    name: str = ""
    call_id: str = ""
    warning: str = ""


def segment(row: Row, markers: Markers) -> list[Segment]:
    """Cuts a row into turns.

    Args:
        row: its bytes and marker tokens.
        markers: the dialect made ready for the tokenizer.

    Returns:
        Segments one behind the other up to the row's end; empty when no opener was found.
    """
    openers = _openers(row, markers)
    stops = [*(found.start for found in openers), len(row.data)]
    segments = _leading(row, markers, stops[0]) if openers else _handed_over(row, markers, stops[0])
    for found, stop in zip(openers, stops[1:], strict=True):
        if segments and _is_stop_sign(row, markers, segments[-1], found, stop):
            segments[-1].stop = stop
            continue
        if segments and row.data.endswith(found.before, segments[-1].body_start, segments[-1].body_stop):
            segments[-1].body_stop -= len(found.before)
        one = Segment(found.role, found.start, found.stop, stop, stop, found.name, found.call_id)
        segments.extend(_split(row, markers, one))
    ends = [at for at, token in row.specials.items() if token in markers.end_ids]
    for one in segments:
        trim(row, markers, one)
        if not one.warning and _closed_inside(ends, one):
            one.warning = "text_after_end: text follows the turn's end marker before the next turn opens"
    return segments


def _closed_inside(ends: Sequence[int], one: Segment) -> bool:
    """Tells whether one of the row's end markers, ascending, stands inside a body that goes on after it."""
    if one.body_stop < one.stop or one.role == "tool":
        return False
    first = bisect_left(ends, one.body_start)
    return first < len(ends) and ends[first] < one.body_stop


def _is_stop_sign(row: Row, markers: Markers, before: Segment, found: FoundMarker, stop: int) -> bool:
    """Tells whether an opener with nothing after it only ends the assistant's turn, as GLM's `<|user|>` does."""
    return (
        stop == len(row.data)
        and before.role == "assistant"
        and any(row.data.startswith(sign, found.start) for sign in markers.stop_signs)
        and not row.data[found.stop :].strip()
    )


def _openers(row: Row, markers: Markers) -> list[FoundMarker]:
    """Every opener that counts, in order, none inside another."""
    candidates: list[FoundMarker] = []
    for at, token in row.specials.items():
        found = None
        for pattern in markers.anchored.get(token, ()):
            if found := pattern.match(row, at):
                break
        if found is None and token in markers.header_ids:
            found = _unknown_header(row, markers, at, token)
        if found is not None:
            candidates.append(found)
    if markers.free:
        candidates.extend(_free_openers(row, markers))
        candidates.sort(key=lambda found: (found.start, -found.stop))
    openers: list[FoundMarker] = []
    for found in candidates:
        if openers and (found.start < openers[-1].stop or _joins(row, markers, openers[-1], found)):
            continue
        openers.append(found)
    if alone := _results_alone(row, markers, openers):
        openers = sorted([*openers, *alone])
    return openers


def _results_alone(row: Row, markers: Markers, openers: Sequence[FoundMarker]) -> list[FoundMarker]:
    """Tool results that stand behind an assistant's end marker without the opener of their group.

    DeepSeek V3's template writes the group's opener once in a conversation, and no calls beside a content: later
    results begin with their own marker. Each is given an empty opener in front of it, so that it is read as a group.
    """
    found: list[FoundMarker] = []
    for pattern in markers.nested.get("tool", ()):
        for at, token in row.specials.items():
            if token != pattern.first_id or not pattern.match(row, at):
                continue
            before = next((one for one in reversed(openers) if one.start <= at), None)
            if before is None or before.role != "assistant" or not _ends_turn(row, markers, before, at):
                continue
            found.append(FoundMarker(at, at, "tool"))
    return found


def _ends_turn(row: Row, markers: Markers, before: FoundMarker, at: int) -> bool:
    """Tells whether the assistant's end marker stands directly in front of a position."""
    at = skip_back(row.data, at, before.stop)
    return any(pattern.ends_at(row, at, before.stop) >= 0 for pattern in markers.closers["assistant"])


def _free_openers(row: Row, markers: Markers) -> list[FoundMarker]:
    found: list[FoundMarker] = []
    for pattern in markers.free:
        strict = pattern.follows_closer and markers.anchored_closers
        found.extend(
            one
            for one in pattern.find(row, 0, len(row.data))
            if not strict or _follows_marker(row, markers, one.start)
        )
    if markers.anchored_closers and (cut := _cut_opener(row, markers)):
        found.append(cut)
    return found


def _cut_opener(row: Row, markers: Markers) -> FoundMarker | None:
    """The beginning of a plain opener behind an end marker where the row ends, such as the `A` of `Assistant:`."""
    for pattern in markers.free:
        for length in range(len(pattern.core) - 1, 0, -1) if pattern.follows_closer else ():
            at = len(row.data) - length
            if at > 0 and row.data.endswith(pattern.core[:length]) and _follows_marker(row, markers, at):
                return FoundMarker(at, len(row.data), "context")
    return None


def _follows_marker(row: Row, markers: Markers, at: int) -> bool:
    """Tells whether only whitespace stands between a position and the row's start, or a marker before it."""
    at = skip_back(row.data, at, 0)
    if at == 0 or row.data[:at] in markers.preludes:
        return True
    if any(pattern.ends_at(row, at, 0) >= 0 for patterns in markers.closers.values() for pattern in patterns):
        return True
    lengths = set(markers.special_lengths.values())
    return any(markers.special_lengths.get(row.specials.get(at - n, -1)) == n for n in lengths)


def _joins(row: Row, markers: Markers, before: FoundMarker, found: FoundMarker) -> bool:
    """Tells whether an assistant opener goes on with the assistant's turn in another channel."""
    return (
        found.role == before.role == "assistant"
        and bool(markers.joiners)
        and row.data.endswith(markers.joiners, before.stop, found.stop)
    )


def _unknown_header(row: Row, markers: Markers, at: int, token: int) -> FoundMarker:
    """A header with a role the template never wrote, or one that was cut off."""
    header = markers.header.match(row, at) if markers.header else None
    if header is None:
        return FoundMarker(at, at + markers.special_lengths[token], "context")
    role = ROLE_ALIASES.get(header.name.lower(), "context")
    return FoundMarker(at, header.stop, role)


def _leading(row: Row, markers: Markers, stop: int) -> list[Segment]:
    """Makes a turn of the text before the first opener; nothing when that is only scaffolding."""
    at = 0
    while at < stop:
        if prelude := next((p for p in markers.preludes if row.data.startswith(p, at, stop)), b""):
            at += len(prelude)
        elif (token := row.specials.get(at)) is not None:
            at += markers.special_lengths[token]
        elif row.data[at] in _WHITESPACE:
            at += 1
        else:
            break
    if at >= stop:
        return []
    handed = _handed_over(row, markers, stop)
    if handed:
        return handed
    if markers.dialect.system_bare:
        return [Segment("system", 0, at, stop, stop)]
    return [Segment("context", 0, 0, stop, stop, warning="the row begins inside a turn")]


def _handed_over(row: Row, markers: Markers, stop: int) -> list[Segment]:
    """Turns before any opener that only an end marker such as `[/INST]` marks."""
    for role, patterns in markers.handovers.items():
        whole = Segment(role, 0, 0, stop, stop)  # type: ignore[arg-type]
        if any(_search(row, pattern, whole) for pattern in patterns):
            return _split(row, markers, whole)
    return []


def _search(row: Row, pattern: Pattern, one: Segment) -> FoundMarker | None:
    return next(pattern.find(row, one.body_start, one.stop), None)


def _split(row: Row, markers: Markers, one: Segment) -> list[Segment]:
    """Cuts a segment where another role speaks inside it or takes over without an opener."""
    segments = _split_nested(row, markers, one) if one.role in markers.nested else [one]
    last = segments[-1]
    for pattern in markers.handovers.get(last.role, ()):
        found = _search(row, pattern, last)
        if found is None:
            continue
        rest = Segment(found.role, found.stop, found.stop, last.stop, last.stop)
        if row.data[found.stop : last.stop].strip():
            last.stop = last.body_stop = found.stop
            segments.extend(_split(row, markers, rest))
        break
    return segments


def _split_nested(row: Row, markers: Markers, one: Segment) -> list[Segment]:
    """Turns that stand inside another role's markers: tool results in a user turn, one each."""
    parent = one.role
    patterns = markers.nested[parent]
    at = one.body_start
    while at < one.stop and row.data[at] in _WHITESPACE:
        at += 1
    first = next((found for pattern in patterns if (found := pattern.match(row, at))), None)
    if first is None:
        return [one]
    one.role, one.body_start = first.role, first.stop
    one.name, one.call_id = first.name or one.name, first.call_id or one.call_id
    segments = [one]
    if first.role != "tool":
        return segments
    for pattern in patterns:
        for found in pattern.find(row, first.stop, one.stop):
            if not _after_closer(row, markers, segments[-1], found.start):
                continue
            before = segments[-1]
            segments.append(
                Segment("tool", found.start, found.stop, before.stop, before.stop, found.name, found.call_id)
            )
            before.stop = before.body_stop = found.start
    return (
        segments
        if parent == "tool"
        else [*segments[:-1], *_rest_of_parent(row, markers, segments[-1], parent)]
    )


def _after_closer(row: Row, markers: Markers, one: Segment, at: int) -> bool:
    at = skip_back(row.data, at, one.body_start)
    if not markers.has_tool_closers:
        return True
    return any(pattern.ends_at(row, at, one.body_start) >= 0 for pattern in markers.closers["tool"])


def _rest_of_parent(row: Row, markers: Markers, last: Segment, parent: Role) -> list[Segment]:
    """The last tool result of a user turn, and what the user wrote after it."""
    trimmed = Segment(parent, last.start, last.body_start, last.stop, last.stop)
    trim(row, markers, trimmed)
    ends = [
        at + len(pattern.core)
        for pattern in markers.closers["tool"]
        if pattern not in markers.closers[parent]
        and (at := row.data.rfind(pattern.core, last.body_start, trimmed.body_stop)) >= 0
    ]
    if not ends or not row.data[max(ends) : trimmed.body_stop].strip():
        return [last]
    rest = Segment(parent, max(ends), max(ends), last.stop, last.stop)
    last.stop = last.body_stop = max(ends)
    return [last, rest]


def trim(row: Row, markers: Markers, one: Segment) -> None:
    """Moves the body's stop before the end markers that close the turn, padding among them."""
    patterns = markers.closers[one.role]
    cores = markers.closer_cores[one.role]
    stop = one.body_stop
    while True:
        at = skip_back(row.data, stop, one.body_start)
        if not row.data.endswith(cores, one.body_start, at):
            break
        cut = -1
        for pattern in patterns:
            if (cut := pattern.ends_at(row, at, one.body_start)) >= 0:
                break
        if cut < 0:
            break
        stop = cut
    if markers.line_end and row.data.endswith(markers.line_end, one.body_start, stop):
        stop -= len(markers.line_end)
    one.body_stop = stop


def skip_back(data: bytes, at: int, start: int) -> int:
    while at > start and data[at - 1] in _WHITESPACE:
        at -= 1
    return at
