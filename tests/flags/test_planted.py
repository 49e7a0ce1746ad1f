"""Every flag finds the fault that is planted for it, where it was planted, and on no other row."""

from __future__ import annotations

import pytest

from rollout_traces.flags import REGISTRY
from tests.flags.conftest import decoder_of, tiny_steps
from tests.flags.planted import FAULTS, Fault, faults_for, healthy_steps, try_fault
from tests.generator import tiny_tokenizer

TINY = faults_for(tiny_tokenizer("qwen3"))
NAMES = [f"{fault.flag}: {fault.what}" for fault in TINY]


def check(fault: Fault, step, decoder) -> None:
    outcome = try_fault(fault, step, decoder)
    assert outcome.found
    assert outcome.range_right, outcome.message
    assert outcome.elsewhere == 0


class TestPlantedFaults:
    def test_every_flag_has_one(self):
        built_in = {
            name for name, spec in REGISTRY.items() if spec.family in ("mask", "text", "policy", "group")
        }
        assert built_in == {fault.flag for fault in FAULTS}

    @pytest.mark.parametrize("fault", TINY, ids=NAMES)
    def test_found_in_made_up_conversations(self, fault):
        check(fault, tiny_steps()["made up"], decoder_of("tiny"))

    @pytest.mark.parametrize("fault", TINY, ids=NAMES)
    def test_found_in_desk_conversations(self, fault):
        check(fault, tiny_steps()["desk"], decoder_of("tiny"))

    @pytest.mark.parametrize("name", ["qwen2_5", "qwen3", "llama3_2"])
    def test_found_with_real_tokenizers(self, name, real_tokenizer):
        tokenizer = real_tokenizer(name)
        step = healthy_steps(tokenizer)[-1]
        for fault in faults_for(tokenizer):
            check(fault, step, decoder_of(name))

    @pytest.mark.slow
    @pytest.mark.parametrize("name", ["qwen2_5", "qwen3", "llama3_2"])
    def test_found_in_desk_conversations_with_real_tokenizers(self, name, real_tokenizer):
        tokenizer = real_tokenizer(name)
        step = healthy_steps(tokenizer)[0]
        for fault in faults_for(tokenizer):
            check(fault, step, decoder_of(name))
