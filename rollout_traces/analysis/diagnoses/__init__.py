"""Diagnoses of a run, in causal order."""

from rollout_traces.analysis.diagnoses.base import TIERS, Diagnosis, Evidence
from rollout_traces.analysis.diagnoses.diagnose import RunReport, diagnose, diagnose_series
from rollout_traces.analysis.diagnoses.unobserved import Unobserved

__all__ = ["TIERS", "Diagnosis", "Evidence", "RunReport", "Unobserved", "diagnose", "diagnose_series"]
