"""A batch looked at before a run is started: no logger, no project, nothing written."""

from rollout_traces.preflight.examine import CheckReport, Problem, check

__all__ = ["CheckReport", "Problem", "check"]
