"""The decoder's own manners: bad input, batches, settings, and what importing it costs."""

from __future__ import annotations

import subprocess
import sys
import time
from typing import Any

import numpy as np
import pytest
import torch

from rollout_traces.capture.host_copy import capture
from rollout_traces.decode import TranscriptDecoder
from rollout_traces.errors import DecodeError
from rollout_traces.model.batch import RolloutBatch
from tests.decode.builders import E, S, chatml, check_invariants, of_template, row, said
from tests.decode.toy import chatml_tokenizer
from tests.generator import tiny_tokenizer

CHAT = ((0, f"{S}user\nhi{E}\n{S}assistant\n"), (1, f"hello{E}"))


class TestArraysThatCannotBelongTogether:
    @pytest.mark.parametrize("name", ["loss_mask", "response_mask", "turn_ids", "versions"])
    def test_another_length_is_refused_with_both_shapes(self, name: str) -> None:
        _, decoder = chatml()
        arrays: dict[str, Any] = {name: [1, 0]}
        with pytest.raises(DecodeError, match=rf"{name}: shape \(2,\), expected shape \(3,\)"):
            decoder.decode([5, 6, 7], **arrays)

    def test_a_float_track_of_another_length_is_refused_by_its_name(self) -> None:
        _, decoder = chatml()
        with pytest.raises(DecodeError, match=r"logprobs: shape \(1,\), expected shape \(2,\)"):
            decoder.decode([5, 6], tracks={"logprobs": [0.5]})

    def test_a_padded_batch_is_refused(self) -> None:
        _, decoder = chatml()
        with pytest.raises(DecodeError, match=r"input_ids: shape \(1, 3\).*without padding"):
            decoder.decode([[1, 2, 3]])

    def test_text_is_refused(self) -> None:
        _, decoder = chatml()
        with pytest.raises(DecodeError, match="input_ids: dtype"):
            decoder.decode(["hello", "world"])


class TestOddValues:
    def test_an_empty_row_is_an_empty_transcript(self) -> None:
        _, decoder = chatml()
        transcript = decoder.decode([], loss_mask=[])
        assert (transcript.turns, transcript.raw, len(transcript.tokens)) == ((), "", 0)

    def test_integral_floats_are_ids(self) -> None:
        tokenizer, decoder = chatml()
        rollout = row(tokenizer, *CHAT)
        assert said(decoder.decode(rollout.ids.astype(np.float32))) == [
            ("user", "hi"),
            ("assistant", "hello"),
        ]

    @pytest.mark.parametrize("bad", [float("nan"), float("inf"), 3.7, -float("inf"), 1e300])
    def test_other_floats_are_shown_as_unknown_and_named(self, bad: float) -> None:
        _, decoder = chatml()
        transcript = decoder.decode([70.0, bad, 71.0])
        assert "<unknown -1>" in transcript.raw
        assert any("input_ids: 1 of 3 values" in warning for warning in transcript.warnings)
        check_invariants(transcript, decoder, [70, -1, 71])

    def test_ids_without_a_token_are_counted(self) -> None:
        _, decoder = chatml()
        transcript = decoder.decode([70, 999_999, -3])
        assert "<unknown 999999><unknown -3>" in transcript.raw
        assert any("2 of 3 ids are not in" in warning for warning in transcript.warnings)

    def test_nan_in_a_mask_counts_as_zero_and_is_named(self) -> None:
        tokenizer, decoder = chatml()
        rollout = row(tokenizer, *CHAT)
        mask = rollout.mask.astype(np.float32)
        mask[0] = np.nan
        transcript = decoder.decode(rollout.ids, loss_mask=mask)
        assert not transcript.tokens.loss_mask[0]
        assert any("loss_mask: 1 of" in warning for warning in transcript.warnings)

    def test_nan_in_a_track_is_kept(self) -> None:
        _, decoder = chatml()
        transcript = decoder.decode([70, 71], tracks={"logprobs": [np.nan, -1.5]})
        assert np.isnan(transcript.tokens.tracks["logprobs"][0])

    def test_nan_versions_are_not_sampled(self) -> None:
        _, decoder = chatml()
        transcript = decoder.decode([70, 71], versions=[np.nan, 3.0])
        assert transcript.tokens.response_mask.tolist() == [False, True]

    @pytest.mark.parametrize("kind", [np.int64, np.float64])
    def test_versions_beyond_32_bits_are_sampled(self, kind: type) -> None:
        _, decoder = chatml()
        transcript = decoder.decode([70, 71], versions=np.array([-1, 2**40], kind))
        assert transcript.tokens.response_mask.tolist() == [False, True]
        assert transcript.tokens.tracks["versions"].tolist() == [-1, 2**40]

    def test_no_mask_at_all_is_said(self) -> None:
        tokenizer, decoder = chatml()
        transcript = decoder.decode(row(tokenizer, *CHAT).ids)
        assert any("unknown" in warning for warning in transcript.warnings)

    def test_ten_thousand_random_or_corrupt_rows_give_valid_transcripts(self) -> None:
        tokenizer, decoder = of_template("qwen3")
        base = row(tokenizer, *CHAT, (0, f"\n{S}user\n<tool_response>\n1\n</tool_response>{E}\n")).ids
        special = np.array(sorted(decoder.detokenizer.added))
        rng = np.random.default_rng(11)
        for i in range(10_000):
            if i % 2:
                ids = rng.integers(-2, len(tokenizer) + 3, rng.integers(0, 24))
            else:
                ids = base.copy()
                at = rng.integers(0, len(ids), 4)
                ids[at] = np.where(rng.random(4) < 0.6, rng.choice(special, 4), rng.integers(0, 500, 4))
                first, last = sorted(rng.integers(0, len(ids) + 1, 2))
                ids = ids[first:last]
            mask = rng.random(len(ids)) < rng.random()
            turn_ids = np.where(mask, rng.integers(0, 3, len(ids)), -1) if i % 3 == 0 else None
            check_invariants(decoder.decode(ids, loss_mask=mask, turn_ids=turn_ids), decoder, ids)


class TestBatches:
    def batch(self) -> tuple[Any, TranscriptDecoder, list[np.ndarray]]:
        tokenizer, decoder = chatml()
        rows = [row(tokenizer, *CHAT), row(tokenizer, *CHAT, (0, f"\n{S}user\n😀 bye{E}\n"))]
        width = max(len(r.ids) for r in rows)
        ids, attention, loss = (np.zeros((2, width), kind) for kind in (np.int64, bool, bool))
        for b, r in enumerate(rows):
            ids[b, : len(r.ids)], attention[b, : len(r.ids)], loss[b, : len(r.ids)] = r.ids, True, r.mask
        batch = RolloutBatch(
            input_ids=torch.as_tensor(ids),
            attention_mask=torch.as_tensor(attention),
            loss_mask=torch.as_tensor(loss),
            logprobs=torch.full((2, width), -0.5),
            messages=[None, [{"role": "user", "content": "hi"}]],
        )
        return capture([batch], step=3, split="rollout"), decoder, [r.ids for r in rows]

    def test_a_batch_gives_what_its_rows_give_one_by_one(self) -> None:
        host, decoder, ids = self.batch()
        for transcript, alone in zip(decoder.decode_batch(host, [0, 1]), ids, strict=True):
            check_invariants(transcript, decoder, alone)
            assert transcript.tokens.input_ids.tolist() == alone.tolist()
            assert (transcript.tokens.tracks["logprobs"] == -0.5).all()

    def test_each_row_takes_its_own_messages(self) -> None:
        host, decoder, _ = self.batch()
        one, two = decoder.decode_batch(host, [0, 1])
        assert (one.source, two.source) == ("template", "messages")
        assert (one.given_messages, two.given_messages) == (None, ({"role": "user", "content": "hi"},))

    def test_no_rows_give_no_transcripts(self) -> None:
        host, decoder, _ = self.batch()
        assert decoder.decode_batch(host, []) == []


class TestImports:
    def test_neither_torch_nor_transformers_is_loaded(self) -> None:
        code = "import sys, rollout_traces.decode; print([m for m in ('torch', 'transformers') if m in sys.modules])"
        output = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        ).stdout
        assert output.strip() == "[]"


class TestLearningOnce:
    def test_a_second_decoder_of_the_same_template_does_not_probe_again(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        TranscriptDecoder(chatml_tokenizer())
        tokenizer = chatml_tokenizer()
        monkeypatch.setattr(type(tokenizer), "apply_chat_template", None)
        assert TranscriptDecoder(tokenizer).dialect.roles == ("system", "user", "assistant", "tool")

    def test_template_arguments_are_part_of_what_is_learned(self) -> None:
        tokenizer, decoder = of_template("qwen3")
        quiet = TranscriptDecoder(tokenizer, chat_template_kwargs={"enable_thinking": False})
        assert "<think>" in quiet.dialect.generation_prompt
        assert "<think>" not in decoder.dialect.generation_prompt

    def test_another_template_can_be_given(self) -> None:
        tokenizer, _ = chatml()
        template = "{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}"
        decoder = TranscriptDecoder(tokenizer, chat_template=template)
        assert said(decoder.decode(tokenizer.encode("[user] hi\n[assistant] yes\n"))) == [
            ("user", "hi"),
            ("assistant", "yes"),
        ]


class TestToolDefinitions:
    def test_those_the_system_turn_spells_out_are_found(self) -> None:
        from tests.decode.template_table import TOOLS, message, trip

        made = trip("qwen3", [message("user", "Hi")], special=True, tools=TOOLS)
        assert made is not None
        assert [tool["function"]["name"] for tool in made.transcript.tools] == ["get_weather"]

    def test_those_the_caller_gives_win(self) -> None:
        tokenizer, decoder = chatml()
        given = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
        assert decoder.decode(row(tokenizer, *CHAT).ids, tools=given).tools == tuple(given)


class TestStopReason:
    @pytest.mark.parametrize(
        ("reason", "ending", "warned"),
        [("stop", "", True), ("stop", E, False), ("length", "", False), (None, "", False)],
    )
    def test_a_finished_answer_without_an_end_marker_is_named(
        self, reason: Any, ending: str, warned: bool
    ) -> None:
        tokenizer, decoder = chatml()
        rollout = row(tokenizer, CHAT[0], (1, f"hello{ending}"))
        transcript = decoder.decode(rollout.ids, loss_mask=rollout.mask, stop_reason=reason)
        assert any(w.startswith("no_end_marker") for w in transcript.warnings) == warned


class TestTokensOfACall:
    def test_they_hold_the_call_also_after_letters_of_many_bytes_and_cut_characters(self) -> None:
        tokenizer, decoder = of_template("qwen3")
        call = '<tool_call>\n{"name": "f", "arguments": {"a": "é"}}\n</tool_call>'
        rollout = row(tokenizer, CHAT[0], (1, "Zürich 😀 "), (1, f"\n{call}{E}"))
        cut = rollout.edges[2] - 2
        ids = np.delete(rollout.ids, cut)
        transcript = decoder.decode(ids, loss_mask=np.delete(rollout.mask, cut))
        (found,) = transcript.turns[1].tool_calls
        text = "".join(list(transcript.token_texts())[found.start : found.stop])
        assert found.arguments == {"a": "é"}
        assert text.strip() == call


class TestCost:
    def test_a_row_of_openers_without_ends_costs_in_proportion_to_its_length(self):
        tokenizer = tiny_tokenizer("qwen3")
        decoder = TranscriptDecoder(tokenizer)
        opener = tokenizer.encode("<|im_start|>user\n", add_special_tokens=False)

        def processor_time(n: int) -> float:
            ids = opener * n
            times = []
            for _ in range(3):
                start = time.process_time()
                transcript = decoder.decode(ids, loss_mask=[1] * len(ids))
                times.append(time.process_time() - start)
            assert len(transcript.turns) == n
            return min(times)

        assert processor_time(8000) < 30 * processor_time(1000)
