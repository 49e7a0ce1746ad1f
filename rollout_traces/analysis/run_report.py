"""The report of a run and split: what moved, since when, for whom."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from rollout_traces.analysis.compete import AlikeMovements, entries, of_their_own
from rollout_traces.analysis.contributions import carriers_of
from rollout_traces.analysis.curves import (
    HEAVIEST,
    STEP_SIZE,
    Series,
    SeriesName,
    heaviest_curve,
    is_size,
    logged_series,
    size_of,
)
from rollout_traces.analysis.detect import log_chance_of_noise, movements
from rollout_traces.analysis.detected_movement import NEAR_EDGE, RESIDUE, Moved, is_spike, spikes_of_rows
from rollout_traces.analysis.diagnosis import Diagnosis
from rollout_traces.analysis.entries import carried_again, diagnosis_of, ordered
from rollout_traces.analysis.evaluations import with_flips
from rollout_traces.analysis.evidence import level_queries
from rollout_traces.analysis.faults import (
    evaluation_entries,
    fault_entries,
    no_signal_entries,
    number_entries,
)
from rollout_traces.analysis.group_shapes import OF_WHOLE_GROUPS, group_rows
from rollout_traces.analysis.in_words import percent, series_text
from rollout_traces.analysis.kinks import is_of_no_rollouts
from rollout_traces.analysis.panel import Panel, Parting, logged_panels, one_of, stacked
from rollout_traces.analysis.prompt_changes import prompt_entries
from rollout_traces.analysis.recurring import GOES, recurring_entries
from rollout_traces.analysis.relations import Relations
from rollout_traces.analysis.run_rows import BY_OUTCOME, RunRows, of_steps, read_rows
from rollout_traces.analysis.runs import replaced_sentence, setting_entries
from rollout_traces.analysis.scan import SPIKE
from rollout_traces.analysis.schedules import setting_changes, warm_up_of
from rollout_traces.analysis.screen import (
    FEWEST_EVALUATIONS,
    FEWEST_STEPS,
    all_noise,
    all_screened,
    limits,
    shares_of,
)
from rollout_traces.analysis.selections import RunScope
from rollout_traces.analysis.severity import is_worth_a_word
from rollout_traces.analysis.standing import standing_entries
from rollout_traces.analysis.text_measures import text_rows
from rollout_traces.analysis.unobserved import Contained, Unobserved, unobserved
from rollout_traces.metrics import is_computed
from rollout_traces.model.text import lines, quoted, table, titled


@dataclass(frozen=True, eq=False, repr=False)
class RunReport:
    """Report of a run and split.

    Attributes:
        run: its name.
        split: the split.
        diagnoses: in the order shown, consequences nested.
        unobserved: what cannot be known.
        remarks: what limits the answer, in words.
        problems: what raised, a line each; the rest was computed all the same.
        n_steps: steps.
        n_rows: rollouts.
        last_step: the newest step; None without one.
    """

    run: str
    split: str
    diagnoses: tuple[Diagnosis, ...] = ()
    unobserved: tuple[Unobserved, ...] = ()
    remarks: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    n_steps: int = 0
    n_rows: int = 0
    last_step: int | None = None

    def __repr__(self) -> str:
        said = [f"{each.severity}: {each.sentence}" for each in self.diagnoses] or self._nothing
        return "\n".join([self._title, *self.remarks, *said])

    def _repr_html_(self) -> str:
        rows = [(each.severity, each.sentence, each.advice, each.where) for each in self.diagnoses]
        parts = [table(("", "what", "look at", "rollouts"), rows)] if rows else [lines(self._nothing)]
        missing = titled("Unobserved", lines(map(str, self.unobserved))) if self.unobserved else ""
        return titled(self._title, lines(self.remarks), *parts, lines(self.problems), missing)

    @property
    def is_looked_at(self) -> bool:
        """Whether there are enough steps to tell a change from chance."""
        return self.n_steps >= FEWEST_EVALUATIONS

    @property
    def _nothing(self) -> list[str]:
        return ["Nothing stands out."] if self.is_looked_at else []

    @property
    def _title(self) -> str:
        return f"{self.run}, {self.split}: {self.n_rows:,} rollouts in {self.n_steps} steps"

    def in_force(self, first: int | None, last: int | None) -> list[Diagnosis]:
        """The diagnoses whose steps are among some; None at an end is open."""
        return [each for each in self.diagnoses if each.touches(first, last)]


def diagnose(relations: Relations, run: str, split: str = "rollout") -> RunReport:
    """Reports what moved in a run, since when and for whom.

    Args:
        relations: where to read.
        run: the run as `rollouts` names it.
        split: the split.
    """
    contained = Contained()
    scope = contained("columns", RunScope, relations, run, split)
    rows = None if scope is None else contained("rollouts", read_rows, scope)
    n_rows = 0 if rows is None else len(rows.at)
    panels = [] if scope is None or rows is None else collected(scope, rows, contained)
    if scope is None or rows is None or not (n_rows or panels):
        nothing = f"No rollouts of split {quoted(split)} in run {quoted(run)}."
        return RunReport(run, split, remarks=(nothing,), problems=tuple(contained.problems))
    steps = rows.steps if n_rows else np.unique(np.concatenate([panel.steps for panel in panels]))
    remarks = [] if n_rows else ["No rollouts: what the trainer logged is all that is looked at."]
    if len(steps) < FEWEST_EVALUATIONS:
        few = "1 step is" if len(steps) == 1 else f"{len(steps)} steps are"
        remarks.append(f"{few} too few to look for changes; {FEWEST_EVALUATIONS} are needed.")
    elif len(steps) < FEWEST_STEPS:
        remarks.append(
            f"{len(steps)} steps show what groups are sure of alone; of logged scalars {FEWEST_STEPS} are needed."
        )
    remarks += contained("rewards known", _without_reward, rows) or []
    of_rows = [panel for panel in panels if panel.source is rows]
    shown_again = contained("rollouts shown again", steps_again, of_rows) or {}
    if shown_again:
        panels = [_counted_once(panel, shown_again) for panel in panels]
        remarks.append(
            f"{len(shown_again)} of {len(steps)} steps show rollouts of an earlier step again: each counts once."
        )
    if replaced := contained("attempts", replaced_sentence, relations, run, split):
        remarks.append(replaced)
    made, n_series = contained("movements", _made, rows, panels, contained) or ([], 0)
    said = [contained("entry", _said, scope, entry, n_series, float(n_rows)) for entry in made]
    found = [each for each in said if each is not None]
    again = contained("what comes and goes", recurring_entries, panels, float(n_rows)) or []
    found = [*(each for each in found if not any(_is_one_of(each, other) for other in again)), *again]
    found = carried_again(found)
    found += contained("standing differences", standing_entries, panels, found, steps) or []
    found = _with_prompts(found, contained("prompts that changed", prompt_entries, scope) or [])
    found += contained("faults", fault_entries, scope, found) or []
    if split == "rollout":
        found += contained("logged numbers", number_entries, scope) or []
        found += contained("evaluations that did not run", evaluation_entries, scope, steps) or []
    found += contained("rewards", no_signal_entries, scope, rows, found) or []
    found = [
        each
        if each.queries
        else replace(each, queries=contained("queries", level_queries, scope, each) or ())
        for each in found
    ]
    found = contained("links to flips", with_flips, relations, run, found) or found
    settings = contained("settings", setting_entries, relations, run, split) or []
    missing = contained("unobserved", unobserved, scope) or []
    return RunReport(
        run,
        split,
        (*settings, *ordered(found, steps)),
        tuple(missing),
        tuple(remarks),
        tuple(contained.problems),
        len(steps),
        n_rows,
        int(steps[-1]),
    )


MOST_AGAIN = 1 / 2
"""Part of the numbers whose mean is the same to the last bit at two steps, from which on one shows the rollouts of the other ..."""
FEWEST_AGAIN = 3
"""... of at least so many that are not the same at most steps."""


def steps_again(panels: Sequence[Panel]) -> dict[int, int]:
    """Maps each step that shows the rollouts of an earlier one, as where a trainer takes several steps with a batch, to that.

    Args:
        panels: the series of rollouts, over the same steps.
    """
    same_P_T, measures = [], []
    for panel in panels:
        if panel.parts[0] != () or panel.is_share:
            continue
        known = np.isfinite(panel.levels[0])
        _, first, place, n = np.unique(
            panel.levels[0], return_index=True, return_inverse=True, return_counts=True
        )
        if n.max() <= MOST_AGAIN * known.sum():
            same_P_T.append(np.where(known, first[place], -1))
            measures.append(panel.measure)
    if len(same_P_T) < FEWEST_AGAIN:
        return {}
    same, steps = np.stack(same_P_T), panels[0].steps
    pairs, n = np.unique((same + len(steps) * np.arange(len(steps)))[same >= 0], return_counts=True)
    pairs = np.stack(np.divmod(pairs[n > MOST_AGAIN * len(same)], len(steps)))
    pairs = pairs[:, pairs[1] < pairs[0]].T
    if not len(pairs):
        return {}
    of_row = panels[0].source.at  # type: ignore[union-attr]
    ends = np.searchsorted(np.sort(of_row), np.arange(len(steps) + 1))
    read = [measure.read() for measure in measures]  # type: ignore[union-attr]
    ordered = [values[np.lexsort((values, of_row))] for values in read]
    found = {}
    for at, before in pairs.tolist():
        own, earlier = (slice(*ends[step : step + 2]) for step in (at, before))
        n_same = sum(np.array_equal(each[own], each[earlier], equal_nan=True) for each in ordered)
        if n_same > MOST_AGAIN * len(ordered):  # means of small counts are the same by chance
            found[int(steps[at])] = int(steps[before])
    return found


def _counted_once(panel: Panel, again: Mapping[int, int]) -> Panel:
    """A panel without the figures of steps that an earlier step with the same rollouts has too: they are no further evidence."""
    if panel.source is None and setting_changes(panel) is not None:  # what is set stays as it is
        return panel
    seen: dict[tuple[int, float], int] = {}
    for at, step in enumerate(panel.steps.tolist()):
        seen.setdefault((again.get(step, step), float(panel.levels[0, at])), at)
    left_out = sorted(set(range(len(panel.steps))).difference(seen.values()))
    if not left_out:
        return panel
    figures = {name: getattr(panel, name).copy() for name in ("values", "levels", "errors", "rows", "groups")}
    for name, values in figures.items():
        values[:, left_out] = np.nan if name in ("values", "levels") else 0.0
    carried = {at: each for at, each in panel.carried.items() if at not in left_out}
    return replace(panel, **figures, carried=carried)


def _without_reward(rows: RunRows) -> list[str]:
    """Says of how many rollouts the reward is not known, where it is of others."""
    rewards = [measure.read() for measure in rows.measures if measure.name == SeriesName("reward")]
    unknown = float(np.isnan(rewards[0]).mean()) if rewards and len(rewards[0]) else 0.0
    said = f"The reward of {percent(unknown)} of the rollouts does not count: there is none, or its function failed."
    return [said] if unknown else []


def collected(scope: RunScope, rows: RunRows, contained: Contained) -> list[Panel]:
    """The series of a run: of its rows and groups, its evaluations, what was written, its logged scalars."""
    panels = []
    if len(rows.at):
        panels = _of_measures(rows, contained) + (contained("groups", _of_groups, rows, contained) or [])
        if np.ptp(rows.per_step):
            panels += logged_panels([Series(STEP_SIZE, (), rows.steps, rows.per_step, np.empty(0))])
    for split in contained("evaluations", _evaluations, scope) or []:
        other = RunScope(scope.relations, scope.run, split, scope.columns)
        read = contained(split, read_rows, other, f"{split}/")
        if read is not None and len(read.at):
            panels += _of_measures(read, contained)
            if np.ptp(read.per_step):
                panels += logged_panels([Series(size_of(split), (), read.steps, read.per_step, np.empty(0))])
    written = contained("what was written", text_rows, scope, rows.parts)
    panels += _of_measures(written, contained) if written is not None else []
    logged = contained("logged scalars", _logged, scope, panels) or []
    logged += contained("heaviest rollouts", _heaviest, scope) or []
    panels += [one_of(panel, [i]) for panel in logged for i in range(len(panel.names))]
    n_steps = max([len(rows.steps), *(len(panel.steps) for panel in panels)])
    return [panel for panel in panels if len(panel.steps) >= fewest_steps(panel, n_steps)]


def fewest_steps(panel: Panel, n_steps: int) -> int:
    """Counts the steps from which on a series is looked at, of a run of so many: fewer where groups say how sure each step is, and of what is logged at some steps alone."""
    if panel.source is not None:
        return FEWEST_EVALUATIONS
    return FEWEST_AT_TIMES if n_steps >= FEWEST_STEPS else FEWEST_STEPS


FEWEST_AT_TIMES = 8
"""Values of a number that is logged at every so many steps of a run, as the time that a checkpoint takes: one in 700 of noise alone is a warning."""


def _logged(scope: RunScope, panels: Sequence[Panel]) -> list[Panel]:
    """Reads what the trainer logged, which is no evaluation's, but for what repeats a figure of the ledger."""
    if scope.split != "rollout":
        return []
    means = {f"{scope.split}/{panel.names[0]}/mean" for panel in panels if panel.parts[0] == ()}
    figures = _figures_of_all(panels)
    found = logged_series(scope.relations, scope.run)
    return logged_panels(
        each
        for each in found
        if not is_computed(each.name.column)
        or (each.name.statistic == "logged" and each.name.column in means)
        if not _repeats(each, figures)
    )


def _heaviest(scope: RunScope) -> list[Panel]:
    """Follows how much of each step's update its heaviest rollouts carry, against what as many equal ones would."""
    return [
        replace(panel, values=np.round(np.log(panel.levels * panel.rows / HEAVIEST), DECIMALS))
        for panel in logged_panels(heaviest_curve(scope))
    ]


DECIMALS = 9
"""Decimals of a logarithm; what lies beyond them is the rounding of sums."""


def _figures_of_all(panels: Sequence[Panel]) -> list[tuple[np.ndarray, np.ndarray]]:
    """The figures of all rows, float [P, T] each, and their steps, int [T]: those over the same steps together."""
    by_steps: dict[bytes, tuple[np.ndarray, list[np.ndarray]]] = {}
    for panel in panels:
        if panel.parts[0] == ():
            levels = panel.levels[0].copy()
            for at, carried in panel.carried.items():
                levels[at] = carried.level
            by_steps.setdefault(panel.steps.tobytes(), (panel.steps, []))[1].append(levels)
    return [(np.stack(levels), steps) for steps, levels in by_steps.values()]


def _repeats(series: Series, figures: Sequence[tuple[np.ndarray, np.ndarray]]) -> bool:
    """Tells whether a logged number is a figure of all rows, which those that came later may have changed a little."""
    for levels, steps in figures:
        _, one, other = np.intersect1d(series.steps, steps, return_indices=True)
        if not len(one):
            continue
        ledger, known = levels[:, other], np.isfinite(levels[:, other])
        range_P = np.where(known, ledger, -np.inf).max(axis=1) - np.where(known, ledger, np.inf).min(axis=1)
        near = np.abs(series.values[one] - ledger) <= ROUNDED * (np.abs(ledger) + range_P[:, None])
        if (known.any(axis=1) & (near | ~known).all(axis=1)).any():
            return True
    return False


ROUNDED = 1e-3
"""Part of a mean by which its logged form may differ from the ledger's: rollouts that came later count in one alone."""


def _of_measures(rows: RunRows, contained: Contained) -> list[Panel]:
    """The series of measures; of an extra number that all rows of a step have, as the level of a curriculum, as it was set."""
    parting, found, logged = Parting(rows), [], []
    for measure in rows.measures:
        if (values := of_steps(rows, measure)) is not None:
            name = measure.name._replace(statistic="logged")
            logged.append(Series(name, (), rows.steps, values, np.empty(0)))
        else:
            found.append(contained(series_text(measure.name), parting.panel, measure))
    return [panel for panel in found if panel is not None] + logged_panels(logged)


def _of_groups(rows: RunRows, contained: Contained) -> list[Panel]:
    """The shapes of groups; over a part that cuts through groups, of what each group has in it."""
    groups = group_rows(rows)
    if groups is None:
        return []
    panels = {panel.names[0]: panel for panel in _of_measures(groups, contained)}
    for column in rows.parts:
        if column not in rows.cutting or column in BY_OUTCOME:
            continue
        if (cut := group_rows(rows.cut_by(column))) is None:
            continue
        cut.measures = [
            each
            for each in cut.measures
            if each.name.column not in OF_WHOLE_GROUPS and each.name.statistic != "correlation"
        ]
        for part in _of_measures(cut, contained):
            name = part.names[0]
            own = one_of(part, [i for i, each in enumerate(part.parts) if each])
            if own.names:
                panels[name] = stacked([panels[name], own]) if name in panels else own
    return list(panels.values())


def _evaluations(scope: RunScope) -> Sequence[str]:
    """The run's evaluation splits."""
    if not scope.columns.has("split") or scope.split != "rollout":
        return []
    query = "select distinct split from rollouts where run = ? and split like 'eval%' order by 1"
    return [row["split"] for row in scope.relations.sql(query, [scope.run]).to_pylist()]


def _made(rows: RunRows, panels: Sequence[Panel], contained: Contained) -> tuple[list[AlikeMovements], int]:
    noises = all_noise(panels)
    screens = all_screened(panels, noises)
    n_series = sum(len(log_p) for log_p, _ in screens)
    sure, perhaps = limits([log_p for log_p, _ in screens], [shares_of(panel) for panel in panels])
    found: list[Moved] = []
    for panel, noise, (log_p, slow), limit, loose in zip(panels, noises, screens, sure, perhaps, strict=True):
        found += contained(str(panel.names[0]), spikes_of_rows, panel, noise, limit) or []
        if (log_p <= loose).any() or slow[[part == () for part in panel.parts]].any():
            found += contained(str(panel.names[0]), movements, panel, noise, loose, limit) or []
    found = [each for each in of_their_own(found) if is_worth_a_word(each)]
    resized, warm_up = _resized(rows, found), warm_up_of(panels)
    limit_of = {panel.names[0]: float(own[0]) for panel, own in zip(panels, sure, strict=True)}
    for i, each in enumerate(found):
        if is_of_no_rollouts(each, found):
            is_sure = log_chance_of_noise(each)[0] <= limit_of[each.panel.names[0]]
            found[i] = replace(each, drift=False, is_sure=is_sure)
    found = [replace(each, drift=each.drift or _is_of_warm_up(each, warm_up)) for each in found]
    found = [replace(each, is_set=each.is_set or _is_of_size(each, resized, rows)) for each in found]
    made = contained("causes", entries, found)
    return [AlikeMovements([each], each.chosen.values) for each in found] if made is None else made, n_series


def _is_of_warm_up(found: Moved, n_steps: int) -> bool:
    """Tells whether a logged number came to another level while the learning rate was warmed up: that is how a run starts."""
    is_number = found.panel.source is None and not found.is_set
    return is_number and found.template.kind == "level" and found.located.onset[0] <= n_steps


def _resized(rows: RunRows, found: Sequence[Moved]) -> np.ndarray:
    """int [K], the steps from which on a step has half as many rollouts again as before, or so many fewer, or at which their number surely moved: somebody may have set it so."""
    n_T = rows.per_step
    if len(n_T) < 2 * NEAR_EDGE:
        return np.empty(0, np.int64)
    around = np.lib.stride_tricks.sliding_window_view(n_T, NEAR_EDGE).mean(axis=1)
    before, after = around[:-NEAR_EDGE], around[NEAR_EDGE:]
    changed = np.maximum(before, after) > (1 + RESIDUE) * np.minimum(before, after)
    sizes = [each for each in found if each.panel.names[0] == STEP_SIZE and each.is_sure]
    moved = [each.panel.steps[list(each.located.onset)] for each in sizes]
    return np.concatenate([rows.steps[NEAR_EDGE + np.flatnonzero(changed)], *moved])


def _is_of_size(found: Moved, resized: np.ndarray, rows: RunRows) -> bool:
    """Tells whether a logged number, or a share of the update, moved about where steps got another size, as their time does, and not by many times as much."""
    if is_size(found.panel.names[0]):
        return False
    is_of_steps = found.panel.source is None or found.panel.parents[0] == "advantage"
    first, last = found.panel.steps[list(found.located.onset)].tolist()
    near = np.unique(resized[(resized >= first - SPIKE) & (resized <= last + SPIKE)]).tolist()
    if not is_of_steps or is_spike(found) or not near:
        return False
    of_number = _factor(found.panel.levels[found.chosen.at], found.panel.steps, first, last)
    return RESIDUE * of_number <= max(_factor(rows.per_step, rows.steps, at, at) for at in (*near, first))


def _factor(levels: np.ndarray, steps: np.ndarray, first: int, last: int) -> float:
    """The size of the logarithm of the factor by which a figure changed between some steps; 0 where it has none."""
    known = np.isfinite(levels)
    sides = levels[known & (steps < first)][-NEAR_EDGE:], levels[known & (steps > last)][:NEAR_EDGE]
    if not all(map(len, sides)) or min(float(each.min()) for each in sides) <= 0:
        return 0.0
    return abs(float(np.log(np.median(sides[1]) / np.median(sides[0]))))


def _with_prompts(found: Sequence[Diagnosis], changed: Sequence[Diagnosis]) -> list[Diagnosis]:
    """Entries of prompts that changed, each under the entry whose shares say so too."""
    heads = list(found)
    for each in changed:
        column = each.name.split(" ", 1)[0]
        at = next((i for i, head in enumerate(heads) if _is_about(head, column, each)), None)
        if at is None:
            heads.append(each)
        else:
            heads[at] = replace(heads[at], consequences=(*heads[at].consequences, each))
    return heads


def _is_one_of(each: Diagnosis, again: Diagnosis) -> bool:
    """Tells whether an entry is a few of the steps of what comes and goes, or perhaps a change among them."""
    inside = again.step <= each.step and (each.last or each.step) <= (again.last or 0)
    if again.name != GOES or not inside:
        return False
    if each.shape == "spike":
        return _goes_up(each) == _goes_up(again) and bool(set(each.series) & set(again.series))
    is_passing = each.shape == "window" or not each.is_sure
    of_part = not again.part or each.part in (again.part, (), None)
    return is_passing and of_part and set(each.series) <= set(again.series)


def _goes_up(each: Diagnosis) -> bool:
    return (each.after or 0.0) > (each.before or 0.0)


def _is_about(head: Diagnosis, column: str, changed: Diagnosis) -> bool:
    about = any(f"/{name.column}".endswith(f"/{column}") for name in head.series)
    return about and head.onset[0] <= changed.onset[1] and changed.onset[0] <= head.onset[1]


def _said(scope: RunScope, entry: AlikeMovements, n_series: int, n_rows: float) -> Diagnosis:
    for carried in entry.found:
        if carried.n_carriers and (carriers := carriers_of(scope, carried)):
            return diagnosis_of(entry, n_series, n_rows, carried, carriers)
    return diagnosis_of(entry, n_series, n_rows)
