"""verl's real tool agent loop, post-processing to `DataProto` and `_log_rollout_data`; compared with what was stored.

Run by `make test-trainers` in an environment of verl's own. Prints one line a check.
"""

from __future__ import annotations

import asyncio
import copy
import os
import random
import sqlite3
import sys
import tempfile
import time
import uuid
import warnings
from collections import Counter
from pathlib import Path

warnings.filterwarnings("ignore")
FOLDER = Path(tempfile.mkdtemp())
os.environ.update(
    HF_HUB_OFFLINE="1",
    VERL_LOGGING_LEVEL="ERROR",
    TOKENIZERS_PARALLELISM="false",
    TRACKIO_DIR=str(FOLDER / "trackio"),
    ROLLOUT_TRACES_MAX_ROLLOUT_TRACES_PER_STEP="16",
    VERL_USE_EXTERNAL_MODULES="rollout_traces.integrations.verl_plugin",
)
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np  # noqa: E402
import orjson  # noqa: E402
from omegaconf import OmegaConf  # noqa: E402
from verl.experimental.agent_loop import agent_loop  # noqa: E402
from verl.experimental.agent_loop.agent_loop import register  # noqa: E402
from verl.experimental.agent_loop.tool_agent_loop import ToolAgentLoop  # noqa: E402
from verl.tools.base_tool import BaseTool  # noqa: E402
from verl.tools.schemas import OpenAIFunctionToolSchema, ToolResponse  # noqa: E402
from verl.trainer.ppo import ray_trainer  # noqa: E402
from verl.trainer.ppo.ray_trainer import RayPPOTrainer, compute_advantage  # noqa: E402
from verl.trainer.ppo.reward import extract_reward  # noqa: E402
from verl.workers.rollout.replica import TokenOutput  # noqa: E402

from rollout_traces.integrations import verl as integration  # noqa: E402
from rollout_traces.integrations import verl_observer  # noqa: E402
from rollout_traces.trace.conversion import TraceRecord, read_details, read_transcript  # noqa: E402
from tests.generator import tiny_tokenizer  # noqa: E402
from tests.trainers.live_watch import Watched  # noqa: E402
from tests.trainers.result import report  # noqa: E402

CALL = 'Let me compute.\n<tool_call>\n{"name": "calc", "arguments": {"e": "6*7"}}\n</tool_call>'
SCHEMA = {
    "type": "function",
    "function": {
        "name": "calc",
        "description": "evaluate",
        "parameters": {
            "type": "object",
            "properties": {"e": {"type": "string", "description": "expression"}},
            "required": ["e"],
        },
    },
}


ARGUMENTS = {"enable_thinking": False}
STEPS, PROMPTS, SAMPLES = range(7, 11), 32, 4
"""Steps, and the rollouts of each: prompts times samples."""


TIMES: dict[str, list[tuple[float, float]]] = {"generate": [], "tool": []}
"""When the server and the tool worked, as they noted it themselves."""


class Calculator(BaseTool):
    """Answers every call."""

    async def execute(self, instance_id, parameters, **_):
        began = time.time()
        await asyncio.sleep(0.02)
        TIMES["tool"].append((began, time.time()))
        return ToolResponse(text="42"), 0.0, {}


class Server:
    """Calls the tool first, then answers."""

    def __init__(self, tokenizer) -> None:
        self.tokenizer = tokenizer

    async def generate(self, request_id, prompt_ids, sampling_params, **_):
        began = time.time()
        await asyncio.sleep(0.02)
        TIMES["generate"].append((began, time.time()))
        answered = "<tool_response>" in self.tokenizer.decode(prompt_ids)
        text = random.choice(["The answer is 42.", "I am not sure."]) if answered else CALL
        ids = [*self.tokenizer.encode(text, add_special_tokens=False), self.tokenizer.eos_token_id]
        return TokenOutput(
            token_ids=ids,
            log_probs=[-0.3] * len(ids),
            stop_reason="completed",
            extra_fields={"min_global_steps": 6, "max_global_steps": 6},
        )


@register("scored_tool_agent")
class Scored(ToolAgentLoop):
    """verl's tool agent loop, which gives its own reward."""

    async def run(self, sampling_params, **kwargs):
        output = await super().run(sampling_params, **kwargs)
        output.reward_score = float("42." in self.tokenizer.decode(output.response_ids))
        output.extra_fields["reward_extra_info"] = {"acc": output.reward_score}
        return output


def worker_of(config, tokenizer, kind: type[agent_loop.AgentLoopWorker] = agent_loop.AgentLoopWorker):
    """verl's worker, as far as it runs agent loops."""
    worker = object.__new__(kind)
    worker.config, worker.rollout_config, worker.tokenizer = (
        config,
        config.actor_rollout_ref.rollout,
        tokenizer,
    )
    worker.processor = worker.reward_loop_worker_handles = worker.dataset_cls = None
    worker.distillation_enabled, worker.mm_processor_kwargs = False, {}
    worker.llm_client, worker.hf_model_type = Server(tokenizer), "qwen2"
    worker.tools = [Calculator({}, OpenAIFunctionToolSchema.model_validate(SCHEMA))]
    return worker


def check_spans(records: list[TraceRecord]) -> int:
    """Every span is around what the server or the tool noted itself, and there are as many.

    Returns:
        How many spans were compared.
    """
    found = [span for record in records for span in read_details(record)["timings"]]
    for kind, noted in TIMES.items():
        left = sorted(noted)
        spans = sorted((span for span in found if span["kind"] == kind), key=lambda span: span["start"])
        for span in spans:
            near = [at for at in left if span["start"] - 0.001 <= at[0] and at[1] <= span["end"] + 0.001]
            assert near, (span, left[:3])
            left.remove(min(near, key=lambda at: at[0] - span["start"]))
        assert not left, f"{len(left)} of {len(noted)} of the kind {kind} have no span"
    return len(found)


def check_live(record: TraceRecord, step: int, watched: Watched) -> None:
    """A stored rollout was in flight before, with its stages, turns and tokens."""
    key = record.metadata["extra/live"]
    stages = watched.stages(key)
    assert stages[-1] == "done" and "tool calc" in stages[:-1], stages
    assert watched.last(key, "step") == step and watched.last(key, "turns") == 2
    assert watched.last(key, "tokens") == int(read_transcript(record).tokens.response_mask.sum())


def sample(tokenizer, step: int, n_prompts: int = 2, n_samples: int = 3):
    """A `DataProto` made by verl's own code."""
    config = OmegaConf.create(
        {
            "actor_rollout_ref": {
                "rollout": {
                    "prompt_length": 400,
                    "response_length": 160,
                    "full_determinism": False,
                    "multi_turn": {
                        "max_user_turns": None,
                        "max_assistant_turns": 4,
                        "max_parallel_calls": 1,
                        "max_tool_response_length": 256,
                        "tool_response_truncate_side": "middle",
                        "format": "hermes",
                    },
                }
            },
            "data": {"apply_chat_template_kwargs": ARGUMENTS},
        }
    )

    async def run():
        worker = worker_of(config, tokenizer)
        runs, uids = [], []
        for prompt in range(n_prompts):
            uid = str(uuid.uuid4())
            for _ in range(n_samples):
                place = {"step": step, "sample_index": prompt, "rollout_n": 0, "validate": False}
                messages = [{"role": "user", "content": f"What is 6*7? v{prompt}"}]
                runs.append(
                    worker._run_agent_loop(
                        {}, place, agent_name="scored_tool_agent", raw_prompt=messages, uid=uid
                    )
                )
                uids.append(uid)
        outputs = await asyncio.gather(*runs)
        n = len(outputs)
        others = {
            "data_source": np.array(["demo"] * n, dtype=object),
            "uid": np.array(uids, dtype=object),
            "reward_model": np.array([{"style": "rule", "ground_truth": "42"}] * n, dtype=object),
            "extra_info": np.array([{"index": i // n_samples} for i in range(n)], dtype=object),
            "raw_prompt": np.array([None] * n, dtype=object),
        }
        return worker._postprocess(outputs, input_non_tensor_batch=others)

    data = asyncio.run(run())
    scores, extras = extract_reward(data)
    data.batch["token_level_scores"] = data.batch["token_level_rewards"] = scores
    return compute_advantage(data, adv_estimator="grpo", num_repeat=n_samples), extras


def build_trainer(tokenizer) -> RayPPOTrainer:
    """A real `RayPPOTrainer`, as far as its rollout logging needs one.

    As in verl, a custom chat template is the workers' alone: the trainer's own tokenizer has another.
    """
    trainer = object.__new__(RayPPOTrainer)
    trainer.tokenizer, trainer.global_steps = copy.deepcopy(tokenizer), 7
    trainer.tokenizer.chat_template = "{% for m in messages %}{{ m.content }}{% endfor %}"
    trainer.config = OmegaConf.create(
        {
            "trainer": {"project_name": "verl-demo", "experiment_name": "r1"},
            "actor_rollout_ref": {"model": {"custom_chat_template": tokenizer.chat_template}},
            "data": {"apply_chat_template_kwargs": ARGUMENTS},
        }
    )
    integration.attach(trainer, selection="all")
    trainer._rollout_traces.hook.options.update(max_rollout_traces_per_step=10_000)
    return trainer


def stored() -> list[tuple[int, TraceRecord]]:
    """(step, trace) of the training split."""
    with sqlite3.connect(FOLDER / "trackio" / "verl-demo.db") as db:
        query = "select step, messages, metadata, spans from traces where key = 'rollout/trajectories'"
        return [(s, TraceRecord(*(orjson.loads(p) for p in parts))) for s, *parts in db.execute(query)]


def main() -> None:
    """Samples, logs through verl's own call, and checks."""
    random.seed(0)
    assert getattr(RayPPOTrainer.__init__, "_rollout_traces", False), (
        "verl's plugin mechanism did not install the hook"
    )
    assert ray_trainer.extract_reward.__wrapped__ is extract_reward
    tokenizer = tiny_tokenizer("qwen2_5")
    start = time.time()
    trainer = build_trainer(tokenizer)
    assert verl_observer.run_settings_of(trainer)["chat_template_kwargs"] == ARGUMENTS
    folder = trainer.config.trainer.get("rollout_data_dir", None)
    assert folder == verl_observer.NO_DUMP
    sampled = {}
    trainer._rollout_traces.announce()
    with Watched(FOLDER / "trackio", "verl-demo") as watched:
        for step in STEPS:
            trainer.global_steps = step
            sampled[step], extras = sample(tokenizer, step, n_prompts=PROMPTS, n_samples=SAMPLES)
            trainer._log_rollout_data(sampled[step], extras, {}, folder)
        trainer._rollout_traces.hook.close()
    assert not Path(folder).exists()
    traces = stored()
    n_spans = check_spans([record for _, record in traces])
    for step, record in traces:
        check_live(record, step, watched)
    assert Counter(step for step, _ in traces) == dict.fromkeys(STEPS, PROMPTS * SAMPLES)
    groups: dict[str, set] = {}
    for step, record in traces:
        check_row(sampled[step], step, record)
        row = int(record.metadata["uid"].split("-")[1])
        groups.setdefault(sampled[step].non_tensor_batch["uid"][row], set()).add(
            (step, record.metadata["group"])
        )
    assert all(len(group) == 1 for group in groups.values())
    assert len({group for [group] in groups.values()}) == len(groups) == PROMPTS * len(STEPS)
    print(
        f"verl: {len(traces)} of {len(traces)} rows equal in tokens, masks, rewards, groups, versions and step; "
        f"roles and calls right; {n_spans} spans around the server's and the tool's own times, {len(watched.lines)} rollouts "
        f"seen in flight; {time.time() - start:.1f} s"
    )
    report("verl, RayPPOTrainer", "verl", "verl", rows=len(traces), equal=len(traces))


def check_row(data, step: int, record: TraceRecord) -> None:
    """A trace equals its row of the `DataProto`."""
    row = int(record.metadata["uid"].split("-")[1])
    real = data.batch["attention_mask"][row].bool()
    track = read_transcript(record).tokens
    np.testing.assert_array_equal(track.input_ids, data.batch["input_ids"][row][real].numpy())
    n_response = int(data.batch["attention_mask"][row, 400:].sum())
    mask = data.batch["response_mask"][row][:n_response].bool().numpy()
    np.testing.assert_array_equal(track.response_mask[-n_response:], mask)
    assert not track.response_mask[:-n_response].any()
    for theirs, ours in (("rollout_log_probs", "logprobs"), ("advantages", "advantages")):
        given = data.batch[theirs][row][:n_response].numpy()[mask]
        np.testing.assert_allclose(track.tracks[ours][-n_response:][mask], given, atol=2e-3)
    assert record.metadata["reward"] == data.batch["token_level_scores"][row].sum().item()
    assert record.metadata["version_min"] == record.metadata["version_max"] == 6
    assert record.metadata["train_version"] == step - 1
    assert record.metadata["ground_truth"] == "42"
    roles = [message["role"] for message in record.messages]
    assert roles == ["system", "user", "assistant", "tool", "assistant"], roles
    assert record.messages[2]["tool_calls"][0]["function"]["name"] == "calc"
    assert record.messages[3]["content"] == "42"


if __name__ == "__main__":
    main()
