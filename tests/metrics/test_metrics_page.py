"""docs/metrics.md is generated from the code: `python -m tests.metrics.test_metrics_page` writes it."""

from __future__ import annotations

from pathlib import Path

from rollout_traces.batch import SPLITS
from rollout_traces.metrics import BUILT_IN, FAMILIES, Family
from rollout_traces.metrics.histograms import HISTOGRAMS
from rollout_traces.metrics.repetition import WINDOW
from rollout_traces.settings.run_settings import CONFIG_KEY, RunSettings

PAGE = Path(__file__).resolve().parents[2] / "docs" / "metrics.md"

INTRODUCTION = """# Metrics of a step

Generated from the code by `python -m tests.metrics.test_metrics_page`.

Every metric speaks of **all** rollouts of a step and split that were handed over, traced or not, discarded
ones included. Keys start with {splits}. They are logged at the same step as the traces.

```python
import rollout_traces as rt

rt.metrics.rollout_metrics(batch)                              # the default set, alone, without a logger
rt.metrics.rollout_metrics(batch, keys=["default", "group/pass@*", "!advantage/*"])
rt.metrics.missing_inputs(batch)                               # what is off, and what it lacks
```

`RolloutLogger(metric_keys=...)`, and `metric_keys` under `stats_logger.trackio`, take the same: `default`, `full`, or
patterns, those with `!` in front to leave out. A pattern that matches no metric is refused.

On Trackio's own page, filtered to `rollout/group` (the demo, 23 steps; the faint lines are not smoothed):

![Group metrics of the demo on Trackio's Metrics page](images/trackio-metrics.png)

## Conventions

- `std` is the population standard deviation; quantiles are by linear interpolation at `q(n - 1)`.
- Empty input gives no key, never 0. Values that are NaN or infinite are left out of an aggregate and counted
  under `<quantity>_nonfinite`, a key that is absent when there are none.
- What only decoded text tells (tools, thinking) is known for traced rollouts. Where all were decoded the keys
  are plain; otherwise they are computed on the rollouts that chance selected, their keys end in
  `_random_share`, and the number of those rollouts stands beside them.
- With `sources`, and at most eight of them, every metric that needs only the ledger also stands under
  `source/<name>/...`; the same metrics of what was left out stand under `discarded/...`.
- A metric that fails costs its own keys alone: `metrics_failed` is 1 and the log says why.
- Per-token floats come through the spool with float16 precision, about three decimal digits; scalars of a rollout
  are exact.
- Histograms: {histograms}.

**Mismatch.** With d = prox less rollout logprob on sampled tokens, clamped to +-20, and w = e^d: `k1` =
mean(-d), an estimate of KL(rollout || train) that can cancel; `k3` = mean(e^d - d - 1), never negative;
`prob_abs_diff` = mean |e^prox - e^rollout|; `mult_prob_error` = mean e^|d| (1.05 is where people worry);
`sequence_log_ratio_*` = the sum of d of a rollout; `ess_share` = (sum w)^2 / (N sum w^2), per token and, with
w = e^(sum of d), per rollout; `chi2` = mean(w^2) - 1. By staleness the sequence measures sum a rollout's
tokens of that staleness.

**Identities.** At staleness 0 both engines hold the same weights: `identity/mean_ratio` should be 1 and
`identity/nll_minus_entropy` 0. A mean ratio away from 1 with a negative `mismatch/k1` is what logprobs logged
with another temperature or top-p scaling look like.

**Diversity.** Inside groups of two or more, on the first 512 sampled tokens of each rollout. `distinct_n` =
different n-grams / n-grams of the group, none across rollouts; `jaccard_distance` = mean over pairs of
1 - |A and B| / |A or B| of their token sets. Mean over groups; `_micro` weighs groups by their size.

**Ties.** A group of two or more is tied when its rewards are equal within 1e-6 x max(1, |reward|). It counts
under the first cause that holds: all_failed_reward, all_truncated, all_unparsed, identical_completions,
all_best, all_worst, other. Best and worst are the ends of the declared reward range, else of the step's
rewards, or all successes and no success. `group/zero_advantage_share` (max |A| <= 1e-8) is another fact.

**Repetition.** A period of at most 64 tokens fills over half of the last {window} sampled tokens without a break.

**Update.** `u_t = |A_t| * w_t * (1 - p_t)` over loss tokens; w is the loss weight times e^d where they are
known, p the probability under prox logprobs where known, else under the rollout's. A rollout's share is its sum
over the step's; discarded rollouts carry nothing. Importance weights that the loss does not use are counted all
the same where both logprobs are given.

## What the run declares

Stored in the run's config under `{config_key}`, where the inspector reads ranges from.

| setting | meaning |
| --- | --- |
{settings}

## Keys

*Default* marks what is logged unless other patterns are asked for. *Reads*: `ledger` = one row per rollout is
enough; `tokens` = the population's per-token arrays are needed. *Needs*: without these columns, tracks or
settings the metric is off, which `missing_inputs` says.
"""


def metrics_page() -> str:
    """The text of docs/metrics.md."""
    introduction = INTRODUCTION.format(
        splits=" or ".join(f"`{split}/`" for split in SPLITS),
        histograms=", ".join(f"`{key}` of the ledger's `{column}`" for key, column in HISTOGRAMS.items()),
        window=WINDOW,
        config_key=CONFIG_KEY,
        settings="\n".join(f"| `{name}` | {meaning} |" for name, meaning in attributes_of(RunSettings)),
    )
    header = ["| key | meaning | default | reads | needs | source |", "| --- | --- | --- | --- | --- | --- |"]
    rows = [row for spec in sorted(FAMILIES.values(), key=_chapter) for row in _rows(spec)]
    return "\n".join([introduction, *header, *rows]) + "\n"


def _chapter(spec: Family) -> int:
    modules = [module.__name__ for module in BUILT_IN]
    return modules.index(spec.function.__module__)


def _rows(spec: Family) -> list[str]:
    needs = ", ".join(f"`{name}`" for name in spec.needs)
    return [
        f"| `{escaped(key.pattern)}` | {escaped(key.meaning)} | {'default' if key.default else ''} | {spec.reads} "
        f"| {needs} | {escaped(spec.source)} |"
        for key in spec.keys
    ]


def escaped(text: str) -> str:
    return text.replace("|", "\\|")


def attributes_of(kind: type) -> list[tuple[str, str]]:
    """The names and meanings that a class's docstring lists under Attributes."""
    lines = (kind.__doc__ or "").split("Attributes:")[1].splitlines()
    found: list[tuple[str, str]] = []
    for line in (line.strip() for line in lines):
        name, _, meaning = line.partition(": ")
        if name in kind.__dataclass_fields__ and meaning:
            found.append((name, meaning))
        elif line and found:
            found[-1] = (found[-1][0], f"{found[-1][1]} {line}")
    return found


class TestMetricsPage:
    def test_the_page_is_what_the_code_says(self):
        assert PAGE.read_text() == metrics_page()

    def test_every_setting_stands_in_it(self):
        assert [name for name, _ in attributes_of(RunSettings)] == list(RunSettings.__dataclass_fields__)

    def test_every_family_has_a_formula_a_source_and_keys(self):
        for spec in FAMILIES.values():
            assert spec.function.__doc__, spec.name
            assert spec.source and spec.keys, spec.name


if __name__ == "__main__":
    PAGE.write_text(metrics_page())
