"""Every command of the README and the docs is one that the command line takes; those that read a project are run on one."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import typer.core
import typer.main
from packaging.requirements import Requirement
from typer.testing import CliRunner

import rollout_traces as rt
from rollout_traces.cli import build_app
from tests.generator import tiny_tokenizer
from tests.test_docs import PAGES, ROOT
from tests.trackio_home import use_trackio_home

RUN = (
    "list", "get", "stats", "export", "label", "share", "explain", "events", "prompts", "flips", "lanes", "live", "last",
    "import", "delete",
)  # fmt: skip
"""Commands that are run as they stand; the others want a server, a Space, a trainer, or time."""
ELSEWHERE = (
    "--sync",
    "--server-url",
    "--space",
    "s3://",
    "hf://",
    "http://",
    "trackio:",
    "--follow",
    "--yes",
    "…",
)
"""What leads away from this machine, does not end, deletes, or stands for something."""
FOREIGN = ("git clone", "docker", "curl", "claude mcp add", "pip install examples/viewers")
"""What else a shell line may begin with, beside `pip install` of an extra, `make` and `python`."""
UID = "f015d31ca8e3"
LENGTH = 400
BASH = re.compile(r"```(?:bash|sh|console)\n(.*?)```", re.DOTALL)
PYTHON = re.compile(r"```python\n(.*?)```", re.DOTALL)


def shell_lines() -> dict[str, str]:
    """The lines of shell blocks by where they stand, without variables before them and what they are piped into."""
    found = {}
    for page in PAGES:
        for block in BASH.findall(page.read_text("utf-8")):
            for line in filter(None, map(str.strip, block.replace("\\\n", " ").splitlines())):
                found[f"{page.name}: {line}"] = re.sub(r"^([A-Z_]+=\S+ )+", "", line)
    return found


LINES = shell_lines()
COMMANDS = {
    where: line[line.index("rollout-traces ") :]
    for where, line in LINES.items()
    if re.match(r"(claude mcp add \w+ -- )?rollout-traces ", line) and "…" not in line
}
APP = typer.main.get_command(build_app())
assert isinstance(APP, typer.core.TyperGroup)


def words_of(line: str) -> list[str]:
    """A command's words, without its comment and what it is piped into."""
    words = shlex.split(line, comments=True)[1:]
    return words[: words.index("|")] if "|" in words else words


@pytest.mark.parametrize("where", LINES)
def test_a_line_is_a_command_that_somebody_can_run(where: str) -> None:
    words = shlex.split(LINES[where], comments=True)
    if words[:2] == ["pip", "install"] and words[2].startswith(("rollout-traces", ".[")):
        extras = set(metadata.metadata("rollout-traces").get_all("Provides-Extra") or ())
        assert set(Requirement(re.sub(r"^\.\[", "rollout-traces[", words[2])).extras) <= extras
    elif words[:2] == ["python", "-m"]:
        assert words[2] in ("http.server", "verl.trainer.main_ppo") or find_spec(words[2])
    elif words[0] == "python":
        assert (ROOT / words[1]).is_file()
    else:
        assert words[0] in ("rollout-traces", "make") or LINES[where].startswith(FOREIGN)


@pytest.mark.parametrize("where", COMMANDS)
def test_a_command_is_one_that_the_command_line_takes(where: str) -> None:
    name, *words = words_of(COMMANDS[where])
    APP.commands[name].make_context(name, words)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with the project that the docs speak of, in which commands write."""
    folder = tmp_path_factory.mktemp("docs")
    with pytest.MonkeyPatch.context() as patch:
        use_trackio_home(patch, folder / "trackio")
        patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        for run in ("run-001", "run-002"):
            log_run(run)
        patch.chdir(folder)
        tiny_tokenizer().save_pretrained("my-model")
        for dump in map(Path, ("outputs/run-1", "outputs/rollout_data")):
            dump.mkdir(parents=True)
            row = {"input": "What is 1 + 1?", "output": "It is 2.", "score": 1.0, "step": 1}
            (dump / "1.jsonl").write_text(json.dumps(row) + "\n")
        yield folder


def log_run(name: str) -> None:
    """Steps 12 and 70 to 90 with four groups of four, and evaluations of other prompts; some are labelled."""
    tokenizer = tiny_tokenizer()
    logger = rt.RolloutLogger(
        project="gsm8k", name=name, tokenizer=tokenizer, worker="thread", max_rollout_traces_per_step=32
    )
    rng = np.random.default_rng(0)
    for step in (12, *range(70, 91)):
        for split in ("rollout", *(["eval-rollout"] if step in (12, 90) else [])):
            ids = np.zeros((16, LENGTH), np.int64)
            for row in range(16):
                asked = {
                    "role": "user",
                    "content": f"How many {split} {row // 4}? " + "apples and pears " * 30,
                }
                said = {"role": "assistant", "content": f"I think boxed{{{4 + row}}} at {step}"}
                made = tokenizer.apply_chat_template([asked, said], tokenize=True, return_dict=False)
                ids[row, : len(made)] = made
            batch = rt.RolloutBatch(
                input_ids=ids,
                attention_mask=ids > 0,
                loss_mask=(ids > 0) & (np.arange(LENGTH) > 140),
                rewards=rng.integers(0, 2, 16).astype(float),
                group_ids=[row // 4 for row in range(16)],
                sources=["gsm8k", "math"] * 8,
            )
            logger.log_rollouts(batch, step=step, split=split)
            logger.close_step(step, split)
    assert logger.finish()
    store = rt.open_store("gsm8k")
    for row in store.query(run=name, split="rollout", steps=(12, 12)).rows:
        store.label(row.id, "good", "ann")
    store.close()


def runs_here(line: str) -> bool:
    """Whether a command reads the project and leads nowhere else."""
    return words_of(line)[0] in RUN and not any(word in line for word in ELSEWHERE)


@pytest.mark.parametrize("where", [w for w, line in COMMANDS.items() if runs_here(line)])
def test_a_command_that_reads_a_project_runs(where: str, place: Path) -> None:
    line = COMMANDS[where]
    if UID in line:
        store = rt.open_store("gsm8k")
        uids = [row["uid"] for row in store.query(run="run-001", steps=(85, 85), limit=2).rows]
        store.close()
        line = line.replace(f"{UID}-12", uids[0]).replace(f"{UID}-15", uids[1])
    name, *words = words_of(line)
    done = CliRunner().invoke(build_app([name]), [name, *words])
    assert done.exit_code == 0, done.output + repr(done.exception)


class TestPython:
    @pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
    def test_every_block_compiles_and_imports_what_there_is(self, page: Path) -> None:
        for at, block in enumerate(PYTHON.findall(page.read_text("utf-8"))):
            compile(block, f"{page.name}, block {at + 1}", "exec")
            for line in re.findall(
                r"^(?:from rollout_traces\S* import [\w, ]+|import rollout_traces.*)$", block, re.M
            ):
                exec(line, {})
            for name in re.findall(r"\brt\.(\w+)", block):
                assert hasattr(rt, name), f"{page.name}: rollout_traces has no {name}"

    @pytest.mark.parametrize(
        "page", [ROOT / "README.md", ROOT / "docs" / "logging.md"], ids=lambda page: page.name
    )
    def test_the_loop_of_ones_own_logs(
        self, page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        block = next(b for b in PYTHON.findall(page.read_text("utf-8")) if "RolloutLogger(" in b)
        ids = np.arange(24).reshape(4, 6) + 5
        ones = np.ones_like(ids)
        batch = {
            "input_ids": ids,
            "attention_mask": ones,
            "loss_mask": ones,
            "logprobs": -ones.astype(np.float32),
            "versions": ones,
            "rewards": np.arange(4.0),
            "group_ids": [0, 0, 1, 1],
        }
        trainer = [{**batch, **({"loss": 0.5} if 'batch["loss"]' in block else {})}] * 2
        use_trackio_home(monkeypatch, tmp_path)
        exec(block, {"trainer": trainer, "tokenizer": tiny_tokenizer()})
        store = rt.open_store("gsm8k")
        assert store.count("run-001", rows="all") == 8
        store.close()
