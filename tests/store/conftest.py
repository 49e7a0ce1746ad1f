"""A project that reading tests share, written once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from rollout_traces.store import Store, open_store
from tests.store.projects import PROJECT, make_ledger, store_values, trackio_in, write_step

TEXTS = {
    0: (("user", "What is 6 times 7?"), ("assistant", "It is \\boxed{42}, I cannot be wrong.")),
    1: (("user", "What is 6 times 7?"), ("assistant", "I am sorry, I cannot help with that.")),
    4: (("user", "请问 答案 是什么"), ("assistant", "答案是四十二。完成了")),
}


@pytest.fixture(scope="session")
def shared_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A Trackio folder with a project of two splits and three steps of which some rollouts are traced."""
    folder = tmp_path_factory.mktemp("trackio")
    with trackio_in(folder):
        for step in range(3):
            ledger = make_ledger(
                [[1.0, 0.0, 0.5, float("nan")], [0.25, 0.25, 0.25, 0.25]],
                step=step,
                traced=(0, 1, 4),
                flags={1: ("truncated", "repetition"), 4: ("tied_group",), 6: ("truncated",)},
                **{"component/format": np.asarray([1.0, 0.0] * 4)},
            )
            write_step(ledger, (0, 1, 4), TEXTS)
            store_values({"train/loss": 1.0 / (step + 1), "nothing": float("nan")}, step=step)
        write_step(make_ledger([[1.0, 1.0]], step=2, split="eval-rollout", batch="e", traced=(1,)), (1,))
    yield folder


@pytest.fixture
def store(shared_folder: Path, tmp_path: Path) -> Iterator[Store]:
    """The shared project with an index of this test's own."""
    opened = open_store(PROJECT, folder=shared_folder, index_path=tmp_path / "index.sqlite3")
    yield opened
    opened.close()
