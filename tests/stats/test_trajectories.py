"""AReaL's dicts with handles, names and conversations of its own come out under ours."""

from __future__ import annotations

import torch

from rollout_traces.model.batch import RolloutBatch
from rollout_traces.stats.trajectories import canonical

QUESTION = {"role": "user", "content": "2+2?"}


def trajectory(rows: int = 2, **more):
    return {
        "input_ids": torch.tensor([[5, 6, 7]] * rows),
        "attention_mask": torch.ones(rows, 3, dtype=torch.bool),
        "loss_mask": torch.tensor([[0, 1, 1]] * rows),
        "rewards": torch.ones(rows),
        **more,
    }


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

    def test_handles_are_fetched_from_a_copy(self, monkeypatch):
        import sys
        from types import ModuleType

        module = ModuleType("areal.infra.rpc.rtensor")

        class Handle:
            shape, dtype, shard = (2, 3), torch.float32, "s1"

            def to_local(self):
                return torch.zeros(2, 3)

        class RTensor:
            @staticmethod
            def localize(batch):
                return [
                    {
                        key: value.to_local() if isinstance(value, Handle) else value
                        for key, value in item.items()
                    }
                    for item in batch
                ]

        module.RTensor = RTensor
        module.clear_fetch_buffer = module.flatten_shard_ids = lambda _: []
        for name in ("areal", "areal.infra", "areal.infra.rpc"):
            monkeypatch.setitem(sys.modules, name, ModuleType(name))
        monkeypatch.setitem(sys.modules, "areal.infra.rpc.rtensor", module)
        handle = Handle()
        given = trajectory(logprobs=handle)
        [named] = canonical([given])
        assert named["logprobs"].shape == (2, 3)
        assert given["logprobs"] is handle
