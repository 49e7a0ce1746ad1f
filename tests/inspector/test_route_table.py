"""The table of routes in SECURITY.md, and what the application really answers."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from rollout_traces.inspector.registry import TRACKIO_READS, rule_of, rules
from tests.inspector import route_table

PAGE = Path(__file__).resolve().parents[2] / "SECURITY.md"


@pytest.fixture(scope="module")
def server():
    return route_table.whole_server()


class TestTable:
    def test_in_the_documentation_is_the_applications(self):
        text = PAGE.read_text("utf-8")
        [shown] = re.findall(f"{route_table.BEGIN}\n(.*?)\n{route_table.END}", text, re.DOTALL)
        assert shown == route_table.table(), "python -m tests.inspector.route_table writes it anew"

    def test_every_rule_has_a_route_that_answers(self, server):
        app, known = server
        for rule in known:
            for path in route_table.samples(rule):
                assert rule.covers(path, rule.method)
                assert route_table.served_by(app, path, rule.method), path

    def test_what_a_route_is_asked_for_is_decided_by_a_rule_alone(self, server):
        """Every route of the application that no rule speaks of is answered by the guard."""
        app, known = server
        open_routes = set()
        for path, methods, _ in route_table.walked(app):
            example = re.sub(r"\{[^}]*\}", "x", path)
            for method in methods.split():
                if rule_of(known, example, method):
                    open_routes.add(f"{method} {path}")
        assert {route for route in open_routes if route.startswith("POST")} <= {
            "POST /gradio_api/component_server",
            "POST /gradio_api/component_server/",
            "POST /trackio/api/upload",
            "POST /api/upload",
            "POST /api/v1/labels",
            "POST /api/v1/labels/lines",
            "POST /api/v1/citations",
            "POST /api/v1/open",
            "POST /api/v1/pages/incidents",
            "POST /session",
        }

    def test_the_write_token_has_its_own_rules_and_else_those_of_everybody(self):
        known = rules(trackio=True, sql=True, writes=True)
        assert rule_of(known, "/trackio/api/query_project", "POST", may_write=True).who == "write token"
        assert rule_of(known, "/trackio/api/query_project", "POST").who == "dashboard"
        assert rule_of(known, "/", "GET", may_write=True) == rule_of(known, "/", "GET") is not None

    def test_options_that_are_off_have_no_rows(self):
        def paths(**options: bool) -> str:
            return " ".join(rule.path for rule in rules(**options))

        assert "trackio/api" not in paths(trackio=False, sql=True, writes=True)
        assert "query_project" not in paths(trackio=True)
        assert "query_project" in paths(trackio=True, sql=True)
        assert "bulk_log" not in paths(trackio=True, sql=True)
        assert "upload" in paths(trackio=True, writes=True)
        assert all(name in paths(trackio=True) for name in TRACKIO_READS)


class TestDocument:
    def test_its_limits_are_the_codes(self):
        from rollout_traces.inspector import server, trackio_mount
        from rollout_traces.store import http_source

        limits = PAGE.read_text("utf-8").split("## Limits")[1].split("##")[0]
        for said in (
            f"{server.MOST_HEAD_BYTES >> 10} KiB, within {server.HEAD_SECONDS:g} s",
            f"| connections | {server.MOST_CONNECTIONS} |",
            f"{trackio_mount.READ_SECONDS:g} s, four at once, {trackio_mount.MOST_TRACES:,} traces",
            f"{trackio_mount.SQL_SECONDS:g} s, {trackio_mount.SQL_VALUE_BYTES >> 20} MiB a value, "
            f"{trackio_mount.SQL_ROWS:,} rows, {trackio_mount.SQL_ANSWER_BYTES >> 20} MiB an answer",
            f"{http_source.MOST_BYTES >> 20} MiB, {http_source.WHOLE_ANSWER:g} s",
        ):
            assert said in limits
