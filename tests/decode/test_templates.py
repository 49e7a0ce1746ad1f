"""The chat templates that TRL ships: learned by probing, and the page that says how."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from rollout_traces.decode import TemplateMarkers, TranscriptDecoder
from rollout_traces.decode.probe import learn
from tests.decode.builders import of_template, said
from tests.decode.template_table import (
    calls_equal,
    chat_equal,
    message,
    results_equal,
    table,
    thinking_equal,
    trip,
)
from tests.decode.toy import toy_tokenizer, trl_templates

NAMES = tuple(trl_templates())
PAGE = Path(__file__).parents[2] / "docs" / "templates.md"


class TestEveryTemplate:
    def test_there_are_72_of_them(self) -> None:
        assert len(NAMES) == 72

    @pytest.mark.parametrize("name", NAMES)
    def test_user_and_assistant_turns_come_back(self, name: str) -> None:
        assert chat_equal(name, special=True) is True
        assert chat_equal(name, special=False) is True

    @pytest.mark.parametrize("name", NAMES)
    def test_what_it_writes_of_results_calls_and_thinking_comes_back(self, name: str) -> None:
        checks = (
            results_equal(name, special=True),
            results_equal(name, special=False),
            calls_equal(name),
            thinking_equal(name),
        )
        assert False not in checks

    @pytest.mark.parametrize("name", NAMES)
    def test_a_generation_prompt_opens_an_empty_assistant_turn(self, name: str) -> None:
        made = trip(name, [message("user", "Hi")], special=True, add_generation_prompt=True)
        assert made is not None
        turns = made.transcript.turns
        if turns[-1].role == "user":
            assert made.text.rstrip().endswith("[/INST]"), "only these templates open the answer with nothing"
            return
        assert (turns[-2].role, turns[-2].content) == ("user", "Hi")
        assert (turns[-1].role, turns[-1].content, turns[-1].thinking) == ("assistant", "", None)
        assert turns[-1].body_start == turns[-1].stop


class TestThePage:
    def test_docs_templates_is_what_the_decoder_does(self) -> None:
        assert PAGE.read_text() == table(), (
            "write it anew: python -m tests.decode.template_table > docs/templates.md"
        )


class TestSystemText:
    def test_it_is_a_turn_of_its_own_where_the_template_marks_it(self) -> None:
        made = trip("qwen3", [message("system", "Be brief."), message("user", "Hi")], special=True)
        assert made is not None
        assert said(made.transcript) == [("system", "Be brief."), ("user", "Hi")]

    def test_bare_text_before_the_first_marker_is_the_systems(self) -> None:
        made = trip("deepseekv3", [message("system", "Be brief."), message("user", "Hi")], special=True)
        assert made is not None
        assert said(made.transcript) == [("system", "Be brief."), ("user", "Hi")]

    def test_a_block_nested_in_the_user_turn_is_split_off(self) -> None:
        made = trip("llava_next", [message("system", "Be brief."), message("user", "Hi")], special=True)
        assert made is not None
        assert said(made.transcript) == [("system", "Be brief."), ("user", "Hi")]

    def test_text_folded_into_the_user_turn_stays_there_and_the_dialect_says_so(self) -> None:
        made = trip("gemma3", [message("system", "Be brief."), message("user", "Hi")], special=True)
        _, decoder = of_template("gemma3")
        assert made is not None
        assert said(made.transcript) == [("user", "Be brief.\n\nHi")]
        assert decoder.dialect.system_folded

    def test_tool_definitions_in_the_user_turn_are_kept_apart_from_the_question(self) -> None:
        from tests.decode.template_table import TOOLS

        made = trip("llama3_2", [message("user", "Weather?")], special=True, tools=TOOLS * 2)
        assert made is not None
        assert said(made.transcript)[-1] == ("user", "Weather?")
        assert "get_weather" in made.transcript.turns[-1].raw


class TestTemplateMarkersAsData:
    @pytest.mark.parametrize("name", NAMES)
    def test_it_survives_json(self, name: str) -> None:
        import json

        _, decoder = of_template(name)
        assert TemplateMarkers.from_dict(json.loads(json.dumps(decoder.dialect.to_dict()))) == decoder.dialect

    def test_an_unknown_key_is_refused_by_name(self) -> None:
        with pytest.raises(TypeError, match="opener"):
            TemplateMarkers.from_dict({"opener": []})

    def test_one_given_by_hand_is_used_instead_of_learning(self) -> None:
        _, decoder = of_template("qwen3")
        other = toy_tokenizer(None, ("<|im_start|>", "<|im_end|>"), eos_token="<|im_end|>")
        by_hand = TranscriptDecoder(other, dialect=decoder.dialect)
        ids = other.encode("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nHello<|im_end|>\n")
        assert said(by_hand.decode(ids)) == [("user", "Hi"), ("assistant", "Hello")]


class TestTemplatesThatTeachNothing:
    def test_one_that_raises_leaves_a_note(self) -> None:
        dialect = learn(toy_tokenizer("{{ raise_exception('no') }}"))
        assert dialect.openers == ()
        assert "no user and assistant turns" in dialect.notes[0]

    def test_one_that_writes_no_markers_leaves_a_note(self) -> None:
        dialect = learn(toy_tokenizer("{% for m in messages %}{{ m.content }} {% endfor %}"))
        assert dialect.openers == ()
        assert dialect.notes

    def test_one_that_writes_only_roles_names_them_as_plain_text(self) -> None:
        template = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
        tokenizer = toy_tokenizer(template)
        decoder = TranscriptDecoder(tokenizer)
        transcript = decoder.decode(tokenizer.encode("user: Hi\nassistant: Hello\nuser: Bye\n"))
        assert said(transcript) == [("user", "Hi"), ("assistant", "Hello"), ("user", "Bye")]
        assert any("ambiguous" in warning for warning in transcript.warnings)


ONE_GROUP_OF_RESULTS = (
    "{% set seen = namespace(group=false, tool=false) %}{% for m in messages %}"
    "{% if m.role == 'user' %}<|user|>{{ m.content }}{% set seen.tool = false %}"
    "{% elif m.role == 'assistant' %}{% if seen.tool %}<|outputs_end|>{% else %}<|assistant|>{% endif %}"
    "{{ m.content }}<|eos|>{% set seen.tool = false %}"
    "{% elif m.role == 'tool' %}{% if not seen.group %}<|outputs_begin|>{% else %}\n{% endif %}"
    "<|output_begin|>{{ m.content }}<|output_end|>{% set seen.group = true %}{% set seen.tool = true %}{% endif %}"
    "{% endfor %}{% if add_generation_prompt and not seen.tool %}<|assistant|>{% endif %}"
)
"""As DeepSeek V3's own: the group of results is opened once, and calls are not written beside a content."""


class TestResultsWithoutTheirGroup:
    def test_they_are_the_tools_and_what_follows_is_the_assistants(self) -> None:
        marks = ("user", "assistant", "eos", "outputs_begin", "outputs_end", "output_begin", "output_end")
        tokenizer = toy_tokenizer(ONE_GROUP_OF_RESULTS, tuple(f"<|{name}|>" for name in marks))
        conversation = [
            ("user", "What?"),
            ("assistant", ""),
            ("tool", "one"),
            ("tool", "two"),
            ("assistant", "Done."),
            ("user", "More?"),
            ("assistant", "Let me see."),
            ("tool", "three"),
            ("tool", "four"),
            ("assistant", "Done again."),
        ]
        messages = [message(role, content) for role, content in conversation]
        ids = np.asarray(tokenizer.encode(tokenizer.apply_chat_template(messages, tokenize=False)))
        found = TranscriptDecoder(tokenizer).decode(ids, loss_mask=np.zeros(len(ids)))
        assert said(found) == conversation
