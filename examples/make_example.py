"""Train a troubled run with `tiny_grpo.py` and write the export that `rollout-traces show --example` opens."""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from rollout_traces.store.export_source import METRICS

FOLDER = Path(__file__).resolve().parents[1] / "rollout_traces" / "example_run"
TRAINING = Path(__file__).resolve().with_name("tiny_grpo.py")
PROJECT, RUN = "tiny-grpo", "troubled"
OPTIONS = ("--project", PROJECT, "--name", RUN, "--trouble", "--max-rollout-traces-per-step", "12")
OF_THE_MACHINE = ("time/step", "timing/")
"""Beginnings of scalars and columns that say how fast the machine was, which is no part of the story; spans stay."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where to (default: %(default)s)")
    parser.add_argument("--steps", default="40", help="GRPO steps (default: %(default)s)")
    parser.add_argument("--warmup-steps", default="600", help="most supervised steps (default: %(default)s)")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as home:
        os.environ["TRACKIO_DIR"] = home  # before Trackio is imported
        from rollout_traces import open_store
        from rollout_traces.export.partitioned import export_partitioned

        steps = ("--steps", args.steps, "--warmup-steps", args.warmup_steps)
        subprocess.run([sys.executable, str(TRAINING), *OPTIONS, *steps], check=True)
        shutil.rmtree(args.folder, ignore_errors=True)
        n = export_partitioned(open_store(PROJECT), args.folder, partition_by=("run",), tokens=True)
    make_small(args.folder)
    size = sum(path.stat().st_size for path in args.folder.rglob("*") if path.is_file())
    print(f"{args.folder}: {n} rollouts, {size / 1e6:.2f} MB")


def make_small(folder: Path) -> None:
    """Pack an export as tightly as parquet allows, without what is of the machine alone."""
    for path in folder.rglob("*.parquet"):
        table = pq.ParquetFile(path).read()
        table = table.drop_columns([name for name in table.column_names if name.startswith(OF_THE_MACHINE)])
        tight = {"compression": "brotli", "compression_level": 11, "use_dictionary": False}
        pq.write_table(table, path, row_group_size=len(table), **tight)
    with pa.OSFile(str(folder / METRICS)) as file:
        scalars = pa.ipc.open_file(file).read_all()
    told = [orjson.loads(text) for text in scalars["metrics"].to_pylist()]
    kept = [
        orjson.dumps({k: v for k, v in each.items() if not k.startswith(OF_THE_MACHINE)}).decode()
        for each in told
    ]
    at = scalars.column_names.index("metrics")
    scalars = scalars.set_column(at, "metrics", pa.array(kept, pa.string()))
    options = pa.ipc.IpcWriteOptions(compression=pa.Codec("zstd", 19))
    with (
        pa.OSFile(str(folder / METRICS), "wb") as file,
        pa.ipc.new_file(file, scalars.schema, options=options) as out,
    ):
        out.write_table(scalars)


if __name__ == "__main__":
    main()
