"""The Gradio app: the shell and one component a page.

A component is a `gr.HTML` whose template, style and script are files of its own: a folder `components/<name>/` holds
`template.html` (the empty frame), `style.css` (joined into the page's one sheet) and `script.js` (a module that exports
`mount(element, server)`, joined with the others into one script). Data comes through server functions, those of the
page's entry in `registry.py`.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Awaitable, Callable
from functools import wraps
from pathlib import Path
from typing import Any

import gradio as gr
from starlette.responses import Response

from rollout_traces.errors import RolloutTracesError
from rollout_traces.inspector.asking import Function, answer_of, as_json, read_request
from rollout_traces.inspector.assets import SCRIPTS, STYLE, bundle, icon, katex
from rollout_traces.inspector.registry import PAGES, Page
from rollout_traces.inspector.viewers import installed_viewers
from rollout_traces.inspector.workspace import Workspace
from rollout_traces.store import QueryError
from rollout_traces.store.time_limit import time_limit

os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")


TITLE = "rollout traces"
_FOLDER = Path(__file__).parent / "components"
_LOG = logging.getLogger(__name__)
_MOUNT = """
const base = (window.gradio_config?.root || document.baseURI).replace(/\\/$/, "");
import(base + %(script)s)
  .then(module => module.entries[%(name)s].mount(element, server))
  .catch(error => { element.textContent = "The inspector's script did not load: " + error; });
"""
_EARLY_THEME = """<script>
(() => {
  let theme = null;
  try { theme = localStorage.getItem("rt-theme"); } catch (error) { theme = null; }
  theme = theme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
  document.documentElement.dataset.rtTheme = theme;
})();
</script>"""


def build_blocks(workspace: Workspace) -> gr.Blocks:
    """Builds the page.

    Args:
        workspace: what the pages read.

    Returns:
        Blocks with one custom component a page, each named by its `elem_id`.
    """
    with gr.Blocks(title=TITLE, analytics_enabled=False, fill_width=True) as blocks:
        for page in PAGES:
            _component(page, workspace)
    return blocks


def _component(page: Page, workspace: Workspace) -> gr.HTML:
    """The component of a page, whose script may call the page's functions by their names."""
    script = json.dumps(f"/inspector/{bundle().digest}/{SCRIPTS}")
    return gr.HTML(
        value="",
        html_template=(_FOLDER / page.name / "template.html").read_text("utf-8"),
        js_on_load=_MOUNT % {"script": script, "name": json.dumps(page.name)},
        apply_default_css=False,
        elem_id=f"rt-{page.name}",
        elem_classes=["rt-view", "rt-page"] if page.title else ["rt-view"],
        server_functions=[_bind(function, workspace) for function in page.functions],
    )


def page_head(root_path: str) -> str:
    """Writes the page's head: the style sheet and the scripts' settings. Everybody may read it.

    Args:
        root_path: the prefix under which a proxy serves the app.

    Returns:
        HTML.
    """
    base = _base(root_path)
    settings = {
        "assets": base,
        "pages": [{"name": page.name, "title": page.title, "key": page.key} for page in PAGES if page.title],
        "katex": katex(),
        "viewers": bool(installed_viewers()),
    }
    inline = json.dumps(settings).replace("<", "\\u003c")
    return (
        f'<link rel="stylesheet" href="{base}/{STYLE}">\n'
        f'<link rel="icon" type="image/svg+xml" href="{icon()}">\n'
        f"<script>window.rolloutTraces = {inline};</script>\n{_EARLY_THEME}"
    )


def early_files(root_path: str) -> str:
    """The page's `Link` header: Gradio adds the head when it has started, the browser fetches these before.

    Args:
        root_path: the prefix under which a proxy serves the app.
    """
    base = _base(root_path)
    return f"<{base}/{STYLE}>; rel=preload; as=style, <{base}/{SCRIPTS}>; rel=modulepreload"


def _base(root_path: str) -> str:
    return f"{root_path.rstrip('/')}/inspector/{bundle().digest}"


def _bind(function: Function, workspace: Workspace) -> Callable[[Any], Awaitable[Response]]:
    """A server function that answers with ready JSON.

    A Response passes through the web framework as it is; a large dict would be walked and copied first.
    """

    @wraps(function)
    async def answer(request: Any) -> Response:
        body = await workspace.few_at_once.run(
            lambda: answered(function, workspace, request), function.__name__
        )
        return Response(body, media_type="application/json")

    answer.__annotations__ = {}
    del answer.__wrapped__
    return answer


def answered(function: Function, workspace: Workspace, request: Any) -> bytes:
    """Calls a server function and gives its answer as JSON: `{"ok": ...}` or `{"error": {...}}`.

    Args:
        workspace: what it reads.
        request: what the page sent.
    """
    try:
        with time_limit(workspace.query_seconds):
            body = {"ok": answer_of(function, workspace, read_request(function, request))}
    except RolloutTracesError as error:
        body = {"error": error_payload(error)}
    except Exception as error:  # noqa: BLE001 - a view must say what happened, and the log keeps the trace
        _LOG.exception("inspector: %s failed", function.__name__)
        body = {"error": {"message": f"{type(error).__name__}: {error}", "kind": "internal"}}
    return as_json(body)


def error_payload(error: RolloutTracesError) -> dict[str, Any]:
    """Picks what the page shows of an error; a query's error points at the bad token."""
    if isinstance(error, QueryError):
        place = {"query": error.text, "start": error.start, "stop": error.stop}
        return {"message": error.what, "kind": "QueryError", **place}
    return {"message": str(error), "kind": type(error).__name__}
