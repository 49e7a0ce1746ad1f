"""Writes the folder of a site: one page, its script and style sheet, and gzipped answers."""

from __future__ import annotations

import gzip
import shutil
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timezone
from functools import cache
from html import escape
from pathlib import Path
from typing import Any

from rollout_traces.errors import ConfigError, StoreError
from rollout_traces.inspector.asking import as_json, as_plain
from rollout_traces.inspector.assets import STYLE, bundle, icon, inlined
from rollout_traces.inspector.site.contents import SiteOf, listed_run
from rollout_traces.inspector.workspace import ProjectView, SplitView, Workspace
from rollout_traces.model.text import one_line

ENTRY = "components/site/script.js"
PAGES = ("run", "rollouts")
MARK = "rt-site"
"""The id by which a page knows that it is one of a site."""
SCRIPT = "site.js"
_COMPONENTS = Path(__file__).parents[1] / "components"
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "base-uri 'none'; form-action 'none'"
)


def write_site(
    workspace: Workspace,
    project: str,
    run: str,
    out: Path,
    splits: Sequence[str] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> tuple[int, int]:
    """Writes a run as a folder that any web server serves.

    The folder appears under its name only when it is complete; a site that stood there goes.

    Args:
        workspace: where it is read from.
        run: the run's name or id.
        splits: these splits alone.
        progress: called with rollouts done and rollouts in all.

    Returns:
        Rollouts and bytes that were written.

    Raises:
        ConfigError: something else stands at `out`.
        StoreError: there is no such run, or nothing of it was kept.
    """
    out = out.resolve()  # `.` has no name
    _may_replace(out)
    view = ProjectView(workspace, project)
    info = view.store.run(run)
    named = [split for split in info.splits if splits is None or split in splits]
    parts = [SiteOf(SplitView(workspace, project, info.id, split), str(at)) for at, split in enumerate(named)]
    total = sum(len(part.rows) for part in parts)
    if not total:
        raise StoreError(f"run {info.name!r}: no rollout was kept, so there is nothing to show.")
    unfinished = out.with_name(f".{out.name}.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    try:
        done = 0
        for part in parts:
            for name, held in part.files():
                _write(unfinished / "data" / f"{name}.gz", held)
                done += len(held["rollouts"]) if "/rollouts-" in name else 0
                if progress is not None:
                    progress(done, total)
        _write(unfinished / "data" / "about.gz", _about(parts, info.name))
        _write_page(unfinished, info.name)
        if out.exists():
            shutil.rmtree(out)
        unfinished.replace(out)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return total, sum(path.stat().st_size for path in out.rglob("*") if path.is_file())


def _may_replace(out: Path) -> None:
    page = out / "index.html"
    ours = page.is_file() and f'id="{MARK}"' in page.read_text("utf-8", "replace")
    if out.exists() and not ours and not (out.is_dir() and not any(out.iterdir())):
        raise ConfigError(f"{out} is there and no site of ours. Name a folder that is empty or not there.")


def _write(path: Path, held: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(as_json(held), mtime=0))


def _about(parts: Sequence[SiteOf], name: str) -> Mapping[str, Any]:
    from rollout_traces import __version__

    view = parts[0].view
    project = view.project.rstrip("/").rsplit("/", 1)[-1]  # of an export, not where it lies
    run = as_plain(listed_run(view, [part.steps() for part in parts]))
    return {
        "title": f"{project} / {name}",
        "made": f"rollout-traces {__version__}, {datetime.now(timezone.utc):%Y-%m-%d %H:%M} UTC",
        "catalog": {"projects": [{"name": project}], "project": project, "runs": [run]},
        "splits": [part.view.split for part in parts],
        "explained": [part.explained for part in parts],
        "images": {key: value for part in parts for key, value in part.images.items()},
    }


def _write_page(folder: Path, title: str) -> None:
    files = bundle()
    (folder / SCRIPT).write_text(_script(), "utf-8")
    (folder / STYLE).write_bytes(files.files[STYLE].body)
    pages = "\n".join(
        f'<div class="rt-view rt-page" id="rt-{name}">{(_COMPONENTS / name / "template.html").read_text("utf-8")}</div>'
        for name in PAGES
    )
    (folder / "index.html").write_text(
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{escape(_POLICY)}">\n'
        '<meta name="referrer" content="no-referrer"><meta name="viewport" content="width=device-width">\n'
        f"<title>{escape(one_line(title, 200))}</title>\n"
        f'<link rel="icon" type="image/svg+xml" href="{icon()}">\n'
        f'<link rel="stylesheet" href="{STYLE}?{files.digest}">\n'
        f'<script src="{SCRIPT}?{files.digest}" defer></script></head>\n<body id="{MARK}">\n{pages}\n</body></html>\n',
        "utf-8",
    )


@cache
def _script() -> str:
    return inlined(bundle().modules, ENTRY)
