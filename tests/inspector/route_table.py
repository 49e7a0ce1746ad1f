"""The table of routes in SECURITY.md, made by walking the application.

`python -m tests.inspector.route_table` writes it anew.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.routing import BaseRoute, Match, Mount, Route

from rollout_traces.inspector.registry import NAME, PATH, Rule

BEGIN, END = "<!-- routes: begin -->", "<!-- routes: end -->"
_CHOICE = re.compile(r"\(\?:([^()]*)\)")
_ORIGIN = {
    "page": "the page's own; a link on another site may open it",
    "write token": "the page's own, or none (programs send none)",
    "Hub token": "the page's own, or none (programs send none)",
}


def whole_server() -> tuple[Any, tuple[Rule, ...]]:
    """The application with everything switched on, and what its guard lets through."""
    from rollout_traces.inspector.access import SHORTEST
    from rollout_traces.inspector.guard import ServerOptions
    from rollout_traces.inspector.server import build_server
    from rollout_traces.inspector.workspace import Workspace

    options = ServerOptions(
        token="t" * SHORTEST, trackio_sql=True, write_token="w" * SHORTEST, hub_writer=bool
    )
    server = build_server(Workspace(), options)
    assert not server.no_dashboard, server.no_dashboard
    return server.app, server.rules


def walked(app: Starlette) -> Iterator[tuple[str, str, BaseRoute]]:
    """Every route of the application and what is mounted in it, as `(path, methods, route)`."""
    yield from _walked(app.routes, "")


def samples(rule: Rule) -> list[str]:
    """Paths that a rule speaks of: one for every alternative that it names."""
    path = rule.path.replace(PATH, "x").replace(NAME, "x").replace("\\.", ".").replace("/?", "(?:|/)")
    choices = [match[1].split("|") for match in _CHOICE.finditer(path)]
    frame = _CHOICE.sub("\x00", path).split("\x00")
    return [
        "".join(itertools.chain(*itertools.zip_longest(frame, chosen, fillvalue="")))
        for chosen in itertools.product(*choices)
    ]


def served_by(app: Starlette, path: str, method: str) -> str | None:
    """The path template of the route that answers a request; None where none does."""
    return _first(app.routes, path, method, "")


def table() -> str:
    """The routes that are served, with who may ask; then those of the application that are not."""
    app, known = whole_server()
    lines = ["| route | method | who | origin | what |", "| --- | --- | --- | --- | --- |"]
    reached = set()
    for rule in known:
        for sample in samples(rule):
            route = served_by(app, sample, rule.method)
            assert route is not None, f"no route answers {rule.method} {sample}"
            reached.add((route, rule.method))
        origin = _ORIGIN.get(rule.kind if rule.kind == "page" else rule.who, "the page's own")
        lines.append(f"| `{_shown(rule)}` | {rule.method} | {rule.who} | {origin} | {rule.purpose} |")
    closed = sorted(
        {
            f"{method} {path.rstrip('/')}"
            for path, methods, _ in walked(app)
            for method in methods.split()
            if method not in ("HEAD", "OPTIONS") and (path, method) not in reached
        }
    )
    listed = ", ".join(f"`{route}`" for route in closed)
    return "\n".join(
        [*lines, "", f"Routes of Gradio and Trackio that are there and not served (404): {listed}."]
    )


def main() -> None:
    """Writes the table into SECURITY.md of the checkout."""
    path = Path(__file__).resolve().parents[2] / "SECURITY.md"
    text = path.read_text("utf-8")
    before, rest = text.split(BEGIN)
    path.write_text(f"{before}{BEGIN}\n{table()}\n{END}{rest.split(END)[1]}", "utf-8")


def _walked(routes: list[BaseRoute], prefix: str) -> Iterator[tuple[str, str, BaseRoute]]:
    for route in _flat(routes):
        if isinstance(route, Mount):
            yield from _walked(list(route.routes or ()), prefix + route.path)
        elif isinstance(route, Route):
            yield prefix + route.path, " ".join(sorted(route.methods or ())), route


def _first(routes: list[BaseRoute], path: str, method: str, prefix: str) -> str | None:
    scope = {"type": "http", "path": path, "method": method, "root_path": "", "headers": []}
    for route in _flat(routes):
        if isinstance(route, Mount) and (path + "/").startswith(f"{route.path}/"):
            below = path.removeprefix(route.path) or "/"
            if found := _first(list(route.routes or ()), below, method, prefix + route.path):
                return found
        elif isinstance(route, Route) and route.matches(scope)[0] is Match.FULL:
            return prefix + route.path
    return None


def _flat(routes: list[BaseRoute]) -> Iterator[BaseRoute]:
    """The routes, those of included routers too, which newer FastAPI keeps nested."""
    for route in routes:
        included = getattr(route, "original_router", None)
        if included is None:
            yield route
        else:
            yield from _flat(list(included.routes))


def _shown(rule: Rule) -> str:
    path = rule.path.replace(PATH, "{path}").replace(NAME, "{name}").replace("\\.", ".").replace("/?", "")
    return _CHOICE.sub(lambda match: "{" + match[1].replace("|", ", ") + "}", path)


if __name__ == "__main__":
    main()
