"""Learning a dialect: render probe conversations, cut at the sentinels, read off what stands between.

Every shape (system, tools, two results in a row, thinking, ...) is probed on its own, because templates
refuse some of them; what a refused shape would have taught is named in the dialect's notes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from rollout_traces.decode import probe_render as say
from rollout_traces.decode.probe_render import Renderer, common_prefix, common_suffix, message
from rollout_traces.decode.probe_tools import learn_definitions, learn_results
from rollout_traces.decode.template_markers import (
    Closer,
    Opener,
    TemplateMarkers,
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
