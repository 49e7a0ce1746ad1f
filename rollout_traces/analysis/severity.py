"""How severe movements are, and the levels between which they went."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rollout_traces.analysis.compete import ENDS, first_steps, is_learning, starts
from rollout_traces.analysis.curves import STEP_SIZE, UNKNOWN, is_size
from rollout_traces.analysis.detected_movement import (
    NEAR,
    NEAR_EDGE,
    RESIDUE,
    STILL,
    Moved,
    is_spike,
    level_of,
)
from rollout_traces.analysis.diagnosis import Severity
from rollout_traces.analysis.group_shapes import AGAIN, OF_WHOLE_GROUPS
from rollout_traces.analysis.in_words import number
from rollout_traces.analysis.kinks import goes_on
from rollout_traces.analysis.learning import is_given, is_mix, is_of_sampler, may_be_learned
from rollout_traces.analysis.noise import TINY
from rollout_traces.analysis.parts import effects
from rollout_traces.analysis.run_rows import CUT_BY_NUMBER
from rollout_traces.analysis.scan import whitened
from rollout_traces.analysis.schedules import has_no_noise
from rollout_traces.analysis.slow_change import is_purpose

SURE = 1e-6
"""Chance, over all series of the run, up to which an entry is an error; above it is a warning."""
SLIGHT = RESIDUE / 2
"""Part of its level by which a logged number changes at least where that is an error, at one step alone a warning; of half of it that lasts is a warning."""
SLIGHT_OF_ROWS = 0.02
"""... and of a number of rollouts, which may have little noise: a line of a system prompt is a fiftieth of a prompt."""
ABSENT = 0.002
"""A share below this is of a value that is not there."""
FEW_ROWS, FEW_GROUPS = 30, 10
"""Fewer rows or groups at the steps of a movement give a warning at most: how sure a mean of them is, is hardly known."""


def severity_of(found: Moved, n_series: int) -> Severity:
    """Info for slow change, for how a run starts and for what may be chance; an error where chance is out of the question, but for the mix of prompts, which somebody may have set, and what got better."""
    changed, is_of_rows = _relative_change(found), found.panel.source is not None
    is_trifle = changed < (SLIGHT_OF_ROWS if is_of_rows else SLIGHT if _is_one_number(found) else SLIGHT / 2)
    beyond_chance = found.log_p + np.log(max(n_series, 1)) < np.log(SURE)
    is_plain = found.is_sure or (beyond_chance and _is_plain_loss(found))
    if not is_plain or is_trifle or is_expected(found) or _is_of_a_curve(found) or _stands_still(found):
        return "info"
    if is_size(found.panel.names[0]):
        return "warn" if _starves(found) else "info"
    may_be_meant = is_mix(found.panel) or _is_shared(found) or _is_gain(found)
    is_hardly_known = _is_of_few(found) or _is_one_number(found)
    is_slight = not is_of_rows and changed < SLIGHT
    is_warning = may_be_meant or is_hardly_known or is_slight or goes_on(found)
    may_be_error = found.is_sure and beyond_chance and not is_warning
    return "error" if may_be_error else "warn"


def _is_gain(found: Moved) -> bool:
    """Tells whether a measure went the way that training is for, as rewards that rise: whether they are only better paid is for a person to see."""
    return found.located.z * found.panel.names[0].wanted > 0


def _is_plain_loss(found: Moved) -> bool:
    """Tells whether less is solved or paid by a quarter of what it was, which nobody overlooks though noise that lasts may do it."""
    before, after, _ = levels_of(found)
    if not is_purpose(found.panel) or before is None or after is None:
        return False
    return before - after > SLIGHT * abs(before)


def _relative_change(found: Moved) -> float:
    """By how much of the smaller of its levels a number that is not paid changed; infinite of others, and where it is not known."""
    before, after, _ = levels_of(found)
    if found.panel.is_share or found.panel.names[0].is_paid or before is None or after is None:
        return np.inf
    by, smaller = abs(after - before), min(abs(before), abs(after))
    if by == 0:
        return 0.0
    return by / smaller if smaller > TINY * by else np.inf


def _stands_still(found: Moved) -> bool:
    """Tells whether a level reads as before; or a part hardly went by half of what it is off what others learn, as rewards of 0 have while all others are paid more; of one that cannot be told, whether it went the other way than beside the rest."""
    *_, before, after = _own_levels(found)
    part = found.panel.parts[found.chosen.at]
    if before is None or after is None:
        return False
    if number(before) == number(after) and not found.n_carriers:
        return True
    went = (after - before) * np.sign(found.located.z)
    is_behind = may_be_learned(found.panel, part) and not is_spike(found)
    if part and is_behind and went < RESIDUE * abs(_coefficient(found)):
        return True
    return bool(part) and found.chosen.values is None and went < 0


def _coefficient(found: Moved) -> float:
    """By how much a series moved, beside all else that it does."""
    one = np.asarray([found.chosen.at])
    w = whitened(found.panel.values[one], found.noise.at(one), found.basis[one])
    return float(effects(w, found.template.over(len(found.panel.steps)))[0][0])


def _is_shared(found: Moved) -> bool:
    """Tells whether a movement is of the share that an engine, a host or a worker has and still has, as where another came."""
    _, after, _ = levels_of(found)
    return is_of_sampler(found.panel) and (after or 0.0) >= ABSENT


def _is_of_a_curve(found: Moved) -> bool:
    """Tells whether a movement of all rollouts, or of a logged number, beside its slow change hardly shows in the number itself, which bends there."""
    panel, at, template = found.panel, found.chosen.at, found.template
    if found.chosen.values or found.is_set or template.start == 0 or is_spike(found):
        return False
    levels, start = panel.levels[at], template.start
    edge = levels[max(start - NEAR_EDGE, 0) : start], levels[start : start + NEAR_EDGE]
    sides = np.asarray([levels_of(found)[:2], [float(np.mean(each)) for each in edge]], float)
    known = sides[np.isfinite(sides).all(axis=1)]
    if not len(known):
        return False
    is_number = panel.source is None
    by_factors = (
        is_number and not np.array_equal(panel.values[at], levels, equal_nan=True) and known.min() > 0
    )
    seen = np.diff(np.log(known) if by_factors else known)[:, 0]
    size = _coefficient(found)
    shows = seen * size >= RESIDUE * size**2
    error = float(np.sqrt(2 * np.nanmedian(found.noise.variance[at]) / NEAR_EDGE))
    return not (shows[0] or (shows[1:] & (np.abs(seen[1:]) > STILL * error)).any())


def _is_one_number(found: Moved) -> bool:
    """Tells whether a movement is of one logged number: what tail it has, its other numbers hardly say."""
    template = found.template
    return found.panel.source is None and template.kind == "window" and template.stop - template.start == 1


def _is_of_few(found: Moved) -> bool:
    """Tells whether a movement is that of few rows or groups at its steps."""
    if found.panel.source is None or found.n_carriers:
        return False
    inside = found.template.inside(len(found.panel.steps))
    n_rows, n_groups = (
        counted[list(found.chosen.members)][:, inside].sum()
        for counted in (found.panel.rows, found.panel.groups)
    )
    return bool(n_rows < FEW_ROWS or n_groups < FEW_GROUPS)


def is_expected(found: Moved) -> bool:
    """Tells whether a movement is slow change, how a run starts, a mix of prompts that changes by and by, or a few steps that were given otherwise, as a loader does by chance."""
    # what becomes known, and prompts that are new again
    if found.panel.names[0].value in (UNKNOWN, AGAIN) and found.located.z < 0:
        return True
    is_of_loader = is_given(found.panel) and found.panel.names[0].column not in CUT_BY_NUMBER
    if is_of_loader and is_spike(found) and not _is_always_the_same(found):
        return True
    if is_mix(found.panel) and found.template.kind == "ramp":  # a curriculum goes on by and by
        return True
    if found.drift:
        return True
    first = first_steps(len(found.panel.steps))
    return starts(found) and not is_learning(found) and found.located.onset[0] <= first


def is_worth_a_word(found: Moved) -> bool:
    """Tells whether a movement is none of a correlation, or one by which that became less by half of what it can be. None goes the other way itself than beside all else, but where a part surely stays behind the others, or reads the same before and since, unless it is sure."""
    stays_behind = found.is_sure and bool(found.panel.parts[found.chosen.at])
    if not (stays_behind or _goes_its_way(found)):
        return False
    before, after, _ = levels_of(found)
    reads_the_same = before is not None and after is not None and number(before) == number(after)
    if reads_the_same and (is_learning(found) or not (found.is_sure or found.n_carriers)):
        return False
    is_correlation = found.panel.names[0].statistic == "correlation"
    return not is_correlation or (before is not None and after is not None and before - after >= RESIDUE)


def _goes_its_way(found: Moved) -> bool:
    """Tells whether the levels of a series went the way in which it moved beside all else that it does; what is learned has none."""
    *_, before, after = _own_levels(found)
    is_known = before is not None and after is not None and not is_learning(found)
    return not is_known or (after - before) * found.located.z >= 0  # type: ignore[operator]


def _is_always_the_same(found: Moved) -> bool:
    """Tells whether a number of rollouts has one value at all other steps, as the size of groups, so that no loader changes it by chance."""
    others = found.panel.levels[found.chosen.at][~found.template.inside(len(found.panel.steps))]
    known = others[np.isfinite(others)]
    return not found.panel.is_share and len(known) > 0 and bool(np.ptp(known) == 0)


def severity_of_entry(found: Sequence[Moved], n_series: int) -> Severity:
    """That of its surest movement that is neither slow change nor how a run starts; such a head is all that is said.

    Beside a setting, which somebody may mean so, only what rollouts did of themselves counts: a batch that is doubled takes longer, and each rollout has half of its update. A setting that is many times what it was is a warning.
    """
    all_found, is_off = found, False
    of_rows = [each for each in found if each.panel.source is not None]
    if is_expected(found[0]):
        if not is_mix(found[0].panel):
            return "info"
        found = [each for each in of_rows if not is_given(each.panel)]  # the mix is taken off them
    if any(each.is_set for each in found):
        own = [each for each in of_rows if not is_given(each.panel) or _is_lost(each)]
        own = [each for each in own if each.panel.parents[0] != "advantage"]
        own = [each for each in own if "/timing/" not in f"/{each.panel.names[0].column}"]
        found = own + [each for each in found if each.is_set and _is_off(each)]
        is_off = any((is_setting(each) and leaps(each)) or _starves(each) for each in all_found)
    severities = {severity_of(each, n_series) for each in found} | ({"warn"} if is_off else set())
    return "error" if "error" in severities else "warn" if "warn" in severities else "info"


def is_setting(found: Moved) -> bool:
    """Tells whether somebody set a number that has no noise; what else is set moved with the size of steps."""
    return found.is_set and found.panel.source is None and has_no_noise(found.panel.levels[0])


LEAP = 5.0
"""Times what it was that a setting hardly is because somebody means it."""


def leaps(found: Moved) -> bool:
    """Tells whether a setting is many times what it ever was, as after no restart of a schedule; that it is a small part of it, as in stages of one, may well be meant."""
    _, after, _ = levels_of(found)
    earlier = np.abs(found.panel.levels[0, : found.template.start])
    return bool(earlier.any() and abs(after or 0.0) > LEAP * earlier.max())


def _starves(found: Moved) -> bool:
    """Tells whether steps have at most half of the rollouts that they had, which nobody set at once, as where ever more groups are dropped or some lack for a while, or an evaluation has, however it lost them."""
    before, after, _ = levels_of(found)
    name, since = found.panel.names[0], found.panel.levels[0, found.template.start :]
    is_dropped = found.template.kind != "level" or not found.is_set or np.nanmin(since) < np.nanmax(since)
    is_off = is_size(name) and (is_dropped or name != STEP_SIZE) and not is_spike(found)
    return is_off and (after or 0.0) <= RESIDUE * (before or 0.0)


def _is_lost(found: Moved) -> bool:
    """Tells whether a movement says that rollouts are lost: an engine or a worker has none any more, or groups have another size."""
    is_gone = found.located.z < 0 and is_of_sampler(found.panel) and not _is_shared(found)
    return is_gone or found.panel.names[0].column in OF_WHOLE_GROUPS


def _is_off(found: Moved) -> bool:
    """Tells whether a setting is 0 at once and stays so, as a learning rate whose schedule is over before the run."""
    return found.template.kind == "level" and not found.panel.levels[0, found.template.start :].any()


def levels_of(found: Moved) -> tuple[float | None, float | None, float | None]:
    """Level before (of a window: on both sides), at its steps, and at its steps outside of the part.

    Where the others went the other way by more than the part, what they did since is in the level before.
    """
    outside, inside, before, after = _own_levels(found)
    earlier, elsewhere = _levels(found, outside, inside, found.chosen.outside)
    if before is not None and after is not None and earlier is not None and elsewhere is not None:
        before += 0.0 if (after - before) * np.sign(found.located.z) >= 0 else elsewhere - earlier
    return before, after, elsewhere


def _own_levels(found: Moved) -> tuple[np.ndarray, np.ndarray, float | None, float | None]:
    """The steps, bool [T] each, that a movement's levels before and since are of, and these; of a level or a ramp that drifts back by half beside it, those at its edge."""
    template, way = found.template, np.sign(found.located.z)
    outside, inside = _steps_of(found)
    before, after = _levels(found, outside, inside)
    if template.kind != "window" and before is not None and after is not None:
        t, risen = np.arange(len(inside)), template.start if template.kind == "level" else template.stop - 1
        earlier, later = t >= template.start - NEAR_EDGE, (t >= risen) & (t < risen + NEAR_EDGE)
        edge = outside & earlier, inside & later
        there, then = _levels(found, *edge)
        if there is not None and then is not None and (after - before) * way < RESIDUE * (then - there) * way:
            (outside, inside), before, after = edge, there, then
    return outside, inside, before, after


def _steps_of(found: Moved) -> tuple[np.ndarray, np.ndarray]:
    """bool [T] each: the steps that a movement's level before is of, none on the other side of another level or window, and those that its own is of; of slow change the first and the last beside what else the series did."""
    template, n = found.template, len(found.panel.steps)
    inside, t = template.inside(n), np.arange(n)
    length = max(template.stop - template.start, NEAR) if template.kind == "window" else NEAR
    if is_setting(found) and not is_size(found.panel.names[0]):
        inside, length = t == template.start, 1
    outside = (t < template.start) & (t >= template.start - length)
    if template.kind == "window" or not outside.any():
        outside |= (t >= template.stop) & (t < template.stop + length)
    if not outside.any():
        rows, ends = found.basis[found.chosen.at], max(n // ENDS, 1)
        as_begun = t[(rows[:, :1] == rows).all(axis=0)]
        return np.isin(t, as_begun[:ends]), np.isin(t, as_begun[-ends:])
    own = template.start, template.stop
    others = [row for row in found.basis[found.chosen.at] if np.isin(row, (0.0, 1.0)).all()]
    others = [row for row in others if not np.isin(np.flatnonzero(np.diff(row)) + 1, own).any()]
    since = template.stop - 1 if template.kind == "ramp" else template.start
    beside = [row == row[since] for row in others]
    for steps in (*beside, np.isfinite(found.noise.variance[found.chosen.at])):
        outside &= steps | ~steps[outside].any()
    if template.kind == "ramp" and template.start:
        inside = t >= min(template.stop - 1, n - NEAR_EDGE)
    return outside, inside


def _levels(
    found: Moved, outside: np.ndarray, inside: np.ndarray, series: Sequence[int] | None = None
) -> tuple[float | None, float | None]:
    """The levels of a movement's part, or of other series, at some steps, bool [T], and at others."""
    of = list(found.chosen.members if series is None else series)
    before, after = (level_of(found.panel, of, steps) for steps in (outside, inside))
    return before, after
