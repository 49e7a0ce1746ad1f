"""One odd step, every metric family computed again with loops over its definition."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import numpy as np
import pytest

from rollout_traces.metrics import rollout_metrics
from rollout_traces.model.batch import RolloutBatch
from rollout_traces.settings.run_settings import RunSettings
from tests.metrics.builders import without_split

B, T, TRAINED = 12, 40, 5
WEIGHTS = {"a": 2.0, "b": 3.0}
SETTINGS = RunSettings(clip_low=0.2, clip_high=0.3, component_weights=WEIGHTS)
DISCARDED = {5: "too_long", 6: "too_long", 7: "max_async"}


@dataclass(frozen=True, eq=False)
class Made:
    """A batch of 12 rows in three groups, and what it was made of.

    Attributes:
        arrays: canonical keys; float tracks at the precision of the spool.
        sampled: per row, the columns of its sampled tokens.
        groups: per group, its rows.
        metrics: what `rollout_metrics` gives of it.
    """

    arrays: dict[str, np.ndarray]
    sampled: list[np.ndarray]
    groups: list[list[int]]
    metrics: dict[str, float]

    def of(self, key: str) -> np.ndarray:
        """The sampled tokens' values, rows end to end."""
        return np.concatenate([self.arrays[key][row, at] for row, at in enumerate(self.sampled)])

    def per_token(self, values_B: np.ndarray) -> np.ndarray:
        """A row's value for each of its sampled tokens."""
        return np.repeat(values_B, [len(at) for at in self.sampled])

    @property
    def lengths(self) -> np.ndarray:
        return np.asarray([len(at) for at in self.sampled], float)


@pytest.fixture(scope="module")
def made() -> Made:
    rng = np.random.default_rng(7)
    attention, loss = np.zeros((B, T), bool), np.zeros((B, T), bool)
    versions = np.full((B, T), -1)
    for row in range(B):
        n = int(rng.integers(12, T + 1))
        start = int(rng.integers(0, T - n + 1))
        first = start + int(rng.integers(2, 6))
        attention[row, start : start + n] = True
        loss[row, first : start + n] = True
        if row % 3 == 0:
            loss[row, first + 2 : first + 4] = False
        versions[row][loss[row]] = rng.integers(3, 6)
    versions[4, np.flatnonzero(loss[4])[:3]] = 3

    def track(scale: float, around: np.ndarray | float = 0.0) -> np.ndarray:
        drawn = np.where(loss, around + rng.normal(0, scale, (B, T)), 0)
        return drawn.astype(np.float16).astype(np.float64)

    rollout = -np.abs(track(2.0))
    prox = track(0.3, rollout)
    rewards = rng.choice([0, 0.25, 1.0, 2.0], B)
    rewards[:4] = 1.0
    first_part = rng.random(B)
    arrays = {
        "input_ids": rng.integers(1, 6, (B, T)),
        "attention_mask": attention,
        "loss_mask": loss,
        "versions": versions,
        "logprobs": rollout,
        "prox_logprobs": prox,
        "new_logprobs": track(0.3, prox),
        "ref_logprobs": track(0.2, prox),
        "loss_weights": np.abs(track(1.0)),
        "advantages": rng.normal(0, 1, B),
        "rewards": rewards,
    }
    successes = [bool(value) for value in rng.integers(0, 2, B)]
    stops = [None if row == 1 else "length" if row in (0, 2, 4, 8) else "eos" for row in range(B)]
    batch = RolloutBatch(
        **arrays,
        reward_components={"a": first_part, "b": (rewards - 2 * first_part) / 3},
        successes=successes,
        stop_reasons=stops,
        discard_reasons=[DISCARDED.get(row) for row in range(B)],
        group_ids=np.repeat([30, 10, 20], 4),
        train_version=TRAINED,
    )
    metrics = without_split(rollout_metrics(batch, keys="full", settings=SETTINGS))
    more = {"successes": np.asarray(successes), "a": first_part}
    sampled = [np.flatnonzero(loss[row]) for row in range(B)]
    return Made({**arrays, **more}, sampled, [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]], metrics)


def assert_found(made: Made, **expected: float) -> None:
    """Names are keys; `__` stands for `/`."""
    for name, value in expected.items():
        key = name.replace("__", "/")
        assert made.metrics[key] == pytest.approx(float(value), rel=1e-5, abs=1e-7), key


def test_train_against_rollout(made):
    d = made.of("prox_logprobs") - made.of("logprobs")
    w = np.exp(d)
    sums = np.asarray(
        [
            (made.arrays["prox_logprobs"] - made.arrays["logprobs"])[b, at].sum()
            for b, at in enumerate(made.sampled)
        ]
    )
    rows = np.exp(sums)
    old = TRAINED - made.of("versions") >= 2
    assert_found(
        made,
        mismatch__k1=-d.mean(),
        mismatch__k3=(w - d - 1).mean(),
        mismatch__chi2=(w**2).mean() - 1,
        mismatch__mult_prob_error=np.exp(np.abs(d)).mean(),
        mismatch__prob_abs_diff=np.abs(np.exp(np.minimum(made.of("prox_logprobs"), 0)) - np.exp(made.of("logprobs"))).mean(),
        mismatch__ess_share=w.sum() ** 2 / (len(w) * (w**2).sum()),
        mismatch__ess_share_sequence=rows.sum() ** 2 / (B * (rows**2).sum()),
        mismatch__sequence_log_ratio_mean=sums.mean(),
        mismatch__sequence_log_ratio_max=sums.max(),
        mismatch__staleness_2_plus__k3=(w - d - 1)[old].mean(),
        identity__mean_ratio=w[made.of("versions") == TRAINED].mean(),
    )  # fmt: skip


def test_versions_and_the_reference(made):
    staleness = TRAINED - made.of("versions")
    d = made.of("ref_logprobs") - made.of("prox_logprobs")
    mixed = [len(set(made.arrays["versions"][b, at].tolist())) > 1 for b, at in enumerate(made.sampled)]
    assert_found(
        made,
        staleness__mean=staleness.mean(),
        staleness__max=staleness.max(),
        staleness__mixed_share=np.mean(mixed),
        ref__k1=-d.mean(),
        ref__k3=(np.exp(d) - d - 1).mean(),
        nll_estimate=-made.of("logprobs").mean(),
    )


def test_what_the_loss_does(made):
    ratio = np.exp(made.of("new_logprobs") - made.of("prox_logprobs"))
    advantage = made.per_token(made.arrays["advantages"])
    u = (
        np.abs(advantage)
        * made.of("loss_weights")
        * np.exp(made.of("prox_logprobs") - made.of("logprobs"))
        * (1 - np.exp(np.minimum(made.of("prox_logprobs"), 0)))
    )
    rows = made.per_token(np.arange(B))
    shares = np.asarray([0.0 if row in DISCARDED else u[rows == row].sum() for row in range(B)])
    shares = np.sort(shares / shares.sum())
    assert_found(
        made,
        ppo_ratio__std=ratio.std(),
        clip_share_low=np.mean((ratio < 0.8) & (advantage < 0)),
        clip_share_high=np.mean((ratio > 1.3) & (advantage > 0)),
        advantage__mean=advantage.mean(),
        advantage__std=advantage.std(),
        advantage__row_std=made.arrays["advantages"].std(),
        update__top3_share=shares[-3:].sum(),
        update__ess_rows=1 / (shares**2).sum(),
    )


def gini(values: np.ndarray) -> float:
    x = np.sort(values)
    n = len(x)
    raw = 2 * sum(i * value for i, value in enumerate(x, 1)) / (n * x.sum()) - (n + 1) / n
    return raw * n / (n - 1)


def test_groups(made):
    rewards, lengths = made.arrays["rewards"], made.lengths
    tied = [rows for rows in made.groups if np.ptp(rewards[rows]) < 1e-6]
    dx = np.concatenate([rewards[rows] - rewards[rows].mean() for rows in made.groups])
    dy = np.concatenate([lengths[rows] - lengths[rows].mean() for rows in made.groups])
    r = dx @ dy / math.sqrt(dx @ dx * (dy @ dy))
    assert tied
    assert_found(
        made,
        group__tie_share=len(tied) / 3,
        group__wasted_tokens=sum(lengths[rows].sum() for rows in tied),
        group__reward_std_mean=np.mean([rewards[rows].std() for rows in made.groups]),
        group__length_gini_mean=np.mean([gini(lengths[rows]) for rows in made.groups]),
        group__length_cv_mean=np.mean([lengths[rows].std() / lengths[rows].mean() for rows in made.groups]),
        group__length_max_median_ratio_mean=np.mean(
            [lengths[rows].max() / np.median(lengths[rows]) for rows in made.groups]
        ),
        group__reward_corr_length=r,
        group__reward_corr_length_z=math.atanh(r) * math.sqrt(B - 3 - 2),
    )


@pytest.mark.parametrize("k", [1, 2, 4])
def test_pass_at_k(made, k):
    at_least_one, all_of_them = [], []
    for rows in made.groups:
        draws = list(itertools.combinations(made.arrays["successes"][rows].tolist(), k))
        at_least_one.append(np.mean([any(draw) for draw in draws]))
        all_of_them.append(np.mean([all(draw) for draw in draws]))
    assert_found(
        made, **{f"group__pass@{k}": np.mean(at_least_one), f"group__pass^{k}": np.mean(all_of_them)}
    )


def test_rewards_and_their_components(made):
    rewards, part = made.arrays["rewards"], 2 * made.arrays["a"]
    variance = sum(rewards[rows].var() for rows in made.groups)
    share = sum(np.cov(part[rows], rewards[rows], bias=True)[0, 1] for rows in made.groups) / variance
    quantiles = {f"reward__p{q:02d}": np.quantile(rewards, q / 100) for q in (5, 25, 50, 95)}
    assert_found(
        made,
        **quantiles,
        reward__std=rewards.std(),
        reward__a__share=share,
        reward__b__share=1 - share,
        success__mean=made.arrays["successes"].mean(),
        discarded__share=3 / 12,
        discarded__too_long_count=2,
        discarded__reward__mean=rewards[[5, 6, 7]].mean(),
    )


def test_lengths_turns_and_stops(made):
    tokens = made.arrays["attention_mask"].sum(1)
    prompts = np.asarray(
        [at[0] - np.flatnonzero(made.arrays["attention_mask"][b])[0] for b, at in enumerate(made.sampled)]
    )
    two_turns = np.arange(B) % 3 == 0
    ended = [row for row in range(B) if row not in (0, 1, 2, 4, 8)]
    assert_found(
        made,
        tokens__prompt__mean=prompts.mean(),
        tokens__environment__mean=(tokens - prompts - made.lengths).mean(),
        tokens__total__max=tokens.max(),
        count__tokens=tokens.sum(),
        stop__length_share=4 / 11,
        completion__mean_terminated=made.lengths[ended].mean(),
        turns__mean=1 + two_turns.mean(),
        turn__0__tokens_mean=np.where(two_turns, 2, made.lengths).mean(),
        turn__1__tokens_mean=(made.lengths - 2)[two_turns].mean(),
    )


def test_diversity(made):
    written = [made.arrays["input_ids"][row, at].tolist() for row, at in enumerate(made.sampled)]

    def distinct(rows: list[int], n: int) -> float:
        grams = [tuple(written[b][i : i + n]) for b in rows for i in range(len(written[b]) - n + 1)]
        return len(set(grams)) / len(grams)

    def distance(one: int, other: int) -> float:
        mine, theirs = set(written[one]), set(written[other])
        return 1 - len(mine & theirs) / len(mine | theirs)

    pairs = [[distance(*pair) for pair in itertools.combinations(rows, 2)] for rows in made.groups]
    assert_found(
        made,
        diversity__distinct_1=np.mean([distinct(rows, 1) for rows in made.groups]),
        diversity__distinct_2=np.mean([distinct(rows, 2) for rows in made.groups]),
        diversity__jaccard_distance=np.mean([np.mean(distances) for distances in pairs]),
    )
