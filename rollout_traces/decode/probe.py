"""Learning a dialect: render probe conversations, cut at the sentinels, read off what stands between.

Every shape (system, tools, two results in a row, thinking, ...) is probed on its own, because templates
refuse some of them; what a refused shape would have taught is named in the dialect's notes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

from rollout_traces.decode import probe as say
from rollout_traces.decode.markers import (
    ID_SLOT,
    NAME_SLOT,
    Closer,
    Opener,
    TemplateMarkers,
    after_closers,
    distinct_closers,
    extended,
    header_pattern,
    last_header,
    noted,
    opener_of,
)

_THINKING_TAG = re.compile(
    r"<think>|<thinking>|\[THINK\]|<\|START_THINKING\|>|<\|?channel\|?>|<seed:think>|◁think▷"
)


def learn(
    tokenizer: Any, chat_template: str | None = None, kwargs: Mapping[str, Any] | None = None
) -> TemplateMarkers:
    """Learns the dialect of a chat template.

    Args:
        tokenizer: an object with `apply_chat_template`.
        chat_template: used instead of the tokenizer's own.
        kwargs: further arguments of the template (`enable_thinking=False`, ...).

    Returns:
        The dialect; without openers, and with a note that says why, when nothing could be learned.
    """
    terminators = terminators_of(tokenizer)
    if not hasattr(tokenizer, "apply_chat_template"):
        return TemplateMarkers(terminators=terminators, notes=("the tokenizer has no apply_chat_template",))
    renderer = Renderer(tokenizer, chat_template, kwargs or {})
    dialect = replace(_learn_user_and_assistant(renderer), terminators=terminators)
    if not dialect.openers:
        return dialect
    dialect = _learn_system(renderer, dialect)
    dialect = learn_results(renderer, dialect)
    dialect = learn_definitions(renderer, dialect)
    dialect = _learn_thinking(renderer, dialect)
    return replace(dialect, content_form=renderer.form)


def terminators_of(tokenizer: Any) -> tuple[str, ...]:
    """End-of-sequence and padding tokens, which may stand after any turn."""
    names = (getattr(tokenizer, name, None) for name in ("eos_token", "pad_token"))
    return tuple(dict.fromkeys(str(name) for name in names if name))


def _learn_user_and_assistant(renderer: Renderer) -> TemplateMarkers:
    user, assistant = message("user", say.USER_1), message("assistant", say.ASSISTANT_1)
    second = [message("user", say.USER_2), message("assistant", say.ASSISTANT_2)]
    sentinels = [say.USER_1, say.ASSISTANT_1, say.USER_2, say.ASSISTANT_2]
    pieces = renderer.split([user, assistant, *second], sentinels)
    if pieces is None:
        asking = [user, assistant, *second, message("user", say.USER_3)]
        pieces = renderer.split(asking, [*sentinels, say.USER_3])
        pieces = pieces and [*pieces[:4], ""]
    if pieces is None:
        return TemplateMarkers(notes=(f"no user and assistant turns ({renderer.refusal})",))
    head, after_user, after_assistant, after_user_2, end = pieces
    alone = renderer.split([user], [say.USER_1])
    asked = renderer.split([user], [say.USER_1], add_generation_prompt=True)
    user_closer = common_prefix(after_user, alone[1] if alone else after_user_2)
    generation_prompt = asked[1].removeprefix(user_closer) if asked else ""
    assistant_closer, user_opener = _split_closer_and_opener(
        after_assistant, head, [common_prefix(after_assistant, end), user_closer, ""]
    )
    if not user_opener:
        return TemplateMarkers(notes=(f"no text opens a user turn: {after_assistant!r}",))
    user_opener = user_opener.removeprefix(renderer.bos)
    header = _header(user_opener)
    openings = [text.removeprefix(user_closer) for text in (after_user, after_user_2)]
    assistant_opener = _shortest_opener(
        [*openings, *([generation_prompt] if generation_prompt.strip() else [])], header
    )
    leads = {text.removeprefix(assistant_opener) for text in openings if text.startswith(assistant_opener)}
    closed = bool(assistant_closer.strip())
    openers = [Opener("user", user_opener, follows_closer=closed)]
    closers = [Closer(assistant_closer), Closer(end)]
    if assistant_opener:
        openers.append(Opener("assistant", assistant_opener, follows_closer=bool(user_closer.strip())))
        closers.append(Closer(user_closer))
    else:
        closers.append(Closer(user_closer, then="assistant", role="user"))
    preludes = _preludes(renderer, head, user_opener, header)
    return TemplateMarkers(
        openers=tuple(openers),
        closers=distinct_closers(closers, openers),
        header=header,
        system_bare=any(map(_has_words, preludes)),
        stop_signs=(end.strip(),) if end.strip() and user_opener.strip().startswith(end.strip()) else (),
        preludes=tuple(prelude for prelude in preludes if not _has_words(prelude)),
        leads=tuple(sorted((t for t in leads if t and not _THINKING_TAG.search(t)), key=len, reverse=True)),
        generation_prompt=generation_prompt,
    )


def _split_closer_and_opener(text: str, head: str, closers: list[str]) -> tuple[str, str]:
    """Cuts the text between an assistant's content and the next user's in closer and opener."""
    for closer in sorted(set(closers), key=len, reverse=True):
        if not text.startswith(closer):
            continue
        opener = common_suffix(text[len(closer) :], head)
        if opener.strip() and text.endswith(opener):
            return text[: len(text) - len(opener)], opener
    return "", ""


def _header(user_opener: str) -> tuple[str, str]:
    before, *rest = re.split(r"user", user_opener, flags=re.IGNORECASE)
    if len(rest) != 1 or not before.strip():
        return "", ""
    return before.lstrip(), rest[0]


def _preludes(renderer: Renderer, head: str, user_opener: str, header: tuple[str, str]) -> tuple[str, ...]:
    """Collects the texts before the first opener of any role, and the begin-of-sequence token."""
    first = header_pattern(header).search(head) if header[0] else None
    written = head[: first.start()] if first else head.partition(user_opener)[0]
    return tuple(text for text in dict.fromkeys((written, renderer.bos)) if text.strip())


def _has_words(prelude: str) -> bool:
    """Tells whether a prelude holds text for a reader besides tags."""
    return bool(re.search(r"\w", re.sub(r"<[^<>\s]*>|\[[^\[\]\s]*\]|〈[^〈〉]*〉|\]~!b\[", "", prelude)))


def _shortest_opener(openings: list[str], header: tuple[str, str]) -> str:
    """Finds the common beginning of all assistant openings, less any thinking scaffold; empty when it is only blank."""
    opener = common_prefix(*openings)
    if not opener.strip():
        return ""
    core = opener.lstrip()
    if header[0] and (match := header_pattern(header).match(core)):
        return opener[: len(opener) - len(core)] + match.group(0)
    tag = _THINKING_TAG.search(opener)
    return opener[: tag.start()] if tag else opener


def _learn_system(renderer: Renderer, dialect: TemplateMarkers) -> TemplateMarkers:
    system, user = message("system", say.SYSTEM), message("user", say.USER_1)
    renderer.refusal = ""
    pieces = renderer.split([system, user], [say.SYSTEM, say.USER_1])
    if pieces is None:
        return noted(dialect, f"no system turns ({renderer.refusal})")
    head, between, _ = pieces
    user_opener = opener_of(dialect, "user")
    head = head.removeprefix(renderer.bos)
    opener = last_header(head, dialect.header)
    if between.endswith(user_opener):
        closer = Closer(between.removesuffix(user_opener), role="system")
        alone = renderer.split([user], [say.USER_1])
        lead = common_prefix(head, alone[0].removeprefix(renderer.bos)) if alone else ""
        opener = opener or head.removeprefix(lead) or head
        if opener.strip():
            known = replace(dialect, system_bare=False)
            return extended(known, [Opener("system", opener, follows_closer=True)], [closer])
        return replace(dialect, system_bare=True)
    inner = head.removeprefix(user_opener)
    if head.startswith(user_opener) and inner.strip() and between.strip():
        return extended(
            dialect,
            [Opener("system", inner, within="user")],
            [Closer(between, then="user", role="system")],
        )
    return noted(replace(dialect, system_folded=True), "the system text stands in the first user turn")


def _learn_thinking(renderer: Renderer, dialect: TemplateMarkers) -> TemplateMarkers:
    answer = message("assistant", say.ASSISTANT_1, reasoning_content=say.THOUGHT, thinking=say.THOUGHT)
    pieces = renderer.split([message("user", say.USER_1), answer], [say.USER_1, say.THOUGHT, say.ASSISTANT_1])
    if pieces is None:
        return dialect
    _, before, between, _ = pieces
    assistant_opener = opener_of(dialect, "assistant")
    opened = before.rpartition(assistant_opener)[2] if assistant_opener else before
    joiners: tuple[str, ...] = ()
    if assistant_opener and assistant_opener in between:
        joiners = (between[: between.index(assistant_opener) + len(assistant_opener)],)
    return replace(dialect, thinking=(opened, between), joiners=joiners)


SYSTEM, CALL_CONTENT, TOOL_NAME, ARGUMENT = "qzsysaqz", "qzcntqz", "qzfnqz", "qzargqz"
USER_1, USER_2, ASSISTANT_1, ASSISTANT_2 = "qzaaqz", "qzbbqz", "qzccqz", "qzddqz"
RESULT_1, RESULT_2, THOUGHT, USER_3 = "qzeeqz", "qzffqz", "qzgghqz", "qziiqz"
CALL_IDS = ("qzcall001", "qzcall002")

TOOLS = (
    {
        "type": "function",
        "function": {
            "name": TOOL_NAME,
            "description": "qzdescqz",
            "parameters": {
                "type": "object",
                "properties": {ARGUMENT: {"type": "string", "description": "qzpdqz"}},
                "required": [ARGUMENT],
            },
        },
    },
)

LOST = "their content is not written"
"""The refusal of a template that takes a conversation and leaves some of it out."""

_ATOM = re.compile(r"<[^<>\s]{1,60}>|\[/?[A-Za-z_]+\]|\w+|\s|.", re.DOTALL)


class Renderer:
    """Renders conversations with one tokenizer's chat template; a refused shape gives None.

    Attributes:
        form: how the template takes content: `string`, or `parts` when a plain string vanished.
        refusal: why the last probed shape taught nothing, as the template worded it.
        bos: the text of the begin-of-sequence token, empty when there is none.
    """

    def __init__(self, tokenizer: Any, chat_template: str | None, kwargs: Mapping[str, Any]) -> None:
        self._tokenizer = tokenizer
        self._kwargs = dict(kwargs)
        if chat_template is not None:
            self._kwargs["chat_template"] = chat_template
        for name in ("bos_token", "eos_token", "unk_token", "pad_token"):
            if getattr(tokenizer, name, None) is None:
                self._kwargs.setdefault(name, "")
        self.bos = str(getattr(tokenizer, "bos_token", None) or "")
        self.form = ""
        self.refusal = ""

    def render(self, messages: Sequence[Mapping[str, Any]], **kwargs: Any) -> str | None:
        """The template's text, or None when the template refuses the conversation with tools or without."""
        for more in (kwargs, {"tools": [], **kwargs}):
            try:
                text = self._tokenizer.apply_chat_template(
                    list(messages), tokenize=False, **{**self._kwargs, **more}
                )
            except Exception as error:  # noqa: BLE001 - a template may raise anything; the refusal is kept
                self.refusal = self.refusal or f"refused with {type(error).__name__}: {error}"
                continue
            return text if isinstance(text, str) else None
        return None

    def split(
        self, messages: Sequence[Mapping[str, Any]], sentinels: Sequence[str], **kwargs: Any
    ) -> list[str] | None:
        """Renders and cuts at the sentinels.

        Args:
            messages: a conversation with string contents.
            sentinels: the contents to cut at, in order; each must appear exactly once.
            kwargs: further arguments of `apply_chat_template`.

        Returns:
            The texts around the sentinels (one more than sentinels), or None when the template refuses
            the conversation or loses, repeats or reorders a sentinel.
        """
        for form in (self.form,) if self.form else ("string", "parts"):
            text = self.render(messages if form == "string" else in_parts(messages), **kwargs)
            if text is None:
                continue
            pieces = re.split("|".join(sentinels), text)
            if re.findall("|".join(sentinels), text) == list(sentinels):
                self.form = self.form or form
                return pieces
            self.refusal = LOST
        return None


def in_parts(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The messages with their contents as lists of typed parts."""
    return [
        {**message, "content": [{"type": "text", "text": message["content"]}]}
        if isinstance(message.get("content"), str)
        else dict(message)
        for message in messages
    ]


def message(role: str, content: Any, **more: Any) -> dict[str, Any]:
    """One chat message."""
    return {"role": role, "content": content, **more}


def call(index: int, *, encoded: bool) -> dict[str, Any]:
    """A call of the probe tool, its arguments as a dict or as the JSON text some templates want."""
    arguments = f'{{"{ARGUMENT}": "qzval{index}qz"}}' if encoded else {ARGUMENT: f"qzval{index}qz"}
    return {
        "id": CALL_IDS[index],
        "type": "function",
        "function": {"name": TOOL_NAME, "arguments": arguments},
    }


def atoms(text: str) -> list[str]:
    """Cuts text where a marker may end: tags, bracketed words, words, single characters."""
    return _ATOM.findall(text)


def common_prefix(*texts: str) -> str:
    """The longest common beginning that cuts no tag or word of any of the texts."""
    prefix: list[str] = []
    for column in zip(*map(atoms, texts), strict=False):
        if len(set(column)) > 1:
            break
        prefix.append(column[0])
    return "".join(prefix)


def common_suffix(a: str, b: str) -> str:
    """The longest common ending that cuts no tag or word of either text."""
    suffix: list[str] = []
    for x, y in zip(reversed(atoms(a)), reversed(atoms(b)), strict=False):
        if x != y:
            break
        suffix.append(x)
    return "".join(reversed(suffix))


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
