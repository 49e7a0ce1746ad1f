"""The page's scripts and styles, held in memory.

Everything the browser may ask for is read once, by names that this module lists itself. A request's path
is a key of a table, never a path of the file system.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from rollout_traces.inspector.inliner import joined

_HERE = Path(__file__).parent
_TYPES = {
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".png": "image/png",
}

SCRIPTS = "scripts.js"
STYLE = "style.css"
VIEWER = "viewer.html"
"""The empty frame in which views of one's own draw."""


@dataclass(frozen=True)
class Asset:
    """One file of the page.

    Attributes:
        body: its bytes.
        media_type: its content type.
    """

    body: bytes
    media_type: str


@dataclass(frozen=True)
class Bundle:
    """All files of the page.

    Attributes:
        files: what is served, by name: `SCRIPTS`, `STYLE` and `VIEWER`.
        modules: source of the script modules, by path under the package's `inspector` folder, with `/`.
        digest: changes whenever a file does; part of the address, so that caches never serve stale code.
    """

    files: Mapping[str, Asset]
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
        SCRIPTS: Asset(script.encode(), _TYPES[".js"]),
        STYLE: Asset(b"\n".join(path.read_bytes() for path in sheets), _TYPES[".css"]),
        VIEWER: Asset((_HERE / "lib" / VIEWER).read_bytes(), _TYPES[".html"]),
    }
    digest = hashlib.blake2b(b"".join(asset.body for asset in files.values()), digest_size=6).hexdigest()
    return Bundle(files, modules, digest)


@cache
def icon() -> str:
    """The page's icon as an address of its own: a browser fetches others again at every change of the address."""
    body = (_HERE / "lib" / "icon.svg").read_bytes()
    return "data:image/svg+xml;base64," + base64.b64encode(body).decode("ascii")


@cache
def katex() -> tuple[str, str] | None:
    """Where Gradio serves the KaTeX it bundles.

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


@cache
def trackio_images() -> Mapping[str, Asset]:
    """The images that Trackio's dashboard asks for at the root, also when it is mounted under a prefix."""
    import trackio

    folder = Path(trackio.__file__).parent / "assets"
    return {path.name: Asset(path.read_bytes(), _TYPES[".png"]) for path in sorted(folder.glob("*.png"))}
