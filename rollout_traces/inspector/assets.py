"""The page's scripts and styles, held in memory; script modules are joined into one script.

Everything the browser may ask for is read once, by names that this module lists itself. A request's path is a key of a
table, never a path of the file system. Script modules import by relative path and export declarations by name; nothing
else is needed, so nothing else is read: each becomes a function that returns its exports, in the order of its imports.
"""

from __future__ import annotations

import base64
import hashlib
import json
import posixpath
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import cache
from html import escape
from pathlib import Path

from rollout_traces.model.names import VERSION
from rollout_traces.model.text import one_line, short_hash

_HERE = Path(__file__).parent
SCRIPTS = "scripts.js"
STYLE = "style.css"
LONGEST_TITLE = 200
VIEWER = "viewer.html"
"""The empty frame in which views of one's own draw."""


@dataclass(frozen=True)
class Bundle:
    """All files of the page.

    Attributes:
        files: what is served, by name: `SCRIPTS`, `STYLE` and `VIEWER`.
        modules: source of the script modules, by path under the package's `inspector` folder, with `/`.
        digest: changes whenever a file does; part of the address, so that caches never serve stale code.
    """

    files: Mapping[str, bytes]
    modules: Mapping[str, str]
    digest: str


@cache
def bundle() -> Bundle:
    """Reads the scripts and styles of the package.

    Returns:
        The files. Scripts are joined into one module that exports those of the components as `entries`; styles into
        one sheet, `lib` first, then the components by name.
    """
    modules = {
        path.relative_to(_HERE).as_posix(): path.read_text("utf-8")
        for folder in ("lib", "components")
        for path in sorted((_HERE / folder).rglob("*.js"))
    }
    components = sorted(path.parent.name for path in (_HERE / "components").glob("*/template.html"))
    script = joined(modules, {name: f"components/{name}/script.js" for name in components})
    sheets = [*sorted((_HERE / "lib").glob("*.css")), *sorted((_HERE / "components").rglob("*.css"))]
    files = {
        SCRIPTS: script.encode(),
        STYLE: b"\n".join(path.read_bytes() for path in sheets),
        VIEWER: (_HERE / "lib" / VIEWER).read_bytes(),
    }
    digest = short_hash(b"".join(files.values())).hex()
    return Bundle(files, modules, digest)


def policy_hash(body: bytes) -> str:
    """A script or style sheet as a Content-Security-Policy lists it."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(body).digest()).decode()}'"


def written_head(policy: str, title: str) -> str:
    """The beginning of an HTML file that needs no server, up to what is its own in its head.

    Args:
        policy: its Content-Security-Policy.
        title: plain text.
    """
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{escape(policy)}">\n'
        '<meta name="referrer" content="no-referrer"><meta name="viewport" content="width=device-width">\n'
        f"<title>{escape(one_line(title, LONGEST_TITLE) or 'rollout traces')}</title>\n"
    )


def made_by() -> str:
    """Says what wrote a file, and when."""
    return f"rollout-traces {VERSION}, {datetime.now(timezone.utc):%Y-%m-%d %H:%M} UTC"


@cache
def icon() -> str:
    """The page's icon as an address of its own: a browser fetches others again at every change of the address."""
    body = (_HERE / "lib" / "icon.svg").read_bytes()
    return "data:image/svg+xml;base64," + base64.b64encode(body).decode("ascii")


@cache
def katex() -> tuple[str, str] | None:
    """Finds the addresses at which Gradio serves the KaTeX it bundles.

    Returns:
        Addresses of its script module and its style sheet under Gradio's root, or None where this
        Gradio has none (formulas then show as source).
    """
    import gradio

    folder = Path(gradio.__file__).parent / "templates" / "frontend" / "assets"
    names = [path.name for path in folder.glob("katex-*")]
    script = next((name for name in names if re.fullmatch(r"katex-[\w-]+\.js", name)), None)
    style = next((name for name in names if re.fullmatch(r"katex-[\w-]+\.css", name)), None)
    return (f"assets/{script}", f"assets/{style}") if script and style else None


_IMPORT = re.compile(
    r'^import\s+(?P<names>\{[^}]*\}|\*\s+as\s+\w+)\s+from\s+"(?P<path>[^"]+)";[ \t]*$', re.MULTILINE
)
_EXPORT = re.compile(r"^export\s+(?=(?:async\s+)?(?:function\*?|class|const)\s+(?P<name>\w+))", re.MULTILINE)


def inlined(modules: Mapping[str, str], entry: str) -> str:
    """One script of a module and all that it imports.

    Args:
        modules: source by path, with `/`.
        entry: the path of the module that is run last.

    Returns:
        A classic script; its modules' names stay inside it.
    """
    text, _ = _functions(modules, [entry])
    return f'(() => {{\n"use strict";\n{text}\n}})();\n'


def joined(modules: Mapping[str, str], entries: Mapping[str, str]) -> str:
    """One module of several and all that they import, each once: a browser asks once instead of dozens of times.

    Args:
        modules: source by path, with `/`.
        entries: path of a module by the name under which it is found.

    Returns:
        A module that exports `entries`, an object: the exports of each entry by its name.
    """
    text, numbers = _functions(modules, entries.values())
    named = ", ".join(f"{json.dumps(name)}: module{numbers[path]}" for name, path in entries.items())
    return f"{text}\nexport const entries = {{ {named} }};\n"


def _functions(modules: Mapping[str, str], entries: Iterable[str]) -> tuple[str, dict[str, int]]:
    """The modules that entries need as functions, in the order of their imports, and each one's number."""
    order: list[str] = []
    for entry in entries:
        _visit(modules, entry, order)
    numbers = {path: number for number, path in enumerate(order)}
    return "\n".join(_as_function(path, modules[path], numbers) for path in order), numbers


def _visit(modules: Mapping[str, str], path: str, order: list[str]) -> None:
    if path not in order:
        for match in _IMPORT.finditer(modules[path]):
            _visit(modules, _resolved(path, match["path"]), order)
        order.append(path)


def _resolved(importer: str, path: str) -> str:
    return posixpath.normpath(posixpath.join(posixpath.dirname(importer), path))


def _as_function(path: str, source: str, numbers: Mapping[str, int]) -> str:
    def imported(match: re.Match[str]) -> str:
        number = numbers[_resolved(path, match["path"])]
        names = match["names"]
        taken = names.split()[-1] if names.startswith("*") else names.replace(" as ", ": ")
        return f"const {taken} = module{number};"

    exports = [match["name"] for match in _EXPORT.finditer(source)]
    body = _EXPORT.sub("", _IMPORT.sub(imported, source))
    return (
        f"// {path}\nconst module{numbers[path]} = (() => {{\n{body}\n"
        f"return {{ {', '.join(exports)} }};\n}})();"
    )
