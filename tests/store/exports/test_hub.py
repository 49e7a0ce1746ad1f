"""An export in a data set of the Hub, read through huggingface_hub's own file system; the Hub is one on loopback."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from rollout_traces.cli import build_app
from rollout_traces.errors import StoreError
from rollout_traces.store import Store, open_store
from tests.deploy.hub import READER, Dataset, LoopbackHub, loopback_hub
from tests.store.projects import RUN

ADDRESS = "hf://datasets/ada/gsm8k/rollouts"


@pytest.fixture
def hub(exported: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LoopbackHub]:
    """A Hub with the export in a folder of a private data set, which the environment's token may read."""
    import huggingface_hub

    with loopback_hub() as served:
        files = [path for path in exported.rglob("*") if path.is_file()]
        served.datasets["ada/gsm8k"] = Dataset(
            {f"rollouts/{path.relative_to(exported)}": path.read_bytes() for path in files}
            | {"README.md": b"rollouts of gsm8k"}
        )
        template = served.address + "/{repo_id}/resolve/{revision}/{filename}"
        for name, value in (
            ("ENDPOINT", served.address),
            ("HUGGINGFACE_CO_URL_TEMPLATE", template),
            ("HF_HUB_OFFLINE", False),
        ):
            monkeypatch.setattr(huggingface_hub.constants, name, value)
        monkeypatch.setenv("HF_TOKEN", READER)
        huggingface_hub.HfFileSystem.clear_instance_cache()
        yield served
        huggingface_hub.HfFileSystem.clear_instance_cache()
        assert served.unknown == []


def test_it_is_read_without_trackio(hub: LoopbackHub, store: Store) -> None:
    opened = open_store(ADDRESS)
    assert opened.runs() == store.runs()
    assert opened.count(rows="all") == store.count(rows="all") > opened.count() == 10
    assert opened.count(text="boxed{42}") == store.count(text="boxed{42}") > 0
    assert opened.messages("b1-0") == store.messages("b1-0")
    assert opened.metrics(RUN).keys() == store.metrics(RUN).keys()


def test_a_commit_is_seen_at_the_next_refresh(hub: LoopbackHub) -> None:
    opened = open_store(ADDRESS)
    files = hub.datasets["ada/gsm8k"].files
    (data,) = [data for path, data in files.items() if f"run={RUN}/step=1/" in path]
    files[f"rollouts/run={RUN}/step=7/part-0.parquet"] = data
    asked = len(hub.asked)
    assert opened.refresh() == 3 and opened.count(steps=(7, 7), rows="all") == 8
    fetched = [each for each in hub.asked[asked:] if "/resolve/" in each and each.endswith(".parquet")]
    assert len(fetched) <= 2 and all("step=7" in each for each in fetched), "no other file is read again"


def test_commands_take_the_address(hub: LoopbackHub) -> None:
    done = CliRunner().invoke(build_app(["list"]), ["list", "-p", ADDRESS], env={"COLUMNS": "200"})
    assert done.exit_code == 0 and f"10 of 10 in export {ADDRESS}" in done.output


@pytest.mark.parametrize("address", ["hf://datasets/ada/nothing", "hf://datasets/ada/gsm8k/elsewhere"])
def test_what_is_not_there_is_a_sentence(hub: LoopbackHub, address: str) -> None:
    with pytest.raises(StoreError, match=address):
        open_store(address)


def test_a_token_that_may_not_read_it_is_a_sentence(
    hub: LoopbackHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_nobody")
    with pytest.raises(StoreError, match="hf://datasets/ada/gsm8k"):
        open_store(ADDRESS)


def test_it_answers_from_its_index_while_the_hub_is_away(hub: LoopbackHub) -> None:
    opened = open_store(ADDRESS)
    hub.failures["GET /api/datasets"] = 503
    with pytest.raises(StoreError, match="cannot be read"):
        opened.refresh()
    assert opened.count() == 10
