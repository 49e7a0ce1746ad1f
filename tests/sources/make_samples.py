"""Writes `tests/sources/samples`: small dumps made by the trainers' own code.

    python -m tests.sources.make_samples OUT --code nemo=... slime=... open-instruct=... rllm=... prime-rl=...
        prime-rl-stream=... nemo-gym=...

Needs an environment with verifiers 0.4.0, verl 0.9.1, areal 1.0.4, skyrl 0.3.0, inspect_ai 0.3.285, inspect_scout 0.6.1,
tinker-cookbook 0.6.1, atroposlib 0.4.0, atif 1.8.0 and torch, and one with verifiers 0.1.14 for `--only verifiers-results`; `--code` names checkouts of the trainers that no index has. A writer that is a
method of a class which needs a cluster is taken out of its source file by name and called on a small stand-in
for `self`: the lines that write are the trainer's own.
"""

from __future__ import annotations

import argparse
import ast
import asyncio
import dataclasses
import http.server
import importlib.util
import json
import os
import shutil
import sqlite3
import sys
import tempfile
import threading
import types
from enum import Enum
from pathlib import Path
from typing import Any

ROWS = [
    ("What is 2 + 3?", "It is 5.", 1.0),
    ("What is 2 + 3?", "It is 6.", 0.0),
    ("What is 4 * 7?", "28", 1.0),
    ("What is 4 * 7?", "I think 28.", 1.0),
]


def package_file(package: str, path: str) -> Path:
    """A file of an installed package, which is not imported."""
    spec = importlib.util.find_spec(package)
    assert spec is not None and spec.submodule_search_locations
    return Path(spec.submodule_search_locations[0]) / path


def taken(path: Path, *names: str, **known: Any) -> types.SimpleNamespace:
    """Functions, methods and classes of a source file, by name, with nothing else of it run."""
    wanted = [
        node
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)) and node.name in names
    ]
    found: dict[str, Any] = {
        "json": json,
        "os": os,
        "Path": Path,
        "Any": Any,
        "asdict": dataclasses.asdict,
    } | known
    for node in wanted:
        module = ast.Module([ast.ImportFrom("__future__", [ast.alias("annotations")], 0), node], [])
        exec(compile(ast.fix_missing_locations(module), str(path), "exec"), found)
    return types.SimpleNamespace(**{name: found[name] for name in names})


def verl(out: Path) -> None:
    writer = taken(package_file("verl", "trainer/ppo/ray_trainer.py"), "_write_generations")
    for step in (1, 2):
        for folder, extra in (
            ("rollout_data", {"uid": ["a_0_0", "a_1_0", "b_0_0", "b_1_0"]}),
            ("validation_data", {}),
        ):
            writer._write_generations(
                [f"user\n{q}\nassistant\n" for q, _, _ in ROWS],
                [a for _, a, _ in ROWS],
                ["5", "5", "28", "28"],
                [r for *_, r in ROWS],
                {"acc": [r > 0 for *_, r in ROWS], "format": [1.0, 1.0, 0.0, 1.0], **extra},
                str(out / folder),
                step,
            )


class Characters:
    """A tokenizer of one token a character, with two special tokens."""

    SPECIAL = {0: "<|im_start|>", 1: "<|im_end|>"}

    def encode(self, text: str) -> list[int]:
        ids = []
        while text:
            special = next((i for i, t in self.SPECIAL.items() if text.startswith(t)), None)
            ids.append(ord(text[0]) if special is None else special)
            text = text[1 if special is None else len(self.SPECIAL[special]) :]
        return ids

    def decode(self, ids: Any, **_: Any) -> str:
        return "".join(self.SPECIAL.get(int(i), chr(int(i))) for i in ids)


def turns(question: str, answer: str) -> tuple[str, str]:
    return f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n", f"{answer}<|im_end|>"


def areal(out: Path) -> None:
    import torch

    class File:
        def __init__(self, path: str, mode: str) -> None:
            self.file = open(path, mode)  # noqa: SIM115, PTH123

        async def __aenter__(self) -> File:
            return self

        async def __aexit__(self, *_: object) -> None:
            self.file.close()

        async def write(self, text: str) -> None:
            self.file.write(text)

    async def makedirs(path: str, exist_ok: bool) -> None:
        Path(path).mkdir(parents=True, exist_ok=exist_ok)

    aiofiles = types.SimpleNamespace(open=File, os=types.SimpleNamespace(makedirs=makedirs))
    handles = types.SimpleNamespace(localize=lambda traj: traj)
    writer = taken(
        package_file("areal", "infra/workflow_executor.py"),
        "_dump_trajectory",
        RTensor=handles,
        aiofiles=aiofiles,
    )
    tokenizer = Characters()
    for task, rows in enumerate((ROWS[:2], ROWS[2:])):
        texts = [tuple(map(tokenizer.encode, turns(q, a))) for q, a, _ in rows]
        n = max(len(p) + len(r) for p, r in texts)
        tensor = {
            k: torch.zeros(len(rows), n, dtype=torch.long)
            for k in ("input_ids", "loss_mask", "attention_mask", "versions")
        }
        for b, (p, r) in enumerate(texts):
            tensor["input_ids"][b, : len(p + r)] = torch.tensor(p + r)
            tensor["loss_mask"][b, len(p) : len(p + r)] = 1
            tensor["attention_mask"][b, : len(p + r)] = 1
            tensor["versions"][b] = torch.tensor([-1] * len(p) + [3] * len(r) + [0] * (n - len(p + r)))
        self = types.SimpleNamespace(
            _get_dump_dir=lambda is_eval: str(out / ("eval-rollout" if is_eval else "rollout")),
            _get_tokenizer=lambda: tokenizer,
        )
        asyncio.run(
            writer._dump_trajectory(
                self, tensor | {"rewards": torch.tensor([r for *_, r in rows])}, task, False
            )
        )


def skyrl(out: Path) -> None:
    import logging

    writer = taken(
        package_file("skyrl", "train/utils/trainer_utils.py"),
        "dump_per_dataset_eval_results",
        "sanitize_data_source",
        logger=logging.getLogger(),
        AutoTokenizer=None,
        GeneratorOutput=None,
        List=list,
        Dict=dict,
    )
    tokenizer = Characters()
    texts = [turns(q, a) for q, a, _ in ROWS]
    folder = out / "dumped_evals" / "global_step_10_evals"
    folder.mkdir(parents=True)
    writer.dump_per_dataset_eval_results(
        folder,
        tokenizer,
        {
            "prompt_token_ids": [tokenizer.encode(p) for p, _ in texts],
            "response_ids": [tokenizer.encode(r) for _, r in texts],
            "rewards": [
                [0.0] * (len(r) - 1) + [reward] for (_, r), (*_, reward) in zip(texts, ROWS, strict=True)
            ],
            "stop_reasons": ["stop", "stop", "length", "stop"],
        },
        ["gsm8k", "gsm8k", "math/hard", "math/hard"],
        ["gsm8k"] * 4,
        [{"reward_spec": {"method": "rule", "ground_truth": "5"}, "max_turns": 3}] * 4,
        {"eval/all/avg_score": 0.75},
    )


def alone(package: str, path: str) -> types.ModuleType:
    """A module of an installed package under its own name, the packages above it not run."""
    name = f"{package}.{path.removesuffix('.py').replace('/', '.')}"
    spec = importlib.util.spec_from_file_location(name, package_file(package, path))
    assert spec is not None and spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def skyrl_training(out: Path) -> None:
    """A step's training input as SkyRL's trainer makes, completes and dumps it, padded to a multiple of three."""
    import torch

    writer = taken(package_file("skyrl", "train/trainer.py"), "dump_data", TrainingInputBatch=None)
    batches = alone("skyrl", "backends/skyrl_train/training_batch.py")
    preprocess = alone("skyrl", "train/dataset/preprocess.py")
    prompts, responses = [[5, 6], [5, 6], [4, 5, 6]], [[7, 8, 2], [7, 2], [9, 9, 9, 2]]
    masks = [[1, 0, 1], [1, 1], [1, 1, 1, 1]]
    logprobs = [[-0.5, -0.25, -1.0], [-0.125, -2.0], [-0.5, -0.75, -3.0, -0.0625]]
    made = preprocess.convert_prompts_responses_to_batch_tensors(
        types.SimpleNamespace(pad_token_id=0),
        prompts,
        responses,
        [[0.0] * len(r) for r in responses],
        masks,
        logprobs,
    )
    sequences, attention, response, rewards, loss, rollout_logprobs, _ = made
    batch = batches.TrainingInputBatch(
        {
            "sequences": sequences,
            "attention_mask": attention,
            "response_mask": response,
            "rewards": rewards,
            "loss_mask": loss,
            "rollout_logprobs": rollout_logprobs,
            "rollout_expert_indices": None,
        }
    )
    uids = ["a", "a", "b"]
    batch.metadata = {"uids": uids, "policy_prompt_boundaries": preprocess.compute_prompt_boundaries(uids)}
    batch = batches.pad_training_input_batch(batch, 1)
    # What the trainer computes with its models before it dumps: exact in bfloat16, which these have on a GPU.
    batch["action_log_probs"] = (batch["rollout_logprobs"] - 0.25).to(torch.bfloat16)
    batch["advantages"] = batch["response_mask"] * 0.5
    batch.pop("rewards")
    batch.metadata.pop("uids")
    config = types.SimpleNamespace(trainer=types.SimpleNamespace(export_path=str(out)))
    writer.dump_data(types.SimpleNamespace(cfg=config), batch, file_name="global_step_12_training_input")


def atif(out: Path) -> None:
    """An agent's trajectory with a sub-agent's inside, by the models of the package atif; Harbor's result beside it."""
    import atif as models

    def call(prompt: list[int], completion: list[int]) -> models.Metrics:
        logprobs = [-0.25 * (n + 1) for n in range(len(completion))]
        return models.Metrics(prompt_token_ids=prompt, completion_token_ids=completion, logprobs=logprobs)

    tool = models.ToolCall(tool_call_id="c1", function_name="add", arguments={"a": 2, "b": 3})
    result = models.ObservationResult(source_call_id="c1", content="5")
    steps = [
        models.Step(step_id=1, source="user", message="What is 2 + 3?"),
        models.Step(
            step_id=2,
            source="agent",
            message="",
            reasoning_content="Use the tool.",
            tool_calls=[tool],
            observation=models.Observation(results=[result]),
            metrics=call([1, 2], [3, 4]),
        ),
        models.Step(step_id=3, source="agent", message="It is 5.", metrics=call([1, 2, 3, 4, 5], [6, 7, 8])),
    ]
    helper = models.Trajectory(
        schema_version="ATIF-v1.8",
        session_id="s1",
        trajectory_id="t2",
        agent=models.Agent(name="adder", version="1"),
        steps=[
            models.Step(step_id=1, source="user", message="Add 2 and 3."),
            models.Step(step_id=2, source="agent", message="5"),
        ],
    )
    trajectory = models.Trajectory(
        schema_version="ATIF-v1.8",
        session_id="s1",
        trajectory_id="t1",
        agent=models.Agent(name="solver", version="1", model_name="m"),
        steps=steps,
        final_metrics=models.FinalMetrics(total_steps=3),
        subagent_trajectories=[helper],
    )
    folder = out / "trial-1/agent"
    folder.mkdir(parents=True)
    (folder / "trajectory.json").write_text(trajectory.model_dump_json(exclude_none=True))
    verdict = {"task_name": "sums", "verifier_result": {"rewards": {"reward": 1.0}}}
    (folder.parent / "result.json").write_text(json.dumps(verdict))


def verifiers_results(out: Path) -> None:
    """An evaluation by verifiers 0.1.14, in an environment of its own, with an engine on this machine."""
    import verifiers as vf
    from datasets import Dataset

    answers = iter([a for _, a, _ in ROWS])

    class Engine(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            message = {"role": "assistant", "content": next(answers)}
            choice = {"index": 0, "finish_reason": "stop", "message": message}
            usage = {"prompt_tokens": 4, "completion_tokens": 3, "total_tokens": 7}
            said = {
                "id": "c",
                "object": "chat.completion",
                "created": 0,
                "model": "m",
                "choices": [choice],
                "usage": usage,
            }
            body = json.dumps(said).encode()
            self.send_response(200)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    def exact(completion: list, answer: str, **_: Any) -> float:
        return float(answer in completion[-1]["content"])

    def brief(completion: list, **_: Any) -> float:
        return 1 / (1 + len(completion[-1]["content"]))

    asked = [
        {"question": ROWS[0][0], "answer": "5", "info": {"level": "easy"}},
        {"question": ROWS[2][0], "answer": "28", "info": {"level": "hard"}},
    ]
    data = Dataset.from_list(asked)
    rubric = vf.Rubric(funcs=[exact, brief], weights=[1.0, 0.5])
    environment = vf.SingleTurnEnv(dataset=data, eval_dataset=data, rubric=rubric)
    os.environ["ENGINE_KEY"] = "none"
    with http.server.HTTPServer(("127.0.0.1", 0), Engine) as engine:
        threading.Thread(target=engine.serve_forever, daemon=True).start()
        client = vf.ClientConfig(
            api_base_url=f"http://127.0.0.1:{engine.server_port}/v1", api_key_var="ENGINE_KEY"
        )
        counts = {"num_examples": 2, "rollouts_per_example": 2, "max_concurrent": 1}
        asyncio.run(environment.evaluate(client, "m", save_results=True, results_path=out, **counts))
        engine.shutdown()


def nemo_rl(out: Path, code: Path) -> None:
    import numpy as np
    import torch

    class Batch(dict):
        """The one method of NeMo-RL's BatchedDataDict that its writer calls."""

        def make_microbatch_iterator(self, n: int) -> Any:
            size = len(next(iter(self.values())))
            return ({k: v[i : i + n] for k, v in self.items()} for i in range(0, size, n))

    writer = taken(
        code / "nemo_rl/utils/logger.py",
        "log_batched_dict_as_jsonl",
        BatchedDataDict=Batch,
        torch=torch,
        np=np,
    )
    self = types.SimpleNamespace(base_log_dir=str(out))
    ids = [[1, 2, 3, 4, 5, 0], [1, 2, 3, 6, 7, 8]]
    train = {
        "content": [["What is 2 + 3?", "It is 5."], ["What is 2 + 3?", "It is 6."]],
        "rewards": [1.0, 0.0],
        "input_lengths": [5, 6],
        "token_ids": ids,
        "token_loss_mask": [[0, 0, 0, 1, 1, 0], [0, 0, 0, 1, 1, 1]],
        "sample_loss_mask": [1.0, 1.0],
        "advantages": [[0.5] * 6, [-0.5] * 6],
        "generation_logprobs": [[0, 0, 0, -0.1, -0.25, 0], [0, 0, 0, -0.5, -1.5, -0.125]],
        "prev_logprobs": [[0, 0, 0, -0.125, -0.25, 0], [0, 0, 0, -0.5, -1.25, -0.125]],
    }
    writer.log_batched_dict_as_jsonl(self, train, "train_data_step1.jsonl")
    chats = [[{"role": "user", "content": q}, {"role": "assistant", "content": a}] for q, a, _ in ROWS[:2]]
    writer.log_batched_dict_as_jsonl(self, {"content": chats, "rewards": [1.0, 0.0]}, "val_data_step1.jsonl")


def slime(out: Path, code: Path) -> None:
    import logging

    import torch

    found = taken(
        code / "slime/utils/types.py",
        "Sample",
        dataclass=dataclasses.dataclass,
        field=dataclasses.field,
        Enum=Enum,
        torch=torch,
    )
    writer = taken(
        code / "slime/observability/rollout_data_utils.py",
        "save_debug_rollout_data",
        torch=torch,
        logger=logging.getLogger(),
    )
    samples = []
    for i, (q, a, reward) in enumerate(ROWS):
        prompt, answer = turns(q, a)
        ids = Characters().encode(prompt), Characters().encode(answer)
        sample = found.Sample(
            group_index=i // 2,
            index=i,
            prompt=prompt,
            tokens=ids[0] + ids[1],
            response=answer,
            response_length=len(ids[1]),
            label="5",
            reward=reward,
            rollout_log_probs=[-0.0625 * (n % 7) for n in range(len(ids[1]))],
            weight_versions=["4"],
            metadata={"dataset": "sums"},
        )
        sample.status = found.Sample.Status.TRUNCATED if i == 3 else found.Sample.Status.COMPLETED
        if i == 1:
            sample.loss_mask = [1] * (len(ids[1]) - 1) + [0]
        samples.append(sample)
    writer.save_debug_rollout_data(
        str(out / "rollout_data/{rollout_id}.pt"), samples, rollout_id=3, evaluation=False
    )


def open_instruct(out: Path, code: Path) -> None:
    import logging
    from dataclasses import dataclass

    names = ("RolloutRecord", "_save_rollouts", "_get_request_info_for_sample")
    writer = taken(
        code / "open_instruct/rl_utils.py", *names, dataclass=dataclass, logger=logging.getLogger()
    )
    batch = types.SimpleNamespace(
        queries=[[5, 6, 7]] * 4,
        scores=[1.0, 0.0, 1.0, 1.0],
        datasets=["gsm8k"] * 4,
        ground_truths=[[9, 9]] * 4,
    )
    result = types.SimpleNamespace(
        responses=[[8, 9], [8], [8, 10, 11], [12]],
        finish_reasons=["stop", "length", "stop", "stop"],
        request_info=None,
        logprobs=[[-0.5, -0.25], [-1.0], [-0.125, -0.5, -0.0625], [-2.0]],
    )
    for step in (1, 2):
        writer._save_rollouts(str(out), "tulu", step, batch, result, [1.0, -1.0, 0.5, -0.5], 2, 0)


def rllm(out: Path, code: Path) -> None:
    import hashlib

    found = taken(code / "rllm/utils/episode_logger.py", "EpisodeLogger", hashlib=hashlib)
    logger = found.EpisodeLogger(base_dir=str(out), subdirectory="episodes")

    def step(chat: list[dict], answer: str, reward: float) -> Any:
        done = [*chat, {"role": "assistant", "content": answer}]
        return types.SimpleNamespace(
            observation=None, thought="", action=answer, reward=reward, done=True, model_response=answer,
            chat_completions=done, info={},
        )  # fmt: skip

    episodes = []
    for i, (q, a, reward) in enumerate(ROWS):
        chat = [{"role": "user", "content": q}]
        first = step(chat, a, 0.0)
        second = step([*first.chat_completions, {"role": "user", "content": "Sure?"}], "Yes.", reward)
        solver = types.SimpleNamespace(
            name="solver", uid=f"t{i}", reward=reward, info={}, steps=[first, second]
        )
        judge = types.SimpleNamespace(
            name="judge",
            uid=f"j{i}",
            reward=1.0,
            info={},
            steps=[step([{"role": "user", "content": f"Is {a!r} right?"}], "ok", 1.0)],
        )
        episodes.append(
            types.SimpleNamespace(
                id=f"task{i // 2}:{i % 2}",
                session_id="s",
                task={"question": q, "ground_truth": "5"},
                is_correct=reward > 0,
                termination_reason=None,
                metrics={"acc": reward},
                metadata={},
                info={"timing": {"total": 1.5}},
                trajectories=[solver, judge],
            )
        )
    logger.log_episodes_batch(episodes, 7, "train", 0)


def tinker(out: Path) -> None:
    from tinker_cookbook.rl.rollout_logging import serialize_rollout_summaries

    def trajectory(n: int) -> Any:
        length = types.SimpleNamespace(length=10 + n)
        moves = [
            types.SimpleNamespace(
                ob=length,
                ac=types.SimpleNamespace(tokens=[1] * (3 + n)),
                reward=0.0,
                episode_done=True,
                metrics={},
                logs={},
            )
        ]
        return types.SimpleNamespace(transitions=moves, final_ob=length)

    groups = [
        types.SimpleNamespace(
            trajectories_G=[trajectory(0), trajectory(1)],
            final_rewards_G=[1.0, 0.0],
            metrics_G=[{"correct": 1.0}, {"correct": 0.0}],
            get_total_rewards=lambda: [1.0, 0.0],
        )
    ] * 2
    for iteration in (0, 1):
        folder = out / f"iteration_{iteration:06d}"
        folder.mkdir(parents=True)
        records = serialize_rollout_summaries(
            split="train", iteration=iteration, trajectory_groups_P=groups, taglist_P=[["sums"], ["products"]],
            sampling_client_steps_P=[iteration, iteration],
        )  # fmt: skip
        lines = "".join(json.dumps(record) + "\n" for record in records)
        (folder / "train_rollout_summaries.jsonl").write_text(lines)


def episodes() -> list[Any]:
    """Four episodes of verifiers v1: one of three branches (a retry, a sub-agent), the rest of one."""
    from verifiers.v1.configs.agent import WireAgentConfig
    from verifiers.v1.episode import EnvInfo, Episode, GroupInfo, PolicySpan, TrainRunInfo, TrainWorkInfo
    from verifiers.v1.graph import MessageNode
    from verifiers.v1.task import WireTaskData
    from verifiers.v1.trace import AgentInfo, Reward, Trace, TraceTask
    from verifiers.v1.types import AssistantMessage, SystemMessage, UserMessage

    code = Characters()

    def node(message: Any, parent: int | None, shift: float = 0.0) -> Any:
        sampled = isinstance(message, AssistantMessage)
        opening = f"<|im_start|>{message.role}\n"
        head, body = code.encode(opening), code.encode(f"{message.content}<|im_end|>")
        tail = [] if sampled else code.encode("\n")
        mask = [False] * len(head) + [sampled] * len(body) + [False] * len(tail)
        logprobs = [-0.0625 * (n % 9) - shift for n in range(len(body))] if sampled else []
        return MessageNode(
            parent=parent, message=message, sampled=sampled, token_ids=head + body + tail, mask=mask, logprobs=logprobs,
            advantages=[0.5] * len(body) if sampled else None, timestamp=1.0,
        )  # fmt: skip

    found = []
    for i, (q, a, reward) in enumerate(ROWS):
        nodes = [
            node(SystemMessage(content="Be exact."), None),
            node(UserMessage(content=q), 0),
            node(AssistantMessage(content=a), 1),
        ]
        if i == 0:
            nodes += [
                node(UserMessage(content="Are you sure?"), 2),
                node(AssistantMessage(content="Yes, 5."), 3, 0.25),
                node(UserMessage(content="(summary) The sum was 5."), 0),
                node(AssistantMessage(content="Then 5."), 5, 0.5),
                node(SystemMessage(content="You check sums."), None),
                node(AssistantMessage(content="Right."), 7),
            ]
        data = WireTaskData(idx=i // 2, prompt=q)
        task = TraceTask[WireTaskData](type="Sums", data=data, key=f"sums-{i // 2}")
        trace = Trace(
            id=f"{i:032x}", task=task, agent=AgentInfo(config=WireAgentConfig()), nodes=nodes,
            rewards={"correct": Reward(score=reward), "brief": Reward(score=0.5, weight=0.0)},
            metrics={"turns": 1.0}, is_completed=True, ok=True, stop_condition="agent_completed",
        )  # fmt: skip
        found.append(
            Episode(
                id=f"e{i:031x}",
                env=EnvInfo(id="sums", name="sums"),
                task=task,
                group=GroupInfo(id=f"g{i // 2}"),
                ok=True,
                run=TrainRunInfo(id="run", work=TrainWorkInfo(step=5, policy=PolicySpan(start=4, end=5))),
                traces=[trace],
            )
        )
    return found


def prime_rl(out: Path, code: Path) -> None:
    import orjson

    monitor = taken(code / "src/prime_rl/monitors/file.py", "log_episodes", orjson=orjson, asyncio=asyncio)
    self = types.SimpleNamespace(output_dir=out)
    made = episodes()
    asyncio.run(monitor.log_episodes(self, made, 5, "train", "all"))
    asyncio.run(monitor.log_episodes(self, made[:3], 5, "train", "effective"))
    export = taken(
        code / "src/prime_rl/trainer/rl/token_export.py",
        "_write", "_export_file", "_export_dir", SCHEMA_VERSION=1,
    )  # fmt: skip
    exporter = types.SimpleNamespace(
        rank=0,
        output_dir=out / "token_exports",
        _closed=False,
        _initialized_files=set(),
        _pending_stable_dirs=set(),
    )
    exporter._export_dir = lambda step: export._export_dir(exporter, step)
    exporter._export_file = lambda step: export._export_file(exporter, step)
    record = {
        "schema_version": 1, "step": 5, "rank": 0, "micro_step": 0, "micro_sequence_idx": 0, "export_sequence_idx": 0,
        "env_name": "sums", "token_ids": [5, 6, 7, 8], "position_ids": [0, 1, 2, 3],
        "loss_mask": [False, False, True, True], "advantages": [0.0, 0.0, 0.5, 0.5],
        "inference_logprobs": [0.0, 0.0, -0.5, -0.25], "trainer_logprobs": [None, 0.0, -0.5, -0.125],
        "entropy": [0.0, 0.0, 1.5, 0.75], "mismatch_kl": [None, 0.0, 0.0, 0.0078125],
        "rl_weights": [None, None, None, None],
    }  # fmt: skip
    export._write(exporter, record, 5)


def prime_rl_stream(out: Path, code: Path) -> None:
    """A run that crashed in step 6, started again, trained 6 anew, and ended: chunks, annotations of both producers."""
    import orjson

    traces = code / "src/prime_rl/monitors/file/traces"
    sys.path.insert(0, str(traces))
    import chunks
    import update

    stamps = taken(
        code / "src/prime_rl/orchestrator/annotations.py",
        "stamp_arrival", "stamp_ship", make_update=update.make_update, time=Clock,
    )  # fmt: skip
    folder = out / "monitors/file/traces"
    writer = taken(
        code / "src/prime_rl/monitors/file/monitor.py",
        "_stream", "log_episodes", "log_annotations", "finalize", orjson=orjson, asyncio=asyncio,
        OPTS=orjson.OPT_APPEND_NEWLINE | orjson.OPT_SERIALIZE_NUMPY, ChunkedJsonl=chunks.ChunkedJsonl,
        update_index_row=update.update_index_row, get_trace_stream=lambda _: folder / "stream",
        get_annotations_dir=lambda _: folder / "annotations",
        get_index_path=lambda path: path.with_name(f"{path.name}.index.jsonl"),
        index_row=lambda line, record, chunk, offset: {
            "line": line, "offset": offset, "id": record["id"], "chunk": chunk,
        },
    )  # fmt: skip

    def monitor(producer: str) -> Any:
        config = types.SimpleNamespace(chunk_bytes=20_000, compress=True, float_decimals=None)
        self = types.SimpleNamespace(output_dir=out, producer=producer, config=config, _streams={}, _logged=0)
        self._stream = lambda directory: writer._stream(self, directory)
        return self

    def renamed(first: int) -> list[Any]:
        found = []
        for n, episode in enumerate(episodes()):
            trace = episode.traces[0]
            trace = trace.model_copy(update={"id": f"{first + n:032x}", "info": {"advantage": 0.5}})
            found.append(episode.model_copy(update={"id": f"e{first + n:031x}", "traces": [trace]}))
        return found

    orchestrator, trainer = monitor("orch"), monitor("trainer")
    for first, step in ((0, 5), (4, 6), (8, 6)):
        made = renamed(first)
        stamps.stamp_arrival(made, "train", step)
        asyncio.run(writer.log_episodes(orchestrator, made, step, "train", "all"))
        asyncio.run(writer.log_annotations(orchestrator, stamps.stamp_ship(made[:3], step)))
        path = made[1].traces[0].branches[0]
        values = [None if not sampled else -0.5 for sampled in path.sampled_mask]
        streams = {"trainer_logprobs": values, "entropies": values, "is_masked": [False] * len(values)}
        for again in (values, [None if value is None else -0.25 for value in values]):
            told = update.make_update(
                made[1].traces[0].id, branches={0: {**streams, "trainer_logprobs": again}}
            )
            asyncio.run(writer.log_annotations(trainer, [told]))
    for producer in (orchestrator, trainer):
        asyncio.run(writer.finalize(producer))


class Clock:
    """Time that goes on by a second at each look."""

    now = 1_000_000.0

    @classmethod
    def time(cls) -> float:
        cls.now += 1.0
        return cls.now


def verifiers_eval(out: Path) -> None:
    from verifiers.v1.utils.trace_store import write_episode

    out.mkdir(parents=True)
    for episode in episodes():
        write_episode(out, episode)


def inspect(out: Path) -> None:
    from inspect_ai import Epochs, Task
    from inspect_ai import eval as run
    from inspect_ai.dataset import Sample
    from inspect_ai.model import ModelOutput, ModelUsage, get_model
    from inspect_ai.scorer import match
    from inspect_ai.solver import generate

    answers = [ModelOutput.from_content("mockllm/model", a) for a in ("5", "6", "28", "28")]
    for answer in answers:
        answer.usage = ModelUsage(input_tokens=8, output_tokens=2, total_tokens=10)
    task = Task(
        dataset=[
            Sample(id="sum", input="What is 2 + 3?", target="5"),
            Sample(id="product", input="What is 4 * 7?", target="28"),
        ],
        solver=generate(),
        scorer=match(),
        epochs=Epochs(2),
        name="sums",
    )
    run(
        task,
        model=get_model("mockllm/model", custom_outputs=answers),
        log_dir=str(out),
        display="none",
        max_samples=1,
    )


def scout(out: Path) -> None:
    """Scout's database of an Inspect log, and of a transcript that thinks and calls a tool."""
    from inspect_ai.model import (
        ChatMessageAssistant,
        ChatMessageTool,
        ChatMessageUser,
        ContentReasoning,
        ContentText,
    )
    from inspect_ai.tool import ToolCall
    from inspect_scout import Transcript, transcripts_db, transcripts_from

    call = ToolCall(id="call_1", function="add", arguments={"a": 2, "b": 3})
    said = [ContentReasoning(reasoning="Two and three."), ContentText(text="Let me add.")]
    thoughtful = Transcript(
        transcript_id="by-hand",
        source_type="weave",
        task_set="sums",
        task_id="sum",
        task_repeat=1,
        agent="adder",
        score=0.75,
        success=True,
        message_count=4,
        total_tokens=40,
        total_time=1.5,
        metadata={"level": "easy"},
        messages=[
            ChatMessageUser(content="What is 2 + 3?"),
            ChatMessageAssistant(content=said, tool_calls=[call]),
            ChatMessageTool(content="5", tool_call_id="call_1", function="add"),
            ChatMessageAssistant(content="It is 5."),
        ],
    )

    async def write(logs: str) -> None:
        async with transcripts_db(str(out)) as db:
            await db.insert(transcripts_from(logs))
            await db.insert([thoughtful])

    with tempfile.TemporaryDirectory() as logs:
        inspect(Path(logs))
        asyncio.run(write(logs))
    shutil.rmtree(out / "_index")


def trl(out: Path, **settings: Any) -> list[dict[str, Any]]:
    """A real GRPO training of a tiny model: its parquet files, and the Trackio project it writes by itself.

    Args:
        out: where to.
        **settings: of `GRPOConfig`.

    Returns:
        What the trainer had in its hands: a mapping a generation batch.
    """
    os.environ["TRACKIO_DIR"] = str(out / "trackio")
    import torch
    from datasets import Dataset
    from transformers import Qwen3Config, Qwen3ForCausalLM
    from trl import GRPOConfig, GRPOTrainer

    from tests.generator import tiny_tokenizer

    tokenizer = tiny_tokenizer("qwen3")
    torch.manual_seed(0)
    size = len(tokenizer) + (-len(tokenizer)) % 8
    shape = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = Qwen3ForCausalLM(Qwen3Config(vocab_size=size, num_key_value_heads=2, head_dim=16, **shape))
    prompts = [[{"role": "user", "content": q}] for q, _, _ in ROWS[::2]]
    config = GRPOConfig(
        output_dir=str(out),
        per_device_train_batch_size=4,
        per_device_eval_batch_size=2,
        num_generations=2,
        max_completion_length=8,
        logging_steps=1,
        log_completions=True,
        num_completions_to_print=0,
        report_to="trackio",
        project="trl-run",
        run_name="r1",
        use_cpu=True,
        bf16=False,
        save_strategy="no",
        reward_weights=[1.0, 0.5],
        disable_tqdm=True,
        **{"max_steps": 2, **settings},
    )
    seen: list[dict[str, Any]] = []

    class Watched(GRPOTrainer):
        def _calculate_rewards(self, *args: Any, **kwargs: Any) -> Any:
            self.by_function = super()._calculate_rewards(*args, **kwargs)
            return self.by_function

        def _generate_and_score_completions(self, inputs: Any) -> Any:
            made = super()._generate_and_score_completions(inputs)
            n = len(inputs)
            rewards = (self.by_function * self.reward_weights).nansum(1)
            seen.append(
                {
                    "split": "rollout" if self.model.training else "eval-rollout",
                    "texts": [c[0]["content"] for c in list(self._logs["completion"])[-n:]],
                    "advantages": list(self._logs["advantages"])[-n:],
                    "rewards": rewards.tolist(),
                }
            )
            return made

    def correct(completions: list, log_extra: Any = None, **_: Any) -> list[float | None]:
        texts = [c[0]["content"] for c in completions]
        log_extra("answer", ["5"] * len(texts))
        log_extra("n_characters", [len(text) for text in texts])
        return [None if len(text) % 7 == 0 else float(len(text) % 2) for text in texts]

    def brief(completions: list, **_: Any) -> list[float]:
        return [1.0 / (1 + len(str(c))) for c in completions]

    data = Dataset.from_list([{"prompt": p, "subject": "sums"} for p in prompts])
    trainer = Watched(
        model=model,
        reward_funcs=[correct, brief],
        args=config,
        train_dataset=data,
        eval_dataset=data.select([0]),
        processing_class=tokenizer,
    )
    trainer.train()
    return seen


def trl_trackio(out: Path) -> None:
    """What a real GRPO training, with evaluations and batches trained on twice, logs to Trackio by itself."""
    with tempfile.TemporaryDirectory() as folder:
        seen = trl(Path(folder), max_steps=4, num_iterations=2, eval_strategy="steps", eval_steps=2)
        with sqlite3.connect(Path(folder) / "trackio/trl-run.db") as project:
            stored = project.execute("SELECT step, metrics FROM metrics ORDER BY id").fetchall()
            [config] = project.execute("SELECT config FROM configs").fetchone()
    logged = [(step, json.loads(metrics)) for step, metrics in stored]
    rows = [[step, values] for step, values in logged if not all(k.startswith("profiling/") for k in values)]
    weights = json.loads(config)["reward_weights"]
    out.mkdir(parents=True)
    (out / "run.json").write_text(
        json.dumps({"config": {"reward_weights": weights}, "rows": rows, "seen": seen})
    )


def tinker_capture(out: Path) -> None:
    """The capture's own wrapper around a client that answers made-up ids; its store, and its file sink."""
    from concurrent.futures import Future

    package = types.ModuleType("tinker_cookbook")  # what the package imports at its top is not needed
    package.__path__ = [str(package_file("tinker_cookbook", ""))]
    sys.modules["tinker_cookbook"] = package
    from tinker_cookbook.capture import CaptureExporter, JsonlFileSink, capture, instrument
    from tinker_cookbook.capture.store.client import wire_rows_from_sample_record
    from tinker_cookbook.capture.store.db import CaptureDB

    class Storage:
        def append(self, path: str, data: bytes) -> None:
            (out / "lines" / path).parent.mkdir(parents=True, exist_ok=True)
            with (out / "lines" / path).open("ab") as file:
                file.write(data)

    class Client:
        _sampling_session_id = "session-1"
        model_path = "tinker://run/weights/000001"

    def answer(self: Any, prompt: Any, num_samples: int, *_: Any) -> Future:
        future: Future = Future()
        n = len(prompt.to_ints())
        sequences = [
            types.SimpleNamespace(
                tokens=[n + s, 7, 1], logprobs=[-0.5, -0.25, -0.125 * (s + 1)], stop_reason="stop"
            )
            for s in range(num_samples)
        ]
        future.set_result(types.SimpleNamespace(sequences=sequences))
        return future

    exporter = CaptureExporter(JsonlFileSink(Storage()))
    instrument._exporter = exporter
    sample = instrument._make_sample_wrapper(answer)
    for iteration in (0, 1):
        for trajectory in (0, 1):
            ids = [0, 11, 12, 1]
            with capture(
                run_id="run-1",
                split="train",
                iteration=iteration,
                group_idx=0,
                traj_idx=trajectory,
                purpose="rollout",
            ):
                for turn in range(2):
                    prompt = types.SimpleNamespace(to_ints=lambda ids=tuple(ids): list(ids))
                    found = sample(Client(), prompt, 1, None).result().sequences[0]
                    ids += [*found.tokens, 0, 13 + turn, 1]
                if trajectory:  # its context was compacted: a branch of its own
                    sample(Client(), types.SimpleNamespace(to_ints=lambda: [0, 99, 1]), 1, None)
    exporter.shutdown()
    (out / "store").mkdir()
    store = CaptureDB(out / "store" / "capture.sqlite")
    records = [json.loads(line) for line in (out / "lines/capture/sample.jsonl").read_text().splitlines()]
    for record in records:
        store.ingest_wire(wire_rows_from_sample_record(record))
    store.close()
    with sqlite3.connect(out / "store" / "capture.sqlite") as file:
        file.execute("PRAGMA journal_mode=DELETE")


def atropos(out: Path) -> None:
    """A group as `BaseEnv` saves it, with what it adds by itself."""
    import logging
    import warnings
    from typing import Union

    import jsonlines

    async def nothing(*_: Any) -> None: ...

    writer = taken(
        package_file("atroposlib", "envs/base.py"), "handle_send_to_api", logger=logging.getLogger(), warnings=warnings,
        Union=Union, List=list, ScoredDataGroup=dict, Item=object,
    )  # fmt: skip
    out.mkdir(parents=True)
    config = types.SimpleNamespace(
        group_size=2, ensure_scores_are_not_same=False, include_messages=False, data_path_to_save_groups=out
    )
    with jsonlines.open(out / "groups.jsonl", "w") as lines:
        environment = types.SimpleNamespace(
            config=config,
            completion_lengths=[],
            max_token_len=100,
            add_rollouts_for_wandb=nothing,
            jsonl_writer=lines,
        )
        for rows in (ROWS[:2], ROWS[2:]):
            parts = [tuple(Characters().encode(text) for text in turns(q, a)) for q, a, _ in rows]
            group = {
                "tokens": [p + r for p, r in parts],
                "masks": [[-100] * len(p) + r for p, r in parts],
                "scores": [reward for *_, reward in rows],
                "inference_logprobs": [[1.0] * len(p) + [-0.5] * len(r) for p, r in parts],
                "advantages": None,
                "messages": [
                    [{"role": "user", "content": q}, {"role": "assistant", "content": a}] for q, a, _ in rows
                ],
                "group_overrides": {},
            }
            asyncio.run(writer.handle_send_to_api(environment, group, do_send_to_api=False))


def nemo_gym(out: Path, wheel: Path) -> None:
    """Rollouts that NeMo Gym collected itself and ships: the first of two tasks, one with ids and one with tools."""
    out.mkdir(parents=True)
    for task in ("competitive_coding_challenges", "workplace_assistant"):
        lines = (wheel / f"resources_servers/{task}/data/example_rollouts.jsonl").read_text().splitlines()
        (out / f"{task}_rollouts.jsonl").write_text(min(lines, key=len) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--code", nargs="*", default=[], help="NAME=PATH of a checkout")
    parser.add_argument("--only", nargs="*", default=None)
    asked = parser.parse_args()
    code = {name: Path(path) for name, _, path in (item.partition("=") for item in asked.code)}
    makers = {
        "verl": lambda out: verl(out),
        "areal": lambda out: areal(out),
        "skyrl": lambda out: skyrl(out),
        "skyrl-training": skyrl_training,
        "atif": atif,
        "verifiers-results": verifiers_results,
        "nemo-rl": lambda out: nemo_rl(out, code["nemo"]),
        "slime": lambda out: slime(out, code["slime"]),
        "open-instruct": lambda out: open_instruct(out, code["open-instruct"]),
        "rllm": lambda out: rllm(out, code["rllm"]),
        "tinker": lambda out: tinker(out),
        "prime-rl": lambda out: prime_rl(out, code["prime-rl"]),
        "prime-rl-stream": lambda out: prime_rl_stream(out, code["prime-rl-stream"]),
        "verifiers": lambda out: verifiers_eval(out),
        "inspect": lambda out: inspect(out),
        "scout": scout,
        "trl": lambda out: trl(out),
        "trl-trackio": trl_trackio,
        "tinker-capture": tinker_capture,
        "atropos": atropos,
        "nemo-gym": lambda out: nemo_gym(out, code["nemo-gym"]),
    }
    for name, make in makers.items():
        if asked.only is not None and name not in asked.only:
            continue
        shutil.rmtree(asked.out / name, ignore_errors=True)
        try:
            make(asked.out / name)
            print(name, "made")
        except Exception as error:  # noqa: BLE001  one writer that changed must not keep the others from being made
            print(name, "failed:", repr(error), file=sys.stderr)


if __name__ == "__main__":
    main()
