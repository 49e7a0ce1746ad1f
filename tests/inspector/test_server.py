"""What is served beside the page, and what is not."""

from __future__ import annotations

import json
import re
import urllib.error
import urllib.request

import pytest

from rollout_traces.inspector.assets import SCRIPTS, bundle, katex, trackio_images
from rollout_traces.inspector.registry import PAGES
from tests.inspector.conftest import BEARER


def fetch(served, path: str, data: bytes | None = None, **headers: str) -> tuple[int, bytes]:
    """Status and body of a request."""
    request = urllib.request.Request(
        served.address + path,
        data=data,
        headers=BEARER | {k.replace("_", "-"): v for k, v in headers.items()},
    )
    try:
        with urllib.request.urlopen(request, timeout=20) as response:
            return response.status, response.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


class TestAssets:
    def test_the_one_script_and_the_one_style_sheet_are_served_by_name(self, served):
        base = f"/inspector/{bundle().digest}"
        status, script = fetch(served, f"{base}/scripts.js")
        assert status == 200
        assert all(f"// {name}".encode() in script for name in bundle().modules if name.startswith("lib/"))
        status, sheet = fetch(served, f"{base}/style.css")
        assert status == 200
        assert b".rt-turn" in sheet

    def test_the_page_names_them_before_gradio_runs(self, served):
        request = urllib.request.Request(served.address, headers=BEARER)
        with urllib.request.urlopen(request, timeout=20) as response:
            named = re.findall(r"<(/[^>]*)>", response.headers["link"])
        assert [path.rpartition("/")[2] for path in named] == ["style.css", "scripts.js"]
        assert [fetch(served, path)[0] for path in named] == [200, 200]

    @pytest.mark.parametrize(
        "name", ["../guard.py", "..%2f..%2fguard.py", "/etc/passwd", "lib/../../guard.py", "%2e%2e/server.py"]
    )
    def test_no_path_reaches_the_file_system(self, served, name):
        assert fetch(served, f"/inspector/{bundle().digest}/{name}")[0] == 404

    def test_trackios_images_are_served_at_the_root_too(self, served):
        assert fetch(served, f"/static/trackio/{next(iter(trackio_images()))}")[0] == 200
        assert fetch(served, "/static/trackio/../guard.py")[0] == 404

    def test_gradio_brings_katex(self, served):
        where = katex()
        assert where is not None
        assert fetch(served, f"/{where[0]}")[0] == 200

    def test_every_page_has_its_component(self):
        named = bundle().files[SCRIPTS].body.decode().rpartition("export const entries")[2]
        for page in PAGES:
            assert f'"{page.name}": module' in named


class TestTrackioBeside:
    def test_its_dashboard_and_its_reading_functions_answer(self, served):
        assert b"<html" in fetch(served, "/trackio/")[1].lower()
        status, body = fetch(
            served, "/trackio/api/get_all_projects", data=b"{}", Content_Type="application/json"
        )
        assert status == 200
        assert "demo" in json.dumps(json.loads(body))

    def test_foreign_hosts_and_origins_do_not_reach_them(self, served):
        query = json.dumps({"project": "demo"}).encode()
        path = "/trackio/api/get_runs_for_project"
        assert fetch(served, path, query, Content_Type="application/json")[0] == 200
        assert fetch(served, path, query, Content_Type="application/json", Host="evil.example")[0] == 403
        assert (
            fetch(served, path, query, Content_Type="application/json", Origin="https://evil.example")[0]
            == 403
        )

    def test_its_sql_is_not_served_unless_asked_for(self, served):
        query = json.dumps({"project": "demo", "query": "select 1"}).encode()
        assert fetch(served, "/trackio/api/query_project", query, Content_Type="application/json")[0] == 404


class TestServerFunctions:
    def test_only_the_pages_functions_can_be_called(self, served):
        config = json.loads(fetch(served, "/config")[1])
        component = next(c for c in config["components"] if c["props"].get("elem_id") == "rt-rollouts")

        def call(name: str, data: object) -> tuple[int, object]:
            body = {"data": data, "component_id": component["id"], "fn_name": name, "session_hash": "s"}
            status, answer = fetch(
                served,
                "/gradio_api/component_server",
                json.dumps(body).encode(),
                Content_Type="application/json",
            )
            return status, json.loads(answer) if status == 200 else answer

        status, answer = call("samples", {"project": "demo", "run": "run-a", "split": "rollout", "step": 4})
        assert status == 200
        assert answer["ok"]["n_traced"] == 16
        status, answer = call("samples", {"project": "../../etc/passwd", "run": "x", "step": 1})
        assert answer["error"]["kind"] == "StoreError"
        status, answer = call("samples", {"project": "demo", "run": "run-a", "step": 4, "where": "reward <"})
        assert answer["error"]["kind"] == "QueryError"
        assert answer["error"]["start"] >= 6
        assert call("__init__", {})[0] == 404
        assert call("get_config", {})[0] == 404
