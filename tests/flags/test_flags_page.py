"""docs/flags.md is generated from the registry: `python -m tests.flags.test_flags_page` writes it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

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
`rollout-traces doctor --project NAME` say what it lacks. An error raises an
alert from its first rollout on; any other flag when its share moves. A detector that raises costs its own flag alone and is counted.

Precision comes before recall: on healthy data no flag of severity `error` may fire.

## What is abnormal for a run

Stored flags are observations. What a list of rollouts shows, and what raises an alert, is computed from them for the
run, with its own thresholds (`flag_parameters` are stored in its config):

- **Worn by rows**: flags of severity `error` always. Any other flag unless it is *usual*: carried by more than a tenth
  of the rollouts in the run's first 20 steps. Where the flags that are left are together carried by more than a
  twentieth, the most frequent of them are usual too, until they are not. A flag that needs text is counted among kept
  rollouts that were drawn without a look at what came out (at random, or prompts by their hash). What is usual is said
  once, with its share; where the detector finds that it rose, for all rows or those of a source, its rows wear it.
- **Nested**: a flag that another one of the row explains is shown under it, at first or second hand: {causes}.
- **Of the group**: `tied_group`, `duplicate_completions` and `noise_amplified_group` are drawn at the group.

An **incident** is what `explain` says of the run as a warning or an error (docs/analysis.md): a movement of a flag's share, of
any other column or of a logged scalar, of its smallest part, with what moved along; and every flag of severity `error`,
from its first rollout on until it was away for five steps. Run lists them, the bar shows those that are in force at the newest
step; nothing is an incident by a rule of its own.

An **alert** comes while the run goes. The worker judges a closed step, and what a trainer logs, against the last 64 steps
with the noise, the sizes and the control of false discoveries of `explain`: all rollouts together, from the twelfth step
on (of an evaluation its twelfth time: what falls sooner stands on Run, in the bar and in `explain`, which look from six on, and
raises no alert until as many as twelve are known), what began within the last eight steps and goes on. A series that raised an alert begins anew, so that what lasts is said
once; that it goes back is no alert. Which part it is, and what shows in the whole run alone, is left to `explain`. A flag of
severity `error` raises one at once, and again after twelve steps without it. A logged number that is NaN or infinite for the first
time, after at least four finite values, raises one at once, an error. How sure a logged number is, only its steps say: it is looked at
from the 23rd step on, once it lies twice as far from the steps before it as within the trail, and further off than it goes from one step to the next, and
again for up to 32 steps while it stays off, until `explain` would be sure. A positive number that is off at its newest step alone, by less than ten times, waits
for the next step, as the time of a step that writes a checkpoint does. The first alert of a number may be a warning of what the whole
run shows to be an error. `<flag>.alert_above` sets a share that a rise has
to pass to be an alert or incident; None: never. `python -m benchmarks.online` prints what judging a step costs.

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
  truncated.alert_above: 0.2     # every flag has `alert_above`, a share that a rise has to pass; null: it never alerts
  retokenized.context: 6         # a flag on request is looked for once one of its thresholds is set
```

A flag of one's own is a function; its keyword-only arguments become its thresholds:

```python
from collections.abc import Iterator
from typing import Annotated

from rollout_traces.flags import Flag, Population, make_flag, population_flag


@population_flag(severity="info", meaning="few sampled tokens")
def very_short(
    population: Population, *, min_tokens: Annotated[int, "sampled tokens that are enough"] = 3
) -> Iterator[tuple[int, Flag]]:
    for row, n in enumerate(population.ledger.get("n_sampled")):
        if n < min_tokens:
            yield row, make_flag("very_short", f"{n} tokens were sampled.")
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


def _listed(names: Sequence[str]) -> str:
    *others, last = (f"`{name}`" for name in names)
    return f"{', '.join(others)} and {last}" if others else last


def flags_page() -> str:
    """The text of docs/flags.md."""
    lines = [INTRODUCTION.replace("{causes}", _causes())]
    for family, title in FAMILIES.items():
        lines += [
            f"## Family `{family}`: {title}\n",
            "| flag | severity | looks at | fires when | needs | thresholds |",
            "| --- | --- | --- | --- | --- | --- |",
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
    cells = (
        f"`{spec.name}`", spec.severity, where, spec.meaning, ", ".join(f"`{key}`" for key in needs), thresholds,
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
