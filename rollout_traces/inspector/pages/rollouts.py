"""The page to read rollouts: samples of a step, one rollout, its tokens, the split's metrics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rollout_traces.alarms.worn import Usual
from rollout_traces.errors import StoreError
from rollout_traces.inspector.pages.figures import (
    MOST_READ,
    PAGE_ROWS,
    Card,
    Drawn,
    KeptRollouts,
    Number,
    RunProgress,
    RunSeries,
    drawn_by,
    population_of,
    population_over_steps,
    reward_ranges,
    run_progress,
    sample_card,
    split_series,
)
from rollout_traces.inspector.pages.incidents import RunAlarms, cards, run_alarms
from rollout_traces.inspector.pages.labels import labels
from rollout_traces.inspector.payload import rollout_payload
from rollout_traces.inspector.workspace import Names, ProjectView, SplitView, check_part, seen
from rollout_traces.store import Group, RowPage, TraceRow
from rollout_traces.store.query.nodes import Name
from rollout_traces.store.query.parser import parse_sort

MOST_TOKENS = 1000
"""Tokens of one part."""


@dataclass(frozen=True)
class Dot:
    """A reward of a group, and whether its rollout was kept."""

    reward: Number
    traced: bool


@dataclass(frozen=True)
class StepGroup:
    """A group of a step with its kept rollouts.

    Attributes:
        flags: of the group, which its rows do not wear; a tie is marked by `tied`.
        usual_flags: those of them that are usual in this run.
    """

    group: int | None
    prompt: str | None
    mean: Number
    n: int
    tied: bool
    zero_advantage: bool
    rewards: list[Dot]
    flags: list[str]
    usual_flags: list[str]
    samples: list[Card]


@dataclass(frozen=True, kw_only=True)
class SamplesAnswer(KeptRollouts, Drawn):
    """A step's groups, or with `sort` or `scope=all` rollouts a page at a time.

    Attributes:
        columns: what filters can name.
        note: what the numbers of rollouts are, where there is no ledger.
        next: give it as `after` for the page behind; None at the end.
    """

    usual: list[Usual]
    step: int
    columns: list[str]
    scope: str
    note: str | None = None
    groups: list[StepGroup] | None = None
    samples: list[Card] | None = None
    n_matched: int
    next: str | None = None


@dataclass(frozen=True)
class AskedSamples:
    """The rollouts that are listed.

    Attributes:
        where: a filter of the query language.
        text: words and "quoted phrases".
        sort: such as `-reward,step`; the list is flat then.
        scope: `step`, or `all` for the rollouts of every step.
        after: the cursor of the page before.
    """

    where: str = ""
    text: str = ""
    sort: str = ""
    scope: str = "step"
    after: str = ""


@dataclass(frozen=True)
class ShownToken:
    """A token of a rollout; `tracks` are logprobs, advantages, versions and the like, by name."""

    at: int
    id: int
    text: str
    sampled: bool
    in_loss: bool
    special: bool
    tracks: dict[str, Number]


@dataclass(frozen=True)
class TokensAnswer:
    """Tokens of a rollout, as the overlays colour them, some at a time; `next` is the `after` of those behind."""

    id: str
    n_tokens: int
    train_version: int | None
    row_advantage: Number
    tokens: list[ShownToken]
    next: int | None


@dataclass(frozen=True, kw_only=True)
class MetricsAnswer(RunSeries):
    """A run's logged numbers, and how far it was at each step."""

    progress: RunProgress


def samples(view: SplitView, step: int, asked: AskedSamples) -> SamplesAnswer:
    """A step's groups with their rollouts; with `sort` or `scope=all` a list of rollouts, a page at a time."""
    everywhere = asked.scope == "all"
    groups = view.groups(step)
    alarms = run_alarms(view)
    kept = population_over_steps(view) if everywhere else population_of(groups)
    note = None
    if not everywhere and groups.n_rollouts is None:
        note = (
            "its ledger is not there yet; rewards shown are those of kept rollouts"
            if kept.n_rows
            else "no ledger was logged: how many there were is unknown"
            if groups.groups
            else None
        )
    if everywhere or asked.sort:
        page = _found(
            view,
            asked,
            order_by=asked.sort or None,
            limit=PAGE_ROWS,
            after=asked.after or None,
            steps=(None, None) if everywhere else (step, step),
            attempts="newest" if everywhere else "all",
        )
        first = parse_sort(asked.sort)[0].term if asked.sort else None
        column = first.name if isinstance(first, Name) else None
        found = cards(view, page.rows, column)
        listed: dict[str, Any] = {"samples": found, "n_matched": page.total, "next": page.next}
    else:
        wanted = _matching(view, step, asked)
        shown = [_group(group, wanted, alarms) for group in groups.groups]
        shown = [group for group in shown if group.samples or wanted is None]
        listed = {"groups": shown, "n_matched": sum(len(group.samples) for group in shown)}
    return SamplesAnswer(
        usual=alarms.listed(),
        step=step,
        **drawn_by(view),
        columns=[column.name for column in view.store.columns()],
        scope="all" if everywhere else "step",
        note=note,
        **vars(kept),
        **listed,
    )


def rollout(
    view: SplitView,
    id: str = "",
    step: int | None = None,
    group: int | None = None,
    sample: int | None = None,
) -> dict[str, Any]:
    """One rollout with its tokens, by id or by step, group and sample."""
    store = view.store
    trace_id = id or find_sample(view, step, group, sample)
    record = store.record(trace_id)
    payload = rollout_payload(trace_id, record)
    attempt = record.metadata.get("attempt")
    if attempt is not None:
        of_step = int(record.metadata["step"])
        payload["superseded"] = view.info.is_superseded(str(attempt), of_step)
    payload["labels"] = asdict(labels(view, trace_id))
    payload["ranges"] = reward_ranges(view, record.metadata)
    payload["flags"] = run_alarms(view).marked(payload["flags"], record.metadata)
    return payload


def tokens(view: ProjectView, id: str, after: int = 0, limit: int = MOST_TOKENS) -> TokensAnswer:
    """The tokens of a rollout with everything that overlays colour them by, `limit` at a time.

    Raises:
        StoreError: there is no such rollout, or its tokens are unobserved.
    """
    check_part(after, limit, MOST_TOKENS)
    trace_id = view.store.find(id)
    transcript = view.store.transcript(trace_id)
    if transcript is None or not len(transcript.tokens):
        raise StoreError(f"rollout {seen(id)}: its tokens are unobserved, it was logged as text.")
    track = transcript.tokens
    metadata = view.store.record(trace_id).metadata
    advantage = None if "advantages" in track.tracks else metadata.get("advantage")
    part = range(after, min(after + limit, len(track)))
    return TokensAnswer(
        trace_id,
        len(track),
        metadata.get("train_version"),
        float(advantage) if isinstance(advantage, (int, float)) else None,
        [
            ShownToken(
                at,
                int(track.input_ids[at]),
                transcript.text_between(at, at + 1),
                bool(track.response_mask[at]),
                bool(track.loss_mask[at]),
                bool(track.special[at]),
                {name: values[at].item() for name, values in track.tracks.items()},
            )
            for at in part
        ],
        part.stop if part.stop < len(track) else None,
    )


def metrics(view: SplitView, names: Names = ()) -> MetricsAnswer:
    """A run's logged numbers over its steps: those named, with commas between, or the usual ones."""
    return MetricsAnswer(**vars(split_series(view, names)), progress=run_progress(view))


def find_sample(view: SplitView, step: int | None, group: int | None, sample: int | None) -> str:
    """The id of the rollout at a step, group and sample.

    Raises:
        StoreError: there is no such trace.
    """
    if step is None:
        raise StoreError("step: none named. Pick one with the step pager.")
    wanted = (("group", group), ("sample", sample))
    where = " and ".join(f"{name} = {value}" for name, value in wanted if value is not None)
    newest_first = "superseded, group, sample"
    page = view.query(where=where, steps=(step, step), limit=1, columns=["sample"], order_by=newest_first)
    if not page.rows or page.rows[0].id is None:
        named = f"step {step}, group {group}, sample {sample} of {view.split}"
        if not view.query(where=where, steps=(step, step), limit=1, rows="all").total:
            raise StoreError(f"{named} is not there. Pick another on the left.")
        raise StoreError(
            f"{named} was not kept as a trace. Pick another on the left, or see its row under Explore."
        )
    return page.rows[0].id


def _matching(view: SplitView, step: int, asked: AskedSamples) -> dict[str, TraceRow] | None:
    """The step's traces that satisfy filter and search, by id; None when there is neither."""
    if not asked.where and not asked.text:
        return None
    page = _found(view, asked, steps=(step, step), limit=MOST_READ)
    return {row.id: row for row in page.rows if row.id is not None}


def _found(view: SplitView, asked: AskedSamples, **named: Any) -> RowPage:
    """Traces that satisfy the filter; those that are searched for carry a `snippet` of what was found."""
    return view.store.search(asked.text, run=view.run, split=view.split, where=asked.where, **named)


def _group(group: Group, wanted: Mapping[str, TraceRow] | None, alarms: RunAlarms) -> StepGroup:
    traces = group.traces
    if wanted is not None:
        traces = tuple(wanted[row.id] for row in group.traces if row.id is not None and row.id in wanted)
    names = {name for row in group.traces for name in alarms.worn_by(row).of_group}
    places = {(row.step, row.get("source")) for row in group.traces}
    usual = names.intersection(*(alarms.usual_at(*place) for place in places))
    return StepGroup(
        group=group.group,
        prompt=group.prompt,
        mean=group.reward_mean,
        n=group.n_rollouts if group.from_ledger else _told_size(group),
        tied=group.tied and group.from_ledger,
        zero_advantage=group.zero_advantage,
        rewards=_dots(group.rewards, group.traces),
        flags=sorted(names - usual - {"tied_group"}),
        usual_flags=sorted(usual),
        samples=[sample_card(row, alarms.worn_by(row)) for row in traces],
    )


def _told_size(group: Group) -> int:
    """Reads from its traces how many rollouts the group has."""
    sizes = [row["group_size"] for row in group.traces if isinstance(row["group_size"], int)]
    return max(sizes, default=group.n_rollouts)


def _dots(rewards: Sequence[float | None], traces: Sequence[TraceRow]) -> list[Dot]:
    """All rewards of a group, best first, each marked when it belongs to a trace."""
    left = Counter(row["reward"] for row in traces)
    dots = []
    for reward in sorted(rewards, key=lambda value: (value is None, -(value or 0.0))):
        traced = left[reward] > 0
        left[reward] -= traced
        dots.append(Dot(reward, traced))
    return dots
