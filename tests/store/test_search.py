from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from rollout_traces.store import Store, open_store
from rollout_traces.store.asking import Which
from rollout_traces.store.reading import SIGNS
from rollout_traces.store.search import snippet
from tests.store.projects import PROJECT, make_ledger, write_step


class TestWhatIsFound:
    @pytest.mark.parametrize(
        ("text", "n"),
        [
            ("cannot", 6),
            ("CANNOT", 6),
            ("cannot sorry", 3),
            ('"I cannot"', 6),
            ('"cannot I"', 0),
            ('"cannot help with"', 3),
            ("canno", 0),
            ("boxed", 3),
            ("boxed{4", 3),
            ("boxed{42}", 3),
            ("\\boxed{42},", 3),
            ("boxed{5", 0),
            ("boxed}4", 0),
            ("答案", 3),
            ("四十二", 3),
            ("二十四", 0),
            ("help 答案", 0),
            ("", 10),
            ("   ", 10),
            ('"unclosed cannot', 0),
            ('"I cannot', 6),
        ],
    )
    def test_words_phrases_cjk_and_code(self, store: Store, text: str, n: int) -> None:
        assert store.count(text=text) == n

    def test_search_and_filter_together(self, store: Store) -> None:
        assert store.count(text="cannot", where="reward > 0.5 and step >= 1") == 2
        assert store.count(where="text 'cannot' and not text 'help'") == 3
        assert store.count(where="text 'sorry' or text '完成'") == 6

    def test_signs_alone_are_looked_for_in_the_texts(self, store: Store) -> None:
        assert store.count(where="text '?'") == 6
        assert store.count(where="text '?' and step = 1") == 2
        assert store.count(text="…") == 0

    def test_a_piece_inside_a_word_is_found_by_contains(self, store: Store) -> None:
        assert store.count(where="text contains 'oxed{42'") == 3
        assert store.count(where="text contains 'AM SORR'") == 3
        assert store.count(where="not text contains 'oxed{42'") == 7

    def test_metadata_is_not_the_conversation(self, store: Store) -> None:
        assert store.count(text="truncated") == 0
        assert store.count(where="text contains 'truncated'") == 0


class TestSnippets:
    def test_a_hit_shows_its_surroundings(self, store: Store) -> None:
        page = store.search("boxed{4", limit=2)
        assert page.total == 3 and len(page.rows) == 2
        assert "It is \\boxed{42}, I cannot be wrong." in page.rows[0]["snippet"]

    @pytest.mark.parametrize(
        "where",
        [
            "text 'boxed{42}'",
            "text contains 'oxed{4'",
            "text ~ 'b.xed.[0-9]+'",
            "reply contains 'boxed'",
            "reply ~ 'b[a-z]+ed'",
            "step < 0 or text 'boxed{42}'",
        ],
    )
    @pytest.mark.parametrize("rows", ["traces", "all"])
    def test_what_a_filter_looks_for_shows_them_too(self, store: Store, where: str, rows: Which) -> None:
        page = store.search(where=where, rows=rows)
        assert page.total == 3
        assert all("is \\boxed{42}, I cannot" in str(row["snippet"]) for row in page.rows)

    @pytest.mark.parametrize("where", ["", "reward > 0", "not text 'boxed{42}'", "reply !~ 'x'"])
    def test_without_a_search_there_are_none(self, store: Store, where: str) -> None:
        assert not any(row["snippet"] for row in store.search(where=where).rows)

    def test_long_texts_are_cut_on_both_sides(self) -> None:
        cut = snippet("x" * 500 + " needle here " + "y" * 500, ["needle  HERE"])
        assert cut.startswith("… x") and cut.endswith("y …") and "needle here" in cut and len(cut) < 200

    def test_what_is_not_found_shows_the_beginning(self) -> None:
        assert snippet("some\ntext", ["nope"]) == "some text"


HOSTILE = [
    '"',
    '""',
    "*",
    "a*",
    "NEAR(a b)",
    "text:cannot",
    "cannot OR help",
    "cannot) OR 1=1 --",
    "'; DROP TABLE traces; --",
    "^cannot",
    "{a b}: c",
    "a - b",
    "\x00",
    "a\x00b",
    "\ud800",
    "%",
    "_",
    "\\",
    "🎉",
    "(" * 500,
]


class TestTextAndColumnsTogether:
    @pytest.mark.parametrize(
        ("where", "text", "left"),
        [
            ("reward = 1 and text contains 'oxed{4'", "", "reward = 1"),
            ("text contains 'oxed{4' and reward = 1", "", "reward = 1"),
            ("text contains 'oxed{4' and step = 1 and text 'cannot'", "", "step = 1 and text 'cannot'"),
            ("text ~ 'b.xed'", "cannot", "text 'cannot'"),
            ("step = 1 and (text contains 'oxed{4' or reward > 9)", "", "step = 1"),
            ("text contains 'oxed{4' and step = 99", "", "step = 99"),
            ("reply contains 'boxed' and reward = 1", "", "reward = 1"),
            ("not prompt ~ 'times' and step = 1", "", "step = 1"),
            ("(reply contains 'boxed' or reward > 9) and text 'cannot'", "", "text 'cannot'"),
        ],
    )
    def test_only_texts_that_everything_else_leaves_are_read(
        self, store: Store, monkeypatch: pytest.MonkeyPatch, where: str, text: str, left: str
    ) -> None:
        read: list[int] = []
        messages = store.source.messages

        def counted(rowids: Sequence[int], having: str) -> Iterator[tuple[int, str | bytes]]:
            read.extend(rowids)
            return messages(rowids, having)

        monkeypatch.setattr(store.source, "messages", counted)
        expected = {row.id for row in store.query(where=left).rows}
        found = {row.id for row in store.query(where=where, text=text, rows="all").rows}
        assert found - {None} <= expected and len(read) == len(expected) < store.count() == 10


class TestHostileSearches:
    @pytest.mark.parametrize("text", HOSTILE)
    def test_nothing_typed_breaks_the_search(self, store: Store, text: str) -> None:
        assert 0 <= store.count(text=text) <= 10
        assert store.count() == 10

    @settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
    @given(st.text(max_size=30))
    def test_any_text_is_a_search(self, store: Store, text: str) -> None:
        assert 0 <= store.search(text, limit=1).total <= 10


class TestAnyPieceBetweenWordEdgesIsFound:
    @pytest.fixture(scope="class")
    def folder(self, tmp_path_factory: pytest.TempPathFactory):
        import trackio.utils
        from trackio import sqlite_storage

        folder = tmp_path_factory.mktemp("any")
        with pytest.MonkeyPatch.context() as patch:
            for module in (trackio.utils, sqlite_storage):
                patch.setattr(module, "TRACKIO_DIR", folder)
            text = "f(x_1) = \\frac{a^2+b}{3.14} 因此答案是 boxed{42}, isn't it? Ça va."
            write_step(make_ledger([[1.0]], step=0), (0,), {0: (("user", "hi"), ("assistant", text))})
            write_step(make_ledger([[1.0]], step=1), (0,), {0: (("user", "hi"), ("assistant", "other"))})
        return open_store(PROJECT, folder=folder), text

    @settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
    @given(data=st.data())
    def test_found(self, folder, data: st.DataObject) -> None:
        store, text = folder
        start = data.draw(
            st.sampled_from([i for i in range(len(text)) if i == 0 or not text[i - 1].isalnum()])
        )
        stop = data.draw(st.integers(start + 1, len(text)))
        piece = text[start:stop].strip()
        cuts_a_word = (
            stop < len(text) and text[stop - 1 : stop + 1].isalnum() and text[stop] not in "因此答案是"
        )
        assume(piece and (not cuts_a_word or any(sign in piece for sign in SIGNS)))
        assert [row.step for row in store.query(text=f'"{piece}"').rows] == [0]
