"""The answers over HTTP: `/api/v1/...`, behind the same guard as the pages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, get_type_hints

from fastapi import APIRouter, FastAPI
from fastapi.openapi.utils import get_openapi
from starlette.requests import Request
from starlette.responses import JSONResponse

from rollout_traces.errors import RolloutTracesError
from rollout_traces.inspector.api import answers
from rollout_traces.inspector.workspace import Workspace

PREFIX = "/api/v1"
READ: dict[str, Callable[..., Any]] = {
    "projects": answers.projects,
    "runs": answers.runs,
    "columns": answers.columns,
    "rollouts": answers.rollouts,
    "rollout": answers.rollout,
    "compare": answers.compare,
    "report": answers.report,
    "explain": answers.explain,
    "events": answers.events,
    "flips": answers.flips,
    "labels": answers.labels,
}
"""What is asked for with GET: its name in the address, and what answers. Arguments are the query's."""
SENT: dict[str, Callable[..., Any]] = {
    "labels": answers.add_label,
    "citations": answers.citations,
    "open": answers.open_page,
}
"""What is sent with POST, as JSON."""


def add_api(app: FastAPI, workspace: Workspace) -> None:
    """Adds the routes to an application.

    Args:
        app: the application.
        workspace: what they read.
    """
    router = APIRouter(prefix=PREFIX)
    for name, answer in READ.items():
        router.add_api_route(
            f"/{name}", _bound(answer, workspace), methods=["GET"], operation_id=f"get_{name}"
        )
    for name, answer in SENT.items():
        router.add_api_route(
            f"/{name}", _bound(answer, workspace), methods=["POST"], operation_id=f"post_{name}"
        )
    app.include_router(router)
    described = get_openapi(title="rollout-traces", version="1", routes=router.routes)

    async def openapi(request: Request) -> JSONResponse:
        return JSONResponse(described)

    app.add_route(f"{PREFIX}/openapi.json", openapi, methods=["GET"])

    @app.exception_handler(RolloutTracesError)
    async def refused(request: Request, error: Exception) -> JSONResponse:
        return JSONResponse({"error": {"message": str(error), "kind": type(error).__name__}}, 400)


def _bound(answer: Callable[..., Any], workspace: Workspace) -> Callable[..., Any]:
    """An answer without its first argument, its types resolved, so that the framework reads its signature."""
    import inspect

    hints = get_type_hints(answer)
    signature = inspect.signature(answer)
    taken = [p.replace(annotation=hints[p.name]) for p in list(signature.parameters.values())[1:]]

    def bound(**given: Any) -> Any:
        return answer(workspace, **given)

    bound.__name__, bound.__doc__ = answer.__name__, (answer.__doc__ or "").partition("\n\n")[0]
    bound.__signature__ = signature.replace(  # type: ignore[attr-defined]
        parameters=taken, return_annotation=hints["return"]
    )
    bound.__annotations__ = {p.name: p.annotation for p in taken} | {"return": hints["return"]}
    return bound
