"""The table of samples in docs/sources.md, made from the samples: `python -m tests.sources.sample_table` writes it."""

from __future__ import annotations

from pathlib import Path

from rollout_traces.sources.base import FileReading
from rollout_traces.sources.problems import Problems
from rollout_traces.sources.scan import scan
from tests.sources.reading import SAMPLES

PAGE = Path(__file__).resolve().parents[2] / "docs" / "sources.md"
HEAD = "| format | its sample's writer | rollouts | with token ids | not in it |\n| --- | --- | --- | --- | --- |\n"
WRITERS = {
    "areal": "areal 1.0.4",
    "areal-segments": "none: from field names, in no release yet",
    "atif": "models of atif 1.8.0",
    "atropos": "atroposlib 0.4.0",
    "chat": "none: from field names",
    "inspect": "inspect_ai 0.3.285",
    "nemo-gym": "nemo-gym 0.4.0, rollouts that it ships",
    "nemo-rl": "NeMo-RL, August 2026",
    "open-instruct": "open-instruct, August 2026",
    "prime-rl": "prime-rl, August 2026",
    "prime-rl-stream": "prime-rl, September 2026, with verifiers 0.4.0",
    "rllm": "rLLM, August 2026",
    "scout": "inspect_scout 0.6.1, of a log of inspect_ai and by hand",
    "skyrl": "skyrl 0.3.0",
    "skyrl-training": "skyrl 0.3.0, values of its models made up",
    "slime": "slime, August 2026",
    "tinker": "tinker-cookbook 0.6.1",
    "tinker-capture": "tinker-cookbook 0.6.1, its store and its file sink",
    "trl": "TRL 1.16",
    "trl-trackio": "TRL 1.16, a training that logs to Trackio",
    "verifiers": "verifiers 0.4.0",
    "verifiers-results": "verifiers 0.1.14",
    "verl": "verl 0.9.1",
}
"""Folder of samples -> what wrote it."""
OTHERWISE = {"trl-trackio": "tests/sources/formats/test_trl_parquet.py"}
"""Folders whose samples are no dump, and what reads them."""


def rows() -> str:
    """The table's rows: one a folder of samples and format in it."""
    found = []
    for sample, writer in sorted(WRITERS.items()):
        if sample in OTHERWISE:
            continue
        files = [file for run in scan([SAMPLES / sample], Problems()) for file in run.files]
        for name in sorted({file.format.name for file in files}):
            own = [file for file in files if file.format.name == name]
            every = [
                row
                for file in own
                for row, _, _ in file.format.rows(FileReading(file, Problems(), trust_pickle=True))
            ]
            with_ids = sum(row.input_ids is not None for row in every)
            lacks = dict.fromkeys(text for file in own for text in file.claim.lacks)
            found.append(f"| `{name}` | {writer} | {len(every)} | {with_ids} | {'; '.join(lacks)} |\n")
    return "".join(found)


def page() -> str:
    """The text of the page, with the table as it is now."""
    before, _, behind = PAGE.read_text("utf-8").partition(HEAD)
    rest = behind[behind.index("\n\n") + 1 :] if "\n\n" in behind else "\n"
    return before + HEAD + rows() + rest


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
