"""The formats, in the order in which a file is shown to them; packages add theirs by an entry point."""

from __future__ import annotations

import importlib
import logging
from functools import lru_cache
from importlib.metadata import entry_points

from rollout_traces.errors import ConfigError
from rollout_traces.model.text import words
from rollout_traces.sources.base import Format

log = logging.getLogger(__name__)

ENTRY_POINTS = "rollout_traces.sources"
"""Group of entry points; each names a `Format` class."""

_BUILT_IN = words(
    "own_export.OwnExport partitioned_export.PartitionedExport prime_rl.PrimeRl "
    "verifiers_trace.VerifiersTrace token_export.TokenExport nemo_rl.NemoRl nemo_gym.NemoGym "
    "atropos.Atropos open_instruct.OpenInstruct slime.Slime skyrl.SkyrlTraining skyrl.SkyrlEvals "
    "areal.Areal verl.Verl trl_parquet.TrlParquet verifiers_results.VerifiersResults rllm.Rllm "
    "tinker.Tinker tinker_capture.TinkerCapture inspect_eval.InspectEval scout.Scout atif.Atif "
    "api_log.ApiLog chat_jsonl.ChatJsonl"
)


@lru_cache(maxsize=1)
def formats() -> dict[str, Format]:
    """Every format by name: those of other packages first, chat JSONL last."""
    found: dict[str, Format] = {}
    for point in entry_points(group=ENTRY_POINTS):
        try:
            added = point.load()()
        except Exception as error:  # noqa: BLE001  another package's fault must not keep ours from reading; it is said
            log.warning("the source %r of %s cannot be loaded: %r", point.name, point.value, error)
            continue
        if isinstance(added, Format):
            found[added.name] = added
        else:
            log.warning("the source %r is a %s. Expected a Format.", point.name, type(added).__name__)
    for place in _BUILT_IN:
        module, _, name = place.partition(".")
        built = getattr(importlib.import_module(f"{__name__}.{module}"), name)()
        found.setdefault(built.name, built)
    return found


def format_named(name: str) -> Format:
    """The format of a name.

    Raises:
        ConfigError: there is none.
    """
    known = formats()
    if name not in known:
        raise ConfigError(f"format: seen {name!r}. Expected auto or one of {', '.join(known)}.")
    return known[name]
