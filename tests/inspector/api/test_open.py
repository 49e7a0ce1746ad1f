"""An agent moves the page that a person looks at, where that person allows it."""

from __future__ import annotations

import httpx
import pytest
from playwright.sync_api import expect

from rollout_traces.errors import StoreError
from rollout_traces.inspector.api.other_inspector import open_elsewhere
from tests.inspector.conftest import TOKEN, Visit, free_port

pytestmark = pytest.mark.browser


def wait_for_news(visit: Visit, n: int) -> None:
    """Until the page has asked so many times whether there is anything new, and was answered."""
    for _ in range(n):
        with visit.page.expect_response(
            lambda answer: '"pulse"' in (answer.request.post_data or ""), timeout=60_000
        ):
            pass
    visit.page.wait_for_timeout(500)


def test_the_page_moves_only_where_its_reader_pressed_agent(visit: Visit):
    visit.open(tab="rollouts", project="demo", run="run-a", step=6)
    expect(visit.get("turn").first).to_be_visible()
    expect(visit.get("live")).to_contain_text("steps", timeout=60_000)
    wait_for_news(visit, 1)
    state = {"project": "demo", "run": "run-a", "split": "rollout", "tab": "rollouts", "step": "2"}
    assert open_elsewhere(visit.address, TOKEN, state).asked
    wait_for_news(visit, 2)
    assert visit.state["step"] == "6"
    visit.get("may-move").click()
    open_elsewhere(visit.address, TOKEN, {**state, "step": "3"})
    expect(visit.get("step-input")).to_have_value("3", timeout=60_000)


def test_a_wrong_token_and_no_inspector_are_said(served):
    with pytest.raises(StoreError, match="401"):
        open_elsewhere(served.address, "not the token of the tests", {"tab": "run"})
    with pytest.raises(StoreError, match="no inspector answers"):
        open_elsewhere(f"http://127.0.0.1:{free_port()}", None, {"tab": "run"})
    assert httpx.post(f"{served.address}/api/v1/open", json={"state": {}}, timeout=10).status_code == 401
