"""docs/flags.md is generated from the registry: `python -m tests.flags.test_flags_page` writes it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rollout_traces.alarms.signals import FOLLOWS_IN_A_RUN
from rollout_traces.flags import REGISTRY, FlagSpec

PAGE = Path(__file__).resolve().parents[2] / "docs" / "flags.md"
FAMILIES = {
    "mask": "what is trained, against what was sampled and where the markers are",
    "text": "what was written",
    "policy": "which weights sampled the tokens, and whether the trainer sees the same tokens",
    "group": "a rollout among its group, and in the step",
}

INTRODUCTION = """# Flags

The tables are generated from the registry by `python -m tests.flags.test_flags_page`.

A flag is a named observation about one rollout: a severity (`error`: a bug in training; `warn`: worth a look;
`info`), the turn and the token range it speaks of, and one sentence with its numbers. Flags are kept in the ledger (names),
in a trace's metadata (names) and in its details (sentences).

- **All rows**: found from masks and scalars on every rollout of the step, counted as `<split>/flags/<name>_share`.
- **Traced rows**: found in decoded rollouts, counted as `<split>/flags/<name>_random_share` over those traced rows that
  were chosen uniformly at random, of which there are `<split>/flags/random_share_n`.
- **Both**: what the decoded row shows replaces what the masks alone said of it.

A flag whose inputs are missing is off and has no key; the step summary (`flags_off`) and
`rollout-traces doctor --project NAME` say what it lacks. An error opens an incident
at once; any other share when the lower end of its 95 % interval, clustered by group, passes its alert threshold at two of
three steps. An incident raises one Trackio alert, and closes after five quiet steps; `<flag>.alert_above` sets another threshold. A detector that raises costs its own flag alone and is counted.

Precision comes before recall: on healthy data no flag of severity `error` may fire.

## What is abnormal for a run

Stored flags are observations. What a list of rollouts shows, and what raises an alert, is computed from them for the
run, with its own thresholds (`flag_parameters` are stored in its config):

- **Worn by rows**: flags of severity `error` always. Any other flag unless it is *usual*: carried by more than a tenth
  of the rollouts in the run's first 20 steps. Where the flags that are left are together carried by more than a
  twentieth, the most frequent of them are usual too, until they are not. A flag that needs text is counted among kept
  rollouts that were drawn without a look at what came out (at random, or prompts by their hash). What is usual is said
  once, with its share; while an incident of it is open, its rows wear it.
- **Nested**: a flag that another one of the row explains is shown under it, at first or second hand: {causes}.
- **Of the group**: `tied_group`, `duplicate_completions` and `noise_amplified_group` are drawn at the group.

An **incident** is one open thing per flag and source:

| what | opens when |
| --- | --- |
| a flag of severity `error` | at once, from one rollout |
| any other flag | the lower end of the 95 % interval of its share (ratio estimator with groups as clusters, Student's t; not above Wilson's) is above its limit at two of the last three steps judged |
| tool errors a call, truncation, reward failures | likewise above the 95 % quantile of the shares of the 20 steps before, and a tenth of all (or half of what was usual, where that is more) above their mean |
| mismatch (mean k3 of the rollouts), upwards | at two of three steps it is 5 robust standard deviations off the line through the 20 steps before (Theil-Sen; 1.4826 MAD), and twice what it was |
| entropy (mean -log p), up or down | likewise, and by 0.3 of what it was |

A flag's limit is the one of the tables below; where the first 20 steps had more than a tenth, or the flag has none, it
is the share of those steps plus a tenth (or half of it, where that is more). A step is judged that has 20 rollouts of
5 groups; smaller ones are pooled over three. `stale` and `mixed_versions` grow while a run fills its queue, and are
judged after its first 20 steps. An incident closes after five quiet steps that have its source, and comes back as the
same one within 50 steps. `<flag>.alert_above` set to None: never.

One cause opens one incident: what an open incident explains opens none and is listed with it, also where it opened up to
three steps earlier. In a run the incident of a flag also explains: {follows}.

`alert_webhook=` (an address; off by default) gets each alert once as JSON that Slack, Discord or a plain endpoint takes:
three attempts of 5 s, 32 alerts waiting at most, no redirects. What cannot be sent is counted (`alerts_not_sent`) and
dropped. An alert holds names and numbers, never a rollout's text.

Measured on healthy runs of 100 steps by `python -m tests.alarms.healthy_runs` (real conversations, three tokenizers)
and `pytest -s tests/stories/test_quiet.py` (ten kinds of run).
"""

OWN = """## Thresholds and flags of one's own

Thresholds are set by `<flag>.<name>`, in `RolloutLogger(flag_parameters=...)` or under `stats_logger.trackio`; a name or
a value that cannot be is refused there.

```yaml
flag_parameters:
  stale.limit: 4                 # switches the flag on: it has no default
  repetition.share: 0.6
  truncated.alert_above: 0.2     # every flag has `alert_above`, a share; null: it never alerts
  retokenized.context: 6         # a flag on request is looked for once one of its thresholds is set
```

A flag of one's own is a function; its keyword-only arguments become its thresholds:

```python
from typing import Annotated

from rollout_traces.flags import Flag, Population, make_flag, population_flag


@population_flag("very_short", family="mine", severity="info", meaning="few sampled tokens", alert_above=0.2)
def very_short(
    population: Population, *, min_tokens: Annotated[int, "sampled tokens that are enough"] = 3
) -> dict[int, list[Flag]]:
    counts = population.ledger.get("n_sampled")
    return {
        row: [make_flag("very_short", f"{counts[row]} tokens were sampled.")]
        for row in range(len(counts))
        if counts[row] < min_tokens
    }
```

`row_flag` registers a function that sees one decoded rollout (`TracedRow`) and yields its flags. Flags of one's own are
looked for where they were registered: give the logger `worker="thread"`, the worker process knows the built-in
ones only.

## What to know about some of them

- `mask_leak`: a policy may write another role's markers itself. Tokens are known to be sampled by their versions, by a
  response mask that differs from the loss mask, or by rollout logprobs that are not 0, and are then no leak.
- `mask_shifted` needs both edges of a turn's loss tokens to be off in the same direction. One edge alone is no evidence:
  end markers are often left out of the loss, and a generation prompt may reach into the body.
- `nonfinite`: NaN is NaN. Unknown is what a part of a hand-over came without, a reward that is `None`, and a row that a
  numpy mask hides; components and sample metrics may be NaN where they do not apply. At unsampled tokens nothing is looked at.
- `logprob_mismatch` looks at tokens of staleness 0; where staleness is unknown it looks at all tokens.
- `prefix_broken` compares rows of one group with equal `extras["trajectory"]`, in the order of `extras["call"]`, else in
  the order handed over. Nothing is guessed from sample ids, which may repeat over the samples of a prompt.
- `template_drift` compares what comes before and after the assistant's turns with a rendering of sentinel contents.
  Keeping the thinking of earlier turns, where the template would leave it out, counts as drift.
- `no_end_marker` is off where no turn of the row ends in a special token: the template may write no end marker.
- `duplicate_completions` measures Jaccard distance on sets of token bigrams, not tokens: small vocabularies share their
  token sets without the texts being equal. Completions of fewer than 16 tokens are too short to tell.
- `dominates_update` also asks for five times a row's equal part, so that it is silent in steps of few rows.

`python -m tests.flags.planted` plants a fault for every flag in real and made-up conversations and prints what was
found; `python -m tests.flags.recall` does it in many real conversations and prints recall and false positives with three
tokenizers (calls of Llama's template have no markers: a broken one is found, where it begins is not sure);
`python -m tests.alarms.one_cause` prints the incidents that each fault opens; `python -m benchmarks.flags` prints what the flags cost.
"""


def _causes() -> str:
    of_cause: dict[str, list[str]] = {}
    for spec in REGISTRY.values():
        for cause in spec.explained_by:
            of_cause.setdefault(cause, []).append(spec.name)
    return "; ".join(f"`{cause}` explains {_listed(names)}" for cause, names in of_cause.items())


def _follows() -> str:
    return "; ".join(f"{_listed(causes)} explain `{name}`" for name, causes in FOLLOWS_IN_A_RUN.items())


def _listed(names: Sequence[str]) -> str:
    *others, last = (f"`{name}`" for name in names)
    return f"{', '.join(others)} and {last}" if others else last


def flags_page() -> str:
    """The text of docs/flags.md."""
    lines = [INTRODUCTION.replace("{causes}", _causes()).replace("{follows}", _follows())]
    for family, title in FAMILIES.items():
        lines += [
            f"## Family `{family}`: {title}\n",
            "| flag | severity | looks at | fires when | needs | thresholds | alerts above |",
            "| --- | --- | --- | --- | --- | --- | --- |",
            *(_line(spec) for spec in REGISTRY.values() if spec.family == family),
            "",
        ]
    return "\n".join([*lines, OWN])


def _line(spec: FlagSpec) -> str:
    where = "both" if spec.population and spec.row else "all rows" if spec.population else "traced rows"
    where += ", on request" if spec.on_request else ""
    where += "; training only" if spec.splits == ("rollout",) else ""
    form = spec.population or spec.row
    needs = (
        ()
        if form is None or (spec.population and spec.row and not all((form.needs, spec.row.needs)))
        else form.needs
    )
    thresholds = "<br>".join(f"`{p.name}` = {_value(p.default)}: {p.meaning}" for p in spec.parameters)
    alert = "" if spec.alert_above is None else "any" if spec.alert_above == 0 else f"{spec.alert_above:.0%}"
    cells = (
        f"`{spec.name}`", spec.severity, where, spec.meaning, ", ".join(f"`{key}`" for key in needs), thresholds, alert,
    )  # fmt: skip
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def _value(default: Any) -> str:
    if default is None:
        return "unset"
    return ", ".join(map(str, default)) if isinstance(default, tuple) else f"{default:g}"


class TestFlagsPage:
    def test_the_page_is_what_the_registry_says(self):
        assert PAGE.read_text() == flags_page()

    def test_every_built_in_flag_is_on_it(self):
        page = PAGE.read_text()
        assert all(f"| `{name}` |" in page for name, spec in REGISTRY.items() if spec.family in FAMILIES)


if __name__ == "__main__":
    PAGE.write_text(flags_page())
