"""JSON inside a longer text."""

import json

from hypothesis import given, settings
from hypothesis import strategies as st

from rollout_traces.decode.grammars.grammar import Scan
from rollout_traces.decode.grammars.json_value import JsonError, JsonValue, loads, plain_data, read_json

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
