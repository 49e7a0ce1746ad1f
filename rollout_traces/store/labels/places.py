"""Whether a rollout has the turn or the tokens that are named."""

from __future__ import annotations

from rollout_traces.errors import StoreError
from rollout_traces.transcript import Transcript


def checked_place(transcript: Transcript | None, turn: int | None, tokens: tuple[int, int] | None) -> None:
    """Refuses a place that a rollout does not have.

    Args:
        transcript: the rollout; None where another tool wrote it, without tokens.
        turn: a turn's number.
        tokens: the first token and the one behind the last.

    Raises:
        StoreError: there is no such turn, or there are no such tokens.
    """
    if transcript is None:
        raise StoreError("This rollout has no turns and tokens of ours; only the whole of it can be named.")
    if turn is not None and not 0 <= turn < len(transcript.turns):
        raise StoreError(f"turn {turn}: this rollout has {len(transcript.turns)} turns, from 0.")
    if tokens is not None and not 0 <= tokens[0] < tokens[1] <= len(transcript.tokens):
        raise StoreError(
            f"tokens {tokens[0]}:{tokens[1]}: this rollout has {len(transcript.tokens)}, from 0."
        )
