"""How the answers do on perturbations drawn anew: recall, onset, precision, nesting, silence, the cap.

python -m benchmarks.answers --seeds 300
python -m benchmarks.answers --first 4711 --seeds 1 --json one.json
"""

from __future__ import annotations

import argparse
import importlib
import json
import multiprocessing
import secrets
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from tests.perturbations.plot import recall_plot
from tests.perturbations.scores import by_size, groups_table, table, worst
from tests.perturbations.spec import HELD_OUT, WORLDS
from tests.perturbations.trying import try_seed

EVERY = 4
"""One seed in so many is also asked at two caps."""


def answer_of(name: str) -> Any:
    """The function that `module:function` names."""
    module, _, function = name.partition(":")
    return getattr(importlib.import_module(module), function)


def tried(seed: int, *, worlds: Sequence[str], answers: str, healthy: bool) -> dict[str, Any]:
    """One seed, in a process of its own."""
    return try_seed(seed, worlds, answer_of(answers), healthy=healthy, capped=seed % EVERY == 0)


def printed(records: Sequence[dict[str, Any]], many: int) -> None:
    """Prints the scores, recall by size and by kind, and the worst failures."""
    print(table(records))
    print(f"\n{'size':>12} {'planted':>8} {'recall':>8} {'any rank':>9} {'oracle':>8}")
    for name, n, recall, anywhere, oracle in by_size(records):
        print(f"{name:>12} {n:8d} {_share(recall):>8} {_share(anywhere):>9} {_share(oracle):>8}")
    kinds = {
        "by world": lambda p: p["world"],
        "by shape": lambda p: "carriers" if p["carriers"] else p["shape"],
        "by part": lambda p: p["part"][0][0] if p["part"] else "all rows",
        "by what is changed": lambda p: (
            p["changes"][0]["node"].split()[0] + (" (evaluation)" if p["split"] != "rollout" else "")
        ),
        "by how many at once": lambda p: str(p["many"]),
    }
    for title, key in kinds.items():
        print(f"\nsize 8 or more, {title:28} planted   recall   oracle")
        for name, n, recall, oracle in groups_table(records, key):
            print(f"  {name:42} {n:7d} {_share(recall):>8} {_share(oracle):>8}")
    print(f"\nThe {many} worst:")
    for line in worst(records, many):
        print(f"  {line}")


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def main() -> None:
    """Draws seeds, tries the answers, prints the scores."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=40, help="how many")
    parser.add_argument("--first", type=int, help="the first of them; drawn where it is not given")
    parser.add_argument("--worlds", nargs="*", help=f"of {', '.join(WORLDS)}")
    parser.add_argument(
        "--held-out", action="store_true", help=f"the held-out worlds alone: {', '.join(HELD_OUT)}"
    )
    parser.add_argument("--answers", default="rollout_traces.analysis:diagnose", help="module:function")
    parser.add_argument("--no-healthy", action="store_true", help="leave healthy runs out")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--worst", type=int, default=10)
    parser.add_argument("--json", type=Path, help="all perturbations and entries")
    parser.add_argument("--plot", type=Path, help="recall by size, as SVG")
    asked = parser.parse_args()
    worlds = list(HELD_OUT) if asked.held_out else asked.worlds or list(WORLDS)
    first = asked.first if asked.first is not None else secrets.randbelow(10**6)
    seeds = range(first, first + asked.seeds)
    print(
        f"seeds {first} to {first + asked.seeds - 1} (--first {first} --seeds {asked.seeds}), worlds: {', '.join(worlds)}"
    )
    work = partial(tried, worlds=worlds, answers=asked.answers, healthy=not asked.no_healthy)
    began = time.monotonic()
    if asked.processes > 1:
        with multiprocessing.get_context("spawn").Pool(asked.processes) as pool:
            records = list(pool.imap_unordered(work, seeds))
        records.sort(key=lambda r: r["seed"])
    else:
        records = [work(seed) for seed in seeds]
    print(f"{len(records)} seeds in {time.monotonic() - began:.0f} s\n")
    if asked.json:
        asked.json.write_text(json.dumps(records, default=float, ensure_ascii=False, indent=1), "utf-8")
    if asked.plot:
        asked.plot.write_text(recall_plot(records), "utf-8")
    printed(records, asked.worst)


if __name__ == "__main__":
    main()
