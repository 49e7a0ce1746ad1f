"""The spans of TRL's calls, with functions of the kinds that a trainer has."""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest

from rollout_traces.integrations.trl_spans import TrlSpans


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


class TestScoring:
    def test_functions_are_timed_by_name_and_what_they_give_is_handed_on(self):
        model = Model()
        trainer = trainer_with(slow, waits, model)
        spans = TrlSpans(trainer)
        with spans.scoring(["slow", "waits", "model"]):
            first, second, third = trainer.reward_funcs
            assert first([1]) == [1] and finished(second([2])) == [2] and third is model
            assert asyncio.iscoroutinefunction(second), "TRL runs these together"
        assert trainer.reward_funcs == [slow, waits, model]
        assert [(span["kind"], span["name"]) for span in spans.noted] == [
            ("score", "slow"),
            ("score", "waits"),
        ]
        assert all(0.015 < span["end"] - span["start"] < 5 for span in spans.noted)

    def test_one_that_raises_is_noted_raised_on_and_put_back(self):
        def fails(values):
            raise KeyError("answer")

        trainer = trainer_with(fails)
        spans = TrlSpans(trainer)
        with pytest.raises(KeyError), spans.scoring(["fails"]):
            trainer.reward_funcs[0]([1])
        assert trainer.reward_funcs == [fails] and spans.noted[0]["error"] == "KeyError"

    @pytest.mark.parametrize("names", [[], ["one", "more"]])
    def test_a_trainer_that_changed_is_left_alone(self, names):
        trainer = trainer_with(slow)
        with TrlSpans(trainer).scoring(names):
            assert trainer.reward_funcs == [slow]


class TestSampling:
    def test_the_first_call_is_of_all_rows_and_later_ones_of_rows_that_nobody_names(self):
        spans = TrlSpans(trainer_with())
        sample = spans.around_sampling(lambda ids: ids)
        assert sample([1, 2]) == [1, 2] and sample([1]) == [1]
        (span,) = spans.noted
        assert (span["kind"], span["turn"], span["engine"], span["version"]) == ("generate", 0, "rank 3", 7)
        spans.begin()
        assert not spans.noted
