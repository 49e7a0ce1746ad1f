"""docs/stats-logger.md is generated from the code: `python -m tests.test_stats_logger_page` writes it."""

from __future__ import annotations

from dataclasses import MISSING, fields
from pathlib import Path

from rollout_traces.settings.logger_options import SLIM_DENIES, variable_of
from rollout_traces.stats.config import (
    StatsLoggerConfig,
    SwanlabConfig,
    TensorBoardConfig,
    TrackioConfig,
    WandBConfig,
)
from rollout_traces.stats.tracker import ReduceType
from tests.metrics.test_metrics_page import attributes_of, escaped

PAGE = Path(__file__).resolve().parent.parent / "docs" / "stats-logger.md"

INTRODUCTION = """# Statistics of a training loop

Generated from the code by `python -m tests.test_stats_logger_page`.

`stats_tracker` replaces AReaL's `areal.utils.stats_tracker`; `StatsLogger` has the calls and the config of
AReaL's, and logs traces as well as scalars.

```python
import rollout_traces as rt
from rollout_traces import stats_tracker

logger = rt.StatsLogger("config.yaml", tokenizer=tokenizer)     # or a dict, or a dataclass
logger.log_rollout_traces(trajectories, split="rollout", global_step=step, tokenizer=tokenizer)
logger.commit(epoch, step_in_epoch, step, stats_tracker.export_all(reduce_group=group))
logger.close()
```

- **One step for scalars and traces.** `log_step(global_step)` is `max(global_step, last + 1)`, fixed by whichever
  of `log_rollout_traces` and `commit` comes first and shared by the other. A list of dicts takes consecutive
  steps. `state_dict` and `load_state_dict` carry the last step.
- **Counts** (`<key>__count`) are left out; values that are not finite are left out and counted in
  `logger.counters`.
- **Windows.** `logger.add(values)` between two commits averages; so do commits that the cadence passes over. Of
  minima, maxima, quantiles, counts and step counters the latest value is kept.
- **Cadence.** The first commit and every `every_n_steps`-th after it are logged.
- **Which keys.** `full`; `slim` (without {slim}); or patterns to keep, those with `!` in front to leave out.
- **Ranks.** Only rank 0 writes, as in AReaL: give it the rollouts of all ranks. Elsewhere no call does anything;
  rollouts given there are counted (`rollouts_left_to_rank_zero`) and said once. Where every data-parallel rank keeps
  rollouts of its own, hold a `RolloutLogger` on each instead: they share a run ([logging.md](logging.md)).
- **Nothing raises** after construction: an error costs its own tracker alone, is counted, and is said once.
- **Trackers** beside Trackio bring their own package; one that is not installed is said, with how to install it, and
  left out.

## The config section

A YAML file's, mapping's or dataclass's `stats_logger`, or the section itself; fields of the trainer's own that are
not below are passed over.

```yaml
stats_logger:
  experiment_name: gsm8k
  trial_name: run-001
  every_n_steps: 1
  trackio:
    mode: local
    max_rollout_traces_per_step: 32
```

Every field of `stats_logger.trackio` can be given as an environment variable, which wins; a list or a dict is
written as JSON.
"""

TRACKER = """
## The stats tracker

`get(name)` gives named trackers, whose name prefixes their keys; `scope(name)` nests names; `record_timing(key)`
records seconds under `timeperf/<key>` whatever the scope. `scalar(**numbers)`, `denominator(**bool_tensors)`,
`stat(denominator, reduce_type, **float_tensors)`. Tensors are reduced when they are recorded and not kept.

| reduce type | exports |
| --- | --- |
{types}

`export_all(reduce_group)` reduces over a torch.distributed group: every rank of it has to call, and gets the same,
also for keys and trackers that only some ranks have. Without a group between workers, `merge_exports(exports)` merges
what each exported: counted keys by `sum(value * count) / sum(count)`, all others by their reduce type.
"""

EXPORTED = {
    ReduceType.AVG_MIN_MAX: "`key/avg`, `key/min` and `key/max` over the denominator's tokens; the default",
    ReduceType.AVG: "the mean over the denominator's tokens",
    ReduceType.SUM: "the sum over the denominator's tokens",
    ReduceType.MIN: "the smallest value",
    ReduceType.MAX: "the largest value",
    ReduceType.SCALAR: "the mean of plain numbers, and `key__count`; refused for tensors",
}


def stats_logger_page() -> str:
    """The text of docs/stats-logger.md."""
    slim = ", ".join(f"`{pattern}`" for pattern in SLIM_DENIES)
    parts = [INTRODUCTION.format(slim=slim)]
    sections = (
        ("stats_logger", StatsLoggerConfig),
        ("stats_logger.trackio", TrackioConfig),
        ("stats_logger.wandb", WandBConfig),
        ("stats_logger.swanlab", SwanlabConfig),
        ("stats_logger.tensorboard", TensorBoardConfig),
    )
    for title, kind in sections:
        parts += [f"\n### `{title}`\n", *_table(kind)]
    types = "\n".join(f"| `{kind.name}` | {EXPORTED[kind]} |" for kind in ReduceType)
    return "\n".join(parts) + "\n" + TRACKER.format(types=types)


def meanings_of(kind: type) -> list[tuple[str, str]]:
    """The fields of a section, inherited ones first, and what they mean."""
    bases = [base for base in reversed(kind.__mro__) if "Attributes:" in (base.__doc__ or "")]
    return [found for base in bases for found in attributes_of(base)]


def _table(kind: type) -> list[str]:
    defaults = {
        item.name: item.default if item.default_factory is MISSING else item.default_factory()
        for item in fields(kind)
    }
    head = ["| field | default | meaning |", "| --- | --- | --- |"]
    if kind is TrackioConfig:
        head = ["| field | default | meaning | overridden by |", "| --- | --- | --- | --- |"]
    rows = []
    for name, meaning in meanings_of(kind):
        default = defaults[name]
        shown = f"`{default!r}`" if isinstance(default, (str, int, float, list, dict, type(None))) else ""
        row = f"| `{name}` | {shown} | {escaped(meaning)} |"
        if kind is TrackioConfig:
            row += f" `{variable_of(name)}` |"
        rows.append(row)
    return head + rows


class TestStatsLoggerPage:
    def test_the_page_is_what_the_code_says(self):
        assert PAGE.read_text() == stats_logger_page()

    def test_every_field_of_every_section_has_a_meaning(self):
        for kind in (StatsLoggerConfig, TrackioConfig, WandBConfig, SwanlabConfig, TensorBoardConfig):
            assert [name for name, _ in meanings_of(kind)] == [item.name for item in fields(kind)]


if __name__ == "__main__":
    PAGE.write_text(stats_logger_page())
