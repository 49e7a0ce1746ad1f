"""The file: markup, style, script and what it shows, under a policy that lets nothing be asked for; for a browser that asks."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from html import escape
from typing import Any

from rollout_traces.errors import StoreError
from rollout_traces.inspector.asking import Names, as_json
from rollout_traces.inspector.assets import STYLE, InlineError, bundle, inlined
from rollout_traces.inspector.share.contents import Shared, shared_contents
from rollout_traces.inspector.workspace import SplitView

ENTRY = "components/shared/script.js"


def shared_page(held: Mapping[str, Any]) -> str:
    """One HTML file.

    Args:
        held: what it shows, see `contents.Shared.held`.

    Returns:
        The file's text. Its Content-Security-Policy names the hashes of its one script and its one style sheet
        and allows nothing else: no request, no frame, no form, no other script.
    """
    script, style = _code()
    policy = f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; base-uri 'none'; form-action 'none'"
    text = as_json(held).decode()
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{escape(policy)}">\n'
        '<meta name="referrer" content="no-referrer"><meta name="viewport" content="width=device-width">\n'
        f"<title>{escape(_title(str(held.get('title', ''))))}</title>\n"
        f"<style>{style}</style></head><body>\n"
        f'<script type="application/json" id="rt-held">{_inside_script(text)}</script>\n'
        f"<script>{script}</script>\n</body></html>\n"
    )


@cache
def _code() -> tuple[str, str]:
    """The script and the style sheet, the same in every file.

    Raises:
        InlineError: they cannot stand inside HTML.
    """
    script, style = inlined(bundle().modules, ENTRY), bundle().files[STYLE].body.decode()
    for name, text, ends in (("script", script, "</script"), ("style sheet", style, "</style")):
        if ends in text.lower() or "<!--" in text:
            raise InlineError(f"the {name} holds {ends} or <!--, which would end it early inside HTML.")
    return script, style


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _inside_script(text: str) -> str:
    """JSON that no sign of can end the element that it stands in."""
    for sign in "<>&\u2028\u2029":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return text


def _title(text: str) -> str:
    from rollout_traces.model.text import one_line

    return one_line(text, 200) or "rollout traces"


LARGEST = 64 << 20
"""Bytes of a file that a browser is sent."""


@dataclass(frozen=True)
class SharedFile:
    """The file's text, and its name."""

    html: str
    name: str


def share(
    view: SplitView,
    what: str,
    id: str = "",
    a: str = "",
    b: str = "",
    step: int | None = None,
    group: int | None = None,
    hide: Names = (),
) -> SharedFile:
    """The file of a rollout (`id`), of two (`a` and `b`), of a group (`step`, `group`) or of the run's report.

    `what` says which: `rollout`, `compare`, `group` or `explain`. The texts of `hide` are hidden in it.

    Raises:
        StoreError: `what` is something else, it is not there, or the file is too large.
    """
    known = {
        "rollout": {"rollouts": (id,)},
        "compare": {"compared": (a, b)},
        "group": {"group": (step or 0, group or 0)},
        "explain": {"explained": True, "step": step},
    }
    if what not in known:
        raise StoreError(f"what: seen {what[:40]!r}, expected rollout, compare, group or explain.")
    if what == "group" and step is None:
        raise StoreError("step: none named. Pick one with the step pager.")
    patterns = tuple(re.escape(text) for text in hide if text)
    wanted = Shared(view.project, run=view.run, split=view.split, patterns=patterns, **known[what])  # type: ignore[arg-type]
    page = shared_page(shared_contents(view.workspace, wanted))
    size = len(page.encode())
    if size > LARGEST:
        raise StoreError(
            f"the file has {size:,} bytes; a browser is sent at most {LARGEST:,}. Use `rollout-traces share`."
        )
    return SharedFile(page, f"{what}.html")
