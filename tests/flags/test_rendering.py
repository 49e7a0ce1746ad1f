from __future__ import annotations

import copy

from tests.flags.steps import find_flags


class TestTemplateDrift:
    def test_is_measured_against_the_template_that_the_tokenizer_has_now(self, step, decoder, tokenizer):
        def scaffolding():
            found = find_flags(step.batch(), decoder, changing, only=["template_drift"], rows=[5])
            return [flag.message for flag in found.flags[5] if flag.message.startswith("Between")]

        changing = copy.deepcopy(tokenizer)
        assert not scaffolding()
        written = changing.chat_template
        changing.chat_template = written.replace("<|im_end|>", "<|im_end|>!")
        assert changing.chat_template != written
        assert scaffolding()

    def test_a_template_that_refuses_says_nothing_and_one_that_breaks_is_counted(
        self, step, decoder, tokenizer
    ):
        def errors(template: str) -> int:
            changing = copy.deepcopy(tokenizer)
            changing.chat_template = template
            found = find_flags(step.batch(), decoder, changing, only=["template_drift"], rows=[5])
            assert not found.flags[5]
            return found.errors.total

        assert errors("{{ raise_exception('no such role') }}") == 0
        assert errors("{{ 'text' + 1 }}") == 1
