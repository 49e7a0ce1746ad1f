"""Rows cut into turns by the markers of TRL's chat templates, whole ones and odd ones."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from rollout_traces.decode import Opener, TemplateMarkers
from rollout_traces.decode.segment import Markers, skip_back
from rollout_traces.model.transcript import Transcript
from tests.decode.builders import E, S, of_template, said
from tests.decode.template_table import chat_equal, results_equal
from tests.decode.test_templates import ONE_GROUP_OF_RESULTS
from tests.decode.toy import toy_tokenizer

FAMILIES = ("cohere2", "gptoss", "llama3_2", "qwen3")


def cut(template: str, text: str) -> Transcript:
    """A text of a template, decoded with a mask that samples nothing."""
    tokenizer, decoder = of_template(template)
    ids = np.asarray(tokenizer.encode(text, add_special_tokens=False))
    return decoder.decode(ids, loss_mask=np.zeros(len(ids)))


def pieces(template: str, text: str) -> list[tuple[str, str, str]]:
    """Role, content and raw text of each turn."""
    found = cut(template, text)
    assert "".join(turn.raw for turn in found.turns) == text
    return [(turn.role, turn.content, turn.raw) for turn in found.turns]


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("special", [True, False])
def test_turns_and_results_of_a_template_come_back(name: str, special: bool) -> None:
    assert chat_equal(name, special=special) is True
    assert results_equal(name, special=special) is not False


@pytest.mark.parametrize(("at", "start", "stop"), [(4, 0, 1), (4, 2, 2), (4, 4, 4), (1, 0, 1), (0, 0, 0)])
def test_white_space_is_skipped_back_to_a_place_and_not_beyond_it(at: int, start: int, stop: int) -> None:
    assert skip_back(b"a \n\t", at, start) == stop
    assert skip_back(b"  ", 1, 0) == 0 and skip_back(b" a ", 1, 1) == 1


class TestEndMarkers:
    def test_text_behind_one_stays_in_its_turn_and_is_warned_about(self) -> None:
        found = cut("qwen3", f"{S}user\na{E} more{S}assistant\nb{E}\n")
        assert said(found) == [("user", f"a{E} more"), ("assistant", "b")]
        assert [len(turn.warnings) for turn in found.turns] == [1, 0]
        assert found.turns[0].warnings[0].startswith("text_after_end: text follows")

    def test_text_behind_one_in_a_tools_result_is_the_results(self) -> None:
        found = cut("llama3_2", "<|start_header_id|>ipython<|end_header_id|>\n\na<|eot_id|> more")
        assert said(found) == [("tool", "a<|eot_id|> more")] and found.turns[0].warnings == ()

    def test_all_of_them_with_the_space_between_end_a_turn(self) -> None:
        text = f"{S}user\na{E}\n{S}assistant\nb {E}{E}\n\n{E}"
        assert [turn[1] for turn in pieces("qwen3", text)] == ["a", "b "]

    def test_where_none_is_written_a_template_ends_turns_by_their_line(self) -> None:
        found = pieces("glm4moe", "[gMASK]<sop><|user|>\na<|assistant|>\n<think></think>\nb<|user|>\nc")
        assert [(role, content) for role, content, _ in found] == [
            ("user", "a"),
            ("assistant", "b"),
            ("user", "c"),
        ]


class TestTheBeginning:
    def test_inside_a_turn_is_of_nobody_and_warned_about(self) -> None:
        found = cut("qwen3", f"tail of a turn{E}\n{S}user\na{E}\n")
        assert said(found) == [("context", "tail of a turn"), ("user", "a")]
        assert found.turns[0].warnings == ("the row begins inside a turn",) and found.turns[1].warnings == ()

    def test_of_scaffolding_alone_is_the_first_turns(self) -> None:
        text = "<|bos|> <|start_header_id|>user<|end_header_id|>\n\na<|eot_id|>"
        assert pieces("llama3_2", text) == [("user", "a", text)]
        text = "[gMASK]<sop><|user|>\na"
        assert pieces("glm4moe", text) == [("user", "a", text)]

    def test_of_scaffolding_and_text_is_a_turn(self) -> None:
        first, second = pieces("llama3_2", "<|bos|>x<|start_header_id|>user<|end_header_id|>\n\na<|eot_id|>")
        assert first == ("context", "<|bos|>x", "<|bos|>x") and second[:2] == ("user", "a")

    def test_of_bare_text_is_the_systems_where_the_template_writes_it_so(self) -> None:
        found = pieces("deepseekv3", "be brief<｜User｜>a<｜Assistant｜>b<｜end▁of▁sentence｜>")
        assert [turn[:2] for turn in found] == [("system", "be brief"), ("user", "a"), ("assistant", "b")]

    def test_before_a_hand_over_is_the_users(self) -> None:
        assert pieces("llava_next", "q [/INST] b") == [("user", "q", "q [/INST]"), ("assistant", "b", " b")]


class TestHeaders:
    def test_of_a_role_that_the_template_never_wrote_are_of_nobody(self) -> None:
        text = f"{S}critic\na{E}\n{S}user\nb{E}\n"
        assert pieces("qwen3", text) == [
            ("context", "a", f"{S}critic\na{E}\n"),
            ("user", "b", f"{S}user\nb{E}\n"),
        ]

    def test_of_another_name_of_a_role_are_that_roles(self) -> None:
        assert pieces("qwen3", f"{S}Developer\na{E}\n{S}model\nb{E}\n") == [
            ("system", "a", f"{S}Developer\na{E}\n"),
            ("assistant", "b", f"{S}model\nb{E}\n"),
        ]

    def test_that_are_cut_off_are_turns_without_content(self) -> None:
        assert pieces("qwen3", f"{S}user\nb{E}\n{S}")[-1] == ("context", "", S)


class TestToolResults:
    def test_in_a_users_turn_are_one_each_and_what_the_user_wrote_behind_is_the_users(self) -> None:
        results = "<tool_response>\nx\n</tool_response>\n<tool_response>\ny\n</tool_response>"
        found = pieces("qwen3", f"{S}user\n{results}\nand me?{E}\n{S}assistant\nok{E}\n")
        assert [turn[:2] for turn in found] == [
            ("tool", "x"),
            ("tool", "y"),
            ("user", "\nand me?"),
            ("assistant", "ok"),
        ]

    def test_behind_the_users_own_words_are_words(self) -> None:
        result = "me <tool_response>\nx\n</tool_response>"
        assert [turn[:2] for turn in pieces("qwen3", f"{S}user\n{result}{E}\n")] == [("user", result)]

    def test_that_hold_the_marker_of_another_are_one(self) -> None:
        found = pieces("qwen3", f"{S}user\n<tool_response>\nx <tool_response>y\n</tool_response>{E}\n")
        assert [turn[:2] for turn in found] == [("tool", "x <tool_response>y")]

    @pytest.fixture(scope="class")
    def grouped(self):
        """Cuts rows of a template that opens the group of results once."""
        from rollout_traces.decode import TranscriptDecoder

        marks = ("user", "assistant", "eos", "outputs_begin", "outputs_end", "output_begin", "output_end")
        tokenizer = toy_tokenizer(ONE_GROUP_OF_RESULTS, tuple(f"<|{name}|>" for name in marks))
        decoder = TranscriptDecoder(tokenizer)

        def cut_grouped(text: str) -> list[tuple[str, str]]:
            ids = np.asarray(tokenizer.encode(text, add_special_tokens=False))
            return said(decoder.decode(ids, loss_mask=np.zeros(len(ids))))

        return cut_grouped

    RESULT = "<|output_begin|>x<|output_end|>"

    def test_without_their_group_stand_behind_an_assistants_end(self, grouped) -> None:
        assert grouped(f"<|user|>q<|assistant|>a<|eos|>{self.RESULT}<|outputs_end|>b<|eos|>") == [
            ("user", "q"),
            ("assistant", "a"),
            ("tool", "x"),
            ("assistant", "b"),
        ]

    def test_within_an_assistants_words_are_words(self, grouped) -> None:
        found = grouped(f"<|user|>q<|assistant|>a {self.RESULT}<|eos|>")
        assert [role for role, _ in found] == ["user", "assistant"]
        assert "x" in found[1][1]

    def test_within_a_users_words_are_words(self, grouped) -> None:
        found = grouped(f"<|user|>q<|eos|>{self.RESULT}<|assistant|>a<|eos|>")
        assert [role for role, _ in found] == ["user", "assistant"]

    def test_before_any_turn_are_of_nobody(self, grouped) -> None:
        assert "tool" not in [role for role, _ in grouped(f"{self.RESULT}<|user|>q<|assistant|>a<|eos|>")]


class TestStopSigns:
    """The opener that GLM's engine samples last ends the assistant's turn."""

    BEFORE = "[gMASK]<sop><|user|>\na<|assistant|>\n<think></think>\nb"

    @pytest.mark.parametrize("sign", ["<|user|>", "<|user|>\n "])
    def test_at_the_rows_end_are_the_assistants(self, sign: str) -> None:
        found = pieces("glm4moe_training", self.BEFORE + sign)
        assert [turn[0] for turn in found] == ["user", "assistant"]
        assert found[1][2].endswith(sign)

    def test_with_words_behind_open_a_turn(self) -> None:
        found = pieces("glm4moe_training", f"{self.BEFORE}<|user|>\nc")
        assert [turn[:2] for turn in found] == [("user", "a"), ("assistant", "b"), ("user", "c")]

    def test_behind_a_users_turn_and_openers_of_others_open_one(self) -> None:
        assert [turn[0] for turn in pieces("glm4moe_training", "[gMASK]<sop><|user|>\na<|user|>")] == [
            "user",
            "user",
        ]
        last = pieces("glm4moe_training", f"{self.BEFORE}<|observation|>")
        assert [turn[0] for turn in last] == ["user", "assistant", "tool"]


class TestChannels:
    def test_of_one_answer_are_one_turn(self) -> None:
        opener = "<|start|>assistant<|channel|>"
        answer = f"{opener}analysis<|message|>think<|end|>{opener}final<|message|>b<|return|>"
        found = cut("gptoss", f"<|start|>user<|message|>a<|end|>{answer}")
        assert [(turn.role, turn.content, turn.thinking) for turn in found.turns] == [
            ("user", "a", None),
            ("assistant", "b", "think"),
        ]
        assert found.turns[1].raw == answer


class TestPlainMarkers:
    """Openers in letters count behind an end marker only, where the template always writes one."""

    TEMPLATE = (
        "{% for m in messages %}{% if m.role == 'user' %}User: {{ m.content }}<|end|>"
        "{% elif m.role == 'assistant' %}Assistant: {{ m.content }}<|end|>{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}Assistant:{% endif %}"
    )

    def cut(self, text: str) -> list[tuple[str, str]]:
        from rollout_traces.decode import TranscriptDecoder

        tokenizer = toy_tokenizer(self.TEMPLATE, ("<|end|>",))
        ids = np.asarray(tokenizer.encode(text, add_special_tokens=False))
        return said(TranscriptDecoder(tokenizer).decode(ids, loss_mask=np.zeros(len(ids))))

    def test_behind_an_end_open_a_turn(self) -> None:
        assert self.cut("User: a<|end|>Assistant: b<|end|>") == [("user", "a"), ("assistant", "b")]

    def test_within_words_are_words(self) -> None:
        assert self.cut("User: say Assistant: no<|end|>Assistant: User: b<|end|>") == [
            ("user", "say Assistant: no"),
            ("assistant", "User: b"),
        ]

    def test_that_are_cut_off_at_the_rows_end_are_of_nobody(self) -> None:
        assert self.cut("User: a<|end|>Assist") == [("user", "a"), ("context", "")]

    def test_that_are_cut_off_within_words_are_words(self) -> None:
        assert self.cut("User: a Assist") == [("user", "a Assist")]


@pytest.mark.parametrize("first", [0, 1])
def test_an_opener_s_special_token_of_any_id_is_never_looked_for_in_plain_text(first):
    dialect = TemplateMarkers(openers=(Opener("user", "<|im_start|>user\n"),))
    markers = Markers(dialect, SimpleNamespace(added={first: "<|im_start|>"}))
    assert list(markers.anchored) == [first] and markers.free == []
    assert Markers(dialect, SimpleNamespace(added={})).free
