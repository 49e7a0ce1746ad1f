"""Token ids to bytes: equal to the tokenizer's own decoding, with exact edges."""

from __future__ import annotations

import json
import random
import time
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from rollout_traces.decode import detokenizer, vocabulary
from rollout_traces.decode.detokenizer import Detokenizer, char_ends, char_positions
from rollout_traces.decode.vocabulary import read_vocabulary, verify
from rollout_traces.errors import ConfigError
from tests.decode.toy import (
    chatml_tokenizer,
    sentencepiece_style_tokenizer,
    toy_tokenizer,
    wordpiece_tokenizer,
)
from tests.generator import tiny_tokenizer

TEXT = "Hello wörld, 你好 😀\n\n  two  spaces\ttab <|im_start|>user\nthe end"


def pieces_of(detokenizer: Detokenizer, ids: list[int]) -> list[bytes]:
    result = detokenizer.detokenize(np.asarray(ids, np.int64))
    edges = result.starts.tolist()
    return [result.data[a:b] for a, b in pairwise(edges)]


class TestByteLevelTokenizers:
    def test_bytes_equal_the_text_that_was_encoded(self) -> None:
        tokenizer = chatml_tokenizer()
        ids = tokenizer.encode(TEXT)
        assert b"".join(pieces_of(Detokenizer(tokenizer), ids)).decode() == TEXT

    def test_random_ids_decode_as_the_tokenizer_decodes_them(self) -> None:
        tokenizer = chatml_tokenizer()
        detokenizer = Detokenizer(tokenizer)
        rng = np.random.default_rng(1)
        for _ in range(200):
            ids = rng.integers(0, len(tokenizer), 30)
            ours = detokenizer.detokenize(ids).data.decode("utf-8", "replace")
            assert ours == tokenizer.decode(ids.tolist(), skip_special_tokens=False)

    def test_a_split_character_has_its_bytes_on_either_token(self) -> None:
        tokenizer = chatml_tokenizer()
        ids = tokenizer.encode("😀")
        assert len(ids) > 1, "the toy tokenizer must split an emoji for this test to mean anything"
        assert b"".join(pieces_of(Detokenizer(tokenizer), ids)) == "😀".encode()

    def test_special_tokens_are_known_as_such(self) -> None:
        tokenizer = chatml_tokenizer()
        detokenizer = Detokenizer(tokenizer)
        ids = np.asarray(tokenizer.encode("<|im_start|>user\n"))
        assert detokenizer.special[ids].tolist() == [True] + [False] * (len(ids) - 1)
        assert detokenizer.kind == "byte-level"


def with_literal_names() -> object:
    """A byte-level vocabulary that holds some names as they are meant, as Command-R's does."""
    base = json.loads(toy_tokenizer().backend_tokenizer.to_str())
    vocab = base["model"]["vocab"]
    for name in ("™", "\u200d", "ﬁ"):
        vocab[name] = len(vocab)
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer.from_str(json.dumps(base)))


class TestAVocabularyWithLiteralNames:
    def test_it_keeps_its_table_of_bytes(self) -> None:
        tokenizer = with_literal_names()
        detokenizer = Detokenizer(tokenizer)
        assert detokenizer.kind == "byte-level"
        ids = [*tokenizer.encode("😀 wörld "), *tokenizer.convert_tokens_to_ids(["™", "\u200d"])]
        assert b"".join(pieces_of(detokenizer, ids)).decode() == "😀 wörld ™\u200d"

    def test_a_table_of_tokens_decoded_alone_is_refused_where_they_are_parts_of_characters(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """In a vocabulary of 255,000 the sequences that are compared hold no whole emoji; here there are none."""
        monkeypatch.setattr(vocabulary, "_N_SEQUENCES", 0)
        tokenizer = with_literal_names()
        backend = tokenizer.backend_tokenizer

        class Unlike:
            """The same tokenizer, of names that say nothing of their bytes."""

            def get_vocab(self) -> dict[str, int]:
                return {f"—{i}—": i for i in tokenizer.get_vocab().values()}

            def decode(self, ids: list[int]) -> str:
                return backend.decode(ids, skip_special_tokens=False)

        detokenizer = Detokenizer(Unlike())
        assert b"".join(pieces_of(detokenizer, tokenizer.encode("a 😀 b"))).decode() == "a 😀 b"


class TestIdsWithoutAToken:
    @pytest.mark.parametrize("bad", [-1, -5, 999_999, 2**40])
    def test_it_is_shown_by_its_number(self, bad: int) -> None:
        assert pieces_of(Detokenizer(chatml_tokenizer()), [70, bad, 71])[1] == f"<unknown {bad}>".encode()

    def test_an_empty_row_has_no_bytes(self) -> None:
        result = Detokenizer(chatml_tokenizer()).detokenize(np.zeros(0, np.int64))
        assert (result.data, result.starts.tolist()) == (b"", [0])


class TestSentencePieceStyle:
    def test_spaces_and_byte_fallback_come_back(self) -> None:
        tokenizer = sentencepiece_style_tokenizer()
        detokenizer = Detokenizer(tokenizer)
        ids = tokenizer.encode("the 😀 end", add_special_tokens=False)
        assert detokenizer.kind == "sentencepiece"
        assert b"".join(pieces_of(detokenizer, ids)).decode() == " the 😀 end"
        assert tokenizer.decode(ids) == "the 😀 end", "the tokenizer itself strips the space it put in front"

    def test_bytes_of_an_emoji_stay_one_a_token(self) -> None:
        tokenizer = sentencepiece_style_tokenizer()
        ids = tokenizer.encode("😀", add_special_tokens=False)
        assert pieces_of(Detokenizer(tokenizer), ids)[1:] == [bytes([b]) for b in "😀".encode()]


class TestTokenizersThatNoTableReproduces:
    def test_the_tokenizer_itself_is_asked(self) -> None:
        tokenizer = wordpiece_tokenizer()
        detokenizer = Detokenizer(tokenizer)
        ids = tokenizer.encode("hello worlds, friendly friends don't", add_special_tokens=False)
        assert detokenizer.kind == "tokenizer"
        joined = b"".join(pieces_of(detokenizer, ids)).decode()
        assert joined == tokenizer.decode(ids, clean_up_tokenization_spaces=False)

    def test_long_rows_agree_beyond_the_window(self) -> None:
        tokenizer = wordpiece_tokenizer()
        ids = tokenizer.encode("hello friendly worlds " * 40, add_special_tokens=False)
        joined = b"".join(pieces_of(Detokenizer(tokenizer), ids)).decode()
        assert joined == tokenizer.decode(ids, clean_up_tokenization_spaces=False)


class TestVerification:
    def test_a_table_with_wrong_bytes_is_refused(self) -> None:
        tokenizer = toy_tokenizer()
        backend = tokenizer.backend_tokenizer
        vocabulary = read_vocabulary(tokenizer)
        shifted = [vocabulary.pieces[-1], *vocabulary.pieces[:-1]]

        def decode_many(sequences: list[list[int]]) -> list[str]:
            return backend.decode_batch(sequences, skip_special_tokens=False)

        assert verify(list(vocabulary.pieces), {}, decode_many)
        assert not verify(shifted, {}, decode_many)
        assert not verify([], {}, decode_many) and not verify([None] * 3, {}, decode_many)

    def test_a_table_of_bytes_has_few_names_that_are_written_as_they_are_meant(self) -> None:
        few, many = ["a"] * 19 + ["日"], ["a"] * 18 + ["日"]
        assert vocabulary._read_byte_level(few, {}) == [b"a"] * 19 + ["日".encode()]
        assert vocabulary._read_byte_level(many, {}) is None
        assert vocabulary._read_byte_level(many, {18: "日"}) == [b"a"] * 18 + ["日".encode()]
        assert vocabulary._read_byte_level([None, "Ġa"], {}) == [None, b" a"]


class TestWhatIsNoTokenizer:
    @pytest.mark.parametrize("given", ["Qwen/Qwen3-8B", 7, object()])
    def test_is_refused_by_what_was_seen(self, given):
        with pytest.raises(ConfigError, match="AutoTokenizer") as refused:
            Detokenizer(given)
        assert (repr(given) if isinstance(given, str) else type(given).__name__) in str(refused.value)

    def test_a_processor_is_told_to_hand_over_its_tokenizer(self):
        with pytest.raises(ConfigError, match=r"a SimpleNamespace.*its \.tokenizer"):
            Detokenizer(SimpleNamespace(tokenizer=tiny_tokenizer(), decode=str))


def chars(pieces: list[bytes], edges: list[int] | None = None) -> tuple[list[str], list[int]]:
    data = b"".join(pieces)
    starts = np.cumsum([0, *map(len, pieces)])
    texts, ends = char_ends(data, starts, edges or [0, len(data)])
    return texts, ends.tolist()


class TestCharacterRanges:
    def test_ascii_characters_are_bytes(self) -> None:
        assert chars([b"ab", b"c"]) == (["abc"], [0, 2, 3])

    def test_a_split_character_belongs_to_its_last_token(self) -> None:
        emoji = "😀".encode()
        assert chars([b"a", emoji[:2], emoji[2:], b"b"]) == (["a😀b"], [0, 1, 1, 2, 3])

    def test_undecodable_bytes_count_as_one_replacement_each_run(self) -> None:
        assert chars([b"a", b"\xff", b"b"]) == (["a\ufffdb"], [0, 1, 2, 3])

    def test_a_character_cut_by_an_edge_is_replaced_on_either_side(self) -> None:
        emoji = "é".encode()
        texts, ends = chars([b"a" + emoji[:1], emoji[1:] + b"b"], [0, 2, 4])
        assert texts == ["a\ufffd", "\ufffdb"]
        assert ends == [0, 2, 4]

    @given(st.lists(st.binary(max_size=5), max_size=12), st.data())
    def test_text_equals_replace_decoding_piece_by_piece(
        self, pieces: list[bytes], data: st.DataObject
    ) -> None:
        whole = b"".join(pieces)
        cuts = data.draw(st.lists(st.integers(0, len(pieces)), max_size=3))
        starts = np.cumsum([0, *map(len, pieces)])
        edges = sorted([0, len(whole), *(int(starts[cut]) for cut in cuts)])
        texts, ends = char_ends(whole, starts, edges)
        assert texts == [whole[a:b].decode("utf-8", "replace") for a, b in pairwise(edges)]
        assert ends[0] == 0
        assert ends[-1] == sum(map(len, texts))
        assert (np.diff(ends) >= 0).all()


class TestPositions:
    @given(st.binary(max_size=24))
    def test_every_character_begins_where_the_one_before_ends(self, data: bytes) -> None:
        text = data.decode("utf-8", "replace")
        positions = char_positions(data).tolist()
        assert len(positions) == len(text) + 1
        assert (positions[0], positions[-1]) == (0, len(data))
        pieces = [data[a:b].decode("utf-8", "replace") for a, b in pairwise(positions)]
        assert "".join(pieces) == text


class TestWindows:
    """After the first byte that cannot be decoded, the rest is decoded window by window."""

    @pytest.mark.parametrize("window", [4, 5, 16])
    def test_a_window_may_end_anywhere(self, monkeypatch, window: int) -> None:
        monkeypatch.setattr(detokenizer, "_DECODED_AT_ONCE", window)
        draw = random.Random(window)
        pool = [b"a", "é".encode(), "你".encode(), "😀".encode(), b"\xff", b"\xe4", b"\xf0\x9f", b"\x80"]
        for _ in range(500):
            data = b"".join(draw.choice(pool) for _ in range(draw.randint(0, 40)))
            texts, _ = char_ends(data, np.asarray([0, len(data)]), [0, len(data)])
            assert texts == [data.decode("utf-8", "replace")]
            assert len(char_positions(data)) == len(texts[0]) + 1

    def test_broken_bytes_cost_in_proportion_to_their_number(self) -> None:
        def processor_time(n: int) -> float:
            start = time.process_time()
            char_positions(b"\xff\xe4" * n)
            return time.process_time() - start

        few = min(processor_time(25_000) for _ in range(3))
        assert processor_time(200_000) < 24 * few
