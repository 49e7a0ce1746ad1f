from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pyarrow as pa
import pytest
from typer.testing import CliRunner, Result

from rollout_traces.cli import build_app
from rollout_traces.export import write_side_table
from rollout_traces.store import open_store
from rollout_traces.trace.conversion import DETAILS_KEY
from tests.store.projects import (
    PROJECT,
    RUN,
    database,
    make_ledger,
    step_records,
    store_values,
    write_step,
    write_traces,
)

SECRET = "the combination is 4711"


@pytest.fixture
def project(trackio_dir: Path) -> Path:
    """Three steps of two runs; row 1 of every step says the secret."""
    for name, run_id in ((RUN, "1" * 32), ("run-002", "2" * 32)):
        for step in range(3):
            texts = {1: (("user", "What?"), ("assistant", f"{SECRET}, step {step}"))}
            ledger = make_ledger([[1.0, 0.0], [0.5, 0.5]], step=step, batch=name[-1], traced=(0, 1))
            write_step(ledger, (0, 1), texts, run=(name, run_id))
            store_values({"train/loss": 1.0}, step=step, run=(name, run_id))
    return trackio_dir


@pytest.fixture
def delete(project: Path) -> Callable[..., Result]:
    def run(*arguments: str) -> Result:
        return CliRunner().invoke(build_app(["delete"]), ["delete", "-p", PROJECT, *arguments])

    return run


def kept(**asked: object) -> set[tuple[str, str]]:
    rows = open_store(PROJECT).rollouts(columns=["run", "uid"], **asked).to_pylist()
    return {(row["run"], row["uid"]) for row in rows}


def said_in_files(folder: Path, text: str) -> list[str]:
    return [str(p) for p in folder.rglob("*") if p.is_file() and text.encode() in p.read_bytes()]


class TestDryRun:
    def test_is_what_happens_without_yes(self, delete: Callable[..., Result], project: Path) -> None:
        before = database(project).read_bytes()
        done = delete(RUN, "--steps", "0:1")
        assert "Rollouts: 8, 4 of them traced." in done.output
        assert "Nothing was deleted" in done.output
        assert database(project).read_bytes() == before and len(kept()) == 24

    def test_names_runs_that_go_as_a_whole(self, delete: Callable[..., Result]) -> None:
        assert "Run run-002 goes as a whole" in delete("run-002").output
        assert "goes as a whole" not in delete("run-002", "--steps", "1").output

    @pytest.mark.parametrize("arguments", [(), (RUN, "--older-than", "3d"), ("--older-than", "soon")])
    def test_what_goes_must_be_named_plainly(
        self, delete: Callable[..., Result], arguments: tuple[str, ...]
    ) -> None:
        said = str(delete(*arguments, "--yes").exception)
        assert ("expected such as" if "soon" in arguments else "Name what goes") in said
        assert ("seen both" in said) == (RUN in arguments)
        assert len(kept()) == 24

    def test_a_filter_that_is_not_understood_deletes_nothing(self, delete: Callable[..., Result]) -> None:
        assert delete("-w", "rewrd < 1", "--yes").exit_code != 0
        assert delete("-w", "reward > 100", "--yes").output.startswith("Nothing matches")
        assert len(kept()) == 24


class TestDelete:
    def test_a_run_goes_with_its_scalars(self, delete: Callable[..., Result]) -> None:
        assert delete("run-002", "--yes").exit_code == 0
        store = open_store(PROJECT)
        assert [info.name for info in store.runs()] == [RUN]
        assert len(kept()) == 12 and store.metrics(RUN)["train/loss"][0] == [0, 1, 2]

    def test_a_run_goes_with_what_it_had_in_flight_and_another_stays(
        self, delete: Callable[..., Result], project: Path
    ) -> None:
        folder = project / "rollout-live" / PROJECT
        for run_id in ("1" * 32, "2" * 32):
            (folder / run_id).mkdir(parents=True)
            (folder / run_id / "node-0-ab.jsonl").write_text(SECRET)
        delete("run-002", "--steps", "1", "--yes")
        assert len(list(folder.iterdir())) == 2
        delete("run-002", "--yes")
        assert [each.name for each in folder.iterdir()] == ["1" * 32]

    def test_steps_go_and_the_curves_stay(self, delete: Callable[..., Result]) -> None:
        assert delete(RUN, "--steps", ":1", "--yes").exit_code == 0
        store = open_store(PROJECT)
        assert [info.step for info in store.steps(RUN, "rollout")] == [2]
        assert store.metrics(RUN)["train/loss"][0] == [0, 1, 2]

    def test_a_rollout_leaves_its_steps_ledger_too(self, delete: Callable[..., Result]) -> None:
        assert delete("--rollout", "11-1", "--yes").exit_code == 0
        assert (RUN, "11-1") not in kept() and len(kept()) == 23
        ledger = open_store(PROJECT).ledger(RUN, "rollout", 1)
        assert ledger.get("uid").tolist() == ["11-0", "11-2", "11-3"]
        assert ledger.get("reward").tolist() == [1.0, 0.5, 0.5]

    def test_an_untraced_rollout_leaves_the_ledger(self, delete: Callable[..., Result]) -> None:
        assert delete("--rollout", "11-3", "--yes").exit_code == 0
        assert (RUN, "11-3") not in kept() and len(kept()) == 23

    def test_a_prompt_goes_from_every_step_of_every_run(self, delete: Callable[..., Result]) -> None:
        assert delete("--prompt", "prompt-0", "--yes").exit_code == 0
        assert open_store(PROJECT).count(where="prompt_key = 'prompt-0'", rows="all") == 0
        assert len(kept()) == 12 and open_store(PROJECT).count() == 0

    def test_nothing_of_it_stays_in_any_file(self, delete: Callable[..., Result], project: Path) -> None:
        store = open_store(PROJECT)
        assert store.count(text="combination") == 6
        ids = [row.id for row in store.query(text="combination").rows]
        write_side_table(store, "judge", pa.table({"id": ids, "said": ["4711-judged"] * len(ids)}))
        store.close()
        assert said_in_files(project, SECRET) and said_in_files(project, "11-1")
        assert delete("-w", "text contains 'combination'", "--yes").exit_code == 0
        assert said_in_files(project, SECRET) == [] and said_in_files(project, "combination") == []
        again = open_store(PROJECT)
        assert again.count(text="combination") == 0 and again.count() == 6
        assert again.rollouts(where="said is not null", columns=["said"]).num_rows == 0

    def test_a_run_that_is_being_logged_is_left_alone(
        self, delete: Callable[..., Result], project: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from rollout_traces.worker import recovery

        class Folder:
            path = project / "spool"

        class Manifest:
            run_name, run_id = RUN, "1" * 32

        left = recovery.Left(Folder(), Manifest(), 3, True)  # type: ignore[arg-type]
        monkeypatch.setattr(recovery, "find_left", lambda project: [left])
        done = delete(RUN, "--yes")
        assert done.exit_code == 1 and "is being logged" in str(done.exception or done.output)
        assert len(kept()) == 24


class TestLabels:
    def test_they_go_with_what_they_are_about_and_the_dry_run_says_so(
        self, delete: Callable[..., Result], project: Path
    ) -> None:
        store = open_store(PROJECT)
        store.label("11-1", "leaks 4711", "ann")
        store.label("11-1", "look at this", "ben", kind="note")
        store.label("21-1", "leaks too", "ann")
        store.close()
        asked = delete("--rollout", "11-1")
        assert "2 labels and notes on 1 rollout go" in asked.output
        assert json.loads(delete("--rollout", "11-1", "--json").stdout)["labels"] == 2
        assert open_store(PROJECT).count(where="label = 'leaks 4711'") == 1
        assert delete("--rollout", "11-1", "--yes").exit_code == 0
        assert said_in_files(project, "leaks 4711") == said_in_files(project, "look at this") == []
        assert open_store(PROJECT).labels.names() == {"leaks too": 1}

    def test_those_of_a_uid_that_another_run_shares_stay(
        self, delete: Callable[..., Result], project: Path
    ) -> None:
        write_step(make_ledger([[1.0]], step=0, batch="1", traced=(0,)), (0,), run=("run-003", "3" * 32))
        store = open_store(PROJECT)
        store.labels.add("label", "10-0", "shared", "ann")
        store.close()
        done = delete("run-003", "--yes", "--json")
        assert json.loads(done.stdout)["labels"] == 0
        assert open_store(PROJECT).labels.names() == {"shared": 1}


class TestMedia:
    def test_the_images_of_what_goes_go(self, delete: Callable[..., Result], project: Path) -> None:
        mine, kept_file = image(RUN, 5), image(RUN, 5)
        write_image(mine, "x5-0", kept_file)
        write_image(kept_file, "y5-0", kept_file)
        outside = project / "outside.png"
        outside.write_bytes(b"mine")
        assert "1 media files go" in delete("--rollout", "x5-0").output
        assert (project / "media" / mine).exists()
        assert json.loads(delete("--rollout", "x5-0", "--yes", "--json").stdout)["media_files"] == 1
        assert not (project / "media" / mine).exists() and outside.exists()
        assert (project / "media" / kept_file).exists(), "another trace shows it"

    def test_a_path_that_leads_out_of_the_projects_folder_is_left_alone(
        self, delete: Callable[..., Result], project: Path
    ) -> None:
        image(RUN, 5)
        outside = project / "outside.png"
        outside.write_bytes(b"mine")
        write_image("../outside.png", "x5-0", str(outside))
        assert json.loads(delete("--rollout", "x5-0", "--yes", "--json").stdout)["media_files"] == 0
        assert outside.exists()

    def test_a_whole_run_takes_all_that_was_saved_for_it(
        self, delete: Callable[..., Result], project: Path
    ) -> None:
        mine, others, nested = image("run-002", 1), image(RUN, 1), image("run-002/3", 1)
        assert json.loads(delete("run-002", "--yes", "--json").stdout)["media_files"] == 1
        assert not (project / "media" / mine).exists()
        assert (project / "media" / others).exists() and (project / "media" / nested).exists()

    def test_the_files_of_another_run_of_that_name_stay(
        self, delete: Callable[..., Result], project: Path
    ) -> None:
        write_step(make_ledger([[1.0]], step=0, batch="9", traced=(0,)), (0,), run=("run-002", "9" * 32))
        shared = image("run-002", 1)
        assert delete("2" * 32, "--yes").exit_code == 0
        assert (project / "media" / shared).exists()


class TestSpools:
    def test_those_of_a_whole_run_go_and_those_of_another_of_its_name_stay(
        self, delete: Callable[..., Result], project: Path
    ) -> None:
        from rollout_traces.worker.recovery import find_left

        mine, others = leave_a_record(RUN, "1" * 32), leave_a_record(RUN, "7" * 32)
        assert {left.n_records for left in find_left(PROJECT)} == {1}
        asked = delete("1" * 32)
        assert "1 records wait in spools of these runs; 1 of them go" in asked.output and mine.exists()
        assert delete("1" * 32, "--yes").exit_code == 0
        assert not mine.exists() and others.exists()
        assert [left.manifest.run_id for left in find_left(PROJECT)] == ["7" * 32]

    def test_what_would_come_back_is_refused(self, delete: Callable[..., Result], project: Path) -> None:
        waiting = leave_a_record(RUN, "1" * 32)
        done = delete(RUN, "--steps", "1", "--yes")
        assert done.exit_code == 1 and "would come back" in str(done.exception or done.output)
        assert waiting.exists() and len(kept()) == 24


class TestRetention:
    def test_steps_older_than_an_age_go(self, delete: Callable[..., Result], project: Path) -> None:
        age_of(project, RUN, 0, timedelta(days=40))
        age_of(project, RUN, 1, timedelta(days=20))
        done = delete("--older-than", "30d", "--yes", "--json")
        assert json.loads(done.stdout)["rollouts"] == 4
        assert not [each for each in kept() if each[1].startswith("10-")] and len(kept()) == 20

    def test_the_oldest_steps_go_until_the_size_is_kept(
        self, delete: Callable[..., Result], project: Path
    ) -> None:
        for step in range(3):
            age_of(project, "run-002", step, timedelta(days=9 - step))
        size = json.loads(delete("--keep-gb", "0", "--json").stdout)["megabytes"]
        done = delete("--keep-gb", str(size / 1000 * 0.7), "--yes", "--json")
        assert json.loads(done.stdout)["steps"] == 2
        assert {run for run, _ in kept(steps=(0, 1))} == {RUN}

    def test_nothing_goes_while_all_is_within_bounds(self, delete: Callable[..., Result]) -> None:
        assert "nothing goes" in delete("--older-than", "30d", "--keep-gb", "5", "--yes").output
        assert len(kept()) == 24


def image(run: str, step: int) -> str:
    """Saves an image as Trackio does; its path below the media folder."""
    import numpy as np
    import trackio

    media = trackio.Image(np.zeros((2, 2, 3), np.uint8))
    media._save(PROJECT, run, step)
    return str(media._to_dict()["file_path"])


def write_image(path: str, uid: str, other: str) -> None:
    """Stores a step of one rollout whose trace names two media files."""
    batch, _ = uid.split("5-")
    (record,) = step_records(make_ledger([[1.0]], step=5, batch=batch, traced=(0,)), (0,))
    details = next(span[DETAILS_KEY] for span in record.spans if DETAILS_KEY in span)
    details["images"] = [
        {"_type": "trackio.image", "file_path": each, "caption": None} for each in (path, other)
    ]
    write_traces({"rollout/trajectories": [record]}, step=5)


def leave_a_record(run: str, run_id: str) -> Path:
    """What a killed trainer left behind: a spool with one record."""
    import trackio.utils

    from rollout_traces.spool.folder import SpoolWriter
    from rollout_traces.spool.run_folder import RunManifest, take_run_folder

    folder = take_run_folder(Path(trackio.utils.TRACKIO_DIR), PROJECT, run_id)
    folder.write_manifest(RunManifest(PROJECT, run, run_id))
    writer = SpoolWriter(folder.writer_folder("0"), max_bytes=1 << 20)
    writer.append([b"a record"])
    writer.close()
    return folder.path


def age_of(folder: Path, run: str, step: int, age: timedelta) -> None:
    """Makes a step look as if it had been stored long ago."""
    import sqlite3

    then = (datetime.now(timezone.utc) - age).isoformat()
    with sqlite3.connect(database(folder)) as connection:
        connection.execute(
            "UPDATE traces SET timestamp = ? WHERE run_name = ? AND step = ?", (then, run, step)
        )
