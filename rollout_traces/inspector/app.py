"""The Gradio app: the shell and one component a page."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

from rollout_traces.inspector.assets import SCRIPTS, STYLE, bundle, icon, katex
from rollout_traces.inspector.registry import PAGES
from rollout_traces.inspector.viewers import installed_viewers

os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")

if TYPE_CHECKING:
    import gradio as gr

    from rollout_traces.inspector.workspace import Workspace

TITLE = "rollout traces"


def build_blocks(workspace: Workspace) -> gr.Blocks:
    """Builds the page.

    Args:
        workspace: what the pages read.

    Returns:
        Blocks with one custom component a page, each named by its `elem_id`.
    """
    import gradio as gr

    from rollout_traces.inspector.component import view

    digest = bundle().digest
    with gr.Blocks(title=TITLE, analytics_enabled=False, fill_width=True) as blocks:
        for page in PAGES:
            view(page.name, page.functions, workspace, digest, ("rt-page",) if page.title else ())
    return blocks


def page_head(root_path: str) -> str:
    """What stands in the page's head: the style sheet and the scripts' settings. Everybody may read it.

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


_EARLY_THEME = """<script>
(() => {
  let theme = null;
  try { theme = localStorage.getItem("rt-theme"); } catch (error) { theme = null; }
  theme = theme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
  document.documentElement.dataset.rtTheme = theme;
})();
</script>"""
