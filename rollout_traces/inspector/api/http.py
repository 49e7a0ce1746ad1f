"""The answers over HTTP: `/api/v1/...`, behind the same guard as the pages."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, get_type_hints

from fastapi import APIRouter, FastAPI
from fastapi.exceptions import RequestValidationError
from fastapi.openapi.utils import get_openapi
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from rollout_traces.errors import RolloutTracesError
from rollout_traces.inspector.api import answers, pages
from rollout_traces.inspector.workspace import Workspace
from rollout_traces.store.time_limit import time_limit

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
    "labels/lines": answers.label_lines,
    "pages/catalog": pages.catalog_page,
    "pages/compare": pages.compare_two,
    "pages/compare/prompt_history": pages.history_of_prompt,
    "pages/episodes": pages.episodes_page,
    "pages/explain": pages.explain_page,
    "pages/explain/figures": pages.explain_figures,
    "pages/explain/in_force": pages.explain_in_force,
    "pages/explore/export": pages.export_page,
    "pages/explore/spread": pages.spread_page,
    "pages/flips": pages.flips_page,
    "pages/flips/figures": pages.flips_figures,
    "pages/flips/grid": pages.flips_grid,
    "pages/group": pages.group_page,
    "pages/health": pages.health_page,
    "pages/health/breakdown": pages.health_breakdown,
    "pages/health/examples": pages.health_examples,
    "pages/incidents": pages.incidents_page,
    "pages/population": pages.population_page,
    "pages/project": pages.project_page,
    "pages/prompts": pages.prompts_page,
    "pages/prompts/prompt": pages.prompt_page,
    "pages/rollouts": pages.rollouts_page,
    "pages/rollouts/group_pushes": pages.pushes_of_group,
    "pages/rollouts/image": pages.image_page,
    "pages/rollouts/series": pages.series,
    "pages/rollouts/step_means": pages.means_of_step,
    "pages/rollouts/tokens": pages.tokens,
    "pages/run": pages.run_page,
    "pages/run/curves": pages.run_curves_page,
    "pages/run/figures": pages.run_figures,
    "pages/runs": pages.runs_page,
    "pages/what_if": pages.what_if_page,
}
"""What is asked for with GET: its name in the address, and what answers. Arguments are the query's."""
SENT: dict[str, Callable[..., Any]] = {
    "labels": answers.add_label,
    "labels/lines": answers.take_label_lines,
    "pages/incidents": pages.mark,
    "citations": answers.citations,
    "open": answers.open_page,
}
"""What is sent with POST, as JSON."""


def api_app(workspace: Workspace) -> FastAPI:
    """The application that is mounted at `PREFIX`.

    Args:
        workspace: what the answers read.
    """
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    router = APIRouter()
    for name, answer in READ.items():
        _add(router, workspace, name, "GET", answer)
    for name, answer in SENT.items():
        _add(router, workspace, name, "POST", answer)
    app.include_router(router)

    @cache
    def described() -> dict[str, Any]:
        found = get_openapi(title="rollout-traces", version="1", routes=router.routes)
        return {**found, "paths": {f"{PREFIX}{path}": what for path, what in found["paths"].items()}}

    async def openapi(request: Request) -> JSONResponse:
        return JSONResponse(described())

    app.add_route("/openapi.json", openapi, methods=["GET"])

    @app.exception_handler(RolloutTracesError)
    async def refused(request: Request, error: Exception) -> JSONResponse:
        return JSONResponse({"error": {"message": str(error), "kind": type(error).__name__}}, 400)

    @app.exception_handler(RequestValidationError)
    async def misunderstood(request: Request, error: RequestValidationError) -> JSONResponse:
        # what was sent may be NaN, which JSON has not: it is named, and not sent back
        places = [(".".join(map(str, one["loc"])), str(one["msg"])) for one in error.errors()[:5]]
        said = "; ".join(f"{place}: {what}" for place, what in places)
        return JSONResponse({"error": {"message": said, "kind": "request"}}, 422)

    return app


def _add(router: APIRouter, workspace: Workspace, name: str, method: str, answer: Callable[..., Any]) -> None:
    router.add_api_route(
        f"/{name}",
        _bound(answer, workspace),
        methods=[method],
        operation_id=f"{method.lower()}_{name.replace('/', '_')}",
        response_model=get_type_hints(answer)["return"],
    )


def _bound(answer: Callable[..., Any], workspace: Workspace) -> Callable[..., Any]:
    """An answer without its first argument, its types resolved, so that the framework reads its signature.

    It gives ready JSON: the framework would check and copy the model once more.
    """
    import inspect

    hints = get_type_hints(answer)
    signature = inspect.signature(answer)
    taken = [p.replace(annotation=hints[p.name]) for p in list(signature.parameters.values())[1:]]

    def json_of(given: Mapping[str, Any]) -> str:
        with time_limit(workspace.query_seconds):
            if project := given.get("project"):
                workspace.refresh(project)
            return answer(workspace, **given).model_dump_json()

    async def bound(**given: Any) -> Response:
        body = await workspace.few_at_once.run(lambda: json_of(given), answer.__name__)
        return Response(body, media_type="application/json")

    bound.__name__, bound.__doc__ = answer.__name__, (answer.__doc__ or "").partition("\n\n")[0]
    bound.__signature__ = signature.replace(  # type: ignore[attr-defined]
        parameters=taken, return_annotation=Response
    )
    bound.__annotations__ = {p.name: p.annotation for p in taken} | {"return": Response}
    return bound
