"""A spool in memory: writer and reader in one."""

from __future__ import annotations

from rollout_traces.spool.memory import MemorySpool
from tests.spool.test_folder import make_buffers


def test_a_removed_record_is_gone_and_the_others_stay():
    spool = MemorySpool(1 << 20)
    names = [spool.append(make_buffers(step)) for step in range(3)]
    spool.remove(names[1])
    assert spool.names() == [names[0], names[2]]
    assert [spool.has(name) for name in names] == [True, False, True]
