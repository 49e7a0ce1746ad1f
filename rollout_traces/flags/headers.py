"""Flags about what opens a text and its turns: BOS, the assistant's header, and turns that the policy wrote for others."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Annotated, Any

import numpy as np

from rollout_traces.flags.base import Flag, TracedRow
from rollout_traces.flags.mask import known_sampled
from rollout_traces.flags.registry import make_flag, row_flag
from rollout_traces.quoting import quoted
from rollout_traces.transcript import Turn

_OTHERS = ("system", "user", "tool")
_PROBE = ({"role": "user", "content": "Zqq0qZ"},)


@row_flag(
    "sampled_foreign_turn",
    family="policy",
    severity="warn",
    meaning="the policy wrote a turn of the system, a user or a tool itself",
    needs=("tokens",),
)
def sampled_foreign_turn(
    row: TracedRow, *, share: Annotated[float, "of the turn's tokens that must be sampled"] = 0.5
) -> Iterator[Flag]:
    """Most tokens of a turn that its markers give to somebody else were sampled.

    Where sampling is known by the loss mask alone, a turn counts when all of it is in the loss and follows an
    assistant turn, all in the loss, that no end marker closed.
    """
    transcript, tokens = row.transcript, row.transcript.tokens
    if transcript.source == "mask":
        return
    sampled = known_sampled(row)
    unknown = not sampled.any()
    runs_on = False
    for index, turn in enumerate(transcript.turns):
        in_loss = tokens.loss_mask[turn.start : turn.stop]
        written = runs_on and bool(in_loss.all())
        open_end = turn.body_stop == turn.stop and bool(in_loss[-1:].all())
        runs_on = (turn.role == "assistant" or written) and open_end
        n = int(sampled[turn.start : turn.stop].sum())
        if turn.role not in _OTHERS or not (written if unknown else n > share * len(turn)):
            continue
        text = f"The policy wrote {len(turn) if unknown else n} of the {len(turn)} tokens of {turn.role} turn {index}."
        yield make_flag("sampled_foreign_turn", text, turn=index, start=turn.start, stop=turn.stop)


@row_flag(
    "header_drift",
    family="policy",
    severity="warn",
    meaning="the white space after the assistant's header differs from the template's generation prompt",
    needs=("tokenizer",),
)
def header_drift(row: TracedRow) -> Iterator[Flag]:
    """The first sampled turn that has the generation prompt's header without the white space behind it.

    Such a header may not be known as one: then it is a turn of nobody's, and what was sampled follows it.
    """
    header = _generation_prompt(row.tokenizer, str(getattr(row.tokenizer, "chat_template", None)))
    bare = header.rstrip()
    if not bare or bare == header or row.transcript.source == "mask":
        return
    turns = row.transcript.turns
    for index, turn in enumerate(turns):
        sampled = turn.n_sampled or (
            turn.role == "context" and index + 1 < len(turns) and turns[index + 1].n_sampled
        )
        if turn.role not in ("assistant", "context") or not sampled or not turn.raw.startswith(bare):
            continue
        if turn.raw.startswith(header):
            continue
        stands = turn.raw[len(bare) : len(header) + 8]
        text = f"After the assistant's header of turn {index} stands {quoted(stands)}, where the template writes {quoted(header[len(bare) :])}."
        yield make_flag(
            "header_drift", text, turn=index, start=turn.start, stop=_header_stop(row, turn, len(bare))
        )
        return


@row_flag(
    "bos_anomaly",
    family="policy",
    severity="warn",
    meaning="the token that begins a text occurs twice at its start, or is missing where the template writes it",
    needs=("tokenizer",),
    explained_by=("pad_attended",),
)
def bos_anomaly(row: TracedRow) -> Iterator[Flag]:
    """Two beginning tokens or more at the start of a row, or none where the chat template's rendering has one."""
    bos = getattr(row.tokenizer, "bos_token_id", None)
    ids = row.transcript.tokens.input_ids
    if bos is None or not len(ids):
        return
    others = np.flatnonzero(ids != bos)
    n = int(others[0]) if len(others) else len(ids)
    if n > 1:
        text = f"The row begins with {n} beginning tokens (id {bos}): prompt and tokenizer both wrote one."
        yield make_flag("bos_anomaly", text, start=0, stop=n)
    elif n == 0 and _writes_bos(row.tokenizer, str(getattr(row.tokenizer, "chat_template", None))):
        text = f"The row does not begin with the beginning token (id {bos}) that the chat template writes."
        yield make_flag("bos_anomaly", text, start=0, stop=1)


def _header_stop(row: TracedRow, turn: Turn, n_characters: int) -> int:
    """One past the last token of the first characters of a turn."""
    tokens = row.transcript.tokens
    starts = tokens.char_starts[turn.start : turn.stop] - int(tokens.char_starts[turn.start])
    return turn.start + max(int((starts < n_characters).sum()), 1)


@lru_cache(maxsize=16)
def _generation_prompt(tokenizer: Any, template: str) -> str:
    """What the template writes to open the assistant's turn; empty where it is not known.

    Args:
        tokenizer: it renders.
        template: its template now, so that another one is another rendering.
    """
    without, with_it = (_rendered(tokenizer, add_generation_prompt=add) for add in (False, True))
    return with_it[len(without) :] if without and with_it.startswith(without) else ""


@lru_cache(maxsize=16)
def _writes_bos(tokenizer: Any, template: str) -> bool:
    """Whether the template's rendering begins with the beginning token; arguments as above."""
    token = getattr(tokenizer, "bos_token", None)
    return bool(token) and _rendered(tokenizer, add_generation_prompt=False).startswith(str(token))


def _rendered(tokenizer: Any, **options: bool) -> str:
    if not getattr(tokenizer, "chat_template", None):
        return ""
    try:
        return str(tokenizer.apply_chat_template(list(_PROBE), tokenize=False, **options))
    except Exception:  # noqa: BLE001  a template may refuse anything in its own words; then nothing is compared
        return ""
