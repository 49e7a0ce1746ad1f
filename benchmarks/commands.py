"""What a command takes in a fresh process: `python -m benchmarks.commands [--pairs 7]`.

`--help`, `list` and `stats` of the example run, and `show --example` until its page is drawn in headless Chromium. The
baseline of the same run, in turns: an interpreter that imports what every command reads with (duckdb, pyarrow, numpy,
typer, rich). With bytecode, as an installation has it: it is written by a first round that is not counted.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

from rollout_traces.cli.show import example_home

COMMAND = (str(Path(sys.executable).with_name("rollout-traces")),)
LIBRARIES = (sys.executable, "-c", "import duckdb, numpy, pyarrow, rich.table, typer")
CURVE, VERDICT = "[data-testid=run-card] svg", "[data-testid=run-verdict]"


def main() -> None:
    """Prints seconds of processor time and on the wall, medians over the pairs, and their ratio to the baseline."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=7)
    pairs = parser.parse_args().pairs
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    with example_home() as project:
        timed = {
            "the libraries alone": LIBRARIES,
            "--help": (*COMMAND, "--help"),
            "list": (*COMMAND, "list", "-p", project),
            "stats": (*COMMAND, "stats", "-p", project),
        }
        rounds = [{name: seconds_of(command) for name, command in timed.items()} for _ in range(pairs + 1)]
    baseline = statistics.median(taken["the libraries alone"][0] for taken in rounds[1:])
    print(f"{'':<24}{'processor':>10}{'wall':>8}{'ratio':>8}")
    for name in timed:
        cpu, wall = (statistics.median(taken[name][which] for taken in rounds[1:]) for which in (0, 1))
        print(f"{name:<24}{cpu:>8.2f} s{wall:>6.2f} s{cpu / baseline:>8.2f}")
    drawn = [seconds_until_drawn() for _ in range(4)][1:]
    curve, verdict = (statistics.median(taken) for taken in zip(*drawn, strict=True))
    print(
        f"show --example: its first curve after {curve:.1f} s on the wall, its verdict after {verdict:.1f} s"
    )


def seconds_of(command: tuple[str, ...]) -> tuple[float, float]:
    """Seconds of processor time and on the wall of a command."""
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    wall, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, wall


def seconds_until_drawn() -> tuple[float, float]:
    """Seconds from the command to the first curve and the verdict of the example, the browser started before."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"])
        page = browser.new_page()
        start = time.perf_counter()
        shown = subprocess.Popen(
            (*COMMAND, "show", "--example", "--no-browser", "--no-token", "--port", "7869"),
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            assert shown.stdout is not None
            with closing(shown.stdout) as printed:
                address = next(word for line in printed for word in line.split() if word.startswith("http"))
                page.goto(address)
                page.wait_for_selector(CURVE)
                curve = time.perf_counter() - start
                page.wait_for_selector(VERDICT)
                verdict = time.perf_counter() - start
        finally:
            shown.terminate()
            shown.wait()
            browser.close()
    return curve, verdict


if __name__ == "__main__":
    main()
