"""Searching conversations: the full-text index where it can answer, a scan of the texts where it cannot."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Sequence

import orjson

from rollout_traces.store.query.compiler import Sql
from rollout_traces.store.query.nodes import Node, Text
from rollout_traces.store.reading import SIGNS, conversation_text, spaced
from rollout_traces.store.selection import Selection
from rollout_traces.store.source import Source

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
    quoted = spaced(phrase.replace('"', " ").replace("\x00", " "))
    goes_on = any(sign in phrase for sign in SIGNS) and _WORD_END.search(phrase)
    return f'"{quoted}"' + (" *" if goes_on else "")


def expression_of(node: Node) -> str | None:
    """The full-text expression of a search; None when the texts themselves must be read."""
    return match_expression(node.phrase) if isinstance(node, Text) else None


def scan(connection: sqlite3.Connection, source: Source, piece: str, selection: Selection) -> Sql:
    """Looks for a piece of text, any case, in the conversations of the given rows.

    Args:
        connection: the index.
        source: where the texts are.
        piece: what must occur, also inside a word.
        selection: the rows to look at.

    Returns:
        The condition that a row is one of those found.
    """
    where = selection.where
    docs = dict(
        connection.execute(
            f"SELECT t.src, t.doc FROM {selection.tables} WHERE {where.text}", where.parameters
        ).fetchall()
    )
    needle = piece.lower()
    found = [
        docs[rowid]
        for rowid, messages in source.messages(list(docs), needle)
        if needle in conversation_text(messages).lower()
    ]
    return Sql("t.doc IN (SELECT value FROM json_each(?))", (orjson.dumps(sorted(found)).decode(),))


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
