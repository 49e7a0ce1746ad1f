"""Alarms of a run: the alerts of a step as it closes, incidents, and which flags its rows wear.

All of it is the detector of `analysis`: online over a run's last steps, in pages over all of them.
"""
