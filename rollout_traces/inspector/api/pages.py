"""Every page for programs: a typed twin of what its script is answered, made of the same function.

Parameters have the names that the pages use. Lists without a bound of their own come `limit` at a time; `next` of
an answer is the `after` of the part behind.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import orjson
from pydantic import BaseModel

from rollout_traces.errors import StoreError
from rollout_traces.inspector.api.page_models import prompts as of_prompts
from rollout_traces.inspector.api.page_models import rollouts as of_rollouts
from rollout_traces.inspector.api.page_models import runs as of_runs
from rollout_traces.inspector.pages.around import group_pushes, step_means
from rollout_traces.inspector.pages.breakdown import breakdown
from rollout_traces.inspector.pages.compare import compare, population, prompt_history
from rollout_traces.inspector.pages.episodes import episodes
from rollout_traces.inspector.pages.explain import explain, figures, in_force
from rollout_traces.inspector.pages.explore import export, spread
from rollout_traces.inspector.pages.flips import flip_figures, flip_list, grid
from rollout_traces.inspector.pages.group import group as whole_group
from rollout_traces.inspector.pages.health import examples, health
from rollout_traces.inspector.pages.images import image
from rollout_traces.inspector.pages.incidents import incident_bar, mark_incident
from rollout_traces.inspector.pages.projects import project as project_figures
from rollout_traces.inspector.pages.prompts import prompt as one_prompt
from rollout_traces.inspector.pages.prompts import prompt_list
from rollout_traces.inspector.pages.rollouts import metrics, samples
from rollout_traces.inspector.pages.run import diagnosis_figures, run_curves, run_report
from rollout_traces.inspector.pages.runs import two_runs
from rollout_traces.inspector.pages.shell import catalog
from rollout_traces.inspector.pages.what_if import what_if
from rollout_traces.inspector.payload import rollout_payload, unpacked
from rollout_traces.inspector.workspace import Request, Workspace

MOST = 1000
"""Entries of one part of a list."""
_JSON = orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS
Answer = TypeVar("Answer", bound=BaseModel)


def catalog_page(workspace: Workspace, project: str = "") -> of_runs.CatalogAnswer:
    """The projects, and of the one named its runs with splits and steps, newest run first."""
    return _typed(of_runs.CatalogAnswer, catalog(workspace, Request({"project": project})))


def incidents_page(
    workspace: Workspace, project: str, run: str, split: str = "rollout"
) -> of_runs.IncidentsAnswer:
    """The open incidents of a run's split, worst first, and whether they were muted or acknowledged."""
    return _typed(of_runs.IncidentsAnswer, incident_bar(workspace, _place(project, run, split)))


def mark(workspace: Workspace, new: of_runs.NewMark) -> of_runs.IncidentsAnswer:
    """Mutes or acknowledges an incident, or takes that back."""
    return _typed(of_runs.IncidentsAnswer, mark_incident(workspace, Request(new.model_dump())))


def project_page(workspace: Workspace, project: str) -> of_runs.ProjectAnswer:
    """One project in figures."""
    return _typed(of_runs.ProjectAnswer, project_figures(workspace, Request({"project": project})))


def run_page(workspace: Workspace, project: str, run: str, split: str = "rollout") -> of_runs.RunPageAnswer:
    """Is a run healthy: diagnoses in causal order, events, the metrics that matter, settings."""
    return _typed(of_runs.RunPageAnswer, run_report(workspace, _place(project, run, split)))


def run_curves_page(
    workspace: Workspace, project: str, run: str, split: str = "rollout"
) -> of_runs.RunCurvesAnswer:
    """The metrics that matter of a run: the part of the Run page that takes no looking for changes."""
    return _typed(of_runs.RunCurvesAnswer, run_curves(workspace, _place(project, run, split)))


def run_figures(
    workspace: Workspace,
    project: str,
    run: str,
    diagnosis: int = 0,
    event: int | None = None,
    split: str = "rollout",
) -> of_runs.QueriesAnswer:
    """The figures of a diagnosis of the Run page, or of an event, computed again."""
    asked = _place(project, run, split, diagnosis=diagnosis, event=event)
    return _typed(of_runs.QueriesAnswer, diagnosis_figures(workspace, asked))


def explain_page(
    workspace: Workspace, project: str, run: str, split: str = "rollout", step: int | None = None,
    steps: str = "", where: str = "", against_run: str = "", against_split: str = "", against_steps: str = "",
    against_where: str | None = None, against_rest: bool = False,
) -> of_runs.ExplainPageAnswer:  # fmt: skip
    """What differs between A and B; B is the ten steps before A where nothing of `against_...` is given."""
    asked = _sides(project, run, split, step, steps, where, against_run, against_split, against_steps,
                   against_where, against_rest)  # fmt: skip
    return _typed(of_runs.ExplainPageAnswer, explain(workspace, asked))


def explain_figures(
    workspace: Workspace, project: str, run: str, of: str = "findings", at: int = 0, split: str = "rollout",
    step: int | None = None, steps: str = "", where: str = "", against_run: str = "", against_split: str = "",
    against_steps: str = "", against_where: str | None = None, against_rest: bool = False,
) -> of_runs.QueriesAnswer:  # fmt: skip
    """The figures of one sentence of Explain, computed again: `of` is the list it stands in, `at` its place."""
    asked = _sides(project, run, split, step, steps, where, against_run, against_split, against_steps,
                   against_where, against_rest)  # fmt: skip
    return _typed(of_runs.QueriesAnswer, figures(workspace, Request({**asked.values, "of": of, "at": at})))


def explain_in_force(
    workspace: Workspace, project: str, run: str, split: str = "rollout", step: int | None = None,
    steps: str = "",
) -> of_runs.InForceAnswer:  # fmt: skip
    """The diagnoses of the run that hold at the steps."""
    return _typed(
        of_runs.InForceAnswer, in_force(workspace, _place(project, run, split, step=step, steps=steps))
    )


def rollouts_page(
    workspace: Workspace, project: str, run: str, step: int, split: str = "rollout", where: str = "",
    text: str = "", sort: str = "", scope: str = "step", after: str = "",
) -> of_rollouts.StepAnswer:  # fmt: skip
    """A step's groups with their rollouts; with `sort` or `scope=all` a list of rollouts, a page at a time."""
    asked = _place(
        project, run, split, step=step, where=where, text=text, sort=sort, scope=scope, after=after
    )
    return _typed(of_rollouts.StepAnswer, samples(workspace, asked))


def tokens(
    workspace: Workspace, project: str, id: str, after: int = 0, limit: int = MOST
) -> of_rollouts.TokensAnswer:
    """The tokens of a rollout with everything that overlays colour them by, `limit` at a time.

    Raises:
        StoreError: there is no such rollout, or its tokens are unobserved.
    """
    _checked(after, limit)
    store = workspace.store(project)
    trace_id = store.find(id)
    transcript = store.transcript(trace_id)
    if transcript is None or not len(transcript.tokens):
        raise StoreError(f"rollout {id[:80]!r}: its tokens are unobserved, it was logged as text.")
    payload = rollout_payload(trace_id, store.record(trace_id), {})["tokens"]
    track = transcript.tokens
    n, part = len(track), slice(after, after + limit)
    tracks = {name: values[part].tolist() for name, values in track.tracks.items()}
    columns = zip(
        track.input_ids[part].tolist(), track.char_starts[part].tolist(), track.char_stops[part].tolist(),
        track.response_mask[part].tolist(), track.loss_mask[part].tolist(), track.special[part].tolist(),
        strict=True,
    )  # fmt: skip
    found = [
        {
            "at": after + at, "id": token, "text": transcript.raw[start:stop], "sampled": bool(sampled),
            "in_loss": bool(in_loss), "special": bool(special),
            "tracks": {name: values[at] for name, values in tracks.items()},
        }
        for at, (token, start, stop, sampled, in_loss, special) in enumerate(columns)
    ]  # fmt: skip
    return _typed(
        of_rollouts.TokensAnswer,
        {
            "id": trace_id,
            "n_tokens": n,
            "train_version": payload["train_version"],
            "row_advantage": payload.get("row_advantage"),
            "tokens": found,
            "next": _next(after, limit, n),
        },
    )


def series(
    workspace: Workspace, project: str, run: str, split: str = "rollout", names: str = ""
) -> of_runs.SeriesAnswer:
    """A run's logged numbers over its steps: those named, with commas between, or the usual ones."""
    asked = _place(project, run, split, names=_listed(names))
    return _typed(of_runs.SeriesAnswer, metrics(workspace, asked))


def means_of_step(
    workspace: Workspace, project: str, run: str, step: int, split: str = "rollout"
) -> of_rollouts.StepMeansAnswer:
    """Means over the sampled tokens of a step, which overlays compare a rollout with."""
    return _typed(of_rollouts.StepMeansAnswer, step_means(workspace, _place(project, run, split, step=step)))


def pushes_of_group(
    workspace: Workspace, project: str, run: str, step: int, group: int, split: str = "rollout",
    after: int = 0, limit: int = MOST,
) -> of_rollouts.GroupPushesAnswer:  # fmt: skip
    """What the kept rollouts of a group do to each token id, `limit` ids at a time."""
    found = group_pushes(workspace, _place(project, run, split, step=step, group=group))
    return _typed(of_rollouts.GroupPushesAnswer, _part(_readable(found), ("ids", "up", "down"), after, limit))


def image_page(workspace: Workspace, project: str, id: str, number: int = 0) -> of_rollouts.ImageAnswer:
    """An image of a rollout, base64."""
    trace_id = workspace.store(project).find(id)
    return _typed(
        of_rollouts.ImageAnswer,
        image(workspace, Request({"project": project, "id": trace_id, "number": number})),
    )


def compare_two(
    workspace: Workspace, project: str, run: str = "", split: str = "rollout", step: int | None = None,
    group: int | None = None, a: str = "", b: str = "",
) -> of_rollouts.ComparePageAnswer:  # fmt: skip
    """Two rollouts: those named as `a` and `b`, else the best and the worst of the group."""
    store = workspace.store(project)
    ids = {side: store.find(given) for side, given in (("a", a), ("b", b)) if given}
    return _typed(
        of_rollouts.ComparePageAnswer,
        compare(workspace, _place(project, run, split, step=step, group=group, **ids)),
    )


def history_of_prompt(
    workspace: Workspace, project: str, run: str, prompt_key: str, split: str = "rollout"
) -> of_prompts.PromptHistoryAnswer:
    """The rollouts of a run that answer the same prompt, step by step."""
    return _typed(
        of_prompts.PromptHistoryAnswer,
        prompt_history(workspace, _place(project, run, split, prompt_key=prompt_key)),
    )


def population_page(
    workspace: Workspace, project: str, run: str, step: int, split: str = "rollout"
) -> of_rollouts.PopulationAnswer:
    """How many rollouts of a step were kept, and how they were chosen."""
    return _typed(of_rollouts.PopulationAnswer, population(workspace, _place(project, run, split, step=step)))


def spread_page(
    workspace: Workspace, project: str, run: str, column: str, split: str = "rollout", where: str = "",
    text: str = "", rows: str = "traces",
) -> of_prompts.SpreadAnswer:  # fmt: skip
    """A column's values over the rows that match: values with counts, or a histogram."""
    asked = _place(project, run, split, column=column, where=where, text=text, rows=rows)
    return _typed(of_prompts.SpreadAnswer, spread(workspace, asked))


def export_page(
    workspace: Workspace, project: str, run: str, split: str = "rollout", where: str = "", text: str = "",
    rows: str = "traces", sort: str = "",
) -> of_prompts.ExportAnswer:  # fmt: skip
    """The command that exports the rows that match, and the rows as JSON lines where they are few."""
    asked = _place(project, run, split, where=where, text=text, rows=rows, sort=sort)
    return _typed(of_prompts.ExportAnswer, export(workspace, asked))


def health_page(
    workspace: Workspace, project: str, run: str, split: str = "rollout", after: int = 0, limit: int = MOST
) -> of_runs.HealthAnswer:
    """Measures, flags, discard and tie reasons over the steps, `limit` steps at a time."""
    found = dict(health(workspace, _place(project, run, split)))
    for name, values in (("measures", ("values",)), *((each, ("values", "counts")) for each in _MATRICES)):
        found[name] = [_cut(row, values, after, limit) for row in found[name]]
    return _typed(of_runs.HealthAnswer, _part(found, ("steps",), after, limit))


def health_breakdown(
    workspace: Workspace, project: str, run: str, name: str, by: str, split: str = "rollout"
) -> of_runs.BreakdownAnswer:
    """A measure of Health over the steps for the most frequent values of a column."""
    return _typed(
        of_runs.BreakdownAnswer, breakdown(workspace, _place(project, run, split, name=name, by=by))
    )


def health_examples(
    workspace: Workspace, project: str, run: str, step: int, name: str, what: str = "measure",
    split: str = "rollout",
) -> of_runs.ExamplesAnswer:  # fmt: skip
    """Kept rollouts behind a point of Health; `what`: measure, flags, discards or ties."""
    asked = _place(project, run, split, step=step, name=name, what=what)
    return _typed(of_runs.ExamplesAnswer, examples(workspace, asked))


def group_page(
    workspace: Workspace, project: str, run: str, step: int, group: int | None = None, split: str = "rollout",
    after: int = 0, limit: int = MOST,
) -> of_rollouts.GroupAnswer:  # fmt: skip
    """All samples of a group with their actions, `limit` at a time, the tree of their prefixes, and phrases."""
    found = whole_group(workspace, _place(project, run, split, step=step, group=group))
    return _typed(of_rollouts.GroupAnswer, _part(found, ("members",), after, limit))


def prompts_page(
    workspace: Workspace, project: str, run: str, split: str = "rollout", order: str = "solved", steps: str = "",
    where: str = "", after: int = 0,
) -> of_prompts.PromptsAnswer:  # fmt: skip
    """Prompts of a run and split with how often they were tried and solved, a hundred at a time."""
    _checked(after, 1)
    asked = _place(project, run, split, order=order, steps=steps, where=where, offset=after)
    return _typed(of_prompts.PromptsAnswer, _with_next(prompt_list(workspace, asked), after, "total"))


def prompt_page(workspace: Workspace, project: str, run: str, prompt: str) -> of_prompts.PromptAnswer:
    """One prompt over steps, splits and runs, by its key."""
    return _typed(
        of_prompts.PromptAnswer, one_prompt(workspace, _place(project, run, "rollout", prompt=prompt))
    )


def flips_page(
    workspace: Workspace, project: str, run: str, split: str = "eval-rollout", first: int | None = None,
    second: int | None = None, other: str = "", after: int = 0,
) -> of_prompts.FlipsPageAnswer:  # fmt: skip
    """Two evaluations matched on their prompts, lost ones first, 400 prompts at a time."""
    _checked(after, 1)
    asked = _place(project, run, split, first=first, second=second, other=other, after=after)
    return _typed(of_prompts.FlipsPageAnswer, _with_next(flip_list(workspace, asked), after, "n_prompts"))


def flips_figures(
    workspace: Workspace, project: str, run: str, split: str = "eval-rollout", first: int | None = None,
    second: int | None = None, other: str = "",
) -> of_runs.QueriesAnswer:  # fmt: skip
    """The scores and counts of two matched evaluations, computed again."""
    asked = _place(project, run, split, first=first, second=second, other=other)
    return _typed(of_runs.QueriesAnswer, flip_figures(workspace, asked))


def flips_grid(
    workspace: Workspace, project: str, run: str, split: str = "eval-rollout", other: str = "", after: int = 0,
    limit: int = MOST,
) -> of_prompts.FlipGridAnswer:  # fmt: skip
    """Prompt by evaluation, of one run or of two, `limit` prompts at a time."""
    found = grid(workspace, _place(project, run, split, other=other))
    return _typed(of_prompts.FlipGridAnswer, _part(found, ("rows",), after, limit))


def runs_page(
    workspace: Workspace, project: str, run: str, other: str, split: str = "rollout", names: str = ""
) -> of_runs.TwoRunsAnswer:
    """Two runs: the series named, how far each had come, and the settings in which they differ."""
    asked = _place(project, run, split, other=other, names=_listed(names))
    return _typed(of_runs.TwoRunsAnswer, two_runs(workspace, asked))


def episodes_page(
    workspace: Workspace, project: str, run: str, step: int, split: str = "rollout", episode: str = "",
    group: int | None = None, sample: int | None = None, after: int = 0, limit: int = MOST,
) -> of_rollouts.EpisodesAnswer:  # fmt: skip
    """The episodes of a step, `limit` at a time, and the chosen one as a tree."""
    asked = _place(project, run, split, step=step, episode=episode, group=group, sample=sample)
    return _typed(of_rollouts.EpisodesAnswer, _part(episodes(workspace, asked), ("episodes",), after, limit))


def what_if_page(
    workspace: Workspace, project: str, run: str, step: int, split: str = "rollout", after: int = 0,
    limit: int = MOST,
) -> of_rollouts.WhatIfAnswer:  # fmt: skip
    """A step's loss tokens in cells, `limit` cells at a time, from which clipping rules are tried."""
    found = dict(what_if(workspace, _place(project, run, split, step=step)))
    n = 0
    if found["cells"] is not None:
        cells = _readable(found["cells"])
        n = cells["n"]
        found["cells"] = _cut(cells, ("new", "prox", "sign", "staleness", "source", "turn", "tokens", "weight"),
                              after, limit)  # fmt: skip
    _checked(after, limit)
    return _typed(of_rollouts.WhatIfAnswer, {**found, "next": _next(after, limit, n)})


_MATRICES = ("flags", "discards", "ties")


def _place(project: str, run: str, split: str, **more: Any) -> Request:
    return Request({"project": project, "run": run, "split": split, **more})


def _sides(
    project: str, run: str, split: str, step: int | None, steps: str, where: str, against_run: str,
    against_split: str, against_steps: str, against_where: str | None, against_rest: bool,
) -> Request:  # fmt: skip
    against = {
        "run": against_run, "split": against_split, "steps": against_steps, "where": against_where,
        "rest": "1" if against_rest else "",
    }  # fmt: skip
    given = {
        name: value for name, value in against.items() if value or (name == "where" and value is not None)
    }
    return _place(project, run, split, step=step, steps=steps, where=where, against=given)


def _listed(names: str) -> list[str]:
    return [name.strip() for name in names.split(",") if name.strip()]


def _typed(model: type[Answer], found: Mapping[str, Any]) -> Answer:
    """A page's answer in its model, by way of JSON: numbers that are not finite become null."""
    return model.model_validate_json(orjson.dumps(found, default=str, option=_JSON))


def _readable(found: Mapping[str, Any]) -> dict[str, Any]:
    """Packed numbers as lists."""
    return {
        name: unpacked(value).tolist()
        if isinstance(value, Mapping) and set(value) == {"kind", "data"}
        else value
        for name, value in found.items()
    }


def _checked(after: int, limit: int) -> None:
    if after < 0 or not 1 <= limit <= MOST:
        raise StoreError(f"after: 0 or more; limit: 1 to {MOST}. Seen {after} and {limit}.")


def _cut(found: Mapping[str, Any], names: Sequence[str], after: int, limit: int) -> dict[str, Any]:
    return {**found, **{name: found[name][after : after + limit] for name in names}}


def _next(after: int, limit: int, n: int) -> int | None:
    return after + limit if after + limit < n else None


def _with_next(found: Mapping[str, Any], after: int, total: str) -> dict[str, Any]:
    """A page's answer with a part of its prompts, and where the next part begins."""
    behind = after + len(found["prompts"])
    return {**found, "next": behind if found["prompts"] and behind < found[total] else None}


def _part(found: Mapping[str, Any], names: Sequence[str], after: int, limit: int) -> dict[str, Any]:
    """Some lists of equal length cut to a part, and where the next part begins."""
    _checked(after, limit)
    return {**_cut(found, names, after, limit), "next": _next(after, limit, len(found[names[0]]))}
