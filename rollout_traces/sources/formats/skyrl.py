"""SkyRL: `dumped_evals/global_step_N_evals/<data source>.jsonl`, and the pickled input of a training step.

Pickles run what they name, so the latter are for files that are trusted. SkyRL's classes are replaced by a plain mapping. A
batch's tensors are bytes with shape and dtype, those that numpy does not have (bfloat16) are torch files.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from rollout_traces.errors import extra
from rollout_traces.sources.base import (
    EVAL,
    TRAIN,
    Claim,
    Fields,
    FileFormat,
    FileReading,
    Found,
    Head,
    LinesFormat,
    Record,
    number_in,
)
from rollout_traces.sources.problems import NOT_UNDERSTOOD
from rollout_traces.sources.rows import NO_TOKENS, RolloutRow, mapping_of, scalars


class SkyrlEvals(LinesFormat):
    """`input_prompt, output_response, score, stop_reason, env_class, env_extras, data_source`."""

    name = "skyrl-evals"
    title = "SkyRL, dumped evaluations"

    def claim(self, head: Head) -> Claim | None:
        if not head.has("input_prompt", "output_response", "score"):
            return None
        step = number_in(r"global_step_(\d+)", head.path.parent.name)
        root = head.above(r".*global_step_\d+.*", "dumped_evals")
        lacks = (*NO_TOKENS, "groups (equal prompts are one)")
        return Claim(root, step if step is not None else 0, EVAL, lacks)

    def read(self, fields: Fields, found: Found) -> Iterator[RolloutRow]:
        value = fields.record
        prompt, reply, score = value.get("input_prompt"), value.get("output_response"), value.get("score")
        extras = scalars(value.get("env_extras"))
        if isinstance(value.get("env_class"), str):
            extras = {"env_class": value["env_class"], **extras}
        yield RolloutRow(
            step=found.claim.step or 0,
            split=EVAL,
            prompt_text=prompt if isinstance(prompt, str) else None,
            reply_text=reply if isinstance(reply, str) else None,
            reward=_sum(fields, score) if isinstance(score, list) else fields.number("score"),
            stop_reason=value.get("stop_reason"),
            source=value.get("data_source"),
            ground_truth=mapping_of(mapping_of(value.get("env_extras")).get("reward_spec")).get(
                "ground_truth"
            ),
            extras=extras,
        )


def _sum(fields: Fields, scores: list[Any]) -> float | None:
    """The sum of the scores of tokens; None where one is no number, which is noted."""
    read = [fields.read_number("score", score) for score in scores]
    known = [score for score in read if score is not None]
    return float(np.sum(known)) if len(known) == len(scores) else None


class SkyrlTraining(FileFormat):
    """`dumped_data/global_step_N_training_input.pkl`: left-padded tensors in a pickle."""

    name = "skyrl-training"
    title = "SkyRL, dumped training input (a pickle)"
    tokens = "yes"

    def claim(self, head: Head) -> Claim | None:
        step = number_in(r"^global_step_(\d+)_training_input\.pkl$", head.path.name)
        if step is None:
            return None
        lacks = ("conversations", "stop reasons", "policy versions", "rewards")
        return Claim(head.above("dumped_data"), step, TRAIN, lacks)

    def read(self, reading: FileReading) -> Iterator[RolloutRow]:
        if not reading.trust_pickle:
            text = (
                "is a pickle, which runs whatever code it holds when it is loaded; it is refused. "
                "Give --trust-pickle for files that you wrote yourself."
            )
            reading.note("pickles_refused", text)
            return
        try:
            with reading.path.open("rb") as file:
                rows = list(_training_rows(_Unpickler(file).load(), reading.found.claim.step or 0))
        except (pickle.UnpicklingError, EOFError, ImportError, *NOT_UNDERSTOOD) as error:
            reading.note("unreadable_files", f"is no training input of SkyRL ({error!r}).")
            return
        yield from rows


def _training_rows(data: Any, step: int) -> Iterator[RolloutRow]:
    """Rows of a batch whose responses are the last columns of its sequences; rows that only fill it up are none."""
    values = {key: _array(value) for key, value in dict(data).items() if value is not None}
    metadata = getattr(data, "metadata", None) or {}
    groups = _groups(metadata, len(values["sequences"]))
    n_rows = len(values["sequences"]) - int(metadata.get("pad_size") or 0)
    for b, (ids, attended) in enumerate(zip(values["sequences"], values["attention_mask"] != 0, strict=True)):
        if b >= n_rows:
            break
        tail = values["response_mask"].shape[1]
        row = RolloutRow(step=step, split=TRAIN, input_ids=ids[attended], group=groups[b], sample_id=b)
        row.response_mask = _at_end(values["response_mask"][b], ids, tail, 0)[attended]
        loss = values.get("loss_mask", values["response_mask"])
        row.loss_mask = _at_end(loss[b], ids, tail, 0)[attended]
        for key, name in _SKYRL_TRACKS.items():
            if key in values and values[key].ndim == 2:
                row.tracks[name] = _at_end(values[key][b], ids, tail, np.nan)[attended]
        if "rewards" in values:
            row.reward = float(np.nansum(values["rewards"][b]))
        yield row


def _groups(metadata: Record, n: int) -> list[Any]:
    """Gives rows of one prompt a common group; the prompts' boundaries show it where the trainer has let go of their ids."""
    uids = metadata.get("uids")
    if isinstance(uids, list) and len(uids) == n:
        return uids
    found: list[Any] = [None] * n
    for n_prompt, (start, stop) in enumerate(metadata.get("policy_prompt_boundaries") or ()):
        found[start:stop] = [f"prompt {n_prompt}"] * (stop - start)
    return found[:n]


_SKYRL_TRACKS = {
    "rollout_logprobs": "logprobs",
    "action_log_probs": "prox_logprobs",
    "base_action_log_probs": "ref_logprobs",
    "advantages": "advantages",
    "values": "values",
}


def _at_end(values: np.ndarray, ids: np.ndarray, n: int, fill: float) -> np.ndarray:
    whole = np.full(len(ids), fill, np.float64)
    whole[len(ids) - n :] = values
    return whole


def _array(value: Any) -> np.ndarray:
    if hasattr(value, "detach"):
        value = value.detach().float() if "float" in str(value.dtype) else value.detach()
        return value.cpu().numpy()
    return np.asarray(value) if isinstance(value, (list, tuple, np.ndarray)) else np.zeros(0)


class _Batch(dict):
    """Name -> tensor; `metadata` is what SkyRL keeps of the whole batch."""

    metadata: Record

    def __setstate__(self, state: Record) -> None:
        for name, value in state["batch_dict"].items():
            if isinstance(value, Mapping) and value.get("format") != "tensor_list":
                self[name] = _tensor(value)
        self.metadata = dict(state.get("metadata") or {})


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if module.split(".")[0] in ("skyrl", "skyrl_train"):
            if name == "_rebuild_tensor_batch":
                return _rebuilt
            if name.endswith("Batch"):
                return _Batch
        if (module, name) == ("torch", "device"):
            return str
        return super().find_class(module, name)


def _rebuilt(kind: type, state: Record) -> _Batch:
    batch = _Batch()
    batch.__setstate__(state)
    return batch


def _tensor(value: Record) -> Any:
    if value.get("format") == "torch":
        with extra("train", "reading tensors of SkyRL"):
            import torch

        return torch.load(io.BytesIO(value["data"]), weights_only=True)
    return np.frombuffer(value["data"], np.dtype(value["dtype"])).reshape(value["shape"])
