"""What the Health page shows of a step: metrics of it under their own names, each with the filter that shows examples."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class StepMeasure:
    """One metric of a step, and where to look when it stands out.

    Attributes:
        key: the metric's key, without the split; its name in addresses too.
        title: what the chart says.
        meaning: one sentence with the unit.
        where: a filter in the query language that finds rollouts behind it.
        order: the order in which examples are shown.
        unit: `share`, `count` or `number`.
        otherwise: the key that stands in where the step does not have this one.
    """

    key: str
    title: str
    meaning: str
    where: str = ""
    order: str = ""
    unit: Literal["share", "count", "number"] = "share"
    otherwise: str = ""

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys it may be read from, the best first."""
        return (self.key, self.otherwise) if self.otherwise else (self.key,)


FLAGGED = "flags/any_share"
"""Not a metric of the step but counted from its rows: rollouts with a flag that is found without text."""

MEASURES = (
    StepMeasure(
        "reward/mean",
        "Reward, mean",
        "mean reward of all rollouts whose reward function did not fail",
        order="reward",
        unit="number",
    ),
    StepMeasure(
        FLAGGED,
        "Flagged",
        "share of all rollouts with a flag that is found without text, so that it does not move with the cap",
        "flags is not null",
    ),
    StepMeasure(
        "group/tie_share",
        "Tied groups",
        "share of groups of two or more whose rewards are all equal",
        "flags has 'tied_group'",
    ),
    StepMeasure(
        "group/wasted_token_share",
        "Tokens in tied groups",
        "share of sampled tokens that lie in tied groups",
        "flags has 'tied_group'",
        "-n_sampled",
    ),
    StepMeasure(
        "discarded/share",
        "Discarded",
        "share of rollouts left out of training",
        "discard_reason is not null",
    ),
    StepMeasure(
        "stop/length_share",
        "Truncated",
        "share of rollouts cut by length, among those with a stop reason",
        "stop_reason = 'length'",
    ),
    StepMeasure(
        "staleness/mean",
        "Staleness, mean",
        "mean over sampled tokens of the version being trained minus the token's",
        "staleness_max > 0",
        "-staleness_max",
        "number",
    ),
    StepMeasure(
        "staleness/mixed_share",
        "Mixed versions",
        "share of rollouts sampled by more than one version",
        "staleness_max > 0",
        "-staleness_max",
    ),
    StepMeasure(
        "mismatch/k3",
        "Train against rollout, k3",
        "mean over sampled tokens of e^d − d − 1, d = prox minus rollout logprob",
        "mismatch_k3 is not null",
        "-mismatch_k3",
        "number",
    ),
    StepMeasure(
        "mismatch/abs_max",
        "Largest mismatch of a token",
        "largest |prox − rollout logprob| of the step, nats",
        "mismatch_k3 is not null",
        "-mismatch_k3",
        "number",
    ),
    StepMeasure(
        "update/top3_share",
        "Update in three rollouts",
        "share of the step's update that its three heaviest rollouts carry",
        "update_share is not null",
        "-update_share",
    ),
    StepMeasure(
        "tools/errors_per_call",
        "Tool errors a call",
        "failed tool results per call, over all rollouts, or over those kept at random where not all were decoded",
        "n_tool_errors > 0",
        "-n_tool_errors",
        otherwise="tools/errors_per_call_of_random",
    ),
    StepMeasure(
        "reward/failed_share",
        "Rewards that failed",
        "share of rollouts whose reward timed out or failed",
        "reward_status in ('timeout', 'error')",
    ),
)
"""In the order of the page; one that is unknown at every step is not shown."""
