"""The answers over HTTP: `/api/v1/...`, behind the same guard as the pages."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from http import HTTPStatus
from inspect import Parameter, Signature
from typing import Any, get_type_hints

from fastapi import APIRouter, FastAPI
from fastapi.exceptions import RequestValidationError
from fastapi.openapi.utils import get_openapi
from pydantic import ConfigDict, create_model
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from rollout_traces.errors import RolloutTracesError
from rollout_traces.inspector.guard import error_response
from rollout_traces.inspector.registry import PARTS, READ, SENT
from rollout_traces.inspector.workspace import (
    Function,
    Names,
    Workspace,
    answer_of,
    as_json,
    as_plain,
    check_part,
    parameters,
)
from rollout_traces.model.text import listed
from rollout_traces.store.time_limit import time_limit

PREFIX = "/api/v1"
MOST = 1000
"""Entries of one part of a list."""
SAID = 5
"""Things wrong with one request that are said."""


def api_app(workspace: Workspace) -> FastAPI:
    """The application that is mounted at `PREFIX`.

    Args:
        workspace: what the answers read.
    """
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    router = APIRouter()
    for name, function in READ.items():
        _add(router, workspace, name, "GET", function)
    for name, (function, _) in SENT.items():
        _add(router, workspace, name, "POST", function)
    app.include_router(router)

    @cache
    def described() -> dict[str, Any]:
        found = get_openapi(title="rollout-traces", version="1", routes=router.routes)
        return {**found, "paths": {f"{PREFIX}{path}": what for path, what in found["paths"].items()}}

    async def openapi(request: Request) -> JSONResponse:
        return JSONResponse(described())

    app.add_route("/openapi.json", openapi, methods=["GET"])

    @app.exception_handler(RolloutTracesError)
    async def refused(request: Request, error: Exception) -> Response:
        return error_response(str(error), type(error).__name__, HTTPStatus.BAD_REQUEST)

    @app.exception_handler(RequestValidationError)
    async def misunderstood(request: Request, error: RequestValidationError) -> Response:
        # what was sent may be NaN, which JSON has not: it is named, and not sent back
        said = "; ".join(f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors()[:SAID])
        return error_response(said, "request", HTTPStatus.UNPROCESSABLE_ENTITY)

    return app


def part_of(answer: Any, paths: tuple[str, ...], after: int, limit: int) -> Any:
    """An answer with some of its lists cut to a part, and in `next` where the part behind begins.

    Args:
        answer: a dataclass, or what is inside it.
        paths: the lists, such as `measures.values`; the first tells how many entries there are.
        after: entries that are left out before the part.
        limit: entries of it at most.

    Raises:
        StoreError: the part is none.
    """
    check_part(after, limit, MOST)
    found = as_plain(answer)
    n = 0
    for path in paths:
        *way, last = path.split(".")
        holders = [found]
        for name in way:
            inside = [each for holder in holders if (each := holder[name])]
            holders = [one for each in inside for one in (each if isinstance(each, list) else [each])]
        for holder in holders:
            n = max(n, len(holder[last]))
            holder[last] = holder[last][after : after + limit]
    return {**found, "next": after + limit if after + limit < n else None}


def _add(router: APIRouter, workspace: Workspace, name: str, method: str, function: Function) -> None:
    router.add_api_route(
        f"/{name}",
        _bound(name, function, workspace, sent=method == "POST"),
        methods=[method],
        operation_id=f"{method.lower()}_{name.replace('/', '_')}",
        response_model=get_type_hints(function)["return"],
    )


def _bound(name: str, function: Function, workspace: Workspace, *, sent: bool) -> Callable[..., Any]:
    """A function as the framework reads it: each of its parameters is the query's, or all are the body.

    It gives ready JSON: the framework would check and copy the answer once more.
    """
    paths = PARTS.get(name, ())
    taken = list(parameters(function))
    lists = {each.name for each in taken if each.annotation == Names}

    def json_of(given: dict[str, Any]) -> bytes:
        part = {key: given.pop(key) for key in ("after", "limit") if paths}
        given |= {key: listed(given[key]) for key in lists}
        with time_limit(workspace.query_seconds):
            if project := given.get("project"):
                workspace.refresh(project)
            answer = answer_of(function, workspace, given)
            return as_json(part_of(answer, paths, **part) if paths else answer)

    async def bound(**given: Any) -> Response:
        values = dict(given["body"]) if sent else given
        body = await workspace.few_at_once.run(lambda: json_of(values), function.__name__)
        return Response(body, media_type="application/json")

    shown = [each.replace(annotation=str, default="") if each.name in lists else each for each in taken]
    shown += [_number("after", 0), _number("limit", MOST)] if paths else []
    if sent:
        fields: dict[str, Any] = {
            each.name: (each.annotation, ... if each.default is Parameter.empty else each.default)
            for each in shown
        }
        body = create_model(f"{function.__name__}_sent", __config__=ConfigDict(extra="forbid"), **fields)
        shown = [Parameter("body", Parameter.KEYWORD_ONLY, annotation=body)]
    keywords = [each.replace(kind=Parameter.KEYWORD_ONLY) for each in shown]
    bound.__name__, bound.__doc__ = function.__name__, (function.__doc__ or "").partition("\n\n")[0]
    bound.__signature__ = Signature(keywords, return_annotation=Response)  # type: ignore[attr-defined]
    bound.__annotations__ = {each.name: each.annotation for each in keywords} | {"return": Response}
    return bound


def _number(name: str, default: int) -> Parameter:
    return Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=int)
