"""The installed trainers, whether the hooks would bind to them, and the versions of the packages."""

from __future__ import annotations

import importlib.util
import platform
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from packaging.version import Version

from rollout_traces.doctor import CheckFinding, Examination, check, fail, note, ok, warn

CAP = "max_rollout_traces_per_step"


@check("Trainers")
def trainers(examination: Examination) -> Iterator[CheckFinding]:
    """Looks for every hook point of every trainer that is installed."""
    from rollout_traces.integrations.base import INTEGRATIONS

    found = [integration for integration in INTEGRATIONS if integration.version is not None]
    if not found:
        names = ", ".join(dict.fromkeys(integration.distribution for integration in INTEGRATIONS))
        yield note("trainers", f"none of {names} is installed", "Your own loop needs none of them.")
    for integration in found:
        missing = integration.missing_hook_points()
        if missing:
            yield warn(
                integration.name,
                f"{integration.version}: {'; '.join(missing)}",
                f"Rollouts cannot be seen there. Tested with {integration.distribution} {integration.supported}.",
            )
        elif not integration.is_supported:
            yield warn(
                integration.name,
                f"{integration.version} is not among the versions tested; every hook would bind",
                f"Tested with {integration.distribution} {integration.supported}.",
            )
        else:
            yield ok(integration.name, f"{integration.version}, every hook binds")
    if any(integration.distribution == "verl" for integration in found):
        yield started_by_verl(examination.config)


def started_by_verl(config: Path | None) -> CheckFinding:
    """Says which of verl's trainers its installed version starts, and by what.

    Args:
        config: the run's config, whose `trainer.use_v1` wins over verl's own default.
    """
    given = _use_v1(config) if config is not None and config.is_file() else None
    default = _use_v1(_verl_defaults())
    use_v1, source = (default, "verl's default") if given is None else (given, str(config))
    if use_v1 is None:
        return warn(
            "verl starts", "unknown: no trainer.use_v1 in its config", "Look at what main_ppo builds."
        )
    name, trainer = ("verl_v1", "verl.trainer.ppo.v1") if use_v1 else ("verl", "RayPPOTrainer")
    from rollout_traces.integrations.base import integration_named

    missing = integration_named(name).missing_hook_points()
    seen = f"{trainer} (trainer.use_v1 is {str(use_v1).lower()}: {source})"
    if missing:
        return warn("verl starts", "; ".join((seen, *missing)), "Rollouts cannot be seen there.")
    return ok("verl starts", seen)


def _verl_defaults() -> Path:
    spec = importlib.util.find_spec("verl")
    folder = Path(spec.origin).parent if spec is not None and spec.origin else Path()
    return folder / "trainer" / "config" / "ppo_trainer.yaml"


def _use_v1(config: Path) -> bool | None:
    import yaml

    if not config.is_file():
        return None
    loaded = yaml.safe_load(config.read_text(encoding="utf-8"))
    trainer = loaded.get("trainer") if isinstance(loaded, dict) else None
    value = trainer.get("use_v1") if isinstance(trainer, dict) else None
    return value if isinstance(value, bool) else None


@check("Config")
def config(examination: Examination) -> Iterator[CheckFinding]:
    """Says what a trainer's YAML config and the environment would log."""
    from rollout_traces.settings.logger_options import (
        HookOptions,
        read_environment,
        secret_names,
        variable_of,
    )

    given = read_environment(HookOptions)
    for name, value in given.items():
        shown = "set" if name in secret_names() else repr(value)
        yield note("environment", f"{variable_of(name)} is {shown} and wins over a config")
    if examination.config is None:
        yield note("config", "not given", "--config PATH shows what it would log.")
        return
    if not examination.config.is_file():
        yield fail("config", f"{examination.config} is no file", "Expected a trainer's YAML config.")
        return
    import yaml

    loaded = yaml.safe_load(examination.config.read_text()) or {}
    trackio = ((loaded.get("stats_logger") or {}).get("trackio") or {}) if isinstance(loaded, dict) else {}
    mode = trackio.get("mode", "disabled")
    cap = given.get(CAP, trackio.get(CAP, 0))
    if not isinstance(cap, int) or isinstance(cap, bool):
        yield fail(f"stats_logger.trackio.{CAP}", repr(cap), "Expected an int; 0 or less: no traces.")
    elif cap <= 0:
        yield note("rollouts", f"none: {CAP} is {cap}", "Set it to 32, say.")
    else:
        yield ok("rollouts", f"up to {cap} a step and split, and every row in the ledger")
    if CAP in trackio:
        yield note(
            "start",
            "AReaL's own config does not know the key",
            "rollout-traces run train.py --config ... adds it; so does areal.extend_config().",
        )
    kwargs = given.get("chat_template_kwargs", trackio.get("chat_template_kwargs"))
    if kwargs:
        yield ok("chat template", f"rendered with {kwargs!r}")
    scalars = f"mode {mode!r}, project {trackio.get('project')!r}"
    if mode == "disabled":
        yield note(
            "scalars", scalars, "With Trackio off, a run of our own is opened when rollouts are logged."
        )
    else:
        yield ok("scalars", scalars)


OLDEST = {"trackio": "0.43", "transformers": "4.51", "numpy": "1.26", "torch": "2.1", "gradio": "6.0"}
"""Oldest versions that the project is tested with."""
_TRAIN = "pip install 'rollout-traces[train]' where nothing else brings it; a trainer does."
OPTIONAL = {
    "gradio": "pip install 'rollout-traces[inspector]' for `rollout-traces show`.",
    "torch": _TRAIN,
    "transformers": _TRAIN,
}


@check("Installed")
def versions(examination: Examination) -> Iterator[CheckFinding]:
    """Python, and the packages that logging, training and looking need."""
    yield ok("python", platform.python_version())
    yield ok("rollout-traces", metadata.version("rollout-traces"))
    for name, oldest in OLDEST.items():
        try:
            version = metadata.version(name)
        except metadata.PackageNotFoundError:
            advice = OPTIONAL.get(name, f"pip install '{name}>={oldest}'")
            yield (note if name in OPTIONAL else fail)(name, "not installed", advice)
            continue
        if Version(version) < Version(oldest):
            yield warn(name, f"{version}, tested from {oldest}", f"pip install '{name}>={oldest}'")
        else:
            yield ok(name, version)
