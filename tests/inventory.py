"""What the product offers, a line each: `python -m tests.inventory` writes `tests/inventory.txt` anew.

Read off the code itself: commands with their options, pages with the questions they ask, answers of the API and of the
tools for agents, public names with their parameters, settings, flags, metrics, formats and hooks.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

PAGE = Path(__file__).with_name("inventory.txt")
METHODS = ("get", "post", "put", "delete")


def commands() -> Iterator[str]:
    """Each command with its arguments and options."""
    import typer.main

    from rollout_traces.cli import build_app

    for name, command in sorted(typer.main.get_group(build_app()).commands.items()):
        yield f"command {name}"
        for parameter in command.params:
            shown = (
                parameter.opts[-1] if parameter.param_type_name == "option" else str(parameter.name).upper()
            )
            yield f"command {name} {shown}"


def pages() -> Iterator[str]:
    """Each page with the questions that it asks."""
    from rollout_traces.inspector.registry import PAGES

    for page in PAGES:
        yield f"page {page.name}"
        for function in page.functions:
            yield f"page {page.name} asks {function.__name__}"


def answers() -> Iterator[str]:
    """Each address of the API with its parameters and the fields of its answer."""
    from rollout_traces.inspector.api.http import api_app
    from rollout_traces.inspector.workspace import Workspace

    described = _described(api_app(Workspace()))
    models = described.get("components", {}).get("schemas", {})
    for path, operations in described["paths"].items():
        for method in METHODS:
            if operation := operations.get(method):
                yield f"api {method.upper()} {path}"
                for parameter in operation.get("parameters", ()):
                    yield f"api {method.upper()} {path} ?{parameter['name']}"
                content = operation["responses"]["200"].get("content", {}).get("application/json", {})
                name = content.get("schema", {}).get("$ref", "").rpartition("/")[2]
                for field in models.get(name, {}).get("properties", ()):
                    yield f"api {method.upper()} {path} -> {field}"


def _described(app: Any) -> dict[str, Any]:
    from starlette.testclient import TestClient

    return TestClient(app).get("/openapi.json").json()


def tools() -> Iterator[str]:
    """Each tool for agents with its parameters and the fields of its answer."""
    from rollout_traces.inspector.api.tools import build_tools
    from rollout_traces.inspector.workspace import Workspace

    server = build_tools(Workspace(), inspector="http://127.0.0.1:1", token="t" * 16, author="somebody")
    with ThreadPoolExecutor(1) as beside_a_running_loop:
        listed = beside_a_running_loop.submit(lambda: asyncio.run(server.list_tools())).result()
    for tool in listed:
        yield f"tool {tool.name}"
        for name in (tool.input_schema or {}).get("properties", ()):
            yield f"tool {tool.name} takes {name}"
        for name in (tool.output_schema or {}).get("properties", ()):
            yield f"tool {tool.name} answers {name}"


def names() -> Iterator[str]:
    """Public names with the parameters of functions and the public methods of classes."""
    import rollout_traces as rt
    from rollout_traces import analysis, export

    for home, module in (("rt", rt), ("analysis", analysis), ("export", export)):
        for name in sorted(module.__all__):
            value = getattr(module, name)
            yield f"name {home}.{name}"
            if inspect.isfunction(value):
                yield from (f"name {home}.{name} takes {each}" for each in _parameters(value))
            elif inspect.isclass(value):
                yield from (f"name {home}.{name}.{each}" for each in sorted(_public(value)))


def _parameters(function: Any) -> list[str]:
    return list(inspect.signature(function).parameters)


def _public(cls: type) -> set[str]:
    own = [base for base in cls.__mro__ if base.__module__.startswith("rollout_traces")]
    found = {name for base in own for name in vars(base)} | set(getattr(cls, "__dataclass_fields__", ()))
    return {name for name in found if not name.startswith("_")}


def settings() -> Iterator[str]:
    """What a run declares: options of the logger and of the trainer's configuration."""
    from dataclasses import fields

    from rollout_traces import LoggerOptions, StatsLoggerConfig, TrackioConfig

    for cls in (LoggerOptions, StatsLoggerConfig, TrackioConfig):
        yield from (f"setting {cls.__name__}.{field.name}" for field in fields(cls))


def registries() -> Iterator[str]:
    """Flags, metrics, ledger columns, formats that are read and written, hooks, overlays."""
    from rollout_traces.export import FORMATS
    from rollout_traces.export.training_samples import FORMATS as TRAINING
    from rollout_traces.flags import REGISTRY
    from rollout_traces.integrations.base import INTEGRATIONS
    from rollout_traces.metrics import FAMILIES
    from rollout_traces.sources.formats import formats

    yield from (f"flag {name}" for name in sorted(REGISTRY))
    yield from (f"metric {key.pattern}" for family in FAMILIES.values() for key in family.keys)
    yield from (f"reads {name}" for name in sorted(formats()))
    yield from (f"writes {name}" for name in sorted({*FORMATS, *TRAINING}))
    yield from (f"hook {each.name}" for each in INTEGRATIONS)


def inventory() -> list[str]:
    """Every line, sorted, none twice."""
    parts = (commands, pages, answers, tools, names, settings, registries)
    return sorted({line for part in parts for line in part()})


if __name__ == "__main__":
    PAGE.write_text("\n".join(inventory()) + "\n", encoding="utf-8")
