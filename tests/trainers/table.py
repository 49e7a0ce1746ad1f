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
    "Agent Lightning": (
        "real daemon, trainer's step and validation, advantages; agents, workers stand in",
        "versions, rollout logprobs of training rows",
    ),
    "prime-rl, verifiers": (
        "real message graph, branches, rewards, episodes of verifiers; environment and prime-rl's monitor stand in",
        "versions of single tokens",
    ),
    "SkyRL": (
        "real generator, environments, training batch; engine stands in",
        "versions, advantages, what was sampled in a row filtered as overlong",
    ),
    "tinker-cookbook": (
        "real group rollouts, advantages, training data; sampler stands in",
        "versions, images",
    ),
    "ART": (
        "real trajectories, tokenisation, packing; server stands in",
        "stop reasons, rows that ART drops for an advantage of 0",
    ),
    "OpenRLHF": (
        "real experiences, micro batches, advantages; engines and models stand in",
        "versions",
    ),
}
"""Line of the table -> what was real, and what is unobserved."""
LAYOUTS = {
    "NeMo-RL": ("August 2026", "versions, stop reasons, validation's tokens"),
    "rLLM": ("August 2026", "masks of what was trained on"),
    "open-instruct": ("August 2026", "versions inside a row"),
    "slime": ("August 2026", "advantages"),
}
"""Trainers that are on no registry: the source whose structures were mirrored, and what is unobserved."""
ROWS_OF_LAYOUTS = 512
"""Rows of each in `tests/integrations/test_generated_layouts.py`."""


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
    for name, (version, unobserved) in LAYOUTS.items():
        rows = f"{ROWS_OF_LAYOUTS} | {ROWS_OF_LAYOUTS}"
        lines.append(
            f"| {name} | {version} | published structures, mirrored | {rows} | {unobserved} | not run |"
        )
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
