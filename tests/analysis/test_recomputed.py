"""Every number of a sentence comes again from the queries that are given with it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from decimal import Decimal

import numpy as np
import pytest

from rollout_traces.analysis import Explanation, Selection, diagnose, explain, flips
from rollout_traces.analysis.diagnoses.base import number, percent
from rollout_traces.analysis.phrase_queries import WORDS
from rollout_traces.analysis.phrases import words
from rollout_traces.analysis.purpose import gap_query, purpose_gap
from rollout_traces.analysis.relations import written
from rollout_traces.analysis.series import RunSeries
from rollout_traces.analysis.timeline import events
from tests.analysis.builders import table
from tests.stories.causes import CAUSES
from tests.stories.held_out import CAUSES as HELD_OUT
from tests.stories.more_causes import CAUSES as MORE_CAUSES
from tests.stories.relations import TableRelations, of_story
from tests.stories.world import Story, World, write_run

NUMBER = re.compile(r"[+-]?\d[\d,]*(\.\d+)?(e[+-]?\d+)?")


def unexplained(sentence: str, relations: TableRelations, queries: Sequence[str]) -> list[str]:
    """The numbers of a sentence that its queries do not give; a step has to stand in the query or in its answer."""
    texts, steps = set(), set()
    for query in queries:
        steps |= set(re.findall(r"\d+", query))
        for row in relations.sql(query).to_pylist():
            for value in row.values():
                if isinstance(value, (int, float, Decimal)) and not isinstance(value, bool):
                    texts |= forms(float(value))
    found, before = [], ["", ""]
    for token in re.sub(r"“[^”]*”", "", sentence).split():
        plain = token.strip("(),;:.")
        if NUMBER.fullmatch(plain) and plain not in texts:
            is_step = before[-1] in ("step", "steps") or (before[-1] == "to" and before[-2] in steps)
            if not (is_step and plain in steps):
                found.append(plain)
        before = [before[-1], plain]
    return found


def forms(value: float) -> set[str]:
    """A number as sentences write it."""
    if not np.isfinite(value):
        return set()
    shown = [
        number(value),
        percent(value).removesuffix(" %").lstrip("<>"),
        f"{100 * value:.0f}",
        f"{value:,}",
    ]
    return {*shown, f"{value:,.0f}", f"{value:.2f}", f"{value:.0f}", f"{value:+.1f}", number(-value)}


def story_of(name: str, **changes: object) -> Story:
    cause = CAUSES[name]
    kind = "mixed" if "mixed" in cause.kinds else cause.kinds[0]
    return write_run(4, kind, name, cause.changes, **changes)


def groups_die_slowly(w: World) -> None:
    w.c["logit"] += np.clip(0.3 * (w.c["step"] - w.at), 0, 6)


def lengths_reach_the_limit(w: World) -> None:
    w.c["log_length"] += np.clip(0.03 * (w.c["step"] - w.at), 0, 2)
    w.c["limit"][:] = int(np.quantile(np.exp(w.c["log_length"][w.c["step"] < w.at]), 0.995))


def groups_always_scrambled(w: World) -> None:
    w.at = 0
    CAUSES["groups scrambled"].changes["layout"](w)


SLOW = {
    "dead_groups": {"ability": groups_die_slowly},
    "truncation": {"lengths": lengths_reach_the_limit},
    "group_of_several_prompts": {"layout": groups_always_scrambled},
}
"""Diagnoses that are also made of a run which comes to them by and by, or was so from its beginning."""
KIND = {"dead_groups": "plain"}
FURTHER = (
    "rewards of a source become 0",
    "one engine stays behind",
    "second BOS",
    "language drifts",
    "KL coefficient zeroed",
    "learning rate too high",
    "group size halved",
)
"""Held-out causes that rules of their own speak of."""


class TestRun:
    def test_every_number_of_every_diagnosis_and_event(self):
        missing, kinds = [], set()
        stories = [story_of(name) for name in CAUSES]
        stories += [
            write_run(4, KIND.get(kind, "mixed"), kind, changes, at=30) for kind, changes in SLOW.items()
        ]
        stories += [
            write_run(4, HELD_OUT[name].kinds[0], name, HELD_OUT[name].changes, n_steps=60)
            for name in FURTHER
        ]
        for story in stories:
            relations = of_story(story)
            report = diagnose(relations, "run")
            said = [
                (d.kind, d.sentence, d.queries, (d.step, d.last))
                for h in report.diagnoses
                for d in (h, *h.consequences)
            ]
            said += [(e.kind, e.sentence, (e.query,), (e.step, e.last)) for e in events(report.evidence)]
            for kind, sentence, queries, steps in said:
                kinds.add(kind)
                lost = [
                    text for text in unexplained(sentence, relations, queries) if text not in map(str, steps)
                ]
                missing += [(story.cause, kind, sentence, lost)] if lost or not all(queries) else []
        assert not missing
        assert kinds >= {
            "mask_or_template", "group_of_several_prompts", "group_size", "duplicate_prompts", "data_mix", "evaluation_set",
            "tools_failing", "slower", "reward_function", "reward_changed", "component_constant", "configuration",
            "engine_off", "weights_not_synchronised", "engines", "few_rows", "collapse", "dead_groups", "truncation",
            "length_bias", "reward_and_purpose", "memorised", "reward_moved", "outcome_moved", "moved", "change",
            "first seen", "last seen",
        }  # fmt: skip

    @pytest.mark.parametrize("kind", SLOW)
    def test_what_comes_by_and_by_is_told_with_its_query(self, kind):
        relations = of_story(write_run(4, KIND.get(kind, "mixed"), kind, SLOW[kind], at=30))
        heads = diagnose(relations, "run").diagnoses
        assert kind in [d.kind for h in heads for d in (h, *h.consequences)]

    def test_training_reward_against_evaluation(self):
        for kind, seed in (("mixed", 1), ("plain", 2), ("alternating", 3), ("sigmoid", 4)):
            relations = of_story(write_run(seed, kind))
            run = RunSeries(relations, "run", "rollout")
            gap = purpose_gap(run)
            rows = {row["what"]: row for row in relations.sql(gap_query(run, gap)).to_pylist()}
            assert rows["training reward"]["z"] == pytest.approx(gap.train_z)
            assert rows["evaluation"]["z"] == pytest.approx(gap.eval_z)

    def test_it_parts_without_a_phrase(self):
        cause = MORE_CAUSES["judge hacked without a phrase"]
        relations = of_story(write_run(6, "mixed", "hacked", cause.changes, at=40))
        heads = diagnose(relations, "run").diagnoses
        (told,) = [d for h in heads for d in (h, *h.consequences) if d.kind == "reward_and_purpose"]
        assert re.search(r"training reward [\d.]+ to [\d.]+ \(z \+", told.sentence)
        assert not unexplained(told.sentence, relations, told.queries)


def explained(name: str, steps: int = 1) -> tuple[TableRelations, Explanation]:
    story = story_of(name)
    relations = of_story(story)
    return relations, explain(relations, Selection("run", "rollout", (story.at + 4, story.at + 3 + steps)))


class TestExplain:
    @pytest.mark.parametrize(
        "name", ["one engine off", "tool breaks", "mask leak", "length penalty switched on"]
    )
    def test_the_levels_and_counts_of_every_finding(self, name):
        relations, found = explained(name, 8)
        assert found.findings
        for finding in found.findings:
            assert not unexplained(finding.sentence, relations, finding.queries)
            for each in (finding, *finding.consequences):
                assert not unexplained(each.sentence, relations, each.queries)
                rows = relations.sql(each.query).to_pylist()
                assert rows[0]["level"] == pytest.approx(each.a)
                assert len(rows) == 1 or rows[1]["level"] == pytest.approx(each.b)

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

    def test_who_carried_it(self):
        relations, found = explained("few rows carry the update")
        assert found.carried
        for each in found.carried:
            (row,) = relations.sql(each.query).to_pylist()
            assert (row["rollouts"], row["of"]) == (each.rows, each.of)
            assert row["share"] == pytest.approx(each.share)

    def test_phrases_and_those_of_winners(self):
        relations, found = explained("judge likes a phrase", 25)
        assert "absolutely certain" in " ".join(p.phrase for p in found.phrases)
        assert found.winners
        for each in (*found.phrases, *found.winners):
            (row,) = relations.sql(each.query).to_pylist()
            assert (row["n_a"], row["n_b"]) == (each.n_a, each.n_b)
            assert (row["share_a"], row["share_b"]) == pytest.approx((each.share_a, each.share_b))
            assert row["z"] == pytest.approx(each.z)

    def test_the_parts_of_the_rewards_change(self):
        relations, found = explained("curriculum switch", 5)
        columns = {d.column: d for d in found.decompositions}
        assert {"component", "source"} <= set(columns)
        for d in found.decompositions:
            rows = relations.sql(d.query).to_pylist()
            if d.components:
                assert {r["component"]: r["part"] for r in rows} == pytest.approx(
                    {c.component: c.part for c in d.components}
                )
            else:
                again = {r["value"]: (r["mix"], r["within"], r["mean_a"], r["mean_b"]) for r in rows}
                for part in d.mixes:
                    assert again[part.value] == pytest.approx(
                        (part.mix, part.within, part.mean_a, part.mean_b)
                    )


class TestFlips:
    @pytest.mark.parametrize("trials", [1, 3])
    def test_scores_errors_and_counts(self, trials):
        rng = np.random.default_rng(trials)
        rows = [
            {"step": s, "prompt_key": f"p{i + s}", "success": int(rng.random() < 0.5)}
            for s in (0, 1)
            for i in range(40)
            for _ in range(trials)
        ]
        relations = table(rows)
        found = flips(relations, Selection("run", "rollout", (0, 0)), Selection("run", "rollout", (1, 1)))
        (row,) = relations.sql(found.query).to_pylist()
        again = [row[name] for name in ("score_a", "error_a", "score_b", "error_b", "difference")]
        assert again == pytest.approx(
            [found.score_a, found.error_a, found.score_b, found.error_b, found.difference]
        )
        assert row["shared"] == len(found.prompts) == 39
        assert (row["kept"], row["never"]) == (found.counts["kept"], found.counts["never"])
        if trials == 1:
            assert (row["fell"], row["rose"]) == (found.counts["lost"], found.counts["won"])


class TestStatements:
    def test_texts_and_names_with_question_marks_are_no_parameters(self):
        query = "select '?', 'it''s ?', \"a ? b\", ? from t where x = ?"
        assert written(query, ["o'k?", 3]) == "select '?', 'it''s ?', \"a ? b\", 'o''k?' from t where x = 3"
        assert written("? ? ?", [None, float("nan"), [1, "a"]]) == "null cast('nan' as double) [1, 'a']"

    @pytest.mark.parametrize(
        "text", ["No, no! it’s (so) can't_do", "Ünïcödé 東京 x²", "a" * 1990 + " end of it", "", "'' ' -'-"]
    )
    def test_words_are_those_of_python(self, text):
        assert words_in_sql([text]) == [" ".join(words(text))]

    def test_a_phrase_with_a_quotation_mark_is_a_text(self):
        rows = [
            {"step": i % 2, "group": i, "reply": "it's so and so" if i % 2 else f"no {i}"} for i in range(80)
        ]
        relations = table(rows)
        found = explain(relations, Selection("run", "rollout", (1, 1)), Selection("run", "rollout", (0, 0)))
        assert "it's" in found.phrases[0].phrase
        assert relations.sql(found.phrases[0].query).to_pylist()[0]["n_a"] == found.phrases[0].n_a


def words_in_sql(texts: Sequence[str]) -> list[str]:
    relations = table([{"step": 0, "reply": text} for text in texts])
    return relations.sql(f"select {WORDS} as words from rollouts order by id").to_pydict()["words"]


def test_a_number_that_no_query_gives_is_noticed():
    relations = table([{"step": 0, "reward": 0.5}])
    query = "select avg(reward) as level from rollouts where step = 0"
    assert unexplained("Reward 0.5 since step 0", relations, [query]) == []
    assert unexplained("Reward 0.7 since step 3", relations, [query]) == ["0.7", "3"]
