"""From a moved curve to its cause: what changed, since when, for whom.

Everything is computed over two relations, `rollouts` and `metrics`, through an object with
`.sql(query, params)`. Imports are lazy: scipy is loaded by what needs it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rollout_traces.analysis.diagnosis import Diagnosis
    from rollout_traces.analysis.evaluations import Flip, Flips, flips
    from rollout_traces.analysis.explanation import Explanation, explain
    from rollout_traces.analysis.finding import Finding
    from rollout_traces.analysis.prompts import PromptList, list_prompts, prompt_over_time
    from rollout_traces.analysis.run_report import RunReport, diagnose
    from rollout_traces.analysis.selections import Selection
    from rollout_traces.analysis.timeline import Event, FirstSeen, events, first_seen

_WHERE = {
    "Diagnosis": "diagnosis",
    "RunReport": "run_report",
    "diagnose": "run_report",
    "Event": "timeline",
    "events": "timeline",
    "Explanation": "explanation",
    "Finding": "finding",
    "explain": "explanation",
    "FirstSeen": "timeline",
    "first_seen": "timeline",
    "Flip": "evaluations",
    "Flips": "evaluations",
    "flips": "evaluations",
    "PromptList": "prompts",
    "list_prompts": "prompts",
    "prompt_over_time": "prompts",
    "Selection": "selections",
}
__all__ = [
    "Diagnosis",
    "Event",
    "Explanation",
    "Finding",
    "FirstSeen",
    "Flip",
    "Flips",
    "PromptList",
    "RunReport",
    "Selection",
    "diagnose",
    "events",
    "explain",
    "first_seen",
    "flips",
    "list_prompts",
    "prompt_over_time",
]


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_WHERE[name]}"), name)
