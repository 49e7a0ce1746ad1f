"""Labels and notes: the file, who writes to it, and the table."""

from __future__ import annotations

import json
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from rollout_traces.errors import QueryError, StoreError
from rollout_traces.export import ExportQuery, export
from rollout_traces.store import Store, open_store
from rollout_traces.store.labels import LabelBook
from rollout_traces.store.questions import Measure
from tests.store.projects import PROJECT

WRITER = """
import sys
from pathlib import Path
from rollout_traces.store.labels import LabelBook
book = LabelBook(Path(sys.argv[1]))
for n in range(int(sys.argv[3])):
    book.add("note", f"rollout-{n % 7}", f"{sys.argv[2]} {n} " + "x" * (n * 37 % 3000), sys.argv[2])
"""


@pytest.fixture
def book(tmp_path: Path) -> LabelBook:
    return LabelBook(tmp_path / "labels" / "project.jsonl")


@pytest.fixture
def labelled(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """The shared project, its labels in a file of this test's own."""
    path = tmp_path / "labels" / "reading.jsonl"
    monkeypatch.setattr(type(store.source), "labels_path", lambda source: path)
    opened = open_store(PROJECT, folder=store.source.path.parent, index_path=tmp_path / "index")
    opened.label("b0-0", "good", "ann")
    opened.label("b1-0", "good", "ben", turn=1)
    opened.label("b1-0", "odd", "ann", tokens=(1, 3))
    opened.label("b2-4", "look at this\nlater", "ann", kind="note")
    return opened


class TestTheFile:
    def test_is_this_users_alone(self, book):
        book.add("label", "r", "good", "ann")
        assert stat.S_IMODE(book.log.path.stat().st_mode) == 0o600
        assert stat.S_IMODE(book.log.path.parent.stat().st_mode) == 0o700

    def test_a_line_says_who_when_and_where(self, book):
        book.add("label", "r", "good", "ann", turn=2)
        book.add("note", "r", "why?", "ben", tokens=(3, 9))
        first, second = map(json.loads, book.log.path.read_text().splitlines())
        assert (first["rollout"], first["author"], first["text"], first["turn"]) == ("r", "ann", "good", 2)
        assert first["time"].endswith("+00:00")
        assert (second["kind"], second["start"], second["stop"]) == ("note", 3, 9)

    def test_two_processes_at_once_lose_nothing(self, book):
        n = 150
        writers = [
            subprocess.Popen([sys.executable, "-c", WRITER, str(book.log.path), name, str(n)])
            for name in ("ann", "ben")
        ]
        assert [writer.wait(120) for writer in writers] == [0, 0]
        found = [entry.text.split(" x")[0] for row in book.now().entries.values() for entry in row]
        assert sorted(text.split()[0:2] for text in found) == sorted(
            [name, str(k)] for name in ("ann", "ben") for k in range(n)
        )
        assert len(book.lines()) == len(book.log.lines())

    def test_lines_that_go_leave_no_trace_and_those_that_are_written_meanwhile_stay(self, book):
        book.add("label", "gone", "secret 4711", "ann")
        book.remove("gone", book.add("note", "gone", "also secret", "ann").id, "ben")
        book.add("label", "kept", "good", "ann")
        command = [sys.executable, "-c", WRITER, str(book.log.path), "ann", "150"]
        with subprocess.Popen(command) as writer:
            gone = 0
            while writer.poll() is None:
                book.add("label", "gone", "secret again", "ben")
                gone += book.forget({"gone"})
            assert writer.returncode == 0
        gone += book.forget({"gone"})
        text = book.log.path.read_text()
        assert gone >= 5 and "secret" not in text and '"gone"' not in text
        assert stat.S_IMODE(book.log.path.stat().st_mode) == 0o600
        entries = LabelBook(book.log.path).now().entries
        assert sum(len(entries.get(f"rollout-{n}", ())) for n in range(7)) == 150
        assert [entry.text for entry in entries["kept"]] == ["good"]
        assert book.now().entries.keys() == entries.keys(), "a reader that was there before sees the same"
        assert list(book.log.path.parent.iterdir()) == [book.log.path]

    def test_what_another_process_wrote_is_seen_at_the_next_look(self, book):
        other = LabelBook(book.log.path)
        assert not other.now().entries
        book.add("label", "r", "good", "ann")
        stamp = other.now().stamp
        assert [entry.text for entry in other.of("r")] == ["good"]
        assert other.now().stamp == stamp

    def test_a_line_that_was_cut_is_passed_over_and_the_next_one_is_whole(self, book):
        book.add("label", "r", "good", "ann")
        with book.log.path.open("ab") as file:
            file.write(b'{"id": "cut')
        book.add("label", "r", "odd", "ann")
        assert [entry.text for entry in book.of("r")] == ["good", "odd"]
        assert len(book.log.lines()) - len(book.lines()) == 1

    @pytest.mark.parametrize(
        "line",
        [
            b"[]",
            b"{}",
            b'{"id": 3}',
            b"\xff",
            b'{"id":"1","kind":"rm","rollout":"r","text":"t","author":"a","time":""}',
        ],
    )
    def test_a_line_of_something_else_is_passed_over(self, book, line):
        book.add("label", "r", "good", "ann")
        with book.log.path.open("ab") as file:
            file.write(line + b"\n")
        assert [entry.text for entry in book.of("r")] == ["good"]
        assert len(book.log.lines()) - len(book.lines()) == 1

    def test_a_link_in_its_place_is_refused(self, book, tmp_path):
        book.add("label", "r", "planted", "ann")
        aim = book.log.path.rename(tmp_path / "aim")
        lines = aim.read_text()
        book.log.path.symlink_to(aim)
        with pytest.raises(StoreError, match="labels"):
            book.add("label", "r", "good", "ann")
        assert aim.read_text() == lines
        other = LabelBook(book.log.path)
        assert not other.now().entries and other.log.problem

    def test_what_lies_in_a_folder_that_others_may_write_is_not_believed(self, book):
        book.add("label", "r", "good", "ann")
        book.log.path.parent.chmod(0o777)
        other = LabelBook(book.log.path)
        stamp = other.now().stamp
        assert not other.now().entries and "may be written by others" in other.log.problem
        assert other.now().stamp == stamp, "every look would make the table anew"

    def test_a_file_that_cannot_be_read_leaves_the_table_readable(self, labelled, caplog):
        path = labelled.labels.log.path
        path.unlink()
        path.mkdir()
        assert labelled.count() > 0 and labelled.count(where="label = good") == 0
        assert labelled.labels.log.problem
        assert caplog.text.count("labels are left out") == 1


class TestWhatIsKept:
    def test_the_same_label_twice_is_one(self, book):
        assert book.add("label", "r", "good", "ann").id == book.add("label", "r", " good ", "ben").id

    def test_taking_back_leaves_the_line_and_says_who(self, book):
        entry = book.add("label", "r", "good", "ann")
        book.remove("r", entry.id, "ben")
        assert book.of("r") == ()
        assert "ben" in book.log.path.read_text().splitlines()[1]
        with pytest.raises(StoreError, match="not there any more"):
            book.remove("r", entry.id, "ben")

    @pytest.mark.parametrize(
        ("text", "author", "said"),
        [
            ("", "a", "label: empty"),
            ("x" * 65, "a", "65 characters"),
            ("a\u202eb", "a", "202E"),
            ("a\x00", "a", "0000"),
            ("good", " ", "author: empty"),
        ],
    )
    def test_what_cannot_be_read_is_refused(self, book, text, author, said):
        with pytest.raises(StoreError, match=said):
            book.add("label", "r", text, author)
        assert not book.log.path.exists()

    @pytest.mark.parametrize(
        "text", ["javascript:alert(1)", "<script>alert(1)</script>", "'; DROP TABLE rollouts; --", "' OR 1"]
    )
    def test_a_label_is_text_whatever_it_says(self, labelled, text):
        labelled.label("b0-1", text, "ann")
        quoted = text.replace("\\", "\\\\").replace("'", "\\'")
        assert [row["uid"] for row in labelled.query(where=f"label = '{quoted}'").rows] == ["b0-1"]

    @pytest.mark.parametrize(
        "place", [{"turn": 9}, {"turn": -1}, {"tokens": (0, 99_999)}, {"tokens": (3, 3)}]
    )
    def test_a_place_that_the_rollout_does_not_have_is_refused(self, labelled, place):
        with pytest.raises(StoreError, match=r"turn|tokens"):
            labelled.label("b0-0", "good", "ann", **place)


class TestTheTable:
    def test_filter_count_by_step_and_facets(self, labelled):
        assert [row["uid"] for row in labelled.query(where="label = 'good'", order_by="step").rows] == [
            "b0-0",
            "b1-0",
        ]
        assert labelled.count(where="label != good") == labelled.count() - 2
        assert labelled.count(where="labels is null", rows="all") == labelled.count(rows="all") - 2
        assert labelled.count(where="note contains 'later' and labelled_by = ann") == 1
        assert dict(labelled.facets("label")) == {None: labelled.count() - 2, "good": 2, "odd": 1}
        by_step = labelled.aggregate(["step", "label"], [Measure("mean", "reward")], where="label = good")
        assert by_step.select(["step", "label", "rollouts"]).to_pylist() == [
            {"step": 0, "label": "good", "rollouts": 1},
            {"step": 1, "label": "good", "rollouts": 1},
            {"step": 1, "label": "odd", "rollouts": 1},
        ]

    def test_a_new_label_is_in_the_next_answer(self, labelled):
        assert labelled.count(where="label = fresh") == 0
        labelled.label("b0-4", "fresh", "ann")
        assert labelled.count(where="label = fresh") == 1

    def test_columns_are_there_where_something_is_labelled(self, store, labelled):
        names = {"labels", "notes", "labelled_by"}
        assert names <= {column.name for column in labelled.columns()}
        assert labelled.query(where="label = odd").rows[0]["labels"] == ("good", "odd")

    def test_a_filter_by_label_is_understood_where_nothing_is_labelled(self, store, tmp_path, monkeypatch):
        monkeypatch.setattr(type(store.source), "labels_path", lambda source: tmp_path / "none.jsonl")
        empty = open_store(PROJECT, folder=store.source.path.parent, index_path=tmp_path / "other")
        assert empty.count(where="label = good") == 0
        assert "labels" not in {column.name for column in empty.columns()}
        with pytest.raises(QueryError, match="list of names"):
            empty.count(where="label > 3")

    def test_they_survive_a_rebuild(self, labelled):
        labelled.rebuild()
        assert labelled.count(where="label = good") == 2


class TestElsewhere:
    def test_an_export_has_labels_with_place_author_and_time(self, labelled, tmp_path):
        export(labelled, tmp_path / "out.jsonl", ExportQuery(where="label = odd"))
        [row] = map(json.loads, (tmp_path / "out.jsonl").read_text().splitlines())
        assert row["labels"] == ["good", "odd"]
        assert [(a["text"], a.get("turn"), a.get("start"), a["author"]) for a in row["annotations"]] == [
            ("good", 1, None, "ben"),
            ("odd", None, 1, "ann"),
        ]

    def test_sql_reads_the_same_columns(self, labelled):
        found = labelled.sql("SELECT count(*) AS n FROM rollouts WHERE list_contains(labels, 'good')")
        assert found["n"].to_pylist() == [2]

    def test_the_command_puts_on_takes_off_and_lists(self, store, tmp_path, monkeypatch):
        from typer.testing import CliRunner

        from rollout_traces.cli import build_app

        monkeypatch.setattr(type(store.source), "labels_path", lambda source: tmp_path / "labels" / "c.jsonl")
        monkeypatch.setenv("TRACKIO_DIR", str(store.source.path.parent))

        def run(*arguments: str) -> str:
            done = CliRunner().invoke(build_app(["label"]), ["label", "-p", PROJECT, *arguments])
            assert done.exit_code == 0, done.output
            return done.output

        assert "good" in run("b0-0", "--as", "good", "--note", "see turn 1", "--author", "ann")
        assert [entry["kind"] for entry in json.loads(run("b0-0", "--json"))["rows"]] == ["label", "note"]
        run("b0-0", "--remove", "good")
        assert [entry["kind"] for entry in json.loads(run("b0-0", "--json"))["rows"]] == ["note"]


def test_ten_thousand_labels_are_a_row_each(book):
    for n in range(2):
        book.add("label", f"u{n}", "good", "ann")
    first = json.loads(book.log.path.read_bytes().splitlines()[0])
    with book.log.path.open("ab") as file:
        for n in range(2, 10_000):
            file.write(json.dumps({**first, "id": f"i{n}", "rollout": f"u{n}"}).encode() + b"\n")
    table = book.now().table("key")
    assert table["key"].to_pylist() == [f"u{n}" for n in range(10_000)]
    assert table["labels"].to_pylist() == [["good"]] * 10_000
