"""TRL's environments, which its trainer resets, calls and is rewarded by: what is in flight, and when.

Run by `make test-trainers` with the folder of a transformers that has what TRL asks for. Prints one line a check.
"""

from __future__ import annotations

import sys
import time

sys.path.insert(0, sys.argv[1])

from trl_grpo import FOLDER, check_live, train

from tests.trainers.live_watch import Watched


class Shop:
    """An environment: a counter that answers, and gives its own reward."""

    def reset(self, **_) -> None:
        self.called = 0

    def multiply(self, a: int, b: int) -> int:
        """Multiply two integers.

        Args:
            a: first factor
            b: second factor

        Returns:
            the product
        """
        self.called += 1
        time.sleep(0.01)
        return a * b

    def get_reward(self) -> float:
        return float(self.called)


def main() -> None:
    """Trains with an environment a row, and checks."""
    with Watched(FOLDER / "trackio", "trl-environments") as watched:
        trainer = train("trl-environments", tools=[Shop().multiply], environment=Shop)
    check_live("trl-environments", trainer, watched)
    booted = sum("booting" in watched.stages(key) for key in watched.lines)
    print(
        f"trl-environments: {booted} of {len(watched.lines)} rollouts seen while their environment was reset"
    )


if __name__ == "__main__":
    main()
