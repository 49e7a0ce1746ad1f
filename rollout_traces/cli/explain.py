"""`rollout-traces explain`: what changed in a run, at a step, or between two sets of rollouts."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rollout_traces.cli import options
from rollout_traces.cli.printing import SEVERITIES, p_text, print_json, print_table, sentence
from rollout_traces.errors import ConfigError
from rollout_traces.model.text import counted, quoted, step_range

if TYPE_CHECKING:
    from rollout_traces.analysis import Diagnosis, Explanation, Finding, RunReport, Selection
    from rollout_traces.store import Store
    from rollout_traces.store.tables import Table

MOST_LINKS = 5
"""Rollouts named in a line."""
MOST_SHOWN, MOST_DOUBTFUL = 10, 3
"""Entries that are printed where there are no more warnings and errors, and of them those that may be chance."""


def explain(
    run: options.OneRun = None,
    *,
    source: options.From,
    step: int | None = None,
    against: str | None = None,
    steps: str | None = None,
    where: Annotated[str | None, typer.Option("-w", "--where")] = None,
    split: options.OneSplit = "rollout",
    as_json: options.AsJson = False,
) -> None:
    """Explain a run: what is wrong, since when and for whom; or a step, or one set of rollouts against another.

    Example: rollout-traces explain my-run --step 85

    Example: rollout-traces explain my-run --where "source = 'math'" --step 85

    Args:
        step: This step against the ten before it.
        against: What to compare with: another run, steps such as 10:20, or a split of the same run.
        where: Only these rollouts, in the query language. Alone: they against the rest; with --step, --steps or
            --against: both sides are narrowed to them.
        steps: Steps of the run, such as 10:20.
    """
    from rollout_traces.analysis import Selection, diagnose
    from rollout_traces.analysis import explain as explain_selections
    from rollout_traces.analysis.runs import settings_sentences
    from rollout_traces.analysis.selections import narrowed

    store = source.open()
    name = options.run_name(store, run)
    options.check_step(store, name, split, step)
    table = store.table()
    if step is None and steps is None and against is None and where is None:
        report = diagnose(table, name, split)
        settings = settings_sentences(store, name)
        if as_json:
            print_json({"settings": settings, **plain_report(report)})
        else:
            print_report(report, settings)
        return
    between = (step, step) if step is not None else step_range(steps)
    a = Selection(name, split, between)
    alone = step is None and steps is None and against is None
    b = other_side(store, a, against) if against is not None else None
    if where is not None:
        condition = store.sql_condition(where)
        a, rest = narrowed(a, where, condition)
        b = rest if alone else narrowed(b, where, condition)[0] if b is not None else None
    if b is None and between[0] is None:
        raise ConfigError("--steps without a first step has nothing before it; name one, or give --against.")
    in_force = diagnose(table, name, split).in_force(*between) if b is None else []
    found = explain_selections(table, a, b)
    if as_json:
        print_json({**asdict(found), "in_force": [plain_diagnosis(d) for d in in_force]})
        return
    if against is not None and b is not None and b.run != a.run:
        print_config(store, name, str(b.run))
        typer.echo(sentence(f"What changed is read from {quoted(b.run)} to {quoted(name)}."))
    print_explanation(found, in_force, short_links(table, found))


def other_side(store: Store, a: Selection, text: str) -> Selection:
    """Reads what `--against` names: a run, a range of steps, or a split."""
    names = {info.name for info in store.runs()} | {info.id for info in store.runs()}
    if text in names:
        return replace(a, run=store.run(text).name)
    if a.run is not None and text in store.splits(a.run):
        return replace(a, split=text)
    if set(text) <= set("0123456789:") and text.strip(":"):
        return replace(a, steps=step_range(text))
    raise ConfigError(
        f"--against {text!r}: no such run or split, and no range of steps. Runs: {', '.join(sorted(n.name for n in store.runs()))}."
    )


def print_report(report: RunReport, settings: Sequence[str] = ()) -> None:
    """Prints the settings that are new, the diagnoses of a run, and what is unobserved."""
    typer.secho(
        f"{report.run}, {report.split}: {counted(report.n_rows, 'rollout')} in {counted(report.n_steps, 'step')}",
        bold=True,
    )
    for remark in report.remarks:
        typer.echo(remark)
    for setting in settings:
        typer.echo(typer.style(" info ", fg="blue") + sentence(setting))
    if report.is_looked_at or report.diagnoses:
        _print_diagnoses(report.diagnoses, "Nothing stands out.")
    for problem in report.problems:
        typer.echo(f"left out, because it raised: {sentence(problem)}")
    if report.unobserved:
        typer.secho("\nUnobserved", bold=True)
        for missing in report.unobserved:
            typer.echo(f"  {missing}")


def _print_diagnoses(diagnoses: Sequence[Diagnosis], nothing: str) -> None:
    if all(d.severity == "info" for d in diagnoses):
        typer.echo("No warning; what follows may be learning, settings or chance." if diagnoses else nothing)
    shown = unfolded(diagnoses)
    for d in shown:
        typer.echo(typer.style(f"{d.severity:>5} ", fg=SEVERITIES[d.severity]) + sentence(d.sentence))
        if d.advice:
            typer.echo(f"      {d.advice}")
        if d.flips:
            split, first, second = d.flips
            typer.echo(f"      rollout-traces flips --steps {first}:{second} --split {split}")
        if d.where:
            typer.echo(f"      rollouts: {sentence(d.where)}")
        for each in d.consequences:
            typer.echo(f"      with it: {sentence(each.sentence)}")

    if len(shown) < len(diagnoses):
        more = len(diagnoses) - len(shown)
        typer.echo(f"      {more} more, which matter less or may be chance: --json lists them.")


def unfolded(diagnoses: Sequence[Diagnosis]) -> list[Diagnosis]:
    """All warnings and errors, and of infos as many as make ten entries, of those that may be chance three at most."""
    kept: list[Diagnosis] = []
    doubtful = 0
    for d in diagnoses:
        doubtful += not d.is_sure
        if d.severity != "info" or (len(kept) < MOST_SHOWN and (d.is_sure or doubtful <= MOST_DOUBTFUL)):
            kept.append(d)
    return kept


def print_explanation(found: Explanation, in_force: list[Diagnosis], links: Mapping[str, str]) -> None:
    """Prints what differs between A and B.

    Args:
        in_force: the diagnoses that hold at A's steps.
        links: id -> what a rollout is called.
    """
    from rollout_traces.analysis.in_words import percent

    if found.rows[0]:
        typer.secho(f"{sentence(found.a)} against {sentence(found.b)}", bold=True)
    if all(found.rows):
        typer.echo(
            f"{counted(found.rows[0], 'rollout')} in {counted(found.groups[0], 'group')} against {found.rows[1]:,} in {found.groups[1]:,}; "
            f"{found.n_tested} columns and values compared, false discovery held at 1%"
        )
    for remark in (*found.remarks, *found.problems):
        typer.echo(sentence(remark))
    if in_force:
        typer.secho("\nIn force at this step", bold=True)
        _print_diagnoses(in_force, "")
    typer.secho("\nWhat differs", bold=True)
    if not any(f.is_sure for f in found.findings):
        nothing = "Nothing beyond what groups and steps differ by chance."
        typer.echo(f"  {nothing if found.n_tested else 'There is nothing to compare.'}")
    for f in found.findings:
        typer.echo(f"  {sentence(f.sentence)}")
        typer.echo(
            f"      effect {f.effect.effect:+.2f} [{f.effect.low:+.2f}, {f.effect.high:+.2f}], p {p_text(f.effect.p)}{_examples(f, links)}"
        )
        for each in f.consequences:
            typer.echo(f"      with it: {sentence(each.sentence)}")
    details = [f.detail for f in found.findings if f.detail is not None and f.is_outcome]
    named = {d.part.column for d in details if d.part is not None} or {"source"}
    for part in found.decompositions:
        _print_decomposition(part, named)
    for who in found.carried:
        typer.echo(f"\n{sentence(who.sentence)}: {_named(who.ids, links)}")
    for title, phrases in (
        ("A writes more often", found.phrases),
        ("Winners of A's groups write more often", found.winners),
    ):
        if phrases:
            rows = [[p.phrase, p.n_a, percent(p.share_a), p.n_b, percent(p.share_b), p.z] for p in phrases]
            typer.echo("")
            print_table(["phrase", "in", "share", "other", "share", "z"], rows, title=title)
    for alone in found.one_sided:
        typer.echo(f"\nOn one side alone: {sentence(alone.sentence)}")


def _named(ids: Sequence[str], links: Mapping[str, str]) -> str:
    return ", ".join(links.get(each, each) for each in ids[:MOST_LINKS])


def _examples(f: Finding, links: Mapping[str, str]) -> str:
    if f.detail is None or not f.detail.examples:
        return ""
    return f"; such as {_named(f.detail.examples, links)}"


def short_links(table: Table, found: Explanation) -> dict[str, str]:
    """Id -> uid of the rollouts that an explanation names: short, and every command takes it."""
    ids = [i for f in found.findings if f.detail is not None for i in f.detail.examples]
    ids += [i for who in found.carried for i in who.ids]
    query = "select cast(id as varchar) as id, uid from rollouts where id in (select unnest(?))"
    rows = table.sql(query, [list(dict.fromkeys(ids))]).to_pylist() if ids else []
    return {row["id"]: row["uid"] or row["id"] for row in rows}


def _print_decomposition(part: Any, named: Collection[str]) -> None:
    """Prints the table of the components, and those of some columns."""
    from rollout_traces.analysis.in_words import column_text

    if part.components:
        rows: list[list[Any]] = [[c.component, c.weight, c.mean_b, c.mean_a, c.part] for c in part.components]
        typer.echo("")
        print_table(
            ["component", "weight", "before", "after", "part"],
            rows,
            title=f"Mean reward {part.change:+.4g}, by component",
        )
    elif part.column in named and len(part.mixes) > 1:
        rows = [
            [m.value, m.weight_b, m.weight_a, _known(m.mean_b), _known(m.mean_a), m.mix, m.within]
            for m in part.mixes
        ]
        rows.append(["all", None, None, None, None, part.mix, part.within])
        typer.echo("")
        name = sentence(column_text(part.column))
        title = f"Mean reward {part.change:+.4g}, by {name}"
        print_table(
            [name, "share before", "after", "reward before", "after", "mix", "within"],
            rows,
            title=title,
        )


def _known(mean: float | None) -> float | str:
    """A mean, or a dash where a side has no such rollout."""
    return "–" if mean is None else mean


def print_config(store: Store, a: str, b: str) -> None:
    """Prints the settings in which two runs differ."""
    from rollout_traces.analysis.runs import config_differences

    rows = [[d.key, d.a, d.b] for d in config_differences(store.config(a), store.config(b))]
    if rows:
        print_table(["setting", a, b], rows, title="Configuration")


def plain_diagnosis(d: Diagnosis) -> dict[str, Any]:
    """A diagnosis as JSON."""
    plain = {**asdict(d), "consequences": [plain_diagnosis(each) for each in d.consequences]}
    del plain["movements"]
    return plain


def plain_report(report: RunReport) -> dict[str, Any]:
    """A report as JSON."""
    return {
        **asdict(replace(report, diagnoses=())),
        "diagnoses": [plain_diagnosis(d) for d in report.diagnoses],
    }
