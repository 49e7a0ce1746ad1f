"""Explain and Run in the page at a million rollouts: from the click to the first line on the screen.

    python -m benchmarks.explain_page --rows 1000000

Needs Chromium. The baseline of the same run is the time to the first row of Explore's table of all rows.
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

GOAL = 1.0
"""Seconds to the first line."""


def main() -> None:
    """Prints seconds on the clock, medians of several steps, none asked before."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument(
        "--folder", default="", help="Trackio's folder, kept; a temporary one where it is not given."
    )
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(asked.folder or temporary)
        folder.mkdir(parents=True, exist_ok=True)
        os.environ["TRACKIO_DIR"] = str(folder)
        measure(folder, asked.rows, asked.times)


def measure(folder: Path, n_rows: int, times: int) -> None:
    """Writes the project where it is not there, serves it, and measures in a browser.

    Args:
        folder: Trackio's folder.
        n_rows: rollouts.
        times: steps that are explained.
    """
    from playwright.sync_api import sync_playwright

    from benchmarks.table_of_rollouts import PROJECT, RUN, STEP_ROWS, write_steps
    from tests.inspector.conftest import Served, sign_in

    n_steps = -(-n_rows // STEP_ROWS)
    if not (folder / f"{PROJECT}.db").exists():
        for first in range(0, n_steps, 100):
            write_steps(range(first, min(first + 100, n_steps)))
    server = Served(folder)
    place = {"project": PROJECT, "run": RUN, "split": "rollout"}
    try:
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(
                executable_path=shutil.which("chromium"), args=["--no-sandbox"]
            )
            page = browser.new_page(viewport={"width": 1280, "height": 800})
            sign_in(page.context, server.address)
            opened(page, server.address, {**place, "tab": "explore", "rows": "all"}, "tbody tr")
            table = [
                opened(
                    page,
                    server.address,
                    {**place, "tab": "explore", "rows": "all", "where": f"step = {s}"},
                    "tbody tr",
                )
                for s in range(3)
            ]
            opened(
                page,
                server.address,
                {**place, "tab": "explain", "step": n_steps // 3},
                "[data-testid='findings']",
            )
            first_lines = [
                shown_after(
                    page,
                    "[data-testid='a-steps']",
                    n_steps - 15 - 7 * at,
                )
                for at in range(times)
            ]
            halves = opened(
                page,
                server.address,
                {
                    **place,
                    "tab": "explain",
                    "steps": f"{n_steps // 2}:",
                    "against": f"steps=:{n_steps // 2 - 1}",
                },
                "[data-testid='findings']",
            )
            page.close()
            server.stop()
            server = Served(folder)
            page = browser.new_page(viewport={"width": 1280, "height": 800})
            sign_in(page.context, server.address)
            curves = opened(page, server.address, {**place, "tab": "run"}, "[data-testid='run-card']")
            began = time.perf_counter()
            page.locator("[data-testid='run-verdict']").wait_for(timeout=120_000)
            verdict = curves + time.perf_counter() - began
            browser.close()
    finally:
        server.stop()
    print(f"{n_steps * STEP_ROWS:,} rollouts, {n_steps:,} steps; seconds on the clock in the browser")
    print(f"baseline: Explore, page and first row of a step {median(table):8.3f}")
    print(
        f"Explain a step, first line                     {median(first_lines):8.3f}  goal {GOAL}; worst {max(first_lines):.3f}"
    )
    print(f"Explain two halves, page and first line        {halves:8.3f}")
    print(f"Run page of a new server, its curves           {curves:8.3f}")
    print(f"Run page of a new server, its diagnoses        {verdict:8.3f}")


def opened(page: Any, address: str, state: dict[str, Any], wanted: str) -> float:
    """Seconds from the address to something visible."""
    from urllib.parse import urlencode

    began = time.perf_counter()
    page.goto(f"{address}/?{urlencode(state)}")
    page.locator(f".rt-active {wanted}").first.wait_for(timeout=120_000)
    return time.perf_counter() - began


def shown_after(page: Any, field: str, step: int) -> float:
    """Seconds from another step's choice to its answer."""
    page.locator(field).fill(str(step))
    began = time.perf_counter()
    page.locator(field).press("Enter")
    page.get_by_text(f"step {step}", exact=False).locator("visible=true").first.wait_for(timeout=120_000)
    page.locator("[data-testid='findings']").first.wait_for(timeout=120_000)
    page.wait_for_function(
        "step => document.querySelector(\"[data-testid='explain-against']\")?.textContent.includes(`step ${step} `)",
        arg=step,
        timeout=120_000,
    )
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
