"""Texts of kept rollouts in full: written text, prompt, system prompt, tools, ground truth; from the traces themselves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import orjson

from rollout_traces.errors import StoreError
from rollout_traces.store.source import Source

MOST_TOOLS = 200
"""Rollouts of one question whose tool schemas are read, evenly spread: they lie packed with the tokens."""


class FullText(NamedTuple):
    """The texts of one rollout; None where unknown.

    Attributes:
        written: everything the policy sampled, thinking included, an assistant turn after the other.
        prompt: the last user message before it.
        system: the system prompt.
        tools: the tool schemas as JSON with sorted keys.
        ground_truth: the expected answer.
    """

    written: str | None
    prompt: str | None
    system: str | None
    tools: str | None
    ground_truth: str | None


def full_texts(source: Source, trace_ids: Sequence[str]) -> dict[str, FullText]:
    """Trace id -> its texts; traces that are gone or damaged are left out.

    Args:
        source: where the traces are.
    """
    with_tools = {
        trace_ids[int(i)] for i in np.linspace(0, len(trace_ids) - 1, min(len(trace_ids), MOST_TOOLS))
    }
    found: dict[str, FullText] = {}
    for spans in (True, False):
        read = source.texts_of([i for i in trace_ids if (i in with_tools) == spans], spans=spans)
        found |= {i: text for i, texts in read.items() if (text := _read(*texts)) is not None}
    return found


def _read(messages: Any, metadata: Any, spans: Any) -> FullText | None:
    """The texts of a trace; None where its JSON is damaged."""
    try:
        loaded = orjson.loads(messages)
        spoken = [m for m in loaded if isinstance(m, dict)] if isinstance(loaded, list) else []
        about = orjson.loads(metadata) if metadata else {}
    except orjson.JSONDecodeError:
        return None
    about = about if isinstance(about, dict) else {}
    said = [at for at, m in enumerate(spoken) if m.get("role") == "assistant"]
    n_turns = about.get("n_turns")
    if isinstance(n_turns, int) and 0 < n_turns < len(said):
        said = said[-n_turns:]  # those before were part of the prompt
    first = said[0] if said else len(spoken)
    asked = [m for m in spoken[:first] if m.get("role") == "user"]
    systems = [_content(m) for m in spoken[:first] if m.get("role") == "system"]
    truth = about.get("ground_truth")
    return FullText(
        "\n".join(_all_of(spoken[at]) for at in said) if said else None,
        _content(asked[-1]) if asked else None,
        "\n".join(systems) if systems else None,
        _tools(spans) if spans else None,
        None if truth is None else truth if isinstance(truth, str) else orjson.dumps(truth).decode(),
    )


def _content(message: Mapping[str, Any]) -> str:
    from rollout_traces.store.reading import message_texts

    return "\n".join(message_texts({"content": message.get("content")}))


def _all_of(message: Mapping[str, Any]) -> str:
    """Joins all that an assistant message says, its thinking first."""
    from rollout_traces.store.reading import message_texts

    thinking = message_texts({"content": message.get("reasoning_content")})
    return "\n".join([*thinking, *message_texts({**message, "reasoning_content": None})])


def _tools(spans: Any) -> str | None:
    """The tool schemas that lie with the packed tokens, None where there are none."""
    from rollout_traces.trace.conversion import TRACK_KEY
    from rollout_traces.trace.packing import packed_tools

    try:
        roots = [span for span in orjson.loads(spans) if isinstance(span, dict) and TRACK_KEY in span]
        found = packed_tools(roots[0][TRACK_KEY]) if roots else []
    except (orjson.JSONDecodeError, StoreError):
        return None
    return orjson.dumps(found, option=orjson.OPT_SORT_KEYS).decode() if found else None
