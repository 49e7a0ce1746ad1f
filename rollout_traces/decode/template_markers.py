"""The markers of a chat template as plain data, put together piece by piece by probing, or given by hand."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

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
