"""Anything becomes plain values that a store accepts."""

from __future__ import annotations

from collections import UserDict

import numpy as np
import orjson
import torch
from hypothesis import given
from hypothesis import strategies as st

from rollout_traces.model.plain_values import MAX_DEPTH, MAX_TEXT, cut, plain


class Hostile:
    def __str__(self) -> str:
        raise RuntimeError("no")


class TestPlain:
    def test_nan_becomes_none_and_an_infinity_its_name(self):
        odd = [float("nan"), float("inf"), np.float32("-inf"), 1.5]
        assert plain(odd) == [None, "Infinity", "-Infinity", 1.5]

    def test_integers_beyond_64_bits_become_text(self):
        assert plain([2**63 - 1, 2**63, -(2**63) - 1]) == [2**63 - 1, str(2**63), str(-(2**63) - 1)]

    def test_lone_surrogates_become_the_replacement_character(self):
        assert plain({"a\ud800": "b\udfffc"}) == {"a\ufffd": "b\ufffdc"}

    def test_tensors_and_arrays_become_lists(self):
        assert plain({"t": torch.tensor([1, 2]), "a": np.asarray([True, False])}) == {
            "t": [1, 2],
            "a": [True, False],
        }

    def test_an_object_whose_text_fails_is_described(self):
        assert plain(Hostile()) == "[Hostile whose text failed: RuntimeError]"

    def test_a_structure_that_contains_itself_ends(self):
        loop: list = []
        loop.append(loop)
        orjson.dumps(plain(loop))

    @given(
        st.recursive(
            st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.binary()),
            lambda inner: st.one_of(
                st.lists(inner), st.dictionaries(st.text(), inner), st.tuples(inner, inner)
            ),
            max_leaves=20,
        )
    )
    def test_any_value_can_be_encoded(self, value):
        orjson.dumps(plain(value))


class TestCut:
    def test_a_long_text_says_how_much_was_left_out(self):
        text = cut("x" * (MAX_TEXT + 7))
        assert text.endswith(f"[cut: 7 of {MAX_TEXT + 7} characters left out]")

    def test_a_short_text_is_itself(self):
        assert cut("abc") == "abc"


def test_mappings_of_any_kind_are_kept_down_to_the_depth_at_which_what_is_left_becomes_text():
    nested: object = "leaf"
    for _ in range(MAX_DEPTH):
        nested = UserDict(inner=nested)
    for deeper, at_the_end in ((nested, "leaf"), (UserDict(inner=nested), "{'inner': 'leaf'}")):
        found, depth = plain(deeper), 0
        while isinstance(found, dict):
            found, depth = found["inner"], depth + 1
        assert (depth, found) == (MAX_DEPTH, at_the_end)
