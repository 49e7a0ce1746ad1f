"""A project whose rollouts are training data: groups, near-duplicates, an evaluated prompt, tools beside the text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rollout_traces.store import Store, open_store
from rollout_traces.trace.conversion import rollout_trace, step_summary_trace
from tests.builders import make_transcript
from tests.generator import CALCULATOR
from tests.store.projects import make_ledger, write_traces
from tests.trackio_home import use_trackio_home

PROJECT = "training"
LONG = " ".join(f"word{n}" for n in range(60))
GROUPS: Sequence[tuple[str, Sequence[tuple[float, str]]]] = (
    (
        "What is 2 + 2?",
        (
            (1.0, "It is four."),
            (0.0, f"It is five. {LONG}"),
            (0.2, "I do not know it."),
            (0.9, "Four it is."),
        ),
    ),
    ("Say hello.", ((0.5, f"Hello! {LONG}"), (0.5, f"Hello! {LONG} indeed"), (0.5, "Hi there, you"))),
    ("What is evaluated?", ((1.0, "This."), (0.0, "That."))),
)
"""Prompt -> reward and reply of each rollout."""


def log_step(step: int, split: str, groups: Sequence[Any]) -> None:
    """Stores the rollouts of a step, all traced; the first calls a tool and thinks."""
    rewards = [[reward for reward, _ in members] for _, members in groups]
    n = sum(map(len, rewards))
    keys = np.empty(n, object)
    keys[:] = [f"{split} {g}" for g, (_, members) in enumerate(groups) for _ in members]
    ledger = make_ledger(rewards, step=step, split=split, batch=f"{split}-", traced=range(n), prompt_key=keys)
    records = []
    texts = [(prompt, reply) for prompt, members in groups for _, reply in members]
    for row, (prompt, reply) in enumerate(texts):
        first = row == 0 and split == "rollout"
        transcript = make_transcript(
            (("user", prompt), ("assistant", reply)),
            thinking="two and two" if first else None,
            calls=[("calculator", {"expression": "2 + 2"})] if first else [],
        )
        transcript = replace(transcript, tools=(CALCULATOR,) if first else ())
        records.append(rollout_trace(transcript, ledger, row))
    digest = step_summary_trace(ledger, summary=[], metadata={"step": step, "split": split, "population": n})
    write_traces({f"{split}/trajectories": records, f"{split}/steps": [digest]}, step=step, project=PROJECT)


@pytest.fixture(scope="package")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Trackio's folder with the project."""
    home = tmp_path_factory.mktemp("trackio")
    with pytest.MonkeyPatch.context() as patch:
        use_trackio_home(patch, home)
        patch.setenv("HF_DATASETS_CACHE", str(home / "datasets"))
        log_step(0, "rollout", GROUPS)
        log_step(0, "eval-rollout", [("What is  EVALUATED?", [(1.0, "It.")])])
        yield home


@pytest.fixture(scope="package")
def store(folder: Path) -> Iterator[Store]:
    """The project."""
    opened = open_store(PROJECT, folder=folder)
    assert opened.count() == 10 and np.isfinite(opened.query().rows[0]["reward"])
    yield opened
    opened.close()
