"""`/api/v1`: what programs are answered, and who is."""

from __future__ import annotations

from typing import Any

import pytest
from starlette.testclient import TestClient

from rollout_traces.inspector.guard import ServerOptions
from rollout_traces.inspector.registry import READ, SENT
from rollout_traces.inspector.server import build_server

TOKEN = "t" * 24
BEARER = {"Authorization": f"Bearer {TOKEN}"}
HERE = "http://127.0.0.1:7861"


@pytest.fixture(scope="module")
def client(workspace) -> TestClient:
    """The whole server, its guard in front."""
    server = build_server(workspace, ServerOptions(token=TOKEN, mount_trackio=False))
    return TestClient(server, base_url=HERE)


def get(client: TestClient, name: str, **query: Any) -> Any:
    return client.get(f"/api/v1/{name}", params=query, headers=BEARER)


class TestAnswers:
    def test_every_answer_is_typed_and_described(self, client):
        described = client.get("/api/v1/openapi.json", headers=BEARER).json()
        assert set(described["paths"]) == {f"/api/v1/{name}" for name in {*READ, *SENT}}
        for path, methods in described["paths"].items():
            for method in methods.values():
                shown = method["responses"]["200"]["content"]["application/json"]["schema"]
                assert "$ref" in shown, path
                assert method["summary"]

    def test_pages_have_twins(self, client):
        assert "story" in get(client, "projects").json()["projects"]
        assert {run["name"] for run in get(client, "runs", project="story").json()["runs"]} == {
            "off",
            "healthy",
        }
        page = get(client, "rollouts", project="story", run="off", where="reward >= 0", limit=2).json()
        assert len(page["rows"]) == 2 and page["next"]
        behind = get(
            client, "rollouts", project="story", run="off", where="reward >= 0", limit=2, after=page["next"]
        )
        assert not {r["uid"] for r in behind.json()["rows"]} & {r["uid"] for r in page["rows"]}
        a, b = (row["uid"] for row in page["rows"])
        rollout = get(client, "rollout", project="story", id=a).json()
        assert rollout["citation"] == f"rollout:{a}" and rollout["turns"]
        assert get(client, "compare", project="story", a=a, b=b).json()["deltas"]
        assert get(client, "report", project="story", run="off").json()["diagnoses"]
        explained = get(client, "explain", project="story", run="off", step=15).json()
        assert explained["steps"] == [15, 15] and explained["in_force"]
        ranges = get(client, "explain", project="story", run="off", steps="12:18", against_steps="2:8").json()
        assert ranges["findings"] and ranges["decompositions"] and not ranges["in_force"]
        assert get(client, "events", project="story", run="off").json()["events"]
        assert "reward" in {c["name"] for c in get(client, "columns", project="story").json()["columns"]}

    def test_a_label_is_put_on_and_read(self, client):
        uid = get(client, "rollouts", project="story", limit=1).json()["rows"][0]["uid"]
        new = {"project": "story", "id": uid, "text": "javascript:alert(1)"}
        sent = client.post("/api/v1/labels", json=new, headers=BEARER)
        assert sent.json()["labels"][0]["text"] == "javascript:alert(1)"
        assert sent.headers["content-type"] == "application/json"
        assert get(client, "labels", project="story", id=uid).json() == sent.json()
        assert sent.json()["labels"][0]["author"] == "owner"
        assert client.post("/api/v1/labels", json={**new, "author": "x"}, headers=BEARER).status_code == 422
        odd = client.post(
            "/api/v1/labels",
            content='{"project": "story", "turn": NaN}',
            headers={**BEARER, "Content-Type": "application/json"},
        )
        assert odd.status_code == 422 and "body.turn" in odd.json()["error"]["message"]

    def test_a_page_is_asked_to_move(self, client, workspace):
        before = workspace.asked_to_open[0]
        sent = client.post("/api/v1/open", json={"state": {"tab": "run"}}, headers=BEARER)
        assert sent.json() == {"asked": True}
        assert workspace.asked_to_open == (before + 1, {"tab": "run"})

    @pytest.mark.parametrize(
        ("name", "query", "status", "said"),
        [
            ("rollouts", {"project": "story", "where": "rewardd > 1"}, 400, "Did you mean reward"),
            ("rollouts", {"project": "nobody"}, 400, "no project"),
            ("rollouts", {"project": "story", "limit": 10_000}, 400, "1 to 200"),
            ("rollout", {"project": "story", "id": "nobody"}, 400, "no trace"),
            ("rollouts", {"project": "story", "limit": "many"}, 422, "integer"),
            ("rollouts", {}, 422, "project"),
            ("rollouts", {"project": "story", "columns": "reward,rewrad"}, 400, "rewrad"),
        ],
    )
    def test_what_cannot_be_answered_is_said(self, client, name, query, status, said):
        answer = get(client, name, **query)
        assert answer.status_code == status
        assert said in answer.text


class TestWho:
    @pytest.mark.parametrize("name", [*READ, "openapi.json"])
    def test_nobody_without_the_token_reads(self, client, name):
        assert client.get(f"/api/v1/{name}").status_code == 401
        assert client.get(f"/api/v1/{name}", headers={"Authorization": "Bearer wrong"}).status_code == 401

    @pytest.mark.parametrize("name", SENT)
    def test_nobody_without_the_token_sends(self, client, name):
        assert client.post(f"/api/v1/{name}", json={}).status_code == 401

    @pytest.mark.parametrize("origin", ["https://evil.example", "http://127.0.0.1:9999", "null"])
    def test_no_other_origin(self, client, origin):
        for answer in (
            client.get("/api/v1/projects", headers={**BEARER, "Origin": origin}),
            client.post("/api/v1/open", json={"state": {}}, headers={**BEARER, "Origin": origin}),
        ):
            assert answer.status_code == 403

    def test_no_other_host_and_nothing_but_json(self, client):
        assert client.get("/api/v1/projects", headers={**BEARER, "Host": "evil.example"}).status_code == 403
        sent = client.post("/api/v1/labels", content="x", headers={**BEARER, "Content-Type": "text/plain"})
        assert sent.status_code == 415

    def test_other_methods_and_paths_are_not_served(self, client):
        assert client.delete("/api/v1/labels", headers=BEARER).status_code == 404
        assert client.get("/api/v1/docs", headers=BEARER).status_code == 404

    def test_answers_carry_the_headers_of_data(self, client):
        headers = get(client, "projects").headers
        assert headers["cache-control"] == "no-store"
        assert "sandbox" in headers["content-security-policy"]
