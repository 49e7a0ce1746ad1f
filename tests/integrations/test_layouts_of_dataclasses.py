"""Trainers whose packages cannot run here: their published structures, mirrored, come out as the same rollouts."""

from __future__ import annotations

import asyncio
import threading
from types import SimpleNamespace as Mirror

import numpy as np
import pytest

from rollout_traces.errors import BatchError
from rollout_traces.integrations import art, nemo_rl, open_instruct, prime_rl, rllm, skyrl, tinker

PROMPT, ANSWER, OBSERVED, SECOND = [5, 6], [7, 8], [9], [10, 2]
"""A rollout of two turns: the second call's prompt holds the first call and what the environment wrote."""
LOGPROBS = [-0.5, -0.25], [-1.0, -2.0]
REWARD = 0.75


def in_tinker():
    def transition(prompt, tokens, logprobs, reward):
        chunks = [Mirror(tokens=prompt)]
        action = Mirror(tokens=tokens, maybe_logprobs=logprobs, stop_reason="stop")
        return Mirror(ob=Mirror(chunks=chunks), ac=action, reward=reward, metrics={})

    turns = [
        transition(PROMPT, ANSWER, LOGPROBS[0], 0.25),
        transition([*PROMPT, *ANSWER, *OBSERVED], SECOND, LOGPROBS[1], 0.0),
    ]
    trajectory = Mirror(transitions=turns, final_ob=None, stop_reason=None)
    return tinker.batches_from([Mirror(trajectories_G=[trajectory], final_rewards_G=[0.5], metrics_G=[{}])])


def in_rllm():
    steps = [
        Mirror(prompt_ids=PROMPT, response_ids=ANSWER, logprobs=LOGPROBS[0]),
        Mirror(prompt_ids=[*PROMPT, *ANSWER, *OBSERVED], response_ids=SECOND, logprobs=LOGPROBS[1]),
    ]
    trajectory = Mirror(name="solver", steps=steps, reward=REWARD)
    episode = Mirror(id="t1:0", termination_reason=None, is_correct=True, trajectories=[trajectory])
    return rllm.batches_from([episode])


def whole(values, between):
    return [*values[0], between, *values[1]]


def in_skyrl():
    return skyrl.batches_from(
        {
            "prompt_token_ids": [PROMPT],
            "response_ids": [[*ANSWER, *OBSERVED, *SECOND]],
            "rewards": [[0.0, 0.25, 0.0, 0.0, 0.5]],
            "loss_masks": [[1, 1, 0, 1, 1]],
            "stop_reasons": ["stop"],
            "rollout_logprobs": [whole(LOGPROBS, 0.0)],
            "trajectory_ids": [Mirror(instance_id="a", repetition_id=0)],
        }
    )


def in_nemo_rl():
    return nemo_rl.batches_from(
        {
            "token_ids": [[*PROMPT, *ANSWER, *OBSERVED, *SECOND, 0]],
            "token_loss_mask": [[0, 0, 1, 1, 0, 1, 1, 1]],
            "sample_loss_mask": [1.0],
            "input_lengths": [7],
            "rewards": [REWARD],
            "generation_logprobs": [[0.0, 0.0, *whole(LOGPROBS, 0.0), 0.0]],
        },
        group_size=1,
    )


def in_open_instruct():
    batch = Mirror(queries=[PROMPT], scores=[REWARD], ground_truths=["4"], datasets=["math"])
    result = Mirror(
        responses=[[*ANSWER, *OBSERVED, *SECOND]],
        masks=[[1, 1, 0, 1, 1]],
        finish_reasons=["stop"],
        logprobs=[whole(LOGPROBS, 0.0)],
        model_step=3,
    )
    return open_instruct.batches_from(batch, result, [0.5], group_size=1)


def in_art():
    nan = float("nan")
    result = Mirror(
        token_ids=[*PROMPT, *ANSWER, *OBSERVED, *SECOND],
        assistant_mask=[0, 0, 1, 1, 0, 1, 1],
        logprobs=[nan, nan, *whole(LOGPROBS, nan)],
        advantage=0.5,
        prompt_id=4,
        trajectory=Mirror(reward=REWARD, metrics={"length": 2}),
    )
    return art.batches_from([result])


def episode():
    """A verifiers v1 record: one trace of four messages."""

    def node(parent, role, ids, sampled=False, logprobs=None):
        return {
            "parent": parent,
            "message": {"role": role, "content": "x"},
            "sampled": sampled,
            "token_ids": ids,
            "mask": [sampled] * len(ids),
            "logprobs": logprobs,
        }

    nodes = [
        node(None, "user", PROMPT),
        node(0, "assistant", ANSWER, True, LOGPROBS[0]),
        node(1, "tool", OBSERVED),
        node(2, "assistant", SECOND, True, LOGPROBS[1]),
    ]
    trace = {"id": "t", "nodes": nodes, "rewards": {"right": {"score": REWARD, "weight": 1.0}}}
    return {"id": "e", "group": {"id": "g"}, "traces": [trace]}


def in_prime_rl():
    return prime_rl.batches_from([Mirror(to_record=episode)], step=3)


LAYOUTS = {
    "prime-rl": in_prime_rl,
    "tinker-cookbook": in_tinker,
    "rLLM": in_rllm,
    "SkyRL": in_skyrl,
    "NeMo-RL": in_nemo_rl,
    "open-instruct": in_open_instruct,
    "ART": in_art,
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_two_turns_come_out_as_one_row_with_its_mask_logprobs_and_reward(layout):
    [batch] = LAYOUTS[layout]()
    attended = np.asarray(batch.attention_mask[0]).astype(bool)
    assert np.asarray(batch.input_ids[0])[attended].tolist() == [*PROMPT, *ANSWER, *OBSERVED, *SECOND]
    mask = np.asarray(batch.loss_mask[0]).astype(int)[attended]
    assert mask.tolist() == [0, 0, 1, 1, 0, 1, 1]
    logprobs = np.ma.filled(np.ma.asarray(batch.logprobs[0]), np.nan)[attended]
    np.testing.assert_allclose(logprobs[mask == 1], [*LOGPROBS[0], *LOGPROBS[1]])
    assert np.asarray(batch.rewards).tolist() == [REWARD]


class TestModelCalls:
    def test_a_context_that_was_rewritten_begins_another_row_of_the_episode(self):
        steps = [
            Mirror(prompt_ids=[1, 2], response_ids=[3], logprobs=[-1.0]),
            Mirror(prompt_ids=[1, 9], response_ids=[4], logprobs=[-1.0]),
        ]
        trajectory = Mirror(name="solver", steps=steps, reward=None)
        episode = Mirror(id="t1:0", termination_reason=None, is_correct=False, trajectories=[trajectory])
        [batch] = rllm.batches_from([episode])
        assert batch.episode_ids == ["t1:0", "t1:0"]
        assert batch.input_ids.tolist() == [[1, 2, 3], [1, 9, 4]]

    def test_turns_are_numbered(self):
        [batch] = in_rllm()
        assert batch.turn_ids.tolist() == [[-1, -1, 0, 0, -1, 1, 1]]

    def test_logprobs_of_another_length_are_refused(self):
        steps = [Mirror(prompt_ids=[1], response_ids=[3, 4], logprobs=[-1.0])]
        trajectory = Mirror(name="s", steps=steps, reward=None)
        episode = Mirror(id="t:0", termination_reason=None, is_correct=False, trajectories=[trajectory])
        with pytest.raises(BatchError, match=r"model call 0: 1 logprobs\. Expected 2"):
            rllm.batches_from([episode])


def run_at_once(coroutine) -> None:
    """Runs a coroutine in a thread, also where a browser's event loop is running in this one."""
    thread = threading.Thread(target=asyncio.run, args=(coroutine,))
    thread.start()
    thread.join()


class TestPrimeRl:
    def test_a_watched_monitor_logs_what_is_trained_on_and_closes_the_step(self):
        calls = []

        class Monitor:
            async def log_episodes(self, episodes, step, kind, subset):
                calls.append(("monitor", subset))

        logger = Mirror(
            log_rollouts=lambda batches, *, step, split: calls.append((step, split, batches[0].n_rows)),
            close_step=lambda step, split: calls.append(("close", step, split)),
        )
        monitor = Monitor()
        prime_rl.attach(monitor, logger)
        prime_rl.attach(monitor, logger)
        for kind, subset in (("train", "all"), ("train", "effective"), ("eval", "effective")):
            run_at_once(monitor.log_episodes([episode()], 4, kind, subset))
        assert calls == [
            ("monitor", "all"),
            (4, "rollout", 1),
            ("close", 4, "rollout"),
            ("monitor", "effective"),
            (4, "eval-rollout", 1),
            ("close", 4, "eval-rollout"),
            ("monitor", "effective"),
        ]


class TestWhatEachKnows:
    def test_tinker_leaves_turns_out_of_the_loss_whose_parse_errors_are_masked(self):
        ac = Mirror(tokens=[3], maybe_logprobs=None, stop_reason="stop")
        turn = Mirror(
            ob=Mirror(chunks=[Mirror(tokens=[1])]), ac=ac, reward=1.0, metrics={"parse_error_masked": 1}
        )
        group = Mirror(
            trajectories_G=[Mirror(transitions=[turn], stop_reason=None)],
            final_rewards_G=[0.0],
            metrics_G=[{}],
        )
        [batch] = tinker.batches_from([group])
        assert batch.response_mask.astype(int).tolist() == [[0, 1]]
        assert batch.loss_mask.astype(int).tolist() == [[0, 0]]

    def test_nemo_rl_rows_left_out_of_the_loss_keep_what_was_sampled(self):
        data = {
            "token_ids": [[1, 2], [1, 3]],
            "token_loss_mask": [[0, 1], [0, 1]],
            "sample_loss_mask": [1, 0],
            "input_lengths": [2, 2],
            "rewards": [1, 0],
        }
        [batch] = nemo_rl.batches_from(data, group_size=2)
        assert batch.loss_mask.astype(int).tolist() == [[0, 1], [0, 0]]
        assert batch.response_mask.astype(int).tolist() == [[0, 1], [0, 1]]
        assert batch.group_ids == [0, 0]
        with pytest.raises(BatchError, match=r"2 rows\. Expected a multiple of group_size = 3"):
            nemo_rl.batches_from(data, group_size=3)

    def test_skyrl_groups_are_instances_unless_uids_are_given(self):
        [batch] = in_skyrl()
        assert batch.group_ids == ["a"]
        assert batch.token_rewards[0, 2:].tolist() == [0.0, 0.25, 0.0, 0.0, 0.5]
        with pytest.raises(BatchError, match="'loss_masks' is missing"):
            skyrl.batches_from({"prompt_token_ids": [], "response_ids": [], "rewards": []})

    def test_skyrls_turns_have_the_reward_of_their_trajectorys_last_turn(self):
        [batch] = skyrl.batches_from(
            {
                "prompt_token_ids": [[1], [1, 2], [3]],
                "response_ids": [[2], [4], [5]],
                "rewards": [[0.5], [1.0], [0.25]],
                "loss_masks": [[1], [1], [1]],
                "is_last_step": [False, True, True],
                "env_metrics": [{}, {"left": 2.0, "name": "x"}, {"left": True}],
            }
        )
        assert batch.rewards.tolist() == [1.0, 1.0, 0.25]
        assert list(batch.sample_metrics) == ["left"]
        np.testing.assert_array_equal(batch.sample_metrics["left"], [np.nan, 2.0, np.nan])

    def test_histories_of_one_trajectory_of_arts_are_an_episode_of_one_version(self):
        def result(trajectory):
            return Mirror(
                token_ids=[1, 2],
                assistant_mask=[0, 1],
                logprobs=[float("nan"), -1.0],
                advantage=0.5,
                prompt_id=4,
                trajectory=trajectory,
            )

        def trajectory(last):
            return Mirror(reward=1.0, metrics={}, initial_policy_version=3, final_policy_version=last)

        one, other = trajectory(3), trajectory(3)
        [batch] = art.batches_from([result(one), result(one), result(other)])
        assert batch.episode_ids == ["trajectory-0", "trajectory-0", "trajectory-1"]
        assert batch.versions.tolist() == [[-1, 3]] * 3
        [batch] = art.batches_from([result(one), result(trajectory(4))])
        assert batch.versions is None

    def test_tinkers_advantages_are_those_of_its_groups_and_zero_in_a_masked_turn(self):
        def turn(prompt, tokens, **metrics):
            ac = Mirror(tokens=tokens, maybe_logprobs=None, stop_reason="stop")
            return Mirror(ob=Mirror(chunks=[Mirror(tokens=prompt)]), ac=ac, reward=1.0, metrics=metrics)

        turns = [
            turn([1], [3], parse_error_masked=1.0),
            turn([1, 3, 4], [5], **{"of/parse_error_masked": 1.0}),
        ]
        group = Mirror(
            trajectories_G=[Mirror(transitions=turns, stop_reason=None)],
            final_rewards_G=[0.0],
            metrics_G=[{}],
        )
        [batch] = tinker.batches_from([group], [[0.75]])
        assert batch.loss_mask.astype(int).tolist() == [[0, 0, 0, 1]]
        assert batch.advantages[0, [1, 3]].tolist() == [0.0, 0.75]

    def test_prime_rls_records_are_not_rounded(self):
        class Rounding:
            def to_record(self, float_decimals=4):
                record = episode()
                for node in record["traces"][0]["nodes"]:
                    node["logprobs"] = node["logprobs"] and [
                        value if float_decimals is None else 0.0 for value in node["logprobs"]
                    ]
                return record

        [batch] = prime_rl.batches_from([Rounding()], step=3)
        assert batch.logprobs[0, [2, 3]].tolist() == [-0.5, -0.25]

    def test_open_instruct_names_the_version_of_sampled_tokens(self):
        [batch] = in_open_instruct()
        assert batch.versions.tolist() == [[-1, -1, 3, 3, -1, 3, 3]]
