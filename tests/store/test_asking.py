"""Answers are computed once, by one thread, and the oldest go."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Semaphore

import pyarrow as pa
import pytest

from rollout_traces.errors import StoreError
from rollout_traces.store import Store
from rollout_traces.store.asking import KEPT_ANSWERS, RememberedAnswers, groups_table, plain_rows
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


def test_as_many_are_kept_as_is_said() -> None:
    answers = RememberedAnswers()
    for number in range(KEPT_ANSWERS + 1):
        answers.answer(number, lambda: "first")
    assert [answers.answer(number, lambda: "again") for number in (1, KEPT_ANSWERS, 0)] == [
        "first",
        "first",
        "again",
    ]


class TestRows:
    def test_carry_what_they_know_and_tags_as_tuples(self) -> None:
        place = {
            "id": ["t"] * 2,
            "run_id": ["r"] * 2,
            "run": ["run"] * 2,
            "split": ["rollout"] * 2,
            "step": [1, 2],
        }
        found = pa.table({**place, "flags": [["a", "b"], None], "reward": [None, 0.5], "list": [[1], [2]]})
        first, second = plain_rows(found, {"flags": "tags", "reward": "float"})
        assert (first.id, first.step, first.values) == ("t", 1, {"flags": ("a", "b"), "list": [1]})
        assert (second.step, second.values) == (2, {"reward": 0.5, "list": [2]})

    def test_are_shown_with_every_column_that_one_of_them_knows(self, store: Store) -> None:
        shown = store.ask(lambda asking: asking.shown_columns())
        assert {"id", "uid", "reward", "flags", "component/format"} <= set(shown)
        assert "raw_reward" not in shown and "labels" not in shown

    def test_are_shown_with_the_columns_that_are_wanted_behind_their_place(self, store: Store) -> None:
        shown = store.ask(lambda asking: asking.shown_columns(["reward", "step", "reward"]))
        assert shown == ["id", "run_id", "run", "split", "step", "reward"]

    @pytest.mark.parametrize("name", ["nope", "doc", "place"])
    def test_a_column_that_there_is_not_is_refused(self, store: Store, name: str) -> None:
        with pytest.raises(StoreError, match=f"columns: no column {name!r}"):
            store.ask(lambda asking: asking.shown_columns([name]))

    def test_of_all_rollouts_the_trace_is_a_column_too(self, store: Store) -> None:
        of_traces = {column.name for column in store.columns()}
        assert {column.name for column in store.columns("all")} - of_traces == {"trace_uid"}
        meanings = {column.name: column.meaning for column in store.columns()}
        assert meanings["component/format"] and meanings["reward"] and meanings["group.mean"]


class TestGroups:
    def test_are_one_row_each_with_the_figures_of_their_rewards(self, store: Store) -> None:
        rows = store.ask(groups_table).to_pylist()
        assert [(r["split"], r["step"], r["group"]) for r in rows] == [
            ("eval-rollout", 2, 0),
            *[("rollout", step, group) for step in range(3) for group in range(2)],
        ]
        mixed, tied = rows[1], rows[2]
        assert (mixed["rollouts"], mixed["traced"], mixed["tied"], tied["tied"]) == (4, 2, False, True)
        assert (mixed["reward_mean"], mixed["reward_min"], mixed["reward_max"]) == (0.5, 0.0, 1.0)
        assert mixed["n_sampled"] == 5 + 15 + 25 + 35 and mixed["prompt_key"] == "prompt-0"

    @pytest.mark.parametrize(
        ("where", "uids"),
        [
            ("group.tied = true and step = 1", ["b1-4"]),
            ("group.mean = 0.5 and step = 1 and reward < 1", ["b1-1"]),
            ("group.std = 0 and split = 'eval-rollout'", ["e2-1"]),
        ],
    )
    def test_their_figures_can_be_filtered_by(self, store: Store, where: str, uids: list[str]) -> None:
        assert [row["uid"] for row in store.query(where=where).rows] == uids


class TestFilters:
    def test_words_and_columns_narrow_together(self, store: Store) -> None:
        assert store.count(where="text 'sorry'") == 3
        assert store.count(where="text 'sorry' and step > 0") == 2
        assert store.count(where="text 'sorry' or reward = 1") == 7
        assert store.count(where="step > 0", text="sorry") == 2

    def test_the_filters_own_order_holds_where_none_is_asked_for(self, store: Store) -> None:
        steps = [row.step for row in store.query(where="split = 'rollout' order by step, uid").rows]
        assert steps == sorted(steps)
        other = store.query(where="split = 'rollout' order by step, uid", order_by="step desc")
        assert other.rows[0].step == 2

    def test_text_cannot_be_sorted_by(self, store: Store) -> None:
        with pytest.raises(StoreError):
            store.query(order_by="text 'a'")
