"""Trainers that are on no registry: 512 random rollouts in each one's published structures, compared value for value.

The structures have the names of the trainers' sources of August 2026: slime's `Sample`, rLLM's `Episode`, NeMo-RL's
training log, open-instruct's `Batch` and `GenerationResult`. What each trainer makes of them for its loss is said beside
each layout.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import numpy as np
import pytest

from rollout_traces.capture.host_copy import capture
from rollout_traces.errors import BatchError
from rollout_traces.integrations import nemo_rl, open_instruct, rllm, slime

ROWS, GROUP, STEP = 512, 4, 7


@dataclass(frozen=True)
class Turn:
    """What the environment wrote, and the policy's answer with its logprobs."""

    observed: list[int]
    answer: list[int]
    logprobs: list[float]


@dataclass(frozen=True)
class Rollout:
    """One rollout; the first turn's `observed` is its prompt."""

    number: int
    turns: list[Turn]
    reward: float
    version: int
    advantage: float
    in_loss: bool

    @property
    def prompt(self) -> list[int]:
        return self.turns[0].observed

    @property
    def response(self) -> list[int]:
        return [token for turn in self.after_prompt() for token in turn[0]]

    @property
    def mask(self) -> list[int]:
        return [value for _, sampled, _ in self.after_prompt() for value in sampled]

    @property
    def logprobs(self) -> list[float]:
        return [value for _, _, logprobs in self.after_prompt() for value in logprobs]

    def after_prompt(self) -> list[tuple[list[int], list[int], list[float]]]:
        """(tokens, sampled, logprobs) of each answer and of what came between them."""
        found = []
        for number, turn in enumerate(self.turns):
            if number:
                found.append((turn.observed, [0] * len(turn.observed), [0.0] * len(turn.observed)))
            found.append((turn.answer, [1] * len(turn.answer), turn.logprobs))
        return found


def rollouts(seed: int = 0) -> list[Rollout]:
    """512 rollouts of one to four turns, in groups of four that share a prompt."""
    rng = random.Random(seed)

    def ids(least: int, most: int) -> list[int]:
        return [rng.randrange(5, 30_000) for _ in range(rng.randrange(least, most))]

    made = []
    for number in range(ROWS):
        prompt = ids(1, 40) if number % GROUP == 0 else made[-1].prompt
        turns = []
        for turn in range(rng.randrange(1, 5)):
            answer = ids(1, 30)
            turns.append(Turn(ids(0, 12) if turn else prompt, answer, [-rng.random() * 4 for _ in answer]))
        made.append(
            Rollout(
                number=number,
                turns=turns,
                reward=rng.choice([0.0, 0.25, 1.0]),
                version=rng.randrange(3, STEP),
                advantage=rng.gauss(0, 1),
                in_loss=rng.random() > 0.1,
            )
        )
    return made


class Status(Enum):
    COMPLETED = "completed"
    TRUNCATED = "truncated"


@dataclass
class Sample:
    """slime's, as far as its training data is made of it: `remove_sample` makes the loss mask zero."""

    group_index: int
    index: int
    rollout_id: int | None
    tokens: list[int]
    response_length: int
    loss_mask: list[int] | None
    reward: float | dict[str, Any]
    weight_versions: list[str]
    rollout_log_probs: list[float]
    remove_sample: bool = False
    label: str | None = None
    status: Status = Status.COMPLETED


def in_slime(rows: Sequence[Rollout]) -> list:
    samples = [
        Sample(
            group_index=row.number // GROUP,
            index=row.number,
            rollout_id=row.number // 2,
            tokens=[*row.prompt, *row.response],
            response_length=len(row.response),
            loss_mask=row.mask if 0 in row.mask else None,
            reward={"score": row.reward, "note": "seen"},
            weight_versions=[str(row.version)] * len(row.turns),
            rollout_log_probs=row.logprobs,
            remove_sample=not row.in_loss,
        )
        for row in rows
    ]
    return slime.batches_from(samples, reward_key="score")


@dataclass
class Step:
    """rLLM's: a model call."""

    prompt_ids: list[int]
    response_ids: list[int]
    logprobs: list[float]
    weight_version: int | None
    advantage: float | list[float] | None


@dataclass
class Trajectory:
    name: str
    steps: list[Step]
    reward: float | None


@dataclass
class Episode:
    id: str
    is_correct: bool
    trajectories: list[Trajectory]
    termination_reason: Any = None
    metrics: dict = field(default_factory=dict)


def in_rllm(rows: Sequence[Rollout]) -> list:
    """A step's prompt is all before it, so that rLLM merges the steps of a trajectory into one row."""
    episodes = []
    for row in rows:
        seen: list[int] = []
        steps = []
        for turn in row.turns:
            seen = [*seen, *turn.observed]
            advantage = [row.advantage] * len(turn.answer) if row.number % 2 else row.advantage
            steps.append(Step(list(seen), turn.answer, turn.logprobs, row.version, advantage))
            seen += turn.answer
        name = f"task-{row.number // GROUP}:{row.number % GROUP}"
        episodes.append(Episode(name, row.reward == 1.0, [Trajectory("solver", steps, row.reward)]))
    return rllm.batches_from(episodes)


def in_nemo_rl(rows: Sequence[Rollout]) -> list:
    """Right-padded lists; values lie at their token; `rewards` has those of filtered rollouts as well."""
    width = max(len(row.prompt) + len(row.response) for row in rows) + 3

    def padded(values: Callable[[Rollout], list], before: Any = 0) -> list[list]:
        made = [[before] * len(row.prompt) + values(row) for row in rows]
        return [[*row, *[before] * (width - len(row))] for row in made]

    return nemo_rl.batches_from(
        {
            "content": ["text"] * len(rows),
            "rewards": [0.5] * (len(rows) + 8),
            "filtered_rewards": [row.reward for row in rows],
            "input_lengths": [len(row.prompt) + len(row.response) for row in rows],
            "token_ids": [
                [*row.prompt, *row.response, *[0] * (width - len(row.prompt) - len(row.response))]
                for row in rows
            ],
            "token_loss_mask": padded(lambda row: row.mask),
            "sample_loss_mask": [float(row.in_loss) for row in rows],
            "advantages": padded(lambda row: [row.advantage] * len(row.response)),
            "generation_logprobs": padded(lambda row: row.logprobs, 0.0),
            "prev_logprobs": padded(lambda row: [value - 0.125 for value in row.logprobs], 0.0),
        },
        group_size=GROUP,
    )


@dataclass
class Batch:
    """open-instruct's."""

    queries: list[list[int]]
    ground_truths: list[str]
    datasets: list[str]
    scores: list[float]
    model_steps: list[int]


@dataclass
class GenerationResult:
    """open-instruct's, of a whole batch; its `model_step` is that of one of its prompts."""

    responses: list[list[int]]
    finish_reasons: list[str]
    masks: list[list[int]]
    logprobs: list[list[float]]
    model_step: int = 0


def in_open_instruct(rows: Sequence[Rollout]) -> list:
    batch = Batch(
        queries=[row.prompt for row in rows],
        ground_truths=["4"] * len(rows),
        datasets=["math"] * len(rows),
        scores=[row.reward for row in rows],
        model_steps=[row.version for row in rows],
    )
    result = GenerationResult(
        responses=[row.response for row in rows],
        finish_reasons=["stop"] * len(rows),
        masks=[row.mask for row in rows],
        logprobs=[row.logprobs for row in rows],
    )
    return open_instruct.batches_from(batch, result, [row.advantage for row in rows], group_size=GROUP)


LAYOUTS = {"slime": in_slime, "rLLM": in_rllm, "NeMo-RL": in_nemo_rl, "open-instruct": in_open_instruct}
KNOWN = {
    "slime": {"versions", "logprobs"},
    "rLLM": {"versions", "logprobs", "advantages"},
    "NeMo-RL": {"logprobs", "prox_logprobs", "advantages"},
    "open-instruct": {"versions", "logprobs"},
}
LEAVES_ROWS_OUT = {"slime", "NeMo-RL"}
"""Trainers whose structures say that a row is left out of the loss."""


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_row_has_the_trainers_tokens_masks_values_reward_and_group(layout):
    rows = rollouts()
    host = capture(LAYOUTS[layout](rows), step=STEP, split="rollout")
    assert host.n_rows == len(rows)
    assert set(host.tracks) - {"turn_ids"} == KNOWN[layout]
    groups: dict[int, int] = {}
    for b, row in enumerate(rows):
        where, sampled = host.row(b), np.asarray([0] * len(row.prompt) + row.mask, bool)
        assert host.input_ids[where].tolist() == [*row.prompt, *row.response]
        assert host.response_mask[where].tolist() == sampled.tolist()
        in_loss = sampled if row.in_loss or layout not in LEAVES_ROWS_OUT else np.zeros_like(sampled)
        assert host.loss_mask[where].tolist() == in_loss.tolist()
        assert host.row_floats["rewards"][b] == row.reward
        assert groups.setdefault(row.number // GROUP, host.group_ids[b]) == host.group_ids[b]
        before = [0.0] * len(row.prompt)
        wanted = {
            "logprobs": [*before, *row.logprobs],
            "prox_logprobs": [*before, *[value - 0.125 for value in row.logprobs]],
            "advantages": [row.advantage] * len(sampled),
            "versions": [row.version] * len(sampled),
        }
        for name in KNOWN[layout]:
            found = host.tracks[name][where][sampled]
            np.testing.assert_allclose(found, np.asarray(wanted[name])[sampled], rtol=1e-3, atol=1e-4)
        if "versions" in KNOWN[layout]:
            assert (host.tracks["versions"][where][~sampled] == -1).all()
    assert len(set(groups.values())) == len(rows) // GROUP


def test_slimes_samples_of_one_rollout_are_an_episode():
    rows = rollouts()[:4]
    [batch] = in_slime(rows)
    assert batch.episode_ids == ["0", "0", "1", "1"]


def test_nemo_rl_rewards_that_are_not_those_of_the_rows_are_refused():
    data = {
        "token_ids": [[1, 2]],
        "token_loss_mask": [[0, 1]],
        "input_lengths": [2],
        "rewards": [1.0, 0.0],
    }
    with pytest.raises(BatchError, match=r"2 rewards\. Expected 1, one a row"):
        nemo_rl.batches_from(data)


def test_open_instruct_puts_tool_tokens_into_the_loss_where_it_masks_none():
    row = Rollout(0, [Turn([5], [6], [-1.0]), Turn([7], [8], [-1.0])], 1.0, 3, 0.5, True)
    batch = Batch([row.prompt], ["4"], ["math"], [1.0], [])
    result = GenerationResult([row.response], ["stop"], [row.mask], [row.logprobs], model_step=2)
    [made] = open_instruct.batches_from(batch, result, group_size=1, mask_tool_use=False)
    assert made.loss_mask.astype(int).tolist() == [[0, 1, 1, 1]]
    assert made.response_mask.astype(int).tolist() == [[0, 1, 0, 1]]
    assert made.versions.tolist() == [[-1, 2, -1, 2]]


def test_steps_of_rllm_whose_version_is_unknown_leave_the_versions_unknown():
    steps = [Step([1], [2], [-1.0], 3, None), Step([1, 2], [4], [-1.0], None, None)]
    [batch] = rllm.batches_from([Episode("t:0", True, [Trajectory("s", steps, 1.0)])])
    assert batch.versions is None
    assert batch.advantages is None
