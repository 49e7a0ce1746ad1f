"""What lanes of time cost: the server's answer and the drawing in Chromium, in processor time.

    python -m benchmarks.lanes                            2,000 rollouts of 20 turns, each sampled and followed by a tool
    python -m benchmarks.lanes --rollouts 500
    python -m benchmarks.lanes --funnel 1000000           the funnel of a run of so many rollouts alone

Baselines, in the same run: for the server reading the spans' JSON and nothing else; in the browser a canvas of the same size
on which each span is a rectangle in the order and with the colour it comes with, and nothing else; for the funnel one count
of the same rows.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import statistics
import tempfile
from inspect import unwrap
from pathlib import Path
from typing import Any

from benchmarks.inspector import SHOW, row, serving
from benchmarks.spent import spent

PLAIN = """([x, y, w, colour, width, height]) => {
  const canvas = document.createElement('canvas');
  canvas.width = width;
  canvas.height = height;
  document.body.append(canvas);
  const pen = canvas.getContext('2d');
  for (let i = 0; i < x.length; i++) {
    pen.fillStyle = ['#4453c7', '#84570a', '#0f8a6d'][colour[i]];
    pen.fillRect(x[i] * width, y[i] * height, Math.max(w[i] * width, 0.7), 1);
  }
  canvas.remove();
}"""
GAP = 1500


def main() -> None:
    """Logs a step, measures, prints a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rollouts", type=int, default=2000)
    parser.add_argument("--turns", type=int, default=20)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--funnel", type=int, metavar="ROWS", help="measure the funnel of so many rollouts")
    parser.add_argument("--folder", type=Path, help="a Trackio folder that --funnel made before")
    options = parser.parse_args()
    if options.funnel:
        with tempfile.TemporaryDirectory() as made:
            measure_funnel(options.folder or Path(made), options.funnel, options.repeats)
        return
    with tempfile.TemporaryDirectory() as folder:
        os.environ.update(TRACKIO_DIR=folder, TRACKIO_TELEMETRY="0", HF_HUB_OFFLINE="1")
        log(options.rollouts, options.turns)
        answer = measure_server(Path(folder), options)
        measure_browser(dict(os.environ), answer, options.repeats)


def measure_funnel(folder: Path, n_rows: int, repeats: int) -> None:
    """The funnel of a step and of its run, each time computed anew, beside one count."""
    from benchmarks.table_of_rollouts import PROJECT, RUN, STEP_ROWS, write_steps

    os.environ.update(TRACKIO_DIR=str(folder), TRACKIO_TELEMETRY="0", HF_HUB_OFFLINE="1")
    n_steps = -(-n_rows // STEP_ROWS)
    if not (folder / f"{PROJECT}.db").exists():
        for first in range(0, n_steps, 100):
            write_steps(range(first, min(first + 100, n_steps)))
    from rollout_traces.inspector.pages.lane_tables import funnel
    from rollout_traces.inspector.workspace import SplitView, Workspace

    workspace = Workspace(folder=folder)
    while workspace.indexing(PROJECT, wait=60) is not None:
        pass
    workspace.refresh(PROJECT)
    view = SplitView(workspace, PROJECT, RUN, "rollout")
    step = n_steps // 2
    answer = unwrap(funnel)(view, step)
    known = sum(not stage.unobserved for stage in answer.stages)
    row(
        "rollouts, stages and reasons that are known",
        f"{n_steps * STEP_ROWS:,}, {known} of {len(answer.stages)}",
    )
    table = view.store.table()
    for what, once in (
        ("the funnel of a step and of the run", lambda: unwrap(funnel)(view, step)),
        (
            "baseline: one count of the run's rows",
            lambda: table.sql("SELECT count(*), sum(n_sampled) FROM rollouts WHERE trained"),
        ),
    ):
        took = spent(once, view.store.forget_answers, repeats)
        row(what, f"{took['cpu']:.0f} ms of processor time, {took['wall']:.0f} ms on the wall (goal 1000)")
    workspace.close()


def log(n_rollouts: int, n_turns: int) -> None:
    """One step of timed rollouts on eight engines, four of them kept."""
    import rollout_traces as rt

    rng = random.Random(0)
    conversations = [[{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]] * n_rollouts
    logger = rt.RolloutLogger(project="lanes", name="a", max_rollout_traces_per_step=4, worker="thread")
    timings = [_spans(rng, n_turns, f"engine-{at % 8}", at % 4) for at in range(n_rollouts)]
    batch = rt.RolloutBatch.from_messages(
        conversations,
        timings=timings,
        rewards=[rng.random() for _ in conversations],
        group_ids=[at // 8 for at in range(n_rollouts)],
    )
    logger.log_rollouts(batch, step=1)
    logger.finish()


def _spans(rng: random.Random, n_turns: int, engine: str, version: int) -> list[dict[str, Any]]:
    spans, at = [], 1.76e9 + rng.random() * 3
    for turn in range(n_turns):
        for kind, more in (
            ("generate", {"engine": engine, "version": version}),
            ("tool", {"name": "search"}),
        ):
            took = rng.uniform(0.1, 1.0)
            spans.append({"kind": kind, "start": at, "end": at + took, "turn": turn, **more})
            at += took
    return spans


def measure_server(folder: Path, options: argparse.Namespace) -> Any:
    """The answer for the page, first asked and asked again, beside reading the JSON alone."""
    import orjson

    from rollout_traces.inspector.pages.lanes import lanes
    from rollout_traces.inspector.workspace import SplitView, Workspace, as_json

    workspace = Workspace(folder=folder)
    workspace.refresh("lanes")
    view = SplitView(workspace, "lanes", "a", "rollout")

    def texts() -> list[str]:
        return view.store.rollouts(columns=["timings"], runs=["a"], splits=["rollout"], steps=1)[
            "timings"
        ].to_pylist()

    def nothing() -> None:
        """Nothing goes before."""

    answer = lanes(view, 1)
    n, size = len(answer.spans.lane), sum(map(len, texts()))
    row("spans, turns, their JSON", f"{n:,}, {options.rollouts * options.turns:,}, {size / 1e6:.1f} MB")
    for what, once in (
        ("server: an answer that was not given before", lambda: unwrap(lanes)(view, 1)),
        ("server: as JSON", lambda: as_json(answer)),
        ("server: the same question again", lambda: lanes(view, 1)),
        ("baseline: reading the spans' JSON alone", lambda: [orjson.loads(text) for text in texts()]),
    ):
        took = spent(once, nothing, options.repeats)
        row(what, f"{took['cpu']:.0f} ms of processor time, {took['wall']:.0f} ms on the wall")
    workspace.close()
    return answer


def measure_browser(env: dict[str, str], answer: Any, repeats: int) -> None:
    """Drawing again at another width, beside plain rectangles."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright, serving(env, SHOW, []) as address:
        system = shutil.which("chromium") or shutil.which("google-chrome")
        browser = playwright.chromium.launch(executable_path=system, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1440, "height": 900})
        page.goto(f"{address}/?project=lanes&run=a&split=rollout&step=1&tab=lanes")
        canvas = page.locator(".rt-active canvas.rt-lanes-canvas")
        canvas.wait_for(timeout=120_000)
        page.wait_for_timeout(3 * GAP)
        meter = page.context.new_cdp_session(page)
        meter.send("Performance.enable", {"timeDomain": "threadTicks"})

        def script() -> float:
            metrics = meter.send("Performance.getMetrics")["metrics"]
            return 1000 * next(each["value"] for each in metrics if each["name"] == "ScriptDuration")

        def measured(once: Any) -> float:
            before = script()
            once()
            page.wait_for_timeout(GAP)
            return script() - before

        walls: list[float] = []

        def narrower_or_wider() -> None:
            page.set_viewport_size({"width": 1400 + 20 * (len(walls) % 2), "height": 900})
            page.wait_for_timeout(GAP // 2)
            walls.append(float(canvas.get_attribute("data-drawn-in") or "nan"))

        idle = statistics.median(measured(lambda: None) for _ in range(repeats))
        drawn = statistics.median(measured(narrower_or_wider) for _ in range(repeats))
        box = canvas.bounding_box() or {"width": 1100, "height": 1200}
        n, spans = len(answer.spans.lane), answer.spans
        plain_spans = [
            [start / answer.ms for start in spans.start],
            [rollout / len(answer.rollouts) for rollout in spans.rollout],
            [ms / answer.ms for ms in spans.ms],
            [kind % 3 for kind in spans.kind],
            box["width"],
            box["height"],
        ]
        plain = statistics.median(measured(lambda: page.evaluate(PLAIN, plain_spans)) for _ in range(repeats))
        row(f"browser: drawing {n:,} spans", f"{drawn - idle:.0f} ms of processor time, {statistics.median(walls):.0f} ms on the wall (goal 300)")  # fmt: skip
        row(
            "baseline: plain rectangles, their numbers taken over included",
            f"{plain - idle:.0f} ms of processor time",
        )
        browser.close()


if __name__ == "__main__":
    main()
