"""What an existing implementation got wrong (areal-project/AReaL#1360), one small fixture each.

W6 and W8 are mostly the batch's, W10 an adapter's, W12 the selection's; here is the decoder's share.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import pytest
import torch

from rollout_traces.capture.host_copy import capture
from rollout_traces.errors import DecodeError
from rollout_traces.model.batch import RolloutBatch
from tests.decode.builders import E, Row, S, chatml, check_invariants, of_template, row, said


def two_calls() -> Row:
    tokenizer, _ = chatml()
    return row(
        tokenizer,
        (0, f"{S}system\nBe brief.{E}\n{S}user\n41+1?{E}\n{S}assistant\n"),
        (1, f"forty one{E}"),
        (0, f"{S}user\nYour answer is wrong.{E}\n{S}assistant\n"),
        (1, f"forty two{E}"),
    )


class TestW1Versions:
    def test_only_sampled_tokens_count_and_each_turn_has_its_own(self) -> None:
        _, decoder = chatml()
        rollout = two_calls()
        _, a, b, c, d = rollout.edges
        versions = np.where(rollout.mask, 7, -1)
        versions[c:d] = 8
        transcript = decoder.decode(rollout.ids, loss_mask=rollout.mask, versions=versions)
        assert [turn.versions for turn in transcript.turns] == [(), (), ((7, b - a),), (), ((8, d - c),)]

    def test_a_change_inside_a_turn_gives_two_runs(self) -> None:
        _, decoder = chatml()
        rollout = two_calls()
        versions = np.where(rollout.mask, 7, -1)
        versions[rollout.edges[2] - 1] = 9
        turn = decoder.decode(rollout.ids, loss_mask=rollout.mask, versions=versions).turns[2]
        assert turn.versions == ((7, turn.n_sampled - 1), (9, 1))


class TestW2RolesComeFromMarkers:
    EXPECTED: ClassVar = [
        ("system", "Be brief."),
        ("user", "41+1?"),
        ("assistant", "forty one"),
        ("user", "Your answer is wrong."),
        ("assistant", "forty two"),
    ]

    def test_a_retry_is_the_users_and_system_and_user_are_two_turns(self) -> None:
        _, decoder = chatml()
        rollout = two_calls()
        transcript = decoder.decode(rollout.ids, loss_mask=rollout.mask)
        assert said(transcript) == self.EXPECTED
        assert transcript.source == "template"
        check_invariants(transcript, decoder, rollout.ids)

    def test_the_generation_prompt_belongs_to_the_assistants_turn(self) -> None:
        _, decoder = chatml()
        rollout = two_calls()
        turn = decoder.decode(rollout.ids, loss_mask=rollout.mask).turns[2]
        assert turn.raw == f"{S}assistant\nforty one{E}"
        assert turn.body_start == rollout.edges[1]
        assert turn.body_stop == rollout.edges[2] - 1

    def test_a_tool_result_in_a_user_turn_is_a_tool_turn(self) -> None:
        tokenizer, decoder = of_template("qwen2_5")
        result = (
            f"{S}user\n<tool_response>\nsunny\n</tool_response>\n<tool_response>\nrain\n</tool_response>{E}\n"
        )
        call = '<tool_call>\n{"name": "look", "arguments": {}}\n</tool_call>'
        rollout = row(
            tokenizer,
            (0, f"{S}user\nHow is it?{E}\n{S}assistant\n"),
            (1, f"{call}\n{call}{E}"),
            (0, f"\n{result}{S}assistant\n"),
            (1, f"Mixed.{E}"),
        )
        transcript = decoder.decode(rollout.ids, loss_mask=rollout.mask)
        assert said(transcript) == [
            ("user", "How is it?"),
            ("assistant", ""),
            ("tool", "sunny"),
            ("tool", "rain"),
            ("assistant", "Mixed."),
        ]
        ids = [call.id for call in transcript.turns[1].tool_calls]
        assert [turn.tool_call_id for turn in transcript.turns[2:4]] == ids
        assert [turn.name for turn in transcript.turns[2:4]] == ["look", "look"]


class TestW3RowsThatEndUnsampled:
    @pytest.mark.parametrize("ending", [f"{S}user\nstop{E}\n", f"{S}tool\nresult", f"{S}assistant\n", "\n"])
    def test_they_are_kept(self, ending: str) -> None:
        tokenizer, decoder = chatml()
        rollout = row(tokenizer, (0, f"{S}user\nhi{E}\n{S}assistant\n"), (1, f"hello{E}"), (0, ending))
        transcript = decoder.decode(rollout.ids, loss_mask=rollout.mask)
        assert said(transcript)[:2] == [("user", "hi"), ("assistant", "hello")]
        check_invariants(transcript, decoder, rollout.ids)


class TestW4SampledIsNotTrained:
    def test_the_response_mask_counts_where_it_is_given(self) -> None:
        _, decoder = chatml()
        rollout = two_calls()
        loss = rollout.mask.copy()
        loss[: rollout.edges[2]] = False
        transcript = decoder.decode(rollout.ids, loss_mask=loss, response_mask=rollout.mask)
        assert transcript.turns[2].n_sampled == rollout.edges[2] - rollout.edges[1]
        assert not transcript.tokens.loss_mask[: rollout.edges[2]].any()

    def test_an_assistant_turn_that_was_not_sampled_is_history(self) -> None:
        _, decoder = chatml()
        rollout = two_calls()
        mask = rollout.mask.copy()
        mask[: rollout.edges[3]] = False
        transcript = decoder.decode(rollout.ids, loss_mask=mask)
        assert said(transcript) == TestW2RolesComeFromMarkers.EXPECTED
        assert transcript.turns[2].n_sampled == 0
        assert all(not turn.warnings for turn in transcript.turns)


class TestW5StructuredMessages:
    def test_calls_ids_names_and_empty_content_are_kept(self) -> None:
        tokenizer, decoder = of_template("qwen2_5")
        rollout = row(
            tokenizer,
            (0, f"{S}user\nHow is it?{E}\n{S}assistant\n"),
            (1, f'<tool_call>\n{{"name": "look", "arguments": {{"city": "Rom"}}}}\n</tool_call>{E}'),
            (0, f"\n{S}user\n<tool_response>\nsunny\n</tool_response>{E}\n"),
        )
        function = {"name": "look", "arguments": '{"city": "Rom"}'}
        messages = [
            {
                "role": "user",
                "content": [{"type": "text", "text": "How is "}, {"type": "text", "text": "it?"}],
            },
            {"role": "assistant", "content": None, "tool_calls": [{"id": "abc", "function": function}]},
            {"role": "tool", "tool_call_id": "abc", "name": "look", "content": "sunny"},
        ]
        transcript = decoder.decode(rollout.ids, loss_mask=rollout.mask, messages=messages)
        assert transcript.source == "messages"
        assert said(transcript) == [("user", "How is it?"), ("assistant", ""), ("tool", "sunny")]
        call = transcript.turns[1].tool_calls[0]
        assert (call.id, call.name, call.arguments) == ("abc", "look", {"city": "Rom"})
        assert rollout.edges[1] <= call.start < call.stop <= rollout.edges[2]
        assert (transcript.turns[2].tool_call_id, transcript.turns[2].name) == ("abc", "look")


class TestW6MessagesOfTheWholeGroup:
    def test_a_row_with_other_rows_conversation_shows_its_own_tokens(self) -> None:
        _, decoder = chatml()
        rollout = two_calls()
        own = [{"role": role, "content": content} for role, content in TestW2RolesComeFromMarkers.EXPECTED]
        other = [{**message, "content": "something else"} for message in own]
        transcript = decoder.decode(rollout.ids, loss_mask=rollout.mask, messages=[*own, *other])
        assert transcript.source == "template"
        assert said(transcript) == TestW2RolesComeFromMarkers.EXPECTED
        assert any(warning.startswith("messages_disagree: message 5") for warning in transcript.warnings)


class TestW7Padding:
    @pytest.mark.parametrize("side", ["left", "right"])
    def test_pad_tokens_are_never_read(self, side: str) -> None:
        tokenizer, decoder = chatml()
        rollout = two_calls()
        n, width = len(rollout.ids), len(rollout.ids) + 9
        where = slice(width - n, width) if side == "left" else slice(0, n)
        ids = torch.full((1, width), tokenizer.pad_token_id)
        attention, loss = torch.zeros((1, width), dtype=torch.bool), torch.zeros((1, width))
        ids[0, where] = torch.as_tensor(rollout.ids)
        attention[0, where] = True
        loss[0, where] = torch.as_tensor(rollout.mask).float()
        batch = RolloutBatch(input_ids=ids, attention_mask=attention, loss_mask=loss)
        host = capture([batch], step=0, split="rollout")
        (transcript,) = decoder.decode_batch(host, [0])
        assert said(transcript) == TestW2RolesComeFromMarkers.EXPECTED
        assert "<|endoftext|>" not in transcript.raw


class TestW8TokenRewards:
    def test_they_go_to_the_token_track(self) -> None:
        _, decoder = chatml()
        rollout = two_calls()
        rewards = np.linspace(0, 1, len(rollout.ids))
        transcript = decoder.decode(rollout.ids, loss_mask=rollout.mask, tracks={"token_rewards": rewards})
        assert transcript.tokens.tracks["token_rewards"].dtype == np.float32
        assert transcript.tokens.tracks["token_rewards"][-1] == 1.0


class TestW9AllOnesMask:
    def test_markers_still_tell_prompt_from_answer(self) -> None:
        _, decoder = chatml()
        rollout = two_calls()
        transcript = decoder.decode(rollout.ids, loss_mask=np.ones(len(rollout.ids)))
        assert said(transcript) == TestW2RolesComeFromMarkers.EXPECTED
        assert transcript.turns[1].n_sampled == len(transcript.turns[1]), "what a flag needs to see the bug"


class TestW10ForeignHandles:
    def test_an_object_that_holds_no_numbers_is_refused_by_name(self) -> None:
        class Handle:
            pass

        _, decoder = chatml()
        with pytest.raises(DecodeError, match="input_ids"):
            decoder.decode(Handle())

    def test_cpu_tensors_are_taken(self) -> None:
        _, decoder = chatml()
        rollout = two_calls()
        transcript = decoder.decode(torch.as_tensor(rollout.ids), loss_mask=torch.as_tensor(rollout.mask))
        assert said(transcript) == TestW2RolesComeFromMarkers.EXPECTED


class TestW11CutCharacters:
    def test_a_character_over_two_tokens_is_whole(self) -> None:
        tokenizer, decoder = chatml()
        rollout = row(tokenizer, (0, f"{S}user\nhi{E}\n{S}assistant\n"), (1, f"a😀b{E}"))
        transcript = decoder.decode(rollout.ids, loss_mask=rollout.mask)
        assert said(transcript)[1] == ("assistant", "a😀b")
        assert set(transcript.token_texts()) >= {"", "😀"}

    def test_a_row_cut_inside_a_character_shows_a_replacement_and_keeps_the_bytes(self) -> None:
        tokenizer, decoder = chatml()
        rollout = row(tokenizer, (0, f"{S}user\nhi{E}\n{S}assistant\n"), (1, "a😀"))
        ids, mask = rollout.ids[:-1], rollout.mask[:-1]
        transcript = decoder.decode(ids, loss_mask=mask)
        assert transcript.turns[1].content == "a\ufffd"
        assert transcript.turns[1].raw_bytes.endswith("😀".encode()[:-1])
        check_invariants(transcript, decoder, ids)

    def test_a_mask_hole_inside_a_character_keeps_the_bytes_on_either_side(self) -> None:
        tokenizer, decoder = chatml()
        rollout = row(tokenizer, (0, f"{S}user\nhi{E}\n{S}assistant\n"), (1, "a😀b"))
        mask = rollout.mask.copy()
        mask[-2:] = False
        transcript = decoder.decode(rollout.ids, loss_mask=mask)
        check_invariants(transcript, decoder, rollout.ids)
        assert b"".join(turn.raw_bytes for turn in transcript.turns[1:]).endswith("a😀b".encode())


class TestW12TheCallerChoosesRows:
    def test_rows_come_back_in_the_order_asked_for(self) -> None:
        _, decoder = chatml()
        rollout = two_calls()
        ids = torch.as_tensor(np.stack([rollout.ids] * 3))
        ids[1, -2] = ids[1, -3]
        batch = RolloutBatch(
            input_ids=ids,
            attention_mask=torch.ones_like(ids, dtype=torch.bool),
            loss_mask=torch.as_tensor(np.stack([rollout.mask] * 3)),
        )
        host = capture([batch], step=0, split="rollout")
        one, two = decoder.decode_batch(host, [1, 0])
        assert one.tokens.input_ids[-2] == ids[1, -2]
        assert said(two) == TestW2RolesComeFromMarkers.EXPECTED
