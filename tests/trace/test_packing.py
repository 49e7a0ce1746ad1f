"""What a trace carries comes back as it was."""

from __future__ import annotations

import base64
import tracemalloc
import zlib
from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollout_traces.errors import StoreError
from rollout_traces.model.packed_arrays import pack_text, unpack_text
from rollout_traces.model.transcript import TokenTrack, Transcript, Turn
from rollout_traces.trace.packing import pack_transcript, unpack_transcript
from tests.builders import make_transcript

CHAT = [
    ("system", "You are helpful."),
    ("user", "How many apples does Zoë have, and why?"),
    ("assistant", "She has 12 apples, because 3 + 9 = 12."),
    ("tool", "12"),
]


def round_trip(transcript: Transcript) -> Transcript:
    messages = transcript.messages()
    return unpack_transcript(pack_transcript(transcript, messages), messages)


def assert_same(left: Transcript, right: Transcript) -> None:
    assert left.turns == right.turns
    assert (left.source, left.warnings, left.tools, left.given_messages) == (
        right.source,
        right.warnings,
        right.tools,
        right.given_messages,
    )
    for item in fields(TokenTrack):
        if item.name != "tracks":
            np.testing.assert_array_equal(getattr(left.tokens, item.name), getattr(right.tokens, item.name))
    assert set(left.tokens.tracks) == set(right.tokens.tracks)


class TestRoundTrip:
    def test_turns_thinking_calls_and_tokens_come_back_equal(self):
        transcript = make_transcript(
            CHAT, thinking="3 and 9 make 12", calls=[("calculator", {"expression": "3 + 9", "digits": 2})]
        )
        assert_same(transcript, round_trip(transcript))

    @pytest.mark.parametrize("first", [-1, 2**31 - 2, 2**40])
    def test_integer_tracks_come_back_exactly(self, first):
        transcript = make_transcript(CHAT, versions=lambda n: np.arange(n) // 3 + first)
        back = round_trip(transcript)
        np.testing.assert_array_equal(back.tokens.tracks["versions"], transcript.tokens.tracks["versions"])

    def test_float_tracks_keep_float16_precision_and_their_non_finites(self):
        values = lambda n: np.linspace(-9, 0, n).astype(np.float32)  # noqa: E731
        transcript = make_transcript(CHAT, logprobs=values)
        transcript.tokens.tracks["logprobs"][[1, 2, 3]] = [np.nan, np.inf, -np.inf]
        back = round_trip(transcript).tokens.tracks["logprobs"]
        np.testing.assert_allclose(back, transcript.tokens.tracks["logprobs"], rtol=1e-3)

    def test_values_beyond_float16_are_kept_as_float32(self):
        transcript = make_transcript(CHAT, values=lambda n: np.full(n, 123456.5, np.float32))
        np.testing.assert_array_equal(
            round_trip(transcript).tokens.tracks["values"], transcript.tokens.tracks["values"]
        )

    def test_a_constant_outside_the_sampled_tokens_costs_nothing_and_comes_back(self):
        rng = np.random.default_rng(0)
        sampled = make_transcript(CHAT).tokens.response_mask
        for fill in (0.0, np.nan, -1.5):
            logprobs = np.where(sampled, rng.normal(size=len(sampled)), fill).astype(np.float32)
            back = round_trip(make_transcript(CHAT, logprobs=logprobs)).tokens.tracks["logprobs"]
            np.testing.assert_allclose(back, logprobs, rtol=2e-3)

    @pytest.mark.parametrize("fill", [0.5, np.nan, np.inf])
    def test_a_single_token_outside_the_sampled_ones_keeps_its_value(self, fill):
        transcript = make_transcript(CHAT, logprobs=lambda n: np.linspace(-2, -1, n).astype(np.float32))
        transcript.tokens.response_mask[:] = True
        transcript.tokens.response_mask[0] = False
        transcript.tokens.tracks["logprobs"][0] = fill
        back = round_trip(transcript).tokens.tracks["logprobs"]
        np.testing.assert_allclose(back, transcript.tokens.tracks["logprobs"], rtol=2e-3)

    def test_a_call_that_could_not_be_parsed_keeps_its_text(self):
        transcript = make_transcript(CHAT, calls=[("", None)])
        back = round_trip(transcript)
        call = next(turn for turn in back.turns if turn.tool_calls).tool_calls[0]
        assert (call.name, call.arguments, call.raw) == ("", None, "[call  None]")

    def test_two_tokens_of_one_text_keep_their_own_ids(self):
        transcript = make_transcript([("user", "aaaaa aaaaa"), ("assistant", "b")])
        ids = transcript.tokens.input_ids
        ids[2] = 9999
        assert_same(transcript, round_trip(transcript))

    def test_a_character_cut_by_a_turns_edge_keeps_its_bytes(self):
        whole = "é".encode()
        turns = (
            Turn("user", 0, 1, 0, 1, b"a" + whole[:1], "a�", "a�"),
            Turn("assistant", 1, 2, 1, 2, whole[1:] + b"b", "�b", "�b", n_sampled=1),
        )
        tokens = TokenTrack(
            input_ids=np.asarray([5, 6]),
            loss_mask=np.asarray([False, True]),
            response_mask=np.asarray([False, True]),
            char_starts=np.asarray([0, 2]),
            char_stops=np.asarray([2, 4]),
            special=np.zeros(2, bool),
        )
        assert_same(Transcript(turns, tokens, "mask"), round_trip(Transcript(turns, tokens, "mask")))

    @settings(max_examples=60, deadline=None)
    @given(
        st.lists(
            st.tuples(st.sampled_from(["user", "assistant", "tool", "context"]), st.text(max_size=40)),
            min_size=1,
            max_size=6,
        ),
        st.one_of(st.none(), st.text(max_size=30)),
    )
    def test_any_conversation_comes_back_equal(self, turns, thinking):
        clean = [(role, text.encode("utf-8", "replace").decode()) for role, text in turns]
        thinking = None if thinking is None else thinking.encode("utf-8", "replace").decode()
        transcript = make_transcript(clean, thinking=thinking)
        assert_same(transcript, round_trip(transcript))


def make_long(sampled_share: float, n_tokens: int = 4000) -> Transcript:
    """A question and an answer in words of a natural distribution, with the tracks of an asynchronous trainer."""
    rng = np.random.default_rng(0)
    words = ["".join(rng.choice(list("abcdefghij"), 4)) for _ in range(1500)]
    chances = 1 / np.arange(1, len(words) + 1)
    n_sampled = int(n_tokens * sampled_share)
    question, answer = (
        " ".join(rng.choice(words, n, p=chances / chances.sum()))
        for n in (max(n_tokens - n_sampled, 1), n_sampled)
    )
    transcript = make_transcript([("user", question), ("assistant", answer)])
    sampled = transcript.tokens.response_mask
    n = len(sampled)
    logprobs = -rng.exponential(0.3, n)
    tracks = {
        "versions": np.where(sampled, 7, -1).astype(np.int32),
        "turn_ids": np.where(sampled, 0, -1).astype(np.int32),
        "logprobs": np.where(sampled, logprobs, 0).astype(np.float32),
        "prox_logprobs": np.where(sampled, np.minimum(logprobs + rng.normal(0, 0.01, n), 0), 0).astype(
            np.float32
        ),
        "advantages": np.where(sampled, 0.7, 0).astype(np.float32),
    }
    return replace(transcript, tokens=replace(transcript.tokens, tracks=tracks))


class TestSize:
    @pytest.mark.parametrize(("sampled_share", "kilobytes"), [(0.25, 8), (1.0, 21)])
    def test_of_a_track_of_four_thousand_tokens_is_small(self, sampled_share, kilobytes):
        transcript = make_long(sampled_share)
        sampled = transcript.tokens.response_mask
        assert len(sampled) >= 4000
        assert sampled.mean() == pytest.approx(sampled_share, abs=0.01)
        assert len(pack_transcript(transcript, transcript.messages())) <= kilobytes * 1024


class TestDamage:
    def test_damaged_text_is_refused_by_name(self):
        with pytest.raises(StoreError, match="token track: damaged"):
            unpack_transcript("not base64 at all!", [])

    def test_a_kind_of_number_that_numpy_cannot_read_is_damage(self):
        transcript = make_transcript(CHAT)
        raw = zlib.decompress(base64.b64decode(pack_transcript(transcript, transcript.messages())))
        made_up = base64.b64encode(zlib.compress(raw.replace(b'"dtype":"<i4"', b'"dtype":",i4"'))).decode()
        with pytest.raises(StoreError, match="token track: damaged"):
            unpack_transcript(made_up, transcript.messages())

    def test_messages_of_another_trace_are_refused(self):
        transcript = make_transcript(CHAT)
        packed = pack_transcript(transcript, transcript.messages())
        with pytest.raises(StoreError, match="4 turns beside 3 messages"):
            unpack_transcript(packed, transcript.messages()[:3])

    def test_a_made_up_trace_cannot_expand_without_end(self, monkeypatch):
        monkeypatch.setattr("rollout_traces.model.packed_arrays.MAX_UNPACKED", 1000)
        bomb = base64.b64encode(zlib.compress(bytes(10_000))).decode()
        with pytest.raises(StoreError, match="more than 1000"):
            unpack_transcript(bomb, [])

    def test_references_are_counted_before_any_is_followed(self):
        transcript = make_transcript([("assistant", "a" * 50_000)])
        messages = transcript.messages()
        head, arrays = unpack_text(pack_transcript(transcript, messages), "token track")
        del head["schema"]
        head["turns"][0]["raw"] = [*[[1, 49_999]] * 1000, [0, -49_950_000]]
        made_up = pack_text(head, arrays)
        tracemalloc.start()
        with pytest.raises(StoreError, match="token track: damaged"):
            unpack_transcript(made_up, messages)
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert most < 5_000_000

    def test_few_bytes_are_not_unpacked_to_many_long_tracks(self):
        n = 2**20
        head = {"n": n, "source": "template", "warnings": [], "tools": [], "given": None, "turns": []}
        tracks = {f"made_up_{number}": np.zeros(0, np.float16) for number in range(300)}
        masks = {name: np.zeros(n // 8, np.uint8) for name in ("loss_mask", "response_mask", "special")}
        arrays = {"lengths": np.zeros(n, np.uint8), "piece_ids": np.zeros(1, np.int32), **masks, **tracks}
        made_up = pack_text({**head, "outside": dict.fromkeys(tracks)}, arrays)
        with pytest.raises(StoreError, match="expected 0 to"):
            unpack_transcript(made_up, [])

    def test_a_track_of_another_length_is_refused(self):
        transcript = make_transcript(CHAT, logprobs=lambda n: np.linspace(-9, 0, n).astype(np.float32))
        messages = transcript.messages()
        head, arrays = unpack_text(pack_transcript(transcript, messages), "token track")
        del head["schema"]
        made_up = pack_text(head, {**arrays, "logprobs": arrays["logprobs"][:1]})
        with pytest.raises(StoreError, match="logprobs: 1 values"):
            unpack_transcript(made_up, messages)
