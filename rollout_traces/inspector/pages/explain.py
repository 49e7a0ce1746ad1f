"""What differs between two sets of rollouts: any step, range, split, run or filter against another."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rollout_traces.analysis import Explanation, Finding
from rollout_traces.analysis import explain as explain_selections
from rollout_traces.analysis.compare import Effect
from rollout_traces.analysis.decompose import ComponentShare, MixShare
from rollout_traces.analysis.finding import Detail
from rollout_traces.analysis.phrases import Phrase
from rollout_traces.errors import StoreError
from rollout_traces.inspector.pages.diagnosed import run_diagnosed
from rollout_traces.inspector.pages.figures import Number
from rollout_traces.inspector.pages.queries import QueriesAnswer, answered_all
from rollout_traces.inspector.pages.selecting import AskedSides, Sides, relations_of, sides
from rollout_traces.inspector.view import SplitView, taken

SENTENCES = ("findings", "decompositions", "carried")
"""What an explanation says with figures."""


@dataclass(frozen=True)
class FilteredRollouts:
    """Rollouts, as a filter of the query language."""

    run: str
    split: str
    where: str


@dataclass(frozen=True)
class ShownDetail(Detail):
    """Where a difference lies, typical rollouts, and the filter that lists all of A's."""

    place: FilteredRollouts


@dataclass(frozen=True)
class ShownFinding:
    """A column or value that differs between A and B; what follows from it as sentences."""

    column: str
    value: str | None
    a: Number
    b: Number
    n_a: int
    n_b: int
    rows_a: int
    rows_b: int
    effect: Effect
    new: bool
    logged: bool
    sentence: str
    detail: ShownDetail | None
    consequences: list[str]


@dataclass(frozen=True)
class ShownDecomposition:
    """The change of the mean reward, split by the reward's components or a column's values."""

    column: str
    change: Number
    components: tuple[ComponentShare, ...]
    mixes: tuple[MixShare, ...]


@dataclass(frozen=True)
class ShownCarried:
    """A difference that few rollouts carry."""

    column: str
    rows: int
    of: int
    share: Number
    p: Number
    ids: tuple[str, ...]
    sentence: str


@dataclass(frozen=True)
class ExplainAnswer:
    """What differs between A and B, ranked.

    Attributes:
        problems: what could not be computed, a line each.
        steps: A's first and last.
    """

    a: str
    b: str
    rows: tuple[int, int]
    groups: tuple[int, int]
    findings: list[ShownFinding]
    decompositions: list[ShownDecomposition]
    carried: list[ShownCarried]
    phrases: tuple[Phrase, ...]
    winners: tuple[Phrase, ...]
    only_in: Mapping[str, str]
    remarks: tuple[str, ...]
    problems: tuple[str, ...]
    n_tested: int
    steps: tuple[int | None, int | None]


@dataclass(frozen=True)
class HeldDiagnosis:
    """A diagnosis that holds at the steps asked about."""

    sentence: str
    severity: str


@dataclass(frozen=True)
class InForceAnswer:
    """The diagnoses that hold at A's steps."""

    diagnoses: list[HeldDiagnosis]


def explain(view: SplitView, asked: AskedSides) -> ExplainAnswer:
    """What differs between A and B; B is the ten steps before A where nothing of `against_...` is given."""
    both = sides(view, asked)
    found = explained(view, both)
    return taken(
        ExplainAnswer,
        found,
        findings=[_shown(each, both) for each in found.findings],
        decompositions=[taken(ShownDecomposition, each) for each in found.decompositions],
        carried=[taken(ShownCarried, each) for each in found.carried],
        steps=both.a.steps,
    )


def in_force(view: SplitView, step: int | None = None, steps: str = "") -> InForceAnswer:
    """The diagnoses of the run that hold at the steps."""
    first, last = sides(view, AskedSides(step, steps)).a.steps
    return InForceAnswer([taken(HeldDiagnosis, each) for each in run_diagnosed(view).in_force(first, last)])


def figures(view: SplitView, asked: AskedSides, of: str = "findings", at: int = 0) -> QueriesAnswer:
    """The figures of one sentence of Explain, computed again: `of` is the list it stands in, `at` its place.

    Raises:
        StoreError: there is no such sentence.
    """
    if of not in SENTENCES:
        raise StoreError(f"of: seen {of[:40]!r}, expected one of {', '.join(SENTENCES)}.")
    sentences: tuple[Any, ...] = getattr(explained(view, sides(view, asked)), of)
    if not 0 <= at < len(sentences):
        raise StoreError(f"{of}: no {at}; there are {len(sentences)}.")
    queries = sentences[at].queries if of == "findings" else (sentences[at].query,)
    return answered_all(view.store.table(), queries)


def explained(view: SplitView, both: Sides) -> Explanation:
    """What differs between two sets of rollouts, as the analysis says it."""
    whole = view.store.table()
    return view.remembered(
        ("explain", *both.key),
        lambda: explain_selections(relations_of(view, both), both.a, both.b, whole=whole),
    )


def _shown(finding: Finding, both: Sides) -> ShownFinding:
    detail = None
    if finding.detail is not None:
        detail = ShownDetail(**vars(finding.detail), place=filtered(both, finding.detail.where))
    said = [each.sentence for each in finding.consequences]
    return taken(ShownFinding, finding, detail=detail, consequences=said)


def filtered(both: Sides, where: str) -> FilteredRollouts:
    """A's rollouts with a finding, as a filter of the query language."""
    first, last = both.a.steps
    parts = [f"({part})" if " or " in part else part for part in (both.where, where) if part]
    if first is not None and first == last:
        parts.append(f"step = {first}")
    else:
        parts += [f"step >= {first}"] if first is not None else []
        parts += [f"step <= {last}"] if last is not None else []
    return FilteredRollouts(both.a.run or "", both.a.split or "", " and ".join(parts))
