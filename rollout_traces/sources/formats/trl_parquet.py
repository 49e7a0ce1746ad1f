"""TRL: `<output_dir>/completions/completions_<step>.parquet`, the last generation batch at each log.

A column that is neither text nor one of TRL's own is a reward function or an extra. Which it was, and the
weights of the rewards, are not in the file: their sum stands in for the reward.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rollout_traces.bounded_parquet import batches, schema_of
from rollout_traces.errors import FileRefused
from rollout_traces.extras import extra
from rollout_traces.sources.base import TRAIN, Claim, Format, Found, Head, ReadOptions, number_in
from rollout_traces.sources.chat import messages_of
from rollout_traces.sources.problems import Problems, said_of
from rollout_traces.sources.rows import RolloutRow, number, numbers

OWN = ("step", "prompt", "completion", "advantage", "image", "images", "__index_level_0__")
"""Columns that are TRL's own, or made by pandas."""
ROWS = 256
"""Rows in memory at once."""


class TrlParquet(Format):
    """`step, prompt, completion`, a column a reward function, extras, `advantage`."""

    name = "trl"
    title = "TRL, log_completions parquet"
    lines = False

    def claim(self, head: Head) -> Claim | None:
        step = number_in(r"^completions_(\d+)\.parquet$", head.path.name)
        if step is None or not head.raw.startswith(b"PAR1"):
            return None
        root = head.path.parent
        root = root.parent if root.name == "completions" else root
        lacks = (
            "token ids", "loss mask", "logprobs", "weights of the rewards (their plain sum is the reward)",
            "groups (equal prompts are one)", "whether it was training or evaluation",
        )  # fmt: skip
        return Claim(root, step, TRAIN, lacks, head.path.name)

    def rows(
        self, found: Found, problems: Problems, options: ReadOptions, start: int = 0, line: int = 0
    ) -> Iterator[tuple[RolloutRow, int, int]]:
        with extra("reading", "reading parquet"):
            import pyarrow  # noqa: F401
        try:
            numeric = [f.name for f in schema_of(found.path) if _is_number(f.type) and f.name not in OWN]
            n = 0
            for part in batches(found.path, rows=ROWS):
                for value in part.to_pylist():
                    n += 1
                    yield row_of(value, numeric, found.claim.step or 0, n), 0, n
        except (FileRefused, OSError) as error:
            problems.add(found.path, "unreadable_files", said_of(found.path, error))


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
    return step if abs(step) < 2**53 else otherwise


def _plain(value: Any) -> Any:
    """Messages out of structs: fields that a message does not have are null there."""
    if isinstance(value, list):
        return [
            {k: v for k, v in item.items() if v is not None} if isinstance(item, Mapping) else item
            for item in value
        ]
    return value


def _is_number(kind: Any) -> bool:
    import pyarrow as pa

    return pa.types.is_floating(kind) or pa.types.is_integer(kind)
