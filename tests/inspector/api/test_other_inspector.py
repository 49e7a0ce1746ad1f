"""Labels of one project on two machines are made equal through the inspector that serves it."""

from __future__ import annotations

import json
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
from rollout_traces.inspector.api import other_inspector
from rollout_traces.inspector.api.other_inspector import Synced, sync_labels
from rollout_traces.store import open_store
from rollout_traces.store.labels import LabelBook
from tests.inspector.conftest import BEARER, TOKEN, Served, environment, free_port
from tests.lying_server import LyingServer, body, lying_server, redirect

PROJECT = "pictures"
ADA, GRACE = "the-token-that-ada-has", "the-token-that-grace-has"


@pytest.fixture(scope="module")
def home(home: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the projects: its labels would show in the pages of other tests."""
    return Path(shutil.copytree(home, tmp_path_factory.mktemp("labelled") / "trackio"))


@pytest.fixture(scope="module")
def served(home: Path) -> Iterator[Served]:
    """The inspector over the copy."""
    server = Served(home, ROLLOUT_TRACES_TOKENS=f"ada={ADA} grace={GRACE}")
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
    new = {"project": PROJECT, "id": uid, "text": text}
    headers = {"Authorization": f"Bearer {GRACE}"}
    httpx.post(f"{served.address}/api/v1/labels", json=new, headers=headers, timeout=30).raise_for_status()


def give(served: Any, lines: list[dict[str, Any]], token: str = ADA) -> dict[str, Any]:
    """What the server says of lines that a token gives."""
    answer = httpx.post(
        f"{served.address}/api/v1/labels/lines",
        json={"project": PROJECT, "lines": lines},
        headers={"Authorization": f"Bearer {token}"},
        timeout=30,
    )
    return {"status": answer.status_code, **answer.json()}


class TestBothSides:
    def test_have_the_labels_of_either_with_author_and_the_servers_date(self, served, uid, mine):
        put = mine.add("label", uid, "mine", "ada")
        label_there(served, uid, "theirs")
        done = sync_labels(mine, PROJECT, served.address, ADA)
        assert done.taken >= 1 and done.given == 1
        assert {"mine", "theirs"} <= {entry.text for entry in mine.of(uid)}
        [copy] = [each for each in there(served, uid) if each["text"] == "mine"]
        assert (copy["id"], copy["author"]) == (put.id, "ada") and copy["time"] > put.time
        [theirs] = [each for each in mine.of(uid) if each.text == "theirs"]
        assert theirs.author == "grace"
        assert sync_labels(mine, PROJECT, served.address, ADA) == Synced(0, 0)

    def test_lose_what_either_took_back_and_it_stays_off(self, served, uid, mine):
        mine.add("label", uid, "taken back", "ada")
        sync_labels(mine, PROJECT, served.address, ADA)
        [entry] = [each for each in mine.of(uid) if each.text == "taken back"]
        mine.remove(uid, entry.id, "ada")
        assert sync_labels(mine, PROJECT, served.address, ADA).given == 1
        assert "taken back" not in [each["text"] for each in there(served, uid)]
        mine.log.append(entry.line())
        assert "taken back" not in [each.text for each in mine.of(uid)]

    def test_keep_what_others_wrote_where_it_was_written(self, served, uid, mine):
        mine.add("note", uid, "by a third", "eva")
        done = sync_labels(mine, PROJECT, served.address, ADA)
        assert (done.given, done.kept, done.refused) == (0, 1, ())
        assert "by a third" not in [each["text"] for each in there(served, uid)]

    def test_more_lines_than_one_request_holds_all_go_over(self, served, uid, mine):
        for number in range(150):
            mine.add("note", uid, f"note {number} of this test " + "x" * 900, "ada")
        assert sync_labels(mine, PROJECT, served.address, ADA).given == 150
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


class TestAnyServer:
    """What is no inspector, or one that means harm, is one sentence, and nothing of it is kept."""

    @pytest.fixture
    def lying(self) -> Iterator[LyingServer]:
        with lying_server() as found:
            yield found

    def test_labels_without_end_are_not_asked_for_on_and_on(self, lying, mine, monkeypatch):
        line = {
            "id": "a" * 16,
            "kind": "label",
            "rollout": "r",
            "text": "t",
            "author": "a",
            "time": "2026-01-01",
        }

        def more(handler):
            part = {"run_id": "r", "lines": [line] * 100, "author": "ada", "next": len(lying.asked)}
            body(json.dumps(part).encode())(handler)

        lying.answers["lines"] = more
        monkeypatch.setattr(other_inspector, "MOST_BYTES", 100_000)
        with pytest.raises(StoreError, match="labels without end; expected 100,000 bytes"):
            sync_labels(mine, PROJECT, lying.address, None)
        assert 2 < len(lying.asked) < 30 and mine.lines() == []

    def test_a_page_that_leads_back_is_not_followed(self, lying, mine):
        lying.answers["lines"] = body(b'{"run_id": "r", "lines": [], "author": "ada", "next": 0}')
        with pytest.raises(StoreError, match="labels without end"):
            sync_labels(mine, PROJECT, lying.address, None)
        assert len(lying.asked) == 1

    @pytest.mark.parametrize("said", [b"", b"<html>", b'{"lines": 3}', b"[" * 100_000])
    def test_what_is_no_page_of_labels_is_said(self, lying, mine, said):
        lying.answers["lines"] = body(said)
        with pytest.raises(StoreError, match="something else than lines of labels"):
            sync_labels(mine, PROJECT, lying.address, None)

    def test_another_address_is_not_asked_and_gets_no_token(self, lying, mine):
        lying.answers["lines"] = redirect(f"{lying.address}/elsewhere")
        with pytest.raises(StoreError, match="refuses \\(307\\)"):
            sync_labels(mine, PROJECT, lying.address, "a token")
        assert len(lying.asked) == 1


class TestRefusals:
    """Lines of labels with another's name, an older date, a rollout that is not there: once they were kept."""

    def test_a_wrong_token_and_no_inspector_are_said(self, served, mine):
        with pytest.raises(StoreError, match="401"):
            sync_labels(mine, PROJECT, served.address, "not the token of the tests")
        with pytest.raises(StoreError, match="no inspector answers"):
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
    def test_a_line_that_nobody_here_would_write_is_not_kept(self, served, uid, mine, wrong):
        good = vars(mine.add("label", uid, f"beside {sorted(wrong)}", "ada"))
        said = give(served, [good, {**good, "id": "0" * 16, "text": "bad", **wrong}])
        assert said["status"] == 422 or (said["taken"], len(said["refused"])) == (1, 1)
        assert not {"bad", *map(str, wrong.values())} & {each["text"] for each in there(served, uid)}

    def test_no_line_of_another_author_date_or_rollout_is_taken(self, served, uid, mine):
        good = vars(mine.add("label", uid, "hers", "ada"))
        forged = [
            {**good, "id": "1" * 16, "author": "grace"},
            {**good, "id": "2" * 16, "rollout": "no-such-rollout"},
            {**good, "id": "3" * 16, "rollout": uid[:-1] + "x"},
            {**good, "id": "4" * 16, "start": 10**6, "stop": 10**6 + 1},
        ]
        said = give(served, [*forged, {**good, "id": "5" * 16, "time": "2001-01-01T00:00:00+00:00"}])
        assert said["taken"] == 1
        reasons = (
            "author: seen “grace”; this token writes as “ada”",
            "no-such-rollout",
            uid[:-1] + "x",
            "tokens",
        )
        assert all(why in line for why, line in zip(reasons, said["refused"], strict=True))
        [kept] = [each for each in there(served, uid) if each["id"] in [n * 16 for n in "12345"]]
        assert kept["id"] == "5" * 16 and not kept["time"].startswith("2001")

    def test_nobody_takes_back_what_another_wrote_but_the_owner(self, served, uid, mine):
        label_there(served, uid, "of grace")
        [entry] = [each for each in there(served, uid) if each["text"] == "of grace"]
        gone = {
            **vars(mine.add("label", uid, "x", "ada")),
            "id": "6" * 16,
            "kind": "removed",
            "text": entry["id"],
        }
        assert "“grace” wrote it" in give(served, [gone])["refused"][0]
        assert "of grace" in [each["text"] for each in there(served, uid)]
        owner = httpx.get(f"{served.address}/session", headers=BEARER, timeout=30).json()
        assert owner["owner"]
        assert give(served, [{**gone, "author": owner["name"]}], TOKEN)["taken"] == 1
        assert "of grace" not in [each["text"] for each in there(served, uid)]
