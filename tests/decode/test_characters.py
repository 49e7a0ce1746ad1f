"""Bytes to text: character ranges for every token, whatever the bytes."""

from __future__ import annotations

import random
import time
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollout_traces.decode import characters
from rollout_traces.decode.characters import char_ends, char_positions


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
        monkeypatch.setattr(characters, "_WINDOW", window)
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
