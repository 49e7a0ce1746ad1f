"""What every test may use."""

from __future__ import annotations

import gc
import multiprocessing.util
import os
import shutil
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path

import hypothesis
import pytest

from tests.trackio_home import use_trackio_home

hypothesis.settings.register_profile("any-machine", deadline=None)
hypothesis.settings.load_profile("any-machine")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("OMP_NUM_THREADS", "1")  # threads that wait spin, on the cores of other tests


LONG_TESTS = Path(__file__).with_name("long_tests.txt")
"""The cases that `make test` leaves to `make long`: the longest, so that the others take ten minutes on two cores."""


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Looks for no garbage while tests are collected, nor later among what is there then: a look takes a second."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


def pytest_unconfigure() -> None:
    gc.unfreeze()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks the cases that are listed."""
    listed = frozenset(LONG_TESTS.read_text().splitlines())
    for item in items:
        if item.nodeid in listed:
            item.add_marker("long")


@pytest.fixture(scope="session", autouse=True)
def temporary_files(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Where temporary files of this session lie, spools of the node among them: none that others left is found.

    Its path is short: the names of Unix sockets may have 107 characters.
    """
    tmp_path_factory.getbasetemp()  # made now: made by the first test, it would be removed with that test's files
    multiprocessing.util.get_temp_dir()  # as well
    folder = Path(tempfile.mkdtemp(prefix="rt-"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(
            "XDG_DATA_HOME", str(folder / "data")
        )  # what commands remember of this user's is left alone
        yield _use_for_temporary_files(patch, folder)
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(autouse=True)
def temporary_files_of_this_test(temporary_files: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder for a test's temporary files, removed with what killed processes left in it; its path is short, for sockets."""
    folder = Path(tempfile.mkdtemp(dir=temporary_files))
    yield _use_for_temporary_files(monkeypatch, folder)
    shutil.rmtree(folder, ignore_errors=True)


def _use_for_temporary_files(patch: pytest.MonkeyPatch, folder: Path) -> Path:
    patch.setenv("TMPDIR", str(folder))
    patch.setattr(tempfile, "tempdir", str(folder))
    return folder


@pytest.fixture
def trackio_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A real, empty Trackio home of this test's own; the current run of other tests is forgotten."""
    from trackio import context_vars

    folder = tmp_path / "trackio"
    folder.mkdir()
    use_trackio_home(monkeypatch, folder)
    yield folder
    context_vars.current_run.set(None)
