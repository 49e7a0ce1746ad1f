from __future__ import annotations

import base64
from pathlib import Path

import numpy as np
import pytest

from rollout_traces.errors import StoreError
from rollout_traces.store import QueryError, Store, open_store
from tests.store.projects import PROJECT, RUN, RUN_ID, make_ledger, write_step

HUGE = base64.urlsafe_b64encode(b"[1, 99999999999999999999, 1, 1]").decode()
NESTED = base64.urlsafe_b64encode(b"[1, [1], {}, 1]").decode()


class TestPlaces:
    def test_runs_count_traces_and_all_rollouts(self, store: Store) -> None:
        (run,) = store.runs()
        assert (run.id, run.name, run.n_traces, run.n_rollouts, run.last_step) == (RUN_ID, RUN, 10, 26, 2)

    def test_training_comes_before_evaluation(self, store: Store) -> None:
        assert store.splits(RUN) == ("rollout", "eval-rollout")

    def test_steps_say_how_many_were_kept_of_how_many(self, store: Store) -> None:
        assert [(s.step, s.n_traces, s.n_rollouts) for s in store.steps(RUN, "rollout")] == [
            (0, 3, 8),
            (1, 3, 8),
            (2, 3, 8),
        ]

    def test_a_run_is_found_by_id_and_by_name(self, store: Store) -> None:
        assert store.run(RUN) == store.run(RUN_ID)

    def test_an_unknown_run_names_those_there_are(self, store: Store) -> None:
        with pytest.raises(StoreError, match=r"no run 'nope'. Runs: run-001"):
            store.query(run="nope")


class TestGroups:
    def test_rewards_are_those_of_all_rollouts(self, store: Store) -> None:
        mixed, tied = store.groups(RUN, "rollout", 1).groups
        assert mixed.rewards == (1.0, 0.0, 0.5, None)
        assert mixed.from_ledger and mixed.n_rollouts == 4
        assert [row["sample"] for row in mixed.traces] == [0, 1]
        assert mixed.reward_mean == pytest.approx(0.5)
        assert tied.tied and tied.zero_advantage
        assert not mixed.tied and not mixed.zero_advantage

    def test_a_step_says_how_its_traces_were_chosen(self, store: Store) -> None:
        found = store.groups(RUN, "rollout", 1)
        assert (found.n_rollouts, found.n_traces, dict(found.selected_by)) == (8, 3, {"random": 3})

    def test_the_prompt_is_that_of_a_traced_rollout(self, store: Store) -> None:
        assert store.groups(RUN, "rollout", 0).groups[0].prompt == "What is 6 times 7?"


class TestQuery:
    def test_rows_carry_every_known_column(self, store: Store) -> None:
        row = store.query(where="flags has 'repetition' and step = 1").rows[0]
        assert (row.run, row.split, row.step, row["sample"], row["reward"]) == (RUN, "rollout", 1, 1, 0.0)
        assert row["flags"] == ("truncated", "repetition")
        assert row["component/format"] == 0.0
        assert row["reply"] == "I am sorry, I cannot help with that."
        assert row["never logged"] is None

    def test_the_newest_step_comes_first(self, store: Store) -> None:
        assert [row.step for row in store.query(split="rollout").rows] == [2, 2, 2, 1, 1, 1, 0, 0, 0]

    def test_filter_and_sort(self, store: Store) -> None:
        page = store.query(where="reward < 0.5 and split = 'rollout'", order_by="-reward, step")
        assert [(row["reward"], row.step) for row in page.rows] == [
            (0.25, 0),
            (0.25, 1),
            (0.25, 2),
            (0.0, 0),
            (0.0, 1),
            (0.0, 2),
        ]
        assert page.total == 6 and page.next is None

    def test_steps_are_both_included(self, store: Store) -> None:
        assert store.count(steps=(1, 2), split="rollout") == 6
        assert store.count(steps=(1, None)) == 7
        assert store.count(steps=(None, 0)) == 3

    def test_steps_beyond_any_number_are_none(self, store: Store) -> None:
        assert store.count(steps=(10**30, None)) == 0 and store.count(steps=(-(10**30), 10**30)) == 10

    def test_a_name_that_no_row_has_yet_matches_nothing(self, store: Store) -> None:
        assert store.count(where="discard_reason = 'too_long'") == 0
        assert store.count(where="discard_reason is null") == 10

    def test_every_rollout_of_the_ledger_can_be_asked_for(self, store: Store) -> None:
        page = store.query(where="flags has 'truncated'", rows="all", order_by="step, sample")
        assert [(row.step, row["n_sampled"], row.id is not None) for row in page.rows] == [
            (step, n, traced) for step in range(3) for n, traced in ((15, True), (65, False))
        ]

    def test_a_search_of_all_rollouts_finds_the_traced(self, store: Store) -> None:
        assert {row["traced"] for row in store.query(text="help", rows="all").rows} == {True}

    @pytest.mark.parametrize("limit", [0, -1, 10_001])
    def test_a_page_has_bounds(self, store: Store, limit: int) -> None:
        with pytest.raises(StoreError, match="expected 1 to 10000"):
            store.query(limit=limit)


class TestPaging:
    @pytest.mark.parametrize(
        "order_by", [None, "-reward, step", "reward", "selected_by, -step", "run, split"]
    )
    @pytest.mark.parametrize("rows", ["traces", "all"])
    def test_pages_joined_are_the_whole(self, store: Store, order_by: str | None, rows: str) -> None:
        whole = store.query(order_by=order_by, limit=1000, rows=rows)  # type: ignore[arg-type]
        found, after = [], None
        while True:
            page = store.query(order_by=order_by, limit=4, after=after, rows=rows)  # type: ignore[arg-type]
            assert page.total == whole.total
            found += page.rows
            after = page.next
            if after is None:
                break
        assert [row["uid"] for row in found] == [row["uid"] for row in whole.rows]

    def test_unknown_values_come_last_either_way(self, store: Store) -> None:
        for order_by in ("reward", "-reward"):
            rewards = [row["reward"] for row in store.query(order_by=order_by, rows="all").rows]
            assert rewards[-3:] == [None] * 3 and None not in rewards[:-3]

    @pytest.mark.parametrize("cursor", ["nonsense", "W10", "é", "", "WzEsMl0", "eyJhIjoxfQ", HUGE, NESTED])
    def test_what_is_no_cursor_is_refused(self, store: Store, cursor: str) -> None:
        with pytest.raises(StoreError, match="no cursor"):
            store.query(after=cursor)


class TestCounting:
    def test_facets_of_lists_count_names(self, store: Store) -> None:
        assert store.facets("flags", rows="all") == [
            ("truncated", 6),
            ("repetition", 3),
            ("tied_group", 3),
        ]

    def test_facets_count_the_unknown(self, store: Store) -> None:
        assert (None, 16) in store.facets("trace_uid", rows="all", limit=100)

    def test_a_histogram_holds_every_row_once(self, store: Store) -> None:
        found = store.histogram("reward", bins=4, rows="all", split="rollout")
        assert found.edges == (0.0, 0.25, 0.5, 0.75, 1.0)
        assert found.counts == (3, 12, 3, 3) and found.unknown == 3

    def test_a_histogram_of_equal_values_has_them_in_one_bin(self, store: Store) -> None:
        found = store.histogram("step", bins=3, steps=(1, 1))
        assert found.counts == (3, 0, 0) and found.edges[0] == 1.0

    @pytest.mark.parametrize(
        "rewards", [[5.0, 8.0, 11.0], [0.1, 0.3, 0.7, 0.9, 1.3], [-3.0, -1.0, 7.0, 11.0]]
    )
    def test_a_histogram_is_numpys_value_by_value(self, trackio_dir: Path, rewards: list[float]) -> None:
        write_step(make_ledger([rewards], step=0), ())
        for bins in (3, 7, 20, 60):
            found = open_store(PROJECT).histogram("reward", bins=bins, rows="all")
            counts, edges = np.histogram(rewards, bins)
            assert found.edges == tuple(edges.tolist()) and found.counts == tuple(counts.tolist())

    def test_a_histogram_of_neighbouring_floats_holds_them_all(self, trackio_dir: Path) -> None:
        write_step(make_ledger([[1.0, 1 - 2**-53]], step=0), (0, 1))
        assert sum(open_store(PROJECT).histogram("reward", bins=12).counts) == 2

    def test_a_histogram_without_numbers_is_empty(self, store: Store) -> None:
        assert store.histogram("discard_reason").unknown == 10

    def test_an_unknown_column_is_pointed_at(self, store: Store) -> None:
        with pytest.raises(QueryError, match="Did you mean reward"):
            store.facets("rewrd")


class TestOneTrace:
    def test_transcript_comes_back_token_for_token(self, store: Store) -> None:
        row = store.query(where="sample = 0 and step = 0 and group = 0").rows[0]
        transcript = store.transcript(row.id or "")
        assert transcript is not None
        assert transcript.turns[1].content == "It is \\boxed{42}, I cannot be wrong."
        assert len(transcript.tokens) == row["n_tokens"]
        assert transcript.tokens.tracks["versions"].tolist() == [3] * row["n_tokens"]

    def test_details_hold_the_flags_sentences(self, store: Store) -> None:
        row = store.query(where="flags has 'truncated'").rows[0]
        assert [flag["message"] for flag in store.details(row.id or "")["flags"]] == [
            "truncated was seen.",
            "repetition was seen.",
        ]

    def test_a_trace_is_found_by_uid_and_by_the_beginning_of_its_id(self, store: Store) -> None:
        row = store.query(where="uid = 'b0-4'").rows[0]
        assert store.find("b0-4") == row.id == store.find(row.id or "")
        assert store.find("e2") == store.query(split="eval-rollout").rows[0].id

    @pytest.mark.parametrize(
        ("wanted", "said"),
        [("b0-", "more than one.*: b0-0, b0-1"), ("zzz", "no trace"), ("", "more than one")],
    )
    def test_what_is_not_one_trace_is_said(self, store: Store, wanted: str, said: str) -> None:
        with pytest.raises(StoreError, match=said):
            store.find(wanted)

    def test_a_deleted_trace_is_said_to_be_gone(self, store: Store) -> None:
        with pytest.raises(StoreError, match="no trace 'gone'"):
            store.record("gone")


class TestLedgerAndMetrics:
    def test_the_ledger_has_all_rows_with_their_step(self, store: Store) -> None:
        ledger = store.ledger(run=RUN, split="rollout", steps=(1, 2))
        assert ledger.n_rows == 16
        assert ledger.get("step").tolist() == [1] * 8 + [2] * 8
        assert set(ledger.get("split")) == {"rollout"}
        assert np.isnan(ledger.get("reward")[3])

    def test_whole_numbers_that_are_unknown_are_masked_and_count_in_no_figure(self, store: Store) -> None:
        """Seen once: a mean over unknown whole numbers was -4.6e18."""
        ledger = store.ledger()
        assert ledger.get("n_sampled").mean() == pytest.approx(np.mean([*([40] * 24), 5, 15]), rel=0.2)
        assert ledger.get("n_turns").mask.all() and ledger.get("n_turns").tolist() == [None] * 26
        assert ledger.take(np.asarray([0])).row(0)["n_sampled"] == 5
        assert all(column.min() > -(2**60) for column in ledger.columns.values() if column.dtype.kind == "i")

    def test_a_step_is_named_by_its_number_and_rows_by_their_run(self, store: Store) -> None:
        """Seen once: a ledger over two runs did not name them; steps=39 was a TypeError."""
        assert set(store.ledger(run=RUN, split="rollout", steps=2).get("step")) == {2}
        assert RUN in set(store.ledger().get("run"))

    def test_no_ledger_is_an_empty_one(self, store: Store) -> None:
        assert store.ledger(steps=(50, 60)).n_rows == 0

    def test_metrics_are_steps_and_values_by_key(self, store: Store) -> None:
        steps, values = store.metrics(RUN)["train/loss"]
        assert steps == [0, 1, 2] and values == pytest.approx([1.0, 0.5, 1 / 3])
        assert all(np.isnan(value) for value in store.metrics(RUN)["nothing"][1])

    def test_columns_have_kinds_and_meanings(self, store: Store) -> None:
        columns = {column.name: column for column in store.columns()}
        assert columns["reward"].kind == "number" and columns["reward"].meaning == "the reward"
        assert columns["flags"].kind == "tags"
        assert columns["component/format"].meaning == "one reward component"


class TestLabels:
    @pytest.fixture
    def opened(self, trackio_dir: Path) -> Store:
        write_step(make_ledger([[1.0, 0.0]], step=0, traced=(0, 1)), (0, 1))
        return open_store(PROJECT)

    def test_are_put_on_a_whole_rollout_a_turn_or_tokens(self, opened: Store) -> None:
        opened.label("b0-0", "good", "ann")
        opened.label("b0-0", "odd", "ann", turn=1)
        opened.label("b0-0", "why?", "ben", kind="note", tokens=(0, 1))
        entries = opened.labels.of(opened.uid(opened.find("b0-0")))
        assert [(e.kind, e.text, e.author, e.turn, e.start, e.stop) for e in entries] == [
            ("label", "good", "ann", None, None, None),
            ("label", "odd", "ann", 1, None, None),
            ("note", "why?", "ben", None, 0, 1),
        ]

    def test_are_refused_at_a_turn_or_tokens_that_there_are_not(self, opened: Store) -> None:
        n = len(opened.transcript(opened.find("b0-0")).tokens)
        opened.label("b0-0", "last", "ann", tokens=(n - 1, n))
        for turn in (2, -1):
            with pytest.raises(StoreError, match=rf"turn {turn}: this rollout has 2 turns, from 0"):
                opened.label("b0-0", "odd", "ann", turn=turn)
        for tokens in ((0, n + 1), (1, 1), (-1, 1)):
            with pytest.raises(
                StoreError, match=rf"tokens {tokens[0]}:{tokens[1]}: this rollout has {n}, from 0"
            ):
                opened.label("b0-0", "odd", "ann", tokens=tokens)


class TestOneRun:
    def test_tells_its_splits_and_its_attempts(self, store: Store) -> None:
        assert store.run(RUN).splits == store.splits(RUN_ID)
        assert store.attempts() == []

    def test_a_step_beyond_any_number_has_no_groups(self, store: Store) -> None:
        assert store.groups(RUN, "rollout", 10**30).groups == ()


def test_what_a_filter_looks_for_in_texts_is_shown_around_where_it_was_found(store: Store) -> None:
    assert all("sorry" in str(row["snippet"]) for row in store.search(where="text 'sorry'").rows)
    assert all("sorry" in str(row["snippet"]) for row in store.search("sorry", where="step > 0").rows)
    assert not any(row["snippet"] for row in store.search(where="step > 0").rows)
