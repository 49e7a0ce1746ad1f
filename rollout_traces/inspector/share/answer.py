"""What is shown as one HTML file that anybody can open from disk, for the browser that asks."""

from __future__ import annotations

import re
from dataclasses import dataclass

from rollout_traces.errors import StoreError
from rollout_traces.inspector.asking import Names
from rollout_traces.inspector.share.contents import Shared, shared_contents
from rollout_traces.inspector.share.page import shared_page
from rollout_traces.inspector.view import SplitView

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
