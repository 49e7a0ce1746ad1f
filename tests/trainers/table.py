"""The table of docs/trainers.md: what each trainer was compared with, and what is unobserved there.

python -m tests.trainers.table results.jsonl     # what `make test-trainers` printed; rewrites both files
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FIGURES = Path(__file__).resolve().parent / "results.json"
PAGE = ROOT / "docs" / "trainers.md"
BEGIN, END = "<!-- compared: begin -->", "<!-- compared: end -->"

REAL = {
    "TRL: GRPO, RLOO, GMPO": ("real training", "rollout logprobs without vLLM"),
    "TRL: asynchronous GRPO": (
        "real training; worker and attention kernel stand in",
        "messages of a row, evaluation",
    ),
    "Unsloth's trainer of TRL 0.24.0": (
        "real training of TRL's source recompiled as Unsloth does",
        "rollout logprobs",
    ),
    "Unsloth's trainer of TRL 1.12.0": (
        "real training of TRL's source recompiled as Unsloth does",
        "rollout logprobs",
    ),
    "AReaL": (
        "real workflows, executor, advantages, loop; engine and update stand in",
        "prompt ids of the data set",
    ),
    "verl, default trainer": (
        "real config, fit, step, advantage, validation, queue; workers and engine stand in",
        "where a version changed inside a row",
    ),
    "verl, RayPPOTrainer": ("real agent loop, `DataProto`, dump", "where a version changed inside a row"),
}
"""Line of the table -> what was real, and what is unobserved."""
LAYOUTS = {
    "Agent Lightning": (
        "0.3.0",
        "stand-ins of its `DataProto` and daemon",
        4,
        "versions; tokens of failed rollouts",
    ),
    "prime-rl, verifiers": (
        "verifiers 0.4.0",
        "published structures, mirrored: a rollout of two turns",
        1,
        "versions of single tokens",
    ),
    "NeMo-RL": (
        "August 2026",
        "published structures, mirrored: a rollout of two turns",
        1,
        "versions, stop reasons",
    ),
    "SkyRL": ("0.3.0", "published structures, mirrored: a rollout of two turns", 1, "versions, advantages"),
    "tinker-cookbook": (
        "0.6.1",
        "published structures, mirrored: a rollout of two turns",
        1,
        "advantages, versions",
    ),
    "rLLM": (
        "August 2026",
        "published structures, mirrored: a rollout of two turns",
        1,
        "masks of what was trained on, versions",
    ),
    "open-instruct": (
        "August 2026",
        "published structures, mirrored: a rollout of two turns",
        1,
        "versions inside a row",
    ),
    "ART": (
        "August 2026",
        "published structures, mirrored: a rollout of two turns",
        1,
        "versions, stop reasons",
    ),
    "slime": ("August 2026", "published structures, mirrored", 3, "advantages"),
    "OpenRLHF": ("August 2026", "published structures, mirrored", 3, "versions"),
}
"""Trainers that were not run: version, what their adapter was tested on, rows, what is unobserved."""


def render(figures: dict[str, dict]) -> str:
    """The table.

    Args:
        figures: line of the table -> what its script printed.
    """
    lines = [
        "| trainer | version | compared with | rows | equal | unobserved | hooks on the training thread |"
    ]
    lines.append("| --- | --- | --- | --- | --- | --- | --- |")
    for name, (real, unobserved) in REAL.items():
        found = figures.get(name)
        if found is None:
            continue
        took = (
            f"{found['hook_ms']:.1f} of {found['step_ms']:,} ms a step" if found["step_ms"] else "not timed"
        )
        cells = (name, found["version"], real, found["rows"], found["equal"], unobserved, took)
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    for name, (version, layout, rows, unobserved) in LAYOUTS.items():
        lines.append(f"| {name} | {version} | {layout} | {rows} | {rows} | {unobserved} | not run |")
    return "\n".join(lines)


def written(page: str) -> str:
    """The table as it stands in a page."""
    return page.split(BEGIN)[1].split(END)[0].strip()


def main(path: str) -> None:
    """Takes the figures of a run of the scripts into both files; lines that it did not run keep theirs."""
    figures = json.loads(FIGURES.read_text()) if FIGURES.exists() else {}
    for line in Path(path).read_text().splitlines():
        if line.startswith("{"):
            found = json.loads(line)
            figures[found.pop("name")] = found
    FIGURES.write_text(json.dumps(figures, indent=1) + "\n")
    page = PAGE.read_text()
    before, _, rest = page.partition(BEGIN)
    PAGE.write_text(f"{before}{BEGIN}\n\n{render(figures)}\n\n{END}{rest.split(END)[1]}")


if __name__ == "__main__":
    main(sys.argv[1])
