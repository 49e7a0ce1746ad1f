"""Citations of rollouts in a report: `rollout:UID`, `rollout:UID#FIRST-LAST` for a range of tokens."""

from __future__ import annotations

import re
from urllib.parse import urlencode

from rollout_traces.errors import StoreError
from rollout_traces.inspector.api.models import Citation, CitationsAnswer
from rollout_traces.store import Store

_CITATION = re.compile(
    r"\brollout:(?P<uid>[A-Za-z0-9_:/.\-]*[A-Za-z0-9_])(?:#(?P<first>\d{1,9})-(?P<last>\d{1,9}))?"
)
MOST = 200
"""Citations of one text that are checked."""
LONGEST = 60_000
"""Characters of a text."""
SHOWN = 200
"""Characters of the tokens that are shown."""


def cite(uid: str, first: int | None = None, last: int | None = None) -> str:
    """The citation of a rollout, or of its tokens from `first` to `last`, both included."""
    return f"rollout:{uid}" + ("" if first is None else f"#{first}-{last}")


def checked(store: Store, text: str) -> CitationsAnswer:
    """Every citation of a text, and whether it leads to a rollout and tokens that are there.

    Args:
        store: the project.
        text: a report.

    Raises:
        StoreError: it is longer than `LONGEST`, or has more than `MOST` citations.
    """
    if len(text) > LONGEST:
        raise StoreError(f"text: {len(text):,} characters; at most {LONGEST:,} are checked at once.")
    found = list(dict.fromkeys(match[0] for match in _CITATION.finditer(text)))
    if len(found) > MOST:
        raise StoreError(f"{len(found)} citations; at most {MOST} are checked at once.")
    answers = [_checked(store, citation) for citation in found]
    return CitationsAnswer(citations=answers, all_resolve=bool(answers) and all(a.resolves for a in answers))


def _checked(store: Store, citation: str) -> Citation:
    match = _CITATION.fullmatch(citation)
    assert match is not None
    try:
        trace_id = store.find(match["uid"])
        if match["uid"] not in (trace_id, store.uid(trace_id)):
            raise StoreError(f"{match['uid']} is the beginning of a uid, not a whole one.")
        address = {"project": store.project, "tab": "rollouts", "id": trace_id}
        if match["first"] is None:
            return Citation(citation=citation, resolves=True, address=f"/?{urlencode(address)}")
        first, last = int(match["first"]), int(match["last"])
        transcript = store.transcript(trace_id)
        n = 0 if transcript is None else len(transcript.tokens)
        if transcript is None or not 0 <= first <= last < n:
            raise StoreError(f"tokens {first}-{last}: the rollout has {n}, from 0.")
    except StoreError as error:
        return Citation(citation=citation, resolves=False, why_not=str(error))
    tokens = transcript.tokens
    said = transcript.raw[int(tokens.char_starts[first]) : int(tokens.char_stops[last])][:SHOWN]
    return Citation(
        citation=citation,
        resolves=True,
        address=f"/?{urlencode({**address, 'mode': 'tokens', 'token': first})}",
        text=said,
    )
