"""What a person types into a search box: words, and phrases in double quotes, all of which must occur."""

from __future__ import annotations

import re

from rollout_traces.store.query.error import QueryError
from rollout_traces.store.query.nodes import QuerySpan, Text

MOST_WORDS = 100
"""Words and phrases in one search; each of them is looked up."""

MOST_CHARACTERS = 2_000
"""Characters of one search."""

_CHUNKS = re.compile(r'"([^"]*)"?|(\S+)')


def parse_search(text: str) -> list[Text]:
    """One search for every different word or quoted phrase.

    Args:
        text: as typed; a quote that is not closed reaches to the end.

    Raises:
        QueryError: it is longer than MOST_CHARACTERS, or has more than MOST_WORDS.
    """
    if len(text) > MOST_CHARACTERS:
        what = f"a search of {len(text):,} characters; at most {MOST_CHARACTERS:,}. Look for a part of it."
        raise QueryError(what, text[:60], 0, 60)
    found: dict[str, Text] = {}
    for match in _CHUNKS.finditer(text):
        chunk = (match[1] if match[1] is not None else match[2]).strip()
        if chunk and chunk not in found:
            if len(found) == MOST_WORDS:
                raise QueryError(
                    f"more than {MOST_WORDS} different words; put what stands together in quotes.",
                    text,
                    match.start(),
                    match.end(),
                )
            found[chunk] = Text(chunk, QuerySpan(match.start(), match.end()))
    return list(found.values())
