"""Takes the moving picture of the README from the site of the example run: from a curve to its cause to the token.

Run as `python -m tests.inspector.take_tour site/example`, after `make site`.
"""

from __future__ import annotations

import io
import shutil
import sys
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from PIL import Image
from playwright.sync_api import Locator, Page, sync_playwright

OUT = Path(__file__).resolve().parents[2] / "docs" / "images" / "tour.webp"
SIZE = {"width": 1200, "height": 700}
LARGEST = 1_500_000
"""Bytes."""
STEPS = 5
"""Pictures of a move of the pointer."""
POINTER = """
const node = document.createElement("div");
node.id = "pointer";
node.style.cssText = "position:fixed;z-index:99;width:18px;height:18px;margin:-9px;border-radius:50%;background:#f2a33acc;border:2px solid #fff;box-shadow:0 0 4px #0008;pointer-events:none;left:600px;top:640px";
document.body.append(node);
"""


class Tour:
    """A page, its pointer, and the pictures that were taken."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.frames: list[tuple[Image.Image, int]] = []
        self.at = (600.0, 640.0)

    def hold(self, seconds: float) -> None:
        """A picture that stands for so long."""
        shot = Image.open(io.BytesIO(self.page.screenshot()))
        self.frames.append((shot.convert("RGB"), int(seconds * 1000)))

    def to(self, target: Locator, dx: float = 0.5, dy: float = 0.5) -> tuple[float, float]:
        """Moves the pointer to a place of an element, a picture a part of the way."""
        target.scroll_into_view_if_needed()
        box = target.bounding_box()
        assert box is not None
        end = (box["x"] + dx * box["width"], box["y"] + dy * box["height"])
        for part in range(1, STEPS + 1):
            x, y = (a + (b - a) * part / STEPS for a, b in zip(self.at, end, strict=True))
            self.page.evaluate(f"pointer.style.left = '{x}px'; pointer.style.top = '{y}px'")
            self.hold(0.06)
        self.at = end
        return end

    def click(self, target: Locator, dx: float = 0.5, dy: float = 0.5) -> None:
        """Goes there and clicks."""
        x, y = self.to(target, dx, dy)
        self.page.evaluate("pointer.style.transform = 'scale(1.6)'")
        self.hold(0.25)
        self.page.mouse.click(x, y)
        self.page.evaluate("pointer.style.transform = ''")


def main() -> None:
    """Writes the picture; fails where it is too large."""
    handler = partial(SimpleHTTPRequestHandler, directory=sys.argv[1])
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_page(viewport=SIZE, color_scheme="light")
        page.goto(f"http://127.0.0.1:{server.server_port}/")
        frames = taken(Tour(page))
    first, *rest = (image for image, _ in frames)
    durations = [duration for _, duration in frames]
    first.save(OUT, save_all=True, append_images=rest, duration=durations, loop=0, quality=62, method=6)
    assert OUT.stat().st_size < LARGEST, f"{OUT.stat().st_size:,} bytes"
    print(f"{len(frames)} pictures, {OUT.stat().st_size / 1e6:.2f} MB: {OUT}")


def taken(tour: Tour) -> list[tuple[Image.Image, int]]:
    """The way: a curve that fell, what began there, what differs at that step, a rollout, its tokens."""
    page = tour.page
    visible = lambda name: page.locator(f"[data-testid='{name}']:visible")  # noqa: E731
    visible("run-verdict").wait_for()
    page.evaluate(POINTER)
    curve = page.locator("[data-testid='run-card'][data-metric='reward']")
    curve.scroll_into_view_if_needed()
    curve.evaluate("node => node.scrollIntoView({block: 'center'})")
    tour.hold(1.6)
    tour.to(curve.locator("svg"), 0.5, 0.4)
    tour.hold(1.2)
    page.locator(".rt-run-main").evaluate("node => node.scrollTo(0, 0)")
    tour.hold(1.0)
    cause = visible("diagnosis").filter(has_text="tools fail").first
    tour.click(cause.locator("[data-testid='diagnosis-explain']"))
    visible("finding").first.wait_for()
    tour.hold(2.4)
    page.go_back()
    tour.click(cause.locator("[data-testid='diagnosis-rollouts']"))
    visible("rollout-header").wait_for()
    page.locator(".rt-turn").first.wait_for()
    tour.hold(2.0)
    error = page.locator("[data-role='tool']:visible").first
    error.scroll_into_view_if_needed()
    tour.to(error, 0.3, 0.6)
    tour.hold(1.6)
    page.keyboard.press("v")
    visible("overlay-select").select_option("logprob")
    page.locator(".rt-legend:visible").first.wait_for()
    tour.hold(1.8)
    page.keyboard.press("e")
    visible("token-card").wait_for()
    tour.hold(3.0)
    return tour.frames


if __name__ == "__main__":
    main()
