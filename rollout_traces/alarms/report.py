"""An incident in words: a title and a sentence with its figures. Names and numbers, never a rollout's text; a source's name in quotes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from rollout_traces.alarms.incidents import Incident, IncidentEvent
from rollout_traces.alarms.signals import Signal
from rollout_traces.flags.report import Alert
from rollout_traces.quoting import quoted


def alerts_of(events: Iterable[IncidentEvent], signals: Mapping[str, Signal], split: str) -> list[Alert]:
    """One alert for each incident that opened; one that comes back or closes raises none.

    Args:
        events: what a step did, see `incidents.advance`.
        signals: what is watched.
        split: `rollout` or `eval-rollout`.
    """
    order = ("error", "warn", "info")
    opened = [event.incident for event in events if event.what == "opened"]
    return [
        Alert(title_of(incident, split), sentence_of(incident, signals, split), incident.severity)
        for incident in sorted(opened, key=lambda incident: order.index(incident.severity))
    ]


def title_of(incident: Incident, split: str) -> str:
    """`truncated on rollout`, with its source where it has one."""
    where = f" ({quoted(incident.source)})" if incident.source else ""
    return f"{incident.signal} on {split}{where}"


def sentence_of(incident: Incident, signals: Mapping[str, Signal], split: str) -> str:
    """What opened it, with its figures."""
    signal = signals.get(incident.signal)
    meaning = f": {signal.meaning}" if signal is not None else ""
    among = f" of source {quoted(incident.source)}" if incident.source else ""
    since = f"Since step {incident.opened}"
    explains = f" It explains {', '.join(incident.children)}." if incident.children else ""
    if incident.is_level:
        usual = "" if incident.usual is None else f", {incident.usual:.3g} in the steps before"
        return (
            f"{since}, {split}{among}: {incident.signal} is {incident.value:.3g}{usual}{meaning}.{explains}"
        )
    if incident.severity == "error":
        rows = "1 rollout carries" if incident.n_rows == 1 else f"{incident.n_rows} rollouts carry"
        return f"{since}, {split}{among}: {rows} {incident.signal}{meaning}.{explains}"
    usual = "" if incident.usual is None else f", {incident.usual:.1%} in the steps before"
    return (
        f"{since}, {split}{among}: {incident.value:.1%} {incident.signal}{usual}{meaning}. "
        f"The lower end of its 95 % interval is above {incident.limit:.1%}.{explains}"
    )
