"""The rows of TRL's calls, with functions of the kinds that a trainer has."""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest

from rollout_traces.integrations import base
from rollout_traces.integrations.followed import Followed
from rollout_traces.integrations.trl import TrlRows
from rollout_traces.logger.live import LiveRollout


def trainer_with(*functions):
    return SimpleNamespace(
        reward_funcs=list(functions),
        accelerator=SimpleNamespace(process_index=3),
        state=SimpleNamespace(global_step=7),
    )


def slow(values):
    time.sleep(0.02)
    return values


async def waits(values):
    await asyncio.sleep(0.02)
    return values


def finished(coroutine):
    """What it returns, run in a thread of its own: a browser's loop may run in this one."""
    with ThreadPoolExecutor(1) as apart:
        return apart.submit(asyncio.run, coroutine).result()


class Model:
    """A reward model is no function."""

    def __call__(self, values):
        return values


class Heard(LiveRollout):
    """A rollout in flight that remembers what is said of it."""

    __slots__ = ("said",)

    def __init__(self):
        super().__init__("", None)
        self.said = []

    def stage(self, stage, detail=None, **told):
        self.said.append((stage, detail, told.get("turns"), told.get("tokens")))


def rows_of(trainer, n: int = 2) -> TrlRows:
    rows = TrlRows(trainer)
    rows.begin([Followed(Heard()) for _ in range(n)])
    return rows


class TestScoring:
    def test_functions_are_timed_by_name_and_what_they_give_is_handed_on(self):
        model = Model()
        trainer = trainer_with(slow, waits, model)
        rows = rows_of(trainer)
        with rows.scoring(["slow", "waits", "model"]):
            first, second, third = trainer.reward_funcs
            assert first([1]) == [1] and finished(second([2])) == [2] and third is model
            assert asyncio.iscoroutinefunction(second), "TRL runs these together"
        assert trainer.reward_funcs == [slow, waits, model]
        one, other = rows.noted
        assert one == other, "all rows are scored together"
        assert [(span["kind"], span["name"]) for span in one] == [("score", "slow"), ("score", "waits")]
        assert all(0.015 < span["end"] - span["start"] < 5 for span in one)
        assert [said[:2] for said in rows.rows[0].live.said] == [("scoring", "slow"), ("scoring", "waits")]

    def test_one_that_raises_is_noted_raised_on_and_put_back(self):
        def fails(values):
            raise KeyError("answer")

        trainer = trainer_with(fails)
        rows = rows_of(trainer)
        with pytest.raises(KeyError), rows.scoring(["fails"]):
            trainer.reward_funcs[0]([1])
        assert trainer.reward_funcs == [fails] and rows.noted[0][0]["error"] == "KeyError"

    @pytest.mark.parametrize("names", [[], ["one", "more"]])
    def test_a_trainer_that_changed_is_left_alone(self, names):
        trainer = trainer_with(slow)
        with rows_of(trainer).scoring(names):
            assert trainer.reward_funcs == [slow]


class TestSampling:
    def test_rows_are_told_of_again_by_the_tokens_that_they_go_on_with(self):
        rows = rows_of(trainer_with(), 3)

        def generate(prompt_ids):
            return [[*ids[:1], 9] for ids in prompt_ids], None

        sample = rows.around_sampling(generate)
        assert sample([[1], [2], [3]])[0] == [[1, 9], [2, 9], [3, 9]]
        sample([[1, 1, 9, 7], [3, 3, 9, 7]])
        turns = [[(span["turn"], span["engine"], span["version"]) for span in spans] for spans in rows.noted]
        assert turns == [
            [(0, "rank 3", 7), (1, "rank 3", 7)],
            [(0, "rank 3", 7)],
            [(0, "rank 3", 7), (1, "rank 3", 7)],
        ]
        assert rows.rows[0].live.said[-1] == ("sampling", None, 2, 4)
        sample([[5, 5]])
        assert [len(spans) for spans in rows.noted] == [2, 1, 2], "of nobody that was followed"

    def test_a_trainer_that_returns_the_ids_alone_or_behind_the_prompts_is_understood(self):
        alone = rows_of(trainer_with(), 1)
        alone.around_sampling(lambda prompt_ids: [[4, 5]])([[1]])
        behind = rows_of(trainer_with(), 1)
        behind.around_sampling(lambda prompts: ([[1]], [[4, 5, 6]], None, {}))(["a"])
        assert alone.rows[0].live.said[-1] == ("sampling", None, 1, 2)
        assert behind.rows[0].live.said[-1] == ("sampling", None, 1, 3)


class TestTools:
    def test_the_tools_of_each_row_are_followed_while_it_samples_and_put_back(self):
        async def browse(page):
            return f"read {page}"

        def search(words):
            raise TimeoutError(words)

        trainer = trainer_with()
        trainer._sync_tool_dicts, trainer._async_tool_dicts = (
            [{"search": search}, {}],
            [{}, {"browse": browse}],
        )
        rows = rows_of(trainer)
        with rows.calling_tools():
            with pytest.raises(TimeoutError):
                trainer._sync_tool_dicts[0]["search"]("kettles")
            assert finished(trainer._async_tool_dicts[1]["browse"](3)) == "read 3"
        assert trainer._sync_tool_dicts == [{"search": search}, {}], "TRL's own again"
        (first,), (second,) = rows.noted
        assert (first["kind"], first["name"], first["error"]) == ("tool", "search", "TimeoutError")
        assert (second["kind"], second["name"]) == ("tool", "browse") and "error" not in second
        assert rows.rows[1].live.said[0][:2] == ("tool", "browse")

    def test_an_end_is_said_of_every_row(self):
        rows = rows_of(trainer_with())
        rows.end("aborted", "KeyError")
        assert [row.live.said for row in rows.rows] == [[("aborted", "KeyError", None, None)]] * 2

    def test_tools_of_another_form_are_left_alone_and_counted(self):
        trainer = trainer_with()
        trainer._sync_tool_dicts = [["search"], {}]
        rows = rows_of(trainer)
        before = sum(base.failures.values())
        with rows.calling_tools():
            assert trainer._sync_tool_dicts == [["search"], {}]
        assert sum(base.failures.values()) == before + 1


class TestWords:
    def test_a_tokenizer_that_fails_costs_the_words_alone_and_is_counted(self):
        class Fails:
            def decode(self, ids):
                raise UnicodeError("half a sign")

        followed = Followed(Heard(), Fails())
        before = base.failures["live: UnicodeError: half a sign"]
        followed.sampled([1, 2])
        assert followed.live.said == [("sampling", None, 1, 2)]
        assert base.failures["live: UnicodeError: half a sign"] == before + 1
