"""The demo's rollouts are sound: no flag of severity error, whatever its model writes."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import pytest

from rollout_traces.capture.host_copy import capture
from rollout_traces.decode import TranscriptDecoder
from rollout_traces.flags import REGISTRY
from rollout_traces.model.batch import RolloutBatch
from tests.flags.steps import find_flags

EXAMPLES = Path(__file__).parents[2] / "examples"
ERRORS = {name for name, spec in REGISTRY.items() if spec.severity == "error"}


@pytest.fixture(scope="module")
def demo():
    """Makes the examples folder importable; gives tokenizer and an untrained model, whose text is noise."""
    sys.path.insert(0, str(EXAMPLES))
    import torch
    from tiny_grpo.model import make_model, train_tokenizer
    from tiny_grpo.warm_up import tokenizer_texts

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    tokenizer = train_tokenizer(tokenizer_texts(seed=0))
    yield tokenizer, make_model(tokenizer)
    torch.set_num_threads(threads)


class TestDemoRollouts:
    @pytest.mark.parametrize("without", [(), ("versions", "turn_ids")])
    def test_a_policy_that_writes_noise_and_markers_raises_no_error_flag(self, demo, without):
        from tiny_grpo.learner import make_batch, recomputed_logprobs
        from tiny_grpo.sampler import Sampler
        from tiny_grpo.task import make_problem

        tokenizer, model = demo
        decoder = TranscriptDecoder(tokenizer)
        sampler, rng = Sampler(tokenizer, group_size=4, seed=1, max_sampled=60), random.Random(2)
        for version in (0, 1):
            for _ in range(4):
                sampler.start(make_problem(rng))
            groups = sampler.collect(model, version, n_groups=3)
            arrays = make_batch(groups, tokenizer.pad_token_id, train_version=version, device="cpu")
            arrays["prox_logprobs"] = recomputed_logprobs(model, arrays)
            kept = {key: value for key, value in arrays.items() if key not in without}
            batch = capture([RolloutBatch.from_dict(kept)], step=version, split="rollout")
            found = find_flags(batch, decoder, tokenizer)
            assert not found.errors.total, found.errors.first
            raised = {flag.name for flags in found.flags.values() for flag in flags}
            assert raised and not raised & (ERRORS | {"logprob_mismatch", "eos_untrained", "template_drift"})

    @pytest.mark.slow
    def test_a_run_raises_no_error_flag_on_any_rollout(self, tmp_path):
        import os
        import subprocess

        import rollout_traces as rt

        environment = {**os.environ, "TRACKIO_DIR": str(tmp_path), "PYTHONPATH": str(EXAMPLES.parent)}
        small = ["--steps", "2", "--warmup-steps", "1", "--prompts-per-step", "2", "--prompts-ahead", "0"]
        arguments = [*small, "--group-size", "4", "--project", "flags-demo"]
        script = [sys.executable, str(EXAMPLES / "tiny_grpo.py"), *arguments]
        result = subprocess.run(script, env=environment, capture_output=True, text=True, timeout=500)
        assert result.returncode == 0, result.stderr[-2000:]
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("TRACKIO_DIR", str(tmp_path))
            ledger = rt.open_store(project="flags-demo").ledger()
        raised = {name for names in ledger.get("flags").tolist() for name in names}
        assert ledger.n_rows >= 2 * 2 * 4
        assert raised and not raised & ERRORS
