"""The installed trainers, whether the hooks would bind to them, and the versions of the packages."""

from __future__ import annotations

import importlib.util
import platform
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from packaging.version import Version

from rollout_traces.doctor import CheckFinding, Examination, check

CAP = "max_rollout_traces_per_step"


@check("Trainers")
def trainers(examination: Examination) -> Iterator[CheckFinding]:
    """Looks for every hook point of every trainer that is installed."""
    from rollout_traces.integrations.base import INTEGRATIONS

    found = [integration for integration in INTEGRATIONS if integration.version is not None]
    if not found:
        names = ", ".join(dict.fromkeys(integration.distribution for integration in INTEGRATIONS))
        yield CheckFinding(
            "trainers", "note", f"none of {names} is installed", "Your own loop needs none of them."
        )
    for integration in found:
        missing = integration.missing_hook_points()
        if missing:
            yield CheckFinding(
                integration.name,
                "warn",
                f"{integration.version}: {'; '.join(missing)}",
                f"Rollouts cannot be seen there. Tested with {integration.distribution} {integration.supported}.",
            )
        elif not integration.is_supported:
            yield CheckFinding(
                integration.name,
                "warn",
                f"{integration.version} is not among the versions tested; every hook would bind",
                f"Tested with {integration.distribution} {integration.supported}.",
            )
        else:
            yield CheckFinding(integration.name, "ok", f"{integration.version}, every hook binds")
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
        return CheckFinding(
            "verl starts", "warn", "unknown: no trainer.use_v1 in its config", "Look at what main_ppo builds."
        )
    name, trainer = ("verl_v1", "verl.trainer.ppo.v1") if use_v1 else ("verl", "RayPPOTrainer")
    from rollout_traces.integrations.base import integration_named

    missing = integration_named(name).missing_hook_points()
    return CheckFinding(
        "verl starts",
        "warn" if missing else "ok",
        f"{trainer} (trainer.use_v1 is {str(use_v1).lower()}: {source})"
        + "".join(f"; {item}" for item in missing),
        "Rollouts cannot be seen there." if missing else "",
    )


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
    from rollout_traces.integrations.settings import HookSettings
    from rollout_traces.settings.environment import variable_of
    from rollout_traces.settings.logger_options import secret_names

    given = HookSettings.from_environment().given()
    for name, value in given.items():
        shown = "set" if name in secret_names() else repr(value)
        yield CheckFinding("environment", "note", f"{variable_of(name)} is {shown} and wins over a config")
    if examination.config is None:
        yield CheckFinding("config", "note", "not given", "--config PATH shows what it would log.")
        return
    if not examination.config.is_file():
        yield CheckFinding(
            "config", "fail", f"{examination.config} is no file", "Expected a trainer's YAML config."
        )
        return
    import yaml

    loaded = yaml.safe_load(examination.config.read_text()) or {}
    trackio = ((loaded.get("stats_logger") or {}).get("trackio") or {}) if isinstance(loaded, dict) else {}
    mode = trackio.get("mode", "disabled")
    cap = given.get(CAP, trackio.get(CAP, 0))
    if not isinstance(cap, int) or isinstance(cap, bool):
        yield CheckFinding(
            f"stats_logger.trackio.{CAP}", "fail", repr(cap), "Expected an int; 0 or less: no traces."
        )
    elif cap <= 0:
        yield CheckFinding("rollouts", "note", f"none: {CAP} is {cap}", "Set it to 32, say.")
    else:
        yield CheckFinding("rollouts", "ok", f"up to {cap} a step and split, and every row in the ledger")
    if CAP in trackio:
        yield CheckFinding(
            "start",
            "note",
            "AReaL's own config does not know the key",
            "rollout-traces run train.py --config ... adds it; so does areal.extend_config().",
        )
    kwargs = given.get("chat_template_kwargs", trackio.get("chat_template_kwargs"))
    if kwargs:
        yield CheckFinding("chat template", "ok", f"rendered with {kwargs!r}")
    yield CheckFinding(
        "scalars",
        "ok" if mode != "disabled" else "note",
        f"mode {mode!r}, project {trackio.get('project')!r}",
        ""
        if mode != "disabled"
        else "With Trackio off, a run of our own is opened when rollouts are logged.",
    )


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
    yield CheckFinding("python", "ok", platform.python_version())
    yield CheckFinding("rollout-traces", "ok", metadata.version("rollout-traces"))
    for name, oldest in OLDEST.items():
        try:
            version = metadata.version(name)
        except metadata.PackageNotFoundError:
            advice = OPTIONAL.get(name, f"pip install '{name}>={oldest}'")
            yield CheckFinding(name, "note" if name in OPTIONAL else "fail", "not installed", advice)
            continue
        if Version(version) < Version(oldest):
            yield CheckFinding(
                name,
                "warn",
                f"{version}, tested from {oldest}",
                f"pip install '{name}>={oldest}'",
            )
        else:
            yield CheckFinding(name, "ok", version)
