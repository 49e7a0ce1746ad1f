"""A run while its equations are computed, with the perturbations that act on their nodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from tests.perturbations.change import Change, Part, Perturbation
from tests.perturbations.spec import Spec, stream

TRAIN, EVAL = "rollout", "eval-rollout"


@dataclass(eq=False)
class Run:
    """All rows of a run, as columns.

    Attributes:
        spec: the world's constants.
        noise: which draw of the world's noise; 0 is the run that is shown, others are its replicates.
        perturbations: what acts on it.
        c: numeric columns, NaN where unknown, and codes of text columns, name -> [N].
        values: the texts of a coded column, name -> list; code -1 is unknown.
        flags: name -> [N] bool.
        phrases: what perturbations make rows write, (text, [N] bool).
        logged: key -> [n_steps] logged scalars, NaN where none was logged.
        kinds: key -> the kind of a scalar (`logged.py`); those that are not there are measured.
        shown: key -> [n_steps] bool, when a scalar is logged; at every step where it is not there.
        group: [N] group of every row over the whole run.
        kept: [N] bool, False for rows that a perturbation removed or the trainer dropped.
        dropped: [N] bool, whether a row was left out because all of its group earn the same.
        texts: what rows say, where they were really logged: `written`, `prompt`, `ground_truth`.
    """

    spec: Spec
    noise: int
    perturbations: tuple[Perturbation, ...]
    c: dict[str, np.ndarray] = field(default_factory=dict)
    values: dict[str, list[str]] = field(default_factory=dict)
    flags: dict[str, np.ndarray] = field(default_factory=dict)
    phrases: list[tuple[str, np.ndarray]] = field(default_factory=list)
    logged: dict[str, np.ndarray] = field(default_factory=dict)
    kinds: dict[str, str] = field(default_factory=dict)
    shown: dict[str, np.ndarray] = field(default_factory=dict)
    group: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    kept: np.ndarray = field(default_factory=lambda: np.zeros(0, bool))
    dropped: np.ndarray = field(default_factory=lambda: np.zeros(0, bool))
    texts: dict[str, list[str]] | None = None

    @property
    def n(self) -> int:
        return len(self.c["step"])

    @property
    def train(self) -> np.ndarray:
        """[N] whether a row belongs to training."""
        return self.c["split"] == 0

    def rng(self, name: str) -> np.random.Generator:
        """Random numbers of a stage: the same with and without any perturbation."""
        return stream(self.spec.seed, self.spec.world, self.noise, name)

    def constants(self, name: str) -> np.random.Generator:
        """Random numbers that all replicates share."""
        return stream(self.spec.seed, self.spec.world, "constants", name)

    def walk(self, name: str, scale: float, rho: float | None = None) -> np.ndarray:
        """[n_steps] an autoregressive disturbance with the standard deviation `scale`."""
        rho = self.spec.rho if rho is None else rho
        noise = self.rng(f"walk {name}").normal(0, scale, self.spec.n_steps)
        values = np.empty(self.spec.n_steps)
        last = noise[0]
        for step in range(self.spec.n_steps):
            last = rho * last + noise[step] * np.sqrt(1 - rho**2) if step else noise[0]
            values[step] = last
        return values

    def codes_of(self, column: str, value: str) -> int:
        """The code of a text, added where it is new."""
        known = self.values[column]
        if value not in known:
            known.append(value)
        return known.index(value)

    def rows_of(self, part: Part) -> np.ndarray:
        """[N] bool, the rows of a part; of a column that is not there, none."""
        mask = np.ones(self.n, bool)
        for column in {c for c, _ in part}:
            wanted = {v for c, v in part if c == column}
            mask &= self._holds(column, wanted)
        return mask

    def _holds(self, column: str, wanted: set[str]) -> np.ndarray:
        if column in self.values:
            codes = [i for i, v in enumerate(self.values[column]) if v in wanted]
            return np.isin(self.c[column], codes)
        if column == "flags":
            return np.any(
                [self.flags[v] for v in wanted if v in self.flags] or [np.zeros(self.n, bool)], axis=0
            )
        if column not in self.c:
            return np.zeros(self.n, bool)
        return _numbers_hold(self.c[column], wanted)

    def touched(self, p: Perturbation) -> np.ndarray:
        """[N] how much of a perturbation is in a row, between 0 and 1."""
        rows = self.rows_of(p.part) & (self.c["split"] == (p.split == EVAL))
        amount = np.where(rows, p.envelope()[self.c["step"]], 0.0)
        if p.carriers:
            order = stream(self.spec.seed, self.noise, "carriers", p.number).random(self.n)
            ranked = np.lexsort((np.where(amount > 0, order, 2.0), self.c["step"]))
            place = np.empty(self.n, np.int64)
            starts = np.searchsorted(self.c["step"][ranked], np.arange(self.spec.n_steps))
            place[ranked] = np.arange(self.n) - starts[self.c["step"][ranked]]
            amount = np.where(place < p.carriers, amount, 0.0)
        return amount

    def write(self) -> None:
        """Draws which rows write what perturbations make them write."""
        for p in self.perturbations:
            for number, change in enumerate(p.changes):
                if change.how == "write":
                    uniform = self.rng(f"write {p.number} {number}").random(self.n)
                    self.phrases.append((str(change.value), uniform < change.size * self.touched(p)))

    def at(self, node: str, values: np.ndarray) -> np.ndarray:
        """A node's values [N] with every perturbation of it."""
        for p in self.perturbations:
            for number, change in enumerate(p.changes):
                if change.node == node:
                    values = self._changed(values, p, number, change)
        return values

    def _changed(self, values: np.ndarray, p: Perturbation, number: int, change: Change) -> np.ndarray:
        amount = self.touched(p)
        if change.how == "add":
            return values + change.size * amount
        if change.how == "scale":
            return values * np.exp(change.size * amount)
        if change.how == "bias":
            return values + change.size * amount * within_group(self.group, self.c["log_length"])
        draw = stream(self.spec.seed, self.noise, "change", p.number, number)
        if change.how == "tie":
            by_group = draw.random(int(self.group.max()) + 1)[self.group] < change.size * amount
            first = np.full(int(self.group.max()) + 1, np.nan)
            first[self.group[::-1]] = values[::-1]
            return np.where(by_group, first[self.group], values)
        hit = draw.random(self.n) < change.size * amount
        if change.how == "null":
            return np.where(hit, np.nan if values.dtype.kind == "f" else -1, values)
        value = self.codes_of(change.node, change.value) if isinstance(change.value, str) else change.value
        return np.where(hit, value, values)


def sigmoid(x: np.ndarray) -> np.ndarray:
    """1 / (1 + e^-x)."""
    return 1 / (1 + np.exp(-np.clip(x, -40, 40)))


def within_group(group: np.ndarray, values: np.ndarray) -> np.ndarray:
    """[N] values less their group's mean, in standard deviations over all rows."""
    count = np.maximum(np.bincount(group), 1)
    centred = values - (np.bincount(group, values) / count)[group]
    return centred / max(float(np.std(centred)), 1e-9)


def _numbers_hold(values: np.ndarray, wanted: set[str]) -> np.ndarray:
    """Whether numbers are one of some texts: `3`, `>=2`, `2+`, `<2`, `1-3`."""
    mask = np.zeros(len(values), bool)
    for text in wanted:
        t = text.strip().replace(" ", "")
        try:
            if t.endswith("+"):
                mask |= values >= float(t[:-1])
            elif t.startswith((">=", "<=")):
                mask |= values >= float(t[2:]) if t[0] == ">" else values <= float(t[2:])
            elif t.startswith((">", "<")):
                mask |= values > float(t[1:]) if t[0] == ">" else values < float(t[1:])
            elif "-" in t[1:]:
                low, high = t.split("-", 1)
                mask |= (values >= float(low)) & (values <= float(high))
            else:
                mask |= values == float(t)
        except ValueError:
            continue
    return mask


def all_of(perturbations: Sequence[Perturbation], without: int | None = None) -> tuple[Perturbation, ...]:
    """The perturbations of a run, less one."""
    return tuple(p for p in perturbations if p.number != without)
