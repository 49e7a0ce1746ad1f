"""What was handed over and is not stored yet, and what processes it."""

from __future__ import annotations

from collections.abc import Iterator

from rollout_traces.doctor.base import CheckFinding, Examination, check


@check("Logging path")
def spool(examination: Examination) -> Iterator[CheckFinding]:
    """The spools of this node: where they lie, what waits in them, where their worker processes' logs are."""
    from rollout_traces.spool.mounts import is_network_mount
    from rollout_traces.worker.recovery import default_roots, find_left, not_all_stored

    root = default_roots()[0]
    yield CheckFinding(
        "spool",
        "ok" if not is_network_mount(root) else "warn",
        str(root),
        "" if not is_network_mount(root) else "Set TMPDIR to a folder on this node's own disk.",
    )
    found = find_left(examination.project)
    hurt = not_all_stored(examination.project)
    for sentence in hurt:
        yield CheckFinding("stored", "warn", sentence, "The log there says what happened: worker.log.")
    if not found and not hurt:
        yield CheckFinding("waiting", "ok", "nothing waits on this node")
    for left in found:
        counters = left.folder.status().get("counters", {})
        said = ", ".join(f"{name} {count}" for name, count in counters.items() if count)
        seen = f"{left.n_records} records wait; {said or 'not processed yet'}; log: {left.folder.log}"
        subject = f"{left.project}/{left.run_name}"
        if left.in_use:
            yield CheckFinding(subject, "ok", f"in use, {seen}")
        elif left.n_records:
            yield CheckFinding(subject, "warn", f"left behind, {seen}", "rollout-traces recover")
        else:
            yield CheckFinding(subject, "note", f"left behind with nothing to store, {seen}")
