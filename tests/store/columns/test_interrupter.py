from __future__ import annotations

import threading

from rollout_traces.store.columns.interrupter import Interrupter


def test_work_that_takes_too_long_is_interrupted() -> None:
    interrupted = threading.Event()
    with Interrupter().after(0.01, interrupted.set):
        assert interrupted.wait(20)


def test_work_that_ends_in_time_is_never_interrupted_afterwards() -> None:
    watcher, first, second = Interrupter(), threading.Event(), threading.Event()
    with watcher.after(0.05, first.set):
        pass
    with watcher.after(0.1, second.set):
        assert second.wait(20)
    assert not first.is_set()


def test_a_nearer_deadline_is_kept_while_it_sleeps_for_a_later_one() -> None:
    watcher, late, soon = Interrupter(), threading.Event(), threading.Event()
    with watcher.after(3600, late.set), watcher.after(0.01, soon.set):
        assert soon.wait(20)
    assert not late.is_set()


def test_one_thread_watches_over_many_pieces() -> None:
    before, watcher = threading.active_count(), Interrupter()
    for _ in range(50):
        with watcher.after(3600, lambda: None):
            pass
    assert threading.active_count() == before + 1


def test_work_without_a_limit_needs_no_thread() -> None:
    before = threading.active_count()
    with Interrupter().after(None, lambda: None):
        assert threading.active_count() == before
