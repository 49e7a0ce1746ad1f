"""The smallest part of the rollouts in which a movement is, and outside of which, at the same steps, it is not."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rollout_traces.analysis.panel import Panel, rows_of
from rollout_traces.analysis.scan import Whitened, coefficients
from rollout_traces.analysis.step_series import Part
from rollout_traces.analysis.templates import Template

BOUND = 1.2816
"""Standard errors of an upper 90 % bound."""
REMAINS = 0.5
"""Outside of the part, the bound of what remains is under this much of the movement."""
THERE = 1.6449
"""Standard errors from which on a movement is there outside of a part too."""
PLAINLY = 3.0
"""... or so many in one of its values alone, of which there may be many."""
ALIKE = 3.0
"""Two ways of cutting that explain a movement within this log likelihood do equally well, where they hold the same rows."""
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
    options = []
    columns = dict.fromkeys(part[0][0] for part in panel.parts if part)
    sign = np.sign(beta[at]) or 1.0
    everywhere = bool(whole)
    for column in columns:
        members = [
            i for i, part in enumerate(panel.parts) if part and part[0][0] == column and np.isfinite(error[i])
        ]
        if len(members) < 2:
            continue
        cut = _best_cut(beta[members] * sign, error[members])
        if cut is None:
            continue
        inside, gain, remaining, remaining_error, size = cut
        gain -= np.log(len(columns))
        apart = abs(remaining) + BOUND * remaining_error < REMAINS * size and gain > LIKELIER
        if gain > LIKELIER and remaining < THERE * remaining_error:
            everywhere = False
        if apart:
            chosen = [members[i] for i in inside]
            options.append((gain, column, chosen, [i for i in members if i not in chosen]))
    if options:
        options.sort(key=lambda option: -option[0])
        gain, _, inside, outside = options[0]
        also = tuple(
            _part(panel, other)
            for value, _, other, _ in options[1:]
            if gain - value < ALIKE and _same_rows(panel, inside, other)
        )
        strongest = max(inside, key=lambda i: abs(beta[i]) / error[i])
        return Chosen(strongest, _part(panel, inside), tuple(inside), tuple(outside), also)
    if everywhere or not columns:
        best = whole[0] if whole else at
        return Chosen(best, (), (best,))
    own = panel.parts[at]
    return Chosen(at, None, (at,)) if own else Chosen(at, None, tuple(whole))


def _best_cut(beta: np.ndarray, error: np.ndarray) -> tuple[list[int], float, float, float, float] | None:
    """The values that a movement is in: what they explain beyond one movement of all, and what remains outside."""
    weight = 1 / error**2
    alone = (weight * (beta - np.average(beta, weights=weight)) ** 2).sum()
    best = None
    order = np.argsort(-beta / error)
    for k in range(1, len(beta)):
        inside, outside = order[:k], order[k:]
        size = float(np.average(beta[inside], weights=weight[inside]))
        loss = (weight[inside] * (beta[inside] - size) ** 2).sum() + (
            weight[outside] * beta[outside] ** 2
        ).sum()
        gain = (alone - loss) / 2 - np.log(len(beta))
        if size > 0 and (best is None or gain > best[1]):
            remaining = float(np.average(beta[outside], weights=weight[outside]))
            rest = np.abs(beta[outside])
            also_there = (rest > REMAINS * size) & (rest > PLAINLY * error[outside])
            remaining = max(remaining, float(rest[also_there].max(initial=0.0)), key=abs)
            best = inside.tolist(), float(gain), remaining, float(weight[outside].sum() ** -0.5), size
    return best


def _part(panel: Panel, members: list[int]) -> Part:
    return tuple(panel.parts[i][0] for i in sorted(members))


def _same_rows(panel: Panel, one: list[int], other: list[int]) -> bool:
    """Whether two parts hold the same rows, so that they are two names of one."""
    columns = {panel.parts[members[0]][0][0] for members in (one, other)}
    if panel.source is None or not columns <= set(panel.source.parts):
        return False
    held = [_held(panel, members) for members in (one, other)]
    both = (held[0] & held[1]).sum()
    return bool(both >= SAME_ROWS * max(held[0].sum(), held[1].sum()))


def _held(panel: Panel, members: list[int]) -> np.ndarray:
    return rows_of(panel.source, _part(panel, members))  # type: ignore[arg-type]
