"""What training data is made of rollouts, and how."""

from __future__ import annotations

from dataclasses import dataclass

from rollout_traces.errors import ConfigError

FORMATS = ("sft", "dpo", "reward", "hub", "hub-sts")
THINKING = ("content", "reasoning_content", "drop")


@dataclass(frozen=True)
class TrainingOptions:
    """How training data is made.

    Attributes:
        format: `sft` (chat), `dpo` (pairs), `reward` (scored completions) `hub` (Pi's sessions, which its viewer shows) or
            `hub-sts` (the Hub's own simple ones).
        thinking: where an assistant's thinking goes: `content`, between `<think>` and `</think>`;
            `reasoning_content`, a field of its own; or `drop`.
        margin: of a pair, by how much the better reward is above the worse at least; equal ones are no pair.
        match_length: of a pair, by which share of the longer one the sampled tokens may differ at most; None to
            take the best and the worst whatever their lengths.
        test_share: share of the prompts that go to the file `test`; a prompt is in one file alone.
        near_duplicates: a completion that shares this share of its five-word runs with one of the same prompt
            that was kept is left out; 1 leaves out equal ones alone, None none.
        evaluation: take rollouts of evaluation, and training rollouts of the same prompts.
        seed: which prompts go to `test`.
    """

    format: str
    thinking: str = "content"
    margin: float = 0.0
    match_length: float | None = None
    test_share: float = 0.0
    near_duplicates: float | None = 0.9
    evaluation: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        if self.format not in FORMATS:
            raise ConfigError(f"format: {self.format!r}, expected one of {', '.join(FORMATS)}.")
        if self.thinking not in THINKING:
            raise ConfigError(f"thinking: {self.thinking!r}, expected one of {', '.join(THINKING)}.")
        if not 0 <= self.margin < float("inf"):
            raise ConfigError(f"margin: {self.margin}, expected 0 or more.")
        if not 0 <= self.test_share < 1:
            raise ConfigError(f"test share: {self.test_share}, expected 0 or more and below 1.")
        for name, share in (("match length", self.match_length), ("near duplicates", self.near_duplicates)):
            if share is not None and not 0 < share <= 1:
                raise ConfigError(f"{name}: {share}, expected a share above 0, 1 at most.")
