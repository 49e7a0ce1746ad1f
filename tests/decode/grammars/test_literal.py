"""Notations near to JSON."""

import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollout_traces.decode.grammars.grammar import Scan
from rollout_traces.decode.grammars.literal import (
    PYTHON,
    JsonError,
    JsonValue,
    Literal,
    LiteralError,
    Notation,
    loads,
    plain_data,
    read_json,
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


PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


class TestReading:
    @settings(max_examples=300, deadline=None)
    @given(value=st.dictionaries(st.text(), PLAIN, max_size=3), tail=st.text(), indent=st.none() | st.just(2))
    def test_what_python_encodes_comes_back_and_the_text_after_it_is_left(self, value, tail, indent):
        text = json.dumps(value, indent=indent)
        read = read_json(Scan(f"ab{text}</tool_call>{tail}"), 2, "</tool_call>")
        assert read == JsonValue(value, 2 + len(text))

    def test_the_boundary_is_looked_beyond_only_from_inside_a_string(self):
        text = '{"x": "</t>"}</t>'
        assert read_json(Scan(text), 0, "</t>") == JsonValue({"x": "</t>"}, len(text) - 4)
        read = read_json(Scan('{"x": 1</t>, "y": 2}'), 0, "</t>")
        assert isinstance(read, JsonError) and not read.cut

    def test_a_value_that_the_text_cuts_says_so(self):
        for text in ('{"x": "ab', '{"x": 1', '{"x":', '{"x": [1, ', "{"):
            read = read_json(Scan(text), 0)
            assert isinstance(read, JsonError) and read.cut

    def test_strictness(self):
        for text in ('{"x": 1,}', "{'x': 1}", '{"x": True}', '{"x": "a\nb"}', "{x: 1}", "", "abc"):
            assert isinstance(loads(text), JsonError)
        assert loads('{"x": "a\nb"}').why == "Invalid control character at character 8 of its JSON"

    def test_text_after_the_value(self):
        assert loads(' {"x": 1} \n').value == {"x": 1}
        assert loads('{"x": 1} y').reason.startswith("text after the JSON")


class TestBudget:
    def test_so_much_may_be_read_in_vain_and_no_more(self):
        scan = Scan('["' * 1_000)
        attempts = 0
        while not scan.exhausted:
            read_json(scan, 0)
            attempts += 1
        assert read_json(scan, 0).reason.startswith("given up")
        assert attempts > 5


class TestPlainData:
    def test_pairs_of_surrogates_and_lone_ones(self):
        assert plain_data({"a\ud800": ["\ud83c", "\ud83c\udf26"]}) == {"a\ufffd": ["\ufffd", "🌦"]}

    def test_what_nests_too_deeply_is_refused(self):
        value: list = []
        for _ in range(100_000):
            value = [value]
        assert plain_data(value) is None
