"""What `explain` says of a step and of two sets: numbers of rollouts, logged scalars, carriers, parts, what was written."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from benchmarks.step_power import asked, run_of, told
from rollout_traces.analysis import Explanation, Selection, explain
from rollout_traces.analysis.columns_compared import ColumnsCompared
from rollout_traces.analysis.kept_texts import read_texts
from rollout_traces.analysis.relations import describe
from rollout_traces.analysis.two_sides import A, B, EarlierVisits, read_earlier_visits, read_rows
from tests.analysis.builders import normal, steps, table
from tests.stories.causes import CAUSES
from tests.stories.relations import TableRelations, of_story
from tests.stories.world import Story, write_run


def story_of(name: str) -> Story:
    return write_run(4, "mixed", name, CAUSES[name].changes, n_steps=60, at=30)


def explained(name: str, n_steps: int = 1) -> tuple[TableRelations, Explanation]:
    story = story_of(name)
    relations = of_story(story)
    return relations, explain(relations, Selection("run", "rollout", (story.at + 4, story.at + 3 + n_steps)))


def noisy(step: int, group: int, sample: int) -> float:
    return normal(step, group, sample)


class TestFindings:
    @pytest.mark.parametrize("name", ["one engine off", "mask leak", "length penalty switched on"])
    def test_their_queries_give_their_levels_and_counts(self, name):
        relations, found = explained(name, 8)
        assert found.findings and not found.problems
        for each in (one for f in found.findings for one in (f, *f.consequences) if not one.logged):
            rows = relations.sql(each.query).to_pylist()
            assert rows[0]["level"] == pytest.approx(each.a) and rows[1]["level"] == pytest.approx(each.b)
            assert (rows[0]["rollouts"], rows[1]["rollouts"]) == (each.n_a, each.n_b)
            inside = [row for row in rows if row.get("part") == "inside"]
            if inside:
                assert inside[0]["level"] == pytest.approx(each.detail.a)

    def test_a_share_of_texts_weighs_each_by_how_likely_it_was_kept(self):
        rows = []
        for step in range(12):
            for i in range(40):
                kept = i < (20 if step == 11 else 4)
                rows.append(
                    {
                        "step": step, "group": i // 4, "traced": kept, "selected_by": "random" if kept else None,
                        "selected_probability": (0.5 if step == 11 else 0.1) if kept else None,
                        "error_signatures": (["broken"] if step >= 10 else []) if kept else None,
                    }
                )  # fmt: skip
        relations = table(rows)
        found = explain(relations, Selection("run", "rollout", (10, 11)), Selection("run", "rollout", (0, 9)))
        (finding,) = found.findings
        assert finding.column == "error_signatures"
        assert relations.sql(finding.query).to_pylist()[0]["level"] == pytest.approx(finding.a)

    def test_what_the_filter_fixes_is_no_finding(self):
        rows = steps(
            12,
            reward=noisy,
            source=lambda s, g, i: "math" if g % 2 else "code",
            n_sampled=lambda s, g, i: 100 + g,
        )
        a = Selection("run", "rollout", where='"source" = ?', params=("math",))
        b = Selection("run", "rollout", where='not coalesce(("source" = ?), false)', params=("math",))
        assert all(f.column != "source" for f in explain(table(rows), a, b).findings)

    def test_where_nothing_is_beyond_chance_what_is_nearest_to_it_is_told_as_that(self):
        """Seen once: "Nothing beyond what groups differ by chance" of an evaluation in which 11 of 22 answers could no longer be read."""
        asked = [Selection("run", "eval-rollout", (at, at)) for at in (10, 0)]

        def found(n_lost: int) -> list[tuple[str, bool]]:
            rows = [
                {"step": step, "split": "eval-rollout", "prompt_key": f"p{n}", "group": n, "sample": 0}
                | {"answered": float(step == 0 or n >= n_lost)}
                for step in (0, 10)
                for n in range(22)
            ]
            return [(each.sentence, each.is_sure) for each in explain(table(rows), *asked).findings]

        assert found(22) == [("answered: 1 to 0", True)]
        assert found(6) == [("answered: 1 to 0.727, perhaps by chance", False)]
        assert found(2) == []

    def test_a_flag_that_evaluations_are_not_looked_through_for_differs_in_nothing(self):
        """Seen once: "tied_group: 18% to 0%" of an evaluation, in which nobody looks for it."""
        flags = lambda s, g, i: ["tied_group", "truncated"] if g % 2 else []  # noqa: E731
        rows = steps(12, groups=12, flags=flags) + [
            row | {"split": "eval-rollout"} for row in steps(12, groups=12, flags=[])
        ]
        found = explain(table(rows), Selection("run", "eval-rollout"), Selection("run", "rollout")).findings
        assert {f.name for f in found} == {"flags truncated"}

    def test_a_place_in_a_group_is_no_number_to_compare(self):
        """Seen once: "equal_to: 2 to 1, p 3e-67" between two engines that each sampled two of four."""
        rows = steps(12, groups=12, engine=lambda s, g, i: f"e{i % 2}", equal_to=lambda s, g, i: i)
        a, b = (Selection("run", "rollout", where="engine = ?", params=(each,)) for each in ("e0", "e1"))
        assert explain(table(rows), a, b).findings == ()

    def test_of_several_flags_only_the_one_asked_for_is_left_out(self):
        def flags(step: int, group: int, sample: int) -> list[str]:
            return ["truncated", "repetition"] if group % 2 else []

        rows = steps(12, groups=12, flags=flags)
        condition = "list_contains(flags, ?)"
        a = Selection("run", "rollout", where=condition, params=("truncated",))
        b = Selection("run", "rollout", where=f"not {condition}", params=("truncated",))
        found = explain(table(rows), a, b).findings
        assert [f.name for f in found] == ["flags repetition"]

    def test_a_young_change_is_left_out_of_what_the_step_is_compared_with(self):
        _, found = explained("one engine off")
        assert "Steps 30 to 33 are left out" in " ".join(found.remarks)
        assert found.b == "the 10 steps before (20 to 29)"
        assert any("vllm-1" in f.sentence for f in found.findings)

    def test_the_reward_is_not_parted_by_what_the_filter_fixes(self):
        rows = steps(12, reward=noisy, source=lambda s, g, i: "math" if g % 2 else "code", engine="vllm-0")
        a = Selection("run", "rollout", where='"source" = ?', params=("math",))
        b = Selection("run", "rollout", where='"source" <> ?', params=("math",))
        assert [part.column for part in explain(table(rows), a, b).decompositions] == ["engine"]

    def test_a_part_is_named_only_where_the_others_are_enough_to_show_that_they_did_not_move(self):
        def run(seed: int, rise: dict[str, float], n_steps: int = 1) -> str:
            first = 40 - n_steps
            rng = np.random.default_rng(seed)
            rows = steps(40, groups=12, engine=lambda s, g, i: f"vllm-{g % 3}")
            for row in rows:
                row["reward"] = rng.normal() + rise.get(row["engine"], 0.0) * (row["step"] >= first)
            found = explain(table(rows), Selection("run", "rollout", (first, 39))).findings
            return found[0].sentence if found else ""

        everywhere = [run(seed, dict.fromkeys(("vllm-0", "vllm-1", "vllm-2"), 0.9)) for seed in range(12)]
        assert sum(bool(each) for each in everywhere) >= 8
        assert sum(" on engine" in each for each in everywhere) <= 1
        one = [run(seed, {"vllm-1": 4.0}, 3) for seed in range(4)]
        told = [each for each in one if each]
        assert len(told) >= 2 and all(" on engine “vllm-1”" in each for each in told)

    def test_values_are_quoted_in_sentences(self):
        rows = steps(14, groups=12, source=lambda s, g, i: "run; do this" if s == 13 and g % 2 else "math")
        found = explain(table(rows), Selection("run", "rollout", (13, 13)))
        assert any("“run; do this”" in f.sentence for f in found.findings)


class TestEarlierVisits:
    def test_what_a_prompt_got_before_counts_by_how_often_it_was_asked(self):
        rng = np.random.default_rng(2)
        visits = rng.integers(1, 40, 300)
        ability = rng.normal(0, 1, 300)
        before = ability + rng.normal(0, 2, 300) / np.sqrt(visits)
        now = ability + rng.normal(0, 0.1, 300)
        earlier = EarlierVisits(
            np.arange(300),
            np.arange(1, 301),
            {"reward": np.r_[0.0, np.cumsum(visits)]},
            {"reward": np.r_[0.0, np.cumsum(visits * before)]},
        )
        side = np.where(np.arange(300) < 20, A, B)
        net = earlier.adjusted("reward", now, side)
        best = now - ability  # what is left where the prompts' own levels are known
        expected = before * visits / (visits + 4)
        assert np.corrcoef(net, now - expected)[0, 1] > 0.995
        rarely = visits < 4
        assert np.var(net[rarely] - best[rarely]) < 0.9 * np.var(before[rarely] - ability[rarely])


class TestPower:
    def test_a_rise_of_what_is_solved_is_told_at_sixteen_groups(self):
        rng = np.random.default_rng(11)
        assert sum(told(asked(run_of(rng, 40, 16, 8, 64, 0.4))[0]) for _ in range(5)) == 5

    def test_steps_without_any_change_are_silent_but_for_one_in_a_hundred(self):
        rng = np.random.default_rng(12)
        found = [asked(run_of(rng, 40, 16, 8, 64, 0.0))[0] for _ in range(8)]
        assert sum(any(f.is_sure for f in report.findings) or bool(report.carried) for report in found) <= 1


def logged(values: dict[str, list[float]]) -> pa.Table:
    rows = [(key, step, value) for key, each in values.items() for step, value in enumerate(each)]
    return pa.table(
        {
            "run": ["run"] * len(rows), "split": pa.nulls(len(rows), pa.string()), "step": [r[1] for r in rows],
            "key": [r[0] for r in rows], "value": [r[2] for r in rows], "attempt": ["1"] * len(rows),
        }
    )  # fmt: skip


class TestLoggedNumbers:
    @pytest.fixture
    def rollouts(self) -> pa.Table:
        rows = [
            {"run": "run", "split": "rollout", "id": str(i), **row}
            for i, row in enumerate(steps(60, reward=noisy))
        ]
        return pa.Table.from_pylist(rows)

    def test_a_spike_of_the_loss_is_told_with_its_levels(self, rollouts):
        rng = np.random.default_rng(0)
        loss, norm = (np.exp(rng.normal(mean, 0.3, 60)) for mean in (-2.6, 0.0))
        loss[50], norm[50] = 8.37, 118.0
        relations = TableRelations(
            rollouts, logged({"train/loss": loss.tolist(), "train/grad_norm": norm.tolist()})
        )
        found = explain(relations, Selection("run", "rollout", (50, 50)))
        told_of = {f.column: f for f in found.findings if f.logged}
        assert set(told_of) == {"train/loss", "train/grad_norm"}
        assert told_of["train/loss"].a == 8.37
        row = relations.sql(told_of["train/loss"].query).to_pylist()[0]
        assert (row["level"], row["steps"]) == (8.37, 1)
        assert not [f for f in explain(relations, Selection("run", "rollout", (49, 49))).findings if f.logged]

    def test_a_spike_of_what_is_0_at_times_is_told(self, rollouts):
        clipped = np.maximum(np.random.default_rng(3).normal(0.02, 0.02, 60), 0.0)
        clipped[50] = 0.9
        assert (clipped == 0).any()
        found = explain(
            TableRelations(rollouts, logged({"train/clip": clipped.tolist()})),
            Selection("run", "rollout", (50, 50)),
        )
        [told_of] = [f for f in found.findings if f.logged]
        assert told_of.is_sure and told_of.a == 0.9 and told_of.effect.p < 1e-4

    @staticmethod
    def told_at_the_last(rollouts: pa.Table, values: np.ndarray) -> list[str]:
        numbers = {f"train/{i}": each.tolist() for i, each in enumerate(values)}
        found = explain(TableRelations(rollouts, logged(numbers)), Selection("run", "rollout", (59, 59)))
        return [f.column for f in found.findings if f.logged and f.is_sure]

    def test_long_tails_that_a_runs_numbers_have_together_are_no_news(self, rollouts):
        """Seen once: fifteen of a hundred runs, in which nothing changed, had a logged number that surely did."""
        draws = [np.random.default_rng([2, seed]).standard_t(2.5, (10, 60)) for seed in range(40)]
        assert sum(bool(self.told_at_the_last(rollouts, values)) for values in draws) <= 1

    @pytest.mark.parametrize("seed", range(4))
    def test_a_spike_of_eight_errors_is_told_where_tails_are_short(self, rollouts, seed):
        values = np.random.default_rng(seed).normal(size=(10, 60))
        values[3, 59] = 8
        assert self.told_at_the_last(rollouts, values) == ["train/3"]

    def test_two_ranges_are_compared_too(self, rollouts):
        rng = np.random.default_rng(1)
        values = rng.normal(0, 1, 60) + 5 * (np.arange(60) >= 30)
        relations = TableRelations(
            rollouts, logged({"train/kl": values.tolist(), "rollout/reward/mean": values.tolist()})
        )
        found = explain(
            relations, Selection("run", "rollout", (30, 59)), Selection("run", "rollout", (0, 29))
        )
        assert [f.column for f in found.findings if f.logged] == ["train/kl"], "the ledger's own are columns"

    def test_what_counts_steps_is_no_finding(self, rollouts):
        """Seen once: the epoch was the first thing that differed at a step."""
        epochs = [0.2 + 0.01 * step for step in range(60)]
        relations = TableRelations(rollouts, logged({"training/epoch": epochs}))
        for against in (None, Selection("run", "rollout", (10, 29))):
            found = explain(relations, Selection("run", "rollout", (50, 50)), against)
            assert not [f for f in found.findings if f.logged]


def test_rounding_is_no_finding():
    """Seen once: advantages of -8.5e-17 against -2.8e-17 differed."""

    def advantage(step: int, group: int, sample: int) -> float:
        return (1.0 if sample % 2 else -1.0) + (1e-16 if step >= 20 else 0.0)

    found = explain(
        table(steps(40, advantage=advantage)),
        Selection("run", "rollout", (20, 39)),
        Selection("run", "rollout", (0, 19)),
    )
    assert not [f for f in found.findings if f.column == "advantage"]


@pytest.mark.parametrize("asked", ["other prompts", "the same prompts"])
def test_groups_whose_means_are_equal_but_for_rounding_are_tied(asked):
    """Seen once: "reward: 0.194 to 0.183", sure, of 0.1 for the format in most groups, of three in one run and of four in the other."""
    rng = np.random.default_rng(0)
    rows = []
    for run, size in (("a", 3), ("b", 4)):
        for row in steps(1, groups=40, size=size, run=run):
            solved = row["group"] % 5 == 0 and rng.random() < 0.5
            row["reward"] = 0.1 + 1.0 * solved
            row["prompt_key"] = f"{run if asked == 'other prompts' else ''}{row['group']}"
            rows.append(row)
    assert not explain(table(rows), Selection("a"), Selection("b")).findings


class TestWhoCarried:
    def run_with(self, share: float) -> TableRelations:
        rng = np.random.default_rng(3)
        rows = steps(40, groups=8, size=8, reward=noisy)
        for row in rows:
            row["update_share"] = float(rng.uniform(0.5, 1.5))
        for step in range(40):
            of = [row for row in rows if row["step"] == step]
            total = sum(row["update_share"] for row in of[2:])
            if step == 35:
                for row in of[:2]:
                    row["update_share"] = share / (1 - share) * total / 2
        return table(rows)

    def test_it_is_said_from_a_quarter_on(self):
        relations = self.run_with(0.3)
        (found,) = explain(relations, Selection("run", "rollout", (35, 35))).carried
        assert (found.column, found.rows, found.of) == ("update_share", 2, 64)
        assert found.share == pytest.approx(0.3, abs=0.01) and len(found.ids) == 2
        (row,) = relations.sql(found.query).to_pylist()
        assert (row["rollouts"], row["of"]) == (2, 64) and row["share"] == pytest.approx(found.share)

    def test_below_it_is_not(self):
        assert explain(self.run_with(0.15), Selection("run", "rollout", (35, 35))).carried == ()


class TestWhatWasWritten:
    def test_phrases_of_the_whole_text_and_of_winners(self):
        _, found = explained("judge likes a phrase", 25)
        assert "absolutely certain" in " ".join(p.phrase for p in found.phrases)
        assert all(p.examples for p in found.phrases)

    def test_a_phrase_far_beyond_the_preview_is_found(self):
        rows, texts = [], []
        for step in range(20):
            for i in range(16):
                late = step >= 10 and i % 2
                rows.append(
                    {
                        "step": step,
                        "group": i // 4,
                        "uid": f"{step}-{i}",
                        "traced": True,
                        "selected_by": "random",
                    }
                )
                body = " ".join(f"word{(7 * step + 3 * i + k) % 97}" for k in range(300))
                texts.append(
                    {"uid": f"{step}-{i}", "written": f"{body} {'I am quite sure' if late else 'so it is'}"}
                )
        relations = table(rows, texts)
        found = explain(relations, Selection("run", "rollout", (10, 19)), Selection("run", "rollout", (0, 9)))
        assert "i am quite sure" in [p.phrase for p in found.phrases]

    def test_without_texts_it_is_unobserved(self):
        found = explain(table(steps(12, reward=noisy)), Selection("run", "rollout", (11, 11)))
        assert found.phrases == () and found.problems == ()


class TestContained:
    def test_a_column_that_raises_is_said_in_a_line_and_the_others_remain(self, monkeypatch):
        def broken(self: ColumnsCompared, name: str) -> None:
            raise ZeroDivisionError(f"no weights for {name}")

        monkeypatch.setattr(ColumnsCompared, "number", broken)
        rows = steps(
            14, groups=12, reward=noisy, source=lambda s, g, i: "new" if s == 13 and g % 2 else "math"
        )
        found = explain(table(rows), Selection("run", "rollout", (13, 13)))
        (problem,) = found.problems
        assert problem.startswith("column “reward”: ZeroDivisionError: “no weights for reward")
        assert [f.value for f in found.findings] == ["new"]


class TestFewSharedPrompts:
    """Seen once: tool errors of 0.5 against 0 over 384 rollouts a side were “nothing beyond chance”, because eight prompts were paired."""

    @staticmethod
    def run_of(rng: np.random.Generator, n_steps: int, prompts: int, size: int, failing: float) -> pa.Table:
        rows = steps(n_steps, prompts, size, reward=lambda *_: float(rng.random() < 0.5))
        for row in rows:
            late = row["step"] >= n_steps // 2
            row["prompt_key"] = f"p{row['group']}"
            row["n_tool_errors"] = float(rng.random() < (failing if late else 0.0))
            row["flags"] = ["tool_error"] if row["n_tool_errors"] else []
            row |= {f"other{i}": float(rng.normal()) for i in range(8)}
        return table(rows)

    @pytest.mark.parametrize("size", [4, 8, 16])
    @pytest.mark.parametrize("prompts", [5, 8, 12])
    def test_of_steps_that_ask_them_again_each_group_counts(self, prompts, size):
        relations = self.run_of(np.random.default_rng([prompts, size]), 16, prompts, size, 0.5)
        found = explain(
            relations, Selection("run", "rollout", (8, 15)), Selection("run", "rollout", (0, 7))
        ).findings
        assert found[0].column == "n_tool_errors" and found[0].effect.paired

    @pytest.mark.parametrize("size", [4, 8, 16])
    @pytest.mark.parametrize("prompts", [8, 12])
    def test_of_two_steps_too(self, prompts, size):
        relations = self.run_of(np.random.default_rng([prompts, size]), 2, prompts, size, 0.9)
        found = explain(relations, Selection("run", "rollout", (1, 1)), Selection("run", "rollout", (0, 0)))
        assert "n_tool_errors" in {f.column for f in found.findings}

    def test_without_a_change_nothing_is_claimed(self):
        claims = []
        for seed, prompts in enumerate([5, 8, 12] * 4):
            relations = self.run_of(np.random.default_rng(seed), 16, prompts, 4, 0.0)
            for a, b in (((8, 15), (0, 7)), ((15, 15), (5, 14))):
                claims += explain(
                    relations, Selection("run", "rollout", a), Selection("run", "rollout", b)
                ).findings
        assert not [each.sentence for each in claims if each.is_sure]


class TestParts:
    """Seen once: “reward: 0.756 to 0.51” alone, at a step at which one host of the tool gave 0.175 and the other 0.845."""

    @staticmethod
    def told(*, host: str = "extra/tool_host") -> Explanation:
        rng = np.random.default_rng(5)
        rows = steps(40, 8, 8, source="math")
        for at, row in enumerate(rows):
            row[host] = "calc-b" if at % 2 else "calc-a"
            failing = row["step"] == 39 and at % 2
            row["sample/tool_errors"] = float(rng.random() < (0.9 if failing else 0.05))
            row["reward"] = float(rng.random() < (0.1 if failing else 0.8))
            row |= {f"other{i}": float(rng.normal()) for i in range(12)}
        return explain(table(rows), Selection("run", "rollout", (39, 39)))

    def test_whatever_column_parts_the_rollouts_says_where_it_is(self):
        found = self.told()
        sentences = {f.column: f.sentence for f in found.findings}
        assert set(sentences) == {"reward", "sample/tool_errors"}
        assert all(" on extra/“tool_host” “calc-b”, " in each for each in sentences.values())
        assert "extra/tool_host" in [part.column for part in found.decompositions]

    def test_it_says_how_many_are_there_beside_all(self):
        """Seen once: levels of 12 and 133 rollouts, "n 28 against 395"."""
        for each in self.told().findings:
            assert each.part is None and (each.n_a, each.n_b) == (64, 640)
            assert (each.detail.n_a, each.detail.n_b) == (32, 320)

    def test_the_error_stands_before_the_outcome(self):
        assert [f.column for f in self.told().findings] == ["sample/tool_errors", "reward"]

    def test_a_number_that_moved_in_a_part_alone_is_told_there_with_its_query(self):
        rng = np.random.default_rng(6)
        rows = steps(40, 32, 4, host=lambda s, g, i: f"h{g % 4}")
        for row in rows:
            hit = row["step"] == 39 and row["host"] == "h2"
            row["latency"] = float(rng.normal(1.2 if hit else 0.0, 0.4)) + 3.0 * float(rng.normal()) * (
                row["host"] != "h2"
            )
        relations = table(rows)
        (found,) = explain(relations, Selection("run", "rollout", (39, 39))).findings
        assert str(found.part) == "host “h2”" and " elsewhere" in found.sentence
        levels = relations.sql(found.query).to_pylist()
        assert levels[0]["level"] == pytest.approx(found.a) and levels[1]["level"] == pytest.approx(found.b)
        assert set(found.detail.examples) <= {
            str(i) for i, row in enumerate(rows) if row["step"] == 39 and row["host"] == "h2"
        }

    def test_a_part_beside_which_the_others_moved_as_much_is_none(self):
        """Seen once: "answered: 0.989 to 0.719 on engine “vllm-0”, 0.734 elsewhere" of a source whose answers could no longer be read."""
        rng = np.random.default_rng(5)
        rows = steps(
            60,
            groups=16,
            size=8,
            engine=lambda s, g, i: f"vllm-{i % 2}",
            source=lambda s, g, i: "a" if g < 4 else "b",
        )
        for row in rows:
            row["answered"] = float(rng.random() < 0.98 and not (row["step"] == 59 and row["source"] == "a"))
        found = explain(table(rows), Selection("run", "rollout", (59, 59))).findings
        assert not [each.sentence for each in found if each.part is not None and each.part.column == "engine"]

    def test_steps_without_a_change_name_no_part(self):
        claims = []
        for seed in range(8):
            rng = np.random.default_rng(seed)
            rows = steps(30, 8, 4, host=lambda s, g, i: f"h{i % 4}", engine=lambda s, g, i: f"e{g % 2}")
            for row in rows:
                row |= {
                    "reward": float(rng.random() < 0.5),
                    **{f"x{i}": float(rng.normal()) for i in range(10)},
                }
            claims += explain(table(rows), Selection("run", "rollout", (29, 29))).findings
        assert claims == []


class TestRolloutsThatShowIt:
    """Seen once: of a tool that failed on half of the rollouts those were named in which it had not."""

    @pytest.fixture(scope="class")
    def shown(self) -> tuple[list[dict], dict[str, set[str]]]:
        rng = np.random.default_rng(7)
        rows = steps(24, 24, 4)
        for at, row in enumerate(rows):
            failing = row["step"] == 23 and at % 2 == 1
            row["n_environment"] = 34 if failing else 41
            row["reward"] = float(rng.random() < (0.0 if failing else 0.6))
            row["flags"] = ["tool_error"] if failing else ["answered"]
        found = explain(table(rows), Selection("run", "rollout", (23, 23))).findings
        named = {f.name: set(f.detail.examples) for f in found}
        return rows, named

    def test_of_a_value_that_rose_those_that_have_it_and_of_one_that_fell_those_that_lack_it(self, shown):
        rows, named = shown
        for name in ("flags tool_error", "flags answered", "n_environment"):
            assert len(named[name]) == 3
            assert {rows[int(each)]["n_environment"] for each in named[name]} == {34}, name

    def test_they_are_of_several_groups(self, shown):
        rows, named = shown
        assert len({rows[int(each)]["group"] for each in named["n_environment"]}) == 3


class TestWhatWentWrong:
    """Seen once: “only A knows error_signatures”, below “n_environment: 41 to 37.5” and five numbers with it."""

    @staticmethod
    def told(signature: str) -> Explanation:
        rows = steps(24, 8, 4, traced=True, selected_by="random", n_environment=41)
        for at, row in enumerate(rows):
            failing = row["step"] >= 12 and at % 2 == 1
            row["n_tool_errors"] = int(failing)
            row["error_signatures"] = [signature] if failing else None
            row["flags"] = ["tool_error"] if failing else []
            row["n_environment"] -= 7 * failing
        return explain(
            table(rows), Selection("run", "rollout", (12, 23)), Selection("run", "rollout", (0, 11))
        )

    def test_the_error_leads_with_its_words_and_what_follows_below(self):
        found = self.told("Error: <n> Service Unavailable")
        assert found.findings[0].sentence == (
            "error_signatures “Error: <n> Service Unavailable”: 0% to 50% (0 of 384 to 192 of 384), new"
        )
        assert [each.name for each in found.findings[0].consequences] == ["n_tool_errors", "flags tool_error"]
        assert found.one_sided == ()

    def test_its_query_gives_its_levels(self):
        rows = steps(24, 8, 4, traced=True, selected_by="random")
        for at, row in enumerate(rows):
            row["n_tool_errors"] = int(row["step"] >= 12 and at % 2 == 1)
            row["error_signatures"] = ["broken"] if row["n_tool_errors"] else None
        relations = table(rows)
        found = explain(
            relations, Selection("run", "rollout", (12, 23)), Selection("run", "rollout", (0, 11))
        ).findings[0]
        levels = relations.sql(found.query).to_pylist()
        assert [each["level"] for each in levels[:2]] == [0.5, 0.0] == [found.a, found.b]

    def test_a_text_that_one_side_has_is_said_by_its_values(self):
        rows = steps(24, 8, 4, reward=noisy)
        for at, row in enumerate(rows):
            row["extra/judge"] = (
                ("run; do\x1b[31m this" if at % 4 else "plain") if row["step"] >= 12 else None
            )
        found = explain(
            table(rows), Selection("run", "rollout", (12, 23)), Selection("run", "rollout", (0, 11))
        )
        (said,) = found.one_sided
        assert said.sentence.startswith(
            "extra/“judge”: known of 384 of A's 384 rollouts, of none of B's; “run; do"
        )
        assert said.sentence.endswith("“plain” 25% (96 of 384)")
        assert "\x1b" not in said.sentence


class TestOneSide:
    """Seen once: “truncated 7.8% of A's rollouts; unknown in all of B's”, of an evaluation of which 25 of 285 were."""

    @staticmethod
    def told() -> dict[str, str]:
        rows = steps(12, groups=8)
        for at, row in enumerate(rows):
            is_training, kept, calls = at % 2, at % 8 < 4, at % 4 == 1
            row["split"] = "rollout" if is_training else "eval-rollout"
            row |= {"traced": kept, "n_tool_calls": int(calls) if kept else None}
            row["selected_by"] = ("random" if is_training else "fixed_prompts") if kept else None
            row["selected_probability"] = 0.5 if kept and is_training else None
            row["tool_names"] = ["search"] if kept and calls else None
            row["flags"] = [*(["truncated"] if at % 3 else []), *(["tool_error"] if kept and calls else [])]
        found = explain(table(rows), Selection("run", "rollout"), Selection("run", "eval-rollout"))
        assert not found.problems
        return {each.column: each.sentence for each in found.one_sided}

    def test_a_flag_of_all_rollouts_is_known_on_both_and_one_that_needs_text_of_those_kept_at_random(self):
        assert self.told()["flags"] == (
            "flags that need text: known of 96 of A's 192 rollouts, those kept at random, of none such of B's; "
            "tool_error 50% (48 of 96)"
        )

    def test_tools_are_counted_among_the_rollouts_that_tell_them(self):
        assert self.told()["tool_names"] == (
            "tool_names: known of 96 of A's 192 rollouts, those kept at random, of none such of B's; “search” 50% (48 of 96)"
        )

    def test_a_share_of_texts_weighs_each_by_how_likely_it_was_kept(self):
        rows = steps(
            2, groups=10, traced=True, tool_names=lambda s, g, i: ["search"] if s == 1 and g < 2 else []
        )
        for row in rows:
            row["selected_by"] = "random" if row["step"] else "best"
            row["selected_probability"] = 0.1 if row["group"] < 2 else 0.8
        (said,) = explain(
            table(rows), Selection("run", "rollout", (1, 1)), Selection("run", "rollout", (0, 0))
        ).one_sided
        assert said.values == (("search", 8, pytest.approx(80 / 120)),)


class TestFailedRewards:
    """Seen once: “reward: 0.572 to 0.357” beside “Mean reward −0.006, by component”, of timeouts that count as 0."""

    @staticmethod
    def rows(first: int = 12, seed: int = 3) -> list[dict]:
        rng = np.random.default_rng(seed)
        rows = steps(24, 8, 4, source=lambda s, g, i: "ab"[g % 2])
        for row in rows:
            fails = rng.random() < (0.4 if row["step"] >= first else 0.02)
            reward = 0.5 + 0.1 * float(rng.normal())
            row["reward"] = 0.0 if fails else reward
            row["component/ok"] = None if fails else reward
            row["reward_status"] = "timeout" if fails else "ok"
        return rows

    def test_make_no_movement_of_the_reward_and_all_tables_are_of_the_others(self):
        rows = self.rows()
        relations = table(rows)
        sides = Selection("run", "rollout", (12, 23)), Selection("run", "rollout", (0, 11))
        found = explain(relations, *sides)
        assert {each.column for each in found.findings} == {"reward_status"}
        ok = [
            [r["reward"] for r in rows if r["step"] // 12 == at and r["reward_status"] == "ok"]
            for at in (1, 0)
        ]
        assert {each.column for each in found.decompositions} == {"component", "source"}
        for part in found.decompositions:
            assert part.change == pytest.approx(np.mean(ok[0]) - np.mean(ok[1]))
            assert part.rows == (len(ok[0]), len(ok[1]))
            levels = relations.sql(part.query).to_pylist()
            assert sum(each["rollouts"] for each in levels if each["side"] == A) == len(ok[0])
        assert found.remarks == (
            f"The reward of {384 - len(ok[0])} of A's rollouts and {384 - len(ok[1])} of B's does not count: there is none, or its function failed.",
        )

    def test_are_no_change_of_the_reward_among_the_steps_before(self):
        found = explain(table(self.rows(20, 5)), Selection("run", "rollout", (23, 23)))
        assert found.remarks[0].endswith("“reward_status ok” changed at step 20.")

    def test_say_nothing_of_what_a_prompt_got_before(self):
        rows = [
            {
                "step": s,
                "group": g,
                "prompt_key": "p",
                "reward": float(g),
                "reward_status": "ok" if g else "error",
            }
            for s in range(3)
            for g in range(2)
        ]
        relations, a = table(rows), Selection("run", "rollout", (2, 2))
        of = describe(relations)
        visits = read_earlier_visits(relations, of, a, read_rows(relations, of, [(A, a)]))
        assert visits.mean("reward").tolist() == [1.0, 1.0]

    def test_make_no_losers_of_a_group(self):
        rows = steps(1, 1, 3, traced=True, selected_by="random", reward=lambda s, g, i: float(i))
        rows = [
            row | {"uid": str(at), "reward_status": "ok" if at else "timeout"} for at, row in enumerate(rows)
        ]
        texts = [{"uid": str(at), "written": "so"} for at in range(3)]
        relations = table(rows, texts)
        found = read_texts(relations, describe(relations), Selection("run", "rollout"))
        assert sorted(found.reward.tolist(), key=str) == [1.0, 2.0, pytest.approx(np.nan, nan_ok=True)]


class TestRangesOfLoggedNumbers:
    """Seen once: entropy fell from 0.6 to 0.4 between two ranges that share no value, and nothing was said, since it drifts."""

    @staticmethod
    def found(values: np.ndarray) -> list[str]:
        rows = [{"run": "run", "split": "rollout", "id": str(i), **row} for i, row in enumerate(steps(60))]
        relations = TableRelations(pa.Table.from_pylist(rows), logged({"x": list(values)}))
        report = explain(
            relations, Selection("run", "rollout", (40, 59)), Selection("run", "rollout", (0, 19))
        )
        return [each.sentence for each in report.findings if each.is_sure]

    @pytest.mark.parametrize("seed", range(4))
    def test_what_drifts_from_one_to_the_other_is_said(self, seed):
        noise = np.random.default_rng(seed).normal(0, 0.01, 60)
        [sentence] = self.found(0.4 + 0.3 * np.exp(-np.arange(60) / 25) + noise)
        assert sentence.startswith("“x”: ")

    def test_what_only_wanders_is_not(self):
        walks = [np.cumsum(np.random.default_rng(seed).normal(size=60)) for seed in range(40)]
        assert sum(bool(self.found(walk)) for walk in walks) <= 2
