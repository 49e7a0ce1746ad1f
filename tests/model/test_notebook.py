"""What objects show in a notebook: a few lines, and no text of a rollout as anything but text."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rollout_traces.analysis import Selection, diagnose, explain, flips
from rollout_traces.cli.show import FOLDER
from rollout_traces.errors import MissingExtra, StoreError
from rollout_traces.model.text import MOST_ROWS, escaped, lines, table, titled
from rollout_traces.store import Store, open_store

HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(1)>\"'&\u202e\x1b[31m"
TAGS = {"div", "b", "span", "pre", "table", "thead", "tbody", "tr", "th", "td", "ul", "li"}


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """The run that comes with the package."""
    store = open_store(str(FOLDER), index_path=tmp_path_factory.mktemp("index"))
    yield store
    store.close()


@pytest.fixture(scope="module")
def objects(example: Store) -> dict[str, Any]:
    """One of everything that a notebook shows."""
    page = example.query(where="step = 20", limit=5)
    evaluations = (Selection("troubled", "eval-rollout", (step, step)) for step in (16, 24))
    return {
        "store": example,
        "run": example.runs()[0],
        "transcript": example.transcript(str(page.rows[0].id)),
        "rows": page,
        "report": diagnose(example.table(), "troubled"),
        "explanation": explain(example.table(), Selection("troubled", "rollout", (20, 20))),
        "flips": flips(example.table(), *evaluations),
    }


NAMES = ("store", "run", "transcript", "rows", "report", "explanation", "flips")


class TestObjects:
    @pytest.mark.parametrize("name", NAMES)
    def test_are_lines_as_text_and_known_tags_as_html(self, objects: dict[str, Any], name: str) -> None:
        assert 10 < len(repr(objects[name])) < 8000 and "array(" not in repr(objects[name])
        html = objects[name]._repr_html_()
        assert set(re.findall(r"</?([a-zA-Z]+)", html)) <= TAGS
        assert html.count("<div") == html.count("</div>") and "on20" not in html

    def test_a_conversation_shows_what_is_in_the_loss(self, objects: dict[str, Any]) -> None:
        transcript = objects["transcript"]
        html = transcript._repr_html_()
        green = "".join(
            re.findall(r'<span style="background:#cfead0;color:#111">(.*?)</span>', html, re.DOTALL)
        )
        whole = "".join(
            text
            for text, trained in zip(transcript.token_texts(), transcript.tokens.loss_mask, strict=True)
            if trained
        )
        assert whole and green == escaped(whole)


class TestHostileText:
    def test_stays_text_in_every_part(self) -> None:
        html = titled(HOSTILE, lines([HOSTILE]), table([HOSTILE], [[HOSTILE], [(HOSTILE,)]]), note=HOSTILE)
        assert set(re.findall(r"</?([a-zA-Z]+)", html)) <= TAGS
        assert "\u202e" not in html and "\x1b" not in html and html.count("&lt;script&gt;") == 6

    def test_stays_text_in_a_conversation(self, objects: dict[str, Any]) -> None:
        transcript = objects["transcript"]
        n = len(transcript.turns[0].raw)
        turn = replace(transcript.turns[0], raw=(HOSTILE * n)[:n], name=HOSTILE)
        html = replace(transcript, turns=(turn, *transcript.turns[1:]), warnings=(HOSTILE,))._repr_html_()
        assert set(re.findall(r"</?([a-zA-Z]+)", html)) <= TAGS and "<script" not in html

    def test_stays_text_in_rows(self, objects: dict[str, Any]) -> None:
        row = objects["rows"].rows[0]
        page = replace(objects["rows"], rows=(replace(row, values={**row.values, "prompt": HOSTILE}),))
        assert "<script" not in page._repr_html_() and "&lt;script" in page._repr_html_()

    def test_long_tables_say_what_they_leave_out(self) -> None:
        assert "… 3 more" in table(["n"], [[n] for n in range(MOST_ROWS + 3)])


class TestPlot:
    def test_draws_every_value_where_it_is(self, example: Store) -> None:
        matplotlib = pytest.importorskip("matplotlib")
        matplotlib.use("Agg")
        [line] = example.plot("troubled", "train/loss").get_lines()
        steps, values = example.metrics("troubled")["train/loss"]
        assert (line.get_xdata().tolist(), line.get_ydata().tolist()) == (list(steps), list(values))
        labels = [each.get_label() for each in example.plot("troubled").get_lines()]
        assert "rollout/reward/mean" in labels and "eval-rollout/reward/mean" in labels

    def test_what_is_not_there_is_said(self, example: Store, monkeypatch: pytest.MonkeyPatch) -> None:
        pytest.importorskip("matplotlib")
        with pytest.raises(StoreError, match="no scalar 'nope'; there is"):
            example.plot("troubled", "nope")
        monkeypatch.setitem(__import__("sys").modules, "matplotlib.pyplot", None)
        with pytest.raises(MissingExtra, match=r"store.plot needs matplotlib.*rollout-traces\[plot\]"):
            example.plot("troubled", "train/loss")


def test_the_example_is_where_the_notebook_says() -> None:
    assert Path(FOLDER).is_dir()


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, ""),
        ("", ""),
        ("<b>&", "&lt;b&gt;&amp;"),
        (0.123456, "0.1235"),
        (("a", "<"), "a, &lt;"),
        (7, "7"),
    ],
)
def test_a_value_is_shown_as_its_text(value, shown):
    assert escaped(value) == shown
