"""Knowledge that a step is judged by: the run's options, its state after the steps before, and what is stored of the step itself.

The state is stored with every step summary and read after a restart.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from rollout_traces.alarms.figures import scalar_figures
from rollout_traces.alarms.online import Trail, judge, remembered
from rollout_traces.settings.logger_options import LoggerOptions, for_worker
from rollout_traces.settings.run_settings import RunSettings
from rollout_traces.sink.stored import StoredRow
from rollout_traces.steps.selection import SelectionPolicy, default_policy, policy_named


@dataclass
class StepOptions(LoggerOptions):
    """Options of closing, judging and keeping steps: the logger's, and what the run declares.

    Attributes:
        settings: what the run declares about itself.
        seed: what random choices are drawn from.
    """

    settings: RunSettings = field(default_factory=RunSettings)
    seed: int = 0

    def policy(self, split: str) -> SelectionPolicy:
        """The policy that spends a split's cap; evaluation has fixed prompts where training has its portfolio."""
        if split == "eval-rollout" and self.selection == "portfolio":
            return default_policy(split)
        return policy_named(self.selection)

    def as_plain(self) -> dict[str, Any]:
        """JSON-safe values for the manifest; the selection has to be a name."""
        return {**for_worker(self), "settings": self.settings.as_config(), "seed": self.seed}

    @classmethod
    def from_plain(cls, values: Mapping[str, Any]) -> StepOptions:
        """The options that `as_plain` gave."""
        return cls.of(**{**values, "settings": RunSettings.create(**values.get("settings", {}))})


LOGGED = ""
"""In place of a split: what the trainer logged."""
RUN_STATE = "run_state"
"""The key of a step summary's details that holds the run's state after it."""
FIGURES = "figures"
"""The key of a step summary's details that holds the step's part of the series by which the next steps are judged."""


@dataclass(frozen=True)
class StoredStep:
    """The part of a step that an earlier worker stored before it was stopped.

    Attributes:
        is_summarised: its step summary is stored: only traces may be missing.
        chosen: uid -> how the row was chosen, as the step summary or the traces say.
        n_traced: traces that the step has already, without those of `chosen`; a late part has what they leave of the cap.
    """

    is_summarised: bool = False
    chosen: Mapping[str, StoredRow] = field(default_factory=dict)
    n_traced: int = 0


@dataclass(frozen=True)
class RunState:
    """The state after the steps so far.

    Attributes:
        raised: keys of the flag shares that were ever above zero: their curves have begun.
        trails: split -> the last steps of its series, by which the next one is judged; `LOGGED` for what the trainer logged.
        totals: `<split>/total/<name>` -> count over the run.
        prompts: split -> prompt key -> traces of it.
    """

    raised: frozenset[str] = frozenset()
    trails: Mapping[str, Trail] = field(default_factory=dict)
    totals: Mapping[str, float] = field(default_factory=dict)
    prompts: Mapping[str, Mapping[str, int]] = field(default_factory=dict)

    def as_text(self) -> str:
        """The state as JSON, for the step summary; trails, totals and prompts are read from the store."""
        return orjson.dumps({"raised": sorted(self.raised)}).decode()

    @classmethod
    def resumed(
        cls,
        stored: Mapping[str, Any],
        figures: Iterable[tuple[str, Mapping[str, Any]]],
        logged: Sequence[tuple[int, Mapping[str, Any]]],
        totals: Mapping[str, float],
        prompts: Mapping[str, Mapping[str, int]],
    ) -> RunState:
        """The state after a restart.

        Args:
            stored: what `as_text` gave at the newest stored step, read; empty when there is none.
            figures: split and figures of the newest stored steps, oldest first, as `online.as_plain` gave them.
            logged: step and scalars of what was logged last, oldest first.
            totals: the newest stored totals.
            prompts: split -> prompt key -> stored traces of it.
        """
        by_split: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
        for split, known in figures:
            by_split[split].append(known)
        trails = {split: remembered(known) for split, known in by_split.items()}
        trails[LOGGED] = Trail()
        for step, scalars in logged:
            trails[LOGGED] = judge(trails[LOGGED], scalar_figures(of_trainer(scalars, trails), step)).trail
        return cls(frozenset(stored.get("raised", ())), trails, totals, prompts)


def of_trainer(scalars: Mapping[str, Any], splits: Iterable[str]) -> dict[str, Any]:
    """The scalars that are none of the package's own of some splits, and no times of day."""
    own = ("phase/", *(f"{split}/" for split in splits if split))
    return {key: value for key, value in scalars.items() if not key.startswith(own)}


def read_run_state(kept: Sequence[tuple[str, Mapping[str, Any]]]) -> dict[str, Any]:
    """The run's state as the newest of some step summaries holds it, from their splits and details; empty without one."""
    state = _read(kept[-1][1].get(RUN_STATE)) if kept else None
    return state if isinstance(state, dict) else {}


def read_figures(kept: Sequence[tuple[str, Mapping[str, Any]]]) -> list[tuple[str, dict[str, Any]]]:
    """Split and figures of each of some step summaries."""
    found = [(split, _read(details.get(FIGURES))) for split, details in kept]
    return [(split, figures) for split, figures in found if isinstance(figures, dict)]


def _read(text: object) -> Any:
    return orjson.loads(text) if isinstance(text, str | bytes) else text
