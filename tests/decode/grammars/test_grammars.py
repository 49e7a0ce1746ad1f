"""Which grammars a chat template calls for."""

import pytest

from rollout_traces.decode.grammars import CALL_GRAMMARS, SAFE_CALL_GRAMMARS, grammars_for
from rollout_traces.decode.grammars.grammar import Grammar
from rollout_traces.decode.grammars.parse import FAMILIES, TYPED_FAMILIES

from .rendering import TEMPLATE_NAMES, template_text

FAMILY_OF_TEMPLATE = {
    "deepseek_r1_distill": ["deepseek"],
    "deepseekv3": ["deepseek"],
    "diffusion_gemma": ["gemma_4"],
    "gemma4": ["gemma_4"],
    "gemma4_v2": ["gemma_4"],
    "gemma4_v3": ["gemma_4"],
    "gemma4_v4": ["gemma_4"],
    "gemma4_v5": ["gemma_4"],
    "glm4moe": ["glm_4_5"],
    "gptoss": ["gpt_oss"],
    "lfm2": ["lfm2"],
    "lfm2_2_5": ["lfm2_raw"],
    "lfm2_2_5_v2": ["lfm2_raw"],
    "lfm2_2_5_vl": ["lfm2_vl"],
    "lfm2_v2": ["lfm2", "lfm2_vl"],
    "llama3_1": ["llama_python_tag", "llama_function_tag", "llama_json"],
    "llama3_2": ["llama_json"],
    "muse_glimmer": ["muse_recipients", "muse_atem"],
    "nemotron_3_5_lightning": ["qwen_xml"],
    "nemotron_3_nano": ["qwen_xml"],
    "nemotron_3_super": ["qwen_xml"],
    "nemotron_3_ultra": ["qwen_xml"],
    "qwen2_5": ["hermes"],
    "qwen3": ["hermes"],
    "qwen3_5_nothink": ["qwen_xml"],
    "qwen3_5_think": ["qwen_xml"],
    "qwen3_6": ["qwen_xml"],
    "qwen3_8": ["qwen_xml"],
    "qwen3_instruct_2507": ["hermes"],
    "qwen3_vl": ["hermes"],
}
SAFE = [grammar.name for grammar in SAFE_CALL_GRAMMARS]


@pytest.mark.parametrize("template", TEMPLATE_NAMES)
def test_each_template_calls_for_its_own_family_or_the_safe_ones(template):
    calls = {grammar.name for grammar in CALL_GRAMMARS}
    found = [grammar.name for grammar in grammars_for(template_text(template)) if grammar.name in calls]
    assert found == FAMILY_OF_TEMPLATE.get(template.removesuffix("_training"), SAFE)


@pytest.mark.parametrize("template", [None, "", "{{ messages[0].content }}"])
def test_an_unknown_template_calls_for_the_safe_families_and_typed_thinking(template):
    assert grammars_for(template) == (*SAFE_CALL_GRAMMARS, *TYPED_FAMILIES)


def test_several_templates_of_one_tokenizer_are_taken_together():
    templates = {"default": "{{ messages }}<think>", "tool_use": "[TOOL_CALLS]"}
    assert [grammar.name for grammar in grammars_for(templates)][:2] == ["mistral", "think"]


def test_thinking_tags_of_the_template_take_the_place_of_the_typed_ones():
    openings = [grammar.opening for grammar in grammars_for("<think>") if hasattr(grammar, "closing")]
    assert openings.count("<think>") == 1


def test_every_family_is_a_grammar_with_a_name_of_its_own():
    everything = (*CALL_GRAMMARS, *FAMILIES, *TYPED_FAMILIES)
    assert all(isinstance(grammar, Grammar) for grammar in everything)
    names = [grammar.name for grammar in everything]
    assert len(set(names)) == len(names)
