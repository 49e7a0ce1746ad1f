"""Short ways to say what a body parses to."""

from rollout_traces.decode.grammars import Grammar, ParsedBody, parameters_by_tool, parse_assistant


def calls_of(body: str, *grammars: Grammar, tools=()) -> list[tuple[str, object]]:
    """Name and arguments of each call."""
    parsed = parse_assistant(body, grammars, schemas=parameters_by_tool(tools))
    return [(call.name, call.arguments) for call in parsed.calls]


def tool(name: str, **types: str) -> dict:
    """A tool definition whose parameters have the given JSON schema types."""
    properties = {key: {"type": kind} for key, kind in types.items()}
    return {"type": "function", "function": {"name": name, "parameters": {"properties": properties}}}


def assert_nothing_is_lost(body: str, parsed: ParsedBody) -> None:
    """Spans partition the body, calls are covered by call spans, texts are what the spans say."""
    edges = [0, *(span.stop for span in parsed.spans)]
    assert [span.start for span in parsed.spans] == edges[:-1]
    assert edges[-1] == len(body)
    assert all(span.stop > span.start for span in parsed.spans)
    for call in parsed.calls:
        assert call.raw == body[call.start : call.stop]
        assert any(
            span.kind == "call" and span.start <= call.start < call.stop <= span.stop for span in parsed.spans
        )
    covered = {(call.start, call.stop) for call in parsed.calls}
    assert all((span.start, span.stop) in covered for span in parsed.spans if span.kind == "call")
    for kind, text in (("content", parsed.content), ("thinking", parsed.thinking or "")):
        pieces = [body[span.start : span.stop] for span in parsed.spans if span.kind == kind]
        assert "\n\n".join(pieces) == text
