"""Two rollouts side by side, and their group, where the rollouts came as text alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rollout_traces.inspector.pages.compare import compare
from rollout_traces.inspector.pages.group import group
from rollout_traces.inspector.workspace import SplitView, Workspace
from rollout_traces.sources.importing import import_rollouts


@pytest.fixture
def view(trackio_dir: Path, tmp_path: Path) -> SplitView:
    """Two prompts of four rollouts that have no token ids."""
    rows = [
        {"input": f"1 + {n // 4}?", "output": f"It is {n}.", "gts": "2", "score": n % 2, "step": 1}
        for n in range(8)
    ]
    dump = tmp_path / "run-1"
    dump.mkdir()
    (dump / "1.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    import_rollouts(dump, "texts", worker="thread")
    workspace = Workspace(folder=trackio_dir)
    workspace.refresh("texts")
    (split,) = workspace.store("texts").splits("run-1")
    return SplitView(workspace, "texts", "run-1", split)


def test_rollouts_without_token_ids_share_no_prefix_and_have_no_tree(view: SplitView) -> None:
    found = compare(view, 1)
    assert found.shared is None
    assert [side["tokens"] for side in found.sides] == [None, None]
    shown = group(view, 1)
    assert shown.tree is None and len([each for each in shown.members if each.id]) == 4
