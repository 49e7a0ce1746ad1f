"""AReaL's real rollout workers, in processes of their own, say what is in flight; a server of canned answers stands in.

Run by `make test-trainers` in an environment of AReaL's own. Starts itself under `rollout-traces run`, as a trainer is;
AReaL's `RolloutController` and `LocalScheduler` then start the workers, and these `RemoteSGLangEngine`, `WorkflowExecutor`
and `RLVRWorkflow`. Prints one line a check.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(ROOT), str(HERE)]
PROMPTS, GROUP, WORKERS = 6, 2, 2
ANSWERS = ("It is 42.", "no idea", "forty two maybe")
COMMAND = [sys.executable, "-c", "from rollout_traces.cli import main; main()", "run"]


class Server(ThreadingHTTPServer):
    """What the workers' engines ask of SGLang; it notes when it was asked and when it answered."""

    def __init__(self, tokenizer) -> None:
        super().__init__(("127.0.0.1", 0), Answer)
        self.tokenizer = tokenizer
        self.times: list[tuple[float, float]] = []
        threading.Thread(target=self.serve_forever, daemon=True).start()


class Answer(BaseHTTPRequestHandler):
    """A canned answer, token by token with its logprobs."""

    server: Server

    def do_GET(self) -> None:
        self._say({})

    def do_POST(self) -> None:
        began = time.time()
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])) or b"{}")
        time.sleep(random.uniform(0.3, 1.0))
        tokens = self.server.tokenizer.encode(random.choice(ANSWERS), add_special_tokens=False)
        tokens.append(self.server.tokenizer.eos_token_id)
        self.server.times.append((began, time.time()))
        meta = {"finish_reason": {"type": "stop"}, "prompt_tokens": len(asked.get("input_ids", ()))}
        self._say({"meta_info": {**meta, "output_token_logprobs": [[-0.5, token, None] for token in tokens]}})

    def _say(self, values: dict) -> None:
        body = json.dumps(values).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args) -> None: ...


def work(folder: Path) -> None:
    """The trainer's process: announces its run as the hook does, and has the controller's workers sample."""
    from areal.api.cli_args import GenerationHyperparameters, InferenceEngineConfig, SchedulingSpec
    from areal.api.io_struct import LocalInfServerInfo
    from areal.engine.sglang_remote import RemoteSGLangEngine
    from areal.infra.controller.rollout_controller import RolloutController
    from areal.infra.rpc.rtensor import RTensor
    from areal.infra.scheduler.local import LocalScheduler
    from live_watch import Watched
    from transformers import AutoTokenizer

    import rollout_traces as rt
    from rollout_traces.integrations import followed

    tokenizer = AutoTokenizer.from_pretrained(folder / "tokenizer")
    server = Server(tokenizer)
    logger = rt.RolloutLogger("areal-workers", "r1", tokenizer)
    followed.announce(logger)
    place = {"experiment_name": "e", "trial_name": "t", "fileroot": str(folder / "areal")}
    spec = SchedulingSpec(cpu=1, gpu=0, cmd="python -m areal.infra.rpc.rpc_server")
    config = InferenceEngineConfig(
        **place,
        backend=f"sglang:d{WORKERS}",
        scheduling_spec=(spec,),
        consumer_batch_size=PROMPTS,
        max_concurrent_rollouts=2 * PROMPTS,
        max_head_offpolicyness=10**6,
        tokenizer_path=str(folder / "tokenizer"),
    )
    scheduler = LocalScheduler(
        **place,
        gpu_devices=[0],
        startup_timeout=300,
        name_resolve_type="nfs",
        nfs_record_root=str(folder / "names"),
    )
    controller = RolloutController(RemoteSGLangEngine, config, scheduler)
    host, port = server.server_address[:2]
    controller.initialize("rollout", server_infos=[LocalInfServerInfo(host, port, None)] * WORKERS)
    workflow = {
        "reward_fn": "areal_reward.is_right",
        "gconfig": GenerationHyperparameters(max_new_tokens=16, n_samples=1),
        "tokenizer": str(folder / "tokenizer"),
        "enable_thinking": False,
    }
    data = [
        {"messages": [{"role": "user", "content": f"What is 6*7? v{number}"}], "answer": "42"}
        for number in range(PROMPTS)
    ]
    with Watched(folder / "trackio", "areal-workers") as watched:
        batch = controller.rollout_batch(data, "areal.workflow.rlvr.RLVRWorkflow", workflow, group_size=GROUP)
        time.sleep(1)  # the workers write four times a second
    rows = [row for each in batch for row in RTensor.localize(each)["input_ids"]]
    assert len(rows) == PROMPTS * GROUP
    check(watched, server, logger)
    controller.destroy()
    logger.finish()


def check(watched, server: Server, logger) -> None:
    """Every episode was said while it ran, by a worker's process, and its turns took as long as the server says."""
    place, _ = logger.live_place()
    heads = [json.loads(path.read_text().splitlines()[0]) for path in place.folder.glob("*.jsonl")]
    pids = {head["pid"] for head in heads} - {os.getpid()}
    assert len(pids) == WORKERS, heads
    assert len(watched.lines) == watched.ended() == PROMPTS * GROUP, watched.lines
    seconds = []
    for key, lines in watched.lines.items():
        assert watched.stages(key) == ["queued", "sampling", "scoring is_right", "done"], watched.stages(key)
        assert watched.last(key, "turns") == 1 and watched.last(key, "tokens") >= 2
        assert watched.last(key, "prompt").startswith("What is 6*7? v")
        begins = {line["stage"]: line.get("since", line["at"]) for line in reversed(lines)}
        seconds.append(begins["scoring"] - begins["sampling"])
    excess = sorted(seconds)[0] - min(end - begin for begin, end in server.times)
    assert -0.05 < excess < 2, (sorted(seconds), server.times)
    print(
        f"areal-workers: {len(seconds)} of {PROMPTS * GROUP} episodes in {WORKERS} processes of AReaL's rollout "
        f"workers said in flight, {len(watched.lines)} ended, each with its turn, tokens and reward function"
    )


def main() -> None:
    """Starts the trainer's process as a user does."""
    from tests.generator import tiny_tokenizer

    folder = Path(tempfile.mkdtemp())
    for name in ("areal", "names"):
        (folder / name).mkdir()
    tiny_tokenizer("qwen3").save_pretrained(folder / "tokenizer")
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(HERE)]),
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "TRACKIO_DIR": str(folder / "trackio"),
    }
    subprocess.run(
        [*COMMAND, str(Path(__file__).resolve()), "work", str(folder)], check=True, env=environment
    )


if __name__ == "__main__":
    if sys.argv[1:2] == ["work"]:
        work(Path(sys.argv[2]))
    else:
        main()
