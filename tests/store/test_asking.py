"""Answers are computed once, by one thread, and the oldest go."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Semaphore

import pytest

from rollout_traces.errors import StoreError
from rollout_traces.store.asking import RememberedAnswers
from rollout_traces.store.time_limit import stepping_aside, time_limit


def waiting_for(
    answers: RememberedAnswers, compute: Callable[[], int]
) -> tuple[Callable[[], int], Semaphore]:
    """Asks, and what is released once whoever asks waits for another."""
    waits = Semaphore(0)

    @contextmanager
    def aside() -> Iterator[None]:
        waits.release()
        yield

    def asked() -> int:
        with stepping_aside(aside):
            return answers.answer("question", compute)

    return asked, waits


def test_an_answer_is_computed_once_and_forgotten_when_told() -> None:
    answers = RememberedAnswers()
    computed: list[str] = []
    for _ in range(3):
        assert answers.answer("question", lambda: computed.append("once")) is None
    assert computed == ["once"]
    answers.forget()
    answers.answer("question", lambda: computed.append("again"))
    assert computed == ["once", "again"]


def test_those_asked_for_longest_ago_go() -> None:
    answers = RememberedAnswers(most=2)
    for question in ("a", "b", "a", "c"):
        answers.answer(question, lambda: 1)
    assert answers.answer("a", lambda: 2) == 1
    assert answers.answer("b", lambda: 2) == 2


def test_of_many_threads_one_computes() -> None:
    answers = RememberedAnswers()
    started, go_on, computed = threading.Event(), threading.Event(), []

    def compute() -> int:
        computed.append(1)
        started.set()
        assert go_on.wait(60)
        return len(computed)

    with ThreadPoolExecutor(4) as threads:
        first = threads.submit(answers.answer, "question", compute)
        assert started.wait(60)
        others = [threads.submit(answers.answer, "question", compute) for _ in range(3)]
        assert answers.answer("another", lambda: 9) == 9, "Another question does not wait."
        go_on.set()
        assert [each.result(60) for each in (first, *others)] == [1, 1, 1, 1]


def test_a_question_may_ask_another() -> None:
    answers = RememberedAnswers()
    assert answers.answer("outer", lambda: answers.answer("inner", lambda: 3) + 1) == 4


def test_where_it_fails_those_that_wait_hear_why_and_the_next_one_tries() -> None:
    answers = RememberedAnswers()
    started, go_on = threading.Event(), threading.Event()

    def fails() -> int:
        started.set()
        assert go_on.wait(60)
        raise StoreError("no such thing")

    asked, waits = waiting_for(answers, lambda: 5)
    with ThreadPoolExecutor(3) as threads:
        first = threads.submit(answers.answer, "question", fails)
        assert started.wait(60)
        others = [threads.submit(asked) for _ in range(2)]
        for _ in others:
            assert waits.acquire(timeout=60)
        go_on.set()
        for each in (first, *others):
            with pytest.raises(StoreError, match="no such thing"):
                each.result(60)
    assert answers.answer("question", lambda: 5) == 5


def test_what_is_forgotten_while_it_is_computed_is_computed_again() -> None:
    answers = RememberedAnswers()

    def compute() -> str:
        answers.forget()
        return "old"

    assert answers.answer("question", compute) == "old"
    assert answers.answer("question", lambda: "new") == "new"


def test_waiting_for_another_costs_none_of_ones_own_time() -> None:
    answers = RememberedAnswers()
    started, go_on = threading.Event(), threading.Event()

    def compute() -> int:
        started.set()
        assert go_on.wait(60)
        return 1

    asked, waits = waiting_for(answers, compute)

    def waiting() -> float:
        with time_limit(30) as limit:
            before = limit.seconds_left
            assert asked() == 1
            return before - limit.seconds_left

    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(answers.answer, "question", compute)
        assert started.wait(60)
        other = threads.submit(waiting)
        assert waits.acquire(timeout=60)
        time.sleep(0.5)
        go_on.set()
        assert first.result(60) == 1 and other.result(60) < 0.5
