"""No page writes an error into the browser's console."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rollout_traces.inspector.registry import PAGES
from tests.inspector.conftest import Served, Visit

pytestmark = pytest.mark.browser
TABS = [page.name for page in PAGES if page.title]


@pytest.fixture(scope="module")
def heard(chromium: object, served: Served) -> Iterator[tuple[Visit, list[str]]]:
    """A visit, and the errors that its console was given."""
    visit, errors = Visit(chromium, served.address), []
    visit.page.on("console", lambda said: errors.append(said.text) if said.type == "error" else None)
    yield visit, errors
    visit.close()


@pytest.mark.parametrize("tab", TABS)
def test_a_page_draws_without_an_error(heard: tuple[Visit, list[str]], tab: str) -> None:
    visit, errors = heard
    visit.open(project="demo", tab=tab)
    visit.page.wait_for_load_state("networkidle")
    assert errors == []


def test_an_error_would_be_heard(heard: tuple[Visit, list[str]]) -> None:
    visit, errors = heard
    visit.page.evaluate("console.error('planted')")
    assert errors == ["planted"]
    errors.clear()
