"""docs/metrics.md is generated from the code: `python -m tests.metrics.test_metrics_page` writes it."""

from __future__ import annotations

from pathlib import Path

from rollout_traces.metrics import BUILT_IN, FAMILIES, Family
from rollout_traces.metrics.compute import HISTOGRAMS, PER_EPISODE
from rollout_traces.metrics.diversity import COMPRESSED_FROM
from rollout_traces.metrics.loops import WINDOW
from rollout_traces.model.batch import SPLITS
from rollout_traces.settings.run_settings import CONFIG_KEY, RunSettings
from rollout_traces.sink.trackio_sink import BINS

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
- Empty input gives no key, never 0.
- **Not given is not NaN.** None in a list, what a numpy mask hides over a whole row, and a column that a part of
  the step came without are unknown: left out, and counted nowhere. NaN and infinities that were given are left
  out and counted under `<quantity>_nonfinite`, a key that is absent when there are none. A ledger read back keeps
  no difference between the two: there NaN is unknown.
- **Where known is decided per row.** A row's policy logprobs are its prox logprobs where it came with them, else
  its rollout logprobs (update shares, `ref/*`, `advantage/logprob_covariance`); advantages are the tokens' own,
  else the row's; loss weights and importance weights that a row came without are 1; the response mask is the
  given one, else versions >= 0 (unless no token of the part has a negative one and the loss leaves tokens out),
  else the loss mask; `nll_estimate` speaks of the rows without entropies.
- **Which rows count.** Discarded rows count in every metric but `update/*` and the loss tokens. Rows whose tokens
  were left behind are in no metric of tokens. Rewards whose function failed are left out of `reward/*`; a status
  that is not given is ok. Shares of stop reasons are over the rows with a known one, shares of groups over groups
  of two or more, `group/solve_*` over those whose successes are all known, `clip_share_*` and `importance/*` over
  tokens of which the ratio is known.
- **Rows or episodes.** Rows that share `episode_ids` are one run of an environment. It counts once, by its first
  row that left no other, in: {per_episode}. There its sampled tokens are summed. Everything else counts rows:
  rewards and their components, lengths, turns, stop reasons, versions, advantages, updates, counts, and all
  metrics of tokens.
- **Successes** are the trainer's; for rows that came without `successes`, `reward >= success_threshold` where
  that is declared and the reward is known. None in a given list stays unknown.
- **Staleness** below 0 is a token ahead of the trainer: it counts with its sign in mean and max, in
  `staleness/ahead_share`, and in no lag and no mismatch by staleness.
- **Component shares** take the declared weights, else those that reproduce every reward of the step and no others
  do; without either there is no key. A share is the sum over groups of a group's covariance of weighted component and
  reward, over the sum of their variances of the reward: every group weighs the same, whatever its size, and groups
  whose rewards are all equal are left out.
- What only decoded text tells (tools, thinking) is known for traced rollouts. Where all were decoded the keys
  are plain; otherwise they are computed on the rollouts that chance selected, their keys end in
  `_of_random`, and the number of those rollouts is under `.../of_random_n`.
- With `sources`, and two to eight of them, every metric that needs only the ledger is also given under
  `source/<name>/...`, but `discarded/*` and `update/*`, which are of the whole step; the same metrics of what was left
  out under `discarded/...`. Best, worst and noise are
  measured against the reward range of the whole step there too.
- Names from the data are cleaned for keys (letters, digits, `_ . @ ^ + = -`, 48 characters). Where two names
  become equal, the one that is not that name itself ends in four hex digits, and the step's summary says so.
- A metric that was renamed keeps its former key as well for one release.
- `pass@k` and `pass^k` are over groups with k or more known successes; where a k leaves groups out,
  `group/pass_<k>_n` says how many are behind it.
- `group/reward_corr_<what>` pools the deviations from each group's mean. Values of a group that are equal by the
  rule for ties (below; smallest and largest of that group) deviate by 0, of the reward as of the other quantity; where
  all of either do, nothing is correlated and there is no key. The definition leaves this open: a rule over all groups
  at once would let one group of large rewards hide the others, or make much of differences that are called ties.
- Standard errors cluster rollouts by group: of G groups with a finite value the variance is multiplied by G/(G - 1); of
  fewer than two there is none. Of equally common answers in `group/maj@all` each is as likely.
- What compares rollouts of a group takes groups of two or more known values: `group/reward_std_mean`,
  `group/noise_amplified_share`, `group/length_*`, `group/<...>_gini_mean`, `group/maj@all` (parsed answers of known success) and
  `diversity/unique_answer_share` (parsed answers). Gini coefficients of n values are multiplied by n/(n - 1), so that 1
  is reached; groups with a negative value, or a sum of 0, have none.
- A metric that fails costs its own keys alone: `metrics_failed` is 1 and the log says why.
- Per-token floats come through the spool with float16 precision, about three decimal digits, and float32 where a
  call holds a finite value beyond float16; scalars of a rollout are exact.
- Histograms: {histograms}; at
  most {bins} bins, and no more than values.

Health, `rollout-traces stats` and the metrics above are one thing: what a step logged is shown under its own key,
and what a run does not log is computed from the ledger by the same functions.

A second opinion in `tests/oracle`, plain loops that import nothing of the package's metrics, flags or ledger,
agrees on every value of random steps: 20,000 of them in each test run, 500,000 in the slow one.

**Mismatch.** With d = prox less rollout logprob on sampled tokens, clamped to +-20, and w = e^d: `k1` =
mean(-d), an estimate of KL(rollout || train) that can cancel; `k3` = mean(e^d - d - 1), never negative;
`prob_abs_diff` = mean |e^prox - e^rollout|; `mult_prob_error` = mean e^|d| (1.05 is where people worry);
`sequence_log_ratio_{{mean,min,max}}` = the sum of d of a rollout, signed, `_abs_max` the largest by size; `ess_share` = (sum w)^2 / (N sum w^2), per token and, with
w = e^(sum of d), per rollout; `chi2` = mean(w^2) - 1. By staleness the sequence measures sum a rollout's
tokens of that staleness.

**Identities.** At staleness 0 both engines hold the same weights: `identity/mean_ratio` should be 1 and
`identity/nll_minus_entropy` 0. A mean ratio away from 1 with a negative `mismatch/k1` is what logprobs logged
with another temperature or top-p scaling look like.

**Diversity.** Inside groups of two or more, on the first 512 sampled tokens of each rollout. `distinct_n` =
different n-grams / n-grams of the group, none across rollouts; `jaccard_distance` = mean over pairs of
1 - |A and B| / |A or B| of their token sets. Mean over groups; `_micro` weighs groups by their size. `compression_ratio`
is of single rollouts, those of {compressed_from} sampled tokens or more: the ids as little-endian integers of four bytes, one behind the
other, over their length after `zlib.compress` as it is (level 6, a header of two bytes and a checksum); mean over rollouts.

**Ties.** A group of two or more is tied when its rewards are equal within 1e-6 x max(1, |reward|). Rows whose
reward function failed are left out of the comparison; a group in which it failed for all is tied whatever rewards it
was given, which say nothing, and one with another unknown reward is not. It counts under the first cause that holds: all_failed_reward, all_truncated, all_unparsed, identical_completions,
all_best, all_worst, other. Best and worst are the ends of the declared reward range, else of the step's
rewards, or all successes and no success. `group/zero_advantage_share` (max |A| <= 1e-8) is another fact.

**Repetition.** A period of at most 64 tokens fills over half of the last {window} sampled tokens without a break.

**Update.** `u_t = |A_t| * w_t * (1 - p_t)` over loss tokens; w is the loss weight times e^d where they are
known, p the probability under prox logprobs where known, else under the rollout's. A rollout's share is its sum
over the step's; discarded rollouts carry nothing, and one that came without advantages or logprobs is unknown. Importance weights that the loss does not use are counted all
the same where both logprobs are given.

## What the run declares

`RolloutLogger(reward_range=(0, 1), run_settings={{"clip_low": 0.2, "clip_high": 0.28, "tools": ["search"]}})`, the same keys
under `stats_logger.trackio`, or `ROLLOUT_TRACES_RUN_SETTINGS` as JSON for hooks. Stored in the run's config under
`rollout_traces`, where the inspector reads ranges from.

| setting | meaning |
| --- | --- |
{settings}

## Keys

*Default* marks what is logged unless other patterns are asked for. *Reads*: `ledger` = one row per rollout is
enough; `tokens` = the population's per-token arrays are needed. *Needs*: without these columns, tracks or
settings the metric is off, which `missing_inputs` says. `tool_use` is the tool calls found in decoded rollouts.
"""


def metrics_page() -> str:
    """The text of docs/metrics.md."""
    introduction = INTRODUCTION.format(
        splits=" or ".join(f"`{split}/`" for split in SPLITS),
        bins=BINS,
        histograms=", ".join(f"`{key}` of the ledger's `{column}`" for key, column in HISTOGRAMS.items()),
        window=WINDOW,
        compressed_from=COMPRESSED_FROM,
        per_episode=", ".join(f"`{pattern}`" for pattern in _per_episode()),
        config_key=CONFIG_KEY,
        settings="\n".join(f"| `{name}` | {meaning} |" for name, meaning in attributes_of(RunSettings)),
    )
    header = ["| key | meaning | default | reads | needs | source |", "| --- | --- | --- | --- | --- | --- |"]
    rows = [row for spec in sorted(FAMILIES.values(), key=_chapter) for row in _rows(spec)]
    return "\n".join([introduction, *header, *rows]) + "\n"


def _per_episode() -> list[str]:
    return [key.pattern for name in FAMILIES if name in PER_EPISODE for key in FAMILIES[name].keys]


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
    lines = (kind.__doc__ or "").split("Attributes:")[1].split("Raises:")[0].splitlines()
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
