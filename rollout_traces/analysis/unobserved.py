"""What an answer lacks: what cannot be known without inputs that a run did not log, and, in a line, a part that raised."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from rollout_traces.analysis.selections import RunScope
from rollout_traces.model.text import quoted

INPUTS = (
    ("reward", "rewards", "rewards, groups that teach nothing", "`rewards`"),
    ("group", "groups", "ties, differences inside groups, groups of several prompts", "`group_ids`"),
    ("prompt_key", "prompts over time", "memorised prompts, repeated prompts, flips", "`prompt_keys`"),
    ("source", "parts by source", "faults of one source, the data mix", "`sources`"),
    ("engine", "parts by engine", "one engine off, engines that came or went", "`engine_ids`"),
    (
        "mismatch_k3",
        "trainer against sampler",
        "mismatch of engines, versions and tokenizers",
        "`logprobs` and `prox_logprobs`",
    ),
    ("version_max", "policy versions", "weights that were not synchronised", "`versions`"),
    ("staleness_max", "staleness", "samples that are too old", "`versions` and `train_version`"),
    ("stop_reason", "why sampling stopped", "truncation", "`stop_reasons`"),
    (
        "reward_status",
        "whether the reward function failed",
        "failures of the reward function",
        "`reward_statuses`",
    ),
    ("component/", "reward components", "which part of the reward moved", "`reward_components`"),
    ("update_share", "shares of the update", "rollouts that dominate a step", "`advantages` and `logprobs`"),
    ("success", "successes", "solved prompts, why groups are tied", "`successes`"),
    (
        "n_tool_errors",
        "tool calls",
        "failing tools",
        "traces (`max_rollout_traces_per_step` above 0) of tool calls",
    ),
    ("reply", "texts", "phrases that winners write", "traces (`max_rollout_traces_per_step` above 0)"),
)
"""Column, what it shows, which diagnoses need it, what to log."""


@dataclass(frozen=True)
class Unobserved:
    """Something that cannot be known.

    Attributes:
        what: what is missing.
        hides: the diagnoses that cannot be made without it.
        log: what to log.
    """

    what: str
    hides: str
    log: str

    def __str__(self) -> str:
        return f"{self.what}: unobserved, so nothing is known of {self.hides}. Log {self.log}."


def unobserved(run: RunScope) -> list[Unobserved]:
    """Lists the columns that no rollout of the run knows."""
    names = [name for name, *_ in INPUTS if name in run.columns.names]
    known: set[str] = set()
    if names:
        parts = ", ".join(f'count("{name}") as c{i}' for i, name in enumerate(names))
        row = run.relations.sql(f"select {parts} from rollouts where {run.scope}", run.params).to_pylist()[0]
        known = {name for i, name in enumerate(names) if row[f"c{i}"]}
    if any(name.startswith("component/") for name in run.columns.names):
        known.add("component/")
    missing = [Unobserved(what, hides, log) for name, what, hides, log in INPUTS if name not in known]
    if run.columns.has("split"):
        rows = run.relations.sql(
            "select 1 from rollouts where run = ? and split like 'eval%' limit 1", [run.run]
        ).to_pylist()
        if not rows:
            missing.append(
                Unobserved(
                    "evaluations",
                    "whether the reward and its purpose part ways, flips",
                    "an evaluation split (`eval-rollout`)",
                )
            )
    return missing


T = TypeVar("T")


@dataclass(eq=False)
class Contained:
    """Runs parts of an answer, and says in a line what raised.

    Attributes:
        problems: a line for each.
    """

    problems: list[str] = field(default_factory=list)

    def __call__(self, what: str, compute: Callable[..., T], *arguments: Any) -> T | None:
        """Returns what a part computes; None where it raises."""
        try:
            return compute(*arguments)
        except Exception as error:  # noqa: BLE001  counted and said
            place = traceback.extract_tb(error.__traceback__)[-1]
            where = f"{place.name}, line {place.lineno}"
            self.problems.append(f"{what}: {type(error).__name__}: {quoted(error, 200)} ({where})")
            return None
