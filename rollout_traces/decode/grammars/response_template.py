"""A tokenizer's own `response_template` (transformers 5.13 and later) as a grammar."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from rollout_traces.decode.grammars.grammar import Grammar, Malformed, ParsedCall, Region, Scan, TextSpan
from rollout_traces.decode.grammars.json_calls import call_of
from rollout_traces.decode.grammars.literal import plain_data, typed
from rollout_traces.model.text import SAID, quoted

_CALL_FIELDS = ("tool_calls",)
_THINKING_FIELDS = ("reasoning_content", "thinking", "reasoning")
_CONTENT_FIELDS = ("content",)
_LOOK_AHEAD = "(?="
_NAMED_GROUP = re.compile(r"\(\?P<\w+>")


@dataclass(frozen=True)
class TemplateField:
    """One field of a response template, its patterns compiled with `re`.

    Attributes:
        name: the message key it fills.
        open: what begins it.
        close: what ends it; None when only the end of the text does.
        spec: transformers' own description of the field, which its content parsers take.
    """

    name: str
    open: re.Pattern[str]
    close: re.Pattern[str] | None
    spec: Any


@dataclass(frozen=True, eq=False)
class ResponseTemplate(Grammar):
    """Finds a response template's fields in a text and has transformers parse the calls in them."""

    fields: tuple[TemplateField, ...]
    name: str = "response_template"

    @property
    def opener(self) -> str:
        """Any field's opening."""
        unnamed = (_NAMED_GROUP.sub("(?:", field.open.pattern) for field in self.fields)
        return "|".join(f"(?:{pattern})" for pattern in unnamed)

    def in_template(self, chat_template: str) -> bool:
        """Always False: it comes with a tokenizer, not with a chat template."""
        return False

    def read(self, scan: Scan, at: int) -> Region | Malformed | None:
        """Reads one field."""
        for field in self.fields:
            head = field.open.match(scan.text, at)
            if head is None or head.end() == at:
                continue
            start = head.end()
            stop = scan.search(field.close, start) if field.close else -1
            close = field.close.match(scan.text, stop) if field.close and stop >= 0 else None
            end = close.end() if close else len(scan.text)
            stop = close.start() if close else end
            if field.name in _CALL_FIELDS:
                return _calls(scan, (at, start, stop, end), field, head)
            kind = TextSpan("thinking" if field.name in _THINKING_FIELDS else "content", start, stop)
            spans = (TextSpan("marker", at, start), kind, TextSpan("marker", stop, end))
            kept = tuple(span for span in spans if span.stop > span.start)
            return Region(kept, thinking_closed=close is not None or kind.kind == "content")
        return None


def response_grammar(tokenizer: Any) -> ResponseTemplate | None:
    """The grammar of a tokenizer's `response_template`.

    Args:
        tokenizer: a transformers tokenizer, or None.

    Returns:
        The grammar; None when the tokenizer carries none, the installed transformers cannot load it,
        or no field of calls has an opening of its own.
    """
    template = getattr(tokenizer, "response_template", None)
    if not isinstance(template, dict):
        return None
    try:
        from transformers.utils.chat_parsing.response_templates import load_response_template

        loaded = load_response_template(template)
        fields = tuple(field for name, spec in loaded.fields.items() if (field := _field(name, spec)))
        grammar = ResponseTemplate(fields)
        re.compile(grammar.opener)
    except (ImportError, ValueError, TypeError, re.error):
        return None
    return grammar if any(field.name in _CALL_FIELDS for field in fields) else None


def _field(name: str, spec: Any) -> TemplateField | None:
    known = (*_CALL_FIELDS, *_THINKING_FIELDS, *_CONTENT_FIELDS)
    if name not in known or spec.open_re is None or spec.open_re.pattern.startswith(_LOOK_AHEAD):
        return None
    close = re.compile(spec.close_re.pattern, re.DOTALL) if spec.close_re is not None else None
    return TemplateField(name, re.compile(spec.open_re.pattern, re.DOTALL), close, spec)


def _calls(
    scan: Scan, edges: tuple[int, int, int, int], field: TemplateField, head: re.Match[str]
) -> Region | Malformed:
    from transformers.utils.chat_parsing.content_parsers import process_field

    at, start, stop, end = edges
    captures = {key: value for key, value in head.groupdict().items() if value is not None}
    name = captures.get("name", "")
    closer = scan.text[stop:end]
    try:
        value = plain_data(process_field(scan.text[start:stop], field.spec, captures))
    except Exception as error:  # noqa: BLE001 - the patterns and parsers are the model author's
        return Malformed(quoted(error, SAID), start, name, closer)
    calls = []
    for item in value if isinstance(value, list) else [value]:
        call = call_of(item)
        if isinstance(call, str):
            return Malformed(call, start, name, closer)
        schemas = scan.tools.get(call[0], {})
        arguments = {
            key: typed(entry, schemas[key]) if isinstance(entry, str) and key in schemas else entry
            for key, entry in call[1].items()
        }
        calls.append(ParsedCall(call[0], arguments, scan.text[at:end], call[2], at, end))
    return Region((TextSpan("call", at, end),), tuple(calls))
