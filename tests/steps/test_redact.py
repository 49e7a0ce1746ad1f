"""What a hook names is nowhere in what is stored."""

from __future__ import annotations

import re
import sqlite3
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

import rollout_traces as rt
from rollout_traces.capture.host_copy import capture
from rollout_traces.model.batch import RolloutBatch
from rollout_traces.steps.redact import HIDDEN, Redaction, _hide_ids, _Hider, _spans
from rollout_traces.trace.conversion import TraceRecord, read_transcript
from tests.builders import make_transcript
from tests.generator import BatchPlan, batch_arrays, tiny_tokenizer
from tests.test_write_path import stored

SECRET = "hunter2"


def names_secret(message):
    return [SECRET] if SECRET in str(message) else []


def apply(transcript, hook=names_secret):
    counters: Counter[str] = Counter()
    return (*Redaction(hook, counters).apply(transcript), counters)


class TestText:
    def test_is_hidden_in_every_form_a_turn_keeps_it(self):
        transcript = make_transcript(
            [("user", f"my password is {SECRET} ok"), ("assistant", f"so {SECRET}")],
            thinking=f"they said {SECRET}",
            calls=[("login", {"password": SECRET})],
        )
        changed, _, counters = apply(transcript)
        assert SECRET not in str(changed.turns) + str(changed.messages()) + changed.raw
        assert len(changed.raw) == len(transcript.raw)
        assert HIDDEN * len(SECRET) in changed.turns[0].content
        assert counters["messages_redacted"] == 2

    def test_that_nobody_named_stays(self):
        transcript = make_transcript([("user", "nothing to hide"), ("assistant", "fine")])
        changed, _, _ = apply(transcript)
        assert changed.raw == transcript.raw
        np.testing.assert_array_equal(changed.tokens.input_ids, transcript.tokens.input_ids)


class TestTokens:
    def test_that_wrote_it_have_no_id_and_all_others_keep_theirs(self):
        transcript = make_transcript([("user", f"my password is {SECRET} ok")])
        changed, _, _ = apply(transcript)
        texts = list(transcript.token_texts())
        hidden = changed.tokens.input_ids == -1
        assert SECRET in "".join(text for text, gone in zip(texts, hidden, strict=True) if gone)
        assert not any(gone and "password" in text for text, gone in zip(texts, hidden, strict=True))


class TestDoubt:
    def test_a_piece_that_cannot_be_placed_hides_the_whole_turn(self):
        transcript = make_transcript([("user", "a b c"), ("assistant", "d")])
        changed, _, counters = apply(transcript, lambda m: ["not there"] if m["role"] == "user" else [])
        assert set(changed.turns[0].raw) == {HIDDEN} and changed.turns[1].raw == transcript.turns[1].raw
        assert counters["redactions_widened"] == 1

    def test_a_hook_that_fails_lets_nothing_through(self):
        def broken(message):
            raise RuntimeError

        transcript = make_transcript([("user", "a b c"), ("assistant", "d")], thinking="e f")
        changed, _, counters = apply(transcript, broken)
        assert set(changed.raw) == {HIDDEN} and set(changed.turns[1].content) == {HIDDEN}
        assert (changed.tokens.input_ids == -1).all()
        assert counters["redact_errors"] == 2


class TestWhatTheTrainerGaveAlong:
    def test_is_shown_to_the_hook_too(self):
        given = (
            {"role": "system", "content": f"key {SECRET}"},
            {"role": "user", "metadata": {"api": SECRET}},
        )
        tools = ({"type": "function", "function": {"name": "login", "description": f"use {SECRET}"}},)
        transcript = replace(
            make_transcript([("user", "a"), ("assistant", "b")]), given_messages=given, tools=tools
        )
        changed, hide, _ = apply(transcript)
        assert SECRET not in str(changed.given_messages) + str(changed.tools)
        assert [message["role"] for message in changed.given_messages] == ["system", "user"]
        fields = hide({"reward_status": "ok", f"extra/{SECRET}": 1, "timings": {f"call {SECRET}": 0.5}})
        assert SECRET not in str(fields) and fields["reward_status"] == "ok"

    def test_a_given_message_without_text_has_an_empty_one_for_the_hook(self):
        given = ({"role": "assistant", "content": None, "tool_calls": [{"arguments": SECRET}]},)
        transcript = replace(make_transcript([("user", "a")]), given_messages=given)
        changed, _, counters = apply(transcript, lambda m: [SECRET] * (SECRET in m["content"]))
        assert SECRET not in str(changed.given_messages) and not counters["redact_errors"]

    def test_names_rows_by_what_says_nothing(self):
        arrays = batch_arrays(tiny_tokenizer(), BatchPlan(n_groups=2, group_size=2))
        arrays["prompt_keys"] = [f"the prompt {SECRET}"] * 2 + ["another", None]
        arrays["sources"] = [f"env of {SECRET}", "a", "b", "c"]
        batch = Redaction(names_secret, Counter()).labels(
            capture([RolloutBatch(**arrays)], step=1, split="rollout")
        )
        keys = batch.row_lists["prompt_keys"]
        assert keys[0] == keys[1] != keys[2] and keys[3] is None and "prompt" not in keys[0]
        assert SECRET not in str(batch.row_lists["sources"]) and batch.row_lists["sources"][1:] == [
            "a",
            "b",
            "c",
        ]


class TestEndToEnd:
    @pytest.fixture
    def folder(self, trackio_dir):
        arrays = batch_arrays(tiny_tokenizer(), BatchPlan(n_groups=2, group_size=2))
        arrays["ground_truths"] = ["the bags hold 7 marbles"] * 4
        logger = rt.RolloutLogger(
            "p",
            "run",
            tiny_tokenizer(),
            max_rollout_traces_per_step=4,
            redact=lambda message: (
                re.findall(r"\d+ \w+|bags", message["content"]) + ["bags"] * ("bags" in message["content"])
            ),
        )
        logger.log_rollouts(arrays, step=1)
        assert not list((trackio_dir / "rollout-traces").rglob("*.record"))
        assert logger.worker == "thread" and logger.finish(180)
        return trackio_dir

    def test_no_file_of_the_project_holds_what_was_hidden(self, folder):
        for path in folder.rglob("*"):
            if path.is_file():
                assert b"bags" not in path.read_bytes(), path

    def test_hidden_tokens_have_no_id_in_the_track(self, folder):
        for _, record in stored(folder, "rollout/trajectories"):
            transcript = read_transcript(record)
            assert (transcript.tokens.input_ids == -1).any()
            assert "bags" not in transcript.raw

    def test_it_is_said_that_a_crash_loses_what_is_not_stored(self, folder, caplog):
        caplog.clear()
        logger = rt.RolloutLogger("p", "another", tiny_tokenizer(), redact=lambda message: [])
        logger.finish(1)
        assert "the spool is in memory only" in caplog.text

    def test_the_rest_is_still_there(self, folder):
        with sqlite3.connect(folder / "p.db") as db:
            assert db.execute("select count(*) from traces").fetchone() == (5,)
        [(_, first), *_] = stored(folder, "rollout/trajectories")
        assert isinstance(first, TraceRecord) and "How many now?" in str(first.messages)


class TestPlaces:
    def test_are_all_of_a_piece_written_plainly_or_as_json(self):
        assert _spans("a-b-a", {"a"}) == [(0, 1), (4, 5)]
        assert _spans("aaa", {"aa"}) == [(0, 2), (1, 3)]
        assert _spans('x {"k": "say \\"hi\\""}', {'say "hi"'}) == [(9, 19)]
        assert sorted(_spans("ab", {"a", "b", "c"})) == [(0, 1), (1, 2)] and _spans("ab", set()) == []

    def test_longer_pieces_are_hidden_before_those_inside_them(self):
        hide = _Hider({"ab", "abc", 'q"q'})
        assert hide("abcab") == HIDDEN * 5 and hide("xabx") == f"x{HIDDEN * 2}x"
        assert hide({"k": ['q\\"q', 1, None]}) == {"k": [HIDDEN * 4, 1, None]}

    @pytest.mark.parametrize(
        ("hidden", "gone"),
        [
            ((0, 1), [0]),
            ((1, 2), [0, 1]),
            ((2, 4), [1, 2]),
            ((3, 5), [2, 3]),
            ((5, 6), [3, 4]),
            ((0, 6), [0, 1, 2, 3, 4]),
        ],
    )
    def test_tokens_that_hold_a_part_of_one_or_lie_at_its_edge_lose_their_id(self, hidden, gone):
        starts, stops = np.asarray([0, 2, 2, 4, 6]), np.asarray([2, 2, 4, 6, 6])
        tokens = SimpleNamespace(input_ids=np.arange(5) + 7, char_starts=starts, char_stops=stops)
        found = _hide_ids(SimpleNamespace(tokens=tokens), [hidden])
        assert np.flatnonzero(found == -1).tolist() == gone
        assert tokens.input_ids.tolist() == [7, 8, 9, 10, 11]


class TestTimings:
    def test_lose_what_the_hook_names_and_keep_their_seconds(self):
        asked = []

        def hook(message):
            asked.append(message["content"])
            return ["secret"]

        redactor = Redaction(hook, Counter())
        span = {"kind": "tool", "name": "secret tool", "start": 1.0, "end": 2.0}
        rows = redactor._hide_timings([[span, span], {"secret/x": 2.0}, None])
        assert rows[0] == [{**span, "name": f"{HIDDEN * 6} tool"}] * 2
        assert rows[1:] == [{f"{HIDDEN * 6}/x": 2.0}, None]
        assert asked.count("secret tool") == 1
