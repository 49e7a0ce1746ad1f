"""TRL: `<output_dir>/completions/completions_<step>.parquet`, the last generation batch at each log.

A column that is neither text nor one of TRL's own is a reward function or an extra. Which it was, and the
weights of the rewards, are not in the file: their sum stands in for the reward. TRL writes a batch again at each
log, as often as it trains on it; what the file before has already is left out. A checkpoint beside it tells at which
steps an evaluation was logged last.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from rollout_traces.errors import FileRefused, extra
from rollout_traces.model.bounded_reading import read, schema_of
from rollout_traces.model.units import LARGEST_EXACT
from rollout_traces.sources.base import EVAL, TRAIN, Claim, FileFormat, FileReading, Head, number_in
from rollout_traces.sources.chat import messages_of
from rollout_traces.sources.lines import loads
from rollout_traces.sources.problems import said_of
from rollout_traces.sources.rows import NO_TOKENS, RolloutRow, number, numbers

OWN = ("step", "prompt", "completion", "advantage", "image", "images", "__index_level_0__")
"""Columns that are TRL's own, or made by pandas."""
_NAME = r"^completions_(\d+)\.parquet$"
_SPLIT = "whether it was training or evaluation (no checkpoint of its step lies beside it)"


class TrlParquet(FileFormat):
    """`step, prompt, completion`, a column a reward function, extras, `advantage`."""

    name = "trl"
    title = "TRL, log_completions parquet"

    def claim(self, head: Head) -> Claim | None:
        step = number_in(_NAME, head.path.name)
        if step is None:
            return None
        root = head.above("completions")
        lacks = [
            *NO_TOKENS,
            "weights of the rewards (their plain sum is the reward)",
            "groups (equal prompts are one)",
        ]
        if not _logs_of(root).tell_of(step):
            lacks.append(_SPLIT)
        return Claim(root, step, TRAIN, lacks)

    def read(self, reading: FileReading) -> Iterator[RolloutRow]:
        with extra("reading", "reading parquet"):
            import pyarrow  # noqa: F401
        claim = reading.found.claim
        step, logs = claim.step or 0, _logs_of(claim.root)
        if not logs.tell_of(step):
            text = (
                "no checkpoint lies beside its completions, or only older ones: nothing tells which are of an evaluation, and "
                "they count as training."
            )
            reading.problems.once(claim.root, "splits_not_told", text)
        try:
            numeric = [f.name for f in schema_of(reading.path) if _is_number(f.type) and f.name not in OWN]
            before, logged = _logged(reading.path)
            repeated = n_repeated(before, logged, whole_only=False)
            for n, value in enumerate(logged, 1):
                if n <= repeated:
                    continue
                row = row_of(value, numeric, step, n)
                row.split = EVAL if step in logs.evaluated else TRAIN
                yield row
        except (FileRefused, OSError) as error:
            reading.note("unreadable_files", said_of(reading.path, error))
            return
        if repeated:
            text = f"its first {repeated} rows are the last of the file before; they are passed over."
            reading.note("repeated_rows", text)


def row_of(
    value: Mapping[str, Any], rewards: Sequence[str], step: int, line: int, weights: Sequence[float] = ()
) -> RolloutRow:
    """A rollout of a row of TRL's completions table.

    Args:
        value: the row.
        rewards: names of its columns that are rewards.
        step: the step where the row has none.
        line: its number.
        weights: of each of `rewards`; 1 each when empty.
    """
    prompt, completion = value.get("prompt"), value.get("completion")
    before = messages_of(_plain(prompt)) or []
    after = _plain(completion)
    reply = [{"role": "assistant", "content": after}] if isinstance(after, str) else messages_of(after) or []
    components = {name: number(value.get(name)) for name in rewards}
    weighted = zip(components.values(), weights or [1.0] * len(rewards), strict=True)
    known = [score * weight for score, weight in weighted if score is not None and score == score]
    others = {k: v for k, v in value.items() if k not in OWN and k not in components}
    return RolloutRow(
        step=_step(value.get("step"), step),
        line=line,
        messages=[*before, *reply] or None,
        n_prompt_messages=len(before),
        reward=sum(known) if known else None,
        components=components,
        metrics=numbers({k: v for k, v in others.items() if not isinstance(v, bool)}),
        advantage=number(value.get("advantage")),
        extras={name: item for name, item in others.items() if isinstance(item, (str, bool))},
    )


def _step(given: Any, otherwise: int) -> int:
    """A row's step, which older versions of TRL write as text."""
    try:
        step = otherwise if given is None else int(given)
    except (TypeError, ValueError, OverflowError):
        return otherwise
    return step if abs(step) < LARGEST_EXACT else otherwise


def _plain(value: Any) -> Any:
    """Messages out of structs: what a message, or a call's arguments, do not have is null there."""
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, Mapping):
        return {name: _plain(item) for name, item in value.items() if item is not None}
    return value


def n_repeated(
    before: Sequence[Mapping[str, Any]], now: Sequence[Mapping[str, Any]], *, whole_only: bool
) -> int:
    """Counts the rows at the beginning of a table that are the last rows of the table before it.

    Args:
        before: rows of the table before.
        now: rows of the table.
        whole_only: all rows are, or none: a new generation batch takes the whole queue.
    """
    old, new = _without_step(before), _without_step(now)
    if old == new:
        return len(new)
    if whole_only or not new:
        return 0
    for start, record in enumerate(old):
        if record == new[0] and old[start:] == new[: len(old) - start]:
            return len(old) - start
    return 0


def _without_step(records: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    return [{name: value for name, value in record.items() if name != "step"} for record in records]


def _logged(path: Path) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The rows of the file that was written before, and the file's own; a step's file is one generation batch."""
    step = number_in(_NAME, path.name) or 0
    others = {number_in(_NAME, other.name): other for other in path.parent.glob("completions_*.parquet")}
    earlier = [other for other in others if other is not None and other < step]
    before: list[dict[str, Any]] = []
    if earlier:
        with contextlib.suppress(FileRefused, OSError):  # damaged, which is said of that file itself
            before = read(others[max(earlier)]).to_pylist()
    return before, read(path).to_pylist()


@dataclass(frozen=True)
class _Logs:
    """The logs before a checkpoint, as its `trainer_state.json` tells of them.

    Attributes:
        until: the last step that it tells of; -1 where there is no checkpoint.
        evaluated: the steps whose last log was an evaluation's.
    """

    until: int = -1
    evaluated: frozenset[int] = frozenset()

    def tell_of(self, step: int) -> bool:
        """Tells whether it is known what a step's file was written by."""
        return step <= self.until


def _logs_of(root: Path) -> _Logs:
    """Reads what the newest checkpoint of a run tells."""
    states = [*root.glob("trainer_state.json"), *root.glob("checkpoint-*/trainer_state.json")]
    newest = max(states, key=lambda path: path.stat().st_mtime_ns, default=None)
    return _Logs() if newest is None else _read_logs(newest, newest.stat().st_mtime_ns)


@lru_cache
def _read_logs(path: Path, mtime_ns: int) -> _Logs:
    try:
        state = loads(path.read_bytes())
        of_evaluations = {e["step"] for e in state["log_history"] if any(k.startswith("eval_") for k in e)}
        return _Logs(int(state["global_step"]), frozenset(of_evaluations))
    except (OSError, ValueError, TypeError, KeyError):
        return _Logs()


def _is_number(kind: Any) -> bool:
    import pyarrow as pa

    return pa.types.is_floating(kind) or pa.types.is_integer(kind)
