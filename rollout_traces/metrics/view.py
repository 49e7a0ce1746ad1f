"""A step as its metrics see it, and what its decoded rollouts say about their tools."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from rollout_traces.ledger.columns import NULL_INT, Ledger
from rollout_traces.ledger.groups import (
    GroupIndex,
    first_rows,
    has_episodes,
    known_rewards,
    reward_failed,
    with_episode_lengths,
)
from rollout_traces.ledger.text_facts import tool_failed
from rollout_traces.ledger.tokens import MaskedTokens
from rollout_traces.model.packed_batch import PackedBatch
from rollout_traces.model.transcript import Transcript
from rollout_traces.settings.run_settings import RunSettings

Values = dict[str, float]
"""Values by key, without the split in front. A key that cannot be computed is absent, never 0."""


@dataclass(frozen=True)
class ToolUse:
    """Tool calls and results of one rollout.

    Attributes:
        calls: tool name -> parsed calls.
        unparsed: calls that could not be parsed.
        results: tool results.
        errors: results that say they failed.
        messages: turns of any role.
        errors_by_turn: failed results after each assistant turn, in the order of the turns.
    """

    calls: Mapping[str, int]
    unparsed: int
    results: int
    errors: int
    messages: int
    errors_by_turn: tuple[int, ...] = ()


def tool_use(transcript: Transcript) -> ToolUse:
    """Counts the tool calls and results of a transcript."""
    errors_by_turn: list[int] = []
    for turn in transcript.turns:
        if turn.role == "assistant":
            errors_by_turn.append(0)
        elif errors_by_turn and tool_failed(turn):
            errors_by_turn[-1] += 1
    calls = [call for turn in transcript.turns for call in turn.tool_calls]
    return ToolUse(
        calls=Counter(call.name for call in calls if call.parsed),
        unparsed=sum(not call.parsed for call in calls),
        results=sum(turn.role == "tool" for turn in transcript.turns),
        errors=sum(map(tool_failed, transcript.turns)),
        messages=len(transcript.turns),
        errors_by_turn=tuple(errors_by_turn),
    )


UNKNOWN_STALENESS = np.iinfo(np.int64).min
"""The staleness of a token whose version is unknown."""


@dataclass(frozen=True, eq=False)
class StepView:
    """All rollouts of one step and split.

    Attributes:
        ledger: B rows.
        batch: the same B rollouts with their tokens, or None.
        settings: what the run declared.
        tool_use: row -> what its decoded text says about tools, for traced rows.
        group_scalars: name -> one value a group, given by the caller.
        not_given: as in the batch: key -> bool [B], the rows that came without it. NaN of a row that did not
            is what was given. None where the ledger alone is at hand, in which NaN is unknown.
        whole: the step of which this is a part; None when it is one.
    """

    ledger: Ledger
    batch: PackedBatch | None = None
    settings: RunSettings = field(default_factory=RunSettings)
    tool_use: Mapping[int, ToolUse] = field(default_factory=dict)
    group_scalars: Mapping[str, Sequence[float]] = field(default_factory=dict)
    not_given: Mapping[str, np.ndarray] | None = None
    whole: StepView | None = None

    def has(self, name: str) -> bool:
        """Tells whether a ledger column, a track, a batch value or a setting is known.

        `group_ids` are where some group has two rollouts.
        """
        return name in self.inputs

    @cached_property
    def inputs(self) -> frozenset[str]:
        """The names for which `has` is true."""
        columns = (self.whole or self).known_columns
        found = {*columns, *self.settings.declared_names}
        found |= {name[:at] for name in columns for at, character in enumerate(name) if character == "/"}
        found |= {name for name in ("tool_use", "group_scalars") if getattr(self, name)}
        if self.batch is not None:
            found |= {*self.batch.tracks, *self.batch.row_floats, *self.batch.row_lists} - {"group_ids"}
            found |= set() if self.batch.train_version is None else {"train_version"}
        return frozenset(found | ({"group_ids"} if (self.groups.sizes >= 2).any() else set()))

    @cached_property
    def known_columns(self) -> list[str]:
        """The ledger's columns of which some row has a value; NaN is none, but a reward that was given as NaN is one."""
        columns = self.ledger.columns.items()
        known = [name for name, values in columns if values.dtype != np.float64 or not np.isnan(values).all()]
        return [*known, "reward"] if self._has_rewards and "reward" not in known else known

    @property
    def _has_rewards(self) -> bool:
        """Some row came with a reward, be it NaN."""
        if self.batch is None or "rewards" not in self.batch.row_floats:
            return False
        return bool(self.given("row_floats/rewards", self.batch.row_floats["rewards"]).any())

    def floats(self, name: str) -> np.ndarray:
        """float64 [B] of a numeric column, NaN where unknown."""
        column = self.ledger.get(name)
        if column.dtype == np.int64:
            return np.where(column == NULL_INT, np.nan, column)
        return column

    def known(self, name: str) -> np.ndarray:
        """float64: the finite values of a numeric column, in the order of the rows."""
        values = self.floats(name)
        return values[np.isfinite(values)]

    def given(self, key: str, values: np.ndarray) -> np.ndarray:
        """bool [B]: rows that came with a value, be it NaN.

        Args:
            key: `row_floats/<name>`, `reward_components/<name>` or `sample_metrics/<name>`.
            values: float64 [B]; where nothing says, NaN is taken for not given.
        """
        if self.not_given is None:
            return ~np.isnan(values)
        return ~self.not_given.get(key, np.zeros(self.ledger.n_rows, bool))

    def named(self, prefix: str) -> dict[str, np.ndarray]:
        """The columns `<prefix>/<name>` by name, float64 [B]."""
        start = f"{prefix}/"
        return {
            name.removeprefix(start): column
            for name, column in self.ledger.columns.items()
            if name.startswith(start)
        }

    @cached_property
    def rewards(self) -> np.ndarray:
        """float64 [B]: the rewards, NaN where unknown or where the reward function failed."""
        return known_rewards(self.ledger)

    @cached_property
    def reward_failed(self) -> np.ndarray:
        """bool [B]: the reward function timed out or raised."""
        return reward_failed(self.ledger)

    @cached_property
    def reward_span(self) -> tuple[float, float]:
        """The reward range: as declared, else the smallest and largest reward of the whole step."""
        if self.whole is not None:
            return self.whole.reward_span
        declared = self.settings.reward_range
        if declared is not None:
            return declared.min, declared.max
        known = self.rewards[np.isfinite(self.rewards)]
        return (float(known.min()), float(known.max())) if len(known) else (0.0, 0.0)

    @cached_property
    def truncated(self) -> np.ndarray:
        """bool [B]: sampling was cut by the length limit."""
        return self.ledger.get("stop_reason") == "length"

    @cached_property
    def episodes(self) -> StepView:
        """The same step with one row an episode, its length summed; itself where no two rows share one."""
        if not has_episodes(self.ledger):
            return self
        whole = replace(self, ledger=with_episode_lengths(self.ledger))
        return whole.take(first_rows(self.ledger))

    @cached_property
    def groups(self) -> GroupIndex:
        """The index of which rows belong together."""
        return GroupIndex.of(self.ledger.get("group"))

    @cached_property
    def random_rows(self) -> np.ndarray:
        """bool [B]: the rows that were traced because chance took them; only they may estimate shares."""
        return self.ledger.get("selected_by") == "random"

    @property
    def tokens(self) -> PackedBatch:
        """The rollouts with their tokens, for families that declare `reads="tokens"`."""
        if self.batch is None:
            raise ValueError("this metric reads tokens, and the view has none. Declare reads='tokens'.")
        return self.batch

    @cached_property
    def discarded(self) -> np.ndarray:
        """bool [B]: the rows that the trainer left out."""
        return np.asarray([reason is not None for reason in self.ledger.get("discard_reason").tolist()], bool)

    @cached_property
    def sampled(self) -> MaskedTokens:
        """The sampled tokens of all rows."""
        return MaskedTokens.sampled(self.tokens)

    @cached_property
    def in_loss(self) -> MaskedTokens:
        """The loss tokens of all rows."""
        return self.sampled if self.tokens.loss_is_sampled else MaskedTokens.in_loss(self.tokens)

    @property
    def loss_advantages(self) -> np.ndarray:
        """[M] over the loss tokens, for families that need `advantages`."""
        values = self.in_loss.advantages
        assert values is not None
        return values

    @cached_property
    def token_staleness(self) -> np.ndarray:
        """int64 [M] over the sampled tokens: train version less version, below 0 for tokens ahead of the trainer.

        `UNKNOWN_STALENESS` where the version is unknown. For families that need `versions` and `train_version`.
        """
        versions = self.sampled["versions"]
        return np.where(
            versions >= 0, int(self.tokens.train_version or 0) - versions.astype(np.int64), UNKNOWN_STALENESS
        )

    def take(self, rows: np.ndarray) -> StepView:
        """The view of some rows, ledger only; what is best and worst is the whole step's.

        Args:
            rows: bool [B].
        """
        given = self.not_given
        not_given = None if given is None else {key: where[rows] for key, where in given.items()}
        ledger = self.ledger.take(np.flatnonzero(rows))
        return StepView(ledger, None, self.settings, not_given=not_given, whole=self.whole or self)
