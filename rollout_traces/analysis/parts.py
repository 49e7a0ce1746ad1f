"""The smallest part of the rollouts in which a movement is, and outside of which, at the same steps, it is not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist

import numpy as np

from rollout_traces.analysis.curves import Part
from rollout_traces.analysis.panel import Panel, rows_of
from rollout_traces.analysis.run_rows import BY_OUTCOME
from rollout_traces.analysis.scan import Located, Template, Whitened, coefficients
from rollout_traces.analysis.step_cells import HALF_A_ROW

BOUND = NormalDist().inv_cdf(0.9)
"""Standard errors of an upper 90 % bound."""
REMAINS = 0.5
"""Outside of the part, the bound of what remains is under this much of the movement."""
THERE = NormalDist().inv_cdf(0.95)
"""Standard errors from which on a movement is there outside of a part too."""
PLAINLY = 3.0
"""... or so many in one of its values alone, of which there may be many."""
LIKELIER = 2.0
"""Log likelihood by which a movement of a part has to be likelier than one of all rows."""
SAME_ROWS = 0.9
"""Part of the rows that two ways of cutting share where they are one."""


@dataclass(frozen=True, eq=False)
class Chosen:
    """Whose movement it is.

    Attributes:
        at: the series that shows it most, an index of the panel.
        values: the part; None where it cannot be told.
        members: the series of the part's values; that of all rows for ().
        outside: the series of the other values.
        also: other ways of cutting that do equally well.
    """

    at: int
    values: Part | None
    members: tuple[int, ...]
    outside: tuple[int, ...] = ()
    also: tuple[Part, ...] = ()


def effects(w: Whitened, template: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """float [S], [S]: the coefficient of a template in each series, and its error; infinite where unknown."""
    size, error = coefficients(w, template)
    return np.where(np.isfinite(error), size * np.where(np.isfinite(error), error, 0.0), 0.0), error


def smallest_part(panel: Panel, w: Whitened, template: Template, at: int) -> Chosen:
    """Compares, for each way to part the rows, where a movement is with where it is not.

    Args:
        panel: the series of one measure.
        w: the same, whitened with a basis that lacks the movement.
        template: the movement.
        at: the series that shows it most.
    """
    whole = [i for i, part in enumerate(panel.parts) if part == ()]
    if panel.measure is None or len(panel.parts) < 2:
        return Chosen(at, panel.parts[at], (at,))
    beta, error = effects(w, template.over(len(panel.steps)))
    inside = template.inside(len(panel.steps))
    if panel.is_share:
        error = np.maximum(error, _of_counts(panel, inside))
    options = []
    columns = dict.fromkeys(part[0][0] for part in panel.parts if part)
    everywhere = bool(whole)
    for column in columns:
        members = [
            i for i, part in enumerate(panel.parts) if part and part[0][0] == column and np.isfinite(error[i])
        ]
        name = panel.names[0]
        if column in BY_OUTCOME and (not panel.is_share or (name.is_paid and name.value is None)):
            members = [i for i in members if _may_move(panel.levels[i])]
        if len(members) < 2:
            continue
        cut = best_cut(_effects(panel, beta, error, inside, members))
        if cut is None:
            continue
        gain = cut.gain - np.log(len(columns))
        if gain > LIKELIER and not cut.is_there_outside:
            everywhere = False
        if gain > LIKELIER and cut.is_apart:
            chosen = [members[i] for i in cut.inside]
            options.append((gain, chosen, [i for i in members if i not in chosen]))
    if options:
        options.sort(key=lambda option: -option[0])
        same = [option for option in options if _same_rows(panel, options[0][1], option[1])]
        same.sort(key=lambda option: len(option[1]))
        _, held, outside = same[0]
        also = tuple(_part(panel, other) for _, other, _ in same[1:])
        strongest = max(held, key=lambda i: abs(beta[i]) / error[i])
        return Chosen(strongest, _part(panel, held), tuple(held), tuple(outside), also)
    if whole and abs(beta[whole[0]]) < THERE * error[whole[0]]:
        everywhere = False
    if everywhere or not columns:
        best = whole[0] if whole else at
        return Chosen(best, (), (best,))
    own = panel.parts[at]
    return Chosen(at, None, (at,)) if own else Chosen(at, None, tuple(whole))


FEWEST_ROWS = 5
"""Rows that a movement rests on, at least ..."""
FEWEST_GROUPS = 3
"""... and groups of a part: what fewer do is no habit of it."""


def is_of_several(panel: Panel, chosen: Chosen, template: Template) -> bool:
    """Tells whether several rows are behind a movement and behind what is not of it; of a part, of several groups."""
    members = list(chosen.members)
    inside = template.inside(len(panel.steps))
    for counted, least in ((panel.rows, FEWEST_ROWS), (panel.groups, FEWEST_GROUPS if chosen.values else 0)):
        n_T = counted[members].sum(axis=0)
        if min(n_T[inside].sum(), n_T[~inside].sum()) < least:
            return False
    return True


def since_it_differs(panel: Panel, at: int, located: Located, basis: np.ndarray) -> Located:
    """A level or window of a share that comes, of few rows that have it, since the step of its interval from which the counts of rows differ most.

    Args:
        panel: the series.
        at: which of them.
        located: the movement.
        basis: float [K, T], the movements beside it.
    """
    template, (first, last) = located.template, located.onset
    if template.kind == "ramp" or located.z < 0:
        return located
    starts = range(max(first, 1), min(last + 1, template.stop))
    sizes = [abs(share_sizes(panel, at, replace(template, start=each), basis)) for each in starts]
    if not np.isfinite(sizes).all() or not sizes:
        return located
    return replace(located, template=replace(template, start=starts[int(np.argmax(sizes))]))


def untouched(panel: Panel, w: Whitened, template: Template, chosen: Chosen) -> list[int]:
    """The series outside of a part in which a movement of it hardly is, less what the others did at its steps as they are."""
    beta, error = effects(w, template.over(len(panel.steps)))
    rows = panel.rows[:, template.inside(len(panel.steps))].sum(axis=1)
    column = [*chosen.members, *chosen.outside]
    moved = float(beta[list(chosen.members)] @ rows[list(chosen.members)])
    taken = abs(moved) / np.maximum(rows[column].sum() - rows, 1.0)
    return [at for at in chosen.outside if panel.control[at] * taken[at] < THERE * error[at]]


def _of_counts(panel: Panel, inside: np.ndarray) -> np.ndarray:
    """float [S]: the error of each share by the rows of a movement alone: what is rare elsewhere, and then in every other row, differs by more."""
    levels, n = np.nan_to_num(panel.levels[:, inside]), panel.rows[:, inside]
    share = ((levels * n).sum(axis=1) + HALF_A_ROW) / (n.sum(axis=1) + 2 * HALF_A_ROW)
    return np.asarray(np.sqrt(share * (1 - share) / np.maximum(n.sum(axis=1), 1)))


def _may_move(levels_T: np.ndarray) -> bool:
    """Tells whether a figure of rollouts that came out alike is not always the same, as the turns of those that reached a limit are."""
    known = levels_T[np.isfinite(levels_T)]
    return bool(len(known) and np.ptp(known))


@dataclass(frozen=True, eq=False)
class _Effects:
    """Changes of the values of a column at the steps of a movement.

    Attributes:
        beta, error: float [V] each.
        control: float [V], how much of what the others did is taken off.
        share: float [V], of the rows.
        level: float [V], of what each usually is, 1 on average; all 1 where that may be below 0.
        is_share: whether values that hardly occur may not move at all.
        of_all, of_all_error: what all rows did together.
    """

    beta: np.ndarray
    error: np.ndarray
    control: np.ndarray
    share: np.ndarray
    level: np.ndarray
    is_share: bool
    of_all: float
    of_all_error: float


@dataclass(frozen=True)
class _Cut:
    """The values that a movement is in: what they explain beyond one movement of all, and whether the others went the same way."""

    inside: list[int]
    gain: float
    is_apart: bool
    is_there_outside: bool


def _effects(
    panel: Panel, beta: np.ndarray, error: np.ndarray, inside: np.ndarray, members: Sequence[int]
) -> _Effects:
    rows = panel.rows[members][:, inside].sum(axis=1)
    share = rows / max(rows.sum(), 1.0)
    if panel.is_centred:
        left = np.maximum(1 - share, np.finfo(float).tiny)
        return _Effects(
            beta[members] / left,
            error[members] / left,
            np.ones(len(members)),
            share,
            np.ones(len(members)),
            panel.is_share,
            0.0,
            np.inf,
        )
    whole = [i for i, part in enumerate(panel.parts) if part == ()]
    of_all = (beta[whole[0]], error[whole[0]]) if whole else (0.0, np.inf)
    levels = panel.levels[members]
    there = np.isfinite(levels).all(axis=0) & ~inside
    level = _usual(levels[:, there] if there.any() else levels, share)
    return _Effects(
        beta[members], error[members], panel.control[members], share, level, panel.is_share, *of_all
    )


def _usual(levels_V_T: np.ndarray, share: np.ndarray) -> np.ndarray:
    """float [V]: the usual level of each value over that of all, by their shares of the rows; 1 where one may be below 0."""
    level = np.nanmedian(levels_V_T, axis=1)
    mean = float(level @ share)
    return level / mean if mean > 0 and np.nanmin(levels_V_T) >= 0 else np.ones(len(level))


def best_cut(seen: _Effects) -> _Cut | None:
    """The values that a movement is in, by least squares; None where no values explain it better than all do."""
    n = len(seen.beta)
    others = np.maximum(1 - seen.share, np.finfo(float).tiny)
    taken = seen.control[:, None] * seen.share[None] / others[:, None]
    np.fill_diagonal(taken, 0.0)
    expected = np.concatenate([np.eye(n) - taken, seen.share[None]])
    common = float(seen.control.mean())
    weight = np.concatenate([(1 - common / n) / seen.error**2, [common / seen.of_all_error**2]])
    observed = np.concatenate([seen.beta, [seen.of_all]])

    def fitted(design: np.ndarray) -> tuple[np.ndarray, np.ndarray, float]:
        gram = design.T @ (weight[:, None] * design)
        inverse = np.linalg.pinv(gram)
        size = inverse @ (design.T @ (weight * observed))
        return size, inverse, float((weight * (observed - design @ size) ** 2).sum())

    # all rows may move by one amount or by one factor
    by_amount, by_factor = (fitted(expected @ each[:, None])[2] for each in (np.ones(n), seen.level))
    alone = by_amount if seen.is_share else min(by_amount, by_factor)
    best: tuple[float, np.ndarray] | None = None
    order = np.argsort(-seen.beta / seen.error)
    for ordered in (order, order[::-1]):
        for k in range(1, n):
            inside = ordered[:k]
            loss = fitted(expected[:, inside].sum(axis=1, keepdims=True))[2]
            gain = (alone - loss) / 2 - k * np.log(n)
            if best is None or gain > best[0]:
                best = gain, inside
    if best is None:
        return None
    gain, inside = best
    outside = np.setdiff1d(np.arange(n), inside)
    in_part = expected[:, inside].sum(axis=1, keepdims=True)
    (own,), _, loss = fitted(in_part)
    both = np.concatenate([in_part, expected[:, outside].sum(axis=1, keepdims=True)], axis=1)
    size, inverse, left = fitted(both)
    rest = seen.beta[outside] - (in_part[:n][outside] * own).ravel()
    apart = (np.abs(rest) > REMAINS * abs(own)) & (np.abs(rest) > PLAINLY * seen.error[outside])
    is_along = rest * own > 0
    went_along = bool((apart & is_along).any()) or bool(loss - left > THERE**2 and size[0] * size[1] > 0)
    is_own = common <= 1 / 2  # values that learn for themselves may go the other way meanwhile
    also_there = bool((apart & (is_along | (not is_own))).any())
    is_there = loss - left > THERE**2 or bool(apart.any())
    if went_along:  # what is rare by a part hardly moves with it, but it did
        gain -= max(alone - by_factor, 0.0) / 2
    is_known = np.linalg.matrix_rank(both[weight > 0]) == both.shape[1]
    remains = size[1] * np.sign(size[0]) if is_own else abs(size[1])
    bound = remains + BOUND * np.sqrt(inverse[1, 1])
    is_bounded = bool(is_known and bound < REMAINS * abs(size[0]))
    return _Cut(
        inside.tolist(),
        gain,
        not also_there and (is_bounded or not (is_own or is_there)),
        went_along,
    )


def _part(panel: Panel, members: list[int]) -> Part:
    return tuple(panel.parts[i][0] for i in sorted(members))


def _same_rows(panel: Panel, one: list[int], other: list[int]) -> bool:
    """Tells whether two parts hold the same rows, so that they are two names of one."""
    if one == other:
        return True
    columns = {panel.parts[members[0]][0][0] for members in (one, other)}
    if panel.source is None or not columns <= set(panel.source.parts):
        return False
    held = [_held(panel, members) for members in (one, other)]
    both = (held[0] & held[1]).sum()
    return bool(both >= SAME_ROWS * max(held[0].sum(), held[1].sum()))


def _held(panel: Panel, members: list[int]) -> np.ndarray:
    return rows_of(panel.source, _part(panel, members))  # type: ignore[arg-type]


def share_sizes(panel: Panel, at: int, template: Template, basis: np.ndarray) -> float:
    """The signed root of twice the log likelihood ratio between two binomial shares, rows divided by what groups share; infinite where both are of so many rows that their means are as good as normal.

    Args:
        panel: the series.
        at: which of them.
        template: where the share may differ.
        basis: float [K, T], the movements beside it, whose steps are left out.
    """
    share, n, error = panel.levels[at], panel.rows[at], panel.errors[at]
    there = np.isfinite(share) & (n > 0)
    inside = (template.over(len(panel.steps)) > 1 / 2) & there
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
    if min(n * min(share, 1 - share) for n, share in zip(counts, shares, strict=True)) > MANY_ROWS:
        return np.inf
    pooled = float(np.average(shares, weights=counts))
    ratio = sum(
        c * (_term(s, pooled) + _term(1 - s, 1 - pooled)) for c, s in zip(counts, shares, strict=True)
    )
    return float(np.sqrt(2 * max(ratio, 0.0)) * np.sign(shares[0] - shares[1]))


MANY_ROWS = 30
"""Rows that have a value, and rows that do not, from which on their share is as good as normal."""


def _term(share: float, pooled: float) -> float:
    return share * float(np.log(share / pooled)) if share > 0 and pooled > 0 else 0.0
