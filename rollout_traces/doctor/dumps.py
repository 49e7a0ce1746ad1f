"""What rollouts files and folders hold, without importing them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path

from rollout_traces.doctor.base import CheckFinding
from rollout_traces.sources.base import Found, ReadOptions
from rollout_traces.sources.problems import Problems
from rollout_traces.sources.scan import FoundRun, scan

SAMPLED = 200
"""Rollouts of a format's first file that are looked at."""


def look_into(paths: Sequence[Path]) -> dict[str, list[CheckFinding]]:
    """What an import of the paths would find.

    Args:
        paths: files and folders.

    Returns:
        A heading a run -> findings, and one heading for what cannot be read.

    Raises:
        ConfigError: a path is not there.
    """
    problems = Problems()
    runs = scan(paths, problems)
    found = {f"Run {run.name}": list(_run(run, problems)) for run in runs}
    if problems.kept:
        kept = [CheckFinding(p.kind.replace("_", " "), "warn", str(p)) for p in problems.kept]
        found["Not read"] = kept
    return found


def _run(run: FoundRun, problems: Problems) -> Iterator[CheckFinding]:
    steps = "steps are in the records" if run.steps is None else f"steps {run.steps[0]} to {run.steps[1]}"
    yield CheckFinding("where", "ok", f"{run.root}: {len(run.files)} files, {run.size / 1e6:.1f} MB, {steps}")
    for title, count in run.formats.items():
        first = next(found for found in run.files if found.format.title == title)
        yield CheckFinding(title, "ok", f"{count} files; {_sample(first, problems)}")
    if run.lacks:
        advice = (
            "--tokenizer makes ids of text; they may differ from those trained on." if _no_ids(run) else ""
        )
        yield CheckFinding("not in the files", "note", "; ".join(run.lacks), advice)


def _no_ids(run: FoundRun) -> bool:
    return "token ids" in run.lacks


def _sample(found: Found, problems: Problems) -> str:
    rows = [row for row, _, _ in itertools.islice(found.format.rows(found, problems, ReadOptions()), SAMPLED)]
    if not rows:
        return f"none can be read of {found.path.name}"
    n_ids = sum(row.input_ids is not None for row in rows)
    rewards = [row.reward for row in rows if row.reward is not None]
    reward = f"rewards {min(rewards):.4g} to {max(rewards):.4g}" if rewards else "no rewards"
    tracks = sorted({name for row in rows for name in row.tracks})
    parts = [
        f"of the first {len(rows)} rollouts of {found.path.name} {n_ids} have token ids",
        f"tracks {', '.join(tracks)}" if tracks else "",
        reward,
        f"splits {', '.join(sorted({row.split for row in rows}))}",
    ]
    return ", ".join(part for part in parts if part)
