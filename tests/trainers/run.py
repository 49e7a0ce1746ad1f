"""The real trainers, each in an environment of its own, so that their pins do not fight ours.

`make test-trainers` runs this with any Python. Environments lie in `.venv-<name>` and are made once; each
also gets this package's dependencies, and the package from the working tree.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from result import RESULTS

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
OURS = ("trackio>=0.43", "numpy", "orjson", "typer", "rich", "pyyaml", "packaging", "httpx", "jinja2")
TEMPLATES = "trl==1.16.0"
"""For its chat templates alone where TRL is not what is tested: installed without its dependencies."""


@dataclass(frozen=True)
class Environment:
    """A trainer's environment and the scripts that test it.

    Attributes:
        name: short name.
        scripts: what is run, in this folder, one after another.
        packages: installed with their dependencies, after torch.
        bare: installed without theirs.
        tests: tests that compare with the trainer where it is installed.
        beside: versions installed each in a folder of its own, with the script that is given that folder.
        ours: what this package needs there. Trackio needs a huggingface-hub that transformers 4 refuses, so
            that the oldest transformers is tested where Trackio is not.
    """

    name: str
    scripts: tuple[str, ...]
    packages: tuple[str, ...]
    bare: tuple[str, ...] = ()
    tests: tuple[str, ...] = ()
    beside: tuple[tuple[str, str], ...] = ()
    ours: tuple[str, ...] = OURS


ENVIRONMENTS = (
    Environment(
        "trl",
        ("trl_grpo.py", "trl_ranks.py", "trl_async_loop.py"),
        (TEMPLATES, "transformers==5.0.0", "jmespath", "requests"),
        beside=(
            ("trl==0.24.0", "trl_unsloth.py"),
            ("trl==1.12.0", "trl_unsloth.py"),
            ("transformers==5.3.0", "trl_environments.py"),
        ),
    ),
    Environment(
        "decode",
        ("decode_oldest.py",),
        ("transformers==4.51.3", "jinja2", "orjson", "pytest", "pytest-timeout", "hypothesis"),
        bare=(TEMPLATES,),
        ours=(),
    ),
    Environment(
        "areal",
        ("areal_loop.py", "areal_run.py", "areal_workers.py"),
        (
            "transformers==5.3.0",
            *("pytest", "pytest-timeout", "hypothesis"),
            *(
                "torchdata",
                "datasets",
                "aiohttp",
                "colorlog",
                "tenacity",
                "flask",
                "lark",
                "hydra-core==1.4.0.dev1",
            ),
            *(
                "ray",
                "numba",
                "einops",
                "aiofiles",
                "openai",
                "swanlab",
                "wandb",
                "tensorboardx",
                "tabulate",
                "pybase64",
            ),
        ),
        bare=("areal==1.0.4", TEMPLATES),
        tests=("tests/stats/test_tracker.py", "tests/stats/test_config.py"),
    ),
    Environment(
        "verl",
        ("verl_loop.py", "verl_v1_loop.py", "agent_lightning_loop.py", "ray_loop.py"),
        (
            "transformers==5.9.0",
            *(
                "tensordict<=0.10",
                "ray",
                "omegaconf",
                "codetiming",
                "torchdata",
                "datasets",
                "pillow",
                "peft",
            ),
            *("cachetools", "uvicorn", "fastapi", "hydra-core", "TransferQueue"),
            *(
                "flask",
                "requests",
                "gpustat",
                "graphviz",
                "gunicorn",
                "portpicker",
                "setproctitle",
                "aiologic",
            ),
            *("openai", "opentelemetry-exporter-otlp", "opentelemetry-instrumentation", "opentelemetry-sdk"),
            "uvicorn-worker",
        ),
        bare=("verl==0.9.1", "agentlightning==0.3.0", TEMPLATES),
    ),
    Environment(
        "packages",
        ("tinker_rows.py", "art_rows.py", "skyrl_rows.py", "verifiers_rows.py", "openrlhf_rows.py"),
        (
            "transformers==5.8.0",
            *(
                "datasets",
                "einops",
                "ray",
                "peft",
                "accelerate",
                "torchdata",
                "tensorboard",
                "omegaconf",
                "pillow",
            ),
            *("anyio", "blobfile", "chz", "distro", "pyqwest", "termcolor", "tiktoken", "zstandard"),
            *("litellm<=1.82.0", "nest-asyncio", "openai<3", "polars", "setproctitle", "tblib"),
            *("hydra-core", "jaxtyping", "loguru", "pylatexenc"),
            *("anthropic", "math-verify", "mcp==2.0.0", "msgpack", "prime-pydantic-config[toml]"),
            *("prime-sandboxes", "prime-runs", "prime-tunnel", "pyzmq", "renderers", "tenacity", "tomli-w"),
        ),
        bare=(
            *("tinker==0.38.0", "tinker-cookbook==0.6.1", "openpipe-art==0.5.18"),
            *("skyrl==0.3.0", "skyrl-gym==0.4.0", "verifiers==0.4.0", "openrlhf==0.11.2"),
            TEMPLATES,
        ),
    ),
    Environment("lightning", ("lightning_loop.py",), ("lightning==2.6.6", "transformers==5.0.0")),
)


def prepare(environment: Environment) -> Path:
    """Makes the environment where it is not there yet.

    Returns:
        Its Python.
    """
    folder = ROOT / f".venv-{environment.name}"
    python, done = folder / "bin" / "python", folder / ".done"
    beside = [package for package, _ in environment.beside]
    wanted = "\n".join((*environment.packages, *environment.bare, *beside, *environment.ours))
    if done.exists() and done.read_text() == wanted:
        return python
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    pip = [str(python), "-m", "pip", "install", "-q"]
    torch = next(
        line for line in (ROOT / "constraints.txt").read_text().splitlines() if line.startswith("torch==")
    )
    subprocess.run([*pip, torch, "numpy"], check=True)
    subprocess.run([*pip, torch, *environment.packages, *environment.ours], check=True)
    if environment.bare:
        subprocess.run([*pip, "--no-deps", *environment.bare], check=True)
    for package in beside:
        subprocess.run([*pip, "--no-deps", "--target", str(folder / "beside" / package), package], check=True)
    done.write_text(wanted)
    return python


def main(names: list[str]) -> int:
    """Runs the named environments' scripts, all by default.

    Returns:
        0 when every script passed.
    """
    passed = failed = 0
    found = Path(tempfile.mkdtemp()) / "results.jsonl"
    os.environ[RESULTS] = str(found)
    os.environ.setdefault(
        "OMP_NUM_THREADS", "1"
    )  # tiny models: more threads wait for each other where others compute
    for environment in ENVIRONMENTS:
        if names and environment.name not in names:
            continue
        start = time.time()
        python = prepare(environment)
        ready = time.time()
        print(f"== {environment.name}: environment ready in {ready - start:.0f} s", flush=True)
        code = 0
        commands = [[script] for script in environment.scripts]
        commands += [
            [script, str(ROOT / f".venv-{environment.name}" / "beside" / package)]
            for package, script in environment.beside
        ]
        for script, *arguments in commands:
            command = [str(python), str(HERE / script), *arguments]
            code = code or subprocess.run(command, check=False).returncode
        if environment.tests and code == 0:
            pytest = [str(python), "-m", "pytest", "-q", "-p", "no:cacheprovider", *environment.tests]
            code = subprocess.run(pytest, cwd=ROOT, check=False).returncode
        print(
            f"== {environment.name}: {'passed' if code == 0 else 'FAILED'} in {time.time() - ready:.0f} s",
            flush=True,
        )
        passed, failed = passed + (code == 0), failed + (code != 0)
    print(f"{passed} passed, {failed} failed")
    if found.exists():
        print(found.read_text(), end="")
    return 0 if failed == 0 and passed else 1


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
