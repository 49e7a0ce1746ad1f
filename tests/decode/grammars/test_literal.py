"""Notations near to JSON."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollout_traces.decode.grammars.literal import (
    PYTHON,
    Literal,
    LiteralError,
    Notation,
    read_literal,
    typed,
)

GEMMA = Notation(raw_quotes=('<|"|>',), quotes='"')
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(-1e300, 1e300) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


class TestPython:
    @settings(max_examples=400, deadline=None)
    @given(VALUES)
    def test_what_repr_writes_comes_back(self, value):
        text = repr(value)
        assert read_literal(text, 0, PYTHON) == Literal(value, len(text))

    @pytest.mark.parametrize(
        ("text", "value"),
        [
            ("(1, 2)", [1, 2]),
            ("[1, 2,]", [1, 2]),
            ("1_000", 1000),
            ("+.5", 0.5),
            ("{a: 1, 'b': null, 3: 4}", {"a": 1, "b": None, "3": 4}),
            (
                r"'\x41\u00e5\q\
b'",
                "Aå\\qb",
            ),
            ("9" * 30, "9" * 30),
            ("1e999", "1e999"),
            ("nan", "nan"),
        ],
    )
    def test_other_spellings(self, text, value):
        assert read_literal(text, 0, PYTHON) == Literal(value, len(text))

    @pytest.mark.parametrize("text", ["", "x", "[1", "{'a' 1}", "'abc", "__import__('os')", "[" * 10_000])
    def test_what_is_no_value_is_an_error(self, text):
        assert isinstance(read_literal(text, 0, PYTHON), LiteralError)


class TestMarkersAroundStrings:
    def test_nothing_is_escaped_between_them(self):
        text = r'{a:<|"|>x\n"{,}<|"|>,b c:[-1.5,<|"|><|"|>]}'
        assert read_literal(text, 0, GEMMA).value == {"a": r'x\n"{,}', "b c": [-1.5, ""]}

    @given(st.text())
    def test_no_text_raises(self, text):
        for notation in (GEMMA, PYTHON):
            read = read_literal(text, 0, notation)
            assert isinstance(read, (Literal, LiteralError))
            if isinstance(read, Literal) and isinstance(read.value, float):
                assert math.isfinite(read.value)


class TestWithASchema:
    @pytest.mark.parametrize(
        ("text", "schema", "value"),
        [
            ("75001", {"type": "string"}, "75001"),
            ("75001", {"type": "integer"}, 75001),
            ("1.0", {"type": "number"}, 1.0),
            ("True", {"type": "boolean"}, True),
            ("true", {"type": "boolean"}, True),
            ("1", {"type": "boolean"}, "1"),
            ("true", {"type": "integer"}, "true"),
            ("null", {"type": ["string", "null"]}, None),
            ("7", {"type": ["string", "null"]}, "7"),
            ("7", {"type": ["string", "integer"]}, "7"),
            ("7", {"anyOf": [{"type": "integer"}, {"type": "null"}]}, 7),
            ("None", {"type": "integer", "nullable": True}, None),
            ('{"a": 1}', {"type": "object"}, {"a": 1}),
            ("['a', True]", {"type": "array"}, ["a", True]),
            ("not a list", {"type": "array"}, "not a list"),
            ('"quoted"', {"type": "string"}, '"quoted"'),
        ],
    )
    def test_the_text_takes_a_type_that_the_schema_allows(self, text, schema, value):
        assert typed(text, schema) == value
        assert type(typed(text, schema)) is type(value)


class TestWithoutOne:
    @pytest.mark.parametrize(
        ("text", "value"),
        [
            ("7", 7),
            ("-1.5e3", -1500.0),
            ("007", "007"),
            ("false", False),
            ("None", None),
            ('{"a": [1]}', {"a": [1]}),
            ("{'a': (1, None)}", {"a": [1, None]}),
            ('"quoted"', '"quoted"'),
            ("NaN", "NaN"),
            ("{not json", "{not json"),
            ("", ""),
            ("  ", "  "),
            ("Oslo", "Oslo"),
        ],
    )
    def test_only_what_reads_as_a_value_is_one(self, text, value):
        assert typed(text, None) == value
        assert type(typed(text, None)) is type(value)
