"""A pickled batch of SkyRL, read where SkyRL is not installed: its classes are replaced by a plain mapping.

Pickles run what they name, so this is for files that are trusted. A batch's tensors are bytes with shape and dtype, those that
numpy does not have (bfloat16) are torch files.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from rollout_traces.errors import extra


class Batch(dict):
    """Name -> tensor; `metadata` is what SkyRL keeps of the whole batch."""

    metadata: Mapping[str, Any]

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        for name, value in state["batch_dict"].items():
            if isinstance(value, Mapping) and value.get("format") != "tensor_list":
                self[name] = _tensor(value)
        self.metadata = dict(state.get("metadata") or {})


def load(path: Path) -> Any:
    """What a pickle holds.

    Args:
        path: a file that is trusted.

    Raises:
        pickle.UnpicklingError: it is no pickle, or damaged.
        ImportError: it names a class of a package that is not installed.
    """
    with path.open("rb") as file:
        return _Unpickler(file).load()


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if module.split(".")[0] in ("skyrl", "skyrl_train"):
            if name == "_rebuild_tensor_batch":
                return _rebuilt
            if name.endswith("Batch"):
                return Batch
        if (module, name) == ("torch", "device"):
            return str
        return super().find_class(module, name)


def _rebuilt(kind: type, state: Mapping[str, Any]) -> Batch:
    batch = Batch()
    batch.__setstate__(state)
    return batch


def _tensor(value: Mapping[str, Any]) -> Any:
    if value.get("format") == "torch":
        with extra("train", "reading tensors of SkyRL"):
            import torch

        return torch.load(io.BytesIO(value["data"]), weights_only=True)
    return np.frombuffer(value["data"], np.dtype(value["dtype"])).reshape(value["shape"])
