"""verl's batches and agent loops as they are seen, by loops and clients of the kinds that verl has."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import orjson
import pytest
import torch

from rollout_traces.integrations import verl_observer
from rollout_traces.integrations.verl_observer import (
    NO_DUMP,
    NOTED,
    DumpObserver,
    ScoredDataProto,
    VerlObserver,
    batches_from,
    ground_truths_of,
    merged_rows,
    noted_columns,
    now_within,
    split_extras,
)
from rollout_traces.logger.live import NOT_LIVE
from tests.integrations.test_followed import answer_of


def proto(**others) -> SimpleNamespace:
    """As much of a `DataProto` as is read: two rows of two prompt and three response tokens."""
    mask = torch.tensor([[1, 1, 0], [1, 1, 1]])
    tensors = {
        "input_ids": torch.arange(10).reshape(2, 5),
        "attention_mask": torch.tensor([[0, 1, 1, 1, 0], [1, 1, 1, 1, 1]]),
        "prompts": torch.zeros(2, 2),
        "response_mask": mask,
    }
    return SimpleNamespace(batch={**tensors, **others.pop("tensors", {})}, non_tensor_batch=others)


def batch_of(data: SimpleNamespace, **scored):
    [batch] = batches_from(ScoredDataProto(data, **scored))
    return batch


class TestBatches:
    def test_responses_lie_behind_their_prompts(self):
        scores = torch.tensor([[0.0, 1.0, 0.0], [0.5, 0.0, 0.25]])
        tensors = {"rollout_log_probs": -torch.ones(2, 3), "token_level_scores": scores}
        batch = batch_of(proto(tensors=tensors), train_version=7)
        assert batch.loss_mask.int().tolist() == [[0, 0, 1, 1, 0], [0, 0, 1, 1, 1]]
        assert batch.logprobs.tolist() == [[0, 0, -1, -1, -1]] * 2
        assert batch.rewards.tolist() == [1.0, 0.75] and batch.train_version == 7
        assert batch.group_ids == [0, 1] and batch.sources is None and batch.timings is None

    def test_scores_of_a_validation_are_its_rewards(self):
        batch = batch_of(proto(), token_scores=torch.tensor([[0, 0, 2], [0, 0, 1]]))
        assert batch.rewards.tolist() == [2.0, 1.0] and batch_of(proto()).rewards is None

    def test_versions_are_known_where_no_row_had_two(self):
        steps = {"min_global_steps": [3, 4], "max_global_steps": [3, 4]}
        assert batch_of(proto(**steps)).versions.tolist() == [[-1, -1, 3, 3, -1], [-1, -1, 4, 4, 4]]
        changed = batch_of(proto(**{**steps, "max_global_steps": [3, 5]}))
        assert changed.versions is None and batch_of(proto(min_global_steps=[3, 4])).versions is None
        assert changed.sample_metrics["max_global_steps"].tolist() == [3.0, 5.0]

    def test_what_verl_says_of_rows_is_kept(self):
        given = {"uid": ["a", "b"], "data_source": ["x", "y"], "__num_turns__": [1, None]}
        noted = orjson.dumps({"spans": [{"kind": "tool"}], "live": "l1"}).decode()
        data = proto(**given, reward_model=[{"ground_truth": "4"}, None], **{NOTED: [noted, None]})
        batch = batch_of(data, reward_extras={"format": [1, 0], "why": ["short", None]})
        assert (batch.group_ids, batch.sources, batch.ground_truths) == (["a", "b"], ["x", "y"], ["4", None])
        assert batch.sample_metrics["format"].tolist() == [1.0, 0.0]
        turns = batch.sample_metrics["num_turns"].tolist()
        assert turns[0] == 1.0 and np.isnan(turns[1])
        assert batch.extras == [{"why": "short", "live": "l1"}, {"why": None}]
        assert batch.timings == [[{"kind": "tool"}], None]


class TestColumns:
    def test_numbers_and_others_are_told_apart(self):
        numbers, rows = split_extras({"a": [1, None], "b": ["x", 2], 3: [True, False]})
        assert {name: np.nan_to_num(values, nan=-1).tolist() for name, values in numbers.items()} == {
            "a": [1.0, -1.0],
            "3": [1.0, 0.0],
        }
        assert rows == [{"b": "x"}, {"b": 2}] and split_extras({}) == ({}, None)

    def test_two_columns_of_mappings_are_one(self):
        assert merged_rows([{"a": 1}, {}], [{"b": 2}, {"a": 3}]) == [{"a": 1, "b": 2}, {"a": 3}]
        assert merged_rows(None, [{"b": 2}]) == [{"b": 2}] == merged_rows([{"b": 2}], None)
        assert merged_rows(None, None) is None

    def test_ground_truths_are_those_of_reward_models_that_have_one(self):
        assert ground_truths_of(None) is None
        assert ground_truths_of([{"ground_truth": 0}, {}, "x"]) == [0, None, None]

    def test_what_was_noted_of_no_row_is_no_column(self):
        noted = [orjson.dumps(each).decode() for each in ({"spans": [], "live": ""}, {"spans": [1]})]
        assert noted_columns([noted[0], None]) == {} == noted_columns([])
        assert noted_columns(noted) == {"timings": [[], [1]]}


class Trainer:
    """As much of verl's trainer as is wrapped."""

    global_steps = 4

    def __init__(self) -> None:
        self.seen: list = []

    def _validate(self) -> str:
        self.seen.append((now_within("verl"), now_within("verl", "rollout"), now_within("other")))
        return "validated"

    def fit(self) -> str:
        return self._validate()

    def _log_rollout_data(self, batch, rollout_data_dir) -> str:
        self.seen.append(rollout_data_dir)
        return "dumped"


class Hook:
    """What is called of a hook's logger."""

    def __init__(self) -> None:
        self.calls: list = []

    def start_training(self) -> None:
        self.calls.append("start")

    def ready_for_live(self) -> None:
        raise OSError("no room")

    def close_step(self, step: int, split: str) -> None:
        self.calls.append((step, split))

    def close(self) -> None:
        self.calls.append("close")


class TestObserving:
    @pytest.fixture
    def observer(self):
        observer = VerlObserver("verl", Trainer(), None, {})
        observer.hook = Hook()
        return observer

    def test_a_validation_knows_whose_it_is_and_closes_its_step(self, observer):
        observer.watch()
        assert observer.trainer.fit() == "validated"
        assert observer.trainer.seen == [(observer, None, None)] and now_within("verl") is None
        assert observer.hook.calls == ["start", (4, "eval-rollout"), "close"]

    def test_what_raises_is_raised_and_the_hook_is_closed(self, observer):
        def fails() -> None:
            raise KeyError("reward")

        observer.trainer.fit = fails
        observer.watch()
        with pytest.raises(KeyError, match="reward"):
            observer.trainer.fit()
        assert observer.hook.calls == ["start", "close"]

    @pytest.mark.parametrize("folder", ["/dumps", NO_DUMP, None])
    def test_a_dump_hands_the_rollouts_over_and_is_written_where_that_was_asked_for(self, folder):
        given = []

        class Seen(DumpObserver):
            def on_rollouts(self, arguments) -> None:
                given.append(arguments)

        observer = Seen("verl", Trainer(), None, {})
        observer.hook = Hook()
        dump = observer.around_dump(observer.trainer._log_rollout_data)
        for answered in (dump("batch", folder), dump("batch", rollout_data_dir=folder)):
            assert answered == (None if folder == NO_DUMP else "dumped")
        assert len(given) == 2 and observer.hook.calls == [(4, "rollout")] * 2
        assert observer.trainer.seen == ([] if folder == NO_DUMP else [folder] * 2)


class Client:
    async def generate(self, prompt):
        return SimpleNamespace(token_ids=[1, 2], extra_fields={"min_global_steps": 3})


class Worker:
    """An agent loop worker of verl, which samples once and scores."""

    def __init__(self, reward=None) -> None:
        self.llm_client, self.tokenizer, self.reward = Client(), None, reward
        self.reward_loop_worker_handles = ["one"]
        self.outputs: list = []

    async def _run_agent_loop(self, sampling_params, trajectory, **given):
        output = await self.llm_client.generate("prompt")
        self.outputs = [SimpleNamespace(reward_score=self.reward, extra_fields={}, ids=output.token_ids)]
        await verl_observer._scored(Worker._compute_score)(self, self.outputs)
        return self.outputs

    async def _compute_score(self, outputs):
        return 1.0


def looped(worker: Worker, **given):
    run = verl_observer._followed(Worker._run_agent_loop)
    call = run(worker, {}, {"step": 4, "validate": False}, **{"raw_prompt": [], **given})
    return answer_of(call)


class TestALoop:
    def noted(self, outputs) -> dict:
        return orjson.loads(outputs[0].extra_fields[NOTED])

    def test_its_spans_go_back_with_what_it_gave(self):
        spans = self.noted(looped(Worker()))["spans"]
        assert [span["kind"] for span in spans] == ["generate", "score"]
        assert spans[0]["version"] == 3 and spans[0]["turn"] == 0

    def test_that_gave_its_own_reward_or_has_no_scorer_is_not_scored(self):
        own, without = Worker(reward=0.5), Worker()
        without.reward_loop_worker_handles = None
        for worker in (own, without):
            assert [span["kind"] for span in self.noted(looped(worker))["spans"]] == ["generate"]

    def test_that_cannot_be_followed_runs_as_it_would(self, monkeypatch):
        def fails(*given):
            raise OSError("no room")

        monkeypatch.setattr(verl_observer, "_begin", fails)
        outputs = looped(Worker())
        assert outputs[0].ids == [1, 2] and outputs[0].extra_fields == {}

    def test_is_begun_with_what_the_trainer_says_of_it_and_ends(self, monkeypatch):
        said, stages = [], []

        class Live:
            id = "l1"

            def stage(self, stage, *given, **more):
                stages.append(stage)

        def begin(prompt, **known):
            said.append((prompt, known))
            return Live()

        monkeypatch.setattr(verl_observer, "begin", begin)
        outputs = looped(Worker(), uid="u", data_source="math")
        assert said[0][1] == {"step": 4, "split": "rollout", "source": "math", "group": "u"}
        assert stages[-1] == "done" and self.noted(outputs)["live"] == "l1"
        run = verl_observer._followed(Worker._run_agent_loop)
        answer_of(run(Worker(), {}, {"validate": True}, raw_prompt=[]))
        assert said[1][1]["split"] == "eval-rollout"

    def test_a_client_that_nobody_follows_samples_as_it_would(self):
        generate = verl_observer._sampled(Client().generate)
        assert answer_of(generate("prompt")).token_ids == [1, 2]
        with verl_observer.Followed(NOT_LIVE).running():
            assert answer_of(generate("prompt")).token_ids == [1, 2]
