"""Two viewers: the positions of a board game, by a JavaScript module, and the steps of a web page, as HTML."""

from __future__ import annotations

import json
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Any

from rollout_traces.inspector.viewers import Viewed, Viewer

BROWSING = ("goto", "click", "type")
STYLE = """<style>
ol { list-style: none; padding: 0; margin: 0; display: grid; gap: 10px; grid-template-columns: repeat(auto-fill, minmax(240px, 1fr)); }
li { border: 1px solid #8886; border-radius: 8px; overflow: hidden; }
header { padding: 4px 10px; background: #8882; font: 12px/1.6 ui-monospace, monospace; overflow-wrap: anywhere; }
h2 { font-size: 15px; margin: 8px 10px 2px; } p { margin: 2px 10px 10px; white-space: pre-wrap; }
</style>"""


def results_of(rollout: Viewed) -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    """Each tool call with the JSON object that answered it: name, arguments, result."""
    calls = {}
    for message in rollout.messages:
        for call in message.get("tool_calls") or ():
            function = call["function"]
            given = function["arguments"]
            calls[call["id"]] = function["name"], json.loads(given) if isinstance(given, str) else given
        if message["role"] == "tool" and message.get("tool_call_id") in calls:
            try:
                result = json.loads(message["content"])
            except ValueError:
                continue
            if isinstance(result, dict):
                yield *calls[message["tool_call_id"]], result


def has_a_board(rollout: Viewed) -> bool:
    """Whether a tool answered with a board: rows of signs."""
    return any("board" in result for _, _, result in results_of(rollout))


def has_pages(rollout: Viewed) -> bool:
    """Whether a browser's tools were called."""
    return any(name in BROWSING for name, _, _ in results_of(rollout))


def drawn_pages(rollout: Viewed) -> str:
    """A card a step: what was done, and the page that came."""
    steps = [
        f"<li><header>{escape(name)} {escape(json.dumps(given))}</header>"
        f"<h2>{escape(str(page.get('title', '')))}</h2><p>{escape(str(page.get('text', '')))}</p></li>"
        for name, given, page in results_of(rollout)
        if name in BROWSING
    ]
    return f"{STYLE}<ol>{''.join(steps)}</ol>"


board = Viewer("board", has_a_board, module=Path(__file__).with_name("board.js"))
pages = Viewer("pages", has_pages, html=drawn_pages)
