"""Python loads this at start when `rollout-traces run` has put its folder on the path.

It waits for a trainer to be imported, then lets the environment's own sitecustomize have its turn.
"""

import importlib.util
import sys
from pathlib import Path

_HERE = str(Path(__file__).resolve().parent)

try:
    from rollout_traces.integrations.import_hook import install
    from rollout_traces.integrations.run_report import say_at_exit

    install()
    say_at_exit()
except Exception as error:  # noqa: BLE001  a script must start whatever happens here; said on stderr
    print(f"rollout-traces: hooks not installed, the script goes on without: {error!r}", file=sys.stderr)

sys.path[:] = [entry for entry in sys.path if entry != _HERE]
_spec = importlib.util.find_spec("sitecustomize")
if _spec is not None and _spec.loader is not None and _spec.origin != __file__:
    _module = importlib.util.module_from_spec(_spec)
    sys.modules["sitecustomize"] = _module
    _spec.loader.exec_module(_module)
