"""What is learned, told from what turns, bends upwards or falls at once."""

from __future__ import annotations

import numpy as np
import pytest

from rollout_traces.analysis import diagnose
from rollout_traces.analysis.diagnosis import Diagnosis
from tests.analysis.builders import steps, table
from tests.analysis.test_movements import drawn, happens, logged, told

SEEDS = range(3)


def of_logged(values_T: np.ndarray, key: str = "train/critic_loss") -> list[Diagnosis]:
    relations = logged(steps(len(values_T)), values_T.tolist(), key)
    return [each for each in diagnose(relations, "run").diagnoses if each.series[0].column == key]


@pytest.mark.parametrize("seed", SEEDS)
def test_a_loss_that_falls_and_then_diverges_is_said_from_where_it_turned(seed):
    """Seen once: a value loss eight times as large stood in “also rose” of what is learned."""
    t = np.arange(70)
    noise = np.random.default_rng(seed).normal(0, 0.003, 70)
    values = 0.015 + 0.05 * np.exp(-t / 12) + 0.02 * (np.exp(np.maximum(t - 50, 0) / 8) - 1) + noise
    entry = of_logged(values)[0]
    assert (entry.severity, entry.shape) in (("warn", "ramp"), ("error", "ramp"))
    assert 44 <= entry.step <= 58 and entry.before is not None and entry.after is not None
    assert entry.after > 2 * entry.before


@pytest.mark.parametrize("seed", SEEDS)
def test_what_is_learned_fast_and_then_less_does_not_turn(seed):
    t = np.arange(80)
    values = 0.4 + 0.4 * (1 - np.exp(-t / 15)) + np.random.default_rng(seed).normal(0, 0.02, 80)
    assert {each.severity for each in of_logged(values, "train/score")} == {"info"}


@pytest.mark.parametrize("seed", SEEDS)
def test_a_reward_that_is_halved_at_once_is_an_error_and_no_learning(seed):
    """Seen once: a reward that lost half in one step was info, as a curve over a fifth of the run was nearly as likely."""

    def reward(s: int, g: int, i: int) -> float:
        return (0.37 + 0.05 * drawn(s, g, 0, seed) + 0.2 * drawn(s, g, i, seed + 9)) * (0.5 if s >= 50 else 1)

    [entry] = told(table(steps(90, reward=reward)))
    assert entry.severity == "error" and entry.onset[0] <= 50 <= entry.onset[1]
    assert str(entry.series[0]) == "reward" and entry.sentence.startswith("the reward falls")


def test_a_reward_that_falls_slowly_is_no_learning():
    """Seen once: a policy that collapsed over twenty steps was told as learning."""

    def reward(s: int, g: int, i: int) -> float:
        return 0.5 - 0.4 * min(max(s - 60, 0) / 20, 1) + 0.3 * drawn(s, g, i)

    entries = told(table(steps(100, reward=reward)))
    assert entries and entries[0].after < entries[0].before


def test_a_phrase_is_an_alarm_only_where_it_is_new():
    """Seen once: “is” was written less often, an error, where answers took another form."""

    def texts(rows: list[dict[str, object]], old: float, new: float) -> list[dict[str, str]]:
        def written(row: dict[str, object]) -> str:
            s, g, i = int(row["step"]), int(row["group"]), int(row["sample"])  # type: ignore[call-overload]
            own = " ".join(f"word{int(abs(drawn(s, g, i, k)) * 1e6)}" for k in range(6))
            share = old if s < 30 else new
            return f"{own} and so I think it is right" if happens(share, s, g, i) else own

        return [{"uid": str(row["uid"]), "written": written(row)} for row in rows]

    rows = steps(60, traced=True, selected_by="random", selected_probability=1.0)
    for at, row in enumerate(rows):
        row |= {"uid": f"u{at}", "id": f"u{at}", "sample": at % 4}
    less = diagnose(table(rows, texts(rows, 0.6, 0.2)), "run").diagnoses
    assert {each.severity for each in less if each.series[0].column == "written"} == {"info"}
    came = diagnose(table(rows, texts(rows, 0.0, 0.4)), "run").diagnoses
    assert "error" in {each.severity for each in came if each.series[0].column == "written"}


@pytest.mark.parametrize("seed", SEEDS)
def test_a_divergence_is_said_from_where_it_ran_away_and_not_as_learning(seed):
    """Seen once: a divergence from the reference twenty times as large was told as learning, or “perhaps by chance” since step 8."""
    t = np.arange(60)
    plain = 0.0005 + 0.008 * (1 - np.exp(-t / 15))
    values = (plain + 0.008 * (np.exp(np.maximum(t - 35, 0) / 8) - 1)) * np.exp(
        np.random.default_rng(seed).normal(0, 0.04, 60)
    )
    entry = of_logged(values, "train/kl")[0]
    assert entry.shape == "ramp" and abs(entry.step - 35) <= 3


@pytest.mark.parametrize("seed", SEEDS)
def test_a_number_that_grows_ever_less_does_not_run_away(seed):
    t = np.arange(60)
    values = 0.0005 + 0.03 / (1 + np.exp(-(t - 20) / 4)) * np.exp(
        np.random.default_rng(seed).normal(0, 0.04, 60)
    )
    assert {each.severity for each in of_logged(values, "train/kl")} == {"info"}
