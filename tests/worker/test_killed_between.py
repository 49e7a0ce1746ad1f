"""A worker that is killed between any two of its writes loses nothing and doubles nothing."""

from __future__ import annotations

import pytest

from rollout_traces.worker.replay import CloseLog
from tests.worker.held_sink import WritePath

STEPS = 5
EXPECTED = [(0, 0, 1), (1, 0, 1), (2, 0, 1), (2, 1, 1), (3, 0, 2), (4, 0, 1)]
"""(step, late, rows) of what is handed over: step 2 has a late part, step 3 comes in two calls."""


class Killed(BaseException):
    """The worker ends here, as by a signal."""


class Kill:
    """Ends the worker before one of its writes: a close written down, a step given to Trackio, a record removed."""

    def __init__(self, monkeypatch, path, at):
        self.n_writes = 0
        self._at = at
        for owner, name in ((path.closes, "record"), (path.sink, "log_traces"), (path.spool, "remove")):
            monkeypatch.setattr(owner, name, self._before(getattr(owner, name)))

    def _before(self, write):
        def counted(*arguments, **named):
            self.n_writes += 1
            if self.n_writes > self._at:
                raise Killed
            return write(*arguments, **named)

        return counted


def handed_over(closes):
    path = WritePath(CloseLog(closes))
    for step in (0, 1, 2, 3, 3, 2, 4):
        path.log(step, 1)
    path.put("flush")
    return path


def stored_all(path):
    for _ in range(20):
        path.turns(1)
        path.sink.let_through()
        if not path.kinds():
            return
    raise AssertionError(f"these wait: {path.kinds()}")


def n_writes(monkeypatch, closes):
    path = handed_over(closes)
    with monkeypatch.context() as patched:
        kill = Kill(patched, path, 10**6)
        stored_all(path)
    assert sorted(path.sink.summaries) == EXPECTED
    return kill.n_writes


@pytest.mark.parametrize("reached", [0, 1, 10**6], ids=["nothing", "one step", "all"])
def test_what_was_handed_over_is_stored_once(monkeypatch, tmp_path, reached):
    """`reached`: how many of the steps that Trackio was given are in the store by then."""
    total = n_writes(monkeypatch, tmp_path / "closes")
    assert total >= 3 * STEPS
    for at in range(total):
        closes = tmp_path / f"closes-{at}"
        path = handed_over(closes)
        with monkeypatch.context() as patched, pytest.raises(Killed):
            Kill(patched, path, at)
            stored_all(path)
        del path.sink.waiting[reached:]
        path.sink.let_through()
        path.closes = CloseLog(closes)
        path.start()
        stored_all(path)
        assert sorted(path.sink.summaries) == EXPECTED, f"killed before write {at + 1} of {total}"
