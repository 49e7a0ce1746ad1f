"""What an adapter handed over, as it was stored, against rows that the trainer itself made.

A script imports this before its trainer: it sets where Trackio writes.
"""

from __future__ import annotations

import math
import os
import sys
import tempfile
import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

warnings.filterwarnings("ignore")
FOLDER = Path(tempfile.mkdtemp())
os.environ.update(
    HF_HUB_OFFLINE="1",
    TOKENIZERS_PARALLELISM="false",
    TRACKIO_DIR=str(FOLDER),
    LITELLM_LOCAL_MODEL_COST_MAP="True",
)
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np  # noqa: E402

from rollout_traces import RolloutLogger  # noqa: E402
from rollout_traces.model.batch import RolloutBatch  # noqa: E402
from rollout_traces.trace.conversion import TraceRecord, read_ledger, read_transcript  # noqa: E402
from tests.trainers.areal_compare import rows_of  # noqa: E402
from tests.trainers.result import report, report_row  # noqa: E402

TOLERANCES = {"logprobs": 1e-3, "prox_logprobs": 1e-3, "advantages": 2e-3, "token_rewards": 2e-3}
"""How far a stored track may be from the trainer's values: traces keep floats to about a thousandth."""


@dataclass(frozen=True)
class Row:
    """A rollout as the trainer has it.

    Attributes:
        ids: n token ids, padding gone.
        trained: n values, true where the token is in the trainer's loss.
        reward: the trainer's.
        group: equal for rows that the trainer compares with each other.
        sampled: n values, true where the policy wrote the token; None: as `trained`.
        tracks: name -> n values, compared where `sampled`.
        episode: equal for rows of one run of an environment; None: not compared.
        metadata: key of the trace -> value.
        split: of the step.
    """

    ids: Sequence[int]
    trained: Sequence[Any]
    reward: float
    group: Any
    sampled: Sequence[Any] | None = None
    tracks: Mapping[str, Sequence[float]] = field(default_factory=dict)
    episode: Any = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    split: str = "rollout"


class Comparison:
    """Logs steps through an adapter, and compares what was stored with the trainer's rows.

    Args:
        name: the line of the table.
        distribution: the trainer's package.
        tokenizer: decodes the rows.
    """

    def __init__(self, name: str, distribution: str, tokenizer: Any) -> None:
        self.name, self.distribution = name, distribution
        self.logger = RolloutLogger(
            project="rows",
            name="r",
            tokenizer=tokenizer,
            max_rollout_traces_per_step=100_000,
            selection="all",
        )
        self.rows: list[tuple[int, Row]] = []
        self.hook_seconds = self.step_seconds = 0.0
        self.steps = 0

    def step(self, step: int, own: Callable[[], Any], adapt: Callable[[Any], list[RolloutBatch]]) -> Any:
        """Runs a step of the trainer, then logs it; both are timed.

        Args:
            step: the trainer's step.
            own: the trainer's own work; its result is returned.
            adapt: what the adapter makes of that result.
        """
        start = time.perf_counter()
        made = own()
        done = time.perf_counter()
        self.logger.log_rollouts(adapt(made), step=step)
        self.logger.close_step(step)
        self.timed(done - start, time.perf_counter() - done)
        return made

    def timed(self, own_seconds: float, hook_seconds: float) -> None:
        """Counts a step's seconds; those of the first are not, since the logger's start is in them."""
        if self.steps:
            self.hook_seconds += hook_seconds
            self.step_seconds += own_seconds
        self.steps += 1

    def add(self, step: int, rows: Sequence[Row]) -> None:
        """Rows that the trainer has of a step."""
        self.rows += [(step, row) for row in rows]

    def finish(self, integration: str | None = None) -> None:
        """Compares, prints, and raises where a row is missing or differs.

        Args:
            integration: whose hooks timed the steps; None: `step` did.
        """
        self.logger.finish()
        stored = {
            split: rows_of(FOLDER, "rows", f"{split}/trajectories") for split in ("rollout", "eval-rollout")
        }
        # A row without tokens has no trace, and is in the ledger alone.
        differences = compare([(step, row) for step, row in self.rows if row.ids], stored)
        differences += self._ledger_differences()
        equal = len(self.rows) - len(differences)
        if integration is not None:
            report(self.name, integration, self.distribution, rows=len(self.rows), equal=equal)
            assert not differences, differences[:3]
            return
        timed = max(self.steps - 1, 1)
        report_row(
            self.name,
            self.distribution,
            rows=len(self.rows),
            equal=equal,
            hook_ms=self.hook_seconds / timed * 1e3,
            step_ms=self.step_seconds / timed * 1e3,
            n_steps=timed,
        )
        assert not differences, differences[:3]

    def _ledger_differences(self) -> list[str]:
        """Steps whose rewards in the ledger, those of rows without tokens among them, are not the trainer's."""
        stored = {
            (split, step): sorted(read_ledger(record).columns["reward"].tolist())
            for split in ("rollout", "eval-rollout")
            for step, record in rows_of(FOLDER, "rows", f"{split}/steps")
        }
        mine: dict[tuple[str, int], list[float]] = defaultdict(list)
        for step, row in self.rows:
            mine[row.split, step].append(row.reward)
        return [
            f"the ledger of {place} has other rewards: {stored.get(place)} is not {sorted(rewards)}"
            for place, rewards in mine.items()
            if len(stored.get(place, ())) != len(rewards)
            or not np.allclose(stored[place], sorted(rewards), atol=1e-6)
        ]


def compare(rows: list[tuple[int, Row]], stored: Mapping[str, list[tuple[int, TraceRecord]]]) -> list[str]:
    """Why rows differ from what was stored, a text each.

    Args:
        rows: (step, the trainer's row).
        stored: split -> (step, trace).
    """
    left = defaultdict(list)
    n_left = 0
    for split, traces in stored.items():
        for step, record in traces:
            track = read_transcript(record).tokens
            left[split, step, tuple(track.input_ids.tolist())].append((record.metadata, track))
            n_left += 1
    differences, names = [], _Names()
    for step, row in rows:
        candidates = left[row.split, step, tuple(row.ids)]
        reasons = [_difference(row, track, metadata) for metadata, track in candidates]
        if None not in reasons:
            differences.append(f"step {step}, {row.group}: {reasons[0] if reasons else 'was not stored'}")
            continue
        metadata, _ = candidates.pop(reasons.index(None))
        n_left -= 1
        differences += names.seen(step, row, metadata)
    if n_left:
        differences.append(f"{n_left} traces were stored that the trainer has no row of")
    return differences


class _Names:
    """Groups and episodes of the trainer against those that were stored: one of each for one of the other."""

    def __init__(self) -> None:
        self.known: dict[tuple, Any] = {}

    def seen(self, step: int, row: Row, metadata: Mapping[str, Any]) -> list[str]:
        found = []
        for key, mine in (("group", row.group), ("episode", row.episode)):
            if mine is None:
                continue
            theirs = metadata.get(key)
            there = self.known.setdefault((key, row.split, step, "mine", mine), theirs)
            back = self.known.setdefault((key, row.split, step, "stored", theirs), mine)
            if theirs is None or there != theirs or back != mine:
                found.append(f"step {step}: {key} {mine!r} was stored as {theirs!r}, which is {back!r}")
        return found[:1]


def _difference(row: Row, track: Any, metadata: Mapping[str, Any]) -> str | None:
    """What of a stored row is another value; None where nothing is."""
    sampled = np.asarray(row.trained if row.sampled is None else row.sampled).astype(bool)
    if track.response_mask.tolist() != sampled.tolist():
        return (
            f"response mask {track.response_mask.astype(int).tolist()} is not {sampled.astype(int).tolist()}"
        )
    if track.loss_mask.tolist() != [bool(value) for value in row.trained]:
        return "the loss mask differs"
    if not math.isclose(metadata.get("reward", math.nan), row.reward, rel_tol=1e-6, abs_tol=1e-6):
        return f"reward {metadata.get('reward')} is not {row.reward}"
    for name, values in row.tracks.items():
        if name not in track.tracks:
            return f"{name} was not stored"
        mine, theirs = np.asarray(values, float)[sampled], np.asarray(track.tracks[name], float)[sampled]
        if not np.allclose(theirs, mine, rtol=1e-3, atol=TOLERANCES.get(name, 0), equal_nan=True):
            return f"{name} {theirs.tolist()} is not {mine.tolist()}"
    for key, value in row.metadata.items():
        mine = metadata.get(key)
        same = (
            math.isclose(mine, value, rel_tol=1e-5)
            if isinstance(value, float) and mine is not None
            else mine == value
        )
        if not same:
            return f"{key} {mine!r} is not {value!r}"
    return None
