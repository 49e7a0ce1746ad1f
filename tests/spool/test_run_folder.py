"""Spools stay on the node's own disk."""

from __future__ import annotations

import pytest

from rollout_traces.spool import run_folder
from rollout_traces.spool.run_folder import is_network_mount, mount_type

MOUNTS = """\
/dev/sda1 / ext4 rw 0 0
server:/home /home nfs4 rw 0 0
/dev/sdb1 /home/scratch xfs rw 0 0
//host/share /mnt/my\\040share cifs rw 0 0
"""


@pytest.fixture
def mounts(tmp_path):
    path = tmp_path / "mounts"
    path.write_text(MOUNTS)
    return path


class TestMounts:
    @pytest.mark.parametrize(
        ("path", "kind", "network"),
        [
            ("/var/trackio", "ext4", False),
            ("/home/mia/trackio", "nfs4", True),
            ("/home/scratch/trackio", "xfs", False),
            ("/mnt/my share/trackio", "cifs", True),
        ],
    )
    def test_the_nearest_mount_tells(self, mounts, tmp_path, path, kind, network):
        from pathlib import Path

        assert mount_type(Path(path), mounts) == kind
        assert is_network_mount(Path(path), mounts) is network

    def test_without_a_table_nothing_is_called_a_network(self, tmp_path):
        assert not is_network_mount(tmp_path, tmp_path / "missing")


class TestSpoolRoot:
    def test_lies_beside_the_project(self, tmp_path):
        assert run_folder.spool_root(tmp_path) == tmp_path / "rollout-traces" / "spool"

    def test_lies_on_the_node_when_the_project_does_not(self, tmp_path, monkeypatch):
        monkeypatch.setattr(run_folder, "is_network_mount", lambda path: True)
        assert run_folder.spool_root(tmp_path) == run_folder.local_root()
