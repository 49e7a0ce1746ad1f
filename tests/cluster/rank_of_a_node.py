"""One rank of a job of two nodes, with a clock of its own: it samples, says so while it does, and notes its own times.

python -m tests.cluster.rank_of_a_node RANK HOST PORT AHEAD FOLDER

It waits inside a tool until `FOLDER/go` is there, and leaves `FOLDER/own-RANK.json`: when each of its spans began and
ended by the monotonic clock, which all processes of a machine share.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

ROLLOUTS = 3


def main(rank: int, host: str, port: str, ahead: float, folder: Path) -> None:
    """Runs the rank; its clock is so many seconds ahead."""
    right = time.time
    time.time = lambda: right() + ahead
    os.environ["ROLLOUT_TRACES_NODE"] = f"node-{rank}"
    import torch.distributed as dist

    import rollout_traces as rt

    dist.init_process_group("gloo", init_method=f"tcp://{host}:{port}", rank=rank, world_size=2)
    logger = rt.RolloutLogger("p", "run", max_rollout_traces_per_step=8)
    timings, own, said = [], [], []
    for number in range(ROLLOUTS):
        spans = rt.Spans()
        with logger.live(f"question {number} of rank {rank}", step=1, group=str(rank)) as live:
            for kind, seconds, known in (
                ("generate", 0.2, {"engine": f"engine-{rank}", "version": 3}),
                ("tool", 0.1, {"name": "browse"}),
                ("score", 0.05, {"name": "judge"}),
            ):
                live.stage({"generate": "sampling", "score": "scoring"}.get(kind, kind), known.get("name"))
                with spans(kind, turn=None if kind == "score" else 0, **known):
                    began = time.monotonic()
                    time.sleep(seconds)
                    while kind == "tool" and not (folder / "go").exists():
                        time.sleep(0.05)
                    own.append([rank, number, kind, began, time.monotonic()])
        timings.append(spans.noted)
        said.append({"live": live.id})
    (folder / f"own-{rank}.json").write_text(json.dumps(own))
    batch = rt.RolloutBatch.from_messages(
        [[{"role": "user", "content": "What?"}, {"role": "assistant", "content": "That."}]] * ROLLOUTS,
        timings=timings,
        extras=said,
        episode_ids=(names := [f"{rank}/{number}" for number in range(ROLLOUTS)]),
        sample_ids=names,
        rewards=[0.0] * ROLLOUTS,
    )
    logger.log_rollouts(batch, step=1)
    done = logger.finish(90)
    print(rank, "finished", done, dict(logger.counters), flush=True)
    os._exit(0 if done else 1)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3], float(sys.argv[4]), Path(sys.argv[5]))
