"""The rollouts that training data is made of, and how it is made: conversation, tools, what decides where each goes, and
near-duplicates, known by the share of their five-word runs that two completions have in common.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import orjson

from rollout_traces.errors import ConfigError, StoreError
from rollout_traces.export.rows import ExportQuery, found
from rollout_traces.model.plain_values import parsed_call
from rollout_traces.model.text import IDENTITY_BYTES, short_hash, text_of
from rollout_traces.trace.conversion import TraceRecord, read_transcript, with_thinking_apart

if TYPE_CHECKING:
    from rollout_traces.store import Store, TraceRow


FORMATS = ("sft", "dpo", "reward", "hub", "hub-sts")
THINKING = ("content", "reasoning_content", "drop")


@dataclass(frozen=True)
class TrainingOptions:
    """Options of making training data.

    Attributes:
        format: `sft` (chat), `dpo` (pairs), `reward` (scored completions) `hub` (Pi's sessions, which its viewer shows) or
            `hub-sts` (the Hub's own simple ones).
        thinking: where an assistant's thinking goes: `content`, between `<think>` and `</think>`;
            `reasoning_content`, a field of its own; or `drop`.
        margin: of a pair, by how much the better reward is above the worse at least; equal ones are no pair.
        match_length: of a pair, by which share of the longer one the sampled tokens may differ at most; None to
            take the best and the worst whatever their lengths.
        test_share: share of the prompts that go to the file `test`; a prompt is in one file alone.
        near_duplicates: a completion that shares this share of its five-word runs with one of the same prompt
            that was kept is left out; 1 leaves out equal ones alone, None none.
        evaluation: take rollouts of evaluation, and training rollouts of the same prompts.
        seed: which prompts go to `test`.
    """

    format: str
    thinking: str = "content"
    margin: float = 0.0
    match_length: float | None = None
    test_share: float = 0.0
    near_duplicates: float | None = 0.9
    evaluation: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        if self.format not in FORMATS:
            raise ConfigError(f"format: {self.format!r}, expected one of {', '.join(FORMATS)}.")
        if self.thinking not in THINKING:
            raise ConfigError(f"thinking: {self.thinking!r}, expected one of {', '.join(THINKING)}.")
        if not 0 <= self.margin < float("inf"):
            raise ConfigError(f"margin: {self.margin}, expected 0 or more.")
        if not 0 <= self.test_share < 1:
            raise ConfigError(f"test share: {self.test_share}, expected 0 or more and below 1.")
        for name, share in (("match length", self.match_length), ("near duplicates", self.near_duplicates)):
            if share is not None and not 0 < share <= 1:
                raise ConfigError(f"{name}: {share}, expected a share above 0, 1 at most.")


EVALUATION = "eval-rollout"
GROUP_KEYS = ("run_id", "split", "step", "group", "attempt")
HIDDEN = "█"
"""The mark that a run's `redact` hook left in place of what it hid."""


@dataclass(frozen=True)
class TrainingSample:
    """One rollout as training data.

    Attributes:
        uid: the rollout's uid; its trace id where it has none.
        prompt: the messages before the first that the policy wrote.
        completion: those from there on.
        tools: the tools that it was given, OpenAI style; none where the prompt's text describes them, as a chat
            template wrote it: given again they would be there twice.
        key: what makes rollouts answers to the same prompt.
        group: the rollouts of one prompt in one step of one run share it; None for those of no group.
        reward: the reward; None when unknown or not finite, or when its function failed.
        n_sampled: tokens that the policy sampled; characters of the completion where they are unknown.
        about: further columns, by name.
        stored: when it was stored, ISO 8601; empty where that is unknown.
    """

    uid: str
    prompt: tuple[Mapping[str, Any], ...]
    completion: tuple[Mapping[str, Any], ...]
    tools: tuple[Mapping[str, Any], ...]
    key: str
    group: tuple[Any, ...] | None
    reward: float | None
    n_sampled: int
    about: Mapping[str, Any]
    stored: str = ""


def samples(
    store: Store, query: ExportQuery, options: TrainingOptions, left_out: Counter[str]
) -> Iterator[TrainingSample]:
    """The samples of a query.

    Args:
        store: where from.
        query: which rollouts; those without a trace have no conversation and are none of them.
        options: how they are made.
        left_out: counts those that are not given, by reason.

    Raises:
        ConfigError: the query asks for evaluation alone, and that was not allowed.
    """
    if query.split == EVALUATION and not options.evaluation:
        raise ConfigError(
            "training data of evaluation rollouts would train on what the run is measured by. "
            "Where that is meant, add --evaluation."
        )
    held_out = frozenset() if options.evaluation else evaluation_prompts(store)
    for row in found(store, query):
        if not options.evaluation and row.split == EVALUATION:
            left_out["evaluation"] += 1
            continue
        sample = _sample(store, row, options, left_out)
        if sample is None:
            continue
        if sample.key in held_out or row["prompt_key"] in held_out:
            left_out["a prompt of evaluation"] += 1
            continue
        yield sample


def evaluation_prompts(store: Store) -> frozenset[str]:
    """Keys of the prompts that were evaluated: those that were logged, and those of kept conversations."""
    table = store.rollouts(columns=["prompt_key"], splits=[EVALUATION])
    keys = {key for key in table["prompt_key"].to_pylist() if key is not None}
    for row in found(store, ExportQuery(split=EVALUATION)):
        if row.id is not None:
            try:
                keys.add(prompt_hash(_split(_messages(store.record(row.id), "drop"))[0]))
            except StoreError:
                continue  # a trace that cannot be read is counted where it is exported
    return frozenset(keys)


def prompt_hash(prompt: Sequence[Mapping[str, Any]]) -> str:
    """A key of a prompt's text: equal for equal ones, blanks and case left out."""
    text = "\x00".join(f"{m['role']}\x01{' '.join(text_of(m['content']).lower().split())}" for m in prompt)
    return short_hash(text, IDENTITY_BYTES).hex()


def _sample(
    store: Store, row: TraceRow, options: TrainingOptions, left_out: Counter[str]
) -> TrainingSample | None:
    try:
        record = store.record(str(row.id))
        messages = _messages(record, options.thinking)
        transcript = read_transcript(record)
    except StoreError:
        left_out["unreadable"] += 1
        return None
    prompt, completion = _split(messages)
    if not completion:
        left_out["nothing written by the policy"] += 1
        return None
    if HIDDEN in orjson.dumps(messages, default=str).decode():
        left_out["redacted in part"] += 1
        return None
    components = {name: row[name] for name in row.values if name.startswith("component/")}
    group = tuple(row[name] for name in GROUP_KEYS) if row["group"] is not None else None
    labels = {"labels": list(row["labels"])} if row["labels"] else {}
    return TrainingSample(
        uid=str(row["uid"] or row.id),
        prompt=tuple(prompt),
        completion=tuple(completion),
        tools=() if transcript is None else _tools_beside(transcript.tools, prompt),
        key=prompt_hash(prompt),
        group=group,
        reward=row.known_reward,
        n_sampled=int(row["n_sampled"] or len(str(completion))),
        about={"run": row.run, "step": row.step, **components, **labels},
        stored=str(row["timestamp"] or ""),
    )


def _tools_beside(
    tools: Sequence[Mapping[str, Any]], prompt: Sequence[Mapping[str, Any]]
) -> tuple[Mapping[str, Any], ...]:
    text = "\n".join(str(message["content"]) for message in prompt)
    return () if all(all(word in text for word in _words(tool)) for tool in tools) else tuple(tools)


def _words(tool: Mapping[str, Any]) -> list[str]:
    """Collects the words of a tool's description, whatever its form: its name, what it says of itself, its parameters."""
    inner = tool.get("function")
    function = inner if isinstance(inner, Mapping) else tool
    parameters = function.get("parameters")
    names = parameters.get("properties") if isinstance(parameters, Mapping) else None
    named = names if isinstance(names, Mapping) else ()
    described = [function.get("name"), function.get("description"), *named]
    return [str(word) for word in described if word]


def _messages(record: TraceRecord, thinking: str) -> list[dict[str, Any]]:
    """The conversation, thinking where it is wanted, and arguments of tools as values.

    Raises:
        StoreError: the trace is damaged.
    """
    if thinking == "content":
        transcript = read_transcript(record)
        return [_plain(m) for m in (record.messages if transcript is None else transcript.messages())]
    apart = [_plain(message) for message in with_thinking_apart(record)]
    if thinking == "drop":
        for message in apart:
            message.pop("reasoning_content", None)
    return apart


def _plain(message: Mapping[str, Any]) -> dict[str, Any]:
    """A message whose tools' arguments are values where they are JSON: templates write them as such."""
    plain = {**message, "content": message.get("content") or ""}
    if plain.get("tool_calls"):
        plain["tool_calls"] = [parsed_call(call) for call in plain["tool_calls"]]
    return plain


def _split(messages: Sequence[dict[str, Any]]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Prompt and completion: the second begins with the first message of the assistant."""
    first = next((at for at, m in enumerate(messages) if m["role"] == "assistant"), len(messages))
    return list(messages[:first]), list(messages[first:])


RUN = 5
MOST_COMPARED = 256
"""Completions of one prompt that a new one is compared with."""


def without_duplicates(
    found: Iterable[TrainingSample], options: TrainingOptions, left_out: Counter[str]
) -> Iterator[TrainingSample]:
    """Samples without near-duplicates of those before them: by prompt, of pairs by reward too.

    Args:
        options: from which share of the five-word runs of two completions together, that both have, on the later one
            is a near-duplicate (the Jaccard index); None for no near-duplicates.
        left_out: counts them.
    """
    kept: dict[str, list[frozenset[int]]] = {}
    for sample in found:
        if options.near_duplicates is not None:
            key = sample.key if options.format != "dpo" else f"{sample.key} {sample.reward}"
            runs, before = _runs(sample.completion), kept.setdefault(key, [])
            if any(len(runs & b) / len(runs | b) >= options.near_duplicates for b in before[-MOST_COMPARED:]):
                left_out["near-duplicate"] += 1
                continue
            before.append(runs)
        yield sample


def _runs(completion: Sequence[Mapping[str, Any]]) -> frozenset[int]:
    words = " ".join(_said(message) for message in completion if message["role"] == "assistant").split()
    if len(words) < RUN:
        return frozenset({hash(tuple(words))})
    return frozenset(hash(tuple(words[at : at + RUN])) for at in range(len(words) - RUN + 1))


def _said(message: Mapping[str, Any]) -> str:
    calls = message.get("tool_calls")
    return f"{message['content']} {orjson.dumps(calls).decode() if calls else ''}"
