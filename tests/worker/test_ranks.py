"""Two ranks of a training job share one run, one selection and one cap, and neither can block the other."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from rollout_traces.spool.run_folder import run_folders
from tests.worker.readback import ledger_uids, ledgers, rows, trace_uids

WORKER = """
import os, sys, time
import torch.distributed as dist
import rollout_traces as rt
from tests.generator import BatchPlan, batch_arrays, tiny_tokenizer

rank, port, mode = int(sys.argv[1]), sys.argv[2], sys.argv[3]
dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
options = {"per_rank": {"per_rank": True}, "thread": {"worker": "thread"}}.get(mode, {})
logger = rt.RolloutLogger("p", "run", tiny_tokenizer(), max_rollout_traces_per_step=4, **options)
for step in range(3):
    plan = BatchPlan(n_groups=2, group_size=2, seed=10 * rank + step)
    arrays = batch_arrays(tiny_tokenizer(), plan)
    arrays.pop("group_ids")
    if mode == "empty" and rank == 1:
        logger.log_rollouts([], step=step)
    elif mode == "silent" and rank == 1:
        pass
    else:
        logger.log_rollouts(arrays, step=step)
    if mode == "dies" and rank == 1 and step == 1:
        os._exit(1)
    if mode == "thread" and rank == 1:
        time.sleep(2)
done = logger.finish(90)
print("finished", done, flush=True)
os._exit(0 if done else 1)
"""


def free_port() -> int:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def run_ranks(mode: str) -> list[int]:
    """Runs two ranks; gives their exit codes."""
    port = str(free_port())
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", WORKER, str(rank), port, mode], cwd=Path(__file__).resolve().parents[2]
        )
        for rank in range(2)
    ]
    return [rank.wait(timeout=180) for rank in ranks]


@pytest.mark.slow
class TestTwoRanks:
    def test_share_one_run_one_selection_and_one_cap(self, trackio_dir):
        assert run_ranks("both") == [0, 0]
        assert rows(trackio_dir, "select count(distinct run_id) from traces") == [(1,)]
        assert len(trace_uids(trackio_dir)) == 3 * 4
        assert sum(ledger.n_rows for _, ledger in ledgers(trackio_dir)) == 3 * 8
        groups = [len(set(ledger.get("group").tolist())) for _, ledger in ledgers(trackio_dir)]
        assert groups == [8, 8, 8], "groups that two ranks made up are told apart"

    @pytest.mark.parametrize(("mode", "n_rows"), [("empty", 12), ("silent", 12), ("dies", 20)])
    def test_a_rank_without_rows_or_life_blocks_nobody(self, trackio_dir, mode, n_rows):
        codes = run_ranks(mode)
        assert codes[0] == 0
        assert sum(ledger.n_rows for _, ledger in ledgers(trackio_dir)) == n_rows

    def test_that_finish_late_are_waited_for_by_a_worker_in_a_thread(self, trackio_dir):
        assert run_ranks("thread") == [0, 0]
        assert sum(ledger.n_rows for _, ledger in ledgers(trackio_dir)) == 24
        assert run_folders(trackio_dir / "rollout-traces" / "spool") == []

    def test_may_have_a_run_each_in_one_group(self, trackio_dir):
        assert run_ranks("per_rank") == [0, 0]
        names = rows(trackio_dir, "select distinct run_name from traces order by 1")
        assert names == [("run-rank0",), ("run-rank1",)]
        configs = rows(trackio_dir, "select config from configs")
        assert len(configs) == 2 and all(
            b'"_Group":"run"' in (c if isinstance(c, bytes) else c.encode()) for (c,) in configs
        )


NODES = """
import os, sys, time
rank, port, mode = int(sys.argv[1]), sys.argv[2], sys.argv[3]
node = int(sys.argv[4]) if len(sys.argv) > 4 else rank
os.environ["ROLLOUT_TRACES_NODE"] = f"node-{node}"
import torch.distributed as dist
import rollout_traces as rt
from tests.generator import BatchPlan, batch_arrays, tiny_tokenizer

n_ranks = int(sys.argv[5]) if len(sys.argv) > 5 else 2
dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=n_ranks)
logger = rt.RolloutLogger("p", "run", tiny_tokenizer(), max_rollout_traces_per_step=4)
sender = getattr(logger._pipeline, "_sender", None)
print(rank, "sends for its node" if sender else "hands over to another rank" if rank else "stores", flush=True)
for step in range(3):
    plan = BatchPlan(n_groups=2, group_size=2, seed=10 * rank + step)
    arrays = batch_arrays(tiny_tokenizer(), plan)
    arrays.pop("group_ids")
    if mode == "empty" and rank == 1:
        logger.log_rollouts([], step=step)
    elif mode == "silent" and rank == 1:
        pass
    else:
        logger.log_rollouts(arrays, step=step)
    if mode == "dies" and rank == 1 and step == 1:
        deadline = time.monotonic() + 60
        while logger.counters["spooled"] and time.monotonic() < deadline:
            time.sleep(0.05)
        os._exit(1)
    if mode == "cut off" and rank == 1 and step == 1:
        logger._pipeline._sender._ended.set()
        logger._pipeline._sender._thread.join(30)
done = logger.finish(3 if mode == "cut off" and rank == 1 else 90)
print(rank, "finished", done, dict(logger.counters), flush=True)
os._exit(0 if done else 1)
"""


def run_nodes(mode: str, nodes: Sequence[int] = (0, 1)) -> tuple[list[int], str]:
    """Runs a rank on each of some nodes; gives their exit codes and what they printed."""
    port = str(free_port())
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", NODES, str(rank), port, mode, str(node), str(len(nodes))],
            cwd=Path(__file__).resolve().parents[2],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank, node in enumerate(nodes)
    ]
    said = [rank.communicate(timeout=180)[0] for rank in ranks]
    print(*said)
    return [rank.returncode for rank in ranks], "".join(said)


@pytest.mark.slow
class TestTwoNodes:
    def test_share_one_run_one_selection_and_one_cap(self, trackio_dir):
        codes, said = run_nodes("both")
        assert codes == [0, 0]
        assert "1 sends for its node" in said
        assert rows(trackio_dir, "select count(distinct run_id) from traces") == [(1,)]
        assert len(trace_uids(trackio_dir)) == 3 * 4
        uids = ledger_uids(trackio_dir)
        assert (len(uids), set(uids.values())) == (3 * 8, {1})
        groups = [len(set(ledger.get("group").tolist())) for _, ledger in ledgers(trackio_dir)]
        assert groups == [8, 8, 8], "groups that two ranks made up are told apart"
        assert run_folders(trackio_dir / "rollout-traces" / "spool") == []

    def test_have_one_connection_for_all_ranks_of_a_node(self, trackio_dir):
        codes, said = run_nodes("both", nodes=(0, 1, 1))
        assert codes == [0, 0, 0]
        assert said.count("sends for its node") == said.count("hands over to another rank") == 1
        uids = ledger_uids(trackio_dir)
        assert (len(uids), set(uids.values())) == (3 * 12, {1})
        assert len(trace_uids(trackio_dir)) == 3 * 4

    @pytest.mark.parametrize(("mode", "n_rows"), [("empty", 12), ("silent", 12), ("dies", 20)])
    def test_a_rank_without_rows_or_life_blocks_nobody(self, trackio_dir, mode, n_rows):
        codes, said = run_nodes(mode)
        assert codes[0] == 0
        assert ("connections_lost" in said) == (mode == "dies")
        assert sum(ledger.n_rows for _, ledger in ledgers(trackio_dir)) == n_rows

    def test_what_could_not_be_sent_waits_on_its_own_node_and_is_recovered_there(self, trackio_dir):
        from rollout_traces.worker.recovery import find_left, recover

        codes, _ = run_nodes("cut off")
        assert codes == [0, 1]
        assert sum(ledger_uids(trackio_dir).values()) < 24
        [left] = find_left("p", roots=[trackio_dir / "rollout-traces" / "spool"])
        assert left.n_records and not left.in_use
        assert "on-node-1" in left.folder.path.name
        assert recover(left) == 0
        uids = ledger_uids(trackio_dir)
        assert (len(uids), set(uids.values())) == (24, {1})
