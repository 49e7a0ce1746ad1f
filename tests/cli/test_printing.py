"""Tables as they come out of a terminal and of a pipe."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from rich.cells import cell_len

from rollout_traces.cli.printing import cell as cell_text
from rollout_traces.cli.printing import fitted, how_many, least_width, p_text
from rollout_traces.store import Store
from tests.cli.terminal import ROOT, printed

COLUMNS = ["uid", "split", "step", "reward", "a_long_heading", "flags", "prompt"]
ROWS = [
    ["f015d31ca8e3-12", "rollout", 1234567, -0.00012345, -2, ("tied_group", "truncated"), "short"],
    ["f015d31ca8e3-13", "eval-rollout", 7, 1.0, 3, ("mask_leak",), "所有的兔子都在这里 " * 20],
    ["f015d31ca8e3-14", "rollout", 8, 0.5, 3, ("duplicate_completions",) * 4, "How many\nmarbles? " * 9],
]
SCRIPT = (
    f"from rollout_traces.cli.printing import print_table; print_table({COLUMNS!r}, {ROWS!r}, title='Three')"
)
NUMBERS = ("step", "reward", "a_long_heading")


class TestOnATerminal:
    @pytest.mark.parametrize("width", [20, 40, 64, 80, 100, 130, 200, 1000])
    def test_no_line_is_wider_and_no_cell_is_wrapped_blank_or_cut_without_a_sign(self, width: int) -> None:
        title, heading, rule, *below = printed(width, SCRIPT)
        rows, said = below[: len(ROWS)], " ".join(below[len(ROWS) :])
        assert title == "Three"
        assert max(map(cell_len, (heading, rule, *below))) <= width
        names = heading.split()
        assert names == COLUMNS[: len(names)] and names
        assert all(name in said for name in COLUMNS[len(names) :]), said
        for row, values in zip(rows, ROWS, strict=True):
            cells = re.split(" {2,}", row.strip())
            assert len(cells) == len(names)
            for name, cell, whole in zip(names, cells, map(_whole, values), strict=False):
                if name in (*NUMBERS, "uid", "split") or width == 1000:
                    assert cell == whole, (name, cell)
                else:
                    assert cell == whole or (cell.endswith("…") and whole.startswith(cell[:-1].rstrip())), (
                        name,
                        cell,
                    )

    def test_what_there_is_room_for_is_used(self) -> None:
        rule = printed(120, SCRIPT)[2]
        assert cell_len(rule) > 110

    def test_a_list_of_rollouts_keeps_to_it(self, store: Store, shared_folder: Path) -> None:
        script = "from rollout_traces.cli import main; main()"
        ids = [row["uid"] for row in store.query(limit=3).rows]
        lines = printed(80, script, "list", "-p", "reading", "-n", "3", TRACKIO_DIR=str(shared_folder))
        assert max(map(cell_len, lines)) <= 80
        assert [line.split()[0] for line in lines if line.split() and line.split()[0] in ids] == ids


class TestInAPipe:
    def test_no_cell_is_cut(self) -> None:
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT], cwd=ROOT, capture_output=True, text=True, check=True
        )
        assert "…" not in done.stdout and "no room" not in done.stdout
        for line, values in zip(done.stdout.splitlines()[3:], ROWS, strict=True):
            assert all(_whole(value) in line for value in values)


class TestFitting:
    def test_the_widest_columns_are_cut_alike(self) -> None:
        assert fitted([5, 40, 30], 60, [5, 9, 9]) == [5, 27, 27]
        assert fitted([160, 160], 200, [9, 9]) == [100, 100]

    def test_no_column_is_cut_beyond_reading(self) -> None:
        assert fitted([40, 40], 10, [9, 9]) == [9, 9]

    def test_what_fits_stays(self) -> None:
        assert fitted([5, 6], 80, [5, 6]) == [5, 6]

    def test_words_are_not_cut_unless_they_are_very_long(self) -> None:
        assert least_width(["uid", "f015d31ca8e3-12"]) == 15
        assert least_width(["id", "x" * 90]) == 24
        assert least_width(["prompt", "a b c d e f g h i"]) == 9

    def test_columns_without_room_are_left_out_and_one_always_stays(self) -> None:
        assert how_many([10, 10, 10], 39) == 3
        assert how_many([10, 10, 10], 38) == 2
        assert how_many([10, 10], 4) == 1


class TestCells:
    def test_numbers_are_short_and_lists_are_words(self) -> None:
        """Seen once: `1.100000023841858`, and `('rollout', 'eval-rollout')`."""
        assert [cell_text(value) for value in (1.100000023841858, 0.0, 7, None)] == ["1.1", "0", "7", ""]
        assert cell_text(("rollout", "eval-rollout")) == "rollout, eval-rollout"
        assert cell_text({"math": 0.33333, "code": 2}) == "math 0.3333, code 2"


def _whole(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, tuple):
        return ", ".join(value)
    return str(value).replace("\n", "\\n").rstrip()


def test_a_p_value_is_said_as_on_the_page() -> None:
    said = ["0", "1", "0.043", "0.00012", "3e-7", "1e-12"]
    assert [p_text(p) for p in (0.0, 1.0, 0.0432, 0.00012, 3.2e-7, 1e-12)] == said
