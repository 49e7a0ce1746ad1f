"""The text that grammars read from left to right, and the regions that they make of it."""

from __future__ import annotations

import re

import pytest

from rollout_traces.decode.grammars.grammar import (
    Grammar,
    ParsedCall,
    Region,
    Scan,
    TextSpan,
    call_region,
    calls_region,
)


class Family(Grammar):
    opener = "<call>"
    needs = ("<call>", "</call>")
    excludes = ("<other>",)

    def read(self, scan, at):
        return None


class TestAFamily:
    @pytest.mark.parametrize(
        ("template", "shown"),
        [("a <call> b </call>", True), ("<call>", False), ("<call></call><other>", False), ("", False)],
    )
    def test_is_shown_by_all_texts_that_it_needs_and_none_that_it_excludes(self, template, shown):
        assert Family().in_template(template) is shown


class TestFinding:
    @pytest.mark.parametrize(
        "search", [lambda scan, at: scan.find("x", at), lambda scan, at: scan.search(re.compile("x"), at)]
    )
    def test_is_what_python_finds_wherever_one_asks_next(self, search):
        text = "..x..x....x.."
        scan = Scan(text)
        for at in (0, 1, 2, 3, 2, 0, 6, 5, 11, 10, 12, 0, 13):
            assert search(scan, at) == text.find("x", at), at
        assert [search(Scan("none"), at) for at in (0, 2)] == [-1, -1]

    def test_of_what_is_not_there_is_asked_once(self):
        class Counted(str):
            asked = 0

            def find(self, *arguments):
                Counted.asked += 1
                return super().find(*arguments)

        scan = Scan("")
        scan.text = Counted("a" * 50)
        assert {scan.find("x", at) for at in range(50)} == {-1} and Counted.asked == 1


class TestPlaces:
    def test_white_space_is_passed_over(self):
        scan = Scan(" \t\r\n a  ")
        assert (scan.skip_space(0), scan.skip_space(5), scan.skip_space(6)) == (5, 5, 8)
        assert (scan.next_char(0), scan.next_char(6)) == ("a", "")

    def test_text_begins_behind_what_was_read_and_its_white_space(self):
        scan = Scan("ab \n cd", fresh=2)
        assert [at for at in range(7) if scan.begins_text(at)] == [2, 3, 4, 5]

    def test_a_line_begins_behind_a_break_or_what_was_read_and_its_blanks(self):
        scan = Scan("a b\n \tc d", fresh=1)
        assert [at for at in range(9) if scan.begins_line(at)] == [1, 2, 4, 5, 6]

    def test_what_is_read_in_vain_is_bounded_by_the_texts_length(self):
        scan = Scan("a" * 100)
        scan.charge(16 * 100 + 4096)
        assert not scan.exhausted
        scan.charge(1)
        assert scan.exhausted


class TestRegions:
    text = "<[f(1), g(2)]>"

    def call(self, start: int, stop: int, name: str = "f") -> ParsedCall:
        return ParsedCall(name, {"a": 1}, self.text[start:stop], None, start, stop)

    def test_one_call_is_a_region_from_end_to_end(self):
        found = call_region(Scan(self.text), 2, 6, ("f", {"a": 1}, "c1"))
        assert found.spans == (TextSpan("call", 2, 6),) and found.stop == 6
        assert found.calls == (ParsedCall("f", {"a": 1}, "f(1)", "c1", 2, 6),)

    def test_a_call_that_is_alone_takes_the_markers_around_it(self):
        found = calls_region(Scan(self.text), 0, 14, [self.call(2, 6)], ("odd",))
        assert found.spans == (TextSpan("call", 0, 14),) and found.warnings == ("odd",)
        assert found.calls[0].raw == self.text

    def test_several_keep_their_own_text_between_markers(self):
        calls = [self.call(2, 6), self.call(8, 12, "g")]
        found = calls_region(Scan(self.text), 0, 14, calls)
        assert found.spans == (
            TextSpan("marker", 0, 2),
            TextSpan("call", 2, 6),
            TextSpan("marker", 6, 8),
            TextSpan("call", 8, 12),
            TextSpan("marker", 12, 14),
        )
        assert found.calls == tuple(calls) and found.stop == 14

    def test_calls_that_touch_have_no_marker_between(self):
        found = calls_region(Scan(self.text), 2, 12, [self.call(2, 7), self.call(7, 12)])
        assert [span.kind for span in found.spans] == ["call", "call"]

    def test_no_call_leaves_the_markers(self):
        assert calls_region(Scan(self.text), 0, 3, []) == Region((TextSpan("marker", 0, 3),))

    def test_a_call_is_parsed_where_its_name_and_its_arguments_are_known(self):
        assert ParsedCall("f", {}, "", None, 0, 0).parsed
        assert (
            not ParsedCall("", {}, "", None, 0, 0).parsed and not ParsedCall("f", None, "", None, 0, 0).parsed
        )
