"""A check of what a batch would show if it were logged: masks, frames, versions, groups, rewards, sizes.

Every flag is looked for on every row, and a few things that only a whole batch shows.
"""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from rollout_traces.capture.host_copy import capture
from rollout_traces.decode.decoder import DecodeSettings
from rollout_traces.errors import BatchError, FileRefused, MissingExtra, extra
from rollout_traces.flags.detect import Population, TracedRow, flag_population, flag_row, off_flags
from rollout_traces.ledger.build import build_ledger
from rollout_traces.ledger.columns import Ledger
from rollout_traces.model.batch import RolloutBatch
from rollout_traces.model.bounded_reading import FREE, MOST_RATIO, read
from rollout_traces.model.packed_batch import PackedBatch
from rollout_traces.model.transcript import Flag, Transcript

Level = Literal["error", "warn", "info"]
LEVELS: tuple[Level, ...] = ("error", "warn", "info")
SHOWN_ROWS = 3
DECODED_ROWS = 256
"""Rows that are decoded at most; of more, as many from all over the batch."""
SHIFTED_SHARE = 0.9
"""Share of rows from which on logprobs count as one token off."""


@dataclass(frozen=True)
class Problem:
    """One thing that was found.

    Attributes:
        name: the flag's name, or the check's.
        level: `error`, `warn` or `info`.
        message: one sentence with its number, of the first row where rows have one each.
        n_rows: rows that have it.
        row: the first of them; None where the batch as a whole has it.
    """

    name: str
    level: Level
    message: str
    n_rows: int
    row: int | None = None


@dataclass(frozen=True, eq=False)
class CheckReport:
    """The report of what a batch would show.

    Attributes:
        n_rows: rollouts, B.
        n_tokens: tokens of all rows.
        longest: tokens of the longest row.
        n_groups: groups; rows without one are a group each.
        mask_from: what says which tokens were sampled: `given`, `versions`, or `loss_mask`, which is assumed.
        problems: errors first, then by rows.
        off: what could not be looked for -> what it lacks.
        transcripts: row -> decoded rollout, for a few rows to read; empty without a tokenizer.
    """

    n_rows: int
    n_tokens: int
    longest: int
    n_groups: int
    mask_from: str
    problems: tuple[Problem, ...]
    off: Mapping[str, tuple[str, ...]]
    transcripts: Mapping[int, Transcript]

    def failed(self, level: Level = "error") -> bool:
        """Tells whether there is a problem of a level, or of a worse one."""
        worst = LEVELS[: LEVELS.index(level) + 1]
        return any(problem.level in worst for problem in self.problems)

    def __str__(self) -> str:
        lines = [
            f"{self.n_rows} rollouts of {self.n_groups} groups, {self.n_tokens:,} tokens, the longest "
            f"{self.longest:,}; sampled tokens are told by {self.mask_from}."
        ]
        lines += [f"{p.level:5} {p.name}: {p.message} ({p.n_rows} rows)" for p in self.problems]
        if not self.problems:
            lines.append("Nothing is wrong that can be seen.")
        lines += [f"off   {name}: no {' or '.join(keys)}" for name, keys in sorted(self.off.items())]
        return "\n".join(lines)


def check(
    batch: Any,
    tokenizer: Any = None,
    *,
    split: str = "rollout",
    flag_parameters: Mapping[str, Any] | None = None,
    decoding: DecodeSettings | None = None,
) -> CheckReport:
    """Looks at a batch as a run would, without logging anything.

    Args:
        batch: what `RolloutLogger.log_rollouts` takes.
        tokenizer: the policy's; without it roles and texts are not looked at.
        split: `rollout` or `eval-rollout`.
        flag_parameters: `<flag>.<parameter>` -> threshold.
        decoding: the chat template and its arguments, where they are not the tokenizer's own.

    Returns:
        The report.

    Raises:
        BatchError: the batch cannot be understood; the text names the key, what was seen and what was expected.
    """
    batches = RolloutBatch.from_any(batch)
    if not sum(one.n_rows for one in batches):
        raise BatchError("batch: no rollouts. Expected at least one row.")
    parameters = dict(flag_parameters or {})
    packed = capture(batches, step=0, split=split)
    ledger = build_ledger(packed)
    transcripts = _decoded(packed, tokenizer, decoding)
    flags = {
        row: list(found) for row, found in flag_population(Population(packed, ledger, parameters)).items()
    }
    for row, transcript in transcripts.items():
        found = flag_row(TracedRow(transcript, packed, row, parameters, tokenizer))
        flags[row] = [*flags.get(row, []), *found]
    problems = [*_of_flags(flags), *of_logprob_frame(packed), *of_groups(packed, ledger), *of_rewards(ledger)]
    return CheckReport(
        n_rows=packed.n_rows,
        n_tokens=int(packed.n_tokens.sum()),
        longest=int(packed.n_tokens.max()),
        n_groups=len(np.unique(packed.group_ids)),
        mask_from=packed.response_mask_source,
        problems=tuple(sorted(problems, key=lambda p: (LEVELS.index(p.level), -p.n_rows, p.name))),
        off=off_flags(packed, parameters=parameters, tokenizer=tokenizer),
        transcripts=_to_show(transcripts, flags),
    )


def _decoded(packed: PackedBatch, tokenizer: Any, decoding: DecodeSettings | None) -> dict[int, Transcript]:
    if tokenizer is None:
        return {}
    n = min(packed.n_rows, DECODED_ROWS)
    rows = np.unique(np.linspace(0, packed.n_rows - 1, n).astype(int)).tolist()
    decoder = (decoding or DecodeSettings()).decoder(tokenizer)
    return dict(zip(rows, decoder.decode_batch(packed, rows), strict=True))


def _of_flags(flags: Mapping[int, Sequence[Flag]]) -> list[Problem]:
    first: dict[str, tuple[int, Flag]] = {}
    rows: dict[str, set[int]] = {}
    for row, found in sorted(flags.items()):
        for flag in found:
            first.setdefault(flag.name, (row, flag))
            rows.setdefault(flag.name, set()).add(row)
    return [
        Problem(name, flag.severity, flag.message, len(rows[name]), row)
        for name, (row, flag) in first.items()
    ]


def of_logprob_frame(packed: PackedBatch) -> Iterator[Problem]:
    """Logprobs that speak of the next token: they begin one token before what was sampled, and end one before its end.

    A row counts when the last token of every sampled run has a logprob of 0 or none while the token before the run has
    one.
    """
    for key in ("logprobs", "prox_logprobs"):
        track = packed.tracks.get(key)
        if track is None:
            continue
        shifted = [row for row in range(packed.n_rows) if _is_shifted(packed, track, row)]
        with_runs = sum(bool(packed.response_mask[packed.row(row)].any()) for row in range(packed.n_rows))
        if with_runs and len(shifted) >= SHIFTED_SHARE * with_runs:
            yield Problem(
                "logprobs_shifted",
                "error",
                f"{key} are one token early: they begin before the first sampled token and end before the last. Roll "
                "them right by one: `torch.roll(x, 1, -1)`.",
                len(shifted),
                shifted[0],
            )


def _is_shifted(packed: PackedBatch, track: np.ndarray, row: int) -> bool:
    where = packed.row(row)
    sampled, values = packed.response_mask[where], np.nan_to_num(track[where])
    starts = np.flatnonzero(sampled & ~np.r_[False, sampled[:-1]])
    stops = np.flatnonzero(sampled & ~np.r_[sampled[1:], False])
    if not len(starts) or starts[0] == 0:
        return False
    return bool((values[starts - 1] != 0).all() and (values[stops] == 0).all())


def of_groups(packed: PackedBatch, ledger: Ledger) -> Iterator[Problem]:
    """Groups of one, where no rollout is compared with another of its prompt."""
    sizes = np.unique(packed.group_ids, return_counts=True)[1]
    if packed.n_rows > 1 and (sizes == 1).all():
        prompts = ledger.get("prompt_key")
        known = [key for key in prompts.tolist() if key is not None]
        repeated = len(known) - len(set(known))
        said = f" although {repeated} rows repeat a prompt: give `group_ids`" if repeated else ""
        yield Problem(
            "groups_of_one", "warn" if repeated else "info", f"every rollout is a group{said}.", packed.n_rows
        )


def of_rewards(ledger: Ledger) -> Iterator[Problem]:
    """Rewards that are missing or say nothing."""
    rewards = ledger.get("reward")
    known = rewards[np.isfinite(rewards)]
    if not len(known):
        yield Problem("rewards_unknown", "warn", "no rollout has a reward.", ledger.n_rows)
    elif len(known) > 1 and np.ptp(known) == 0:
        yield Problem(
            "rewards_equal",
            "warn",
            f"every reward is {known[0]:g}: there is nothing to learn from.",
            len(known),
        )


def _to_show(
    transcripts: Mapping[int, Transcript], flags: Mapping[int, Sequence[Flag]]
) -> dict[int, Transcript]:
    """The rows with the worst flags, then the first ones."""

    def worst(row: int) -> tuple[int, int]:
        levels = [LEVELS.index(flag.severity) for flag in flags.get(row, ())]
        return (min(levels, default=len(LEVELS)), row)

    return {row: transcripts[row] for row in sorted(transcripts, key=worst)[:SHOWN_ROWS]}


def load_batch(path: Path) -> Any:
    """Loads what `check` takes from a file.

    Args:
        path: a `.pt` or `.pth` of tensors (loaded with `weights_only=True`), an `.npz` of arrays, or a `.parquet`
            whose columns hold a list a row for what is one value a token; such rows may differ in length.

    Raises:
        BatchError: there is no such file, or it is none of these.
    """
    if not path.is_file():
        what = "a folder. Expected one file with a batch" if path.is_dir() else "no such file"
        raise BatchError(f"{path}: {what}.")
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
