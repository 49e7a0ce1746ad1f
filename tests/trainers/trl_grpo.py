"""A real TRL GRPO training of a tiny model, with and without tools; compared with what was stored.

Run by `make test-trainers` in an environment of TRL's own. Prints one line a check.
"""

from __future__ import annotations

import copy
import functools
import os
import re
import sqlite3
import sys
import tempfile
import time
from pathlib import Path

os.environ.update(HF_HUB_OFFLINE="1", TRL_EXPERIMENTAL_SILENCE="1", TOKENIZERS_PARALLELISM="false")
FOLDER = Path(os.environ.get("ROLLOUT_TRACES_TEST_FOLDER") or tempfile.mkdtemp())
os.environ["TRACKIO_DIR"] = str(FOLDER / "trackio")
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import orjson  # noqa: E402
import torch  # noqa: E402
from datasets import Dataset, concatenate_datasets  # noqa: E402
from transformers import Qwen3Config, Qwen3ForCausalLM  # noqa: E402
from transformers.utils import get_json_schema  # noqa: E402
from trl import GRPOConfig, GRPOTrainer, RLOOConfig, RLOOTrainer  # noqa: E402

from rollout_traces.decode import TranscriptDecoder  # noqa: E402
from rollout_traces.integrations import trl as integration  # noqa: E402
from rollout_traces.trace.conversion import TraceRecord, read_details, read_transcript  # noqa: E402
from tests.generator import tiny_tokenizer  # noqa: E402
from tests.trainers.live_watch import Watched  # noqa: E402
from tests.trainers.result import report  # noqa: E402

ROWS = 16
"""Rollouts a step."""


def multiply(a: int, b: int) -> int:
    """Multiply two integers.

    Args:
        a: first factor
        b: second factor

    Returns:
        the product
    """
    return a * b


def tiny_model(tokenizer) -> Qwen3ForCausalLM:
    """Random weights, about half a million parameters."""
    torch.manual_seed(0)
    vocabulary = len(tokenizer) + (-len(tokenizer)) % 8
    return Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=vocabulary,
            hidden_size=128,
            intermediate_size=256,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=4,
            head_dim=32,
            max_position_embeddings=2048,
            pad_token_id=tokenizer.pad_token_id,
            eos_token_id=tokenizer.eos_token_id,
            bos_token_id=None,
        )
    )


OWN_TEMPLATE = """\
{%- set open = "### " if plain else "<|im_start|>" -%}
{%- for message in messages -%}
{{ open + message.role + "\\n" + message.content + "<|im_end|>\\n" }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ open + "assistant\\n" }}{%- endif -%}"""
"""A template whose markers hang on an argument."""


def teach(model, tokenizer, template, tools: list, arguments: dict) -> None:
    """A short supervised phase, so that the policy answers, or really calls the tool."""
    rows = []
    for i in range(2, 6):
        question = [{"role": "user", "content": f"What is {i}*{i + 1}?"}]
        call = {"type": "function", "function": {"name": "multiply", "arguments": {"a": i, "b": i + 1}}}
        used = [
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "name": "multiply", "content": str(i * (i + 1))},
        ]
        answer = {"role": "assistant", "content": f"The answer is {i * (i + 1)}."}
        whole = [*question, *(used if tools else []), answer]
        schemas = [get_json_schema(tool) for tool in tools] or None
        options = {"tools": schemas, "return_dict": False, "chat_template": template, **arguments}
        prompt = tokenizer.apply_chat_template(question, add_generation_prompt=True, **options)
        rows.append((tokenizer.apply_chat_template(whole, **options), len(prompt)))
    width = max(len(ids) for ids, _ in rows)
    ids_B_T = torch.full((len(rows), width), tokenizer.pad_token_id)
    labels_B_T = torch.full((len(rows), width), -100)
    for row, (ids, n_prompt) in enumerate(rows):
        ids_B_T[row, : len(ids)] = torch.tensor(ids)
        labels_B_T[row, n_prompt : len(ids)] = torch.tensor(ids[n_prompt:])
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
    for _ in range(400):
        loss = model(input_ids=ids_B_T, labels=labels_B_T).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if loss.item() < 0.02:
            break


def _training_template(tokenizer) -> str | None:
    """The template that TRL prompts with, where it is another than the tokenizer's; an older TRL has none."""
    try:
        from trl.chat_template_utils import get_training_chat_template, is_chat_template_prefix_preserving
    except ImportError:
        return None
    return None if is_chat_template_prefix_preserving(tokenizer) else get_training_chat_template(tokenizer)


def train(
    project: str,
    *,
    tools: list,
    steps: int = 4,
    cap: int = ROWS,
    selection: str = "all",
    own_template: str | None = None,
    classes: tuple[type, type] = (GRPOTrainer, GRPOConfig),
    **options,
) -> GRPOTrainer:
    """Trains for a few steps with the hook attached; the trainer's own records are kept on it."""
    tokenizer = copy.deepcopy(tiny_tokenizer("qwen3"))
    tokenizer.chat_template = own_template or tokenizer.chat_template
    model = tiny_model(tokenizer)
    template = _training_template(tokenizer)
    teach(model, tokenizer, template, tools, options.get("chat_template_kwargs", {}))
    data = Dataset.from_list(
        [
            {"prompt": [{"role": "user", "content": f"What is {i}*{i + 1}?"}], "answer": str(i * (i + 1))}
            for i in range(2, 6)
        ]
    )

    def correct(completions, answer, log_extra=None, **_):
        if log_extra is not None:  # an older TRL has none
            log_extra("n_words", [len(str(c[-1].get("content", "")).split()) for c in completions])
        return [float(a in str(c[-1].get("content", ""))) for c, a in zip(completions, answer, strict=True)]

    def short(completions, **_):
        return [1.0 / (1 + len(str(c[-1].get("content", "")))) for c in completions]

    if options.pop("twins", False):
        short.__name__ = "correct"
    given: list[list[float]] = []
    times: list[tuple[float, float]] = []

    def recorded(function):
        @functools.wraps(function)
        def wrapped(*args, **kwargs):
            start = time.time()
            values = function(*args, **kwargs)
            given.append(values)
            times.append((start, time.time()))
            return values

        return wrapped

    evaluated = options.pop("evaluated", 0)
    environment = options.pop("environment", None)
    functions = [recorded(correct), recorded(short)]
    config = classes[1](
        output_dir=str(FOLDER / "out"),
        per_device_train_batch_size=options.pop("rows", ROWS),
        num_generations=options.pop("group_size", 4),
        max_completion_length=options.pop("max_completion_length", 120),
        max_steps=steps,
        logging_steps=1,
        report_to="trackio",
        trackio_space_id=None,
        num_completions_to_print=0,
        project=project,
        run_name="r1",
        use_cpu=True,
        bf16=False,
        save_strategy="no",
        learning_rate=1e-5,
        temperature=0.7,
        disable_tqdm=True,
        seed=1,
        **({} if environment else {"reward_weights": [1.0, 0.5]}),
        **({"max_tool_calling_iterations": 3} if tools else {}),
        **options,
    )
    trainer = classes[0](
        model=model,
        reward_funcs=functions,
        args=config,
        train_dataset=data,
        eval_dataset=concatenate_datasets([data] * evaluated) if evaluated else None,
        processing_class=tokenizer,
        **({"environment_factory": environment} if environment else {"tools": tools} if tools else {}),
    )
    integration.attach(trainer, max_rollout_traces_per_step=cap, selection=selection)
    trainer.seen, trainer.evaluated = [], []
    inner = trainer._generate_and_score_completions

    def keep(inputs):
        given.clear()
        times.clear()
        output = inner(inputs)
        n, rank = len(inputs), trainer.accelerator.process_index
        first = n * (rank - trainer.accelerator.num_processes)
        mine = slice(first, first + n or None)
        right, short = given
        (trainer.seen if trainer.model.training else trainer.evaluated).append(
            {
                "times": list(times),
                "completion": list(trainer._logs["completion"])[mine],
                "rewards": {"correct": right, "short": short},
                "advantages": output["advantages"].tolist(),
                "masks": _masks(output),
                "ids": [
                    [*prompt[prompt_mask.bool()].tolist(), *completion[mask.bool()].tolist()]
                    for prompt, prompt_mask, completion, mask in zip(
                        output["prompt_ids"],
                        output["prompt_mask"],
                        output["completion_ids"],
                        output["completion_mask"],
                        strict=True,
                    )
                ],
                "groups": [(rank * n + row) // trainer.num_generations for row in range(n)],
                "global_step": trainer.state.global_step,
            }
        )
        return output

    trainer._generate_and_score_completions = keep
    trainer.train()
    return trainer


def _masks(output: dict) -> list[list[int]]:
    """Each row's loss mask over its real completion tokens, as TRL has it."""
    trained = output["completion_mask"]
    if "tool_mask" in output:
        trained = trained * output["tool_mask"]
    return [row[mask.bool()].tolist() for row, mask in zip(trained, output["completion_mask"], strict=True)]


def stored(project: str, split: str = "rollout") -> dict[int, list[TraceRecord]]:
    """Step -> its traces, by row."""
    by_step: dict[int, list[TraceRecord]] = {}
    with sqlite3.connect(FOLDER / "trackio" / f"{project}.db") as db:
        query = "select step, messages, metadata, spans from traces where key = ?"
        for step, *parts in db.execute(query, (f"{split}/trajectories",)):
            by_step.setdefault(step, []).append(TraceRecord(*(orjson.loads(part) for part in parts)))
    for records in by_step.values():
        records.sort(key=lambda record: int(record.metadata["uid"].split("-")[1]))
    return by_step


def metric_steps(project: str, key: str = "train/reward") -> list[int]:
    """Steps at which TRL logged a scalar."""
    with sqlite3.connect(FOLDER / "trackio" / f"{project}.db") as db:
        rows = db.execute("select step, metrics from metrics").fetchall()
    return sorted({step for step, values in rows if key in orjson.loads(values)})


def shape(messages: list[dict]) -> list[tuple]:
    """Role, content and calls of messages, for comparison; TRL keeps thinking inside the content."""
    return [
        (
            message["role"],
            (message.get("content") or "").split("</think>")[-1].strip(),
            [
                (call["function"]["name"], _arguments(call["function"]["arguments"]))
                for call in message.get("tool_calls") or []
            ],
        )
        for message in messages
    ]


def _arguments(value):
    return orjson.loads(value) if isinstance(value, str) else value


def decoded_from_tokens(trainer: GRPOTrainer, record: TraceRecord):
    """The stored tokens decoded again without TRL's structured messages, so that these can judge."""
    tokens = read_transcript(record).tokens
    kwargs = getattr(trainer, "chat_template_kwargs", None)  # an older TRL has none
    decoder = TranscriptDecoder(trainer.processing_class, chat_template_kwargs=kwargs)
    return decoder.decode(tokens.input_ids, loss_mask=tokens.loss_mask, response_mask=tokens.response_mask)


def bodies(trainer: GRPOTrainer, record: TraceRecord, role: str) -> list[str]:
    """What stands between the markers of a role's turns, as the run's own decoder found them."""
    transcript = read_transcript(record)
    turns = [turn for turn in transcript.turns if turn.role == role]
    ids = transcript.tokens.input_ids.tolist()
    return [trainer.processing_class.decode(ids[turn.body_start : turn.body_stop]).strip() for turn in turns]


def check(project: str, trainer: GRPOTrainer) -> int:
    """Rows, ids, masks, groups, rewards, advantages, steps and conversations equal the trainer's own.

    Returns:
        The number of rows compared.
    """
    by_step = stored(project)
    assert sorted(by_step) == [seen["global_step"] + 1 for seen in trainer.seen], sorted(by_step)
    assert metric_steps(project) == sorted(by_step), (metric_steps(project), sorted(by_step))
    conversations = equal = malformed = 0
    for seen in trainer.seen:
        records = by_step[seen["global_step"] + 1]
        assert len(records) == len(seen["completion"]) == ROWS
        for row, record in enumerate(records):
            meta = record.metadata
            weighted = seen["rewards"]["correct"][row] + 0.5 * seen["rewards"]["short"][row]
            assert abs(meta["reward"] - weighted) < 1e-6
            assert abs(meta["component/correct"] - seen["rewards"]["correct"][row]) < 1e-6
            other = "component/correct_2" if "component/correct_2" in meta else "component/short"
            assert abs(meta[other] - seen["rewards"]["short"][row]) < 1e-6
            assert abs(meta["advantage"] - seen["advantages"][row]) < 1e-3
            assert meta["group"] == row // 4
            assert meta["version_min"] == meta["version_max"] == seen["global_step"]
            check_spans(record, seen)
            tokens, n_masked = read_transcript(record).tokens, len(seen["masks"][row])
            if n_masked:  # TRL hides a truncated completion that it masks
                assert tokens.input_ids.tolist() == seen["ids"][row]
                assert tokens.loss_mask.astype(int).tolist()[-n_masked:] == seen["masks"][row]
                assert not tokens.loss_mask[:-n_masked].any()
            else:
                assert not tokens.loss_mask.any()
            if isinstance(seen["completion"][row], str):
                continue  # an older TRL keeps texts: there is no structure to compare with
            transcript = decoded_from_tokens(trainer, record)
            if any(not call.parsed for turn in transcript.turns for call in turn.tool_calls):
                malformed += 1
                continue
            questions = bodies(trainer, record, "user")
            assert [re.fullmatch(r"What is \d\*\d\?", text) is not None for text in questions] == [True], (
                questions
            )
            decoded = [m for m in transcript.messages() if m["role"] in ("assistant", "tool")]
            conversations += 1
            same = shape(decoded) == shape(seen["completion"][row])
            equal += same
            if not same:
                print("differs:", shape(decoded), shape(seen["completion"][row]), sep="\n  ")
    print(
        f"{project}: {equal} of {conversations} conversations decoded from tokens equal TRL's structured "
        f"completions; {malformed} with a malformed call left out"
    )
    assert equal == conversations
    return sum(len(records) for records in by_step.values())


def check_spans(record: TraceRecord, seen: dict) -> None:
    """The spans of the reward functions are around the times that these noted themselves, and sampling is before them."""
    spans = read_details(record)["timings"]
    scored = [span for span in spans if span["kind"] == "score"]
    assert len(scored) == len(seen["times"]) == 2, spans
    for span, (start, end) in zip(scored, seen["times"], strict=True):
        slack = 0.001 * (1 + end - start)  # the wall clock is set right while a span is measured
        assert span["start"] <= start + slack and end - slack <= span["end"], (span, start, end)
    assert scored[0]["end"] <= scored[1]["start"] + 0.001
    for span in spans:
        if span["kind"] == "generate":
            assert span["version"] == seen["global_step"] and span["end"] <= scored[0]["start"] + 0.001


def check_live(project: str, trainer: GRPOTrainer, watched: Watched) -> None:
    """Each stored rollout was in flight before: its stages, turns, tokens and last words, and a span a turn and a call."""
    by_step, n_tools, followed = stored(project), 0, 0
    for seen in trainer.seen:
        for row, record in enumerate(by_step[seen["global_step"] + 1]):
            key, tokens = record.metadata["extra/live"], read_transcript(record).tokens
            completion = seen["completion"][row]
            calls = [message["name"] for message in completion if message["role"] == "tool"]
            turns = sum(message["role"] == "assistant" for message in completion)
            spans = read_details(record)["timings"]
            made = [span for span in spans if span["kind"] == "generate"]
            called = [span for span in spans if span["kind"] == "tool"]
            assert [span["turn"] for span in made] == list(range(len(made)))
            assert len(made) - turns in (0, 1), "a turn that was cut away whole"
            assert len(called) >= len(calls), (called, calls)
            for span in called:
                assert made[span["turn"]]["end"] <= span["start"] + 0.001, (
                    "a tool runs after the turn that called it"
                )
            assert watched.lines[key][-1]["stage"] == "done"
            assert watched.last(key, "turns") == len(made)
            assert watched.last(key, "tokens") >= int(tokens.response_mask.sum())
            assert watched.last(key, "step") == seen["global_step"] + 1
            words = trainer.processing_class.decode(tokens.input_ids[tokens.response_mask][-3:])
            followed += words in watched.last(key, "words")
            stages = watched.stages(key)
            n_tools += len(called)
            if len(stages) > 4:
                assert ("tool multiply" in stages) == bool(called), (stages, called)
    assert n_tools > 10, "nobody called a tool"
    print(
        f"{project}: {watched.ended()} rollouts were in flight, {n_tools} calls of tools timed, {followed} last words"
    )


def check_evaluation(project: str, trainer: GRPOTrainer) -> int:
    """What TRL samples to evaluate is the other split, with TRL's ids and rewards.

    Returns:
        The number of rows compared.
    """
    seen = sorted(
        (call["global_step"], round(right + 0.5 * short, 4), ids)
        for call in trainer.evaluated
        for right, short, ids in zip(
            call["rewards"]["correct"], call["rewards"]["short"], call["ids"], strict=True
        )
    )
    found = sorted(
        (step, round(record.metadata["reward"], 4), read_transcript(record).tokens.input_ids.tolist())
        for step, records in stored(project, "eval-rollout").items()
        for record in records
    )
    assert seen and found == seen, (found, seen)
    assert sorted(stored(project, "eval-rollout")) == metric_steps(project, "eval/reward")
    print(
        f"{project}: {len(found)} of {len(seen)} evaluation rows with TRL's ids and rewards, at the steps of its eval/reward"
    )
    return len(found)


def main() -> None:
    """Trains and checks each variant."""
    from trl.experimental.gmpo import (
        GMPOConfig,
        GMPOTrainer,
    )  # an older TRL, which others run this with, has none

    rows = 0
    for project, options in {
        "trl-plain": {"tools": [], "eval_strategy": "steps", "eval_steps": 2, "evaluated": 1},
        "trl-wide-eval": {
            "tools": [],
            "cap": 100,
            "eval_strategy": "steps",
            "eval_steps": 3,
            "evaluated": 4,
            "per_device_eval_batch_size": 32,
            "log_completions": True,
        },
        "trl-twins": {"tools": [], "twins": True, "log_completions": True},
        "trl-tools": {"tools": [multiply]},
        "trl-template": {"tools": [], "own_template": OWN_TEMPLATE, "chat_template_kwargs": {"plain": True}},
        "trl-rloo": {"tools": [], "classes": (RLOOTrainer, RLOOConfig), "beta": 0.0},
        "trl-gmpo": {"tools": [], "classes": (GMPOTrainer, GMPOConfig)},
        "trl-truncated": {"tools": [], "mask_truncated_completions": True, "max_completion_length": 6},
    }.items():
        start = time.time()
        trainer = train(project, **options)
        print(f"{project}: {len(trainer.seen)} steps in {time.time() - start:.1f} s")
        rows += check(project, trainer)
        if trainer.evaluated:
            rows += check_evaluation(project, trainer)
    with Watched(FOLDER / "trackio", "trl-live") as watched:
        trainer = train("trl-live", tools=[multiply])
    check_live("trl-live", trainer, watched)
    report("TRL: GRPO, RLOO, GMPO", "trl", "trl", rows=rows, equal=rows)


if __name__ == "__main__":
    main()
