"""Entries in words: sentence, filter, severity, cost, the order in which they are shown, and the SELECTs that give their levels again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fnmatch import fnmatchcase

import numpy as np

from rollout_traces.analysis.compete import (
    AlikeMovements,
    first_steps,
    is_learning,
    span,
)
from rollout_traces.analysis.curves import Part, SeriesName
from rollout_traces.analysis.detected_movement import RESIDUE, Moved
from rollout_traces.analysis.diagnosis import OTHER, SEVERITIES, Carrier, Diagnosis, Movement, Shape
from rollout_traces.analysis.in_words import (
    literal,
    number,
    numbers_apart,
    part_filter,
    part_text,
    percent,
    series_text,
    since,
    steps_filter,
    value_filter,
)
from rollout_traces.analysis.names import SIGNATURES, Signature
from rollout_traces.analysis.scan import SPIKE
from rollout_traces.analysis.severity import (
    ABSENT,
    SLIGHT,
    SURE,
    is_setting,
    leaps,
    levels_of,
    severity_of_entry,
)

LARGEST = 5.0
"""Size of a step in units of its noise that counts for the order; what is larger is no more urgent."""


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
    return _way_of_share(found.panel.names[0], before, after) or "level"


def _way_of_share(name: SeriesName, before: float | None, after: float | None) -> Shape | None:
    """Tells whether a share came or went; None where it did neither."""
    if name.statistic not in ("share", "text") or before is None or after is None:
        return None
    return "came" if before < ABSENT < after else "went" if after < ABSENT < before else None


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
    severity, all_found = severity_of_entry(entry.found, n_series), list(entry.found)
    is_set = severity == "info" or any(is_setting(each) and leaps(each) for each in all_found)
    if is_set:  # what somebody set says when, and what it was
        all_found.sort(key=lambda found: (not found.is_set, not is_setting(found)))
    moved = [movement_of(found, carriers if found is carried else ()) for found in all_found]
    head = moved[0]
    is_set &= head.is_set
    sizes = _sizes(all_found)
    signature, at = named(moved[:1] if is_set else moved, sizes, entry.part, is_learning(entry.head))
    lead = replace(moved[at], step=head.step, last=head.last, onset=head.onset)
    others = [*moved[:at], *moved[at + 1 :]]
    is_sure = any(found.is_sure for found in entry.found)
    return Diagnosis(
        severity=severity,
        sentence=f"{sentence_of(lead, entry.part, others, signature)}{'' if is_sure else _doubt(entry, n_series)}.",
        advice=signature.advice if signature else "",
        tier=signature.tier if signature else OTHER,
        series=tuple(dict.fromkeys(m.name for m in (lead, *others))),
        part=entry.part,
        shape=head.shape,
        onset=head.onset,
        step=head.step,
        end=head.end,
        last=head.last,
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


FEWEST_AGAIN = 3
"""Steps at which handfuls of rollouts carry one series, from which on they are one entry."""


def carried_again(found: Sequence[Diagnosis]) -> list[Diagnosis]:
    """The entries; several steps at which handfuls of rollouts carry one series are one, the others under the first."""
    heads: dict[tuple[SeriesName, Part | None], list[Diagnosis]] = {}
    for each in sorted(found, key=lambda one: one.step):
        if each.carriers:
            heads.setdefault((each.series[0], each.part), []).append(each)
    again = {id(each): own for own in heads.values() if len(own) >= FEWEST_AGAIN for each in own}
    kept = [each for each in found if id(each) not in again or again[id(each)][0] is each]
    for at, each in enumerate(kept):
        if id(each) in again:
            others = again[id(each)][1:]
            severity = min((one.severity for one in again[id(each)]), key=SEVERITIES.index)
            steps = ", ".join(str(one.step) for one in others)
            sentence = f"{each.sentence.removesuffix('.')}; so at {len(others)} other steps ({steps})."
            cost = sum(one.cost for one in again[id(each)])
            consequences = (*each.consequences, *others)
            kept[at] = replace(
                each, severity=severity, sentence=sentence, cost=cost, consequences=consequences
            )
    return kept


def ordered(found: Sequence[Diagnosis], steps: np.ndarray) -> list[Diagnosis]:
    """Errors first, then by what they cost; of infos what somebody set, what is sure, what may be chance; then what is learned all along, and how a run starts comes last.

    Args:
        found: what is said.
        steps: int [T], the run's.
    """
    begins = int(steps[min(first_steps(len(steps)), len(steps) - 1)])

    def place(each: Diagnosis) -> tuple[int, bool, bool, bool, float, int]:
        info = each.severity == "info"
        starts = info and each.onset[0] <= begins
        is_set = info and any(m.is_set for m in each.movements)
        return SEVERITIES.index(each.severity), starts, not is_set, not each.is_sure, -each.cost, each.step

    return sorted(found, key=place)


def _doubt(entry: AlikeMovements, n_series: int) -> str:
    """Says what an entry that is not sure may be: where no chance of its steps is left, its noise may last, or it may be slow change."""
    log_p = min(found.log_p for found in entry.found) + float(np.log(max(n_series, 1)))
    return ", perhaps slow change or noise that lasts" if log_p < np.log(SURE) else ", perhaps by chance"


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
    text = f"{what} {_way_of(m)}"
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
        text += f" (between {first} and {latest})"
    carried = next((each for each in (m, *others) if each.carriers), None)
    if carried:
        share = percent(sum(carrier.share for carrier in carried.carriers))
        many, of = len(carried.carriers), "" if carried is m else f" in {series_text(carried.name)}"
        text += f": {many} rollout{'s carry' if many > 1 else ' carries'} {share} of what the step's rollouts lie apart{of}"
    return text + _together(named, others)


def _way_of(m: Movement) -> str:
    """Says which way a movement went, and between which levels where these are known and read apart."""
    way = "rose" if _rises(m) else "fell"
    if m.before is None or m.after is None:
        return way
    is_share = m.name.value is not None
    before, after = (percent(m.before), percent(m.after)) if is_share else numbers_apart(m.before, m.after)
    return f"{way} from {before} to {after}" if before != after else f"{way} from its course, at {before}"


def _rises(m: Movement) -> bool:
    """Tells which way a movement went: by its levels, and where these do not say it, beside all else that its series does."""
    if m.before is None or m.after is None or m.before == m.after:
        return m.z > 0
    return m.after > m.before


def _together(named: str, others: Sequence[Movement]) -> str:
    """The other series of an entry, by which way they went."""
    ways: dict[str, dict[str, None]] = {"rose": {}, "fell": {}}
    for other in others:
        name = series_text(other.name)
        if name != named and not any(name in held for held in ways.values()):
            ways["rose" if _rises(other) else "fell"][name] = None
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
    plain = [i for i, m in enumerate(moved) if sizes[i] >= least or _way_of_share(m.name, m.before, m.after)]
    plain = [i for i in plain if moved[i].part or not part]  # what is logged is of no part
    if is_learned:
        plain = [i for i in plain if _is_other(moved[i])] or plain[:1]
    for signature in reversed(by_tier) if is_learned else SIGNATURES:
        for i in plain:
            if _fits(signature, moved[i], part):
                return signature, i
    return None, 0


def _is_other(m: Movement) -> bool:
    """Tells whether a series ended at another level than it began at, by more than what is slight."""
    if m.before is None or m.after is None:
        return False
    return abs(m.after - m.before) > SLIGHT * max(abs(m.before), abs(m.after))


def _fits(signature: Signature, m: Movement, part: Part | None) -> bool:
    of_two = m.name.statistic in ("covariance", "correlation")
    named = f"{m.name.statistic}/{m.name}" if of_two else str(m.name)
    known = any(
        fnmatchcase(named, pattern) and (" " in pattern) == (m.name.value is not None)
        for pattern in signature.columns
    )
    direction = "up" if _rises(m) else "down"
    column = part[0][0] if part else ""
    return (
        known
        and signature.direction in ("", direction)
        and signature.shape in ("", m.shape)
        and signature.part in ("", column)
    )
