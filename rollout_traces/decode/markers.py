"""A chat template's markers: as plain data, put together piece by piece by probing, or given by hand; and made ready to
be found in bytes, special tokens by id and never by their letters.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, NamedTuple, get_args

import numpy as np

from rollout_traces.decode.detokenizer import Detokenizer
from rollout_traces.model.transcript import Role

NAME_SLOT = "⟨name⟩"
"""Stands for a tool's name inside a marker's text."""

ID_SLOT = "⟨id⟩"
"""Stands for a tool call's id inside a marker's text."""

_ROLE_NAME = r"[\w.-]+"


@dataclass(frozen=True)
class Opener:
    """The text that begins a turn.

    Attributes:
        role: who speaks after it.
        text: its text, special tokens written as the tokenizer writes them; `NAME_SLOT` and `ID_SLOT`
            stand for a tool's name and a call's id. Whitespace at its end may be missing.
        within: empty, or the role whose turn it stands in: it counts only right after that role's opener
            or after the closer of another turn that stands there too (Qwen's `<tool_response>`).
        follows_closer: the template always writes an end marker before it.
    """

    role: Role
    text: str
    within: str = ""
    follows_closer: bool = False


@dataclass(frozen=True)
class Closer:
    """The text that ends a turn's body.

    Attributes:
        text: its text; whitespace at either end may be missing.
        then: empty, or the role that speaks next without an opener of its own (after `[/INST]`).
        role: the role whose turns it ends; empty for any role.
    """

    text: str
    then: str = ""
    role: str = ""


@dataclass(frozen=True)
class TemplateMarkers:
    """The markers of one chat template.

    Attributes:
        openers: what begins a turn, per role.
        closers: what ends a turn's body.
        terminators: end-of-sequence and padding tokens, which may stand after any turn.
        stop_signs: openers that the template writes after the last answer to say that it is over.
        header: the text before and after a role's name in an opener, where roles are written as names
            (`<|im_start|>` and a newline); empty strings where they are not. A role the template never
            wrote is recognised by it.
        preludes: what may stand before the first turn (begin-of-sequence tokens).
        leads: scaffolding that may stand between the assistant's opener and its content, no thinking in it.
        generation_prompt: what the template adds for the assistant to continue.
        joiners: an end marker and opener inside one assistant turn that has several parts (channels).
        thinking: text that opens and closes the thinking, as the template wrote it; empty when unknown.
        tool_quoted: tool results are written as JSON strings.
        tool_field: tool results are written as JSON objects with the text under this key; else empty.
        system_bare: the system message stands before the first opener, with no marker of its own.
        system_folded: the system message is written into the first user turn and cannot be distinguished from it.
        tools_preamble: text before and after the tool definitions where they stand in a user turn.
        roles: roles whose own marker was learned.
        content_form: how the template takes content, `string` or `parts`; empty when nothing was learned.
        notes: one sentence each for what could not be learned.
    """

    openers: tuple[Opener, ...] = ()
    closers: tuple[Closer, ...] = ()
    terminators: tuple[str, ...] = ()
    stop_signs: tuple[str, ...] = ()
    header: tuple[str, str] = ("", "")
    preludes: tuple[str, ...] = ()
    leads: tuple[str, ...] = ()
    generation_prompt: str = ""
    joiners: tuple[str, ...] = ()
    thinking: tuple[str, str] = ("", "")
    tool_quoted: bool = False
    tool_field: str = ""
    system_bare: bool = False
    system_folded: bool = False
    tools_preamble: tuple[str, str] = ("", "")
    content_form: str = ""
    notes: tuple[str, ...] = ()

    @property
    def roles(self) -> tuple[str, ...]:
        """Roles that can be read from the markers, in the order system, user, assistant, tool."""
        known = {opener.role for opener in self.openers} | {closer.then for closer in self.closers}
        if self.system_bare:
            known.add("system")
        return tuple(role for role in ("system", "user", "assistant", "tool") if role in known)

    def to_dict(self) -> dict[str, Any]:
        """Plain data that JSON can hold."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> TemplateMarkers:
        """The dialect that `to_dict` wrote; unknown keys are an error.

        Args:
            data: `to_dict`'s result, also after JSON turned its tuples into lists.

        Raises:
            TypeError: a key that a dialect does not have.
        """
        known = {field.name for field in fields(cls)}
        if unknown := set(data) - known:
            raise TypeError(f"dialect: unknown keys {sorted(unknown)}, expected some of {sorted(known)}")
        values: dict[str, Any] = {
            key: tuple(value) if isinstance(value, list) else value for key, value in data.items()
        }
        values["openers"] = tuple(Opener(**opener) for opener in data.get("openers", ()))
        values["closers"] = tuple(Closer(**closer) for closer in data.get("closers", ()))
        return cls(**values)


def header_pattern(header: tuple[str, str]) -> re.Pattern[str]:
    """Matches a header with any role's name in it."""
    return re.compile(re.escape(header[0]) + _ROLE_NAME + re.escape(header[1]))


def last_header(text: str, header: tuple[str, str]) -> str:
    """The last role header in the text, with the role's name in it; empty when there is none."""
    if not header[0]:
        return ""
    matches = header_pattern(header).findall(text)
    return str(matches[-1]) if matches else ""


def after_closers(text: str, dialect: TemplateMarkers) -> str:
    """Cuts a text behind its last end marker and gives the rest; the whole text when there is none."""
    cores = [closer.text.strip() for closer in dialect.closers if closer.text.strip()]
    return text[max((text.rfind(core) + len(core) for core in cores if core in text), default=0) :]


def distinct_closers(closers: list[Closer], openers: list[Opener]) -> tuple[Closer, ...]:
    """Closers without empty ones, repeats, and those that are an opener used as a stop sign."""
    kept: dict[tuple[str, ...], Closer] = {}
    for closer in closers:
        core = closer.text.strip() or closer.text
        if core and not any(opener.text.strip().startswith(core) for opener in openers):
            kept.setdefault((core, closer.then, closer.role), closer)
    anywhere = {closer.text.rstrip() for closer in kept.values() if not closer.role}
    return tuple(
        closer
        for closer in kept.values()
        if closer.then or not closer.role or closer.text.rstrip() not in anywhere
    )


def opener_of(dialect: TemplateMarkers, role: str) -> str:
    """The text of the role's own opener; empty when none was learned."""
    return next((o.text for o in dialect.openers if o.role == role and not o.within), "")


def extended(
    dialect: TemplateMarkers, openers: list[Opener], closers: list[Closer], **changes: Any
) -> TemplateMarkers:
    """The dialect with more openers and closers, none twice, and other fields changed."""
    openers = list(dict.fromkeys([*dialect.openers, *openers]))
    return replace(
        dialect,
        openers=tuple(openers),
        closers=distinct_closers([*dialect.closers, *closers], openers),
        **changes,
    )


def noted(dialect: TemplateMarkers, note: str) -> TemplateMarkers:
    """The dialect with one more note."""
    return replace(dialect, notes=(*dialect.notes, note))


ROLE_ALIASES: Mapping[str, Role] = {
    **dict.fromkeys(("system", "developer"), "system"),
    **dict.fromkeys(("user", "human"), "user"),
    **dict.fromkeys(("assistant", "model", "ai", "bot", "chatbot", "gpt"), "assistant"),
    **dict.fromkeys(("tool", "ipython", "observation", "function", "environment", "tool_response"), "tool"),
}
"""Roles by the names that templates write in headers."""

_SLOT = re.compile(f"({NAME_SLOT}|{ID_SLOT})")
_SLOT_PATTERNS = {NAME_SLOT: rb"[^\s<>\"{}\[\]|]{1,256}", ID_SLOT: rb"[^\s<>\"{}\[\]|]{0,256}"}
_SLOT_NAMES = {NAME_SLOT: "name", ID_SLOT: "id"}


class FoundMarker(NamedTuple):
    """A marker in a row's bytes.

    Attributes:
        start: first byte.
        stop: one past the last byte.
        role: the role an opener announces.
        name: the tool's name written in it, empty when none is.
        call_id: the call's id written in it, empty when none is.
        before: whitespace that the template writes before it.
    """

    start: int
    stop: int
    role: Role
    name: str = ""
    call_id: str = ""
    before: bytes = b""


@dataclass(frozen=True)
class Row:
    """A row's bytes and where its special tokens stand.

    Attributes:
        data: the bytes of all its tokens.
        specials: id of each marker token by the byte position where it begins, ascending.
    """

    data: bytes
    specials: Mapping[int, int]


@dataclass(frozen=True, slots=True, eq=False)
class Pattern:
    """One marker made findable.

    Attributes:
        core: the text without whitespace at its ends.
        before: whitespace before the core, which may be missing.
        after: whitespace after the core, which may be missing.
        offsets: where special tokens begin inside the core; empty for a marker with slots.
        regex: matches core and `after`; special tokens are groups of their own where it has slots.
        slots: whether the text varies (a tool's name, a call's id).
        first_id: id of the special token it begins with; -1 when it begins with plain text.
        role: what it announces.
        follows_closer: the template always writes an end marker before it.
    """

    core: bytes
    before: bytes
    after: bytes
    offsets: tuple[int, ...]
    regex: re.Pattern[bytes]
    slots: bool
    first_id: int
    role: Role
    follows_closer: bool = False

    def match(self, row: Row, at: int) -> FoundMarker | None:
        """The marker at a byte position, its special tokens being special tokens."""
        if self.slots:
            return self._match_slots(row, self.regex.match(row.data, at))
        if not row.data.startswith(self.core, at):
            return None
        for offset in self.offsets:
            if at + offset not in row.specials:
                return None
        stop = at + len(self.core)
        if self.after and row.data.startswith(self.after, stop):
            stop += len(self.after)
        elif self.after and _is_word(self.core[-1:]) and _is_word(row.data[stop : stop + 1]):
            return None
        return FoundMarker(at, stop, self.role, before=self.before)

    def find(self, row: Row, start: int, stop: int) -> Iterator[FoundMarker]:
        """Every place between two byte positions where the marker stands."""
        for match in self.regex.finditer(row.data, start, stop):
            found = self._match_slots(row, match) if self.slots else self.match(row, match.start())
            if found is not None:
                yield found

    def ends_at(self, row: Row, stop: int, start: int) -> int:
        """Finds the beginning of the marker that ends at `stop` and begins no earlier than `start`; -1 if none does."""
        at = stop - len(self.core)
        if not row.data.endswith(self.core, start, stop):
            return -1
        for offset in self.offsets:
            if at + offset not in row.specials:
                return -1
        if self.before and row.data.endswith(self.before, start, at):
            at -= len(self.before)
        return at

    def _match_slots(self, row: Row, match: re.Match[bytes] | None) -> FoundMarker | None:
        if match is None:
            return None
        groups = match.groupdict()
        if any(match.start(name) not in row.specials for name in groups if name[0] == "s"):
            return None
        name, call_id = ((groups.get(slot) or b"").decode("utf-8", "replace") for slot in ("name", "id"))
        return FoundMarker(match.start(), match.end(), self.role, name, call_id, self.before)


def _is_word(byte: bytes) -> bool:
    return byte.isalnum() or byte == b"_"


def compile_pattern(text: str, role: Role, ids_by_text: Mapping[str, int]) -> Pattern:
    """Makes a marker's text findable.

    Args:
        text: the marker, with `NAME_SLOT` and `ID_SLOT` for what varies.
        role: what it announces.
        ids_by_text: ids of the tokenizer's added and special tokens by their text.
    """
    core = text.strip()
    after = text[len(text.rstrip()) :].encode()
    before = text[: len(text) - len(text.lstrip())].encode()
    pieces = _pieces(core, ids_by_text)
    parts: list[bytes] = []
    offsets: list[int] = []
    seen_slots: set[str] = set()
    at = 0
    for piece in pieces:
        encoded = piece.encode()
        if piece in ids_by_text:
            parts.append(b"(?P<s%d>%b)" % (len(offsets), re.escape(encoded)))
            offsets.append(at)
        elif piece in _SLOT_NAMES:
            name = _SLOT_NAMES[piece].encode()
            group = b"(?:%b)" if piece in seen_slots else b"(?P<" + name + b">%b)"
            greedy = piece == pieces[-1]
            parts.append(group % (_SLOT_PATTERNS[piece] if greedy else _SLOT_PATTERNS[piece] + b"?"))
            seen_slots.add(piece)
        else:
            parts.append(re.escape(encoded))
        at += len(encoded)
    boundary = rb"(?![A-Za-z0-9_])" if _is_word(core[-1:].encode()) else b""
    tail = b"(?:%b|%b)" % (re.escape(after), boundary) if after else b""
    return Pattern(
        core=core.encode(),
        before=before,
        after=after,
        offsets=() if seen_slots else tuple(offsets),
        regex=re.compile(b"".join(parts) + tail, re.DOTALL),
        slots=bool(seen_slots),
        first_id=ids_by_text.get(pieces[0], -1) if pieces else -1,
        role=role,
    )


def _pieces(text: str, ids_by_text: Mapping[str, int]) -> list[str]:
    """Cuts a marker at slots and at added tokens, the longest first."""
    names = sorted((name for name in ids_by_text if name and name in text), key=len, reverse=True)
    pattern = "|".join([_SLOT.pattern[1:-1], *map(re.escape, names)])
    return [piece for piece in re.split(f"({pattern})", text) if piece]


class Markers:
    """All of a dialect's markers for one tokenizer.

    Attributes:
        dialect: where they come from.
        anchored: opener patterns by the id of the special token they begin with, longest first.
        free: opener patterns that begin with plain text.
        nested: openers that count only inside another role's turn, by that role.
        closers: end markers by the role whose turn they may end.
        closer_cores: their bytes without the whitespace around them.
        has_tool_closers: some end marker is a tool result's own.
        handovers: end markers after which another role speaks, by the role that ends.
        generation_rest: what the generation prompt adds to the assistant's opener.
        line_end: whitespace that ends turns where nothing else does.
        preludes: bytes of what may stand before the first turn.
        stop_signs: bytes of openers that the template writes after the last answer.
        joiners: bytes of end marker and opener between two parts of one assistant turn.
        header_ids: ids of the special tokens that headers begin with.
        header: matches any role's header; None when roles are not written as names.
        special_lengths: bytes of each added or special token by id.
        end_ids: ids of the special tokens that end a user's or an assistant's turn.
        anchored_closers: some end marker begins with a special token.
        marker_ids: int64, ascending: ids of the added and special tokens that stand in any marker.
        ambiguous: some opener is plain text in this tokenizer, so that its letters cannot be distinguished from it.
    """

    def __init__(self, dialect: TemplateMarkers, detokenizer: Detokenizer) -> None:
        """Compiles the markers.

        Args:
            dialect: learned or given.
            detokenizer: of the tokenizer the rows are written in.
        """
        self.dialect = dialect
        ids = {text: i for i, text in detokenizer.added.items() if text.strip()}
        top = [o for o in dialect.openers if not o.within]
        patterns = [
            replace(compile_pattern(o.text, o.role, ids), follows_closer=o.follows_closer) for o in top
        ]
        patterns.sort(key=lambda p: len(p.core), reverse=True)
        self.anchored: dict[int, list[Pattern]] = {}
        for pattern in patterns:
            if pattern.first_id >= 0:
                self.anchored.setdefault(pattern.first_id, []).append(pattern)
        self.free = [p for p in patterns if p.first_id < 0]
        if self.free:
            self.free += [pattern for pattern in self._plain_headers(ids) if pattern.first_id < 0]
        self.nested = self._nested(dialect.openers, ids)
        self.closers, self.handovers = self._closers(
            [*dialect.closers, *map(Closer, dialect.terminators)], ids
        )
        openers = [o.text for o in top if o.role == "assistant"]
        prompt = dialect.generation_prompt
        rest = next((prompt.removeprefix(text) for text in openers if prompt.startswith(text)), "")
        self.generation_rest = rest.encode()
        self.line_end = next((c.text.encode() for c in dialect.closers if not c.text.strip()), b"")
        self.joiners = tuple(joiner.encode() for joiner in dialect.joiners)
        self.preludes = tuple(text.encode() for text in dialect.preludes)
        self.stop_signs = tuple(text.encode() for text in dialect.stop_signs)
        self.header = compile_header(dialect.header, ids)
        self.header_ids = frozenset([self.header.first_id] if self.header else [])
        self.ambiguous = bool(self.free) and not all(p.offsets for p in self.free)
        used = {text for text in ids if any(text in marker for marker in self._texts(dialect))}
        self.has_tool_closers = any(closer.role == "tool" for closer in dialect.closers)
        self.closer_cores = {
            role: tuple(pattern.core for pattern in patterns) for role, patterns in self.closers.items()
        }
        self.end_ids = frozenset(
            p.first_id for role in ("user", "assistant") for p in self.closers[role] if p.first_id >= 0
        )
        self.special_lengths = {i: len(text.encode("utf-8", "replace")) for text, i in ids.items()}
        self.anchored_closers = any(
            compile_pattern(closer.text, "context", ids).first_id >= 0 for closer in dialect.closers
        )
        self.marker_ids = np.array(sorted({ids[text] for text in used} | self.header_ids), np.int64)

    @staticmethod
    def _texts(dialect: TemplateMarkers) -> Iterable[str]:
        yield from dialect.preludes
        yield from dialect.terminators
        yield from (opener.text for opener in dialect.openers)
        yield from (closer.text for closer in dialect.closers)

    def _plain_headers(self, ids: Mapping[str, int]) -> Iterable[Pattern]:
        """Headers of roles that the template never wrote, where headers are plain text."""
        prefix, suffix = self.dialect.header
        written = {opener.text.strip() for opener in self.dialect.openers}
        for name, role in ROLE_ALIASES.items() if prefix else ():
            if f"{prefix}{name}{suffix}".strip() not in written:
                yield replace(compile_pattern(f"{prefix}{name}{suffix}", role, ids), follows_closer=True)

    @staticmethod
    def _nested(openers: Iterable[Opener], ids: Mapping[str, int]) -> dict[str, list[Pattern]]:
        nested: dict[str, list[Pattern]] = {}
        for opener in openers:
            if opener.within:
                nested.setdefault(opener.within, []).append(compile_pattern(opener.text, opener.role, ids))
        return nested

    @staticmethod
    def _closers(
        closers: Iterable[Closer], ids: Mapping[str, int]
    ) -> tuple[dict[str, list[Pattern]], dict[str, list[Pattern]]]:
        by_role: dict[str, list[Pattern]] = {role: [] for role in get_args(Role)}
        handovers: dict[str, list[Pattern]] = {}
        for closer in closers:
            if not closer.text.strip():
                continue
            next_role: Role = closer.then or "context"  # type: ignore[assignment]
            pattern = compile_pattern(closer.text, next_role, ids)
            if closer.then:
                handovers.setdefault(closer.role, []).append(pattern)
            for role in (closer.role,) if closer.role else tuple(by_role):
                by_role[role].append(pattern)
        for patterns in by_role.values():
            patterns.sort(key=lambda pattern: (len(pattern.core), len(pattern.before)), reverse=True)
        return by_role, handovers


def compile_header(header: tuple[str, str], ids_by_text: Mapping[str, int]) -> Pattern | None:
    """A pattern for any role's header, None when the headers begin with plain text.

    Args:
        header: the text before and after the role's name.
        ids_by_text: ids of the tokenizer's added and special tokens by their text.
    """
    prefix, suffix = header
    if not prefix:
        return None
    pattern = compile_pattern(f"{prefix}{NAME_SLOT}{suffix}", "context", ids_by_text)
    return pattern if pattern.first_id >= 0 else None
