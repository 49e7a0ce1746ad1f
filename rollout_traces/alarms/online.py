"""A step is judged as it closes: has anything moved in the run's last steps that has not ended yet?

The series, the noise, the sizes and the control of false discoveries are those of `analysis`; only the last steps are looked
at, all rollouts together. Parts, causes and what shows in the whole run alone are left to the reader. A cheap screen
chooses the few series that are looked at; a series that raised an alarm begins anew, so that what lasts is said once.

A mean of rows says by its groups how sure it is. Of a logged number only its steps do: it is looked at where its last steps
lie twice as far from those before them as steps ever did within the trail, which holds for noise that lasts, tails, drift
and what comes again, as checkpoints, and further off than it goes from one step to the next; and then again while it
stays off, until what it does is sure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from rollout_traces.alarms.figures import (
    FIELDS,
    LENGTHS_OF_LOGGED,
    REACH_OF_LOGGED,
    TRAIL,
    Figures,
    far_as_never,
    is_beyond_memory,
    nothing_of,
)
from rollout_traces.analysis.compete import AlikeMovements, entries
from rollout_traces.analysis.curves import FEWEST_BESIDE, Series, SeriesName
from rollout_traces.analysis.detect import movements
from rollout_traces.analysis.detected_movement import RESIDUE, Moved
from rollout_traces.analysis.diagnosis import Diagnosis
from rollout_traces.analysis.entries import diagnosis_of
from rollout_traces.analysis.noise import DEVIATION, SMALLEST_ERROR, crude, fits_of, noise_of
from rollout_traces.analysis.panel import Panel, logged_panels
from rollout_traces.analysis.run_rows import FEWEST_HITS
from rollout_traces.analysis.scan import (
    SPIKE,
    Template,
    coefficients,
    n_tests,
    polynomials,
    whitened,
)
from rollout_traces.analysis.schedules import setting_changes
from rollout_traces.analysis.screen import (
    DRIFT_DEGREE,
    FEWEST_STEPS,
    all_noise,
    freedom_of,
    limits,
    log_chance,
    with_tails,
)
from rollout_traces.analysis.selections import NEIGHBOURS
from rollout_traces.analysis.severity import LEAP, is_worth_a_word
from rollout_traces.analysis.step_cells import MOST_FREEDOM, pooled
from rollout_traces.flags import needs_text

REACH = 8
"""Steps within which a movement has to have begun."""
LENGTHS = (1, 2, 3, 5, REACH)
"""Steps of the windows up to the newest step that are tried."""
WORTH_A_LOOK = 4.0
"""Standard errors by which such a window lies from the steps before it, for it to be looked at: what is a movement lies further."""


@dataclass(frozen=True, eq=False)
class Trail:
    """The last steps of S series, the newest last.

    Attributes:
        names: the series.
        parents: the columns that they are computed from.
        steps: int [S, T].
        known: int [S], how many of the steps are known, the last ones.
        table: float [5, S, T], see `figures.FIELDS`.
        home: float [S], where a series was before its last alarm; NaN without one.
        n_steps: steps that were judged so far.
        faults: flags of severity error -> the step, counted from the first one, that last had them.
        prompts: those of the newest step, see `Figures`.
        seen: int [S], how many of the steps there were of a series, those before its last alarm too.
        age: int [S], steps for which a logged number has lain far from those before; 0 where it does not.
        off: float [S], how far, when it began to.
        finite: logged numbers -> how often each was finite; None once it was not.
        again: whether the newest step asked the prompts of the one before, as an evaluation does: how prompts differ
            is no error then, and the steps tell how far they differ.
    """

    names: tuple[SeriesName, ...] = ()
    parents: tuple[str, ...] = ()
    steps: np.ndarray = field(default_factory=lambda: np.zeros((0, TRAIL), np.int64))
    known: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    table: np.ndarray = field(default_factory=lambda: np.zeros((len(FIELDS), 0, TRAIL)))
    home: np.ndarray = field(default_factory=lambda: np.zeros(0))
    n_steps: int = 0
    faults: Mapping[str, int] = field(default_factory=dict)
    prompts: int = 0
    seen: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    age: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    off: np.ndarray = field(default_factory=lambda: np.zeros(0))
    finite: Mapping[str, int | None] = field(default_factory=dict)
    again: bool = False


@dataclass(frozen=True, eq=False)
class Judged:
    """Movements that a step shows.

    Attributes:
        trail: with the step in it.
        found: what moved, as `explain` says it of a run.
        faults: flags of severity error that the run did not have lately -> the rollouts that carry them.
        lost: logged numbers that are NaN or infinite for the first time, and had been finite.
    """

    trail: Trail
    found: tuple[Diagnosis, ...] = ()
    faults: Mapping[str, int] = field(default_factory=dict)
    lost: tuple[str, ...] = ()


def judge(trail: Trail, figures: Figures) -> Judged:
    """Judges a step against those before it.

    Args:
        trail: the steps before.
        figures: the step's.
    """
    trail, at = _appended(trail, figures)
    faults = {
        name: n
        for name, n in figures.faults.items()
        if trail.n_steps - trail.faults.get(name, -FEWEST_STEPS) >= FEWEST_STEPS
    }
    trail = replace(trail, faults={**trail.faults, **dict.fromkeys(figures.faults, trail.n_steps)})
    lost = tuple(key for key in figures.lost if (trail.finite.get(key) or 0) >= FEWEST_BESIDE)
    trail = replace(trail, finite=_counted(trail.finite, figures))
    ready = at[trail.known[at] >= FEWEST_STEPS]
    moved: dict[int, Moved] = {}
    if len(ready) and trail.names[ready[0]].statistic == "logged":
        trail, turn = _in_turn(trail, ready)
        [limit, *_], _ = limits([np.zeros(1)] * len(ready), [np.zeros(1)] * len(ready))
        moved = {i: each for i in turn if (each := _movement(trail, i, limit)) is not None}
    elif len(ready):
        moved = _moved(trail, ready)
    said = entries(
        [each for i, each in moved.items() if is_worth_a_word(each) and not _is_back(trail, i, each)]
    )
    known = [(entry, diagnosis_of(entry, len(ready), float(figures.n_rows))) for entry in said]
    # what is not sure yet may be with the next steps
    waits = {name for entry, each in known if each.severity == "info" for name in _names_of(entry)}
    anew = {
        i: _level_before(trail, i, found) for i, found in moved.items() if found.panel.names[0] not in waits
    }
    loud = tuple(each for _, each in known if each.severity != "info")
    return Judged(_begun_anew(trail, anew), loud, faults, lost)


def _names_of(entry: AlikeMovements) -> Iterator[SeriesName]:
    for each in (entry, *entry.follows):
        yield from (found.panel.names[0] for found in each.found)


def _counted(finite: Mapping[str, int | None], figures: Figures) -> dict[str, int | None]:
    """How often each logged number was finite, with a step; None once it was not."""
    found = dict(finite)
    for name in figures.names:
        if name.statistic == "logged" and (n := found.get(name.column, 0)) is not None:
            found[name.column] = n + 1
    return found | dict.fromkeys(figures.lost)


def _in_turn(trail: Trail, ready: np.ndarray) -> tuple[Trail, list[int]]:
    """The trail with how long each logged number has been off, and those that are to be looked at now.

    One is looked at as it goes off, and at longer and longer intervals while its mean since then is off by half as much.

    Args:
        trail: the steps.
        ready: int [K], places of the numbers.
    """
    far, age, off = far_as_never(trail.table[0], trail.seen, ready), trail.age.copy(), trail.off.copy()
    for i in ready[age[ready] > 0].tolist():
        age[i] += 1
        values = trail.table[0, i]
        by = values[-age[i] :].mean() - np.median(values[-age[i] - NEIGHBOURS : -age[i]])
        if age[i] > REACH_OF_LOGGED or 2 * by * np.sign(off[i]) < abs(off[i]):
            age[i] = 0
    for i, by in far.items():
        if not age[i]:
            age[i], off[i] = 1, by
    turn = [i for i in ready.tolist() if i in far or age[i] in LENGTHS_OF_LOGGED]
    return replace(trail, age=age, off=off), [
        i for i in turn if is_beyond_memory(trail.table[0, i, TRAIL - int(trail.known[i]) :])
    ]


def _appended(trail: Trail, figures: Figures) -> tuple[Trail, np.ndarray]:
    """The trail with a step in it, and the places of its series, int [K]."""
    trail = _with_series(trail, figures)
    place = {name: i for i, name in enumerate(trail.names)}
    at = np.asarray([place[name] for name in figures.names], np.int64)
    steps, known, table = trail.steps.copy(), trail.known.copy(), trail.table.copy()
    seen = trail.seen.copy()
    steps[at, :-1], steps[at, -1] = steps[at, 1:], figures.step
    table[:, at, :-1], table[:, at, -1] = table[:, at, 1:], figures.table
    known[at], seen[at] = np.minimum(known[at] + 1, TRAIL), np.minimum(seen[at] + 1, TRAIL)
    again = figures.prompts != 0 and figures.prompts == trail.prompts
    return replace(
        trail,
        steps=steps,
        known=known,
        seen=seen,
        table=table,
        n_steps=trail.n_steps + 1,
        prompts=figures.prompts,
        again=again,
    ), at


def as_plain(figures: Figures) -> dict[str, Any]:
    """A step's figures as JSON-safe values: they are stored with the step."""
    return {
        "step": figures.step,
        "names": [list(name) for name in figures.names],
        "parents": figures.parents,
        "table": [[float(f"{value:.6g}") for value in field] for field in figures.table.tolist()],
        "faults": dict(figures.faults),
        "n_rows": figures.n_rows,
        "prompts": figures.prompts,
    }


def remembered(steps: Iterable[Mapping[str, Any]]) -> Trail:
    """The trail of some steps, oldest first, as `as_plain` gave them."""
    trail = Trail()
    for known in steps:
        names = tuple(SeriesName(*name) for name in known["names"])
        table = np.asarray(known["table"], float).reshape(len(FIELDS), len(names))
        figures = Figures(
            known["step"],
            names,
            tuple(known["parents"]),
            table,
            known["faults"],
            known["n_rows"],
            known["prompts"],
        )
        trail = judge(trail, figures).trail
    return trail


def _with_series(trail: Trail, figures: Figures) -> Trail:
    """The trail with room for series that are new: a value that comes was never there before."""
    known = set(trail.names)
    new = [i for i, name in enumerate(figures.names) if name not in known]
    if not new:
        return trail
    place = {name: i for i, name in enumerate(trail.names)}
    base = [_nothing(figures.names[i], place) for i in new]
    blank = np.zeros((len(FIELDS), 1, TRAIL))
    return replace(
        trail,
        names=(*trail.names, *(figures.names[i] for i in new)),
        parents=(*trail.parents, *(figures.parents[i] for i in new)),
        steps=np.concatenate(
            [
                trail.steps,
                *(trail.steps[b : b + 1] if b is not None else np.zeros((1, TRAIL), np.int64) for b in base),
            ]
        ),
        known=np.r_[trail.known, [trail.known[b] if b is not None else 0 for b in base]].astype(np.int64),
        table=np.concatenate(
            [trail.table, *(trail.table[:, b : b + 1] if b is not None else blank for b in base)], axis=1
        ),
        home=np.r_[trail.home, np.full(len(new), np.nan)],
        age=np.r_[trail.age, np.zeros(len(new), np.int64)],
        off=np.r_[trail.off, np.zeros(len(new))],
        seen=np.r_[trail.seen, [trail.seen[b] if b is not None else 0 for b in base]].astype(np.int64),
    )


def _nothing(name: SeriesName, place: Mapping[SeriesName, int]) -> int | None:
    """The series of what no row had, of a value's column; None for a number."""
    if name.statistic != "share" or not name.value:
        return None
    drawn = place.get(nothing_of(name.column, True)) if needs_text(name.value) else None
    return drawn if drawn is not None else place.get(nothing_of(name.column, False))


def _begun_anew(trail: Trail, anew: Mapping[int, float]) -> Trail:
    """The trail where some series begin anew, each with where it was before."""
    if not anew:
        return trail
    known, home, age = trail.known.copy(), trail.home.copy(), trail.age.copy()
    at = list(anew)
    known[at], home[at], age[at] = 0, list(anew.values()), 0
    return replace(trail, known=known, home=home, age=age)


def _moved(trail: Trail, ready: np.ndarray) -> dict[int, Moved]:
    """Series -> its movement that began within the last steps and goes on, where there is one."""
    sizes = {int(n): ready[trail.known[ready] == n] for n in np.unique(trail.known[ready])}
    chances = np.zeros(len(ready))
    for n, at in sizes.items():
        values = trail.table[0, at, TRAIL - n :]
        of_groups = np.sqrt(np.median(_errors(trail, at, n), axis=1))
        away, since = _apart(values, np.maximum(_between(values), of_groups), LENGTHS)
        worth = away > WORTH_A_LOOK
        if worth.any():
            chances[np.isin(ready, at[worth])] = _log_p(trail, at[worth], n, since[worth])
    allowed, _ = limits([chances[i : i + 1] for i in range(len(ready))], [np.zeros(1)] * len(ready))
    found = {}
    for i, chance, limit in zip(ready.tolist(), chances.tolist(), allowed, strict=True):
        if chance <= limit[0] and (movement := _movement(trail, i, limit)) is not None:
            found[i] = movement
    return found


def _apart(values: np.ndarray, scale: np.ndarray, among: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Measures how many standard errors the last steps of a series lie from as many before them, `NEIGHBOURS` at least, float [K], and how many steps, int [K].

    Args:
        values: float [K, n].
        scale: float [K], the noise of a step.
        among: numbers of last steps that are tried.
    """
    scale = np.maximum(scale, SMALLEST_ERROR * np.maximum(np.abs(values).max(axis=1), SMALLEST_ERROR))
    sizes = np.zeros((len(among), len(values)))
    for row, length in enumerate(among):
        if values.shape[1] >= length + FEWEST_STEPS - 1:
            n_before = max(length, NEIGHBOURS)
            before = np.median(values[:, -length - n_before : -length], axis=1)
            error = scale * np.sqrt(1 / length + 1 / n_before)
            sizes[row] = np.abs(values[:, -length:].mean(axis=1) - before) / error
    best = np.argmax(sizes, axis=0)
    return sizes[best, np.arange(len(values))], np.asarray(among)[best]


def _between(values: np.ndarray) -> np.ndarray:
    """float [K]: the noise of a step by how far neighbours differ."""
    return np.median(np.abs(np.diff(values, axis=1)), axis=1) / np.sqrt(2) * DEVIATION


def _errors(trail: Trail, at: np.ndarray, n: int) -> np.ndarray:
    """float [K, n]: variance of each mean from its groups; 0 where it is not known.

    Where prompts are asked again, groups differ as they always do: a share that few rows have is as sure as they make it.

    Of what training pays, groups of the newest step differ by no more than those of any step before: rewards of a
    group that are off make a mean no less sure, they are what is off.
    """
    means, rows, squares, mass, spread = trail.table[:, at, TRAIL - n :]
    if trail.again:
        is_share = np.asarray([trail.names[i].value is not None for i in at])
        usual = (means * rows).sum(axis=1, keepdims=True) / np.maximum(rows.sum(axis=1, keepdims=True), 1.0)
        is_rare = is_share[:, None] & (np.minimum(usual, 1 - usual) * rows < FEWEST_HITS)
        return np.where(is_rare, usual * (1 - usual) / np.maximum(rows, 1.0), 0.0)
    by_mass = squares / np.where(mass > 0, mass, 1.0)
    most = by_mass[:, :-1].max(axis=1, initial=0.0) * mass[:, -1]
    paid = np.asarray([_is_paid(trail.names[i]) for i in at]) & (most > 0)
    squares = squares.copy()
    squares[paid, -1] = np.minimum(squares[paid, -1], most[paid])
    return pooled(squares, mass).reshape(squares.shape) * spread


def _is_paid(name: SeriesName) -> bool:
    """Tells whether a series is the mean of what training pays or of a component of it."""
    return name.is_paid and name.value is None and name.statistic == "mean"


def _panel(trail: Trail, at: np.ndarray, n: int) -> Panel:
    names = tuple(trail.names[i] for i in at)
    values, rows = trail.table[:2, at, TRAIL - n :]
    if names[0].statistic == "logged":
        steps = np.arange(n)  # of one panel, whatever steps each of them was logged at
        [panel] = logged_panels(
            Series(name, (), steps, each, np.empty(0)) for name, each in zip(names, values, strict=True)
        )
        return replace(panel, steps=trail.steps[at[0], TRAIL - n :])
    parents = tuple(trail.parents[i] for i in at)
    return Panel(
        trail.steps[at[0], TRAIL - n :],
        names,
        ((),) * len(names),
        values,
        _errors(trail, at, n),
        rows,
        rows,
        parents,
        values,
        np.asarray([MOST_FREEDOM if trail.again or name.value is not None else np.nan for name in names]),
        control=np.zeros(len(names)),
    )


def _log_p(trail: Trail, at: np.ndarray, n: int, since: np.ndarray) -> np.ndarray:
    """float [K]: log of the chance of what each series does in its last steps, anywhere in the run so far.

    Args:
        trail: the steps.
        at: the series.
        n: steps that are known of them.
        since: int [K], the last steps that lie apart, which are taken out before the noise is looked at.
    """
    panel = _panel(trail, at, n)
    inside = np.arange(n) >= n - since[:, None]
    basis = np.broadcast_to(polynomials(n, DRIFT_DEGREE), (len(at), DRIFT_DEGREE + 1, n))
    wider = np.concatenate([basis, inside[:, None]], axis=1)
    noise, _ = noise_of(panel.values, panel.errors, fits_of(panel.values, panel.errors, wider))
    noise = with_tails(panel, noise, wider)
    sharp, smooth = whitened(panel.values, noise, basis), whitened(noise.clipped, noise, basis)
    freedom = freedom_of(panel)
    sizes, tails = [], []
    for length in LENGTHS:
        if n >= length + FEWEST_STEPS - 1:
            is_spike = length <= SPIKE
            size, _ = coefficients(sharp if is_spike else smooth, Template("level", n - length, n).over(n))
            sizes.append(size)
            tails.append(np.minimum(freedom, noise.freedom * length) if is_spike else freedom)
    chances = log_chance(np.stack(sizes), np.stack(tails)).min(axis=0)
    return np.minimum(np.log(n_tests(max(trail.n_steps, n))) + chances, 0.0)


def _movement(trail: Trail, i: int, limit: np.ndarray) -> Moved | None:
    """Finds what a series does at its newest step, as in a whole run."""
    n = int(trail.known[i])
    panel = _panel(trail, np.asarray([i]), n)
    is_set = bool(trail.names[i].statistic == "logged" and setting_changes(panel) is not None)
    [noise] = [crude(panel.values, panel.errors)] if is_set else all_noise([panel])
    reach = REACH_OF_LOGGED if trail.names[i].statistic == "logged" else REACH
    further = np.log(max(trail.n_steps, n) / n)
    for found in movements(panel, noise, limit - further, limit - further):
        template = found.template
        is_new = template.start >= n - reach and bool(template.inside(n)[-1])
        if is_new and not found.drift and _is_of_several(panel, template) and not _may_be_once(found):
            return found
    return None


def _may_be_once(found: Moved) -> bool:
    """Tells whether a logged number was off at its newest step alone by less than `LEAP` times, as the time of a step that writes a checkpoint."""
    values, start = found.panel.levels[0], found.template.start
    if found.panel.names[0].statistic != "logged" or start < len(values) - 1 or values.min() <= 0:
        return False
    return bool(abs(np.log(values[start] / np.median(values[:start]))) < np.log(LEAP))


def _is_of_several(panel: Panel, template: Template) -> bool:
    """Tells whether several rows have another value than as many had before; of a mean, always."""
    if panel.names[0].value is None:
        return True
    inside, levels, rows = template.inside(len(panel.steps)), panel.levels[0], panel.rows[0]
    before = float(np.average(levels[~inside], weights=rows[~inside])) if rows[~inside].any() else 0.0
    return bool(abs(((levels - before) * rows)[inside].sum()) >= FEWEST_HITS)


def _level_before(trail: Trail, i: int, found: Moved) -> float:
    return float(np.median(trail.table[0, i, TRAIL - len(found.panel.steps) :][: found.template.start]))


def _is_back(trail: Trail, i: int, found: Moved) -> bool:
    """Tells whether a series only went back to where it was before its last alarm."""
    before, now, home = _level_before(trail, i, found), float(trail.table[0, i, -1]), float(trail.home[i])
    return abs(now - home) < RESIDUE * abs(before - home)
