"""Logs a project of story runs for pictures and for trying the pages: a healthy one and three with a planted cause.

Run as `python -m tests.inspector.make_stories`, with TRACKIO_DIR set. With `--explained` it logs the run instead whose
step 85 docs/analysis.md explains: `rollout-traces explain my-run --step 85`.
"""

from __future__ import annotations

import argparse
from unittest import mock

CAUSES_SHOWN = {
    "healthy": None,
    "engine-off": "one engine off",
    "judge": "judge likes a phrase",
    "reward-fails": "reward function failing",
}
"""Run -> what is planted in it, from step `AT` on."""
AT = 30
N_STEPS = 50
EXPLAINED_AT, EXPLAINED_STEPS = 82, 90
"""The step at which the engine of the explained run goes off, and how many it has."""


def main() -> None:
    """Logs the project `stories`, or `explained`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--explained", action="store_true", help="the run of docs/analysis.md, `my-run`")
    log_explained() if parser.parse_args().explained else log_shown()


def log_explained() -> None:
    """Logs a run of the project `explained` in which one engine goes off."""
    from tests.stories.causes import CAUSES
    from tests.stories.logged import log_story
    from tests.stories.world import Kind, write_run

    with mock.patch("tests.stories.world.KINDS", {"explained": Kind(groups=(8, 14), group_size=4)}):
        story = write_run(
            3,
            "explained",
            "one engine off",
            CAUSES["one engine off"].changes,
            n_steps=EXPLAINED_STEPS,
            at=EXPLAINED_AT,
            run="my-run",
        )
    log_story(story, "explained")


def log_shown() -> None:
    """Logs the project `stories`."""
    from trackio import context_vars

    from tests.stories.causes import CAUSES
    from tests.stories.logged import log_story
    from tests.stories.world import Kind, write_run

    kind = {"shown": Kind(groups=(6, 9), group_size=4)}
    with mock.patch("tests.stories.world.KINDS", kind):
        for seed, (run, cause) in enumerate(CAUSES_SHOWN.items(), 3):
            changes = CAUSES[cause].changes if cause else None
            at = AT if cause else None
            story = write_run(seed, "shown", cause, changes, n_steps=N_STEPS, at=at, run=run)
            log_story(story, "stories", cap=36)
            context_vars.current_run.set(None)


if __name__ == "__main__":
    main()
