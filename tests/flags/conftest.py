"""Tokenizers, decoders and healthy steps, made once."""

from __future__ import annotations

from functools import lru_cache
from types import ModuleType
from typing import Any

import pytest

from rollout_traces.decode import TranscriptDecoder
from rollout_traces.flags import REGISTRY
from tests.decode.conftest import load_tokenizer, real_tokenizer  # noqa: F401  a fixture
from tests.flags.planted import Fault, faults_for, healthy_steps, try_fault
from tests.flags.steps import Step
from tests.generator import tiny_tokenizer


@lru_cache(maxsize=4)
def decoder_of(name: str) -> TranscriptDecoder:
    """The decoder of `tiny` or of a real tokenizer."""
    return TranscriptDecoder(tiny_tokenizer("qwen3") if name == "tiny" else load_tokenizer(name))


@lru_cache(maxsize=1)
def tiny_steps() -> dict[str, Step]:
    """Healthy steps of the small tokenizer by origin; tests copy them before they change them."""
    return {step.origin: step for step in healthy_steps(tiny_tokenizer("qwen3"))}


def check_found(fault: Fault, step: Step, decoder: TranscriptDecoder) -> None:
    """The flag finds the fault where it was planted, and on no other row."""
    outcome = try_fault(fault, step, decoder)
    assert outcome.found
    assert outcome.range_right, outcome.message
    assert outcome.elsewhere == 0


def faults_of(module: ModuleType) -> pytest.MarkDecorator:
    """A test of each fault whose flag is looked for by a function of the module."""
    faults = [
        fault
        for fault in faults_for(tiny_tokenizer("qwen3"))
        if module.__name__ in {form.find.__module__ for form in REGISTRY[fault.flag].detectors}
    ]
    assert faults
    return pytest.mark.parametrize("fault", faults, ids=[f"{fault.flag}: {fault.what}" for fault in faults])


@pytest.fixture
def tokenizer() -> Any:
    """A small tokenizer with Qwen3's chat template."""
    return tiny_tokenizer("qwen3")


@pytest.fixture
def decoder() -> TranscriptDecoder:
    """Its decoder."""
    return decoder_of("tiny")


@pytest.fixture
def step() -> Step:
    """A made-up healthy step of sixteen rollouts in groups of four, free to be changed."""
    return tiny_steps()["made up"].copy()


@pytest.fixture
def own_flags():
    """Undoes registrations after a test."""
    before = dict(REGISTRY)
    yield
    REGISTRY.clear()
    REGISTRY.update(before)
