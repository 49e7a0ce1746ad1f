"""What is said of runs: movements, their part, who carries them, and what is not said."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from rollout_traces.analysis import diagnose, screen
from rollout_traces.analysis import names as table_of_names
from rollout_traces.analysis.carriers import _handful, carried_by
from rollout_traces.analysis.curves import SeriesName, heaviest_curve
from rollout_traces.analysis.diagnosis import Diagnosis, Movement
from rollout_traces.analysis.entries import named, sentence_of
from rollout_traces.analysis.run_rows import RowMeasure, RunRows
from rollout_traces.analysis.selections import RunScope
from rollout_traces.cli.show import FOLDER
from rollout_traces.store import open_store
from rollout_traces.store.query.parser import parse_query
from tests.analysis.builders import normal, steps, table, uniform
from tests.perturbations.spec import draw_spec
from tests.perturbations.tables import Relations
from tests.perturbations.truth import draw_trial
from tests.stories.causes import CAUSES
from tests.stories.relations import TableRelations, of_story
from tests.stories.world import write_run

N = 60


def drawn(step: int, group: int, sample: int, what: int = 0) -> float:
    return normal(step, group, sample, what)


def happens(share: float, step: int, group: int, sample: int) -> bool:
    return uniform(step, group, sample, 7) < share


def engine(step: int, group: int, sample: int) -> str:
    return f"vllm-{sample % 2}"


def told(relations: TableRelations) -> list[Diagnosis]:
    report = diagnose(relations, "run")
    assert report.problems == ()
    return [each for each in report.diagnoses if each.severity != "info"]


def logged(
    rows: list[dict[str, object]], values: list[float], key: str = "train/loss", first: int = 0
) -> TableRelations:
    metrics = pa.table(
        {
            "run": ["run"] * len(values),
            "split": [""] * len(values),
            "step": list(range(first, first + len(values))),
            "key": [key] * len(values),
            "value": values,
            "attempt": ["1"] * len(values),
        }
    )
    return TableRelations(table(rows).sql("select * from rollouts"), metrics)


class TestWhatMoved:
    def test_a_level_of_one_engine_is_said_of_that_engine_with_its_step(self):
        def length(s: int, g: int, i: int) -> float:
            return 100 + 5 * drawn(s, g, i) + (6.0 if s >= 36 and i % 2 else 0.0)

        [entry] = told(table(steps(N, engine=engine, n_sampled=length)))
        assert (str(entry.series[0]), entry.part, entry.shape) == (
            "n_sampled",
            (("engine", "vllm-1"),),
            "level",
        )
        assert entry.onset[0] <= 36 <= entry.onset[1] and abs(entry.step - 36) <= 1
        assert entry.elsewhere == pytest.approx(100, abs=1)
        assert "engine = 'vllm-1'" in entry.where and f"step >= {entry.step}" in entry.where

    def test_an_engine_is_judged_beside_the_others_where_all_wander_together(self):
        wander = np.cumsum(np.random.default_rng(11).normal(0, 3.0, N))

        def length(s: int, g: int, i: int) -> float:
            return 100 + wander[s] + 2 * drawn(s, g, i) + (2.5 if 24 <= s < 44 and i % 4 == 3 else 0.0)

        rows = steps(N, engine=lambda s, g, i: f"vllm-{i % 4}", n_sampled=length)
        entries = diagnose(table(rows), "run").diagnoses
        [entry] = [each for each in entries if each.part == (("engine", "vllm-3"),)]
        assert (str(entry.series[0]), entry.shape) == ("n_sampled", "window")
        assert entry.onset[0] <= 24 <= entry.onset[1] and abs(entry.last - 43) <= 1

    def test_what_drifts_on_one_engine_alone_is_no_learning(self):
        def length(s: int, g: int, i: int) -> float:
            return 100 + 5 * drawn(s, g, i) - (0.2 * max(s - 15, 0) if i % 4 == 3 else 0.0)

        [entry] = told(table(steps(N, engine=lambda s, g, i: f"vllm-{i % 4}", n_sampled=length)))
        assert entry.part == (("engine", "vllm-3"),)

    def test_engines_that_fall_while_all_learn_are_named(self):
        """Seen once: the engines that went on learning had moved too, and the rollouts could not be told."""

        wander = np.random.default_rng(4).normal(0, 0.05, 40)

        def certainty(s: int, g: int, i: int) -> float:
            fallen = 0.2 * min(max(s - 23, 0) / 5, 1) if i % 4 > 1 else 0.0
            return 0.004 * s + wander[s] + 0.1 * drawn(s, g, i) - fallen

        rows = steps(40, groups=10, engine=lambda s, g, i: f"vllm-{i % 4}", mean_logprob=certainty)
        fell = [each for each in diagnose(table(rows), "run").diagnoses if each.after < each.before]
        assert [each.part for each in fell] == [(("engine", "vllm-2"), ("engine", "vllm-3"))]
        assert fell[0].onset[0] <= 28 and fell[0].onset[1] >= 24

    def test_a_level_that_comes_late_is_not_the_same_as_a_drift_from_the_start(self):
        def length(s: int, g: int, i: int) -> float:
            return 100 + 5 * drawn(s, g, i) + (6.0 if s >= 44 else 0.0)

        values = [
            5.0 - 0.05 * s + 0.1 * v for s, v in enumerate(np.random.default_rng(3).normal(size=N).tolist())
        ]
        entries = diagnose(logged(steps(N, n_sampled=length), values), "run").diagnoses
        of_length = [each for each in entries if "n_sampled" in map(str, each.series)]
        assert [abs(each.step - 44) <= 1 and len(each.series) == 1 for each in of_length] == [True]

    def test_a_spike_among_logged_numbers_without_tails_is_said(self):
        noise = np.random.default_rng(8).normal(0, 0.01, (6, 40))
        noise[0, 13] += 0.12
        metrics = pa.concat_tables(
            logged(steps(1), (0.5 + each).tolist(), f"train/n{i}").sql("select * from metrics")
            for i, each in enumerate(noise)
        )
        relations = TableRelations(table(steps(40)).sql("select * from rollouts"), metrics)
        [entry] = told(relations)
        assert (entry.step, entry.shape, str(entry.series[0])) == (13, "spike", "train/n0")

    def test_what_groups_cancel_is_told_of_the_engine_that_differs_from_the_others(self):
        def advantage(s: int, g: int, i: int) -> float:
            rewards = [drawn(s, g, j) - (2.0 if s >= 30 and j % 4 == 3 else 0.0) for j in range(4)]
            return rewards[i] - sum(rewards) / 4

        [entry] = told(table(steps(N, engine=lambda s, g, i: f"vllm-{i % 4}", advantage=advantage)))
        assert (str(entry.series[0]), entry.part) == ("advantage", (("engine", "vllm-3"),))
        assert abs(entry.step - 30) <= 1 and entry.after < -1 < 0 < entry.elsewhere

    def test_what_adds_up_to_the_same_at_every_step_is_told_of_an_engine(self):
        """Seen once: where sources differ, so that their mix was taken out, the rollouts could not be told."""

        def heavy(s: int, g: int) -> bool:
            return drawn(s, g, 0, 7) > 0

        def share(s: int, g: int, i: int) -> float:
            weights = [
                np.exp(0.3 * drawn(s, k, j)) * (3 if heavy(s, k) else 1) * (1.8 if s >= 30 and j % 2 else 1.0)
                for k in range(6)
                for j in range(4)
            ]
            return float(weights[4 * g + i] / sum(weights))

        rows = steps(
            N,
            engine=lambda s, g, i: f"vllm-{i % 2}",
            source=lambda s, g, i: "math" if heavy(s, g) else "code",
            update_share=share,
        )
        entries = [each for each in told(table(rows)) if "update_share" in map(str, each.series)]
        assert len(entries) == 1 and abs(entries[0].step - 30) <= 1
        assert entries[0].part in [(("engine", "vllm-0"),), (("engine", "vllm-1"),)], (
            "what one gains the other loses"
        )

    def test_a_value_that_comes_on_one_host_is_told_of_it_and_of_the_engines_that_hold_its_rows(self):
        """Seen once: of parts where it never was, nothing was known, and it was told of all rows."""

        def stop(s: int, g: int, i: int) -> str:
            return "oom" if 30 <= s < 35 and i % 4 < 2 and drawn(s, g, i) > 0 else "stop"

        rows = steps(
            N,
            engine=lambda s, g, i: f"vllm-{i % 4}",
            **{"extra/host": lambda s, g, i: f"node-{i % 4 // 2}"},
            stop_reason=stop,
        )
        [entry] = told(table(rows))
        assert (entry.part, entry.also) == (
            (("extra/host", "node-0"),),
            ((("engine", "vllm-0"), ("engine", "vllm-1")),),
        )

    def test_parts_by_outcome_of_a_group_or_two_have_no_series(self):
        """Seen once: the tool errors of the one group that was late, as an error of a healthy run."""

        def lag(s: int, g: int, i: int) -> int:
            return int(g == 0)

        def errors(s: int, g: int, i: int) -> float:
            return float(g == 0 and 20 <= s < 27) + 0.01 * drawn(s, g, i)

        entries = told(table(steps(N, staleness_max=lag, n_tool_errors=errors)))
        assert [each.part for each in entries if each.part] == []

    @pytest.mark.parametrize(("many", "severity"), [(12, "warn"), (40, "error")])
    def test_what_a_few_rows_do_at_a_step_is_no_error(self, many, severity):
        def length(s: int, g: int, i: int) -> float:
            return 100 + 5 * drawn(s, g, i) + (60.0 if s == 30 and i % 4 == 3 else 0.0)

        rows = steps(N, groups=many, engine=lambda s, g, i: f"vllm-{i % 4}", n_sampled=length)
        [entry] = told(table(rows))
        assert entry.part == (("engine", "vllm-3"),) and entry.severity == severity

    def test_a_window_ends_where_it_ends(self):
        def length(s: int, g: int, i: int) -> float:
            return 100 + 5 * drawn(s, g, i) + (8.0 if 20 <= s < 32 else 0.0)

        [entry] = told(table(steps(N, n_sampled=length)))
        assert (entry.shape, entry.step, entry.last) == ("window", 20, 31)
        assert entry.touches(31, 31) and not entry.touches(32, 32) and not entry.touches(5, 19)

    def test_a_drop_in_one_source_alone_is_said(self):
        def reward(s: int, g: int, i: int) -> float:
            return drawn(s, g, i) - (2.0 if s >= 30 and g < 2 else 0.0)

        rows = steps(N, source=lambda s, g, i: "math" if g < 2 else "code", reward=reward)
        assert any(
            e.part == (("source", "math"),) and "reward" in map(str, e.series) for e in told(table(rows))
        )

    def test_advantages_that_add_up_to_nothing_in_every_group_do_not_move(self):
        def advantage(s: int, g: int, i: int) -> float:
            rewards = [
                drawn(s, g, j) + (40.0 if s in (30, 31, 32) and g == j == 0 else 0.0) for j in range(4)
            ]
            return rewards[i] - sum(rewards) / 4

        entries = told(table(steps(N, advantage=advantage)))
        assert not [e for e in entries if max(abs(e.before or 0), abs(e.after or 0)) < 1e-9]

    def test_a_loss_of_eight_among_hundredths_is_a_spike(self):
        values = [0.07 + 0.01 * drawn(s, 0, 0, 1) for s in range(N)]
        values[41] = 8.37
        [entry] = told(logged(steps(N, reward=drawn), values))
        assert (str(entry.series[0]), entry.shape, entry.step, entry.last) == ("train/loss", "spike", 41, 41)

    def test_a_loss_that_falls_over_ten_steps_is_said(self):
        """Seen once: what a level leaves of a ramp explained the level too, and neither was said."""
        noise = np.random.default_rng(1).normal(0, 0.02, 40)
        values = [0.03 - 0.2 * min(max(s - 10, 0) / 9, 1) + noise[s] for s in range(40)]
        [entry] = [
            each
            for each in diagnose(logged(steps(40), values), "run").diagnoses
            if "train/loss" in each.sentence
        ]
        assert entry.after == pytest.approx(-0.17, abs=0.03) and 9 <= entry.step <= 16

    def test_a_rate_that_warms_up_in_the_first_steps_is_how_a_run_starts(self):
        values = [1e-6 * min(1.0, (1 + s) / 5) for s in range(N)]
        assert told(logged(steps(N, reward=drawn), values, "train/lr")) == []

    def test_a_logged_number_that_is_nan_from_some_step_on_is_unknown_there(self):
        values = [drawn(s, 0, 0, 1) if s < 36 else float("nan") for s in range(N)]
        [entry] = told(logged(steps(N, reward=drawn), values, "train/grad_norm"))
        assert (str(entry.series[0]), entry.shape) == ("train/grad_norm unknown", "level")
        assert entry.step == 36 and "train/grad_norm" in entry.queries[0]

    def test_rewards_that_are_unknown_are_found_by_a_filter_that_the_query_language_knows(self):
        def reward(s: int, g: int, i: int) -> float | None:
            return None if s >= 36 and i == 0 else drawn(s, g, i)

        relations = table(steps(N, reward=reward))
        entry = next(e for e in told(relations) if str(e.series[0]) == "reward unknown")
        assert entry.where == f"reward is null and step >= {entry.step}" and parse_query(entry.where)
        levels = {row["step"]: row["level"] for row in relations.sql(entry.queries[0]).to_pylist()}
        assert levels[35] == 0 and levels[36] == pytest.approx(1 / 4)

    def test_a_movement_that_may_be_chance_is_info_and_says_so(self, monkeypatch):
        monkeypatch.setattr(screen, "DISCOVERY", 1e-9)

        def length(s: int, g: int, i: int) -> float:
            return 100 + 5 * drawn(s, g, i) + (2.4 if 30 <= s < 39 else 0.0)

        relations = table(steps(N, n_sampled=length))
        assert told(relations) == []
        [entry] = diagnose(relations, "run").diagnoses
        assert entry.severity == "info" and entry.sentence.endswith(", perhaps by chance.")

    def test_groups_that_an_engine_cuts_through_may_move(self):
        def reward(s: int, g: int, i: int) -> float:
            return drawn(s, g, i) * (0.1 if s >= 30 and i % 2 else 1.0)

        [entry] = told(table(steps(N, size=8, engine=engine, reward=reward)))
        assert "group/reward_std_mean" in map(str, entry.series) and entry.part == (("engine", "vllm-1"),)

    def test_a_row_that_carries_a_step_is_named_and_no_worker_is(self):
        def mismatch(s: int, g: int, i: int) -> float:
            return 0.0075 + 0.001 * drawn(s, g, i) + (40.0 if (s, g, i) == (45, 2, 1) else 0.0)

        rows = steps(N, mismatch_k3=mismatch, **{"extra/worker": lambda s, g, i: f"w{(g + i) % 4}"})
        [entry] = told(table(rows))
        assert (entry.shape, entry.step, entry.part) == ("spike", 45, ())
        assert [carrier.step for carrier in entry.carriers] == [45] and entry.carriers[0].share > 0.9

    def test_a_logged_mean_repeats_the_ledger_at_a_step_that_a_row_carries_too(self):
        """Seen once: `rollout/reward/mean` was an entry of its own beside the reward's."""

        def reward(s: int, g: int, i: int) -> float:
            outlier = 40.0 if (s, g, i) == (20, 1, 1) else 0.0
            return 0.6 + 0.1 * drawn(s, g, i) - (0.3 if s >= 40 else 0.0) + outlier

        rows = steps(N, reward=reward)
        means = np.asarray([row["reward"] for row in rows]).reshape(N, -1).mean(axis=1)
        entries = told(logged(rows, means.tolist(), "rollout/reward/mean"))
        assert not [each for each in entries if "rollout/reward/mean" in each.sentence]
        assert any(each.step == 40 for each in entries)

    def test_the_series_of_the_sentence_is_the_first_one_and_gives_levels_and_filter(self):
        """Seen once: a bar of the timeline was called by the series that showed a failing tool best."""

        def status(s: int, g: int, i: int) -> str:
            return "error" if s >= 40 and i == 0 else "ok"

        def length(s: int, g: int, i: int) -> float:
            return 100 + drawn(s, g, i) + (20.0 if s >= 40 else 0.0)

        [entry] = told(table(steps(N, reward_status=status, n_sampled=length)))
        assert str(entry.series[0]) == "reward_status error" and "n_sampled" in map(str, entry.series)
        assert entry.sentence.startswith("the reward function fails: reward_status “error” rose")
        assert (entry.before, entry.after) == (0, pytest.approx(1 / 4))
        assert entry.where == "reward_status = 'error' and step >= 40"

    def test_two_causes_that_overlap_are_two_entries(self):
        def error(s: int, g: int, i: int) -> str:
            return "error" if 20 <= s < 32 and i == 0 else "ok"

        def length(s: int, g: int, i: int) -> float:
            return 100 + 5 * drawn(s, g, i) + (8.0 if s >= 34 else 0.0)

        found = told(table(steps(N, reward_status=error, n_sampled=length)))
        assert any(e.step == 20 and e.last == 31 for e in found)
        assert any(
            abs(e.step - 34) <= 1 and e.last is None and "n_sampled" in map(str, e.series) for e in found
        )
        assert not any(e.consequences for e in found)


class TestInsideGroups:
    def test_an_engine_that_gets_worse_while_all_learn_is_named(self):
        """Seen once: 0.45 of one engine's rollouts were solved and 0.66 of the others', in the same groups; the others had moved, perhaps by chance."""

        def reward(s: int, g: int, i: int) -> float:
            easy = 0.3 + 0.25 * s / 69 + 0.25 * drawn(s, g, 0, 3)
            return float(happens(easy - (0.2 if s >= 30 and i % 3 == 2 else 0.0), s, g, i))

        rows = steps(70, groups=12, size=9, engine=lambda s, g, i: f"vllm-{i % 3}", reward=reward)
        [entry] = told(table(rows))
        assert (entry.part, str(entry.series[0])) == ((("engine", "vllm-2"),), "reward")
        assert abs(entry.step - 30) <= 4 and entry.after < entry.elsewhere

    def test_what_all_rollouts_of_a_group_share_is_not_parted_by_who_sampled_them(self):
        """Seen once: an engine was named for groups whose rewards were all equal, of which it had sampled some."""

        def flags(s: int, g: int, i: int) -> list[str]:
            return ["tied_group"] if happens(0.6 if s >= 30 else 0.05, s, g, 0) else []

        entries = diagnose(
            table(steps(N, size=8, engine=lambda s, g, i: f"vllm-{(g + i) % 3}", flags=flags)), "run"
        ).diagnoses
        assert entries and {each.part for each in entries} <= {(), None}


class TestWhatFollows:
    """Tests that fail because ever more answers are cut off, and not among those that are not."""

    def run(self, share, usual, n_steps, groups):
        """Rollouts of which `share` are cut off, which pass no test, and of the others `usual` pass, functions of the part of the run."""

        def stop_reason(step: int, group: int, sample: int) -> str:
            return "length" if happens(share(step / n_steps), step, group, sample) else "stop"

        def passed(step: int, group: int, sample: int) -> int:
            solved = uniform(step, group, sample, 3) < usual(step / n_steps)
            return int(solved and stop_reason(step, group, sample) == "stop")

        return table(steps(n_steps, groups, stop_reason=stop_reason, **{"component/tests": passed}))

    def test_it_hangs_under_the_entry_of_what_is_cut_off(self):
        relations = self.run(lambda x: 0.02 + x * x / 2, lambda x: 0.95 - 0.6 * np.exp(-5 * x), 100, 10)
        (entry,) = told(relations)
        assert entry.series[0] == SeriesName("stop_reason", "length", "share")
        assert [each.series[0].column for each in entry.consequences] == ["component/tests"]

    def test_it_is_no_warning_where_that_grew_slowly_from_the_start(self):
        assert not told(self.run(lambda x: 0.02 + 0.4 * x, lambda x: 0.9 - 0.6 * np.exp(-8 * x), 60, 48))

    def test_what_falls_among_the_others_too_stands_for_itself(self):
        def usual(x: float) -> float:
            return 0.95 - 0.6 * np.exp(-5 * x) - 0.4 * (x > 0.6)

        relations = self.run(lambda x: 0.02 + x * x / 2, usual, 100, 10)
        assert "component/tests" in {entry.series[0].column for entry in told(relations)}


class TestWhatIsNotSaid:
    @pytest.mark.parametrize("seed", range(3))
    def test_noise_by_factors_has_no_window(self, seed):
        """Seen once: a clip fraction whose noise is log-normal was a warning for two steps of a hundred."""
        rng = np.random.default_rng(seed)
        wander = [0.0]
        for _ in range(99):
            wander.append(0.4 * wander[-1] + rng.normal(0, 0.35))
        relations = logged(steps(100), (0.004 * np.exp(wander)).tolist(), "actor/pg_clipfrac")
        assert told(relations) == []

    def test_prompts_that_are_one_token_longer_are_no_alarm(self):
        """Seen once: prompts with a running number had one digit more from step 19 on, an error before all others."""
        rows = steps(N, n_prompt=lambda s, g, i: 72 + (s >= 19) + g)
        assert told(table(rows)) == []

    def test_parts_that_move_against_each_other_are_no_movement_of_all(self):
        def share(s: int, g: int, i: int) -> float:
            moved = 0.02 if 20 <= s < 30 else 0.0
            return 1 / 24 + 0.01 * drawn(s, g, i) + (moved if i % 2 else -moved)

        entries = diagnose(table(steps(N, engine=engine, n_sampled=share)), "run").diagnoses
        assert entries and not [each for each in entries if each.part == ()]

    @pytest.mark.parametrize("seed", range(4))
    def test_errors_that_come_for_some_steps_are_told_of_no_part_of_the_rows(self, seed):
        def status(s: int, g: int, i: int) -> str:
            return "error" if 90 <= s < 103 and abs(drawn(s, g, i, 10 + seed)) > 1.2 else "ok"

        columns = {
            "engine": lambda s, g, i: f"vllm-{i % 4}",
            "source": lambda s, g, i: "math" if g < 3 else "code",
            "worker": lambda s, g, i: f"w{int(abs(drawn(s, g, i, 99)) * 4) % 5}",
        }
        [entry] = told(table(steps(200, groups=10, reward_status=status, **columns)))
        assert entry.part == () and entry.step == 90 and abs(entry.last - 102) <= 1

    @pytest.mark.parametrize("seed", range(3))
    def test_a_healthy_run_has_no_entry(self, seed):
        rows = steps(
            N,
            engine=engine,
            reward=lambda s, g, i: drawn(s, g, i, seed),
            flags=lambda s, g, i: ["truncated"] if drawn(s, g, i, 7 + seed) > 0 else [],
        )
        assert told(table(rows)) == []

    @pytest.mark.parametrize("seed", [0, 2, 3])
    def test_a_step_with_one_row_of_a_source_is_no_surer_than_that_row(self, seed):
        rows = steps(
            120,
            size=8,
            source=lambda s, g, i: "code" if s % 2 == 0 or (g == i == 0 and s % 10 == 1) else "math",
            mismatch_k1=lambda s, g, i: drawn(s, g, i, 40 + seed),
        )
        assert told(table(rows)) == []

    @pytest.mark.parametrize("seed", [89, 91, 113])
    def test_noise_that_lasts_for_some_steps_is_no_movement(self, seed):
        wander = [0.0]
        for s in range(N):
            wander.append(0.8 * wander[-1] + 0.6 * drawn(s, 0, 0, seed))

        def certainty(s: int, g: int, i: int) -> float:
            return 0.02 * s + 0.35 * wander[s] + drawn(s, g, i, seed + 120)

        assert told(table(steps(N, mean_logprob=certainty))) == []

    def test_a_policy_that_learns_is_no_warning(self):
        rows = steps(N, reward=lambda s, g, i: drawn(s, g, i) + 3 * s / N)
        assert told(table(rows)) == []
        assert any("reward" in map(str, e.series) for e in diagnose(table(rows), "run").diagnoses)

    def test_an_update_share_that_is_null_by_definition_is_not_lost(self):
        def share(s: int, g: int, i: int) -> float | None:
            return None if s >= 40 and s % 7 == 0 else 1 / 24 + 0.001 * drawn(s, g, i)

        assert told(table(steps(N, reward=drawn, update_share=share))) == []

    def test_a_mean_that_is_always_the_same_is_not_moved_by_a_mix(self):
        """Seen once: advantage rose from -2e-17 to 3e-16 where some rollouts of each group got another source."""

        def advantage(s: int, g: int, i: int) -> float:
            rewards = [drawn(s, g, j) + 2.0 * (j % 4 == 3) for j in range(4)]
            return rewards[i] - sum(rewards) / 4

        def source(s: int, g: int, i: int) -> str:
            return "math9" if 37 <= s < 40 and i % 4 == 3 else "math"

        entries = told(table(steps(N, source=source, advantage=advantage)))
        assert "advantage" not in [str(each.series[0]) for each in entries if each.part == ()]

    def test_shares_of_the_update_are_larger_at_steps_of_few_rollouts(self):
        """Seen once: such a step was told of the engine whose share happened to be largest."""
        rng = np.random.default_rng(10)
        rows = []
        for s in range(N):
            groups = int(rng.integers(3, 30))
            weights = np.exp(rng.normal(0, 1, (groups, 5)) + rng.normal(0, 0.8, (groups, 1)))
            shares = weights / weights.sum()
            rows += [
                {"step": s, "group": g, "engine": f"vllm-{i % 3}", "update_share": float(shares[g, i])}
                for g in range(groups)
                for i in range(5)
            ]
        assert told(table(rows)) == []

    def test_columns_of_one_value_and_of_none_are_no_crash(self):
        rows = steps(N, reward=lambda s, g, i: None, n_sampled=3, source=lambda s, g, i: None)
        assert diagnose(table(rows), "run").problems == ()

    def test_an_engine_of_which_all_rollouts_are_cut_off_has_not_gone(self):
        """Seen once: among the rollouts that were not cut off its share fell to nothing, and that was the first entry."""

        def stop(s: int, g: int, i: int) -> str:
            return "length" if (s >= 30 and i % 4 == 3) or drawn(s, g, i) > 2 else "stop"

        rows = steps(N, groups=8, engine=lambda s, g, i: f"vllm-{i % 4}", stop_reason=stop)
        [entry] = told(table(rows))
        assert (entry.series[0].column, entry.part) == ("stop_reason", (("engine", "vllm-3"),))


class TestCarriers:
    def test_a_count_that_nine_rows_in_ten_do_not_have_has_no_carriers(self):
        """Seen once: twenty errors, one for each step at which two of 960 rollouts failed: the quantile lay between 0 and 1."""
        hits = np.random.default_rng(0).permutation(np.repeat([0.0, 1.0, 2.0], [864, 86, 10]))
        rows = [{**row, "n_tool_errors": hits[at]} for at, row in enumerate(steps(80, groups=3))]
        assert not told(table(rows))

    def test_rewards_of_a_few_values_of_which_nearly_all_are_the_best_have_none(self):
        """Seen once: an error at nine steps, each a few failures of a policy that solved nearly all."""
        rng = np.random.default_rng(0)
        solved = rng.random((116, 60)) < np.where(np.arange(116) < 12, 0.6, 0.97)[:, None]
        values = (solved + 0.2 * (rng.random((116, 60)) < 0.9)).ravel()
        at = np.repeat(np.arange(116), 60)
        rows = RunRows(np.arange(116), at, np.arange(len(at)) // 4, {})
        reward = RowMeasure(SeriesName("reward"), lambda: values)
        assert not carried_by(rows, reward, values).log_p
        values[at == 70] -= np.where(np.arange(60) < 2, 30.0, 0.0)
        assert list(carried_by(rows, reward, values).log_p) == [70]

    def test_rows_far_out_to_both_sides_are_named_with_the_scalar_that_spiked_at_their_step(self):
        """Seen once: advantages of 60 and -55 left the mean as it was, and the loss spike named no rollout."""

        def advantage(s: int, g: int, i: int) -> float:
            far = {(0, 0): 60.0, (3, 1): -55.0}.get((g, i), 0.0) if s == 33 else 0.0
            return far or drawn(s, g, i)

        rows = [
            {**row, "uid": f"{row['step']}-{at}"}
            for at, row in enumerate(steps(N, advantage=advantage, reward=lambda s, g, i: drawn(s, g, i, 1)))
        ]
        loss = [0.04 + 0.002 * drawn(s, 0, 0, 2) + (4.0 if s == 33 else 0.0) for s in range(N)]
        [entry] = told(logged(rows, loss))
        assert "2 rollouts carry" in entry.sentence and "train/loss" in entry.sentence
        assert [each.uid for each in entry.carriers] == [f"33-{33 * 24}", f"33-{33 * 24 + 13}"]
        assert entry.where == f"uid in ('33-{33 * 24}', '33-{33 * 24 + 13}')"

    def test_rows_that_carry_a_step_are_named_where_the_spread_of_their_groups_is_surer(self):
        """Seen once: two rewards of -30 among rewards of 0 and 1 named no rollout, since groups, which are none, stood first."""

        def reward(s: int, g: int, i: int) -> float:
            return -30.0 if (s, i) == (33, 2) and g in (1, 4) else float(happens(0.5, s, g, i))

        rows = [{**row, "uid": f"{row['step']}-{at}"} for at, row in enumerate(steps(N, reward=reward))]
        [entry] = told(table(rows))
        assert [each.uid for each in entry.carriers] == [f"33-{33 * 24 + 6}", f"33-{33 * 24 + 18}"]


class TestNames:
    def test_emptying_the_table_of_names_changes_nothing_but_words(self, monkeypatch):
        cause = CAUSES["tool breaks"]
        story = write_run(3, cause.kinds[0], "tool breaks", cause.changes)

        def plain() -> list[tuple[object, ...]]:
            found = diagnose(of_story(story), "run").diagnoses
            return [(d.severity, frozenset(d.series), d.part, d.step, d.last) for d in found]

        named = plain()
        monkeypatch.setattr("rollout_traces.analysis.entries.SIGNATURES", ())
        assert plain() == named
        assert all(signature.what and signature.advice for signature in table_of_names.SIGNATURES)

    def test_a_component_that_falls_on_a_host_is_named_before_the_advantages_that_fall_with_it(self):
        """Seen once: a verifier that always said 0 was an update that is distributed otherwise."""

        def judge(s: int, g: int, i: int) -> float:
            return 0.0 if s >= 30 and i == 1 else 0.6 + 0.1 * drawn(s, g, i)

        def advantage(s: int, g: int, i: int) -> float:
            return judge(s, g, i) - sum(judge(s, g, each) for each in range(4)) / 4

        columns = {"component/judge": judge, "advantage": advantage, "reward": judge}
        rows = steps(N, **{"extra/host": lambda s, g, i: f"h{i}"}, **columns)
        first = told(table(rows))[0]
        assert first.part == (("extra/host", "h1"),) and first.sentence.startswith(
            "a component of the reward changed: component/“judge” fell from 0.6"
        )

    def test_tools_that_fail_on_a_host_are_named_by_what_they_said_though_few_rollouts_were_decoded(self):
        """Seen once: “a component of the reward changed”, in the run that `show --example` opens, where a tool host timed out."""

        def fails(s: int, g: int, i: int) -> bool:
            return 30 <= s < 40 and g % 2 == 0

        rows = steps(
            N,
            groups=8,
            size=8,
            reward=lambda s, g, i: 0.8 + 0.1 * drawn(s, g, i) - (0.7 if fails(s, g, i) else 0.0),
            **{"extra/tool_host": lambda s, g, i: f"calc-{g % 2}"},
        )
        for number, row in enumerate(rows):
            s, g, i = row["step"], row["group"], number % 8
            row["traced"] = int(i == s % 8)
            if row["traced"]:
                row["n_tool_errors"] = int(fails(s, g, i))
                row["error_signatures"] = ["calc-0 timed out"] if fails(s, g, i) else None
        [entry] = told(table(rows))
        assert entry.sentence.startswith(
            "tools fail: error_signatures “calc-0 timed out” rose from 0% to 100% on"
        )
        assert entry.part == (("extra/tool_host", "calc-0"),)
        assert "error_signatures has 'calc-0 timed out'" in entry.where

    def test_a_share_of_one_reward_that_falls_is_no_fall_of_the_reward(self):
        """Seen once: “the reward falls: reward “0” fell from 19 % to 4 %”, of a run that learned."""

        def reward(s: int, g: int, i: int) -> float:
            return 0.0 if happens(0.4 - 0.3 * (s >= 30), s, g, i) else 0.1 if happens(0.5, g, s, i) else 1.0

        entries = diagnose(table(steps(N, reward=reward)), "run").diagnoses
        assert not [each.sentence for each in entries if each.sentence.startswith("the reward falls")]

    def test_the_plainest_series_gives_an_entry_its_name_and_its_time(self):
        """Seen once: a length penalty that hardly moved gave its name to a reward that was halved."""

        def reward(s: int, g: int, i: int) -> float:
            return 1.0 + 0.1 * drawn(s, g, i) - (0.5 if s >= 30 else 0.0)

        def penalty(s: int, g: int, i: int) -> float:
            return -0.5 + 0.3 * drawn(s, g, i, 1) - (0.12 if s >= 30 else 0.0)

        [entry] = told(table(steps(N, reward=reward, **{"component/length": penalty})))
        assert entry.sentence.startswith("the reward falls: reward fell from 0.99") and entry.step == 30

    def test_what_is_learned_is_named_by_how_rollouts_come_out(self):
        rows = steps(
            N,
            reward=lambda s, g, i: 0.01 * s + 0.1 * drawn(s, g, i),
            **{"timing/generate": lambda s, g, i: 2 + 0.02 * s + 0.1 * drawn(s, g, i, 1)},
        )
        [entry] = diagnose(table(rows), "run").diagnoses
        assert entry.sentence.startswith("the reward rises: reward rose")

    def test_rewards_that_are_won_and_lost_again_do_not_simply_rise(self):
        """Seen once: an error, "the reward rises", of what was learned and then lost at once."""

        def reward(s: int, g: int, i: int) -> float:
            learned = 0.5 if s < 6 or s >= 33 else 0.62 if s < 14 else 0.85
            return float(happens(learned, s, g, i + 200))

        entry = told(table(steps(50, groups=12, size=8, reward=reward)))[0]
        assert (entry.step, entry.last, entry.name) == (14, 32, "the reward rises for a while")

    def test_rollouts_that_are_discarded_from_a_step_on_are_said(self):
        """Seen once: a filter that threw a third of all rollouts away was in no answer, as all others have no reason."""

        def reason(s: int, g: int, i: int) -> str | None:
            return "stale" if s >= 30 and happens(0.35, s, g, i) else None

        [entry] = told(table(steps(N, discard_reason=reason)))
        assert entry.severity == "error" and abs(entry.step - 30) <= 1
        assert entry.sentence.startswith("more rollouts are discarded: discard_reason “stale” rose from 0%")


class TestContained:
    def test_what_raises_is_said_in_a_line_and_the_rest_remains(self, monkeypatch):
        def length(s: int, g: int, i: int) -> float:
            return 100 + 5 * drawn(s, g, i) + (8.0 if s >= 30 else 0.0)

        def broken(*_: object) -> None:
            raise ZeroDivisionError("planted")

        monkeypatch.setattr("rollout_traces.analysis.run_report.group_rows", broken)
        report = diagnose(table(steps(N, reward=drawn, n_sampled=length)), "run")
        assert len(report.problems) == 1 and report.problems[0].startswith("groups: ZeroDivisionError: ")
        assert any("n_sampled" in map(str, e.series) for e in report.diagnoses)


class TestLearningAndTurns:
    def test_a_level_under_learning_is_no_window_that_began_with_the_learning(self):
        """Seen once: a judge that fell at step 80 was said to have been high from step 14 to 79."""

        def judge(s: int, g: int, i: int) -> float:
            return 0.5 + 0.2 * (1 - np.exp(-s / 25)) + 0.08 * drawn(s, g, i) - (0.15 if s >= 80 else 0.0)

        entries = told(table(steps(120, **{"component/judge": judge})))
        assert [(each.shape, abs(each.step - 80) <= 1) for each in entries] == [("level", True)]

    def test_an_engine_is_judged_beside_what_all_learn(self):
        """Seen once: each engine had a curve of its own beside what it did, and the sentence said that it rose."""

        def certainty(s: int, g: int, i: int) -> float:
            moved = {0: 0.15 if 27 <= s < 66 else 0.0, 3: -0.08 if s >= 30 else 0.0}
            return -0.5 + 0.25 * s / 120 + 0.1 * drawn(s, g, i) + moved.get(i % 4, 0.0)

        rows = steps(120, engine=lambda s, g, i: f"vllm-{i % 4}", mean_logprob=certainty)
        of_two, of_one = told(table(rows))
        assert (of_two.part, of_two.shape) == ((("engine", "vllm-0"),), "window")
        assert (of_one.part, of_one.shape) == ((("engine", "vllm-3"),), "level")
        assert of_one.onset[0] <= 30 <= of_one.onset[1]
        assert of_one.before - of_one.after == pytest.approx(0.08, abs=0.03)

    def test_a_fall_near_the_end_is_not_the_rest_of_what_was_learned(self):
        """Seen once: all within a fifth of the run from its ends was the rest of slow change over the run."""

        def judge(s: int, g: int, i: int) -> float:
            return 0.3 + 0.004 * s + 0.2 * drawn(s, g, i) - (0.12 if s >= 104 else 0.0)

        [entry] = [
            d for d in diagnose(table(steps(120, **{"component/judge": judge})), "run").diagnoses if d.step
        ]
        assert (entry.shape, abs(entry.step - 104) <= 1) == ("level", True)

    def test_groups_that_lose_a_rollout_are_no_learning(self):
        """Seen once: that groups shrank after two thirds of a short run was told as slow change."""
        rows = [
            row
            for i, row in enumerate(steps(40, groups=10, size=4, reward=drawn))
            if not (row["step"] >= 27 and i % 4 == 3 and drawn(i, 0, 0) > 0.2)
        ]
        [entry] = [d for d in told(table(rows)) if "group/size_mean" in map(str, d.series)]
        assert (entry.severity, entry.step) == ("error", 27)

    def test_a_part_that_fell_while_all_rose_is_said_to_fall(self, tmp_path):
        """Seen once: of the example's tool host that failed, mean_logprob "rose"."""
        store = open_store(str(FOLDER), index_path=tmp_path / "index")
        report = diagnose(store.table(), store.runs()[0].name)
        [entry] = [d for d in report.diagnoses if "mean_logprob" in map(str, d.series) and d.part]
        [own] = [each for each in entry.movements if str(each.name) == "mean_logprob"]
        assert entry.part == (("extra/tool_host", "calc-b"),) and own.after < own.before
        assert "mean_logprob" in entry.sentence.partition("also fell: ")[2]
        store.close()

    def test_a_share_that_comes_at_once_is_no_learning(self):
        """Seen once: that a third of one source's rewards failed from a step on was told as slow change."""

        def status(s: int, g: int, i: int) -> str:
            return "error" if s >= 30 and g % 3 == 0 and drawn(s, g, i) > 0.5 else "ok"

        rows = steps(50, source=lambda s, g, i: ("code", "math", "chat")[g % 3], reward_status=status)
        [entry] = told(table(rows))
        assert (entry.severity, entry.part) == ("error", (("source", "code"),))
        assert abs(entry.step - 30) <= 1

    def test_a_share_that_comes_late_and_rises_slowly_is_no_learning(self):
        """Seen once: a phrase that went from 0.6 to 79 % over the last 20 of 50 steps was info, "Nothing stands out"."""

        def status(s: int, g: int, i: int) -> str:
            return "error" if happens(max(s - 29, 0) / 25, s, g, i) else "ok"

        entry, *others = told(table(steps(50, reward_status=status)))
        assert entry.severity == "error"
        assert entry.onset[0] <= 30 <= entry.onset[1] + 1
        assert {each.series for each in others} <= {entry.series}

    def test_a_share_that_falls_to_nothing_slowly_is_learning(self):
        def reason(s: int, g: int, i: int) -> str:
            return "length" if happens(0.4 - 0.02 * max(s - 29, 0), s, g, i) else "stop"

        assert not told(table(steps(50, stop_reason=reason)))

    @pytest.mark.parametrize("seed", range(4))
    def test_a_policy_that_leaves_its_reference_fast_at_first_is_no_error(self, seed):
        """Seen once: a divergence that saturates was an error since step 11, twice in the same words."""
        noise = np.random.default_rng(seed).normal(0, 5e-4, 150)
        values = 0.002 + 0.022 * (1 - np.exp(-np.arange(150) / 60)) + noise
        relations = logged(steps(150, groups=2, size=2), np.maximum(values, 1e-4).tolist(), "train/kl")
        assert not told(relations)
        said = [each.sentence for each in diagnose(relations, "run").diagnoses]
        assert len(said) == len(set(said))

    def test_a_level_is_told_against_what_was_just_before(self):
        """Seen once: a reward that was clamped while the policy learned was said to have risen, from its mean since the run began."""

        def reward(s: int, g: int, i: int) -> float:
            return 0.3 + 0.01 * s - (0.2 if s >= 40 else 0.0) + 0.05 * drawn(s, g, i)

        fell = [each for each in diagnose(table(steps(60, reward=reward)), "run").diagnoses if each.step > 30]
        assert fell and fell[0].after < fell[0].before and abs(fell[0].before - 0.67) < 0.03

    def test_learning_says_which_way(self):
        rows = steps(N, mean_logprob=lambda s, g, i: -0.5 + 0.004 * s + 0.1 * drawn(s, g, i))
        [entry] = diagnose(table(rows), "run").diagnoses
        assert "more certain: mean_logprob rose from" in entry.sentence and entry.severity == "info"

    def test_what_was_low_when_the_run_began_and_falls_back_falls(self):
        """Seen once: a component that fell at step 22 was said to have risen from step 5 to 21."""
        trial = draw_trial(draw_spec("replayed", 730288), 3)
        found = diagnose(Relations(trial.run), "run").diagnoses
        own = [each for each in found if each.series[0].column == "component/brevity"]
        assert [(each.shape, each.step) for each in own if each.after < each.before] == [("went", 22)]
        assert "window" not in [each.shape for each in own]

    def test_a_window_of_a_source_that_takes_its_turn_is_one_window_of_that_source(self):
        def length(s: int, g: int, i: int) -> float:
            return 100 + 20 * (s % 3) + 5 * drawn(s, g, i) - (12.0 if 20 <= s < 28 and s % 3 == 0 else 0.0)

        [entry] = told(table(steps(75, source=lambda s, g, i: f"s{s % 3}", n_sampled=length)))
        assert (entry.part, entry.shape) == ((("source", "s0"),), "window")
        assert entry.onset[0] <= 21 <= entry.onset[1] and 24 <= entry.last <= 29

    def test_samples_that_get_older_until_the_queue_is_full_are_how_a_run_starts(self):
        def flags(s: int, g: int, i: int) -> list[str]:
            return ["stale"] if s >= 5 and drawn(s, g, i) > 0.5 else []

        assert told(table(steps(50, groups=12, size=8, flags=flags))) == []


class TestFewRowsAndTurns:
    def test_that_two_rows_carry_each_update_from_a_step_on_is_said(self):
        def share(s: int, g: int, i: int) -> float:
            heavy = s >= 40 and (g, i) in ((1, 0), (4, 2))
            weight = [0.5 + uniform(s, *at) for at in np.ndindex(8, 4)]
            both = sum(weight) + (1200.0 if s >= 40 else 0.0)
            return (weight[4 * g + i] + (600.0 if heavy else 0.0)) / both

        relations = table(steps(N, groups=8, update_share=share))
        [entry] = told(relations)
        assert [str(name) for name in entry.series] == ["update/top3_share"] and entry.step == 40
        levels = {row["step"]: row["level"] for row in relations.sql(entry.queries[0]).to_pylist()}
        assert levels[39] < 0.2 and levels[40] > 0.9
        assert entry.sentence.startswith("few rollouts carry the update: update/top3_share rose from 0.1")

    def test_three_rollouts_of_three_carry_a_step_whatever_they_did(self):
        relations = table(steps(N, groups=1, size=3, update_share=1 / 3))
        assert not list(heaviest_curve(RunScope(relations, "run", "rollout")))

    def test_that_steps_shrink_is_not_said_of_the_heaviest_rollouts(self):
        def share(s: int, g: int, i: int) -> float:
            return 1 / (8 if s >= 40 else 24)

        rows = [row for row in steps(N, groups=6, update_share=share) if row["step"] < 40 or row["group"] < 2]
        assert not [entry for entry in told(table(rows)) if "update/top3_share" in map(str, entry.series)]

    def test_a_handful_that_carries_two_steps_is_set_aside_in_both(self):
        def length(s: int, g: int, i: int) -> float:
            return 5e4 if s in (14, 15) and g < 2 and not i else 50 + 5 * drawn(s, g, i)

        entries = told(table(steps(40, groups=8, size=8, n_sampled=length)))
        assert sorted((each.step, len(each.carriers)) for each in entries) == [(14, 2), (15, 2)]

    def test_handfuls_that_carry_three_steps_are_one_entry(self):
        """Seen once: five warnings of one kind, rewards of which two rollouts carried each step, before a phrase that came."""

        def length(s: int, g: int, i: int) -> float:
            return 5e4 if s in (9, 20, 31) and g < 2 and not i else 50 + 5 * drawn(s, g, i)

        [entry] = told(table(steps(40, groups=8, size=8, n_sampled=length)))
        assert (entry.step, len(entry.carriers), [each.step for each in entry.consequences]) == (
            9,
            2,
            [20, 31],
        )
        assert entry.sentence.endswith("; so at 2 other steps (20, 31).")

    def test_a_handful_of_rewards_lies_apart_where_most_rewards_are_one_value(self):
        """Seen once: four rewards of 11 among 1 and 0.6 were said of the engine that three of them came from."""

        def reward(s: int, g: int, i: int) -> float:
            if s == 27 and g < 4 and not i:
                return 11.0
            return 1.0 if drawn(s, g, i) < 0.6 else 0.6

        rows = steps(40, groups=8, size=7, reward=reward, engine=lambda s, g, i: f"vllm-{g % 4 // 3}")
        [entry] = [each for each in told(table(rows)) if each.severity != "info"]
        assert (entry.step, len(entry.carriers), entry.part) == (27, 4, ())

    def test_what_more_rows_than_a_handful_do_is_of_no_handful(self):
        sizes = np.asarray([60.0, 59, 58, 57, 56, 55])
        assert _handful(sizes) == 0
        assert _handful(np.asarray([60.0, 59, 58, 9, 8, 7])) == 3

    @pytest.mark.parametrize("n_sources", [2, 3, 5, 6])
    def test_sources_that_take_turns_are_no_change(self, n_sources):
        rows = steps(
            48,
            groups=12,
            source=lambda s, g, i: f"s{s % n_sources}",
            n_sampled=lambda s, g, i: 100 + 5 * drawn(s, g, i),
        )
        assert told(table(rows)) == []

    @pytest.mark.parametrize("seed", [1, 13, 25, 39])
    def test_one_row_of_a_part_is_no_habit_of_it(self, seed):
        """Three rows a step, so that a worker has one or none: a value above 0 is in one of thirty, and was a warning."""

        def errors(s: int, g: int, i: int) -> int:
            return int(drawn(s, g, i, seed) > 1.9) * (1 + (s % 7 == 0))

        def worker(s: int, g: int, i: int) -> str:
            return f"w{int(10 * abs(drawn(s, g, i, seed + 500))) % 6}"

        assert told(table(steps(100, groups=3, size=1, worker=worker, n_tool_errors=errors))) == []

    @pytest.mark.parametrize("many", [0, 3])
    def test_rows_carry_a_step_where_they_lie_beyond_the_tail_of_all(self, many):
        """Cauchy's tail: of 3,000 rows the furthest is hundreds of times as far out as most."""
        angles = np.random.default_rng(5).uniform(-np.pi / 2, np.pi / 2, (60, 10, 5))

        def value(s: int, g: int, i: int) -> float:
            return 1e7 if s == 33 and g < many and not i else float(np.tan(angles[s, g, i]))

        entries = told(table(steps(60, groups=10, size=5, n_sampled=value)))
        assert [(each.step, len(each.carriers)) for each in entries] == ([(33, many)] if many else [])


class TestOneCauseIsOneEntry:
    def test_the_lag_of_one_engine_and_what_follows_from_it_are_one_entry(self):
        """Seen once: three errors, of which two began a step or two off: sizes of hundreds of errors have exact edges."""

        def lag(s: int, g: int, i: int) -> float:
            return max(s - 30, 0.0) if i % 2 else 0.0

        def mismatch(s: int, g: int, i: int) -> float:
            return 0.3 + 0.02 * lag(s, g, i) ** 1.2 + 0.01 * drawn(s, g, i)

        def clipped(s: int, g: int, i: int) -> float:
            return 0.01 + 0.004 * max(lag(s, g, i) - 2, 0.0) + 0.001 * drawn(s, g, i, 1)

        rows = steps(N, engine=engine, staleness_max=lag, mismatch_abs_max=mismatch, clip_share=clipped)
        [entry] = [each for each in told(table(rows)) if each.severity == "error"]
        assert entry.part == (("engine", "vllm-1"),) and abs(entry.step - 31) <= 2
        assert entry.sentence.startswith("samples are older: staleness_max rose from 0")

    def test_two_windows_of_one_part_that_share_half_of_their_steps_are_two(self):
        def first(s: int, g: int, i: int) -> float:
            return 10 * (20 <= s < 30) * (i % 2) + drawn(s, g, i)

        def second(s: int, g: int, i: int) -> float:
            return 10 * (25 <= s < 35) * (i % 2) + drawn(s, g, i, 1)

        entries = told(table(steps(N, engine=engine, n_sampled=first, mean_logprob=second)))
        assert sorted((str(each.series[0]), each.step) for each in entries) == [
            ("mean_logprob", 25),
            ("n_sampled", 20),
        ]


class TestSizes:
    def test_advantages_that_shrink_are_said_though_their_mean_is_always_nothing(self):
        def advantage(s: int, g: int, i: int) -> float:
            return (1.0 if i % 2 else -1.0) * (0.3 if s >= 30 else 1.0) * (1 + 0.1 * drawn(s, g, i // 2))

        [entry] = told(table(steps(N, advantage=advantage)))
        assert "the size of advantage fell from 1 to 0.297" in entry.sentence and entry.step == 30
        assert "abs(" in entry.queries[0]


class TestPromptsThatComeAgain:
    def test_a_loader_that_asks_the_same_prompts_at_every_step_is_said(self):
        rows = [
            row | {"prompt_key": f"p{row['group']}"} if row["step"] >= 30 else row
            for row in steps(N, n_sampled=lambda s, g, i: 100 + drawn(s, g, i))
        ]
        [entry] = told(table(rows))
        assert str(entry.series[0]) == "group/prompts again" and entry.step == 32

    @staticmethod
    def rows(fall: float) -> list[dict[str, object]]:
        """Ninety prompts, some far harder than others, three in each step; from step 30 on fewer are solved."""
        order = np.random.default_rng(4).integers(0, 90, (60, 3))
        hard = np.random.default_rng(5).random(90)

        def solved(step: int, group: int, sample: int) -> float:
            draw = uniform(step, group, sample)
            return float(draw < 0.05 + 0.9 * hard[order[step, group]] - fall * (step >= 30))

        rows = steps(60, groups=3, size=8, reward=solved)
        for row in rows:
            row["prompt_key"] = f"p{order[row['step'], row['group']]}"
        return rows

    def test_a_fall_is_seen_beside_how_prompts_differ(self):
        entry = diagnose(table(self.rows(0.25)), "run").diagnoses[0]
        assert (str(entry.series[0]), entry.part) == ("reward", ())
        assert entry.onset[0] <= 30 <= entry.onset[1] and entry.after < entry.before

    def test_prompts_that_differ_are_no_movement(self):
        assert not told(table(self.rows(0.0)))

    def test_what_a_prompt_is_says_nothing_of_its_other_visits(self):
        """Its length hardly differs between visits, so that any change of one visit would be one of all others."""
        rows = self.rows(0.0)
        for row in rows:
            row["n_prompt"] = 100 + 7 * int(row["prompt_key"][1:]) + 60 * (row["step"] in (20, 21, 22))
        assert {each.step for each in told(table(rows))} <= {20}


class TestWhatIsLearned:
    def test_lengths_that_fall_before_they_grow_are_no_warning(self):
        """Seen once: an error at the step at which a healthy run's answers were shortest."""
        rows = steps(
            90,
            reward=lambda *at: float(happens(0.5, *at)),
            n_sampled=lambda step, group, sample: round(
                (450 + 350 * np.exp(-step / 6) + 6 * step) * np.exp(0.25 * drawn(step, group, sample))
            ),
        )
        assert not told(table(rows))

    def test_a_number_that_is_flat_and_then_climbs_is_said_since_it_climbs(self):
        """Seen once: memory that leaks from step 30 on stood among what is learned since step 0."""
        noise = np.random.default_rng(2).normal(0, 0.4, 100)
        values = [61 + noise[s] + 0.2 * max(s - 30, 0) for s in range(100)]
        [entry] = diagnose(logged(steps(100), values, "perf/gpu_mem_gb"), "run").diagnoses
        assert 25 <= entry.step <= 36 and entry.last is None

    def test_which_way_each_series_went_is_said(self):
        rows = steps(
            60,
            reward=lambda step, group, sample: float(happens(0.2 + 0.01 * step, step, group, sample)),
            n_sampled=lambda step, group, sample: round(900 - 9 * step + 30 * drawn(step, group, sample)),
        )
        [entry] = [each for each in diagnose(table(rows), "run").diagnoses if each.step == 0]
        assert "the reward rises: reward rose" in entry.sentence and "also fell: n_sampled" in entry.sentence

    @pytest.mark.parametrize(("slope", "severities"), [(-0.006, {"error", "warn"}), (0.006, set())])
    def test_an_evaluation_that_falls_while_the_reward_rises_is_no_learning(self, slope, severities):
        """Seen once: both stood as what is learned since step 0."""
        rows = steps(60, reward=lambda s, g, i: float(happens(0.3 + 0.006 * s, s, g, i)))
        asked = steps(
            60, groups=64, size=1, reward=lambda s, g, i: float(happens(0.5 + slope * s, s, 64 + g, i))
        )
        for row in asked:
            row |= {"split": "eval-rollout", "prompt_key": f"e{row['group']}", "group": row["group"] + 64}
        found = told(table([*rows, *(row for row in asked if row["step"] % 5 == 0)]))
        assert {each.severity for each in found} <= severities and bool(found) == bool(severities)
        assert all("the evaluation falls: eval-rollout/reward fell" in each.sentence for each in found)


class TestParts:
    def test_a_source_that_falls_while_the_others_learn_has_its_own_figures(self):
        """Seen once: the figures of all rows stood in the sentence of one source."""

        def solved(step: int, group: int, sample: int) -> float:
            share = 0.02 if group % 3 == 0 and step >= 40 else 0.35 + 0.4 * step / 100
            return float(happens(share, step, group, sample))

        rows = steps(100, groups=9, reward=solved, source=lambda _, group, __: f"s{group % 3}")
        [entry] = [each for each in told(table(rows)) if "reward" in map(str, each.series)]
        assert entry.part == (("source", "s0"),) and 39 <= entry.step <= 41
        assert entry.before > 0.35 and entry.after < 0.1 and entry.elsewhere > 0.4


class TestPoints:
    def test_scores_of_a_worker_that_are_one_value_are_said_of_it(self):
        """Seen once: a judge that gave a half to most rollouts of one worker was said nowhere, since its mean stayed."""

        def judged(step: int, group: int, sample: int) -> float:
            gives_up = sample == 1 and step >= 30 and happens(0.8, step, group, sample)
            return 0.5 if gives_up else 0.5 + 0.1 * drawn(step, group, sample)

        rows = steps(
            60, size=4, **{"component/judge": judged, "extra/worker": lambda _, __, sample: f"w{sample}"}
        )
        [entry] = [each for each in told(table(rows)) if str(each.series[0]) == "component/judge 0.5"]
        assert entry.part == (("extra/worker", "w1"),) and 29 <= entry.step <= 31
        parse_query(entry.where)


@pytest.mark.parametrize(("after", "severity"), [(0.85, "warn"), (0.15, "error")])
def test_rewards_that_rise_at_once_are_a_warning_and_those_that_fall_an_error(after, severity):
    """Seen once: a source that was learned late, as an error before the one that was lost."""

    def solved(step: int, group: int, sample: int) -> float:
        return float(happens(0.5 if step < 30 else after, step, group, sample))

    [entry] = told(table(steps(60, groups=12, size=8, reward=solved)))
    assert (entry.severity, entry.step) == (severity, 30)


def test_what_hardly_moved_is_info_and_has_the_digits_that_say_how_far():
    """Seen once: “the reward falls: reward moved”, as an error."""
    rows = steps(60, groups=10, reward=lambda s, g, i: 1.174 - 0.008 * (s >= 30) + 0.005 * drawn(s, g, i))
    [entry] = [each for each in diagnose(table(rows), "run").diagnoses if SeriesName("reward") in each.series]
    assert entry.severity == "info"
    assert entry.sentence.startswith("the reward falls: reward fell from 1.174 to 1.166, since step 30")


@pytest.mark.parametrize(
    ("before", "after", "z", "said"),
    [
        (0.4, 0.3, -9.0, "the reward falls: reward fell from 0.4 to 0.3, since step 30"),
        (0.4, 0.4, -9.0, "the reward falls: reward fell from its course, at 0.4, since step 30"),
        (None, 0.3, -9.0, "the reward falls: reward fell, since step 30"),
        (None, 0.3, 9.0, "the reward rises: reward rose, since step 30"),
    ],
)
def test_which_way_it_went_is_said_where_its_levels_do_not_say_so(before, after, z, said):
    """Seen once: “the reward falls: reward moved”."""
    m = Movement(SeriesName("reward"), (), "level", (30, 30), 30, None, None, before, after, z, 1e-9)
    signature, _ = named([m], [9.0], (), False)
    assert sentence_of(m, (), [], signature) == said
