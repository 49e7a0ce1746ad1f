"""Reading samples in tests."""

from __future__ import annotations

from pathlib import Path

from rollout_traces.sources.base import FileReading
from rollout_traces.sources.problems import Problems
from rollout_traces.sources.rows import RolloutRow
from rollout_traces.sources.scan import FoundRun, scan

SAMPLES = Path(__file__).parent / "samples"


def runs_of(path: Path, problems: Problems | None = None, file_format: str = "auto") -> list[FoundRun]:
    return scan([path], Problems() if problems is None else problems, file_format)


def rows_of(
    path: Path, problems: Problems | None = None, file_format: str = "auto", trust_pickle: bool = False
) -> list[RolloutRow]:
    """Every rollout of a file or folder, in the order of an import."""
    problems = Problems() if problems is None else problems
    found = [file for run in runs_of(path, problems, file_format) for file in run.files]
    return [
        row for file in found for row, _, _ in file.format.rows(FileReading(file, problems, trust_pickle))
    ]
