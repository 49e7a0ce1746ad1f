"""AReaL's real workflows, executor and `PPOTrainer.train()` with an in-process engine; compared with what was stored.

Run by `make test-trainers` in an environment of AReaL's own. Prints one line a check.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace

FOLDER = Path(tempfile.mkdtemp())
os.environ.update(
    HF_HUB_OFFLINE="1",
    WANDB_MODE="disabled",
    TOKENIZERS_PARALLELISM="false",
    TRACKIO_DIR=str(FOLDER / "trackio"),
    SWANLAB_MODE="disabled",
)
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parent))

import numpy as np  # noqa: E402
import orjson  # noqa: E402
import torch  # noqa: E402

from rollout_traces.integrations import areal as integration  # noqa: E402

integration.extend_config()

from areal.api import FinetuneSpec  # noqa: E402
from areal.api.cli_args import (  # noqa: E402
    BaseExperimentConfig,
    EvaluatorConfig,
    GenerationHyperparameters,
    TrackioConfig,
)
from areal.api.io_struct import ModelResponse  # noqa: E402
from areal.experimental.openai import ArealOpenAI  # noqa: E402
from areal.infra.rpc.rtensor import RTensor, set_backend  # noqa: E402
from areal.infra.rpc.serialization import serialize_value  # noqa: E402
from areal.trainer.rl_trainer import PPOTrainer  # noqa: E402
from areal.utils.data import concat_padded_tensors  # noqa: E402
from areal.utils.evaluator import Evaluator  # noqa: E402
from areal.utils.stats_logger import StatsLogger  # noqa: E402
from areal.workflow.multi_turn import MultiTurnWorkflow  # noqa: E402
from areal.workflow.rlvr import RLVRWorkflow  # noqa: E402
from areal_compare import compare, rows_of  # noqa: E402
from areal_parts import Actor, Engine, LocalBackend, Rollout  # noqa: E402
from areal_reward import is_right  # noqa: E402
from omegaconf import OmegaConf  # noqa: E402
from torchdata.stateful_dataloader import StatefulDataLoader  # noqa: E402

from rollout_traces.capture.host_copy import capture  # noqa: E402
from rollout_traces.decode import TranscriptDecoder  # noqa: E402
from rollout_traces.model.spans import Span  # noqa: E402
from rollout_traces.trace.conversion import read_details, read_ledger, read_transcript  # noqa: E402
from tests.generator import tiny_tokenizer  # noqa: E402
from tests.trainers.live_watch import Watched  # noqa: E402
from tests.trainers.result import report  # noqa: E402

PROMPTS, STEPS = 16, 4
"""Prompts a step, each a group of four, and steps."""


def build_trainer(tokenizer, yaml: str) -> PPOTrainer:
    """A real `PPOTrainer` around the parts above, its config read from YAML through AReaL's structured config."""
    structured = OmegaConf.merge(
        OmegaConf.structured(TrackioConfig), OmegaConf.create(yaml)["stats_logger"]["trackio"]
    )
    config = BaseExperimentConfig(experiment_name="e", trial_name="t", total_train_epochs=1)
    stats = config.stats_logger
    stats.experiment_name, stats.trial_name, stats.fileroot = "e", "t", str(FOLDER / "areal")
    stats.trackio = OmegaConf.to_object(structured)
    data = [
        {"messages": [{"role": "user", "content": f"What is 6*7? v{i}"}], "answer": "42"}
        for i in range(PROMPTS * STEPS)
    ]
    spec = FinetuneSpec(total_train_epochs=1, dataset_size=len(data), train_batch_size=PROMPTS)
    trainer = object.__new__(PPOTrainer)
    trainer.rollout, trainer.eval_rollout = (Rollout(tokenizer, FOLDER / "areal", PROMPTS) for _ in range(2))
    trainer.actor = Actor(trainer.rollout)
    trainer.critic = trainer.ref = trainer.teacher = trainer.processor = trainer.recover_info = None
    trainer.tokenizer = tokenizer
    trainer.config = SimpleNamespace(
        total_train_epochs=1,
        total_train_steps=None,
        gconfig=SimpleNamespace(n_samples=4, reward_normalization=False, drop_incomplete_group=False),
        eval_gconfig=SimpleNamespace(n_samples=2),
        dynamic_bs=False,
        actor=SimpleNamespace(
            _version="v1", weight_update_mode="disk", should_compute_prox_logp=lambda: False
        ),
        memory_profiler=None,
        teacher=None,
        rollout=SimpleNamespace(agent=None),
        stats_logger=stats,
    )
    trainer.train_dataloader = StatefulDataLoader(data, batch_size=PROMPTS, collate_fn=lambda rows: rows)
    trainer.valid_dataloader = StatefulDataLoader(data[:3], batch_size=3, collate_fn=lambda rows: rows)
    trainer.data_controller = None
    for role in ("rollout", "actor", "critic", "ref", "teacher"):
        setattr(trainer, f"_should_offload_{role}", False)
    nothing = lambda *args, **kwargs: None  # noqa: E731
    trainer.saver = SimpleNamespace(maybe_wait_for_staging=nothing, save=nothing, is_async=False)
    trainer.recover_handler = SimpleNamespace(dump=nothing)
    trainer.weight_update_meta = SimpleNamespace(with_version=lambda version: version)
    evaluator = EvaluatorConfig(
        experiment_name="e", trial_name="t", fileroot=str(FOLDER / "areal"), freq_steps=1
    )
    trainer.evaluator = Evaluator(evaluator, spec)
    trainer.stats_logger = StatsLogger(config, spec)
    return trainer


def check_loop(project: str, trainer: PPOTrainer) -> int:
    """Rows, groups, tokens, rewards, versions, logprobs, steps and joined advantages equal the trainer's own.

    Returns:
        The number of rows compared.
    """
    batches = trainer.actor.batches
    compared = compare(FOLDER / "trackio", project, batches, trainer.actor.advantages)
    for batch, made in zip(batches, trainer.actor.advantages, strict=True):
        for item, advantage in zip(batch, made, strict=True):
            trained = torch.roll(advantage["advantages"] * (advantage["loss_mask"] > 0), 1, -1)
            assert trained[item["loss_mask"] == 0].abs().max() == 0
    traces = rows_of(FOLDER / "trackio", project, "rollout/trajectories")
    retries = [r for _, r in traces if [m["role"] for m in r.messages].count("user") > 1]
    evaluated = rows_of(FOLDER / "trackio", project, "eval-rollout/trajectories")
    ledgers = [read_ledger(record) for _, record in rows_of(FOLDER / "trackio", project, "rollout/steps")]
    joined = sum(int(np.isfinite(ledger.get("advantage")).sum()) for ledger in ledgers)
    print(
        f"{project}: {compared} of {compared} rows equal in tokens, masks, versions, rewards, groups and steps; "
        f"{len(retries)} conversations with a second user turn; {len(evaluated)} evaluation traces; "
        f"{joined} ledger rows with joined advantages"
    )
    assert evaluated
    assert joined == compared
    assert all("advantage" in record.metadata for _, record in traces)
    return compared


def give_a_time(
    at: int, spans: list[Span], noted: list[tuple[float, float]], holders: dict[int, int], tried: set[int]
) -> bool:
    """Whether each of the spans up to this one can have a noted time inside it that no other has (Kuhn 1955)."""
    span = spans[at]
    # the wall clock is set right while a span is measured
    slack = 0.001 * (1 + span["end"] - span["start"])
    for i, (start, end) in enumerate(noted):
        if i in tried or start < span["start"] - slack or end > span["end"] + slack:
            continue
        tried.add(i)
        if i not in holders or give_a_time(holders[i], spans, noted, holders, tried):
            holders[i] = at
            return True
    return False


def check_followed(project: str, trainer: PPOTrainer, watched: Watched) -> None:
    """Each row was in flight before, and its spans are what the engine noted itself."""
    traces = rows_of(FOLDER / "trackio", project, "rollout/trajectories")
    sampled: list[Span] = []
    for _, record in traces:
        spans, tokens = read_details(record)["timings"], read_transcript(record).tokens
        made = [span for span in spans if span["kind"] == "generate"]
        scored = [span for span in spans if span["kind"] == "score"]
        turns = [message["role"] for message in record.messages].count("assistant")
        assert [span["turn"] for span in made] == list(range(turns)), (made, record.messages)
        assert len(scored) == turns and {span["name"] for span in scored} == {"is_right"}
        assert {span["engine"] for span in made} == {"10.0.0.1:3000"}
        key = record.metadata["extra/live"]
        assert watched.lines[key][-1]["stage"] == "done", watched.lines[key]
        assert watched.last(key, "turns") == turns
        assert watched.last(key, "tokens") == int(tokens.response_mask.sum())
        sampled += made
    noted = list(trainer.rollout.engine.times)
    holders: dict[int, int] = {}
    for at, span in enumerate(sampled):
        assert give_a_time(at, sampled, noted, holders, set()), span
    print(
        f"{project}: {len(traces)} rows were in flight before, {len(sampled)} turns timed, each around the engine's own times; "
        f"{len(watched.lines)} episodes seen in flight"
    )


def check_payload(tokenizer) -> None:
    """Resolving a batch must not make the trainer's own handles heavier."""
    ids = torch.arange(200_000, dtype=torch.int32).view(4, -1)
    ones = torch.ones_like(ids)
    item = {
        "input_ids": ids,
        "attention_mask": ones.bool(),
        "loss_mask": ones,
        "versions": ones,
        "logprobs": ones.float(),
        "rewards": torch.ones(4),
    }
    handles = RTensor.remotize([item, item], node_addr="n:1")
    size = lambda: len(orjson.dumps(serialize_value(handles)))  # noqa: E731
    before = size()
    whole = integration.batches_from(integration.resolve(handles))
    assert size() == before
    part = integration.batches_from(integration.resolve(handles, max_bytes=4_000_000))
    tokens = [int(batch.attention_mask.sum()) for batch in part]
    assert [int(batch.attention_mask.sum()) for batch in whole] == [200_000, 200_000]
    assert tokens == [200_000, 0]
    assert [batch.rewards.tolist() for batch in part] == [[1.0] * 4] * 2
    print(
        f"payload: {before} bytes on the wire before and after resolving; within 4 MB {tokens} tokens were fetched"
    )


CALL = 'Let me compute.\n<tool_call>\n{"name": "calc", "arguments": {"e": "6*7"}}\n</tool_call>'
CALCULATOR = {
    "type": "function",
    "function": {
        "name": "calc",
        "description": "evaluate",
        "parameters": {"type": "object", "properties": {"e": {"type": "string"}}},
    },
}


class ScriptedEngine(Engine):
    """Calls the tool, then answers."""

    def __init__(self, tokenizer) -> None:
        super().__init__(tokenizer)
        self.turns = iter((CALL, "The answer is 42."))

    async def agenerate(self, request):
        tokens = [
            *self.tokenizer.encode(next(self.turns), add_special_tokens=False),
            self.tokenizer.eos_token_id,
        ]
        return ModelResponse(
            input_tokens=list(request.input_ids),
            output_tokens=tokens,
            output_logprobs=[-0.5] * len(tokens),
            output_versions=[3] * len(tokens),
            stop_reason="stop",
            tokenizer=request.tokenizer,
            latency=0.1,
            ttft=0.1,
        )


async def export(tokenizer, template: str, style: str) -> dict:
    """A tool-using agent through AReaL's OpenAI-compatible client, exported as AReaL would train on it."""
    client = ArealOpenAI(
        engine=ScriptedEngine(tokenizer),
        tokenizer=tokenizer,
        tool_call_parser="qwen25",
        chat_template_type=template,
    )
    messages = [{"role": "system", "content": "Use tools."}, {"role": "user", "content": "What is 6*7?"}]
    options = {"tools": [CALCULATOR], "max_completion_tokens": 64}
    first = await client.chat.completions.create(messages=messages, **options)
    said = first.choices[0].message
    call = said.tool_calls[0].id if said.tool_calls else "call_0"
    messages = [
        *messages,
        said.model_dump(exclude_none=True),
        {"role": "tool", "content": "42", "tool_call_id": call},
    ]
    second = await client.chat.completions.create(messages=messages, **options)
    client.set_reward(second.id, 1.0)
    if style == "individual":
        client.apply_reward_discount(turn_discount=0.5)
    interactions = client.export_interactions(style=style)
    return concat_padded_tensors([item.to_tensor_dict() for item in interactions.values()])


def check_exports(tokenizer) -> None:
    """Both exports of an agent decode to the conversation it had."""
    wanted = ["system", "user", "assistant", "tool", "assistant"]
    for template, style in (("hf", "individual"), ("concat", "concat")):
        trajectory = asyncio.run(export(tokenizer, template, style))
        host = capture(integration.batches_from([trajectory]), step=0, split="rollout")
        transcripts = TranscriptDecoder(tokenizer).decode_batch(host, range(host.n_rows))
        longest = max(transcripts, key=lambda transcript: len(transcript.turns))
        roles = [turn.role for turn in longest.turns]
        sampled = [turn.n_sampled > 0 for turn in longest.turns if turn.role == "assistant"]
        calls = [call.name for turn in longest.turns for call in turn.tool_calls]
        assert roles == wanted, roles
        assert calls == ["calc"], calls
        assert sampled == ([False, True] if style == "individual" else [True, True]), sampled
        rewards = host.row_floats["rewards"].tolist()
        print(f"export {style}: {host.n_rows} rows, rewards {rewards}, roles {', '.join(roles)}")


def train(project: str, workflow, eval_workflow, **options) -> PPOTrainer:
    """The steps of `PPOTrainer.train()` with the hook attached."""
    yaml = (
        "stats_logger:\n  trackio:\n    mode: local\n"
        f"    project: {project}\n    max_rollout_traces_per_step: 64\n    selection: all\n"
        "    chat_template_kwargs:\n      enable_thinking: false\n"
    )
    trainer = build_trainer(tiny_tokenizer("qwen2_5"), yaml)
    assert trainer.config.stats_logger.trackio.max_rollout_traces_per_step == 64
    integration.attach(trainer, **options)
    assert trainer._rollout_traces.hook.options["chat_template_kwargs"] == {"enable_thinking": False}
    start = time.time()
    trainer.train(workflow=workflow, eval_workflow=eval_workflow)
    trainer.stats_logger.close()
    print(f"{project}: {trainer.actor.commits} steps in {time.time() - start:.1f} s")
    trainer.rollout.executor.destroy()
    trainer.eval_rollout.executor.destroy()
    return trainer


def main() -> None:
    """Trains with two of AReaL's workflows and checks each."""
    random.seed(0)
    set_backend(LocalBackend())
    tokenizer = tiny_tokenizer("qwen2_5")
    sampling = GenerationHyperparameters(n_samples=4, max_new_tokens=64, max_tokens=4096)
    single = RLVRWorkflow(is_right, sampling, tokenizer)
    many = MultiTurnWorkflow(is_right, sampling, tokenizer, max_turns=3, turn_discount=0.9)
    check_payload(tokenizer)
    check_exports(tokenizer)
    rows = 0
    for project, workflow in {"areal-multi-turn": many, "areal-rlvr": single}.items():
        with Watched(FOLDER / "trackio", project) as watched:
            trainer = train(project, workflow, workflow, join_advantages=True)
        rows += check_loop(project, trainer)
        check_followed(project, trainer, watched)
    report("AReaL", "areal", "areal", rows=rows, equal=rows)


if __name__ == "__main__":
    main()
