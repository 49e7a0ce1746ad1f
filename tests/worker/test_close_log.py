"""Closes survive the worker that decided them."""

from __future__ import annotations

import os

import pytest

from rollout_traces.model.packed_batch import StepKey
from rollout_traces.worker.close_log import Close, CloseLog

KEY = StepKey("a-001", 3, "rollout")


def test_a_close_is_read_back_with_its_parts(tmp_path):
    path = tmp_path / "closes.jsonl"
    close = Close(KEY, ("b1", "b2"), "quiet", 1)
    CloseLog(path).record(close)
    again = CloseLog(path)
    assert again.of_part("b1") == again.of_part("b2") == close
    assert again.of_part("b3") is None
    assert (again.n_closed(KEY), again.n_closed(KEY._replace(step=4))) == (1, 0)


def test_late_parts_are_counted_by_their_step(tmp_path):
    log = CloseLog(tmp_path / "closes.jsonl")
    log.record(Close(KEY, ("b1",), "announced", 0))
    log.record(Close(KEY._replace(late=1), ("b2",), "quiet", 0))
    assert log.n_closed(KEY) == 2


def test_a_line_that_was_torn_is_passed_over(tmp_path):
    path = tmp_path / "closes.jsonl"
    log = CloseLog(path)
    log.record(Close(KEY, ("b1",), "announced", 0))
    with path.open("ab") as file:
        file.write(b'{"step": ["a-001", 4')
    assert CloseLog(path).n_closed(KEY) == 1


def test_in_memory_nothing_is_written(tmp_path):
    log = CloseLog()
    log.record(Close(KEY, ("b1",), "announced", 0))
    assert log.n_closed(KEY) == 1 and not list(tmp_path.iterdir())


def test_a_line_that_was_torn_takes_none_that_follows_along(tmp_path):
    path = tmp_path / "closes.jsonl"
    path.write_bytes(b'{"step": ["a-001", 4')
    log = CloseLog(path)
    log.record(Close(KEY, ("b1",), "announced", 0))
    log.record(Close(KEY._replace(late=1), ("b2",), "quiet", 0))
    assert CloseLog(path).n_closed(KEY) == 2


def test_a_line_that_the_disk_cut_off_takes_none_that_follows_along(tmp_path, monkeypatch):
    path = tmp_path / "closes.jsonl"
    log = CloseLog(path)
    write = os.write
    with monkeypatch.context() as full:
        full.setattr(os, "write", lambda fd, data: write(fd, data[:9]))
        with pytest.raises(OSError, match="no room"):
            log.record(Close(KEY, ("b1",), "announced", 0))
    log.record(Close(KEY, ("b1",), "announced", 0))
    assert CloseLog(path).of_part("b1") == Close(KEY, ("b1",), "announced", 0)
