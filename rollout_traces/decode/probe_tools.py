"""Learning how a template writes tool results and tool definitions."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from itertools import product

from rollout_traces.decode import probe_render as say
from rollout_traces.decode.probe_render import Renderer, common_prefix, message
from rollout_traces.decode.template_markers import (
    ID_SLOT,
    NAME_SLOT,
    Closer,
    Opener,
    TemplateMarkers,
    after_closers,
    extended,
    last_header,
    noted,
    opener_of,
)


def learn_results(renderer: Renderer, dialect: TemplateMarkers) -> TemplateMarkers:
    """Learns what opens and ends tool results, each in a turn of its own where the template marks it."""
    probed = _probe_results(renderer)
    if probed is None:
        return noted(dialect, f"no tool results ({renderer.refusal})")
    before, between, after = probed
    assistant_opener = opener_of(dialect, "assistant")
    at = after.find(assistant_opener) if assistant_opener else -1
    closing, hands_over = (after, True) if at < 0 else (after[:at], False)
    quoted = before.endswith('"') and between[:1] == between[-1:] == '"' and closing.startswith('"')
    if quoted and not before.endswith((': "', ':"')):
        before, between, closing = before[:-1], between[1:-1], closing[1:]
        dialect = replace(dialect, tool_quoted=True)
    elif field := re.search(r'\{"(\w+)": ?"?$', before):
        before = before[: field.start()]
        between = re.sub(r'\{"\w+": ?"?$', "", re.sub(r"^[^{}]*\}", "", between))
        closing = re.sub(r"^[^{}]*\}", "", closing)
        dialect = replace(dialect, tool_field=field[1])
    before, between = _slots(before), _slots(between)
    inner_closer = common_prefix(between, closing)
    inner_opener = between[len(inner_closer) :].lstrip()
    then = "assistant" if hands_over else ""
    if not re.search(r"[\w<\[]", inner_opener):
        return _learn_joined_results(dialect, before, Closer(closing, then, "tool"))
    outer = before.removesuffix(inner_opener)
    header = last_header(outer, dialect.header)
    grouped = header and outer.endswith(header) and not inner_opener.startswith(dialect.header[0])
    if inner_closer.strip() == closing.strip() and not grouped:
        if any(inner_opener.strip() == known.text.strip() for known in dialect.openers):
            return noted(dialect, "no tool results (they are written as another role's turns)")
        opener = Opener("tool", inner_opener, follows_closer=bool(closing.strip()))
        return extended(dialect, [opener], [Closer(closing, then, "tool")])
    user_opener = opener_of(dialect, "user")
    group_closer = Closer(closing[len(inner_closer) :], then, "tool")
    openers = [Opener("tool", inner_opener, within="tool")]
    if outer.rstrip().endswith(user_opener.rstrip()):
        openers = [Opener("tool", inner_opener, within="user")]
    else:
        closed = after_closers(outer, dialect) != outer
        openers.insert(0, Opener("tool", _outer_opener(outer, dialect), follows_closer=closed))
    return extended(dialect, openers, [Closer(inner_closer, role="tool"), group_closer])


def _learn_joined_results(dialect: TemplateMarkers, before: str, closer: Closer) -> TemplateMarkers:
    """Results in a row that stand in one block, with no marker between them."""
    user_opener = opener_of(dialect, "user")
    rest = after_closers(before, dialect).lstrip()
    inside_user = rest.removeprefix(user_opener.lstrip())
    if inside_user == rest:
        opener = Opener("tool", _outer_opener(rest, dialect))
    elif inside_user.strip():
        opener = Opener("tool", inside_user, within="user")
    else:
        return noted(dialect, "no tool results (they are written as another role's turns)")
    dialect = extended(dialect, [opener], [closer] if closer.text.strip() else [])
    return noted(dialect, "tool results in a row are one turn: the template writes no marker between them")


def _outer_opener(text: str, dialect: TemplateMarkers) -> str:
    """Finds the opener of a group of tool results: the last header, else the text after the last closer."""
    if (header := last_header(text, dialect.header)) and text.endswith(header):
        return header
    rest = after_closers(text, dialect).lstrip() or text.lstrip()
    prefix = dialect.header[0]
    if re.search(r"<[^<>\s]+>|\]~b\]", prefix) and prefix in rest:
        return rest[rest.rindex(prefix) :]
    return rest


def _slots(text: str) -> str:
    for call_id in say.CALL_IDS:
        text = text.replace(call_id, ID_SLOT)
    return text.replace(say.TOOL_NAME, NAME_SLOT)


def _probe_results(renderer: Renderer) -> tuple[str, str, str] | None:
    """The text before the first of two tool results, between them, and up to the answer."""
    renderer.refusal = ""
    fallback = None
    for n_calls, encoded, tools, content in product((2, 1), (False, True), (say.TOOLS, None), ("", None)):
        calls = [say.call(i, encoded=encoded) for i in range(n_calls)]
        conversation = [
            message("user", say.USER_1),
            message("assistant", content, tool_calls=calls),
            message("tool", say.RESULT_1, tool_call_id=say.CALL_IDS[0], name=say.TOOL_NAME),
            message("tool", say.RESULT_2, tool_call_id=say.CALL_IDS[n_calls - 1], name=say.TOOL_NAME),
            message("assistant", say.ASSISTANT_2),
        ]
        sentinels = [say.RESULT_1, say.RESULT_2, say.ASSISTANT_2]
        kwargs = {"tools": [*tools]} if tools else {}
        pieces = renderer.split(conversation, sentinels, **kwargs)
        if pieces is None:
            conversation.append(message("user", say.USER_2))
            pieces = renderer.split(conversation, [*sentinels, say.USER_2], **kwargs)
        if pieces is None:
            continue
        fallback = fallback or (pieces[0], pieces[1], pieces[2])
        if "qzval0qz" in pieces[0]:
            return pieces[0].rpartition(f"qzval{n_calls - 1}qz")[2], pieces[1], pieces[2]
    return fallback


def learn_definitions(renderer: Renderer, dialect: TemplateMarkers) -> TemplateMarkers:
    """Learns what stands around tool definitions outside of a system turn."""
    pieces = renderer.split([message("user", say.USER_1)], [say.USER_1], tools=[*say.TOOLS])
    user_opener = opener_of(dialect, "user")
    if pieces is None or user_opener not in pieces[0] or dialect.system_bare:
        return dialect
    outside, _, inside = pieces[0].rpartition(user_opener)
    if found := _around_definition(inside):
        return replace(dialect, tools_preamble=found) if found[0].strip() else dialect
    for prelude in dialect.preludes:
        outside = outside.removeprefix(prelude)
    opener, closer = _around_definition(outside) or ("", "")
    opener = after_closers(opener, dialect).lstrip()
    if any(known.role == "system" and known.text.strip() in opener for known in dialect.openers):
        return dialect
    opener, closer = opener.removesuffix("["), closer.removeprefix("]")
    nexts = (closer.find(known.text.strip()) for known in dialect.openers)
    closer = closer[: min((at for at in nexts if at > 0), default=len(closer))]
    if not closer.strip() or last_header(opener, dialect.header) or not re.match(r"\s*[<\[〈]", opener):
        return dialect
    return extended(dialect, [Opener("system", opener)], [Closer(closer, role="system")])


def _around_definition(text: str) -> tuple[str, str] | None:
    """The text before and after the probe tool's definition in JSON; None when it does not stand there."""
    for at in (match.start() for match in re.finditer(r"\{", text)):
        try:
            definition, stop = json.JSONDecoder().raw_decode(text, at)
        except ValueError:
            continue
        if say.TOOL_NAME in str(definition):
            return text[:at], text[stop:]
    return None
