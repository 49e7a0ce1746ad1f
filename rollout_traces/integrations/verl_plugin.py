"""The plugin that verl loads: waits for its trainer to be imported, when a cap is set.

verl imports this through the entry point group `verl.plugins`, or by name through
`VERL_USE_EXTERNAL_MODULES=rollout_traces.integrations.verl_plugin`.
"""

from __future__ import annotations

from rollout_traces.settings.logger_options import HookOptions, read_environment

if read_environment(HookOptions).get("max_rollout_traces_per_step", 0) > 0:
    from rollout_traces.integrations.followed import prepare
    from rollout_traces.integrations.import_hook import install

    prepare()
    install("verl.")
