"""The file: markup, style, script and what it shows, under a policy that lets nothing be asked for."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from functools import cache
from html import escape
from typing import Any

from rollout_traces.inspector.asking import as_json
from rollout_traces.inspector.assets import STYLE, bundle
from rollout_traces.inspector.inliner import InlineError, inlined

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
