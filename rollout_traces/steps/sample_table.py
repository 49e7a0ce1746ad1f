"""A step as a table of samples: one row a rollout with its text, rank and weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from rollout_traces.ledger.columns import Ledger
from rollout_traces.ledger.groups import GroupIndex
from rollout_traces.model.packed_batch import PackedBatch
from rollout_traces.model.text import encodable, words
from rollout_traces.model.transcript import Transcript
from rollout_traces.model.whole_files import unfinished

COLUMNS = words(
    "step prompt_index completion_index group_size reward_rank_desc prompt completion reward_total advantage"
)


def sample_table(ledger: Ledger, transcripts: Mapping[int, Transcript]) -> dict[str, Any]:
    """The table of the rollouts that were decoded: `columns`, and `data`, a list a row, None where unknown.

    Args:
        ledger: all B rows of the step; ranks and group sizes are over all of them.
        transcripts: row -> its transcript; these rows are in the table, in their order.
    """
    groups = GroupIndex.of(ledger.get("group"))
    components = sorted(name for name in ledger.columns if name.startswith("component/"))
    prompt_index = _by_appearance(groups)
    ranks = reward_ranks(ledger.get("reward"), groups)
    data = []
    for row in sorted(transcripts):
        known = ledger.row(row)
        prompt, completion = prompt_and_completion(transcripts[row])
        data.append(
            [
                known.get("step"),
                int(prompt_index[row]),
                known.get("sample"),
                int(groups.sizes[groups.codes[row]]),
                ranks[row],
                prompt,
                completion,
                known.get("reward"),
                known.get("advantage"),
                *(known[name] for name in components),
            ]
        )
    names = [f"reward/{name.removeprefix('component/')}" for name in components]
    return {"columns": [*COLUMNS, *names], "data": data}


def reward_ranks(rewards: np.ndarray, groups: GroupIndex) -> list[int | None]:
    """B ranks: 1 = best of its group, equal rewards in the order of the rows, None where unknown."""
    ranks: list[int | None] = [None] * len(rewards)
    for rows in groups.rows():
        known = rows[np.isfinite(rewards[rows])]
        for rank, row in enumerate(known[np.argsort(-rewards[known], kind="stable")].tolist(), start=1):
            ranks[row] = rank
    return ranks


def prompt_and_completion(transcript: Transcript) -> tuple[str, str]:
    """The rollout's text before its first sampled token, and from there on."""
    sampled = np.flatnonzero(transcript.tokens.response_mask)
    raw = transcript.raw
    at = int(transcript.tokens.char_starts[sampled[0]]) if len(sampled) else len(raw)
    return raw[:at], raw[at:]


def write_table(path: str | Path, table: Mapping[str, Any]) -> None:
    """Writes a table as strict JSON, `{"columns": [...], "data": [[...]]}`, whole or not at all.

    Args:
        path: the file; its folder is made where it is missing.
        table: what to write; values that are not finite become null.

    Raises:
        NotWritten: the file cannot be written.
    """
    data = [[encodable(v) if isinstance(v, str) else v for v in row] for row in table["data"]]
    with unfinished(path) as made:
        made.write_bytes(orjson.dumps({**table, "data": data}))


def table_path(folder: str | Path, split: str, step: int) -> Path:
    """The path of a step's table, in the folder of one run."""
    return Path(folder) / split / f"{step:08d}.json"


def _by_appearance(groups: GroupIndex) -> np.ndarray:
    """int64 [B]: the number of each row's group, in the order in which groups first appear."""
    _, first = np.unique(groups.codes, return_index=True)
    number = np.empty(len(groups), np.int64)
    number[np.argsort(first, kind="stable")] = np.arange(len(groups))
    return number[groups.codes]


Decode = Callable[[PackedBatch, Sequence[int]], Mapping[int, Transcript]]
"""Rows of a batch -> their transcripts; a row that cannot be decoded is absent."""


def write_all_rows(folder: str | Path, batch: PackedBatch, ledger: Ledger, decode: Decode) -> Path:
    """Writes a step's sample table with every row that has tokens, text included.

    Args:
        folder: of the run.
        batch: all rollouts of the step.
        decode: gives transcripts.

    Returns:
        The file, `<folder>/<split>/<step>.json`.

    Raises:
        NotWritten: the file cannot be written.
    """
    transcripts = decode(batch, np.flatnonzero(batch.has_tokens).tolist())
    path = table_path(folder, batch.split, batch.step)
    write_table(path, sample_table(ledger, transcripts))
    return path
