"""Entries in words: sentence, filter, severity, cost, the order in which they are shown, and the SELECTs that give their levels again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fnmatch import fnmatchcase

import numpy as np

from rollout_traces.analysis.compete import (
    ENDS,
    AlikeMovements,
    first_steps,
    is_learning,
    span,
    starts,
)
from rollout_traces.analysis.curves import Part
from rollout_traces.analysis.detected_movement import NEAR, NEAR_EDGE, RESIDUE, STILL, Moved, is_spike
from rollout_traces.analysis.diagnosis import OTHER, Carrier, Diagnosis, Movement, Severity, Shape
from rollout_traces.analysis.group_shapes import OF_WHOLE_GROUPS
from rollout_traces.analysis.in_words import (
    literal,
    number,
    part_filter,
    part_text,
    percent,
    series_text,
    since,
    steps_filter,
    value_filter,
)
from rollout_traces.analysis.kinks import goes_on
from rollout_traces.analysis.learning import is_given, is_mix, is_of_sampler
from rollout_traces.analysis.names import SIGNATURES, Signature
from rollout_traces.analysis.noise import TINY
from rollout_traces.analysis.parts import effects
from rollout_traces.analysis.run_rows import UNKNOWN
from rollout_traces.analysis.scan import SPIKE, whitened
from rollout_traces.analysis.schedules import has_no_noise

SURE = 1e-6
"""Chance, over all series of the run, up to which an entry is an error; above it is a warning."""
SLIGHT = RESIDUE / 2
"""Part of its level by which a logged number changes at least where that is an error, at one step alone a warning; of half of it that lasts is a warning."""
FEW_ROWS, FEW_GROUPS = 30, 10
"""A part of fewer rows or groups at the steps of a movement gives a warning at most: how sure a mean of them is, is hardly known."""
LARGEST = 5.0
"""Size of a step in units of its noise that counts for the order; what is larger is no more urgent."""
ABSENT = 0.002
"""A share below this is of a value that is not there."""


def severity_of(found: Moved, n_series: int) -> Severity:
    """Info for slow change, for how a run starts and for what may be chance; an error where chance is out of the question, but for the mix of prompts, which somebody may have set."""
    changed = _relative_change(found)
    is_trifle = changed < (SLIGHT if _is_one_number(found) else SLIGHT / 2)
    if not found.is_sure or is_trifle or is_expected(found) or _is_of_a_curve(found) or _stands_still(found):
        return "info"
    beyond_chance = found.log_p + np.log(max(n_series, 1)) < np.log(SURE)
    may_be_meant = is_mix(found.panel) or _is_of_few(found) or _is_one_number(found) or _is_shared(found)
    may_be_learned = goes_on(found) or changed < SLIGHT
    return "error" if beyond_chance and not (may_be_meant or may_be_learned) else "warn"


def _relative_change(found: Moved) -> float:
    """By how much of the smaller of its levels a logged number changed; infinite of rollouts, and where it is not known."""
    before, after, _ = levels_of(found)
    if found.panel.source is not None or before is None or after is None:
        return np.inf
    return abs(after - before) / max(min(abs(before), abs(after)), TINY)


def _stands_still(found: Moved) -> bool:
    """Tells whether a part has the same level as before, as rewards of 0 have while all others are paid more; of one that cannot be told, whether it went the other way than beside the rest."""
    before, after, _ = levels_of(found)
    if not found.panel.parts[found.chosen.at] or before is None or after is None:
        return False
    same = number(before) == number(after)
    return same or (found.chosen.values is None and (after - before) * found.located.z < 0)


def _is_shared(found: Moved) -> bool:
    """Tells whether a movement is of the share that an engine, a host or a worker has and still has, as where another came."""
    _, after, _ = levels_of(found)
    return is_of_sampler(found.panel) and (after or 0.0) >= ABSENT


def _is_of_a_curve(found: Moved) -> bool:
    """Tells whether a movement of a logged number beside its slow change hardly shows in the number itself, which bends there."""
    panel, at, template = found.panel, found.chosen.at, found.template
    lasts = template.kind != "window" or template.stop - template.start > SPIKE
    if panel.source is not None or found.is_set or template.start == 0 or not lasts:
        return False
    levels, start = panel.levels[at], template.start
    edge = levels[max(start - NEAR_EDGE, 0) : start], levels[start : start + NEAR_EDGE]
    sides = np.asarray([levels_of(found)[:2], [float(np.mean(each)) for each in edge]], float)
    known = sides[np.isfinite(sides).all(axis=1)]
    if not len(known):
        return False
    by_factors = not np.array_equal(panel.values[at], levels, equal_nan=True) and known.min() > 0
    seen = np.diff(np.log(known) if by_factors else known)[:, 0]
    one = np.asarray([at])
    size, _ = effects(
        whitened(panel.values[one], found.noise.at(one), found.basis[one]), template.over(len(panel.steps))
    )
    shows = seen * size[0] >= RESIDUE * size[0] ** 2
    error = float(np.sqrt(2 * np.nanmedian(found.noise.variance[at]) / NEAR_EDGE))
    return not (shows[0] or (shows[1:] & (np.abs(seen[1:]) > STILL * error)).any())


def _is_one_number(found: Moved) -> bool:
    """Tells whether a movement is of one logged number: what tail it has, its other numbers hardly say."""
    template = found.template
    return found.panel.source is None and template.kind == "window" and template.stop - template.start == 1


def _is_of_few(found: Moved) -> bool:
    """Tells whether a movement is that of a part of few rows or groups at its steps."""
    inside = found.template.inside(len(found.panel.steps))
    n_rows, n_groups = (
        counted[list(found.chosen.members)][:, inside].sum()
        for counted in (found.panel.rows, found.panel.groups)
    )
    return bool(found.panel.parts[found.chosen.at]) and (n_rows < FEW_ROWS or n_groups < FEW_GROUPS)


def is_expected(found: Moved) -> bool:
    """Tells whether a movement is slow change, how a run starts, a mix of prompts that changes by and by, or a few steps that were given otherwise, as a loader does by chance."""
    if found.panel.names[0].value == UNKNOWN and found.located.z < 0:  # what becomes known
        return True
    if is_given(found.panel) and is_spike(found) and not _is_always_the_same(found):
        return True
    if is_mix(found.panel) and found.template.kind == "ramp":  # a curriculum goes on by and by
        return True
    first = first_steps(len(found.panel.steps))
    return found.drift or (starts(found) and not is_learning(found) and found.located.onset[0] <= first)


def is_worth_a_word(found: Moved) -> bool:
    """Tells whether a movement is none of a correlation, or one by which that became less by half of what it can be."""
    before, after, _ = levels_of(found)
    is_correlation = found.panel.names[0].statistic == "correlation"
    return not is_correlation or (before is not None and after is not None and before - after >= RESIDUE)


def _is_always_the_same(found: Moved) -> bool:
    """Tells whether a number of rollouts has one value at all other steps, as the size of groups, so that no loader changes it by chance."""
    others = found.panel.levels[found.chosen.at][~found.template.inside(len(found.panel.steps))]
    known = others[np.isfinite(others)]
    return not found.panel.is_share and len(known) > 0 and bool(np.ptp(known) == 0)


def _severity_of_entry(found: Sequence[Moved], n_series: int) -> Severity:
    """That of its surest movement that is neither slow change nor how a run starts; such a head is all that is said.

    Beside a setting, which somebody may mean so, only what rollouts did of themselves counts: a batch that is doubled takes longer, and each rollout has half of its update. A setting that is many times what it was is a warning.
    """
    all_found, leaps = found, False
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
        leaps = any(_is_setting(each) and _leaps(each) for each in all_found)
    severities = {severity_of(each, n_series) for each in found} | ({"warn"} if leaps else set())
    return "error" if "error" in severities else "warn" if "warn" in severities else "info"


def _is_setting(found: Moved) -> bool:
    """Tells whether somebody set a number that has no noise; what else is set moved with the size of steps."""
    return found.is_set and found.panel.source is None and has_no_noise(found.panel.levels[0])


LEAP = 5.0
"""Times what it was that a setting hardly is because somebody means it."""


def _leaps(found: Moved) -> bool:
    """Tells whether a setting is many times what it ever was, as after no restart of a schedule; that it is a small part of it, as in stages of one, may well be meant."""
    _, after, _ = levels_of(found)
    earlier = np.abs(found.panel.levels[0, : found.template.start])
    return bool(earlier.any() and abs(after or 0.0) > LEAP * earlier.max())


def _is_lost(found: Moved) -> bool:
    """Tells whether a movement says that rollouts are lost: an engine or a worker has none any more, or groups have another size."""
    is_gone = found.located.z < 0 and is_of_sampler(found.panel) and not _is_shared(found)
    return is_gone or found.panel.names[0].column in OF_WHOLE_GROUPS


def _is_off(found: Moved) -> bool:
    """Tells whether a setting is 0 at once and stays so, as a learning rate whose schedule is over before the run."""
    return found.template.kind == "level" and not found.panel.levels[0, found.template.start :].any()


def movement_of(found: Moved, carriers: Sequence[Carrier] = ()) -> Movement:
    """A movement as it is said."""
    panel, located = found.panel, found.located
    steps = panel.steps
    before, after, elsewhere = levels_of(found)
    first, last = span(found)
    return Movement(
        panel.names[0],
        found.chosen.values,
        shape_of(found, before, after),
        (int(steps[located.onset[0]]), int(steps[located.onset[1]])),
        first,
        None if last is None or located.end is None else _steps(steps, located.end),
        last,
        before,
        after,
        located.z,
        float(np.exp(found.log_p)),
        elsewhere,
        found.chosen.also,
        tuple(carriers),
        found.drift,
        found.is_set,
        found.panel.parts[found.chosen.at] or () if found.chosen.values is None else (),
    )


def _steps(steps: np.ndarray, places: tuple[int, int]) -> tuple[int, int]:
    top = len(steps) - 1
    return int(steps[min(max(places[0], 0), top)]), int(steps[min(max(places[1], 0), top)])


def shape_of(found: Moved, before: float | None, after: float | None) -> Shape:
    """Names a movement."""
    template = found.template
    if template.kind == "window":
        return "spike" if template.stop - template.start <= SPIKE else "window"
    if template.kind == "ramp":
        return "ramp"
    if found.panel.names[0].statistic in ("share", "text") and before is not None and after is not None:
        if before < ABSENT < after:
            return "came"
        if after < ABSENT < before:
            return "went"
    return "level"


def levels_of(found: Moved) -> tuple[float | None, float | None, float | None]:
    """Level before (of a window: on both sides), at its steps, and at its steps outside of the part.

    Where the others went the other way by more than the part, what they did since is in the level before.
    """
    panel, template = found.panel, found.template
    n = len(panel.steps)
    inside = template.inside(n)
    t = np.arange(n)
    length = max(template.stop - template.start, NEAR) if template.kind == "window" else NEAR
    if _is_setting(found):
        inside, length = t == template.start, 1
    outside = (t < template.start) & (t >= template.start - length)
    if template.kind == "window" or not outside.any():
        outside |= (t >= template.stop) & (t < template.stop + length)
    if not outside.any():
        ends = max(n // ENDS, 1)
        outside, inside = t < ends, t >= n - ends
    known = np.isfinite(found.noise.variance[found.chosen.at])
    outside &= known | ~known[outside].any()
    if template.kind == "ramp" and template.start:
        inside = t >= min(template.stop - 1, n - NEAR_EDGE)
    members = list(found.chosen.members)
    others = list(found.chosen.outside)
    before = _mean(panel.levels, panel.rows, members, outside)
    after = _mean(panel.levels, panel.rows, members, inside)
    went = 0.0 if before is None or after is None else (after - before) * found.located.z
    if template.kind == "level" and went < 0:  # what it drifts by since is more than the level
        outside &= t >= template.start - NEAR_EDGE
        inside &= t < template.start + NEAR_EDGE
        before = _mean(panel.levels, panel.rows, members, outside)
        after = _mean(panel.levels, panel.rows, members, inside)
    then, elsewhere = (_mean(panel.levels, panel.rows, others, steps) for steps in (outside, inside))
    if before is not None and after is not None and then is not None and elsewhere is not None:
        went_as_all = (after - before) * found.located.z >= 0
        before += 0.0 if went_as_all else elsewhere - then
    return before, after, elsewhere


def _mean(levels: np.ndarray, rows: np.ndarray, members: list[int], steps: np.ndarray) -> float | None:
    if not members or not steps.any():
        return None
    values, n = levels[members][:, steps], rows[members][:, steps]
    there = np.isfinite(values) & (n > 0)
    return (
        float((np.where(there, values, 0.0) * np.where(there, n, 0.0)).sum() / n[there].sum())
        if there.any()
        else None
    )


def cost_of(found: Moved, n_rows: float) -> float:
    """The share of the run's rollouts that a movement touches, times its size in noise of a step."""
    panel, template = found.panel, found.template
    inside = template.inside(len(panel.steps))
    if panel.source is None:
        share = inside.mean()
    else:
        share = panel.rows[list(found.chosen.members)][:, inside].sum() / max(n_rows, 1.0)
    size = abs(found.located.z) / np.sqrt(max(inside.sum(), 1))
    return float(min(share, 1.0) * min(size, LARGEST))


def diagnosis_of(
    entry: AlikeMovements,
    n_series: int,
    n_rows: float,
    carried: Moved | None = None,
    carriers: Sequence[Carrier] = (),
) -> Diagnosis:
    """An entry in words.

    Args:
        entry: the entry.
        n_series: series of the run.
        n_rows: its rollouts.
        carried: which of its movements a handful of rows carry.
        carriers: those rows.
    """
    severity, all_found = _severity_of_entry(entry.found, n_series), list(entry.found)
    is_set = severity == "info" or any(_is_setting(each) and _leaps(each) for each in all_found)
    if is_set:  # what somebody set says when, and what it was
        all_found.sort(key=lambda found: (not found.is_set, not _is_setting(found)))
    moved = [movement_of(found, carriers if found is carried else ()) for found in all_found]
    head = moved[0]
    is_set &= head.is_set
    sizes = _sizes(all_found)
    signature, at = named(moved[:1] if is_set else moved, sizes, entry.part, is_learning(entry.head))
    when = head if is_set else _first(moved)
    lead = replace(moved[at], step=when.step, last=when.last, onset=when.onset)
    others = [*moved[:at], *moved[at + 1 :]]
    is_sure = any(found.is_sure for found in entry.found)
    return Diagnosis(
        severity=severity,
        sentence=f"{sentence_of(lead, entry.part, others, signature)}{'' if is_sure else ', perhaps by chance'}.",
        advice=signature.advice if signature else "",
        tier=signature.tier if signature else OTHER,
        series=tuple(dict.fromkeys(m.name for m in (lead, *others))),
        part=entry.part,
        shape=when.shape,
        onset=when.onset,
        step=when.step,
        end=when.end,
        last=when.last,
        also=head.also,
        carriers=tuple(carriers),
        before=lead.before,
        after=lead.after,
        elsewhere=lead.elsewhere,
        p=head.p,
        cost=max(cost_of(found, n_rows) for found in entry.found),
        where=rows_filter(carriers) or filter_of(lead, entry.part, all_found[at]),
        name=signature.what if signature else "",
        movements=(moved[at], *others),
        consequences=tuple(diagnosis_of(each, n_series, n_rows) for each in entry.follows),
        is_sure=is_sure,
    )


def _first(moved: Sequence[Movement]) -> Movement:
    """The one that says when an entry began: the surest, unless a plain one began before it for sure."""
    head = moved[0]
    earlier = [m for m in moved if abs(m.z) >= RESIDUE * abs(head.z) and m.onset[1] < head.onset[0]]
    return min(earlier, key=lambda m: m.step, default=head)


def rows_filter(carriers: Sequence[Carrier]) -> str:
    """A filter in the query language that finds the rows that carry a movement; empty without any."""
    uids = ", ".join(literal(carrier.uid) for carrier in carriers)
    return f"uid in ({uids})" if uids else ""


def filter_of(m: Movement, part: Part | None, found: Moved) -> str:
    """A filter in the query language that finds the rollouts of a movement; of all rows for a logged scalar."""
    conditions = [part_filter(part)]
    name, column = m.name, m.name.column
    if (
        found.panel.source is not None
        and name.statistic == "share"
        and name.value is not None
        and "/" not in column.split("extra/")[0]
    ):
        own = found.panel.measure.condition if found.panel.measure is not None else ""
        conditions.append(own or value_filter(column, name.value))
    conditions.append(steps_filter(m.step, m.last))
    return " and ".join(condition for condition in conditions if condition)


def sentence_of(
    m: Movement, part: Part | None, others: Sequence[Movement], signature: Signature | None
) -> str:
    """Says what was seen, with its figures, without a full stop."""
    form = percent if m.name.value is not None else number
    named = series_text(m.name)
    what = f"{signature.what}: {named}" if signature else named
    text = what
    if m.before is not None and m.after is not None and form(m.before) != form(m.after):
        verb = "rose" if m.after > m.before else "fell"
        text += f" {verb} from {form(m.before)} to {form(m.after)}"
    else:
        text += " moved"
    if part:
        text += f" on {part_text(part)}"
        if m.also and m.part == part:
            text += f" (or {' or '.join(map(part_text, m.also))}: nearly the same rollouts)"
        if m.elsewhere is not None:
            text += f", {form(m.elsewhere)} elsewhere"
    elif part is None:
        text += ", for which rollouts cannot be told"
        text += f" (the figures are those of {part_text(m.figures_of)})" if m.figures_of else ""
    text += f", {since(m.step, m.last)}"
    first, latest = m.onset
    if m.last is None and latest - first > SPIKE:
        text += f" ({first} to {latest})"
    carried = next((each for each in (m, *others) if each.carriers), None)
    if carried:
        share = percent(sum(carrier.share for carrier in carried.carriers))
        many, of = len(carried.carriers), "" if carried is m else f" in {series_text(carried.name)}"
        text += f": {many} rollout{'s carry' if many > 1 else ' carries'} {share} of what the step's rollouts lie apart{of}"
    return text + _together(named, others)


def _together(named: str, others: Sequence[Movement]) -> str:
    """The other series of an entry, by which way they went."""
    ways: dict[str, dict[str, None]] = {"rose": {}, "fell": {}, "moved": {}}
    for other in others:
        name = series_text(other.name)
        if name != named and not any(name in held for held in ways.values()):
            known = other.before is not None and other.after is not None and other.before != other.after
            way = ("rose" if other.after > other.before else "fell") if known else "moved"  # type: ignore[operator]
            ways[way][name] = None
    return "".join(f"; also {way}: {', '.join(held)}" for way, held in ways.items() if held)


def _sizes(found: Sequence[Moved]) -> list[float]:
    """The sizes of movements as they would be had each been read of as many rollouts: what only decoded ones tell is less sure, not less plain."""
    inside = [each.template.inside(len(each.panel.steps)) for each in found]
    n = [
        float(each.panel.rows[list(each.chosen.members)][:, steps].sum()) if each.panel.source else np.nan
        for each, steps in zip(found, inside, strict=True)
    ]
    most = np.nanmax(n) if np.isfinite(n).any() else 1.0
    return [
        abs(each.located.z) * float(np.sqrt(most / max(rows, 1.0)) if np.isfinite(rows) else 1.0)
        for each, rows in zip(found, n, strict=True)
    ]


def named(
    moved: Sequence[Movement], sizes: Sequence[float], part: Part | None, is_learned: bool
) -> tuple[Signature | None, int]:
    """The first row of the table that fits one of an entry's plainest series, and which; the surest series without one.

    What happened is named by its cause, what a policy learns by how rollouts came out, which the table has last.

    Args:
        moved: the movements, the surest first.
        sizes: theirs.
        part: whose they are.
        is_learned: whether they are slow change over the run.
    """
    by_tier = sorted(SIGNATURES, key=lambda signature: signature.tier)
    least = 0.0 if is_learned else RESIDUE * sizes[0]
    plain = [i for i, m in enumerate(moved) if sizes[i] >= least or m.shape in ("came", "went")]
    for signature in reversed(by_tier) if is_learned else SIGNATURES:
        for i in plain:
            if _fits(signature, moved[i], part):
                return signature, i
    return None, 0


def _fits(signature: Signature, m: Movement, part: Part | None) -> bool:
    of_two = m.name.statistic in ("covariance", "correlation")
    named = f"{m.name.statistic}/{m.name}" if of_two else str(m.name)
    known = any(
        fnmatchcase(named, pattern) and (" " in pattern) == (m.name.value is not None)
        for pattern in signature.columns
    )
    rises = m.before is not None and m.after is not None and m.after > m.before
    direction = "up" if rises else "down"
    column = part[0][0] if part else ""
    return (
        known
        and signature.direction in ("", direction)
        and signature.shape in ("", m.shape)
        and signature.part in ("", column)
    )
