"""Whose a movement is: of rare shares, of factors, of two columns that part each other, of what adds up to the same."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from rollout_traces.analysis import diagnose, run_report
from rollout_traces.analysis.compete import AlikeMovements
from rollout_traces.analysis.curves import SeriesName
from rollout_traces.analysis.detected_movement import Moved
from rollout_traces.analysis.diagnosis import Diagnosis
from rollout_traces.analysis.entries import diagnosis_of
from rollout_traces.analysis.severity import severity_of
from tests.analysis.builders import steps, table
from tests.analysis.test_movements import drawn, happens, told
from tests.perturbations.equations import compute
from tests.perturbations.run import Run
from tests.perturbations.spec import draw_spec
from tests.perturbations.tables import Relations
from tests.perturbations.truth import draw_trial


def in_world(world: str, seed: int, n: int) -> list[Diagnosis]:
    """What is said of a drawn run of `n` perturbations."""
    return told(Relations(draw_trial(draw_spec(world, seed), n).run))


def test_a_flag_that_is_rare_and_then_in_most_rollouts_is_of_all_of_them():
    """Seen once: 1 % to 60 % for four steps, of six engines of eight, by the error that the share had while it was rare."""
    [entry] = [each for each in in_world("large steps", 640330, 2) if each.series[0].value == "retokenized"]
    assert entry.part == () and (entry.step, entry.last) == (26, 29)


@pytest.mark.parametrize("seed", range(3))
def test_a_success_that_falls_by_one_factor_in_both_sources_is_of_both(seed):
    """Seen once: 0.3 to 0.04 and 0.1 to 0.02, told of the first."""
    of_rollouts = np.random.default_rng([seed, 4]).random((60, 10, 6))

    def solved(s: int, g: int, i: int) -> int:
        return int(of_rollouts[s, g, i] < (0.45, 0.15)[g % 2] * (0.15 if s >= 30 else 1.0))

    [entry] = told(table(steps(60, groups=10, size=6, success=solved, source=lambda s, g, i: "ab"[g % 2])))
    assert entry.part == ()


def test_advantages_of_one_host_are_not_said_beside_the_rewards_of_the_other_that_changed():
    """Seen once: “advantage rose on node-1” above the rewards of node-2, from which they are computed."""
    found = in_world("evaluated", 880163, 4)
    assert any(each.series[0].column == "reward" and each.step == 56 for each in found)
    assert not any(each.series[0].column == "advantage" for each in found)


@pytest.mark.parametrize(("world", "seed"), [("long code", 142872), ("evaluated", 142860)])
def test_advantages_that_one_host_gains_are_no_entry_beside_what_the_other_lost(world, seed):
    """Seen three times: “advantage rose on node-1” as an entry of its own beside what fell on node-2 at that step."""
    found = in_world(world, seed, 3)
    assert any(each.part == (("extra/host", "node-2"),) for each in found)
    assert not any(each.series[0].column == "advantage" for each in found if each.severity != "info")


def test_a_success_of_unknown_part_is_not_told_of_the_part_that_went_the_other_way():
    """Seen once: “success fell on node-2” where the rewards of node-1 did."""
    found = in_world("long code", 640264, 3)
    [entry] = [each for each in found if SeriesName("success") in each.series]
    assert entry.part != (("extra/host", "node-2"),)


def test_a_number_that_is_back_at_the_last_two_steps_was_another_in_a_window():
    """Seen once: “answers are longer, from step 58 to 59” of lengths that had been shorter from step 42 to 57."""
    rows = steps(60, n_sampled=lambda s, g, i: 700 + 40 * drawn(s, g, i) - (280 if 42 <= s < 58 else 0))
    [entry] = told(table(rows))
    assert (entry.shape, entry.step, entry.last) == ("window", 42, 57)
    assert entry.after < entry.before


@pytest.mark.parametrize("times", [7, 12])
def test_a_tool_that_takes_ever_longer_for_one_source_is_an_error(times):
    """Seen once: seconds of a tool from 1.9 to 23 on one source, sure and dated, as info: a policy might learn that."""

    def seconds(s: int, g: int, i: int) -> float:
        grown = 1 + (times - 1) * min(max(s - 40, 0) / 25, 1) if g % 3 == 0 else 1
        return 2 * grown * (0.7 + 0.6 * drawn(s, g, i))

    def source(s: int, g: int, i: int) -> str:
        return "search" if g % 3 == 0 else f"other{g % 3}"

    [entry] = told(table(steps(90, groups=9, size=6, source=source, **{"timing/tool": seconds})))
    assert (entry.severity, entry.part, entry.name) == (
        "error",
        (("source", "search"),),
        "it takes longer",
    )
    assert abs(entry.step - 41) <= 4


def rewards_of_one_engine(monkeypatch: pytest.MonkeyPatch) -> Moved:
    """The movement of the rewards of one engine of four, which fall."""
    moved: list[Moved] = []
    monkeypatch.setattr(run_report, "entries", lambda found: moved.extend(found) or [])

    def paid(s: int, g: int, i: int) -> float:
        return float(happens(0.2 if s >= 30 and i % 4 == 0 else 0.6, s, g, i))

    diagnose(table(steps(60, groups=8, size=8, engine=lambda s, g, i: f"vllm-{i % 4}", reward=paid)), "run")
    return next(each for each in moved if each.chosen.values and each.panel.names[0] == SeriesName("reward"))


def test_a_part_whose_level_stays_is_info_however_the_others_moved(monkeypatch):
    """Seen once, in a healthy run: “the reward falls: reward moved on stop_reason “length”” of rewards that are 0."""
    found = rewards_of_one_engine(monkeypatch)
    still = replace(found, panel=replace(found.panel, levels=np.zeros_like(found.panel.levels)))
    assert (severity_of(found, 1), severity_of(still, 1)) == ("error", "info")


def test_advantages_that_are_joined_to_other_rollouts_are_an_error_since_then():
    """Seen once: “Nothing stands out” of advantages that no longer went with the rewards of their rollouts."""
    rng = np.random.default_rng(8)
    reward = rng.integers(0, 2, (60, 8, 6)).astype(float)
    advantage = reward - reward.mean(axis=2, keepdims=True)
    advantage[30:] = rng.permuted(advantage[30:], axis=2)
    rows = steps(
        60,
        groups=8,
        size=6,
        reward=lambda s, g, i: reward[s, g, i],
        advantage=lambda s, g, i: advantage[s, g, i],
    )
    [entry] = told(table(rows))
    assert (entry.severity, entry.name, entry.step) == ("error", "advantages no longer go with rewards", 30)


def test_the_figures_of_an_unknown_part_say_whose_they_are(monkeypatch):
    """Seen once: “the reward rises from 0 to 0.05, for which rollouts cannot be told”, of those that were cut off."""
    found = rewards_of_one_engine(monkeypatch)
    unknown = replace(found, chosen=replace(found.chosen, values=None))
    said = diagnosis_of(AlikeMovements([unknown], None), 1, 1.0).sentence
    assert "for which rollouts cannot be told (the figures are those of engine “vllm-0”)" in said


def test_what_a_source_that_comes_every_third_step_is_given_is_said_of_the_step_at_which_it_changed():
    """Seen once: “system … is 100 % at 19 of 60 steps, 0 % at the others”, in place of the step at which it was another."""
    found = in_world("alternating", 20135, 2)
    assert not [each for each in found if each.shape == "recurring"]
    assert any(each.series[0].column == "system" and each.step in (49, 50) for each in found)


class TestThoseThatAreCutOff:
    """What is measured of rollouts that ended alike is of others when they are many times as many."""

    @staticmethod
    def rows(**columns: object) -> list[dict]:
        rng = np.random.default_rng(8)
        ends = rng.random((90, 8, 6))

        def cut(s: int, g: int, i: int) -> bool:
            return bool(ends[s, g, i] < (0.3 if s >= 45 else 0.03))

        of_end = {name: (lambda s, g, i, of=of: of(s, g, i, cut(s, g, i))) for name, of in columns.items()}
        return steps(
            90, groups=8, size=6, stop_reason=lambda s, g, i: "length" if cut(s, g, i) else "stop", **of_end
        )

    def test_what_a_few_of_them_were_is_said_under_their_number(self):
        """Seen once: an error beside it, that a flag fell from 45 % to 1 % on stop_reason “length”."""
        rng = np.random.default_rng(9).random((90, 8, 6))

        def errors(s: int, g: int, i: int, cut: bool) -> int:
            return int(cut and rng[s, g, i] < (0.05 if s >= 45 else 0.7))

        found = told(table(self.rows(n_tool_errors=errors)))
        assert [each.name for each in found] == ["answers are cut off"]
        assert any(str(each.series[0]) == "n_tool_errors" for each in found[0].consequences)

    def test_answers_that_they_lack_are_said_under_their_number(self):
        """Seen once: an error beside it, of answers in another form."""
        rows = [
            {**row, "uid": f"u{at}", "traced": True, "selected_by": "random", "selected_probability": 1.0}
            for at, row in enumerate(self.rows())
        ]
        words = ["then", "add", "both", "sides", "and", "carry", "one", "over", "to", "the", "left"]
        rng = np.random.default_rng(3)
        texts = [
            {
                "uid": row["uid"],
                "written": " ".join(rng.choice(words, 30))
                + ("" if row["stop_reason"] == "length" else f" \\boxed{{{at}}}"),
            }
            for at, row in enumerate(rows)
        ]
        found = told(table(rows, texts))
        assert [each.name for each in found] == ["answers are cut off"]

    def test_rewards_that_stay_0_while_all_others_are_paid_more_are_no_rise(self):
        """Seen once: an error, “the reward rises: reward rose from 0 to 0.05”, of what beside the others fell."""
        rng = np.random.default_rng(5).random((90, 8, 6))

        def reward(s: int, g: int, i: int, cut: bool) -> float:
            return float(rng[s, g, i] < (0.05 * (s > 60) if cut else 0.2 + 0.6 * s / 90))

        found = told(table(self.rows(reward=reward)))
        assert not any("reward rose from 0 " in each.sentence for each in found)


def test_what_begins_when_all_are_cut_off_already_is_no_consequence_of_that():
    """Seen once: log-probabilities of one engine, off since step 67, hung under a limit that cut off all rollouts since step 52."""
    rng = np.random.default_rng(4)
    engine, off = rng.integers(0, 3, (120, 8, 6)), np.exp(rng.normal(-1, 0.4, (120, 8, 6)))

    def apart(s: int, g: int, i: int) -> float:
        return float(off[s, g, i] * (2.0 if s >= 67 and engine[s, g, i] == 0 else 1.0))

    rows = steps(
        120,
        groups=8,
        size=6,
        engine=lambda s, g, i: f"vllm-{engine[s, g, i]}",
        stop_reason=lambda s, g, i: "length" if s >= 52 else "stop",
        mismatch_abs_max=apart,
    )
    found = told(table(rows))
    assert [(str(each.series[0]), each.step) for each in found] == [
        ("stop_reason stop", 52),
        ("mismatch_abs_max", 67),
    ]
    assert not any(each.consequences for each in found)


def test_what_is_unknown_of_those_of_one_lag_alone_is_said_of_them():
    """Seen once: an info of all rollouts, from 0 to 9 %, of what came in half of those that were two versions old, and in no other."""
    rng = np.random.default_rng(6)
    lag, unknown = rng.choice(3, (100, 8, 6), p=[0.6, 0.25, 0.15]), rng.random((100, 8, 6))

    def success(s: int, g: int, i: int) -> int | None:
        share = 0.5 * min(max(s - 25, 0) / 25, 1.0) if lag[s, g, i] == 2 else 0.0
        return None if unknown[s, g, i] < share else int(drawn(s, g, i) > 0)

    rows = steps(100, groups=8, size=6, success=success, staleness_max=lambda s, g, i: int(lag[s, g, i]))
    found = told(table(rows))
    assert [(str(each.series[0]), each.part) for each in found] == [
        ("success unknown", (("staleness_max", "2"),))
    ]
    assert 20 <= found[0].step <= 34


class TestSourcesThatGoApart:
    """Sources that learn for themselves, of which two change about the same time."""

    @staticmethod
    def of(changes: dict[str, tuple[int, float, float]], n_steps: int = 40) -> list[Diagnosis]:
        rng = np.random.default_rng(len(changes))
        of_rollouts, of_groups = rng.random((n_steps, 16, 4)), rng.integers(0, 4, (n_steps, 16))
        names = ("math", "code", "chat", "logic")

        def source(s: int, g: int, i: int) -> str:
            return names[of_groups[s, g]]

        def solved(s: int, g: int, i: int) -> int:
            since, before, after = changes.get(source(s, g, i), (0, 0, 0.5))
            return int(of_rollouts[s, g, i] < (before if s < since else after))

        return told(table(steps(n_steps, groups=16, source=source, success=solved)))

    def test_the_one_that_falls_is_named_where_another_rises_meanwhile(self):
        """Seen once: “for which rollouts cannot be told” of a source that fell, since another had risen by half as much."""
        found = self.of({"code": (14, 0.6, 0.2), "logic": (14, 0.4, 0.7)})
        assert (("source", "code"),) in [each.part for each in found]
        assert not [each for each in found if each.part is None]

    def test_each_has_its_own_step(self):
        """Seen once: no word of a source that fell from 0.49 to 0.18 three steps after another had risen."""
        found = self.of({"code": (14, 0.45, 0.85), "logic": (17, 0.5, 0.15)})
        [entry] = [each for each in found if each.part == (("source", "logic"),)]
        assert entry.after < entry.before and abs(entry.step - 17) <= 1


def test_a_hang_of_four_steps_is_of_all_rows_though_a_source_came_at_three_of_them():
    """Seen once: “rose on math and code, 7.19 elsewhere”."""
    rng = np.random.default_rng(2)
    of_groups, lag = rng.random((60, 8)), rng.integers(0, 3, (60, 8, 4))

    def source(s: int, g: int, i: int) -> str:
        share = 0.0 if s == 19 else 0.1
        return "logic" if of_groups[s, g] < share else "math" if of_groups[s, g] < 0.55 else "code"

    def stale(s: int, g: int, i: int) -> int:
        return int(lag[s, g, i]) + (6 if 19 <= s < 23 else 0)

    [entry] = told(table(steps(60, groups=8, source=source, staleness_max=stale)))
    assert (entry.part, entry.step, entry.last) == ((), 19, 22)


def test_an_engine_that_gets_no_new_weights_to_the_end_is_an_error_since_then():
    """Seen once: a lag of 1 to 36 on one engine of four under “the reward rises”, and “the lag of another engine fell”."""

    def stale(s: int, g: int, i: int) -> int:
        return (i % 4 == 1 and s >= 25 and s - 24) or int(happens(0.5, s, g, i))

    rows = steps(60, groups=6, size=8, engine=lambda s, g, i: f"sgl-{i % 4}", staleness_max=stale)
    [entry] = told(table(rows))
    assert (entry.severity, entry.part) == ("error", (("engine", "sgl-1"),))
    assert abs(entry.step - 25) <= 1


def test_the_shares_of_engines_that_make_room_for_another_hang_under_it():
    """Seen once: a warning that an engine had fewer rollouts, from the step at which another came."""

    def engine(s: int, g: int, i: int) -> str:
        n = 3 if 25 <= s < 45 else 2
        return f"sgl-{int(np.random.default_rng([s, g, i, 3]).integers(n))}"

    found = told(table(steps(70, groups=10, size=8, engine=engine)))
    assert {each.series[0].value for each in found} == {"sgl-2"}


def test_a_rare_flag_is_dated_by_the_counts_of_its_rows():
    """Seen once: 8% to 48% of a host's rollouts, perhaps by chance, since step 10, where no row had it before step 8."""
    found = in_world("large steps", 871225, 4)
    [entry] = [each for each in found if each.series[0].value == "thinking_unclosed"]
    assert entry.step == 8


@pytest.mark.parametrize(
    ("world", "seed"), [("long code", 550160), ("alternating", 871237), ("agent", 871255)]
)
def test_what_is_learned_late_is_no_fall_before_it_nor_a_rise(world, seed):
    """Seen once, in healthy runs: “the reward falls, from step 59 to 92” of one that stood still and then rose."""
    found = told(Relations(compute(Run(draw_spec(world, seed), 0, ()))))
    assert not [each for each in found if each.severity == "error" or each.series[0].column == "mean_logprob"]


def test_rewards_that_fall_are_no_matter_of_how_answers_ended_where_those_cut_off_never_have_any():
    """Seen once: “success rose on stop_reason “stop”, 0 elsewhere”, of what rose for all."""

    def solved(s: int, g: int, i: int) -> int:
        return int(i > 0 and happens(0.75 if s < 30 else 0.4, s, g, i))

    ends = {"stop_reason": lambda s, g, i: "length" if i == 0 else "stop"}
    found = told(table(steps(60, groups=10, size=8, success=solved, **ends)))
    assert found and all(each.part != (("stop_reason", "stop"),) for each in found)


def test_an_engine_beside_one_that_falls_is_not_told_for_what_it_learns():
    """Seen once: “the reward rises on node-2, 17% elsewhere” as the first error, beside a host that solved less."""
    found = in_world("agent", 192773, 3)
    assert not [each for each in found if each.part == (("extra/host", "node-2"),)]


def test_longest_of_more_tokens_follow_from_longer_answers():
    """Seen once: “trainer and sampler compute other probabilities ... compare weights” since answers were longer and each token off by as much as ever."""
    rng = np.random.default_rng(12)
    spread = rng.normal(size=(60, 8, 6))

    def length(s: int, g: int, i: int) -> int:
        return int((60 if s < 30 else 200) * np.exp(0.4 * spread[s, g, i]))

    off = {
        (s, g, i): float(np.abs(np.random.default_rng([s, g, i]).normal(0, 0.02, length(s, g, i))).max())
        for s in range(60)
        for g in range(8)
        for i in range(6)
    }
    rows = steps(60, groups=8, size=6, n_sampled=length, mismatch_abs_max=lambda s, g, i: off[s, g, i])
    [entry] = told(table(rows))
    assert entry.series[0].column == "n_sampled"


def test_movements_remain_where_what_joins_them_raises(monkeypatch):
    """Seen once: no entry at all of a run, since one comparison of two of them raised."""

    def raises(found: object) -> None:
        raise KeyError("engine")

    monkeypatch.setattr(run_report, "entries", raises)
    rows = steps(60, groups=8, n_sampled=lambda s, g, i: 700 + 40 * drawn(s, g, i) - (280 if s >= 42 else 0))
    report = diagnose(table(rows), "run")
    assert [each.step for each in report.diagnoses if each.severity == "error"] == [42]
    assert report.problems and "KeyError" in report.problems[0]


def test_what_was_seen_at_one_step_alone_in_all_groups_of_a_source_is_sure():
    """Seen once: a verifier that timed out for 62 % of one source at one step, "perhaps by chance"."""
    rows = steps(
        40,
        groups=24,
        size=8,
        source=lambda s, g, i: ["math", "code", "chat", "logic"][g % 4],
        reward_status=lambda s, g, i: "timeout" if s == 10 and g % 4 == 1 and i < 5 else "ok",
    )
    [entry] = told(table(rows))
    assert (entry.severity, entry.part, entry.step, entry.last) == ("warn", (("source", "code"),), 10, 10)


@pytest.mark.parametrize("seed", range(4))
def test_a_rare_value_that_two_groups_of_a_step_have_is_not(seed):
    where = np.random.default_rng(seed).integers(5, 35)
    rows = steps(
        40,
        groups=24,
        size=8,
        reward_status=lambda s, g, i: "timeout" if s == where and g < 2 and i < 2 else "ok",
    )
    assert not told(table(rows))


@pytest.mark.parametrize("seed", range(4))
def test_what_climbs_through_most_of_a_run_is_told_of_its_engine(seed):
    """Seen once: staleness of 0.2 to 136 on one engine and 0.2 throughout on the other, said of all rollouts, and of the other: the level that each usually has was read where it climbed."""
    rng = np.random.default_rng(seed)
    late, first = rng.random((168, 6, 8)) < 0.2, rng.random((168, 6, 8)) < 0.5

    def staleness(s: int, g: int, i: int) -> float:
        return float(s - 30 if s > 30 and first[s, g, i] else late[s, g, i])

    rows = steps(168, size=8, engine=lambda *at: f"vllm-{int(first[at])}", staleness_max=staleness)
    [entry] = told(table(rows))
    assert (entry.part, entry.step) == ((("engine", "vllm-1"),), 31)


@pytest.mark.parametrize("seed", [1, 2])
def test_an_engine_that_learns_as_the_others_do_until_it_is_off_is_told_where_it_is(seed):
    """Seen once: ever more groups whose rewards are all equal as an error of one engine, “elsewhere” as many, from step 26 to 81; then its rewards fell."""
    drawn_S_G_I = np.random.default_rng(seed).random((195, 5, 8))

    def solved(s: int, g: int, i: int) -> float:
        share = 0.45 if i % 4 == 1 and s >= 85 else 0.4 + 0.5 * (1 - float(np.exp(-s / 25)))
        return float(drawn_S_G_I[s, g, i] < share)

    found = told(table(steps(195, 5, 8, reward=solved, engine=lambda s, g, i: f"vllm-{i % 4}")))
    errors = [each for each in found if each.severity == "error"]
    assert [(each.name, each.step, each.part) for each in errors] == [
        ("the reward falls", 85, (("engine", "vllm-1"),))
    ]
