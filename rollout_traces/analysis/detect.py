"""Movements of one measure, one after the other, each one's smallest part; the changes of a setting, as they are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from rollout_traces.analysis.detected_movement import (
    Moved,
    behind,
    beside,
    constant_basis,
    from_its_end,
    is_rest_of,
    outlasts,
    rows_of_basis,
    stands,
    there_and_back,
)
from rollout_traces.analysis.learning import may_be_learned
from rollout_traces.analysis.noise import (
    OF_LEVEL,
    Noise,
    clipped,
    fits_of,
    is_occasional,
    is_setting,
    noise_of,
)
from rollout_traces.analysis.panel import ROUNDING, Panel
from rollout_traces.analysis.parts import Chosen, smallest_part
from rollout_traces.analysis.scan import (
    SPIKE,
    Located,
    Template,
    Whitened,
    locate,
    n_tests,
    polynomials,
    whitened,
)
from rollout_traces.analysis.screen import (
    DRIFT_DEGREE,
    FEWEST_EVALUATIONS,
    Scanned,
    few_values,
    freedom_of,
    log_chance,
    scan,
)
from rollout_traces.analysis.slow_change import (
    beside_learning,
    came_or_went,
    drift_of_run,
    goes_along,
    is_needed,
    learning_is_likelier,
    may_be_slow,
    since_it_bent,
    turns,
    with_curve,
)

MOST_MOVEMENTS = 6
"""Movements of one measure that are looked for, one after the other."""
MOST_ASIDE = 4
"""Times that what looks like one and is none, or is the rest of one, is passed over."""
LASTING = -9.0
"""Log of the chance below which something that lasts is sure: one in a hundred series reaches it whose noise alone lasts
(120 each of 40 to 60 steps with correlations of 0.5 to 0.95) ..."""
LASTING_LOGGED = -12.5
"""... of a logged number, of which a run has dozens ..."""
LASTING_BESIDE = -5.0
"""... and of a part beside the rest of its groups or steps, in which what lasts for all is not."""


def movements(panel: Panel, noise: Noise, limit: np.ndarray, sure: np.ndarray) -> list[Moved]:
    """The movements of a measure, the surest first, each of its smallest part.

    Args:
        panel: the series of the measure; one series for a logged scalar.
        noise: theirs.
        limit: float [S], log p up to which each series has moved.
        sure: float [S], log p up to which that is hardly chance.
    """
    n = len(panel.steps)
    if (changes := setting_changes(panel)) is not None:
        changed = [_set(panel, noise, located, float(sure[0])) for located in changes]
        return [each for each in changed if each.log_p <= limit[0]]
    basis = constant_basis(panel)
    learning: Moved | None = None
    kept: list[Moved] = []
    rests: list[np.ndarray] = []
    noise = replace(noise, variance=noise.variance.copy())
    if panel.is_centred and panel.carried:  # what carries a step takes from all others
        noise.variance[0, list(panel.carried)] = np.inf
    aside = 0
    while len(kept) <= MOST_MOVEMENTS and aside <= MOST_ASIDE:
        best, w = scan(panel, noise, basis)
        at = int(np.lexsort((-best.evidence, best.log_p - limit))[0])
        moves = bool(best.log_p[at] <= limit[at])
        if learning is None and n >= FEWEST_EVALUATIONS and may_be_learned(panel, panel.parts[at]):
            smooth = beside_learning(panel, noise, basis)
            is_slow = (
                not came_or_went(panel, [at], best.template(at, n))
                and learning_is_likelier(panel, noise, basis, best, at)
                if moves
                else _moves_beside(*smooth, limit)
            )
            if is_slow:
                learning = drift_of_run(panel, noise, basis, at)
                panel, noise, basis = smooth
                continue
        if not moves:
            break
        found = _found(panel, noise, basis, best, w, at)
        if found is None or found.log_p > limit[at]:
            _set_aside(noise, best, at)
            aside += 1
            continue
        found = next((behind(found, other) for other in kept if outlasts(found, other)), found)
        is_new = came_or_went(panel, list(found.chosen.members), found.template)
        slow = not is_new and (is_of_phrase(panel) or (may_be_slow(found, w, best, at) and not turns(found)))
        plain = slow or is_new or _beyond_noise(found) <= _lasting(found, float(sure[at]))
        is_sure = plain and bool(found.log_p <= sure[at])
        found = replace(found, drift=slow, is_sure=is_sure)
        rows = rows_of_basis(found)
        if any(is_rest_of(found, other) for other in kept):
            aside += 1
            rests += list(rows)
        else:
            kept.append(found)
        basis = beside(basis, rows)
    others = [each for each in kept if stands(each, basis, rests)]
    learned = [] if learning is None or not is_needed(learning, others) else [since_it_bent(learning, others)]
    for bent in learned:
        others = [each for each in others if stands(each, beside(basis, rows_of_basis(bent)), rests)]
        others = [replace(each, drift=each.drift or goes_along(each, bent)) for each in others]
    return learned + [from_its_end(each) for each in there_and_back(others)]


def _moves_beside(panel: Panel, noise: Noise, basis: np.ndarray, limit: np.ndarray) -> bool:
    """Tells whether a series moves beside slow change, for several steps, so that neither shows without the other."""
    best, _ = scan(panel, noise, basis)
    lasts = (best.kind != "window") | (best.length > SPIKE)
    return bool((lasts & (best.log_p + np.log(2.0) <= limit)).any())


def is_of_phrase(panel: Panel) -> bool:
    """Tells whether a series is of what many texts hold: longer answers hold more of everything, and one that is learned takes the place of others."""
    return panel.names[0].column == "written"


def _set(panel: Panel, noise: Noise, located: Located, sure: float) -> Moved:
    """A change of a setting, by how many steps show it."""
    n = len(panel.steps)
    inside = int(located.template.inside(n).sum())
    size = abs(located.z) * np.sqrt(max(min(inside, n - inside), 1))
    log_p = float(np.log(n_tests(n)) + log_chance(np.asarray(size), freedom_of(panel)[0]))
    chosen = Chosen(0, panel.parts[0], (0,))
    return Moved(
        panel,
        constant_basis(panel),
        noise,
        located,
        chosen,
        log_p,
        is_sure=log_p <= sure,
        is_set=is_logged(panel),
    )


def _lasting(found: Moved, sure: float) -> float:
    """Log of the chance below which a movement is no noise that lasts."""
    if found.panel.control[found.chosen.at] == 1:
        return LASTING_BESIDE
    return min(sure, LASTING if found.panel.source is not None else LASTING_LOGGED)


def _beyond_noise(found: Moved) -> float:
    """Log of the chance that a movement of several steps is the series' noise, of whatever spread and memory; of a spike, which this cannot tell, minus infinity.

    By the likelihood with and without it, beside a level or a slow drift, whichever is likelier (Wilks 1938).
    """
    template, n = found.template, len(found.panel.steps)
    if template.kind == "window" and template.stop - template.start <= SPIKE:
        return -np.inf
    at = np.asarray([found.chosen.at])
    own, others = template.over(n)[None], found.basis[found.chosen.at, 1:]
    smooth = polynomials(n, DRIFT_DEGREE)
    slow = [np.concatenate([smooth[:1], np.zeros_like(smooth[1:])])]
    if may_be_learned(found.panel, found.panel.parts[found.chosen.at]):
        slow.append(smooth)
    bases = [np.concatenate([drift, moved, others]) for moved in (np.zeros_like(own), own) for drift in slow]
    values, errors = (
        np.repeat(each[at], len(bases), axis=0) for each in (found.panel.values, found.panel.errors)
    )
    prior = np.repeat(found.noise.prior[at], len(bases), axis=0)
    fits = replace(fits_of(values, errors, np.stack(bases)), prior=prior)
    likely = noise_of(values, errors, fits)[1].reshape(2, len(slow))
    likely[:, 1:] -= DRIFT_DEGREE * np.log(n) / 2
    without, beside = likely.max(axis=1)
    gained = max(beside - without, 0.0)
    return float(np.log(n_tests(n)) + log_chance(np.sqrt(2 * gained), np.asarray(np.inf)))


def _set_aside(noise: Noise, best: Scanned, at: int) -> None:
    """Takes away the weight of steps that look like a movement and are none."""
    start, length = int(best.start[at]), int(best.length[at])
    noise.variance[at, start : start + min(length, SPIKE)] = np.inf


def _found(
    panel: Panel, noise: Noise, basis: np.ndarray, best: Scanned, w: Whitened, at: int
) -> Moved | None:
    own = noise.at(np.asarray([at]))
    is_spike = best.kind[at] == "window" and best.length[at] <= few_values(panel.values[at : at + 1])[0]
    one = whitened(panel.values[at : at + 1] if is_spike else own.clipped, own, basis[at : at + 1])
    if is_spike:
        w = whitened(panel.values, noise, basis)
    located = locate(one, best.kind[at], int(best.start[at]), int(best.length[at]))
    chosen = smallest_part(panel, w, located.template, at)
    if chosen.values is None:
        chosen = smallest_part(panel, _beside_drift(panel, noise, basis, is_spike), located.template, at)
    if panel.is_centred and chosen.values is None:  # what one part gains others lose
        return None
    if panel.source is not None and not _is_of_several(panel, chosen, located.template):
        return None
    log_p = float(best.log_p[at])
    if panel.is_share and panel.control[at] < 1:
        exact = share_sizes(panel, at, located.template, basis[at])
        chance = np.log(n_tests(len(panel.steps))) + float(log_chance(np.asarray(exact), np.asarray(np.inf)))
        inside = located.template.inside(len(panel.steps))
        is_new = (
            inside.sum() > SPIKE and not np.nan_to_num(panel.levels[list(chosen.members)][:, ~inside]).any()
        )
        log_p = min(chance, 0.0) if is_new else max(log_p, min(chance, 0.0))
    if chosen.values is not None and chosen.members != (at,):
        joined = joined_series(panel, noise, chosen.members)
        pooled = whitened(joined[0] if is_spike else joined[1].clipped, joined[1], basis[chosen.at][None])
        located = locate(
            pooled,
            located.template.kind,
            located.template.start,
            located.template.stop - located.template.start,
        )
    return Moved(panel, basis, noise, located, chosen, log_p)


FEWEST_ROWS = 5
"""Rows that a movement rests on, at least ..."""
FEWEST_GROUPS = 3
"""... and groups of a part: what fewer do is no habit of it."""


def _is_of_several(panel: Panel, chosen: Chosen, template: Template) -> bool:
    """Tells whether several rows are behind a movement and behind what is not of it; of a part, of several groups."""
    members = list(chosen.members)
    inside = template.inside(len(panel.steps))
    for counted, least in ((panel.rows, FEWEST_ROWS), (panel.groups, FEWEST_GROUPS if chosen.values else 0)):
        n_T = counted[members].sum(axis=0)
        if min(n_T[inside].sum(), n_T[~inside].sum()) < least:
            return False
    return True


def _beside_drift(panel: Panel, noise: Noise, basis: np.ndarray, is_spike: bool) -> Whitened:
    """The series beside slow change too: where all learn, those outside of a part moved as well."""
    values = panel.values if is_spike else noise.clipped
    return whitened(values, noise, with_curve(basis))


def joined_series(panel: Panel, noise: Noise, members: Sequence[int]) -> tuple[np.ndarray, Noise]:
    """Several parts' series as one, float [1, T], weighted by their rows."""
    at = np.asarray(members)
    rows = np.where(np.isfinite(panel.values[at]), panel.rows[at], 0.0)
    total = rows.sum(axis=0)
    with np.errstate(invalid="ignore", divide="ignore"):
        values = (np.nan_to_num(panel.values[at]) * rows).sum(axis=0) / total
        variance = (np.where(rows > 0, noise.variance[at], 0.0) * rows**2).sum(axis=0) / total**2
    variance = np.where(total > 0, variance, np.inf)
    memory, freedom = noise.memory[at].max(keepdims=True), noise.freedom[at].min(keepdims=True)
    return values[None], Noise(
        variance[None], memory, freedom, clipped(values[None], variance[None]), noise.prior[at[:1]]
    )


def spikes_of_rows(panel: Panel, noise: Noise, limit: np.ndarray) -> list[Moved]:
    """The steps that a handful of rows carry away from the step's other rows and from the other steps, against the noise and the tail of the rows."""
    if not panel.carried or panel.parts[0] != ():
        return []
    n = len(panel.steps)
    found = []
    for at, carried in panel.carried.items():
        whole = carried.level
        error = np.sqrt(noise.variance[0, at])
        others = np.delete(panel.levels[0], at)
        usual = np.median(others[np.isfinite(others)]) if np.isfinite(others).any() else whole
        apart = carried.apart or min(whole - panel.levels[0, at], whole - usual, key=abs)
        z = float(apart / error) if np.isfinite(error) and error > 0 else 0.0
        by_noise = float(np.log(n_tests(n)) + log_chance(np.asarray(z), freedom_of(panel)[0]))
        log_p = max(by_noise, carried.log_p)
        if np.isfinite(z) and log_p <= limit[0]:
            located = Located(Template("window", at, at + 1), (at, at), (at, at), float(z))
            levels = panel.levels.copy()
            levels[0, at] = whole
            chosen = Chosen(0, (), (0,))
            found.append(
                Moved(
                    replace(panel, levels=levels),
                    constant_basis(panel),
                    noise,
                    located,
                    chosen,
                    log_p,
                    n_carriers=carried.n_rows,
                )
            )
    return found


def share_sizes(panel: Panel, at: int, template: Template, basis: np.ndarray) -> float:
    """The signed root of twice the log likelihood ratio between two binomial shares, rows divided by what groups share.

    Args:
        panel: the series.
        at: which of them.
        template: where the share may differ.
        basis: float [K, T], the movements beside it, whose steps are left out.
    """
    share, n, error = panel.levels[at], panel.rows[at], panel.errors[at]
    there = np.isfinite(share) & (n > 0)
    inside = template.inside(len(panel.steps)) & there
    busy = np.zeros(len(panel.steps), bool)
    for known in basis:
        busy |= (known != 0) & ((known == 0) | (known == 1)).all()
    outside = there & ~inside & ~busy
    if not outside.any():
        outside = there & ~inside
    if not inside.any() or not outside.any():
        return 0.0
    share = np.where(there, share, 0.0)
    overall = float((share * n)[there].sum() / n[there].sum())
    plain = overall * (1 - overall) / n[there]
    with np.errstate(invalid="ignore", divide="ignore"):
        clustered = float(np.nanmedian(error[there] / plain)) if overall not in (0.0, 1.0) else 1.0
    clustered = max(1.0, clustered) if np.isfinite(clustered) else 1.0
    counts = [float(n[steps].sum() / clustered) for steps in (inside, outside)]
    shares = [float((share * n)[steps].sum() / n[steps].sum()) for steps in (inside, outside)]
    pooled = float(np.average(shares, weights=counts))
    ratio = sum(
        c * (_term(s, pooled) + _term(1 - s, 1 - pooled)) for c, s in zip(counts, shares, strict=True)
    )
    return float(np.sqrt(2 * max(ratio, 0.0)) * np.sign(shares[0] - shares[1]))


def _term(share: float, pooled: float) -> float:
    return share * float(np.log(share / pooled)) if share > 0 and pooled > 0 else 0.0


MOST_CHANGES = 6
"""Changes of a setting; a number that has more is counted, not set."""


@dataclass(frozen=True)
class _Change:
    """From one value to another, over a step or over several that follow each other."""

    start: int
    stop: int
    before: float
    after: float


def setting_changes(panel: Panel) -> list[Located] | None:
    """The changes of a logged number that somebody set, or that counts, each with its size in what it may go on by.

    Args:
        panel: one series for a logged scalar.

    Returns:
        The changes in their order, none of a number that keeps to its schedule; None where it is another kind of series, or changes too often.
    """
    levels_T = panel.levels[0]
    if panel.measure is not None or not np.isfinite(levels_T).all():
        return None
    if counts(levels_T):
        return []
    if is_logged(panel) and is_setting(levels_T[None])[0] and is_occasional(levels_T):
        return None
    if is_setting(levels_T[None])[0] or is_scheduled(levels_T) or is_steered(levels_T):
        return changes_of(*jumps_of(levels_T))
    return None


def is_logged(panel: Panel) -> bool:
    """Tells whether a series is a number that the trainer logged."""
    return panel.names[0].statistic == "logged"


def counts(values_T: np.ndarray) -> bool:
    """Tells whether a number counts something, as tokens, samples or hours since the run began, or since it was resumed: that it rises is no news."""
    by = np.diff(values_T)
    usual = np.median(by)
    from_nothing = (values_T == np.round(values_T)).all() or BESIDE * values_T[0] <= values_T.max()
    alike = np.median(np.abs(by - usual)) < usual / 2
    return bool(from_nothing and alike) and int((by <= 0).sum()) <= MOST_CHANGES


SMOOTH = 1 / 2
"""A number without noise changes its rate less and less: what is left is less than this much at each further difference."""
BESIDE = 5
"""Steps to each side of one that say by how much a schedule goes on ..."""
JUMPS = 2.0
"""... and times that by which it goes on where it jumps."""


def is_scheduled(values_T: np.ndarray) -> bool:
    """Tells whether a number follows a smooth curve without any noise, as a learning rate does that is warmed up and decays.

    Args:
        values_T: float [T], without gaps.
    """
    curve, left = (float(np.median(np.abs(np.diff(values_T, n)))) for n in (2, 3))
    return left <= max(SMOOTH * curve, ROUNDING * float(np.abs(values_T).max()))


def is_steered(values_T: np.ndarray) -> bool:
    """Tells whether a number goes up and down by much the same small step, as a coefficient does that a controller adapts.

    Args:
        values_T: float [T], without gaps.
    """
    by = np.diff(values_T)
    usual = float(np.median(np.abs(by)))
    both_ways = min((by > 0).sum(), (by < 0).sum()) >= BESIDE
    is_even = np.abs(by).max() <= (1 + JUMPS) * usual
    return bool(both_ways and is_even and np.median(np.abs(np.diff(by))) <= SMOOTH * usual)


def jumps_of(values_T: np.ndarray) -> tuple[np.ndarray, float]:
    """A schedule without what it goes on by between its jumps, float [T], and what it may go on by where they are."""
    by = np.diff(values_T)
    padded = np.pad(np.abs(by), BESIDE, mode="reflect")
    around = np.lib.stride_tricks.sliding_window_view(padded, 2 * BESIDE + 1)
    usual = np.maximum(*(np.median(side, axis=1) for side in (around[:, :BESIDE], around[:, BESIDE + 1 :])))
    jumped = np.abs(by) > JUMPS * usual
    usual_at_jumps = max(
        float(np.max(usual, where=jumped, initial=0.0)), OF_LEVEL * float(np.abs(values_T).max())
    )
    return values_T[0] + np.concatenate([[0.0], np.cumsum(np.where(jumped, by, 0.0))]), (
        1 + JUMPS
    ) * usual_at_jumps


def changes_of(values_T: np.ndarray, error: float) -> list[Located] | None:
    """Changes: there and back as a window, several steps of one direction as a ramp, else a level.

    Args:
        values_T: float [T], without gaps.
        error: what a value may differ by and be the same.

    Returns:
        The changes in their order; None where these are no changes of a setting.
    """
    n = len(values_T)
    apart = np.diff(values_T)
    changes: list[_Change] = []
    for at in (np.flatnonzero(np.abs(apart) > error) + 1).tolist():
        before, after = float(values_T[at - 1]), float(values_T[at])
        earlier = changes[-1] if changes else None
        if earlier and earlier.stop == at and (earlier.after - earlier.before) * (after - before) > 0:
            changes[-1] = _Change(earlier.start, at + 1, earlier.before, after)
        else:
            changes.append(_Change(at, at + 1, before, after))
    if len(changes) > 1 and np.ptp([change.after - change.before for change in changes]) <= error:
        return []  # as an epoch does
    if len(changes) > MOST_CHANGES:
        return None
    found = []
    while changes:
        first = changes.pop(0)
        size = (first.after - first.before) / error
        back = changes[0] if changes else None
        stood = first.start > 1  # a first step alone, as of a warm-up, is no level to come back to
        if back is not None and stood and abs(back.after - first.before) <= error:
            changes.pop(0)
            window = Template("window", first.start, back.start)
            end = back.start - 1, back.stop - 2
            found.append(Located(window, (first.start, first.stop - 1), end, size))
        elif first.stop - first.start > 1:
            ramp = Template("ramp", first.start, first.stop)
            found.append(Located(ramp, (first.start, first.start), None, size))
        else:
            found.append(Located(Template("level", first.start, n), (first.start, first.start), None, size))
    return found
