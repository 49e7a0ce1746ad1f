"""Logs a project of story runs for pictures and for trying the pages: a healthy one and three with a planted cause.

Run as `python -m tests.inspector.make_stories`, with TRACKIO_DIR set.
"""

from __future__ import annotations

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


def main() -> None:
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
