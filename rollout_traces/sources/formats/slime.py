"""slime and miles: `rollout_data/<id>.pt`, torch's file of `{rollout_id, samples: [Sample.to_dict()]}`.

Loaded with `weights_only=True`: a file that needs more than plain values, arrays and tensors is refused. Conversations of
several turns lie beside it, in miles' `trajectory/<id>.jsonl`. Classes of other packages that such a file names are stood
in for by the classes here: no code of numpy or of a trainer sees the file.
"""

from __future__ import annotations

import contextlib
import pickle
from collections.abc import Iterator, Mapping
from typing import Any, cast

import numpy as np

from rollout_traces.errors import BatchError, extra
from rollout_traces.model.text import MOST, words
from rollout_traces.sources.base import EVAL, TRAIN, Claim, FileFormat, FileReading, Head, number_in
from rollout_traces.sources.chat import Record, messages_of
from rollout_traces.sources.lines import json_lines
from rollout_traces.sources.problems import NOT_UNDERSTOOD
from rollout_traces.sources.rows import RolloutRow, number, numbers, scalars

_ZIP = b"PK\x03\x04"


class Slime(FileFormat):
    """Token ids, a loss mask over the response, logprobs and the versions of the engine's weights."""

    name = "slime"
    title = "slime or miles, debug rollout data"
    tokens = "yes"

    def claim(self, head: Head) -> Claim | None:
        step = number_in(r"^(?:eval_)?(?:rollout_)?(\d+)\.pt$", head.path.name)
        if step is None or not head.raw.startswith(_ZIP) or b"samples" not in head.raw:
            return None
        split = EVAL if head.path.name.startswith("eval_") else TRAIN
        return Claim(head.above("rollout_data"), step, split, ("advantages", "versions inside a turn"))

    def read(self, reading: FileReading) -> Iterator[RolloutRow]:
        with extra("train", "reading slime's dumps"):
            import torch

        try:
            with standing_in(torch):
                data = torch.load(reading.path, map_location="cpu", weights_only=not reading.trust_pickle)
        except (pickle.UnpicklingError, RuntimeError, EOFError, ImportError, *NOT_UNDERSTOOD) as error:
            reason = str(error).splitlines()[0][:MOST] if str(error) else type(error).__name__
            text = (
                f"holds more than plain values, arrays and tensors ({reason}), so that loading it could run code; it is "
                "refused. Give --trust-pickle for files that you wrote yourself."
            )
            reading.note("pickles_refused", text)
            return
        samples = data.get("samples") if isinstance(data, Mapping) else None
        if not isinstance(samples, list):
            reading.note("unreadable_files", "has no list of samples. Expected slime's rollout data.")
            return
        beside = reading.path.parents[1] / "trajectory" / f"{reading.path.stem}.jsonl"
        conversations = (
            {
                record.value.get("sample_index"): record.value
                for record in json_lines(beside, reading.problems)
            }
            if beside.is_file()
            else {}
        )
        for n, sample in enumerate(samples):
            with reading.refusing(n + 1):
                row = row_of(sample, reading.found.claim.step or 0, reading.found.claim.split, n)
                if (conversation := conversations.get(row.sample_id)) is not None:
                    row.messages, row.n_prompt_messages = messages_of(conversation.get("messages")), None
                yield row


def row_of(sample: Record, step: int, split: str, n: int, reward_key: str | None = None) -> RolloutRow:
    """The rollout of a sample.

    Args:
        sample: the fields of a `Sample`.
        step: the trainer's global step.
        split: `rollout` or `eval-rollout`.
        n: its place in the step, from 0.
        reward_key: the key of a reward that is a mapping; by default that of its total, as far as its name tells.

    Raises:
        BatchError: a list does not fit its response length.
    """
    tokens = _plain(sample.get("tokens")) or []
    n_response = int(sample.get("response_length") or 0)
    if not 0 <= n_response <= len(tokens):
        raise BatchError(
            f"slime: sample {sample.get('index', n)}: response_length is {n_response}. Expected 0 to the {len(tokens)} of "
            "its tokens."
        )
    before = len(tokens) - n_response
    mask = _of_response(sample, "loss_mask", n_response)
    sampled = np.arange(len(tokens)) >= before
    if mask is not None:
        sampled[before:] = mask
    status = sample.get("status")
    name = None if status is None else str(getattr(status, "value", status)).lower()
    row = RolloutRow(
        step=step,
        split=split,
        line=n + 1,
        group=sample.get("group_index"),
        sample_id=sample.get("index", n),
        episode=None if sample.get("rollout_id") is None else str(sample["rollout_id"]),
        ground_truth=sample.get("label"),
        stop_reason=_STOPS.get(str(name), name),
        discard_reason="removed" if sample.get("remove_sample") else None,
        extras=scalars(sample.get("metadata")),
    )
    adapter = sample.get("adapter")
    if isinstance(adapter, Mapping) and isinstance(adapter.get("name"), str):
        row.extras["adapter"] = adapter["name"]
    if tokens:
        row.input_ids, row.response_mask = tokens, sampled
        row.loss_mask = sampled & (not sample.get("remove_sample"))
    for key, track in (("rollout_log_probs", "logprobs"), ("teacher_log_probs", "ref_logprobs")):
        values = _of_response(sample, key, n_response)
        if values is not None:
            row.tracks[track] = np.full(len(tokens), np.nan, np.float32)
            row.tracks[track][before:] = values
            if track == "logprobs":
                row.tracks[track][~sampled] = np.nan
    _add_versions(row, sample.get("weight_versions"))
    _add_reward(row, sample.get("reward"), reward_key)
    prompt, reply = sample.get("prompt"), sample.get("response")
    if isinstance(prompt, list):
        row.messages = [*(messages_of(prompt) or []), {"role": "assistant", "content": str(reply or "")}]
        row.n_prompt_messages = len(prompt)
    elif isinstance(prompt, str):
        row.prompt_text, row.reply_text = prompt, str(reply or "")
    return row


_STOPS = {"completed": "stop", "truncated": "length", "aborted": "abort", "failed": "error", "pending": None}


def _of_response(sample: Record, key: str, n_response: int) -> list[Any] | None:
    """Values of the response's tokens, where the sample has them."""
    values = _plain(sample.get(key))
    if values is not None and len(values) != n_response:
        raise BatchError(
            f"slime: sample {sample.get('index')}: {key} has {len(values)} values. Expected response_length = "
            f"{n_response}, one a response token."
        )
    return values


def _add_reward(row: RolloutRow, reward: Any, key: str | None) -> None:
    """A number, or numbers by name; texts by name are extras."""
    if isinstance(reward, Mapping):
        row.components = numbers(reward)
        row.extras |= {name: text for name, text in scalars(reward).items() if isinstance(text, str)}
        named = key or next((name for name in ("score", "reward", "total") if name in row.components), "")
        row.reward = row.components.get(named)
    else:
        row.reward = number(reward)


def _add_versions(row: RolloutRow, versions: Any) -> None:
    """Versions are known a call of the engine; where all are one number it is every sampled token's."""
    calls = [int(v) if str(v).lstrip("-").isdigit() else None for v in versions or ()]
    known = {version for version in calls if version is not None}
    if not known or None in calls:
        return
    if len(known) == 1 and row.response_mask is not None:
        row.tracks["versions"] = np.where(row.response_mask, known.pop(), -1)
    else:
        row.known_columns |= {"version_min": min(known), "version_max": max(known)}


def _plain(values: Any) -> list[Any] | None:
    if values is None:
        return None
    return values if isinstance(values, list) else list(getattr(values, "tolist", lambda: values)())


class _Fields(dict[str, Any]):
    """A dataclass of a trainer, as a mapping of its fields."""

    def __setstate__(self, state: Any) -> None:
        self.update(state)


class _Array:
    """An array that no rollout has a place for, such as the experts of each token."""

    def __setstate__(self, state: Any) -> None: ...


class _Kind:
    """numpy's dtype, by the text that names it."""

    def __init__(self, name: str, *_: Any) -> None:
        self.name = name

    def __setstate__(self, state: Any) -> None: ...


def _array(*_: Any) -> _Array:
    return _Array()


def _scalar(kind: _Kind, data: Any) -> float | int | bool:
    if not isinstance(kind, _Kind) or kind.name not in words("f2 f4 f8 i1 i2 i4 i8 u1 u2 u4 u8 b1"):
        raise ValueError("a scalar of numpy that is no number")
    raw = data if isinstance(data, bytes) else str(data).encode("latin1")
    return np.frombuffer(raw, f"<{kind.name}", 1)[0].item()


_NAMED: list[Any] = [
    *((_array, f"numpy.{core}.multiarray._reconstruct") for core in ("_core", "core")),
    *((_scalar, f"numpy.{core}.multiarray.scalar") for core in ("_core", "core")),
    (_Array, "numpy.ndarray"),
    (_Kind, "numpy.dtype"),
    *((_Fields, f"miles.utils.types.{name}") for name in ("AdapterRef", "RewardSpec")),
]
_FIRST_TORCH = (2, 6)
"""An earlier torch lets nothing stand in for another name."""


def standing_in(torch: Any) -> contextlib.AbstractContextManager[None]:
    """While it lasts, `torch.load(weights_only=True)` makes these in place of what they are named after."""
    version = tuple(int(part) for part in torch.__version__.split(".")[:2])
    if version < _FIRST_TORCH:
        return contextlib.nullcontext()
    return cast("contextlib.AbstractContextManager[None]", torch.serialization.safe_globals(_NAMED))
