"""Movements of one measure, one after the other, each one's smallest part."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from rollout_traces.analysis.compare import DISCOVERY
from rollout_traces.analysis.compete import is_learning
from rollout_traces.analysis.curves import is_size
from rollout_traces.analysis.detected_movement import (
    RESIDUE,
    Moved,
    beside,
    constant_basis,
    from_its_end,
    from_its_first,
    is_rest_of,
    is_spike,
    log_chance_of_groups,
    of_chosen,
    rows_of_basis,
    since_it_was_lost,
    stands,
    there_and_back,
)
from rollout_traces.analysis.kinks import goes_along, kink_of, since_it_bent, since_its_kink, turns
from rollout_traces.analysis.learning import is_mix, may_be_learned
from rollout_traces.analysis.noise import TINY, Noise, fits_of, noise_of
from rollout_traces.analysis.panel import Panel
from rollout_traces.analysis.parts import (
    Chosen,
    is_of_several,
    share_sizes,
    since_it_differs,
    smallest_part,
    untouched,
)
from rollout_traces.analysis.run_rows import BY_OUTCOME
from rollout_traces.analysis.scan import (
    SPIKE,
    Located,
    Template,
    Whitened,
    lengths,
    locate,
    n_tests,
    polynomials,
    whitened,
)
from rollout_traces.analysis.schedules import is_logged, likelihood_of_wandering, setting_changes
from rollout_traces.analysis.screen import (
    DRIFT_DEGREE,
    FEWEST_EVALUATIONS,
    Scanned,
    few_values,
    freedom_of,
    log_chance,
    lone_steps,
    scan,
)
from rollout_traces.analysis.slow_change import (
    OfAll,
    beside_learning,
    came_or_went,
    drift_of_run,
    gain,
    is_loss,
    is_needed,
    is_of_rewards,
    learning_is_likelier,
    less_of_all,
    may_be_slow,
    nobody_learns,
    shows_beside_learned,
    with_curve,
)

MOST_MOVEMENTS = 6
"""Movements of one measure that are looked for, one after the other."""
MOST_ASIDE = 4
"""Times that what looks like one and is none, or is the rest of one, is passed over."""
LASTING = -11.0
"""Log of the chance below which something that lasts is sure: one in thirty series reaches it whose noise alone lasts
(60 each of 60 steps with correlations of 0.5, 0.8, 0.9 and 0.95) ..."""
LASTING_NOT = -8.0
"""... where what is left of the series beside the movement looks as if no noise of it lasted ..."""
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
    if (changes := setting_changes(panel)) is not None:
        changed = [_set(panel, noise, located, float(sure[0])) for located in changes]
        return [each for each in changed if each.log_p <= limit[0]]
    if panel.is_centred and panel.carried:  # what carries a step takes from all others
        noise = replace(noise, variance=noise.variance.copy())
        noise.variance[0, list(panel.carried)] = np.inf
    found = _beside_learning(panel, noise, limit, sure)
    lone = _lone(panel, noise, float(sure[0])) if is_logged(panel) else None
    if lone is None or lone.log_p > min(float(limit[0]), np.log(DISCOVERY)):
        return found
    own = lone.template
    spikes = [each for each in found if is_spike(each) and each.located.z * lone.located.z > 0]
    same = next((m for m in spikes if m.template.start < own.stop and own.start < m.template.stop), None)
    if same is None:
        return [lone, *found]
    surer = replace(same, log_p=min(same.log_p, lone.log_p), is_sure=same.is_sure or lone.is_sure)
    return [surer if each is same else each for each in found]


def _lone(panel: Panel, noise: Noise, sure: float) -> Moved:
    """The steps of a logged number that lie furthest from all others, as a movement."""
    at, log_p = lone_steps(panel, 0)
    away = np.nanmean(panel.values[0, at]) - np.nanmedian(panel.values[0])
    z = float(away / np.sqrt(max(noise.variance[0, at].min(), TINY)))
    first, last = at.start, at.stop - 1
    located = Located(Template("window", first, at.stop), (first, first), (last, last), z)
    return Moved(
        panel, constant_basis(panel), noise, located, Chosen(0, (), (0,)), log_p, is_sure=log_p <= sure
    )


def _beside_learning(panel: Panel, noise: Noise, limit: np.ndarray, sure: np.ndarray) -> list[Moved]:
    """The movements of a measure, as they are or beside slow change, whichever is likelier."""
    found = _search(panel, noise, limit, sure, None, _may_drift(panel))
    lasting = [each for each in found if each.template.kind != "window" and not is_learning(each)]
    if not lasting or any(is_learning(each) for each in found) or not _may_drift(panel):
        return found
    chosen = lasting[0].chosen
    learner = chosen.at if may_be_learned(panel, panel.parts[chosen.at]) else 0
    learns = not panel.is_centred and may_be_learned(panel, panel.parts[learner])
    if not learns or _is_sampled(panel, apart := _drifts_apart(panel, noise)):
        return found
    if came_or_went(panel, list(chosen.members), lasting[0].template):
        return found
    learning = drift_of_run(panel, noise, constant_basis(panel), learner, apart)
    others = _search(panel, noise, limit, sure, learning, True)
    if not any(is_learning(each) for each in others):
        return found
    compared = [chosen.at] if learner == chosen.at else _of_one_column(panel, chosen.at)
    (left, cost), (left_of_others, cost_of_others) = (
        _account(panel, noise, compared, each) for each in (found, others)
    )
    freedom = float(freedom_of(panel)[compared].sum())
    return others if gain(left - left_of_others, freedom) > cost_of_others - cost else found


def _of_one_column(panel: Panel, at: int) -> list[int]:
    """The series of the parts by one column."""
    column = panel.parts[at][0][0]
    return [i for i, part in enumerate(panel.parts) if part and part[0][0] == column]


def _account(
    panel: Panel, noise: Noise, series: Sequence[int], found: Sequence[Moved]
) -> tuple[float, float]:
    """The sum of squares that movements and slow change leave of some series, and the log of how many such there are."""
    n, cost, basis = len(panel.steps), 0.0, constant_basis(panel)
    if any(is_learning(each) for each in found):
        panel, noise, basis, _ = beside_learning(panel, noise, basis)
        cost = DRIFT_DEGREE * float(np.log(n)) / 2
    bases = {at: [basis[at]] for at in series}
    for each in found:
        of = [
            at for at in series if not (each.chosen.values and panel.parts[at]) or at in each.chosen.members
        ]
        if not of or is_learning(each):
            continue
        cost += float(np.log(n * len(lengths(n))))
        for at in of:
            bases[at].append(rows_of_basis(each))
    left = 0.0
    for at, own in bases.items():
        one = np.asarray([at])
        left += float(whitened(noise.clipped[one], noise.at(one), np.concatenate(own)[None]).loss[0])
    return left, cost


def _search(
    panel: Panel,
    noise: Noise,
    limit: np.ndarray,
    sure: np.ndarray,
    learning: Moved | None,
    may_drift: bool,
) -> list[Moved]:
    """Looks for movements one after the other, beside slow change where that is known or turns out to be likelier.

    Args:
        panel, noise, limit, sure: as for `movements`.
        learning: slow change over the run; None where it is not known.
        may_drift: whether there may be any.
    """
    n, basis = len(panel.steps), constant_basis(panel)
    as_given, noise = noise, replace(noise, variance=noise.variance.copy())
    whole, of_whole = panel, noise
    of_all: OfAll = ()
    if learning is not None:
        panel, noise, basis, of_all = beside_learning(whole, of_whole, basis)
    kept: list[Moved] = []
    rests: list[np.ndarray] = []
    aside = 0
    while len(kept) <= MOST_MOVEMENTS and aside <= MOST_ASIDE:
        best, w = scan(panel, noise, basis)
        at = int(np.lexsort((-best.evidence, best.log_p - limit))[0])
        moves = bool(best.log_p[at] <= limit[at])
        learner = at if may_be_learned(panel, panel.parts[at]) or panel.parts[0] else 0
        if learning is None and may_drift and may_be_learned(panel, panel.parts[learner]):
            smooth = beside_learning(whole, of_whole, basis, of_all)
            is_slow = (
                best.log_p[learner] <= limit[learner]
                and not came_or_went(panel, [learner], best.template(learner, n))
                and learning_is_likelier(panel, noise, basis, best, learner)
            )
            apart = _drifts_apart(whole, of_whole) if is_slow else None
            if is_slow and not _is_sampled(whole, apart):
                learning = drift_of_run(panel, noise, basis, learner, apart)
                panel, noise, basis, of_all = smooth
                continue
        if not moves:
            break
        found = _found(panel, noise, basis, best, w, at)
        if found is None or found.log_p > limit[at]:
            _set_aside(noise, best, at)
            aside += 1
            continue
        line = since_its_kink(found)
        runs_away, found = line is not found, line
        is_new = came_or_went(panel, list(found.chosen.members), found.template)
        slow = not is_new and (
            is_of_phrase(panel)
            or (not runs_away and may_be_slow(found, best.template(at, n)) and not turns(found))
        )
        plain = slow or is_new or runs_away or _is_beyond_noise(found, float(sure[at]))
        is_sure = plain and bool(found.log_p <= sure[at])
        found = replace(found, drift=slow, is_sure=is_sure)
        rows = rows_of_basis(found)
        of = next((other for other in kept if is_rest_of(found, other)), None)
        if of is not None:
            aside += 1
            rests += list(rows)
            # a jump over two steps or three is one
            if is_sure and not slow and found.located.z * of.located.z > 0:
                kept[kept.index(of)] = replace(of, is_sure=True)
        else:
            kept.append(found)
        basis = beside(basis, rows)
        new = slice(basis.shape[1] - len(rows), basis.shape[1])
        if may_be_learned(panel, found.chosen.values):
            basis[untouched(panel, w, found.template, found.chosen), new] = 0.0
        if found.chosen.values == ():  # which is not in what a part does beside the rest
            if panel.parts[0] == ():
                of_all = (*of_all, (new, panel.beside_rest))
                panel, noise = less_of_all(whole, of_whole, basis, of_all)
            basis[panel.beside_rest, new] = 0.0
    others = [each for each in kept if stands(each, basis, rests)]
    if learning is not None and nobody_learns(learning, others):
        return _search(whole, as_given, limit, sure, None, False)
    learned = [] if learning is None or not is_needed(learning, others) else [since_it_bent(learning, others)]
    for bent in (each for each in learned if each is not learning):
        others = [each for each in others if stands(each, beside(basis, rows_of_basis(bent)), rests)]
        others = [replace(each, drift=each.drift or goes_along(each, bent)) for each in others]
    learned = [
        replace(each, is_sure=each.drift or _is_bent(each, float(sure[each.chosen.at]))) for each in learned
    ]
    curves = polynomials(len(panel.steps), DRIFT_DEGREE if learned else 0)[1:]
    if learned:
        others = [
            each if shows_beside_learned(each, others) else replace(each, is_sure=False) for each in others
        ]
    if is_of_rewards(panel):
        others = [since_it_was_lost(each) if each.located.z > 0 else each for each in others]
    joined = there_and_back(others, curves)
    learned = [_beside_others(each, joined) for each in learned]
    return learned + [from_its_end(from_its_first(each, joined, curves)) for each in joined]


def _beside_others(learned: Moved, others: Sequence[Moved]) -> Moved:
    """Slow change with the other movements of its measure, beside which its levels are read."""
    rows = [row for each in others for row in rows_of_basis(each)]
    return replace(learned, basis=beside(learned.basis, np.stack(rows))) if rows else learned


def _may_drift(panel: Panel) -> bool:
    """Tells whether slow change may be what a measure did: of a few steps nobody can tell."""
    return len(panel.steps) >= FEWEST_EVALUATIONS


def _drifts_apart(panel: Panel, noise: Noise) -> Chosen | None:
    """The part of the rollouts, by what was asked or who sampled it, that drifts over the run while the others hardly move; None where there is none."""
    best, w = scan(panel, noise, constant_basis(panel))
    chosen = smallest_part(panel, w, Template("ramp", 1, len(panel.steps)), 0)
    moves = np.abs(best.z)
    others_stay = moves[list(chosen.outside)].max(initial=0.0) < RESIDUE * moves[chosen.at]
    is_apart = bool(chosen.values) and chosen.values[0][0] not in BY_OUTCOME and others_stay  # type: ignore[index]
    return chosen if is_apart else None


def _is_sampled(panel: Panel, apart: Chosen | None) -> bool:
    """Tells whether a part is one by who sampled its rollouts: no policy learns by that."""
    return apart is not None and not may_be_learned(panel, apart.values)


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


def _is_bent(found: Moved, sure: float) -> bool:
    """Tells whether slow change plainly has a kink: of a logged number, which noise hardly bends, that it does not go on from where it is instead."""
    if not is_logged(found.panel):
        return _is_beyond_noise(found, sure)
    if kink_of(found.panel, found.chosen.at) is not None:
        return True
    _, beside, remembers = _likelihoods(found)
    return _log_chance(found, beside - _wandering(found)) <= _lasting(found, sure, remembers)


def _is_beyond_noise(found: Moved, sure: float) -> bool:
    """Tells whether a movement of several steps is hardly the series' noise; of a spike this cannot be told, and how many rollouts there are is no chance."""
    if is_spike(found) or is_size(found.panel.names[0]):
        return True
    chance, remembers = log_chance_of_noise(found)
    return chance <= _lasting(found, sure, remembers)


def log_chance_of_noise(found: Moved) -> tuple[float, float]:
    """Log of the chance that a movement is the series' noise, of whatever spread and memory, or that what is logged goes on from where it is; and how likely the noise lasts."""
    without, beside, remembers = _likelihoods(found)
    return _log_chance(found, beside - max(without, _wandering(found))), remembers


def _likelihoods(found: Moved) -> tuple[float, float, float]:
    """Log likelihood of a series without a movement and with it, and how likely its noise then lasts.

    Beside a level or, of what may be learned, a slow drift, whichever is likelier (Wilks 1938).
    """
    n, at = len(found.panel.steps), np.asarray([found.chosen.at])
    own, others = found.template.over(n)[None], found.basis[found.chosen.at, 1:]
    smooth = polynomials(n, DRIFT_DEGREE)
    slow = [np.concatenate([smooth[:1], np.zeros_like(smooth[1:])])]
    of_all = may_be_learned(found.panel, found.panel.parts[found.chosen.at])
    if of_all and not is_mix(found.panel) and not is_loss(found):
        slow.append(smooth)
    bases = [np.concatenate([drift, moved, others]) for moved in (np.zeros_like(own), own) for drift in slow]
    values, errors = (
        np.repeat(each[at], len(bases), axis=0) for each in (found.panel.values, found.panel.errors)
    )
    prior = np.repeat(found.noise.prior[at], len(bases), axis=0)
    fits = replace(fits_of(values, errors, np.stack(bases)), prior=prior)
    likely = noise_of(values, errors, fits)[1].reshape(2, len(slow))
    likely[:, 1:] -= DRIFT_DEGREE * np.log(n) / 2
    without, beside = likely.max(axis=1).tolist()
    return without, beside, float(fits.remembers[len(slow) + likely[1].argmax()])


def _wandering(found: Moved) -> float:
    """Log likelihood that a logged number goes on from where it is, beside its other movements; of other series none does."""
    if not is_logged(found.panel):
        return -np.inf
    n, n_others = len(found.panel.steps), len(found.basis[found.chosen.at]) - 1
    return likelihood_of_wandering(found.panel.values[found.chosen.at]) + n_others * float(np.log(n)) / 2


def _log_chance(found: Moved, gained: float) -> float:
    """Log of the chance of so much log likelihood by one of all movements that are looked for."""
    size = np.sqrt(2 * max(gained, 0.0))
    return float(np.log(n_tests(len(found.panel.steps))) + log_chance(size, np.asarray(np.inf)))


def _lasting(found: Moved, sure: float, remembers: float) -> float:
    """Log of the chance below which a movement is no noise that lasts.

    Args:
        found: the movement.
        sure: log p up to which its series has moved for sure.
        remembers: how likely the series' noise lasts, beside the movement.
    """
    if found.panel.control[found.chosen.at] == 1:
        return LASTING_BESIDE
    if found.panel.source is None:
        return min(sure, LASTING_LOGGED)
    return LASTING if remembers > 1 / 2 else LASTING_NOT


def _set_aside(noise: Noise, best: Scanned, at: int) -> None:
    """Takes away the weight of steps that look like a movement and are none."""
    start, length = int(best.start[at]), int(best.length[at])
    noise.variance[at, start : start + min(length, SPIKE)] = np.inf


def _found(
    panel: Panel, noise: Noise, basis: np.ndarray, best: Scanned, w: Whitened, at: int
) -> Moved | None:
    own = noise.at(np.asarray([at]))
    start, length = int(best.start[at]), int(best.length[at])
    # so few values as a spike has are not cut off
    n_inside = np.isfinite(panel.values[:, start : start + length]).sum(axis=1)
    is_short = (best.kind[at] == "window") & ((length <= few_values(panel.values)) | (n_inside <= SPIKE))
    values = np.where(is_short[:, None], panel.values, noise.clipped)
    one = whitened(values[at : at + 1], own, basis[at : at + 1])
    if is_short.any():
        w = whitened(values, noise, basis)
    located = locate(one, best.kind[at], start, length)
    if located.template.kind == "level" and len(panel.steps) - located.template.start <= SPIKE:
        return None
    chosen = smallest_part(panel, w, located.template, at)
    if chosen.values is None:
        chosen = smallest_part(panel, _beside_drift(panel, values, noise, basis), located.template, at)
    if panel.is_centred and chosen.values is None:  # what one part gains others lose
        return None
    if panel.source is not None and not is_of_several(panel, chosen, located.template):
        return None
    if chosen.values is not None and chosen.members != (at,):
        of_part, joined = of_chosen(panel, noise, chosen)
        pooled = whitened(of_part if is_short[at] else joined.clipped, joined, basis[chosen.at][None])
        located = locate(
            pooled,
            located.template.kind,
            located.template.start,
            located.template.stop - located.template.start,
        )
    found = Moved(panel, basis, noise, located, chosen, float(best.log_p[at]))
    if not panel.is_share or panel.control[at] == 1:
        return found
    size = np.asarray(share_sizes(panel, at, located.template, basis[at]))
    if np.isfinite(size):  # no surer than by the counts of rows
        found = replace(found, located=since_it_differs(panel, chosen.at, located, basis[chosen.at]))
        by_rows = float(np.log(n_tests(len(panel.steps))) + log_chance(size, np.asarray(np.inf)))
        found = replace(found, log_p=max(found.log_p, min(by_rows, 0.0)))
    return replace(found, log_p=min(found.log_p, log_chance_of_groups(found)))


def _beside_drift(panel: Panel, values: np.ndarray, noise: Noise, basis: np.ndarray) -> Whitened:
    """The series beside slow change too, which is not in what a part does beside the rest: where all learn, those outside of a part moved as well."""
    smooth = with_curve(basis)
    smooth[panel.beside_rest, basis.shape[1] :] = 0.0
    return whitened(values, noise, smooth)
