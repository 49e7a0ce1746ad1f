"""How fast the inspector is, in headless Chromium: start, a step, a rollout, overlays, a group, what-if, scrolling.

    python -m benchmarks.inspector
    python -m benchmarks.inspector --traces 2000 --tokens 8000      a short one

Baselines, in the same run and browser: an empty Gradio app for the start, and for the long rollout the same
tokens drawn plainly, one coloured span each, as token heatmaps are commonly drawn.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
OPEN_BUDGET_MS = 300
EMPTY_APP = """
import gradio, os
with gradio.Blocks(analytics_enabled=False) as app:
    gr = gradio.HTML("<b id=ready>ready</b>")
app.launch(server_port=int(os.environ["PORT"]), quiet=True, ssr_mode=False)
"""
SHOW = "from rollout_traces.cli import main; main()"
OPEN_LONG = """async query => {
  const shown = () => document.querySelectorAll('.rt-active [data-testid=token].s1, .rt-active [data-testid=token].s2').length > 5;
  const start = performance.now();
  history.pushState({}, '', query);
  window.dispatchEvent(new PopStateEvent('popstate'));
  while (!shown()) await new Promise(requestAnimationFrame);
  await new Promise(resolve => requestAnimationFrame(() => setTimeout(resolve)));
  return performance.now() - start;
}"""
OTHER_OVERLAY = """async () => {
  const select = document.querySelector('.rt-active [data-testid=overlay-select]');
  const wanted = select.value === 'loss_mask' ? 'entropy' : 'loss_mask';
  const shown = () => document.querySelector(wanted === 'entropy' ? '.rt-active [data-testid=token].s3' : '.rt-active [data-testid=token].m1');
  const start = performance.now();
  select.value = wanted;
  select.dispatchEvent(new Event('change'));
  while (!shown()) await new Promise(requestAnimationFrame);
  await new Promise(resolve => requestAnimationFrame(() => setTimeout(resolve)));
  return performance.now() - start;
}"""
NEXT_STEP = """async () => {
  const before = document.querySelector('.rt-active [data-testid=rollout-header] h1').textContent;
  const start = performance.now();
  document.querySelector('.rt-active [data-testid=step-previous]').click();
  while (document.querySelector('.rt-active [data-testid=rollout-header] h1').textContent === before) await new Promise(requestAnimationFrame);
  await new Promise(resolve => requestAnimationFrame(() => setTimeout(resolve)));
  return performance.now() - start;
}"""
NEXT_ROLLOUT = """async () => {
  const title = () => document.querySelector('.rt-active [data-testid=rollout-header] h1').textContent;
  const before = title();
  const start = performance.now();
  document.body.dispatchEvent(new KeyboardEvent('keydown', {key: 'j', bubbles: true}));
  while (title() === before || !document.querySelector('.rt-active .rt-turn-body .rt-markdown, .rt-active .rt-turn-body .rt-plain')) await new Promise(requestAnimationFrame);
  await new Promise(resolve => requestAnimationFrame(() => setTimeout(resolve)));
  return performance.now() - start;
}"""
OPEN_GROUP = """async query => {
  const start = performance.now();
  history.pushState({}, '', query);
  window.dispatchEvent(new PopStateEvent('popstate'));
  while (!document.querySelector('.rt-active [data-testid=prefix-tree]')) await new Promise(requestAnimationFrame);
  await new Promise(resolve => requestAnimationFrame(() => setTimeout(resolve)));
  return performance.now() - start;
}"""
MOVE_SLIDER = """async value => {
  const slider = document.querySelector('.rt-active [data-testid=slider-icepop-0]');
  const start = performance.now();
  slider.value = value;
  slider.dispatchEvent(new Event('input'));
  await new Promise(resolve => requestAnimationFrame(() => setTimeout(resolve)));
  return performance.now() - start;
}"""
SCROLL = """async () => {
  const middle = document.querySelector('.rt-active .rt-middle');
  const frames = [];
  let last = performance.now();
  for (let y = 0; y < middle.scrollHeight; y += 400) {
    middle.scrollTop = y;
    await new Promise(requestAnimationFrame);
    frames.push(performance.now() - last);
    last = performance.now();
  }
  frames.sort((a, b) => a - b);
  return [frames[Math.floor(frames.length / 2)], frames[Math.floor(frames.length * 0.95)], frames[frames.length - 1]];
}"""
PLAIN_SPANS = """async n => {
  const host = document.createElement('div');
  host.style.cssText = 'position:fixed;inset:0;overflow:auto;z-index:99;background:white;white-space:pre-wrap;font:13px monospace';
  const start = performance.now();
  host.innerHTML = Array.from({length: n}, (_, i) => `<span title="${i}" style="background:rgba(80,60,200,${(i % 10) / 14})"> w${i % 97}${i % 14 === 13 ? '\\n' : ''}</span>`).join('');
  document.body.append(host);
  host.getBoundingClientRect();
  await new Promise(resolve => requestAnimationFrame(() => setTimeout(resolve)));
  const took = performance.now() - start;
  host.remove();
  return took;
}"""


def main() -> None:
    """Logs the projects, measures, prints a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--traces", type=int, default=10_000)
    parser.add_argument("--tokens", type=int, default=32_000)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        env = {
            **os.environ,
            "TRACKIO_DIR": folder,
            "TRACKIO_TELEMETRY": "0",
            "GRADIO_ANALYTICS_ENABLED": "False",
        }
        log(env, "--project", "large", "--traces", str(options.traces))
        log(env, "--project", "long", "--tokens", str(options.tokens))
        log(env, "--project", "group", "--group-tokens", str(options.tokens // 4), "--loss-tokens", "4096")
        measure(env, options)


def measure(env: dict[str, str], options: argparse.Namespace) -> None:
    """All figures, printed as they come."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        system = shutil.which("chromium") or shutil.which("google-chrome")
        browser = playwright.chromium.launch(executable_path=system, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1440, "height": 900})
        empty = [started(page, env, EMPTY_APP, [], "#ready") for _ in range(2)][-1]
        cold = started(page, env, SHOW, ["--project", "large"], ".rt-active [data-testid=turn]")
        warm = started(page, env, SHOW, ["--project", "large"], ".rt-active [data-testid=turn]")
        row("start to the page, empty Gradio app", f"{empty:.1f} s")
        row(f"start to the first rollout, {options.traces} traces, no index yet", f"{cold:.1f} s")
        row("the same with its index", f"{warm:.1f} s, {warm - empty:+.1f} s against the empty app")
        with serving(env, SHOW, []) as address:
            page.goto(f"{address}/?project=large&tab=rollouts")
            page.locator(".rt-active [data-testid=turn]").first.wait_for()
            page.wait_for_timeout(1500)
            row("another step", milliseconds(lambda: page.evaluate(NEXT_STEP), options.repeats))
            switched = milliseconds(lambda: page.evaluate(NEXT_ROLLOUT), 4 * options.repeats)
            row("another rollout of the step, to its text (goal 80 ms)", switched)
            query = "?project=long&run=large-run&split=rollout&step=1&group=0&sample=0&overlay=logprob"
            home = "?project=large&tab=rollouts"

            def open_long() -> float:
                page.goto(f"{address}/{home}")
                page.locator(".rt-active [data-testid=turn]").first.wait_for()
                page.wait_for_timeout(800)
                return float(page.evaluate(OPEN_LONG, query))

            opened = milliseconds(open_long, options.repeats)
            plain = milliseconds(lambda: page.evaluate(PLAIN_SPANS, options.tokens), options.repeats)
            row(
                f"open {options.tokens} tokens under an overlay, other project (goal {OPEN_BUDGET_MS} ms)",
                opened,
            )
            row("plain spans, drawing alone, nothing fetched or decoded", plain)
            row("another overlay", milliseconds(lambda: page.evaluate(OTHER_OVERLAY), options.repeats))
            frames = page.evaluate(SCROLL)
            row("scrolling through it, a frame", "median {:.0f}, p95 {:.0f}, worst {:.0f} ms".format(*frames))
            group = "?project=group&run=large-run&split=rollout&step=1&group=0&tab=group"

            def open_group() -> float:
                page.goto(f"{address}/{home}")
                page.locator(".rt-active [data-testid=turn]").first.wait_for()
                page.wait_for_timeout(800)
                return float(page.evaluate(OPEN_GROUP, group))

            row(
                f"a group of 16 x {options.tokens // 4} tokens, other project (goal 500 ms)",
                milliseconds(open_group, options.repeats),
            )
            what_if = "?project=group&run=large-run&split=rollout&step=1&tab=what_if&rules=clip:0.2,0.2;tis:2;icepop:0.5,5;stale:2"
            page.goto(f"{address}/{what_if}")
            page.locator(".rt-active [data-testid=token]").first.wait_for()
            page.wait_for_timeout(800)
            values = iter(range(10, 100))
            moved = milliseconds(lambda: page.evaluate(MOVE_SLIDER, next(values) / 100), 2 * options.repeats)
            row(
                f"what-if over 512 x 4096 tokens and a rollout of {options.tokens // 4}, a move (goal 300 ms)",
                moved,
            )
        browser.close()


def log(env: dict[str, str], *options: str) -> None:
    """Logs a project in a process of its own."""
    command = [sys.executable, "-m", "tests.inspector.make_large", *options]
    subprocess.run(command, cwd=ROOT, env=env, check=True, stdout=subprocess.DEVNULL)


@contextmanager
def serving(env: dict[str, str], code: str, options: list[str]) -> Iterator[str]:
    """A server in a process of its own."""
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    arguments = ["show", "--no-browser", "--no-token", "--port", str(port), *options] if code == SHOW else []
    process = subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        env={**env, "PORT": str(port)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    address = f"http://127.0.0.1:{port}"
    try:
        wait_for(address)
        yield address
    finally:
        process.terminate()
        process.wait(timeout=20)


def wait_for(address: str) -> None:
    """Returns when the server answers."""
    for _ in range(1200):
        try:
            urllib.request.urlopen(address, timeout=10)
            return
        except (urllib.error.URLError, OSError):
            time.sleep(0.05)
    raise RuntimeError(f"no answer from {address}")


def started(page: Any, env: dict[str, str], code: str, options: list[str], ready: str) -> float:
    """Seconds from starting the process until the page shows what was asked for."""
    begin = time.perf_counter()
    with serving(env, code, options) as address:
        page.goto(address + ("/?project=large&tab=rollouts" if code == SHOW else ""))
        page.locator(ready).first.wait_for(timeout=120_000)
        return time.perf_counter() - begin


def milliseconds(once: Callable[[], float], repeats: int) -> str:
    """Median and worst of some repeats."""
    took = [once() for _ in range(repeats)]
    return f"median {statistics.median(took):.0f}, worst {max(took):.0f} ms"


def row(what: str, figure: str) -> None:
    """One line of the table."""
    print(f"{what:<75} {figure}", flush=True)


if __name__ == "__main__":
    main()
