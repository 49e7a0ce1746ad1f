"""Every page for programs: an address answers what a page is answered, typed and in parts."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from starlette.testclient import TestClient

from rollout_traces.inspector.access import Visitor, asking
from rollout_traces.inspector.guard import ServerOptions
from rollout_traces.inspector.registry import PAGES, READ, SENT
from rollout_traces.inspector.server import build_server
from rollout_traces.inspector.workspace import Workspace
from tests.inspector.told import told

TOKEN = "t" * 24
BEARER = {"Authorization": f"Bearer {TOKEN}"}
DEMO = {"project": "demo", "run": "run-a", "split": "rollout"}
STEP = {**DEMO, "step": 4}
EVALUATED = {**DEMO, "split": "eval-rollout"}
STORY = {"project": "story", "run": "off", "split": "rollout"}
AGENTS = {"project": "agents", "run": "run-a", "split": "rollout", "step": 1}

ASKED: dict[str, tuple[str, Mapping[str, Any]]] = {
    "breakdown": ("pages/health/breakdown", {**DEMO, "name": "reward/mean", "by": "source"}),
    "catalog": ("pages/catalog", {"project": "demo"}),
    "diagnosis_figures": ("pages/run/figures", STORY),
    "episodes": ("pages/episodes", AGENTS),
    "examples": ("pages/health/examples", {**STEP, "name": "reward/mean", "what": "measure"}),
    "explain": ("pages/explain", {**STORY, "step": 15}),
    "export": ("pages/explore/export", {**DEMO, "where": "reward >= 0.5"}),
    "figures": ("pages/explain/figures", {**STORY, "step": 15, "of": "findings", "at": 0}),
    "flip_figures": ("pages/flips/figures", EVALUATED),
    "flip_list": ("pages/flips", EVALUATED),
    "grid": ("pages/flips/grid", EVALUATED),
    "funnel": ("pages/lanes/funnel", STEP),
    "group": ("pages/group", {**STEP, "group": 1}),
    "group_pushes": ("pages/rollouts/group_pushes", {**STEP, "group": 1}),
    "health": ("pages/health", DEMO),
    "in_force": ("pages/explain/in_force", {**STORY, "step": 15}),
    "incident_bar": ("pages/incidents", DEMO),
    "live": ("live", {"project": "demo", "run": "run-a"}),
    "metrics": ("pages/rollouts/series", DEMO),
    "lanes": ("pages/lanes", STEP),
    "population": ("pages/population", STEP),
    "project": ("pages/project", {"project": "demo"}),
    "prompt": ("pages/prompts/prompt", DEMO),
    "prompt_history": ("pages/compare/prompt_history", DEMO),
    "prompt_list": ("pages/prompts", DEMO),
    "reward_functions": ("pages/lanes/reward_functions", DEMO),
    "run_curves": ("pages/run/curves", STORY),
    "run_report": ("pages/run", STORY),
    "samples": ("pages/rollouts", STEP),
    "step_means": ("pages/rollouts/step_means", STEP),
    "spread": ("pages/explore/spread", {**DEMO, "column": "reward"}),
    "several_runs": ("pages/runs", {**DEMO, "others": ["run-b"]}),
    "what_if": ("pages/what_if", STEP),
}
"""Function of a page -> the address that leads to it, and what both are asked here."""
OTHERWISE = {
    "annotate": "labels",
    "columns": "columns",
    "compare": "pages/compare",
    "image": "pages/rollouts/image",
    "raw_record": "pages/rollouts/raw_record",
    "labels": "labels",
    "live_rollout": "live/rollout",
    "mark_incident": "pages/incidents",
    "places": "projects",
    "pulse": "pages/catalog",
    "rollout": "rollout",
    "table": "rollouts",
    "export_chosen": "pages/explore/export_chosen",
    "viewed": "pages/rollouts/viewed",
    "viewers": "pages/rollouts/viewers",
}
"""Function of a page -> the address that says it in another shape; the tests below and in `test_http` speak of them."""
A_FILE = {"share"}
"""Gives a page to send to somebody: `rollout-traces share`."""


@pytest.fixture(scope="module")
def demo(home) -> Iterator[Workspace]:
    found = Workspace(folder=home)
    found.store("demo")  # indexed, however long that takes
    yield found
    found.close()


@pytest.fixture(scope="module")
def clients(demo, workspace) -> dict[str, TestClient]:
    """The whole server over each workspace, by project."""
    asked = {}
    for shown, projects in ((demo, ("demo", "agents", "pictures")), (workspace, ("story",))):
        server = build_server(shown, ServerOptions(token=TOKEN, mount_trackio=False))
        client = TestClient(server, base_url="http://127.0.0.1:7861", headers=BEARER)
        asked |= dict.fromkeys(projects, client)
    return asked


@pytest.fixture(scope="module")
def get(clients):
    def get(route: str, /, **query: Any) -> Any:
        answer = clients[query["project"]].get(f"/api/v1/{route}", params=query)
        assert answer.status_code == 200, answer.text
        return answer.json()

    return get


def functions() -> dict[str, Any]:
    return {function.__name__: function for page in PAGES for function in page.functions}


class TestAddresses:
    def test_every_function_of_every_page_has_one(self):
        known = {**{name: route for name, (route, _) in ASKED.items()}, **OTHERWISE}
        without = [name for name in functions() if name not in known and name not in A_FILE]
        assert not without, f"functions of pages without an address in /api/v1: {without}"
        assert not set(known) - set(functions()), "addresses of functions that no page has"
        assert set(known.values()) <= {*READ, *SENT}
        pages = {name for name in READ if name.startswith("pages/")}
        assert pages <= {*known.values(), "pages/rollouts/tokens"}

    @pytest.mark.parametrize("name", ASKED)
    def test_it_says_what_the_page_is_told(self, name, get, demo, workspace):
        route, asked = ASKED[name]
        shown = workspace if asked["project"] == "story" else demo
        if name in ("prompt", "prompt_history"):
            key = shown.store("demo").query(where="prompt_key is not null", limit=1).rows[0]["prompt_key"]
            asked = {**asked, "prompt" if name == "prompt" else "prompt_key": key}
        assert told(functions()[name], shown, asked) == get(route, **asked)

    @pytest.mark.parametrize("name", ["columns", "labels", "places"])
    def test_so_do_those_that_are_no_pages(self, name, get, demo):
        trace_id = demo.store("demo").query(limit=1).rows[0].id
        asked = {"columns": {}, "labels": {"id": trace_id}, "places": {}}[name]
        with asking(Visitor("owner", owner=True)):
            page = told(functions()[name], demo, {"project": "demo", **asked})
        assert page == get(OTHERWISE[name], project="demo", **asked)

    def test_two_rollouts_are_compared_without_their_tokens(self, get, demo):
        page = told(functions()["compare"], demo, {**STEP, "group": 1})
        shown = get("pages/compare", **STEP, group=1)
        for side, whole in zip(shown.pop("sides"), page.pop("sides"), strict=True):
            assert "tokens" not in side and side == {key: whole[key] for key in side}
        assert page == shown

    def test_series_are_named_with_commas(self, get):
        shown = get("pages/rollouts/series", **DEMO, names="rollout/reward/mean, rollout/reward/std")
        assert shown["shown"] == ["rollout/reward/mean", "rollout/reward/std"]

    def test_another_run_is_a_side_of_explain(self, get):
        twin = get("pages/explain", **STORY, steps="10:", against_run="healthy")
        assert "healthy" in twin["b"]
        rest = get("pages/explain", **STORY, steps="14:", where="reward >= 0.5", against_rest=True)
        assert "not (reward >= 0.5)" in rest["b"]


class TestParts:
    @pytest.mark.parametrize(
        ("route", "asked", "path"),
        [
            ("pages/health", DEMO, ("steps",)),
            ("pages/health", DEMO, ("measures", 0, "values")),
            ("pages/group", {**STEP, "group": 1}, ("members",)),
            ("pages/flips/grid", EVALUATED, ("rows",)),
            ("pages/episodes", AGENTS, ("episodes",)),
            ("pages/what_if", STEP, ("cells", "tokens")),
            ("pages/rollouts/group_pushes", {**STEP, "group": 1}, ("ids",)),
        ],
    )
    def test_parts_put_together_are_the_whole(self, get, route, asked, path):
        def of(answer: Any) -> list[Any]:
            for key in path:
                answer = answer[key]
            return answer

        whole = get(route, **asked)
        assert whole["next"] is None
        size = max(len(of(whole)) // 2, 1)
        found, after = [], 0
        while after is not None:
            part = get(route, **asked, after=after, limit=size)
            found += of(part)
            after = part["next"]
        assert found == of(whole)

    @pytest.mark.parametrize("limit", [0, -1, 1001])
    def test_a_part_has_a_size(self, clients, limit):
        answer = clients["demo"].get("/api/v1/pages/health", params={**DEMO, "limit": limit})
        assert answer.status_code == 400 and "1 to 1000" in answer.text


class TestTokens:
    def test_are_those_of_the_rollout_with_every_track(self, get, demo):
        store = demo.store("demo")
        trace_id = store.query("run-a", "rollout", limit=1).rows[0].id
        transcript = store.transcript(trace_id)
        found, after = [], 0
        while after is not None:
            part = get("pages/rollouts/tokens", project="demo", id=trace_id, after=after, limit=50)
            found += part["tokens"]
            after = part["next"]
        assert part["n_tokens"] == len(found) == len(transcript.tokens)
        assert [token["id"] for token in found] == transcript.tokens.input_ids.tolist()
        assert "".join(token["text"] for token in found) == transcript.raw
        assert [token["in_loss"] for token in found] == transcript.tokens.loss_mask.astype(bool).tolist()
        assert set(found[0]["tracks"]) == set(transcript.tokens.tracks)
        for name, values in transcript.tokens.tracks.items():
            told = [token["tracks"][name] for token in found]
            known = [math.nan if value is None else value for value in told]
            assert known == pytest.approx(values.tolist(), rel=1e-6, nan_ok=True), name

    def test_of_a_rollout_that_came_as_text_are_unobserved(self, clients, demo):
        answer = clients["demo"].get(
            "/api/v1/pages/rollouts/tokens", params={"project": "demo", "id": "none"}
        )
        assert answer.status_code == 400 and "no trace" in answer.text


class TestImages:
    def test_an_image_is_given(self, get, demo):
        trace_id = demo.store("pictures").query(order_by="sample", limit=1).rows[0].id
        assert get("pages/rollouts/image", project="pictures", id=trace_id)["type"] == "image/png"


class TestIncidents:
    def test_are_marked_where_labels_are_taken(self, clients, demo):
        found = clients["demo"].get("/api/v1/pages/incidents", params=DEMO).json()["incidents"]
        mark = {**DEMO, "incident": found[0]["name"] if found else "stale@1", "what": "mute"}
        sent = clients["demo"].post("/api/v1/pages/incidents", json=mark)
        if found:
            assert sent.json()["incidents"][0]["muted"]
            clients["demo"].post("/api/v1/pages/incidents", json={**mark, "what": "unmute"})
        else:
            assert sent.status_code == 400 and "no incident" in sent.text
        demo.may_label = False
        try:
            refused = clients["demo"].post("/api/v1/pages/incidents", json=mark)
        finally:
            demo.may_label = True
        assert refused.status_code == 400 and "--no-labels" in refused.text
