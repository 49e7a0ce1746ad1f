"""AReaL's dicts with handles, names and conversations of its own come out under ours."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest
import torch

from rollout_traces.errors import BatchError
from rollout_traces.model.batch import RolloutBatch
from rollout_traces.stats.trajectories import TOKENS_LEFT_OUT, batch_of, batches_from, canonical, resolve

QUESTION = {"role": "user", "content": "2+2?"}


def trajectory(rows: int = 2, **more):
    return {
        "input_ids": torch.tensor([[5, 6, 7]] * rows),
        "attention_mask": torch.ones(rows, 3, dtype=torch.bool),
        "loss_mask": torch.tensor([[0, 1, 1]] * rows),
        "rewards": torch.ones(rows),
        **more,
    }


class Handle:
    shape, dtype, shard = (2, 3), torch.float32, "s1"

    def to_local(self):
        return torch.zeros(2, 3)


class RTensor:
    @staticmethod
    def localize(batch):
        return [
            {key: value.to_local() if isinstance(value, Handle) else value for key, value in item.items()}
            for item in batch
        ]


@pytest.fixture
def handle(monkeypatch) -> Handle:
    """A handle as the workers of AReaL's controller hold one, and the module that fetches it."""
    module = ModuleType("areal.infra.rpc.rtensor")
    module.RTensor = RTensor
    module.clear_fetch_buffer = module.flatten_shard_ids = lambda _: []
    for name in ("areal", "areal.infra", "areal.infra.rpc"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, "areal.infra.rpc.rtensor", module)
    return Handle()


class TestCanonical:
    def test_areals_names_become_ours_and_other_keys_stay(self):
        given = trajectory(
            ref_logp=torch.zeros(2, 3), original_rewards=torch.zeros(2), advantages=torch.ones(2)
        )
        [named] = canonical([given])
        batch = RolloutBatch.from_dict(named)
        assert batch.ref_logprobs.shape == (2, 3)
        assert batch.raw_rewards.tolist() == [0.0, 0.0]
        assert batch.advantages.tolist() == [1.0, 1.0]

    def test_a_flat_conversation_is_the_one_rows_and_no_groups(self):
        [one, group] = canonical([trajectory(1, messages=[QUESTION]), trajectory(2, messages=[QUESTION])])
        assert RolloutBatch.from_dict(one).messages == [[QUESTION]]
        assert RolloutBatch.from_dict(group).messages is None

    def test_a_conversation_a_row_and_its_text_are_kept(self):
        [named] = canonical([trajectory(conversation=[[QUESTION], None], conversation_text=["a", "b"])])
        batch = RolloutBatch.from_dict(named)
        assert batch.messages == [[QUESTION], None]
        assert batch.extras == [{"conversation_text": "a"}, {"conversation_text": "b"}]

    def test_dropped_trajectories_and_batches_of_ours_come_back_as_they_are(self):
        ours = RolloutBatch(**trajectory())
        assert canonical([None, ours]) == [None, ours]
        assert canonical(ours) is ours

    def test_what_is_no_list_of_areals_comes_back_as_it_is(self):
        plain = trajectory()
        assert canonical("text") == "text" and canonical(b"text") == b"text" and canonical(None) is None
        [same] = canonical([plain])
        assert same == plain
        [other] = canonical([{"messages": [QUESTION], "reward": 1.0}])
        assert other == {"messages": [QUESTION], "reward": 1.0}

    def test_texts_of_other_rows_than_there_are_belong_to_none(self):
        [named] = canonical([trajectory(conversation_text=["a"], messages=[[QUESTION]])])
        batch = RolloutBatch.from_dict(named)
        assert batch.extras is None and batch.messages is None

    def test_the_first_kind_of_conversation_that_holds_something_counts(self):
        [named] = canonical([trajectory(messages=[], conversation=[[QUESTION], [QUESTION, QUESTION]])])
        assert RolloutBatch.from_dict(named).messages == [[QUESTION], [QUESTION, QUESTION]]

    def test_handles_are_fetched_from_a_copy(self, handle):
        given = trajectory(logprobs=handle)
        [named] = canonical([given])
        assert named["logprobs"].shape == (2, 3)
        assert given["logprobs"] is handle


class TestWithoutTokens:
    ASKED = {"request": [QUESTION], "response": "4", "reward": 1}

    def test_interactions_are_conversations_with_their_rewards(self):
        silent = {"request": (), "response": None, "reward": None}
        batch = batch_of({"interactions": [self.ASKED, silent]})
        assert batch.messages == [
            [QUESTION, {"role": "assistant", "content": "4"}],
            [{"role": "assistant", "content": ""}],
        ]
        assert batch.rewards.tolist() == [1.0, None]
        assert batch.input_ids.shape == (2, 1) and not batch.attention_mask.any()
        assert not batch.loss_mask.any()

    def test_they_are_what_a_logger_takes(self):
        [batch] = canonical([{"interactions": [self.ASKED]}])
        assert batch.messages[0][-1]["content"] == "4"

    def test_tokens_that_were_left_out_leave_the_rewards(self):
        left = {
            "rewards": torch.tensor([1.0, 2.0, 3.0]),
            "original_rewards": torch.zeros(3),
            TOKENS_LEFT_OUT: True,
        }
        batch = batch_of(left)
        assert batch.rewards.tolist() == [1.0, 2.0, 3.0] and batch.raw_rewards.tolist() == [0.0] * 3
        assert batch.input_ids.shape == (3, 1) and batch.messages is None

    def test_a_dict_that_holds_no_rollout_is_refused_with_its_keys(self):
        with pytest.raises(BatchError, match=r"Seen a, rewards\."):
            batch_of({"rewards": torch.ones(2), "a": 1})
        with pytest.raises(BatchError, match="Seen no keys"):
            batch_of({})


class TestBatches:
    def test_each_dict_is_a_group_with_its_place_in_the_list(self):
        batches = batches_from([trajectory(), None, trajectory(1)])
        assert [[each.index_in_list for each in batch.group_ids] for batch in batches] == [[0, 0], [2]]
        assert len({each for batch in batches for each in batch.group_ids}) == 2

    def test_of_handles_beyond_the_bytes_only_rewards_are_fetched(self, handle):
        """A handle has 24 bytes of tokens."""
        given = [trajectory(logprobs=handle, other=1), None, trajectory(logprobs=handle, values=handle)]
        whole, rest = resolve(given, max_bytes=24)
        assert whole["logprobs"].shape == (2, 3) and "other" not in whole and TOKENS_LEFT_OUT not in whole
        assert set(rest) == {"rewards", TOKENS_LEFT_OUT}
        assert TOKENS_LEFT_OUT in resolve(given[:1], max_bytes=23)[0]
        assert all("logprobs" in each for each in resolve(given, max_bytes=72))
        assert TOKENS_LEFT_OUT in resolve(given, max_bytes=71)[1]

    def test_without_handles_nothing_is_fetched_or_left_out(self):
        given = trajectory(other=1)
        [found] = resolve([None, given], max_bytes=0)
        assert found == given and found is not given
