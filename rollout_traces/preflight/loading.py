"""A batch from a file: tensors saved by torch, arrays by numpy, or a table of rows."""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rollout_traces.bounded_parquet import FREE, MOST_RATIO, read
from rollout_traces.errors import BatchError, FileRefused
from rollout_traces.extras import MissingExtra, extra


def load_batch(path: Path) -> Any:
    """What `check` takes, of a file.

    Args:
        path: a `.pt` or `.pth` of tensors (loaded with `weights_only=True`), an `.npz` of arrays, or a `.parquet`
            whose columns hold a list a row for what is one value a token; such rows may differ in length.

    Raises:
        BatchError: there is no such file, or it is none of these.
    """
    if not path.is_file():
        raise BatchError(f"{path}: no such file.")
    load = LOADERS.get(path.suffix)
    if load is None:
        raise BatchError(f"{path}: seen {path.suffix or 'no ending'}. Expected one of {', '.join(LOADERS)}.")
    try:
        return load(path)
    except (BatchError, MissingExtra):
        raise
    except FileRefused as error:
        raise BatchError(str(error)) from error
    except Exception as error:
        raise BatchError(f"{path}: cannot be loaded ({type(error).__name__}: {error}).") from error


def _torch(path: Path) -> Any:
    with extra("train", f"reading {path.name}"):
        import torch

    if zipfile.is_zipfile(path):
        _check_archive(path)
    return torch.load(path, map_location="cpu", weights_only=True)


def _numpy(path: Path) -> Any:
    import numpy as np

    _check_archive(path)
    with np.load(path, allow_pickle=False) as arrays:
        return {name: arrays[name] for name in arrays.files}


def _check_archive(path: Path) -> None:
    """Refuses a zip that says that it unpacks to more than its size accounts for; its reader unpacks no more than that."""
    size = path.stat().st_size
    with zipfile.ZipFile(path) as archive:
        unpacked = sum(info.file_size for info in archive.infolist())
    if unpacked > max(FREE, MOST_RATIO * size):
        raise BatchError(f"{path}: unpacks from {size:,} to {unpacked:,} bytes: taken for a bomb, not read.")


def _parquet(path: Path) -> Any:
    import numpy as np

    table = read(path)
    columns = {name: table.column(name).to_pylist() for name in table.column_names}
    if "input_ids" not in columns:
        raise BatchError(f"{path}: no column 'input_ids'. Seen {', '.join(columns) or 'none'}.")
    lengths = [len(row) for row in columns["input_ids"]]
    T = max(lengths, default=0)
    batch: dict[str, Any] = {}
    for name, rows in columns.items():
        is_token = all(isinstance(row, list) and len(row) == n for row, n in zip(rows, lengths, strict=True))
        numbers = is_token and all(isinstance(value, (int, float, bool)) for row in rows for value in row)
        batch[name] = np.asarray([[*row, *[0] * (T - len(row))] for row in rows]) if numbers else rows
    if "attention_mask" not in batch:
        batch["attention_mask"] = np.arange(T)[None] < np.asarray(lengths)[:, None]
    return batch


LOADERS: dict[str, Callable[[Path], Any]] = {
    ".pt": _torch,
    ".pth": _torch,
    ".npz": _numpy,
    ".parquet": _parquet,
}
