"""tinker-cookbook's real group rollouts and training data; compared with what was stored.

Real: `do_group_rollout`, the environments' protocol, trajectories, `compute_advantages`, `assemble_training_data`
with its merged turns. Standing in: the sampler, which writes tokens at random, and the optimiser's service.
"""

from __future__ import annotations

import asyncio
import random

from adapter_rows import Comparison, Row

# isort: split
# What is imported above sets where Trackio writes.
import tinker
from tinker_cookbook.completers import TokenCompleter, TokensWithLogprobs
from tinker_cookbook.rl import data_processing
from tinker_cookbook.rl.rollouts import do_group_rollout
from tinker_cookbook.rl.types import Env, EnvGroupBuilder, InitialObservationOverflow, StepResult

from rollout_traces.integrations import tinker as integration
from tests.generator import tiny_tokenizer

STEPS, GROUPS, GROUP = 8, 16, 4


class Sampler(TokenCompleter):
    """Tokens at random."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng

    async def __call__(self, model_input, stop, *, max_tokens=None):
        tokens = [self.rng.randrange(300, 1500) for _ in range(self.rng.randrange(1, 12))]
        return TokensWithLogprobs(
            tokens, [-self.rng.random() * 3 for _ in tokens], self.rng.choice(["stop", "length"])
        )


class Turns(Env):
    """Up to five turns; its context is sometimes rewritten, its turns are sometimes masked as parse errors."""

    def __init__(self, prompt: list[int], rng: random.Random) -> None:
        self.prompt, self.rng, self.n_turns = list(prompt), rng, rng.randrange(1, 6)

    async def initial_observation(self):
        if self.rng.random() < 0.03:
            return InitialObservationOverflow(reward=-1.0, metrics={"stop/max_tokens": 1.0})
        return tinker.ModelInput.from_ints(self.prompt), []

    async def step(self, action, *, extra=None):
        self.n_turns -= 1
        written = [self.rng.randrange(300, 1500) for _ in range(self.rng.randrange(0, 6))]
        if self.rng.random() < 0.15:
            self.prompt = [*self.prompt[:2], 299, *written]  # a compaction
        else:
            self.prompt += [*action, *written]
        metrics = {"parse_error_masked": 1.0} if self.rng.random() < 0.1 else {}
        done = self.n_turns == 0
        return StepResult(
            reward=self.rng.choice([0.0, 0.25]),
            episode_done=done,
            next_observation=tinker.ModelInput.from_ints(self.prompt),
            next_stop_condition=[],
            metrics={**metrics, "stop/completed": 1.0} if done else metrics,
        )


class Builder(EnvGroupBuilder):
    """A group of such environments, rewarded together."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.prompt = [rng.randrange(300, 1500) for _ in range(rng.randrange(2, 20))]

    async def make_envs(self):
        return [Turns(self.prompt, self.rng) for _ in range(GROUP)]

    async def compute_group_rewards(self, trajectory_group, env_group):
        return [(self.rng.choice([0.0, 1.0]), {}) for _ in trajectory_group]


def one_step(rng: random.Random):
    """A step's groups, advantages and training data, as `prepare_minibatch` makes them."""

    async def sample():
        policy = Sampler(rng)
        return await asyncio.gather(*[do_group_rollout(Builder(rng), policy) for _ in range(GROUPS)])

    groups = asyncio.run(sample())
    advantages = data_processing.compute_advantages(groups)
    return groups, advantages, data_processing.assemble_training_data(groups, advantages)


def rows_of_step(groups, training) -> list[Row]:
    """The datums as rows: their targets are a token late, and their first token has none."""
    rows = []
    for datum, place in zip(*training, strict=True):
        group = groups[place["group_idx"]]
        inputs = {name: value.to_torch().tolist() for name, value in datum.loss_fn_inputs.items()}
        first = datum.model_input.to_ints()[0]
        trained = [0, *inputs["mask"]]
        trajectory = group.trajectories_G[place["traj_idx"]]
        rows.append(
            Row(
                ids=[first, *map(int, inputs["target_tokens"])],
                trained=trained,
                # A masked turn has logprobs and no mask; the trainer keeps no other trace of what was sampled.
                sampled=[
                    value or logprob != 0
                    for value, logprob in zip(trained, [0, *inputs["logprobs"]], strict=True)
                ],
                reward=group.get_total_rewards()[place["traj_idx"]],
                group=place["group_idx"],
                episode=(place["group_idx"], place["traj_idx"]),
                tracks={name: [0.0, *inputs[name]] for name in ("logprobs", "advantages")},
                metadata={"stop_reason": trajectory.stop_reason},
            )
        )
    # A prompt that was too long makes no datum; its reward is in the group all the same, and it is logged.
    rows += [
        Row([], [], group.get_total_rewards()[t], g, episode=(g, t), metadata={"stop_reason": "max_tokens"})
        for g, group in enumerate(groups)
        for t, trajectory in enumerate(group.trajectories_G)
        if not trajectory.transitions[0].ac.tokens
    ]
    return rows


def main() -> None:
    """Samples and compares."""
    rng = random.Random(0)
    comparison = Comparison("tinker-cookbook", "tinker-cookbook", tiny_tokenizer())
    for step in range(STEPS):
        groups, _, training = comparison.step(
            step, lambda: one_step(rng), lambda made: integration.batches_from(made[0], made[1])
        )
        comparison.add(step, rows_of_step(groups, training))
    comparison.finish()


if __name__ == "__main__":
    main()
