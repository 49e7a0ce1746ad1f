"""Near-duplicates among completions of one prompt: the share of their five-word runs that they have in common."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import orjson

RUN = 5
MOST_COMPARED = 256
"""Completions of one prompt that a new one is compared with."""


class Duplicates:
    """The completions that were kept so far, by which duplicates are known.

    Args:
        share: of the five-word runs of two completions together, how many both have, from which on the later one
            is a near-duplicate (the Jaccard index); None for no near-duplicates.
    """

    def __init__(self, share: float | None) -> None:
        self._share = share
        self._kept: dict[str, list[frozenset[int]]] = {}

    def is_new(self, key: str, completion: Sequence[Mapping[str, Any]]) -> bool:
        """Tells whether a completion is none of those before it under the same key, and keeps it as one of them.

        Args:
            key: the prompt's.
            completion: messages.
        """
        if self._share is None:
            return True
        runs = _runs(completion)
        kept = self._kept.setdefault(key, [])
        if any(_jaccard(runs, other) >= self._share for other in kept[-MOST_COMPARED:]):
            return False
        kept.append(runs)
        return True


def _runs(completion: Sequence[Mapping[str, Any]]) -> frozenset[int]:
    words = " ".join(_said(message) for message in completion if message["role"] == "assistant").split()
    if len(words) < RUN:
        return frozenset({hash(tuple(words))})
    return frozenset(hash(tuple(words[at : at + RUN])) for at in range(len(words) - RUN + 1))


def _said(message: Mapping[str, Any]) -> str:
    calls = message.get("tool_calls")
    return f"{message['content']} {orjson.dumps(calls).decode() if calls else ''}"


def _jaccard(a: frozenset[int], b: frozenset[int]) -> float:
    return len(a & b) / len(a | b)
