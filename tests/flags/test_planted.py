"""Every flag has a fault that is planted for it, and finds it in what real tokenizers write; the tests of its module look in what a small one does."""

from __future__ import annotations

import pytest

from rollout_traces.flags import REGISTRY
from tests.flags.conftest import check_found, decoder_of
from tests.flags.planted import FAULTS, faults_for, healthy_steps


class TestPlantedFaults:
    def test_every_flag_has_one(self):
        built_in = {
            name for name, spec in REGISTRY.items() if spec.family in ("mask", "text", "policy", "group")
        }
        assert built_in == {fault.flag for fault in FAULTS}

    @pytest.mark.parametrize("name", ["qwen2_5", "qwen3", "llama3_2"])
    def test_found_with_real_tokenizers(self, name, real_tokenizer):
        tokenizer = real_tokenizer(name)
        step = healthy_steps(tokenizer)[-1]
        for fault in faults_for(tokenizer):
            check_found(fault, step, decoder_of(name))

    @pytest.mark.slow
    @pytest.mark.parametrize("name", ["qwen2_5", "qwen3", "llama3_2"])
    def test_found_in_desk_conversations_with_real_tokenizers(self, name, real_tokenizer):
        tokenizer = real_tokenizer(name)
        step = healthy_steps(tokenizer)[0]
        for fault in faults_for(tokenizer):
            check_found(fault, step, decoder_of(name))
