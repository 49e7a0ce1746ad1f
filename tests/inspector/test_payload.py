"""A trace as the page draws it."""

from __future__ import annotations

import base64
from dataclasses import replace

import numpy as np
import orjson
import pytest

from rollout_traces.decode.messages import transcript_of_messages
from rollout_traces.inspector.payload import (
    MARK,
    packed,
    placed,
    rollout_payload,
    tokens_payload,
    transcript_payload,
    utf16_positions,
)
from rollout_traces.inspector.payload import unpacked as read_back
from rollout_traces.ledger.columns import Ledger
from rollout_traces.trace.conversion import TraceRecord, rollout_trace
from tests.builders import make_transcript


def unpacked(entry):
    """What the browser reads."""
    return np.frombuffer(base64.b64decode(entry["data"]), f"<{entry['kind']}")


def written(messages: list) -> dict:
    """A conversation without tokens as the page draws it."""
    return transcript_payload(transcript_of_messages(messages), None)


def as_utf16(text: str) -> list[str]:
    """The text's UTF-16 units, as a browser counts."""
    data = text.encode("utf-16-le", "surrogatepass")
    return [data[i : i + 2].decode("utf-16-le", "surrogatepass") for i in range(0, len(data), 2)]


class TestCharacterPositions:
    def test_count_as_the_browser_does(self):
        text = "aé😀b漢🎉"
        positions = utf16_positions(text)
        assert positions[-1] == len(as_utf16(text))
        assert positions.tolist() == [0, 1, 2, 4, 5, 6, 8]

    def test_ascii_positions_are_the_characters(self):
        assert utf16_positions("abc").tolist() == [0, 1, 2, 3]

    def test_token_edges_after_an_emoji_cut_the_right_text(self):
        transcript = make_transcript([("user", "😀 hi 🎉"), ("assistant", "so 😀 it is")])
        payload = orjson.loads(orjson.dumps(transcript_payload(transcript, 8)))
        units = as_utf16(payload["raw"])
        starts, stops = (unpacked(payload["tokens"]["arrays"][name]) for name in ("starts", "stops"))
        cut = [
            "".join(units[a:b]).encode("utf-16", "surrogatepass").decode("utf-16")
            for a, b in zip(starts, stops, strict=True)
        ]
        assert cut == list(transcript.token_texts())
        turn = payload["turns"][1]
        raw = (
            "".join(units[turn["char_start"] : turn["char_stop"]])
            .encode("utf-16", "surrogatepass")
            .decode("utf-16")
        )
        assert raw == transcript.turns[1].raw


class TestTracks:
    def test_arrays_arrive_as_they_are(self):
        transcript = make_transcript(
            [("user", "a"), ("assistant", "b c")],
            logprobs=lambda n: np.linspace(-1, np.nan, n, dtype=np.float32),
        )
        arrays = transcript_payload(transcript, None)["tokens"]["arrays"]
        np.testing.assert_array_equal(unpacked(arrays["ids"]), transcript.tokens.input_ids)
        np.testing.assert_array_equal(unpacked(arrays["loss_mask"]), transcript.tokens.loss_mask)
        np.testing.assert_array_equal(unpacked(arrays["logprobs"]), transcript.tokens.tracks["logprobs"])

    @pytest.mark.parametrize(
        ("values", "kind"),
        [
            ([0, 255], "u1"),
            ([-1, 7, 32_767], "i2"),
            ([-1, 2**31 - 1], "i4"),
            ([-1, 2**31], "f8"),
            ([-1, 2**53 - 1], "f8"),
            ([], "u1"),
            ([1.5, np.inf, np.nan, -0.0], "f4"),
            ([0.1], "f4"),
        ],
    )
    def test_numbers_travel_in_the_narrowest_kind_that_keeps_them(self, values, kind):
        values = np.asarray(values, None if values else np.int64)
        entry = packed(values)
        assert entry["kind"] == kind
        expected = values.astype(np.float32) if values.dtype.kind == "f" else values
        np.testing.assert_array_equal(unpacked(entry), expected)
        np.testing.assert_array_equal(read_back(entry), expected)

    def test_tokens_whose_texts_do_not_follow_each_other_say_where_they_start(self):
        transcript = make_transcript([("user", "a"), ("assistant", "b c")])
        tokens = transcript.tokens
        moved = replace(tokens, char_starts=tokens.char_starts[::-1], char_stops=tokens.char_stops[::-1])
        arrays = tokens_payload(moved, utf16_positions(transcript.raw), None)["arrays"]
        np.testing.assert_array_equal(unpacked(arrays["starts"]), moved.char_starts)
        np.testing.assert_array_equal(unpacked(arrays["stops"]), moved.char_stops)


class TestForeignTraces:
    def test_messages_become_turns_without_tokens(self):
        record = TraceRecord(
            [
                {
                    "role": "user",
                    "content": [{"type": "text", "text": "look"}, {"type": "image_url", "image_url": "x"}],
                },
                {
                    "role": "assistant",
                    "content": None,
                    "reasoning_content": "hm",
                    "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": '{"a":1}'}}],
                },
                {"role": "narrator", "content": {"odd": 1}},
            ],
            {"reward": 1.0, "flags": ["truncated"]},
        )
        payload = rollout_payload("id", record)
        assert payload["tokens"] is None
        assert [turn["role"] for turn in payload["turns"]] == ["user", "assistant", "context"]
        assert payload["turns"][0]["content"].startswith("look")
        assert payload["turns"][1]["thinking"] == "hm"
        assert payload["turns"][1]["tool_calls"][0]["arguments"] == '{\n  "a": 1\n}'
        assert payload["flags"] == [
            {
                "name": "truncated",
                "severity": "warn",
                "message": "",
                "turn": None,
                "start": None,
                "stop": None,
                "cause": None,
            }
        ]

    def test_thinking_that_a_model_wrote_is_apart_from_its_content_and_nothing_is_lost(self):
        texts = [
            ("user", "Answer in <think>tags</think> please \U0001f389"),
            ("assistant", "<think>\nTwo and two,\n  so 4.\n</think>\n\nIt is **4**."),
            ("tool", "<think>not a model's</think>"),
            ("assistant", "opened by the prompt\n</think>\nIt is 5."),
            ("assistant", "<think>\nand cut sh"),
            ("assistant", "Put it inside `<think>` and `</think>`."),
        ]
        record = TraceRecord([{"role": role, "content": text} for role, text in texts], {"reward": 1.0})
        payload = orjson.loads(orjson.dumps(rollout_payload("id", record)))
        assert [(turn["thinking"], turn["content"]) for turn in payload["turns"]] == [
            (None, texts[0][1]),
            ("Two and two,\n  so 4.", "It is **4**."),
            (None, texts[2][1]),
            ("opened by the prompt", "It is 5."),
            ("and cut sh", ""),
            (None, texts[5][1]),
        ]
        assert [bool(turn["warnings"]) for turn in payload["turns"]] == [False] * 4 + [True, False]
        units = as_utf16(payload["raw"])
        cut = ["".join(units[turn["char_start"] : turn["char_stop"]]) for turn in payload["turns"]]
        assert [text.encode("utf-16", "surrogatepass").decode("utf-16") for text in cut] == [
            text for _, text in texts
        ]

    def test_thinking_beside_the_content_and_inside_it_is_all_shown(self):
        message = {"role": "assistant", "content": "<think>b</think>c", "reasoning": "a"}
        (turn,) = rollout_payload("id", TraceRecord([message], {}))["turns"]
        assert (turn["thinking"], turn["content"]) == ("a\n\nb", "c")

    def test_lone_surrogates_do_not_stop_the_answer(self):
        record = TraceRecord([{"role": "user", "content": "a\ud800b"}], {"note": "\udfff"})
        payload = rollout_payload("id", record)
        assert orjson.loads(orjson.dumps(payload))["turns"][0]["content"] == "a\ufffdb"


class TestOurTraces:
    def test_tool_turns_name_the_turn_they_answer(self):
        transcript = make_transcript([("user", "?"), ("assistant", "calling")], calls=[("f", {"x": 1})])
        answering = make_transcript(
            [("user", "?"), ("assistant", "calling"), ("tool", "7")], calls=[("f", {"x": 1})]
        )
        call_turn = replace(answering.turns[1], tool_calls=transcript.turns[1].tool_calls)
        tool_turn = replace(answering.turns[2], tool_call_id=call_turn.tool_calls[0].id)
        paired = replace(answering, turns=(answering.turns[0], call_turn, tool_turn))
        assert [turn["answers"] for turn in transcript_payload(paired, None)["turns"]] == [None, None, 1]

    def test_details_and_metadata_are_passed_on(self):
        rows = Ledger({"uid": np.asarray(["u"], object), "reward": np.asarray([0.5])})
        record = rollout_trace(
            make_transcript([("user", "a"), ("assistant", "b")]),
            rows,
            0,
            details={"timings": {"generation": 1.5}},
        )
        payload = rollout_payload("id", record)
        assert payload["metadata"]["reward"] == 0.5
        assert payload["timings"] == {"generation": 1.5}
        assert payload["warnings"] == ["made by hand"]


class TestWithoutTokens:
    def test_turns_are_drawn_without_a_token_track_and_the_page_says_what_to_log(self):
        messages = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]
        record = rollout_trace(
            transcript_of_messages(messages), Ledger({}), 0, extra={"ids_from": "unobserved"}
        )
        payload = rollout_payload("id", record)
        assert payload["tokens"] is None
        assert [(turn["role"], turn["n_tokens"]) for turn in payload["turns"]] == [
            ("user", None),
            ("assistant", None),
        ]
        assert payload["warnings"][0].startswith("Tokens are unobserved")

    def test_ids_that_were_made_of_text_are_said_to_be(self):
        record = rollout_trace(
            make_transcript([("user", "q"), ("assistant", "a")]),
            Ledger({}),
            0,
            extra={"ids_from": "re-encoded"},
        )
        assert "may differ" in rollout_payload("id", record)["warnings"][0]


class TestImages:
    PAD = "<|vision_start|><|image_pad|><|image_pad|><|vision_end|>"

    def drawn(self, stored: object, *texts: tuple[str, str]) -> dict:
        turns = written([{"role": role, "content": text} for role, text in texts])
        return placed({**turns, "warnings": ["before"]}, {"images": stored})

    def test_stand_in_the_turns_that_hold_their_tokens(self):
        found = self.drawn(
            [{}, {"left_out": "too large"}], ("user", f"a {self.PAD} b"), ("tool", f"{self.PAD}")
        )
        assert found["images"] == [{"left_out": None}, {"left_out": "too large"}]
        assert [(turn["content"], turn["images"]) for turn in found["turns"]] == [
            (f"a {MARK} b", [0]),
            (MARK, [1]),
        ]
        assert found["warnings"] == ["before"]

    def test_without_a_place_are_the_first_users_and_that_is_warned_about(self):
        found = self.drawn([{}, {}, "odd"], ("system", "s"), ("user", f"one {self.PAD}"), ("user", "two"))
        assert [turn.get("images") for turn in found["turns"]] == [None, [0, 1, 2], None]
        assert found["images"][2] == {"left_out": "its entry cannot be read."}
        assert found["warnings"][1].startswith("3 images were logged and 1 places for one are in its text")

    def test_places_without_an_image_stay_text(self):
        found = self.drawn([{}], ("user", f"{self.PAD} and {self.PAD}"))
        assert found["turns"][0]["images"] == [0] and found["turns"][0]["content"] == f"{MARK} and {self.PAD}"
        assert len(found["warnings"]) == 2

    def test_a_mark_of_the_text_is_none(self):
        found = self.drawn([{}], ("user", f"{MARK}{self.PAD}"))
        assert found["turns"][0]["content"] == f"\ufffd{MARK}"

    @pytest.mark.parametrize("stored", [None, [], "x", {"a": 1}])
    def test_a_rollout_without_any_is_as_it_was(self, stored):
        assert "images" not in self.drawn(stored, ("user", self.PAD))

    def test_places_are_counted_in_the_conversation_where_there_is_no_text(self):
        found = placed(
            {"turns": [{"role": "user", "content": self.PAD}], "raw": "", "warnings": []}, {"images": [{}]}
        )
        assert found["turns"][0]["images"] == [0] and found["warnings"] == []


def test_a_conversation_is_cut_by_utf16_units():
    found = written(
        [{"role": "user", "content": "a\U0001f389"}, "odd", {"role": "assistant", "content": "b"}]
    )
    assert found["raw"] == "a\U0001f389b"
    assert [(turn["char_start"], turn["char_stop"]) for turn in found["turns"]] == [(0, 3), (3, 4)]
