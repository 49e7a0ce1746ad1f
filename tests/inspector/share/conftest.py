"""A project with a long rollout under every track, a secret that the run's hook hid and one that it did not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from rollout_traces.inspector.workspace import Workspace
from tests.generator import tiny_tokenizer
from tests.trackio_home import use_trackio_home

HIDDEN_BY_THE_RUN = "hunter2-of-the-run"
SECRET = 'key "sk-4711 \U0001f511 abc"'
LONG = 8000
HOSTILE = '</script><script>window.pwned = 1</script><!-- <img src=x onerror="window.pwned = 2">'


def log_project(folder: Path) -> None:
    """One group of four rollouts, the first of `LONG` tokens."""
    import rollout_traces as rt

    tokenizer = tiny_tokenizer()
    words = np.random.default_rng(0).permutation([f"word{n}" for n in range(4000)])
    texts = [
        f"{HOSTILE} {SECRET} {HIDDEN_BY_THE_RUN} " + " ".join(words),
        f"short {SECRET}",
        "another",
        "yet another one",
    ]
    ids = [
        tokenizer.apply_chat_template(
            [
                {"role": "user", "content": f"{HIDDEN_BY_THE_RUN} {SECRET}: why?"},
                {"role": "assistant", "content": text},
            ],
            tokenize=True,
            return_dict=False,
        )[:LONG]
        for text in texts
    ]
    assert len(ids[0]) == LONG
    shape = (len(ids), LONG)
    tokens, mask = np.zeros(shape, np.int64), np.zeros(shape, bool)
    for row, each in enumerate(ids):
        tokens[row, : len(each)], mask[row, : len(each)] = each, True
    sampled = mask & (np.arange(LONG) > 60)
    rng = np.random.default_rng(1)

    def track() -> np.ndarray:
        return np.where(sampled, -rng.random(shape), 0).astype(np.float32)

    names = ("logprobs", "prox_logprobs", "new_logprobs", "ref_logprobs", "advantages", "values", "entropies")
    batch = rt.RolloutBatch(
        input_ids=tokens,
        attention_mask=mask,
        loss_mask=sampled,
        versions=np.where(sampled, 3, -1),
        rewards=np.array([1.0, 0.0, 0.5, 0.0], np.float32),
        group_ids=[0, 0, 0, 0],
        ground_truths=[SECRET] * len(ids),
        **{name: track() for name in names},
    )
    logger = rt.RolloutLogger(
        project="share",
        name="run",
        tokenizer=tokenizer,
        max_rollout_traces_per_step=8,
        worker="thread",
        redact=lambda message: [HIDDEN_BY_THE_RUN] if HIDDEN_BY_THE_RUN in str(message["content"]) else [],
    )
    logger.log_rollouts(batch, step=1)
    logger.finish()


@pytest.fixture(scope="package")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workspace]:
    """A workspace over the project `share`."""
    folder = tmp_path_factory.mktemp("share")
    with pytest.MonkeyPatch.context() as patch:
        use_trackio_home(patch, folder)
        log_project(folder)
        found = Workspace(folder=folder)
        yield found
        found.close()


@pytest.fixture(scope="package")
def longest(workspace: Workspace) -> str:
    """The id of the long rollout."""
    page = workspace.store("share").query(order_by="-n_tokens", limit=1)
    assert page.rows[0]["n_tokens"] == LONG
    return str(page.rows[0].id)
