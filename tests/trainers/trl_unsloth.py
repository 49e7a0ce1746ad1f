"""TRL's trainer recompiled as Unsloth does it, by the TRL versions that Unsloth allows; compared with what was stored.

Unsloth needs a GPU to be imported. What matters to a hook is what it makes: a class `UnslothGRPOTrainer` of a new
module, written from the source of TRL's class under another name, put in the place of TRL's. That is done here with
the real source of an older TRL; the training is real. Run by `make test-trainers` in TRL's environment, with the
version's folder as its argument.
"""

from __future__ import annotations

import inspect
import os
import re
import sys
import tempfile
import time
from pathlib import Path
from types import ModuleType

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from rollout_traces.integrations import import_hook
from tests.generator import tiny_tokenizer

FOLDER = Path(tempfile.mkdtemp())
os.environ.update(
    HF_HUB_OFFLINE="1",
    ROLLOUT_TRACES_TEST_FOLDER=str(FOLDER),
    ROLLOUT_TRACES_SELECTION="all",
    TRACKIO_DIR=str(FOLDER / "trackio"),  # before an older TRL imports Trackio
)
tiny_tokenizer("qwen3")  # its template comes with the environment's TRL, which is not imported
sys.path.insert(0, sys.argv[1])  # the older TRL, before the environment's


def recompile() -> type:
    """Puts a class made of the source of TRL's `GRPOTrainer` in its place, as importing Unsloth does."""
    import trl
    from trl.trainer import grpo_trainer

    source = inspect.getsource(grpo_trainer.GRPOTrainer)
    source = source.replace("class GRPOTrainer", "class _UnslothGRPOTrainer", 1)
    source = re.sub(r"\bsuper\(\)\.__init__\(", "super(_UnslothGRPOTrainer, self).__init__(", source, count=1)
    path = Path(tempfile.mkdtemp()) / "UnslothGRPOTrainer.py"
    path.write_text(f"{source}\n\nclass UnslothGRPOTrainer(_UnslothGRPOTrainer):\n    pass\n")
    module = ModuleType("UnslothGRPOTrainer")
    module.__dict__.update({k: v for k, v in vars(grpo_trainer).items() if not k.startswith("__")})
    module.__file__ = str(path)
    sys.modules[module.__name__] = module
    exec(compile(path.read_text(), str(path), "exec"), module.__dict__)
    trl.GRPOTrainer = trl.trainer.GRPOTrainer = grpo_trainer.GRPOTrainer = module.UnslothGRPOTrainer
    return module.UnslothGRPOTrainer


def main() -> None:
    """Trains and checks."""
    import trl
    from trl import GRPOConfig

    hooks = import_hook.install("unsloth").hooks
    trainer_class = recompile()
    assert not getattr(trainer_class.__init__, "_rollout_traces", False)
    hooks["unsloth"](ModuleType("unsloth"))  # what runs once `import unsloth` is done
    assert trainer_class.__init__._rollout_traces

    from trl_grpo import ROWS, check, train

    from tests.trainers.result import report

    start, rows = time.time(), 0
    for project, options in {
        "unsloth-plain": {"steps": 480 // ROWS},
        "unsloth-truncated": {"steps": 2, "mask_truncated_completions": True, "max_completion_length": 6},
    }.items():
        trainer = train(project, tools=[], classes=(trainer_class, GRPOConfig), **options)
        assert type(trainer).__module__ == "UnslothGRPOTrainer"
        rows += check(project, trainer)
    print(f"unsloth, TRL {trl.__version__}: {time.time() - start:.1f} s")
    report(f"Unsloth's trainer of TRL {trl.__version__}", "trl", "trl", rows=rows, equal=rows)


if __name__ == "__main__":
    main()
