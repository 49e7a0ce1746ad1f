"""Texts of conversations: searched, by the full-text index where it can answer and by a scan of the texts where it cannot;
and read in full, what was written, what tools answered, prompt, system prompt, tools, ground truth."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import orjson
import pyarrow as pa

from rollout_traces.errors import StoreError
from rollout_traces.model.plain_values import from_json
from rollout_traces.store.engine import Engine
from rollout_traces.store.query.nodes import Text
from rollout_traces.store.reading import SIGNS, mappings, message_texts, part_text, spaced
from rollout_traces.store.source import Source
from rollout_traces.store.time_limit import stopping
from rollout_traces.trace.conversion import TRACK_KEY
from rollout_traces.trace.packing import packed_tools

CONTEXT = 60
"""Characters of a snippet on either side of what was found."""

_INDEXED = re.compile(rf"[^\W_]|[{re.escape(SIGNS)}]")
_WORD_END = re.compile(r"[^\W_]\Z")
_SPACE = re.compile(r"\s+")


def match_expression(phrase: str) -> str | None:
    """The full-text expression for a phrase: its words, CJK characters and signs in a row.

    A phrase with signs that ends inside a word goes on from there: `boxed{4` finds `boxed{42}`.

    Args:
        phrase: as typed.

    Returns:
        The expression; None when the phrase has nothing that is indexed.
    """
    if not _INDEXED.search(phrase):
        return None
    quoted = spaced(phrase.replace('"', " ").replace("\x00", " ")).decode()
    goes_on = any(sign in phrase for sign in SIGNS) and _WORD_END.search(phrase)
    return f'"{quoted}"' + (" *" if goes_on else "")


def expression_of(node: Text) -> str | None:
    """The full-text expression of a search; None when the texts themselves must be read."""
    return match_expression(node.pattern) if node.how == "words" else None


def look_up(connection: sqlite3.Connection, expression: str) -> np.ndarray:
    """The documents that a full-text expression finds, int [K].

    Args:
        expression: one or several of `match_expression`, joined by AND.
    """
    # one text of all numbers is read in half the time of a row for each
    with stopping(connection):
        [found] = connection.execute(
            "SELECT group_concat(rowid) FROM words WHERE words MATCH ?", (expression,)
        ).fetchone()
    return np.fromstring(found or "", np.int64, sep=",")


def scan(
    connection: sqlite3.Connection, source: Source, node: Text, docs: np.ndarray, engine: Engine
) -> np.ndarray:
    """Looks for a piece of text or a regular expression in some conversations.

    Args:
        source: where the texts are.
        node: what must occur, also inside a word.
        docs: the conversations to look at, int [N].
        engine: what looks, for regular expressions too in linear time.

    Returns:
        Those of the documents that hold it, int [K].
    """
    of_src = dict(
        connection.execute(
            "SELECT src, doc FROM docs WHERE doc IN (SELECT value FROM json_each(?))",
            (orjson.dumps(docs.tolist()).decode(),),
        ).fetchall()
    )
    is_pattern = node.how == "~"
    having = "" if is_pattern else node.pattern.lower()
    test = "regexp_matches(text, ?)" if is_pattern else "contains(lower(text), lower(?))"
    found: list[int] = []
    rowids = list(of_src)
    for at in range(0, len(rowids), source.page):
        read = list(source.messages(rowids[at : at + source.page], having))
        texts = pa.table(
            {
                "doc": pa.array([of_src[rowid] for rowid, _ in read], pa.int64()),
                "text": pa.array([part_text(messages, node.part) for _, messages in read], pa.string()),
            }
        )
        matched = engine.run(f"SELECT doc FROM texts WHERE {test}", (node.pattern,), {"texts": texts})
        found += matched["doc"].to_pylist()
    return np.array(found, np.int64)


def snippets(texts: Mapping[str, str], looked_for: Sequence[Text], engine: Engine) -> dict[str, str]:
    """The surroundings of what was found in some conversations.

    Args:
        texts: conversations by id.
        looked_for: what was searched for.
        engine: what matches regular expressions, in linear time.
    """
    phrases: dict[str, list[str]] = {key: [] for key in texts}
    for node in looked_for:
        if node.how == "~":
            table = pa.table({"id": pa.array(texts), "text": pa.array(texts.values(), pa.string())})
            matched = engine.run(
                "SELECT id, regexp_extract(text, ?) AS found FROM texts", (node.pattern,), {"texts": table}
            )
            for key, piece in zip(matched["id"].to_pylist(), matched["found"].to_pylist(), strict=True):
                phrases[key] += [piece[:CONTEXT]] if piece.strip() else []
        else:
            for each in phrases.values():
                each.append(node.pattern)
    return {key: snippet(text, phrases[key]) for key, text in texts.items()}


def snippet(text: str, phrases: Sequence[str]) -> str:
    """The surroundings of the first phrase that is found in a text, on one line.

    Args:
        text: the conversation's text.
        phrases: what was searched for.
    """
    for phrase in phrases:
        found = re.search(r"\s+".join(map(re.escape, phrase.split())), text, re.IGNORECASE)
        if found:
            start, stop = max(0, found.start() - CONTEXT), min(len(text), found.end() + CONTEXT)
            cut = _SPACE.sub(" ", text[start:stop]).strip()
            return ("… " if start else "") + cut + (" …" if stop < len(text) else "")
    return _SPACE.sub(" ", text[: 2 * CONTEXT]).strip()


MOST_TOOLS = 200
"""Rollouts of one question whose tool schemas are read, evenly spread: they lie packed with the tokens."""


class FullText(NamedTuple):
    """The texts of one rollout; None where unknown.

    Attributes:
        written: everything the policy sampled, thinking included, an assistant turn after the other.
        tool_results: what tools answered to it, one after the other.
        prompt: the last user message before it.
        system: the system prompt.
        tools: the tool schemas as JSON with sorted keys.
        ground_truth: the expected answer.
    """

    written: str | None
    tool_results: str | None
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
    loaded, about = from_json(messages), from_json(metadata or b"{}")
    if loaded is None or about is None:
        return None
    spoken = mappings(loaded)
    about = about if isinstance(about, dict) else {}
    said = [at for at, m in enumerate(spoken) if m.get("role") == "assistant"]
    n_turns = about.get("n_turns")
    if isinstance(n_turns, int) and 0 < n_turns < len(said):
        said = said[-n_turns:]  # those before were part of the prompt
    first = said[0] if said else len(spoken)
    asked = [m for m in spoken[:first] if m.get("role") == "user"]
    results = [_content(m) for m in spoken[first:] if m.get("role") == "tool"]
    systems = [_content(m) for m in spoken[:first] if m.get("role") == "system"]
    truth = about.get("ground_truth")
    return FullText(
        "\n".join(_all_of(spoken[at]) for at in said) if said else None,
        "\n".join(results) if results else None,
        _content(asked[-1]) if asked else None,
        "\n".join(systems) if systems else None,
        _tools(spans) if spans else None,
        None if truth is None else truth if isinstance(truth, str) else orjson.dumps(truth).decode(),
    )


def _content(message: Mapping[str, Any]) -> str:
    return "\n".join(message_texts({"content": message.get("content")}))


def _all_of(message: Mapping[str, Any]) -> str:
    """Joins all that an assistant message says, its thinking first."""
    thinking = message_texts({"content": message.get("reasoning_content")})
    return "\n".join([*thinking, *message_texts({**message, "reasoning_content": None})])


def _tools(spans: Any) -> str | None:
    """The tool schemas that lie with the packed tokens, None where there are none."""
    roots = [span for span in mappings(from_json(spans)) if TRACK_KEY in span]
    try:
        found = packed_tools(roots[0][TRACK_KEY]) if roots else []
    except StoreError:
        return None
    return orjson.dumps(found, option=orjson.OPT_SORT_KEYS).decode() if found else None
