"""Which trainers are installed, and whether the hooks would bind."""

from __future__ import annotations

from collections.abc import Iterator

from rollout_traces.doctor.base import Examination, Finding, check

CAP = "max_rollout_traces_per_step"


@check("Trainers")
def trainers(examination: Examination) -> Iterator[Finding]:
    """Looks for every hook point of every trainer that is installed."""
    from rollout_traces.integrations.base import INTEGRATIONS

    found = [integration for integration in INTEGRATIONS if integration.version is not None]
    if not found:
        names = ", ".join(integration.distribution for integration in INTEGRATIONS)
        yield Finding(
            "trainers", "note", f"none of {names} is installed", "Your own loop needs none of them."
        )
    for integration in found:
        missing = integration.missing_hook_points()
        if missing:
            yield Finding(
                integration.name,
                "warn",
                f"{integration.version}: {'; '.join(missing)}",
                f"Rollouts cannot be seen there. Tested with {integration.distribution} {integration.supported}.",
            )
        elif not integration.is_supported:
            yield Finding(
                integration.name,
                "warn",
                f"{integration.version} is not among the versions tested; every hook would bind",
                f"Tested with {integration.distribution} {integration.supported}.",
            )
        else:
            yield Finding(integration.name, "ok", f"{integration.version}, every hook binds")


@check("Config")
def config(examination: Examination) -> Iterator[Finding]:
    """What a trainer's YAML config and the environment would log."""
    from rollout_traces.integrations.settings import HookSettings
    from rollout_traces.settings.environment import variable_of

    given = HookSettings.from_environment().given()
    for name, value in given.items():
        yield Finding("environment", "note", f"{variable_of(name)} is {value!r} and wins over a config")
    if examination.config is None:
        yield Finding("config", "note", "not given", "--config PATH shows what it would log.")
        return
    if not examination.config.is_file():
        yield Finding(
            "config", "fail", f"{examination.config} is no file", "Expected a trainer's YAML config."
        )
        return
    import yaml

    loaded = yaml.safe_load(examination.config.read_text()) or {}
    trackio = ((loaded.get("stats_logger") or {}).get("trackio") or {}) if isinstance(loaded, dict) else {}
    mode = trackio.get("mode", "disabled")
    cap = given.get(CAP, trackio.get(CAP, 0))
    if not isinstance(cap, int) or isinstance(cap, bool):
        yield Finding(
            f"stats_logger.trackio.{CAP}", "fail", repr(cap), "Expected an int; 0 or less: no traces."
        )
    elif cap <= 0:
        yield Finding("rollouts", "note", f"none: {CAP} is {cap}", "Set it to 32, say.")
    else:
        yield Finding("rollouts", "ok", f"up to {cap} a step and split, and every row in the ledger")
    if CAP in trackio:
        yield Finding(
            "start",
            "note",
            "AReaL's own config does not know the key",
            "rollout-traces run train.py --config ... adds it; so does areal.extend_config().",
        )
    kwargs = given.get("chat_template_kwargs", trackio.get("chat_template_kwargs"))
    if kwargs:
        yield Finding("chat template", "ok", f"rendered with {kwargs!r}")
    yield Finding(
        "scalars",
        "ok" if mode != "disabled" else "note",
        f"mode {mode!r}, project {trackio.get('project')!r}",
        ""
        if mode != "disabled"
        else "With Trackio off, a run of our own is opened when rollouts are logged.",
    )
