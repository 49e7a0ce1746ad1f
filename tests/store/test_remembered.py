"""Answers are computed once, by one thread, and the oldest go."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from rollout_traces.errors import StoreError
from rollout_traces.store.remembered import RememberedAnswers
from rollout_traces.store.time_limit import time_limit


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
    assert not answers._computing


def test_a_question_may_ask_another() -> None:
    answers = RememberedAnswers()
    assert answers.answer("outer", lambda: answers.answer("inner", lambda: 3) + 1) == 4


def test_where_it_fails_the_next_one_tries() -> None:
    answers = RememberedAnswers()
    with pytest.raises(ZeroDivisionError):
        answers.answer("question", lambda: 1 // 0)
    assert answers.answer("question", lambda: 5) == 5
    assert not answers._computing


def test_who_waits_for_another_waits_no_longer_than_allowed() -> None:
    answers = RememberedAnswers()
    started, go_on = threading.Event(), threading.Event()

    def compute() -> int:
        started.set()
        assert go_on.wait(30)
        return 1

    def waiting() -> int:
        with time_limit(0.05):
            return answers.answer("question", compute)

    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(answers.answer, "question", compute)
        assert started.wait(30)
        with pytest.raises(StoreError, match="longer than"):
            threads.submit(waiting).result()
        go_on.set()
        assert first.result() == 1
