"""Labels of one project on two machines are made equal through the inspector that serves it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from rollout_traces.errors import StoreError
from rollout_traces.inspector.api.label_sync import Synced, sync_labels
from rollout_traces.store import open_store
from rollout_traces.store.labels import LabelBook
from tests.inspector.conftest import BEARER, TOKEN, Served, environment, free_port

PROJECT = "pictures"


@pytest.fixture(scope="module")
def home(home: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the projects: its labels would show in the pages of other tests."""
    return Path(shutil.copytree(home, tmp_path_factory.mktemp("labelled") / "trackio"))


@pytest.fixture(scope="module")
def served(home: Path) -> Iterator[Served]:
    """The inspector over the copy."""
    server = Served(home)
    yield server
    server.stop()


@pytest.fixture
def uid(home) -> str:
    store = open_store(PROJECT, folder=home)
    try:
        return str(store.query(limit=1).rows[0]["uid"])
    finally:
        store.close()


@pytest.fixture
def mine(tmp_path) -> LabelBook:
    return LabelBook(tmp_path / "labels" / "mine.jsonl")


def there(served: Any, uid: str) -> list[dict[str, Any]]:
    answer = httpx.get(
        f"{served.address}/api/v1/labels", params={"project": PROJECT, "id": uid}, headers=BEARER, timeout=30
    )
    return answer.json()["labels"]


def label_there(served: Any, uid: str, text: str) -> None:
    new = {"project": PROJECT, "id": uid, "text": text, "author": "grace"}
    httpx.post(f"{served.address}/api/v1/labels", json=new, headers=BEARER, timeout=30).raise_for_status()


class TestBothSides:
    def test_have_the_labels_of_either_with_author_and_time(self, served, uid, mine):
        put = mine.add("label", uid, "mine", "ada")
        label_there(served, uid, "theirs")
        done = sync_labels(mine, PROJECT, served.address, TOKEN)
        assert done.taken >= 1 and done.given == 1
        assert {"mine", "theirs"} <= {entry.text for entry in mine.of(uid)}
        [copy] = [each for each in there(served, uid) if each["text"] == "mine"]
        assert (copy["id"], copy["author"], copy["time"]) == (put.id, "ada", put.time)
        assert sync_labels(mine, PROJECT, served.address, TOKEN) == Synced(0, 0)

    def test_lose_what_either_took_back_and_it_stays_off(self, served, uid, mine):
        label_there(served, uid, "taken back")
        sync_labels(mine, PROJECT, served.address, TOKEN)
        [entry] = [each for each in mine.of(uid) if each.text == "taken back"]
        mine.remove(uid, entry.id, "ada")
        assert sync_labels(mine, PROJECT, served.address, TOKEN).given == 1
        assert "taken back" not in [each["text"] for each in there(served, uid)]
        mine.log.append(entry)
        assert "taken back" not in [each.text for each in mine.of(uid)]

    def test_more_lines_than_one_request_holds_all_go_over(self, served, uid, mine):
        for number in range(150):
            mine.add("note", uid, f"note {number} of this test " + "x" * 900, "ada")
        assert sync_labels(mine, PROJECT, served.address, TOKEN).given == 150
        assert sum("of this test" in each["text"] for each in there(served, uid)) == 150

    def test_the_command_says_how_many_lines_went_over(self, served, home, uid):
        label_there(served, uid, "by command")
        command = "from rollout_traces.cli import main; main()"
        done = subprocess.run(
            [sys.executable, "-c", command, "label", "-p", PROJECT, "--sync", served.address],
            env={**os.environ, **environment(home)},
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0, done.stderr
        assert "0 lines taken, 0 given" in done.stderr and "by command" in done.stdout


class TestRefusals:
    def test_a_wrong_token_and_no_inspector_are_said(self, served, mine):
        with pytest.raises(StoreError, match="401"):
            sync_labels(mine, PROJECT, served.address, "not the token of the tests")
        with pytest.raises(StoreError, match="does not answer"):
            sync_labels(mine, PROJECT, f"http://127.0.0.1:{free_port()}", None)

    @pytest.mark.parametrize(
        "wrong",
        [
            {"id": "../../x"},
            {"text": "a\u202eb"},
            {"text": "x" * 65},
            {"author": ""},
            {"time": "yesterday"},
            {"kind": "other"},
            {"start": 9, "stop": 3},
            {"turn": -1},
        ],
    )
    def test_a_line_that_nobody_here_would_write_is_not_kept(self, served, home: Path, uid, mine, wrong):
        good = mine.add("label", uid, "good", "ada")
        line = {**vars(good), **wrong}
        sent = {"project": PROJECT, "lines": [{**vars(good), "id": "0" * 16}, line]}
        answer = httpx.post(f"{served.address}/api/v1/labels/lines", json=sent, headers=BEARER, timeout=30)
        assert answer.status_code in (400, 422)
        assert "good" not in [each["text"] for each in there(served, uid)]
