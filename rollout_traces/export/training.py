"""Training data as a folder that `datasets` loads, with a card and a manifest: chat, preference pairs, scored completions;
or sessions that the Hugging Face Hub's trace viewer shows, a file each: Pi's, and the Hub's own simple one.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from rollout_traces.errors import ConfigError
from rollout_traces.export.rows import ExportManifest, ExportQuery, describe, matched
from rollout_traces.export.training_samples import (
    TrainingOptions,
    TrainingSample,
    samples,
    without_duplicates,
)
from rollout_traces.model.text import IDENTITY_BYTES, hash_share, short_hash
from rollout_traces.model.whole_files import unfinished

if TYPE_CHECKING:
    from rollout_traces.store import Store


MANIFEST = "manifest.json"


@dataclass(frozen=True)
class TrainingManifest:
    """The manifest of training data: what it was made of, and how.

    Attributes:
        made_from: as of any export; file, rows, size and checksum are those of the file `train`, of sessions those of
            all sessions together.
        options: how it was made.
        splits: rows of each file.
        left_out: rollouts of the query that are in none, by reason.
        files: file -> SHA-256; of sessions, of the names and contents of all sessions together.
    """

    made_from: ExportManifest
    options: Mapping[str, Any]
    splits: Mapping[str, int]
    left_out: Mapping[str, int]
    files: Mapping[str, str]


def export_training(
    store: Store,
    folder: Path | str,
    options: TrainingOptions,
    query: ExportQuery = ExportQuery(),  # noqa: B008
) -> TrainingManifest:
    """Writes training data: `train.jsonl`, `test.jsonl`, a card (`README.md`) and `manifest.json`.

    The folder appears under its name only when it is complete. `datasets.load_dataset(folder)` reads it.

    Args:
        store: where from.
        folder: a new or empty folder.
        options: what is made, and how.
        query: which rollouts; its limit is of what is written, after everything that is left out.

    Returns:
        The manifest.

    Raises:
        ConfigError: the folder is not empty, nothing is left to write, or evaluation is asked for unasked.
        NotWritten: it cannot be written.
        QueryError: the query cannot be understood.
    """
    query = replace(query, rows="traces")
    left_out: Counter[str] = Counter()
    how = options if options.format not in SESSIONS else replace(options, thinking="reasoning_content")
    every = replace(query, limit=None, attempts="newest")
    if superseded := matched(store, query) - matched(store, every):
        left_out["superseded by a later attempt"] = superseded
    kept = without_duplicates(samples(store, every, how, left_out), how, left_out)
    with unfinished(folder, folder=True) as made:
        splits = _write(made, kept, how, left_out, query.limit)
        if not sum(splits.values()):
            raise ConfigError(
                f"no rollout is left to write. Left out: {_said(left_out)}."
                if left_out
                else "no rollout matches, so nothing was written."
            )
        manifest = _manifest(store, query, made, how, splits, left_out)
        (made / MANIFEST).write_bytes(orjson.dumps(asdict(manifest), option=orjson.OPT_INDENT_2))
    return manifest


def _write(
    folder: Path,
    found: Iterable[TrainingSample],
    options: TrainingOptions,
    left_out: Counter[str],
    limit: int | None,
) -> dict[str, int]:
    splits = dict.fromkeys(("train", "test") if options.test_share else ("train",), 0)
    if options.format in SESSIONS:
        for sample in islice(found, limit):
            name = _split_of(sample.key, options)
            (folder / name).mkdir(exist_ok=True)
            lines = SESSIONS[options.format](sample)
            text = b"".join(
                orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE, default=str) for line in lines
            )
            session = f"{short_hash(sample.uid, IDENTITY_BYTES).hex()}.jsonl"  # safe letters alone
            (folder / name / session).write_bytes(text)
            splits[name] += 1
        return splits
    columns: dict[str, None] = {}
    files = {name: (folder / f"{name}.jsonl").open("wb") for name in splits}
    try:
        for row in islice(ROWS[options.format](found, options, left_out), limit):
            name = _split_of(row["prompt_key"], options)
            columns |= dict.fromkeys(row)
            files[name].write(orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE, default=str))
            splits[name] += 1
    finally:
        for file in files.values():
            file.close()
    for name in [name for name, n in splits.items() if not n]:
        (folder / f"{name}.jsonl").unlink()
    (folder / "README.md").write_text(
        _card(options, [n for n in splits if splits[n]], list(columns)), "utf-8"
    )
    return splits


def _split_of(key: str, options: TrainingOptions) -> str:
    """`train` or `test`, the same for a prompt whatever else is exported."""
    return "test" if hash_share(f"{options.seed} {key}") < options.test_share else "train"


def _card(options: TrainingOptions, splits: list[str], columns: list[str]) -> str:
    """The data set's card: which file is which split, and that conversations are JSON of any fields."""
    lines = ["---", "configs:", "- config_name: default", "  data_files:"]
    for name in splits:
        lines += [f"  - split: {name}", f"    path: {name}.jsonl"]
    lines += ["tags:", "- rollout-traces", f"- {options.format}", "---", ""]
    lines += [
        f"Rollouts as `{options.format}` data, written by rollout-traces. `{MANIFEST}` says what of and how.",
        "",
    ]
    lines += [f"Columns: {', '.join(f'`{name}`' for name in columns)}.", ""]
    return "\n".join(lines)


def _manifest(
    store: Store,
    query: ExportQuery,
    folder: Path,
    options: TrainingOptions,
    splits: Mapping[str, int],
    left_out: Mapping[str, int],
) -> TrainingManifest:
    files = sorted(path for path in folder.rglob("*.jsonl"))
    train = next((path for path in files if path.name == "train.jsonl"), files[0])
    n_matched = matched(store, query)
    made_from = describe(
        store, query, train, file_format=options.format, rows=splits.get(train.stem, 0), matched=n_matched
    )
    if options.format in SESSIONS:
        whole = hashlib.sha256(b"".join(path.name.encode() + path.read_bytes() for path in files)).hexdigest()
        sums = {"*.jsonl": whole}
        size = sum(path.stat().st_size for path in files)
        made_from = replace(made_from, file="*.jsonl", bytes=size, sha256=whole, rows=len(files))
    else:
        sums = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
    return TrainingManifest(made_from, asdict(options), splits, dict(left_out), sums)


def _said(left_out: Mapping[str, int]) -> str:
    return ", ".join(f"{n:,} ({reason})" for reason, n in left_out.items())


def sft_rows(
    found: Iterable[TrainingSample], options: TrainingOptions, left_out: Counter[str]
) -> Iterator[dict[str, Any]]:
    """Whole conversations: `messages`, and `tools` where there were any."""
    for sample in found:
        yield {"messages": [*sample.prompt, *sample.completion], **_beside(sample)}


def reward_rows(
    found: Iterable[TrainingSample], options: TrainingOptions, left_out: Counter[str]
) -> Iterator[dict[str, Any]]:
    """Scored completions: `prompt`, `completion`, `reward`; those without a reward are left out."""
    for sample in found:
        if sample.reward is None:
            left_out["no reward"] += 1
            continue
        yield {"prompt": list(sample.prompt), "completion": list(sample.completion), **_beside(sample)}


def dpo_rows(
    found: Iterable[TrainingSample], options: TrainingOptions, left_out: Counter[str]
) -> Iterator[dict[str, Any]]:
    """A pair a group: `prompt`, `chosen`, `rejected`, and the reward of each."""
    groups: dict[tuple[Any, ...], list[TrainingSample]] = {}
    for sample in found:
        if sample.group is None or sample.reward is None:
            left_out["no reward" if sample.group is not None else "no group"] += 1
        else:
            groups.setdefault((*sample.group, sample.key), []).append(sample)
    for members in groups.values():
        pair = best_pair(members, options)
        if pair is None:
            left_out["no pair in its group"] += len(members)
            continue
        chosen, rejected = pair
        left_out["neither best nor worst of its group"] += len(members) - 2
        yield {
            "prompt": list(chosen.prompt),
            "chosen": list(chosen.completion),
            "rejected": list(rejected.completion),
            "score_chosen": chosen.reward,
            "score_rejected": rejected.reward,
            "uid_rejected": rejected.uid,
            **{name: value for name, value in _beside(chosen).items() if name != "reward"},
        }


def best_pair(
    members: list[TrainingSample], options: TrainingOptions
) -> tuple[TrainingSample, TrainingSample] | None:
    """The pair of a group whose rewards are furthest apart among those that margin and lengths allow.

    Args:
        members: samples of one group, all with a reward.
        options: `margin` and `match_length`.

    Returns:
        The better and the worse one; None where no two fit. Of equally good pairs the one nearest in length.
    """

    def fits(a: TrainingSample, b: TrainingSample) -> bool:
        gap = _reward(a) - _reward(b)
        return (
            gap > 0
            and gap >= options.margin
            and a.completion != b.completion
            and (options.match_length is None or _length_gap(a, b) <= options.match_length)
        )

    pairs = [(a, b) for a in members for b in members if fits(a, b)]
    return max(
        pairs, key=lambda pair: (_reward(pair[0]) - _reward(pair[1]), -_length_gap(*pair)), default=None
    )


def _length_gap(a: TrainingSample, b: TrainingSample) -> float:
    return abs(a.n_sampled - b.n_sampled) / max(a.n_sampled, b.n_sampled, 1)


def _reward(sample: TrainingSample) -> float:
    assert sample.reward is not None
    return sample.reward


def _beside(sample: TrainingSample) -> Mapping[str, Any]:
    tools = {"tools": list(sample.tools)} if sample.tools else {}
    return {**tools, "uid": sample.uid, "prompt_key": sample.key, "reward": sample.reward, **sample.about}


ROWS = {"sft": sft_rows, "dpo": dpo_rows, "reward": reward_rows}


HARNESS = "rollout-traces"
"""The viewer draws a harness that it does not know without an icon of its own."""
VERSION = 3
"""Of Pi's sessions."""
_PI_ROLES = {"system": "developer", "tool": "toolResult"}


def pi_session(sample: TrainingSample) -> Iterator[dict[str, Any]]:
    """A session of the agent Pi, which the viewer knows: a header, and an entry a message, each naming the one before.

    Args:
        sample: the rollout, its thinking in `reasoning_content`.
    """
    yield {**_header(sample), "version": VERSION, "timestamp": sample.stored, "cwd": "/"}
    called: dict[str, str] = {}
    parent = None
    for number, message in enumerate((*sample.prompt, *sample.completion)):
        own = short_hash(f"{sample.uid} {number}").hex()
        entry = {"type": "message", "id": own, "parentId": parent, "timestamp": sample.stored}
        yield {**entry, "message": _pi_message(message, called)}
        parent = own


def simple_session(sample: TrainingSample) -> Iterator[dict[str, Any]]:
    """A session in the Hub's Session Trace Simple Format: a header, and a line a message.

    Args:
        sample: the rollout, its thinking in `reasoning_content`.
    """
    yield _header(sample)
    for message in (*sample.prompt, *sample.completion):
        yield {"type": "message", "message": _simple_message(message)}


SESSIONS: dict[str, Callable[[TrainingSample], Iterator[dict[str, Any]]]] = {
    "hub": pi_session,
    "hub-sts": simple_session,
}
"""Formats that are a file a rollout -> its lines."""


def _header(sample: TrainingSample) -> dict[str, Any]:
    step, reward = sample.about["step"], sample.reward
    name = f"{sample.about['run']}, step {step}" + ("" if reward is None else f", reward {reward:.4g}")
    header = {"type": "session", "harness": HARNESS, "id": sample.uid, "name": name, "reward": reward}
    return {**header, **sample.about}


def _pi_message(message: Mapping[str, Any], called: dict[str, str]) -> dict[str, Any]:
    """A message in blocks; what is called is noted, so that a result names its tool."""
    role = str(message["role"])
    blocks: list[dict[str, Any]] = []
    if message.get("reasoning_content"):
        blocks.append({"type": "thinking", "thinking": message["reasoning_content"]})
    if message["content"] or role != "assistant":
        blocks.append({"type": "text", "text": message["content"]})
    for at, call in enumerate(message.get("tool_calls") or ()):
        function, identity = call["function"], str(call.get("id") or f"call-{at}")
        called[identity] = str(function.get("name") or "tool")
        block = {"type": "toolCall", "id": identity, "name": called[identity]}
        given = function.get("arguments")
        named = given if isinstance(given, dict) else {"input": given}
        blocks.append({**block, "arguments": named})
    shown = {"role": _PI_ROLES.get(role, role), "content": blocks}
    if role != "tool":
        return shown
    identity = str(message.get("tool_call_id") or "")
    return {
        **shown,
        "toolCallId": identity,
        "toolName": called.get(identity, str(message.get("name") or "tool")),
        "isError": bool(message.get("is_error")),
    }


def _simple_message(message: Mapping[str, Any]) -> dict[str, Any]:
    shown: dict[str, Any] = {"role": message["role"], "content": message["content"]}
    if message.get("reasoning_content"):
        shown["reasoningContent"] = message["reasoning_content"]
    if message.get("tool_calls"):
        shown["toolCalls"] = [_call(call, at) for at, call in enumerate(message["tool_calls"])]
    if message.get("tool_call_id"):
        shown["toolCallId"] = message["tool_call_id"]
    return shown


def _call(call: Mapping[str, Any], at: int) -> dict[str, Any]:
    function = call["function"]
    arguments = function.get("arguments")
    text = arguments if isinstance(arguments, str) else orjson.dumps(arguments).decode()
    return {
        "id": call.get("id") or f"call-{at}",
        "function": {"name": function.get("name"), "arguments": text},
    }
