"""One seed: a run with perturbations, a healthy one, and how an answer does on them, as plain values."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from tests.perturbations.change import Perturbation
from tests.perturbations.claims import Claim, claims_of
from tests.perturbations.equations import compute
from tests.perturbations.oracle import find
from tests.perturbations.run import Run
from tests.perturbations.scorer import Judged, judge, of_population, onset_of, size_of
from tests.perturbations.spec import Spec, draw_spec, stream
from tests.perturbations.tables import Relations
from tests.perturbations.truth import Trial, draw_trial

Answer = Callable[[Any, str], Any]
"""`(relations, run) -> report`."""
CAP = 8
LARGEST = 99.0
RUN = "run"


def try_seed(
    seed: int, worlds: Sequence[str], answer: Answer, *, healthy: bool = True, capped: bool = False
) -> dict[str, Any]:
    """Tries an answer on the run of a seed.

    Args:
        seed: everything is drawn from it; it also chooses the world.
        worlds: which worlds.
        answer: what is tried.
        healthy: whether it is also asked about the same world without perturbations.
        capped: whether it is also asked about the same run at a cap of 8 and without one.

    Returns:
        Plain values: the world, the perturbations with what became of them, the entries, what was raised.
    """
    spec = draw_spec(worlds[seed % len(worlds)], seed)
    how_many = int(stream(seed, "how many").choice([1, 2, 3, 4, 5], p=[0.3, 0.25, 0.2, 0.15, 0.1]))
    trial = draw_trial(spec, how_many)
    claims, problems, seconds = ask(answer, Relations(trial.run))
    record = {
        "seed": seed,
        "world": spec.world,
        "n_steps": spec.n_steps,
        "rows": trial.run.n,
        "problems": problems,
        "seconds": seconds,
        **scored(trial, claims),
    }
    if healthy:
        record["healthy"] = _healthy(spec, answer)
    if capped:
        record["cap"] = _at_caps(trial.run, answer)
    return record


def ask(answer: Answer, relations: Relations) -> tuple[list[Claim], list[str], float]:
    """An answer's claims, what it raised, and the processor time it took."""
    began = time.process_time()
    try:
        report = answer(relations, RUN)
    except Exception as error:  # noqa: BLE001
        return [], [f"raised {type(error).__name__}: {error}"], time.process_time() - began
    claims, problems = claims_of(report)
    return claims, problems, time.process_time() - began


def scored(trial: Trial, claims: Sequence[Claim]) -> dict[str, Any]:
    """What became of each perturbation, and which entries are true."""
    entries = [judge(trial, claim) for claim in claims]
    return {
        "perturbations": [_became(trial, p, entries) for p in trial.perturbations],
        "entries": [_entry(one) for one in entries],
    }


def _became(trial: Trial, p: Perturbation, entries: Sequence[Judged]) -> dict[str, Any]:
    size, series, _, beside_drift = size_of(trial, p)
    oracle = find(trial, p)
    first = next((e for e in entries if p.number in e.hits and not e.claim.nested), None)
    below = next((e for e in entries if p.number in e.hits and e.claim.nested), None)
    record = {
        "number": p.number,
        "changes": [asdict(change) for change in p.changes],
        "part": [list(pair) for pair in p.part],
        "split": p.split,
        "shape": p.shape,
        "onset": p.onset,
        "last": p.last,
        "carriers": p.carriers,
        "size": min(size, LARGEST),
        "size_beside_drift": min(beside_drift, LARGEST),
        "series": list(series) if series else None,
        "per_step": _per_step(trial, p),
        "rank": first.claim.rank if first else None,
        "in_time": bool(first and first.claim.rank <= len(trial.perturbations) + 2),
        "hidden": bool(below and not first),
        "part_known": bool(first and first.claim.part is not None),
        "oracle": oracle.hit,
        "oracle_covers": oracle.onset[0] <= p.onset <= oracle.onset[1],
        "oracle_width": oracle.onset[1] - oracle.onset[0] + 1,
    }
    if first:
        low, high = onset_of(trial, first.claim, p)
        record["covers"] = first.claim.onset[0] <= high and low <= first.claim.onset[1]
        record["width"] = first.claim.onset[1] - first.claim.onset[0] + 1
        record["off"] = first.claim.step - p.onset
    return record


def _per_step(trial: Trial, p: Perturbation) -> float:
    """How many standard deviations a step is moved on average, in the most visible series."""
    _, series, part, _ = size_of(trial, p)
    effect = trial.effect(series, part, p) if series else None
    if effect is None:
        return 0.0
    steps = p.envelope() > 0
    return float(abs(effect.mean(steps)) / max(float(effect.sd[steps].mean()), 1e-12))


def _entry(one: Judged) -> dict[str, Any]:
    claim = one.claim
    return {
        "rank": claim.rank,
        "nested": claim.nested,
        "severity": claim.severity,
        "sentence": claim.sentence,
        "series": [list(s) for s in claim.series],
        "part": None if claim.part is None else [list(pair) for pair in claim.part],
        "shape": claim.shape,
        "onset": list(claim.onset),
        "step": claim.step,
        "last": claim.last,
        "true": one.true,
        "reason": one.reason,
        "hits": sorted(one.hits),
    }


def _healthy(spec: Spec, answer: Answer) -> dict[str, Any]:
    """What is said of the same world when nothing happens; every third time of its ten steps alone."""
    short = spec.seed % 3 == 0
    shown = draw_spec(spec.world, spec.seed, 10) if short else spec
    claims, problems, seconds = ask(answer, Relations(compute(Run(shown, 0, ()))))
    return {
        "n_steps": shown.n_steps,
        "errors": [c.sentence for c in claims if c.severity == "error" and not c.nested],
        "warnings": [c.sentence for c in claims if c.severity == "warn" and not c.nested],
        "problems": problems,
        "seconds": seconds,
    }


def _at_caps(run: Run, answer: Answer) -> dict[str, int]:
    """Entries about all rows at a cap of 8 and without one: how many, and how many are the same."""
    few, _, _ = ask(answer, Relations(run, cap=CAP))
    every, _, _ = ask(answer, Relations(run, cap=0))
    told = [
        [c for c in claims if of_population(c) and c.severity != "info" and not c.nested]
        for claims in (few, every)
    ]
    left = list(told[1])
    for claim in told[0]:
        same = next((c for c in left if _same(c, claim)), None)
        if same:
            left.remove(same)
    return {"capped": len(told[0]), "uncapped": len(told[1]), "same": len(told[1]) - len(left)}


def _same(a: Claim, b: Claim) -> bool:
    meet = a.onset[0] <= b.onset[1] and b.onset[0] <= a.onset[1]
    return bool(set(a.series) & set(b.series)) and a.part == b.part and meet
