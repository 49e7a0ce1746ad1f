"""A dialect put together piece by piece while a template is probed."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from rollout_traces.decode.template_markers import Closer, Opener, TemplateMarkers

_ROLE_NAME = r"[\w.-]+"


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
    """What follows the last end marker in a text; the whole text when there is none."""
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
