"""Conversations by chance, through any of TRL's templates, cut anywhere, with typed markers inside."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from rollout_traces.decode import TranscriptDecoder
from rollout_traces.decode.probe import in_parts
from tests.decode.builders import check_invariants, of_template, said
from tests.decode.toy import trl_templates

NAMES = sorted(trl_templates())
QUICK = settings(max_examples=80, deadline=None, suppress_health_check=list(HealthCheck))

words = st.text(st.characters(codec="utf-8", exclude_characters="<>[]{}|｜▁"), min_size=1, max_size=12)
contents = st.lists(words, min_size=1, max_size=4).map(" ".join).filter(lambda text: bool(text.strip()))


@dataclass(frozen=True)
class Encoded:
    """A conversation in tokens: markers as special tokens, contents letter by letter.

    Attributes:
        ids: the token ids.
        mask: True on the assistant's contents.
        said: role and stripped content of every message.
    """

    ids: np.ndarray
    mask: np.ndarray
    said: list[tuple[str, str]]


def encode(tokenizer: Any, decoder: TranscriptDecoder, messages: list[tuple[str, str]]) -> Encoded | None:
    """Renders placeholders and puts each content in as text that can never become a special token."""
    holes = [f"qq{i}qq" for i in range(len(messages))]
    plain = [{"role": role, "content": hole} for (role, _), hole in zip(messages, holes, strict=True)]
    if decoder.dialect.content_form == "parts":
        plain = in_parts(plain)
    rest = tokenizer.apply_chat_template(plain, tokenize=False)
    ids: list[int] = []
    mask: list[bool] = []
    for hole, (role, content) in zip(holes, messages, strict=True):
        before, found, rest = rest.partition(hole)
        if not found:
            return None
        for text, typed in ((before, False), (content, True)):
            piece = tokenizer.encode(text, add_special_tokens=False, split_special_tokens=typed)
            ids += piece
            mask += [typed and role == "assistant"] * len(piece)
    piece = tokenizer.encode(rest, add_special_tokens=False)
    return Encoded(np.asarray([*ids, *piece], np.int64), np.asarray(mask + [False] * len(piece)), messages)


@st.composite
def conversations(draw: st.DrawFn) -> tuple[str, list[tuple[str, str]]]:
    name = draw(st.sampled_from(NAMES))
    n = draw(st.integers(1, 4))
    pairs = [[("user", draw(contents)), ("assistant", draw(contents))] for _ in range(n)]
    return name, [message for pair in pairs for message in pair]


class TestAnyConversation:
    @QUICK
    @given(conversations())
    def test_roles_and_contents_come_back(self, made: tuple[str, list[tuple[str, str]]]) -> None:
        name, messages = made
        tokenizer, decoder = of_template(name)
        encoded = encode(tokenizer, decoder, messages)
        assume(encoded is not None)
        assert encoded is not None
        transcript = decoder.decode(encoded.ids, loss_mask=encoded.mask)
        check_invariants(transcript, decoder, encoded.ids)
        got = [(role, content.strip()) for role, content in said(transcript) if role != "system"]
        assert got == [(role, content.strip()) for role, content in messages]
        for turn in transcript.turns:
            assert (turn.n_sampled > 0) == (turn.role == "assistant")

    @QUICK
    @given(conversations(), st.data())
    def test_typed_markers_in_a_question_change_no_role(
        self, made: tuple[str, list[tuple[str, str]]], data: st.DataObject
    ) -> None:
        name, messages = made
        tokenizer, decoder = of_template(name)
        if decoder._markers.ambiguous:
            return
        dialect = decoder.dialect
        texts = [o.text for o in dialect.openers if not o.within] + [c.text for c in dialect.closers]
        attack = "x" + data.draw(st.lists(st.sampled_from(texts), max_size=4).map("".join)) + "y"
        messages = [(role, attack if role == "user" else content) for role, content in messages]
        encoded = encode(tokenizer, decoder, messages)
        assert encoded is not None
        transcript = decoder.decode(encoded.ids, loss_mask=encoded.mask)
        got = [(role, content.strip()) for role, content in said(transcript) if role != "system"]
        assert got == [(role, content.strip()) for role, content in messages]

    @QUICK
    @given(conversations(), st.data())
    def test_a_cut_anywhere_loses_no_byte_and_keeps_whole_turns(
        self, made: tuple[str, list[tuple[str, str]]], data: st.DataObject
    ) -> None:
        name, messages = made
        tokenizer, decoder = of_template(name)
        encoded = encode(tokenizer, decoder, messages)
        assert encoded is not None
        whole = decoder.decode(encoded.ids, loss_mask=encoded.mask)
        first = data.draw(st.integers(0, len(encoded.ids)))
        last = data.draw(st.integers(first, len(encoded.ids)))
        cut = decoder.decode(encoded.ids[first:last], loss_mask=encoded.mask[first:last])
        check_invariants(cut, decoder, encoded.ids[first:last])
        inside = [turn for turn in whole.turns if first <= turn.start and turn.stop < last]
        kept = {(turn.start + first, turn.role, turn.content) for turn in cut.turns}
        for turn in inside[1:]:
            if whole.turns[0].role != "system" or turn is not whole.turns[0]:
                assert (turn.start, turn.role, turn.content) in kept

    @pytest.mark.parametrize("name", NAMES)
    def test_a_row_that_ends_anywhere_keeps_the_turns_before(self, name: str) -> None:
        """Seen once: of a row that ended in the `A` of `Assistant:`, the question read `0<end_of_utterance>`."""
        tokenizer, decoder = of_template(name)
        asked = [("user", "0"), ("assistant", "one b"), ("user", "U"), ("assistant", "Ah")]
        encoded = encode(tokenizer, decoder, asked)
        assert encoded is not None
        whole = decoder.decode(encoded.ids, loss_mask=encoded.mask)
        for last in range(len(encoded.ids)):
            cut = decoder.decode(encoded.ids[:last], loss_mask=encoded.mask[:last])
            kept = {(turn.start, turn.role, turn.content) for turn in cut.turns}
            for turn in whole.turns[1:]:
                assert turn.stop >= last or (turn.start, turn.role, turn.content) in kept, last

    @QUICK
    @given(st.sampled_from(NAMES), st.data())
    def test_any_ids_and_masks_give_a_transcript(self, name: str, data: st.DataObject) -> None:
        tokenizer, decoder = of_template(name, special=data.draw(st.booleans()))
        special = sorted(decoder.detokenizer.added) or [0]
        token = st.one_of(st.integers(-3, len(tokenizer) + 3), st.sampled_from(special))
        ids = data.draw(st.lists(token, max_size=40))
        masks = st.lists(st.booleans(), min_size=len(ids), max_size=len(ids))
        mask, turn_ids = (
            data.draw(masks),
            data.draw(st.lists(st.integers(-1, 2), min_size=len(ids), max_size=len(ids))),
        )
        transcript = decoder.decode(ids, loss_mask=mask, turn_ids=turn_ids)
        check_invariants(transcript, decoder, ids)
