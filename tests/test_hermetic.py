"""What one test leaves among temporary files is not found by the next."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from rollout_traces.spool.run_folder import local_root


def test_spools_of_the_node_lie_in_a_folder_of_the_test(temporary_files_of_this_test: Path) -> None:
    assert local_root().is_relative_to(temporary_files_of_this_test)
    code = "from rollout_traces.spool.run_folder import local_root; print(local_root())"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert Path(said.strip()) == local_root(), "in its children too"


class TestWhatIsLeft:
    left: Path | None = None

    def test_here(self) -> None:
        TestWhatIsLeft.left = local_root()
        local_root().mkdir(parents=True)

    def test_is_gone_in_the_next(self) -> None:
        assert TestWhatIsLeft.left is not None and not TestWhatIsLeft.left.exists()
        assert local_root() != TestWhatIsLeft.left
        assert os.environ["TMPDIR"] == tempfile.gettempdir()
