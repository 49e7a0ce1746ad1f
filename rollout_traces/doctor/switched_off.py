"""Which flags and metrics a run does not compute, and what its batches lack for them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rollout_traces.doctor.base import CheckFinding, Examination, check

if TYPE_CHECKING:
    from rollout_traces.store.summary import What

ADVICE = {
    "flags_off": "Hand over what is missing; a name with a dot is a threshold to set.",
    "metrics_off": "Hand over what is missing, or declare it under `rollout_traces` in the run's config.",
}


@check("Flags")
def flags(examination: Examination) -> Iterator[CheckFinding]:
    """What the step summary of each run's latest step says of flags that are off."""
    yield from _findings(examination, "flags", "flags_off")


@check("Metrics")
def metrics(examination: Examination) -> Iterator[CheckFinding]:
    """What the step summary of each run's latest step says of metrics that are off."""
    yield from _findings(examination, "metrics", "metrics_off")


def _findings(examination: Examination, name: str, what: What) -> Iterator[CheckFinding]:
    if not examination.project:
        yield CheckFinding(name, "note", "no project given", f"--project NAME shows which {name} are off.")
        return
    from rollout_traces.errors import StoreError
    from rollout_traces.store import open_store
    from rollout_traces.store.summary import switched_off

    try:
        store = open_store(project=examination.project)
        store.refresh()
        found = list(switched_off(store, what))
    except StoreError as error:
        yield CheckFinding(name, "note", str(error))
        return
    for item in found:
        subject = f"{item.run}, {item.split}"
        if item.text is None:
            yield CheckFinding(subject, "note", f"no step summary, so nothing is known of its {name}")
        elif item.text:
            text = item.text.removeprefix("Flags that are off: ")
            yield CheckFinding(subject, "note", f"off, and what they lack: {text}", ADVICE[what])
        else:
            yield CheckFinding(subject, "ok", f"all {name} that were asked for are computed")
