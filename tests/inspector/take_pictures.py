"""Takes the pictures of docs/ from a project, in headless Chromium.

Run as `python -m tests.inspector.take_pictures --address http://127.0.0.1:7861 --step 20`
beside `rollout-traces show --example --no-token`. With `--project stories`, the pages of `make_stories` instead, with
`--project imports` those of `make_imports`, with `--project environment-loop` that of `examples/environment_loop.py`,
with `agents` that of `make_project --standard`, with `bench` that of `benchmarks.store --rows 1000000`.
With `--live RUN`, the Live page of `examples/environment_loop.py --name RUN --rollouts 28 --pace 10 --timeout 150` while it runs.
With `--file page.html`, only that file of `rollout-traces share`, opened from disk without a network.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path
from urllib.parse import urlencode

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "images"

MILLION = {"tab": "explore", "rows": "all", "where": "reward > 0.5 and truncated", "sort": "-advantage"}
ALONE = {
    "environment-loop": ("lanes", {"tab": "lanes", "minutes": "1"}, "lanes-legend"),
    "agents": ("episodes", {"tab": "episodes"}, "episode"),
    "bench": ("explore-million", MILLION, "facets"),
}
"""Projects of which one page is taken: project -> picture, address, what is waited for."""


def main() -> None:
    """One picture a page, and the token view in the dark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--address", default="http://127.0.0.1:7861")
    parser.add_argument("--project", default="tiny-grpo")
    parser.add_argument("--step", default="")
    parser.add_argument("--group", default="")
    parser.add_argument("--file", type=Path, help="a file of `rollout-traces share`")
    parser.add_argument(
        "--live", metavar="RUN", help="a run of examples/environment_loop.py that is under way"
    )
    options = parser.parse_args()
    from playwright.sync_api import sync_playwright

    if options.file:
        with sync_playwright() as playwright:
            take_of_file(playwright, options.file)
        return
    if options.live:
        with sync_playwright() as playwright:
            take_of_live(playwright, options.address, options.live)
        return
    if options.project == "stories":
        with sync_playwright() as playwright:
            take_of_stories(playwright, options.address)
        return
    if options.project == "imports":
        with sync_playwright() as playwright:
            take_of_imports(playwright, options.address)
        return
    if options.project in ALONE:
        name, state, shown = ALONE[options.project]
        with sync_playwright() as playwright:
            place = {"project": options.project, **state}
            take_each(playwright, options.address, {name: (place, shown, 1440)})
        return
    place = {"project": options.project, "step": options.step, "group": options.group}
    shots = {
        "rollouts": {**place},
        "tokens": {**place, "overlay": "logprob"},
        "compare": {**place, "tab": "compare"},
        "explore": {"project": options.project, "tab": "explore", "hist": "n_sampled"},
        "health": {"project": options.project, "tab": "health"},
        "run": {"project": options.project, "tab": "run"},
        "group": {**place, "tab": "group"},
        "what-if": {**place, "tab": "what_if", "rules": "stale:0"},
    }
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        for name, state in shots.items():
            scheme = "dark" if name == "tokens" else "light"
            page = browser.new_page(viewport={"width": 1440, "height": 900}, color_scheme=scheme)
            query = urlencode({key: value for key, value in state.items() if value})
            page.goto(f"{options.address}/?{query}")
            page.locator(".rt-active :is([data-testid=turn], table, figure)").first.wait_for()
            page.locator(".rt-incidents > *").first.wait_for()
            if name == "run":
                page.get_by_test_id("diagnosis-explain").first.wait_for()
            page.wait_for_timeout(1500)
            if name == "tokens":
                page.locator("[data-role=assistant] [data-testid=token]").nth(12).hover()
                page.wait_for_timeout(400)
            page.screenshot(path=str(FOLDER / f"{name}.png"))
            shrink(FOLDER / f"{name}.png")
            page.close()
        browser.close()


def take_of_stories(playwright: object, address: str) -> None:
    """The pages that answer, on the runs of `make_stories`."""
    place = {"project": "stories", "run": "engine-off", "split": "rollout"}
    shots = {
        "run-healthy": ({**place, "run": "healthy", "tab": "run"}, "run-verdict", 1280),
        "run-engine": ({**place, "tab": "run"}, "run-verdict", 1280),
        "run-reward": ({**place, "run": "reward-fails", "tab": "run"}, "run-verdict", 1280),
        "explain": (
            {**place, "run": "judge", "tab": "explain", "steps": "30:49", "against": "steps=10:29"},
            "findings",
            1440,
        ),
        "flips": ({**place, "tab": "flips"}, "grid-cell", 1440),
        "runs": ({**place, "tab": "runs", "other": "healthy"}, "runs-card", 1440),
    }
    take_each(playwright, address, shots)


def take_of_live(playwright: object, address: str, run: str) -> None:
    """The Live page once a rollout has been silent for a minute, which is opened beside the list."""
    browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])  # type: ignore[attr-defined]
    page = browser.new_page(viewport={"width": 1440, "height": 800}, color_scheme="light")
    page.goto(f"{address}/?{urlencode({'project': 'environment-loop', 'run': run, 'tab': 'live'})}")
    page.locator("[data-testid=population]:visible", has_text="silent").wait_for(timeout=200_000)
    page.locator("[data-testid=flight-row]:visible button").first.click()
    page.locator("[data-testid=flight-opened]:visible").wait_for()
    page.wait_for_timeout(2500)
    page.screenshot(path=str(FOLDER / "live.png"))
    shrink(FOLDER / "live.png")
    browser.close()


def take_of_imports(playwright: object, address: str) -> None:
    """Projects of other tools: imported ones, and what TRL logged by itself."""
    shots = {
        "imported-prime-rl": ({"project": "prime-rl", "tab": "rollouts", "group": "1"}, "turn", 1600),
        "imported-prime-rl-episodes": ({"project": "prime-rl", "tab": "episodes"}, "episode", 1600),
        "imported-verl": ({"project": "verl", "tab": "rollouts"}, "turn", 1600),
        "imported-verl-health": ({"project": "verl", "tab": "health"}, "health-card", 1600),
        "traces-of-trl": (
            {"project": "trl-sums", "tab": "rollouts", "run": "grpo", "split": "rollout"},
            "turn",
            1600,
        ),
        "traces-of-trl-health": (
            {"project": "trl-sums", "tab": "health", "split": "rollout"},
            "health-card",
            1600,
        ),
        "traces-of-trl-run": ({"project": "trl-sums", "tab": "run", "split": "rollout"}, "run-verdict", 1600),
    }
    take_each(playwright, address, shots)


def take_each(playwright: object, address: str, shots: dict[str, tuple[dict[str, str], str, int]]) -> None:
    """Takes pages: name -> address, what is waited for, and the window's width."""
    browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])  # type: ignore[attr-defined]
    for name, (state, shown, width) in shots.items():
        page = browser.new_page(viewport={"width": width, "height": 800}, color_scheme="light")
        page.goto(f"{address}/?{urlencode(state)}")
        page.locator(f".rt-active [data-testid={shown}]").first.wait_for()
        page.wait_for_timeout(1500)
        page.screenshot(path=str(FOLDER / f"{name}.png"))
        shrink(FOLDER / f"{name}.png")
        page.close()
    browser.close()


def take_of_file(playwright: object, path: Path) -> None:
    """A shared file, as a browser without a network shows it."""
    browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])  # type: ignore[attr-defined]
    context = browser.new_context(offline=True, viewport={"width": 1280, "height": 800})
    page = context.new_page()
    page.goto(path.resolve().as_uri())
    page.locator("[data-testid=turn]:visible").first.wait_for()
    page.screenshot(path=str(FOLDER / "shared-file.png"))
    shrink(FOLDER / "shared-file.png")
    browser.close()


def shrink(path: Path) -> None:
    """A screenshot has few colours: a palette makes it a third as large."""
    from PIL import Image

    with Image.open(path) as image:
        image.convert("RGB").quantize(256, dither=Image.Dither.NONE).save(path, optimize=True)


if __name__ == "__main__":
    main()
