"""Checks what a caller gives a `RolloutLogger`: settings, steps, splits, awaited keys, parts of a call, its inspector's address.

Where the run's rollouts can be opened is printed once, when it begins.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from rollout_traces.capture.hand_over import JOINABLE
from rollout_traces.errors import BatchError, ConfigError, RolloutTracesError, Warnings, text_of
from rollout_traces.model.batch import SPLITS, RolloutBatch, keys_left_out
from rollout_traces.model.names import check_project, check_run
from rollout_traces.model.plain_values import INT64_MAX, INT64_MIN
from rollout_traces.model.text import MOST, harmless
from rollout_traces.settings.logger_options import LoggerOptions, page_address
from rollout_traces.settings.run_settings import RunSettings
from rollout_traces.sink.webhook import ENVIRONMENT, check_webhook
from rollout_traces.steps.run_state import StepOptions
from rollout_traces.steps.selection import policy_named

RESUMES = ("allow", "must", "never")
"""Answers to whether a new run may, must or must not continue one of its name."""
WORKERS = ("process", "thread")
"""Places in which hand-overs are turned into traces: a separate process, or a thread of the trainer."""


def check_cap(cap: Any) -> None:
    """Raises ConfigError where `max_rollout_traces_per_step` is no int."""
    if isinstance(cap, bool) or not isinstance(cap, int):
        raise ConfigError(
            f"max_rollout_traces_per_step: seen {cap!r} ({type(cap).__name__}). "
            "Expected an int; 0 or less logs no traces."
        )


def check_judging(options: LoggerOptions) -> None:
    """Checks thresholds of flags and names of metrics; only a run that sets some loads what knows them.

    Raises:
        ConfigError: there is no such threshold, or no such metric.
    """
    if options.flag_parameters:
        from rollout_traces.flags.registry import check_parameters

        check_parameters(options.flag_parameters)
    if options.metric_keys != "default":
        from rollout_traces.metrics import check_keys

        check_keys(options.metric_keys)


@contextmanager
def naming(option: str) -> Iterator[None]:
    """Turns whatever is raised inside into an error that names the option it is about.

    Raises:
        ConfigError: something else than an error of this package was raised.
    """
    try:
        yield
    except RolloutTracesError:
        raise
    except Exception as error:
        raise ConfigError(f"{option}: {type(error).__name__}: {text_of(error)}") from error


def check_choice(name: str, value: Any, choices: Sequence[str]) -> None:
    """Raises ConfigError where a setting is none of its choices."""
    if value not in choices:
        raise ConfigError(f"{name}: seen {value!r}. Expected one of {', '.join(choices)}.")


def checked_options(options: StepOptions, config: Mapping[str, Any] | None) -> StepOptions:
    """Options that can be understood, with what the run declares.

    Args:
        options: what was given.
        config: the run's config, which may declare settings too.

    Raises:
        ConfigError: one cannot be understood; the text names it.
    """
    check_project(options.project)
    check_run(options.name)
    check_choice("resume", options.resume, RESUMES)
    check_choice("worker", options.worker, WORKERS)
    if not callable(options.selection):
        policy_named(options.selection)
    check_judging(options)
    webhook = options.alert_webhook or os.environ.get(ENVIRONMENT)
    if webhook:
        check_webhook(webhook)
    folder = options.all_rows_folder
    return replace(
        options,
        settings=RunSettings.declared(
            config,
            **{
                **options.run_settings,
                "reward_range": options.reward_range,
                "metric_ranges": options.metric_ranges or None,
            },
        ),
        all_rows_folder=None if folder is None else str(Path(folder).absolute()),
        alert_webhook=webhook,
        inspector_url=inspector_of(options.inspector_url, options.server_url),
    )


def plain_step(step: Any) -> int:
    """A step as a plain int.

    Raises:
        BatchError: it is none.
    """
    try:
        number = int(step)
    except (TypeError, ValueError, OverflowError) as error:
        raise BatchError(f"step: seen {step!r}. Expected the trainer's global step, an int.") from error
    if isinstance(step, bool) or number != step or not INT64_MIN <= number <= INT64_MAX:
        raise BatchError(f"step: seen {step!r}. Expected the trainer's global step, an int of 64 bits.")
    return number


def check_split(split: Any) -> None:
    """Raises BatchError where a split is neither `rollout` nor `eval-rollout`."""
    if split not in SPLITS:
        raise BatchError(f"split: seen {split!r}. Expected one of {', '.join(SPLITS)}.")


def awaited_keys(await_join: str | Sequence[str] | None, warnings: Warnings) -> list[str]:
    """The keys that will be joined later; a name that cannot be joined is left out, and warned about."""
    awaited = [await_join] if isinstance(await_join, str) else list(await_join or ())
    unknown = [name for name in awaited if name not in JOINABLE]
    if unknown:
        warnings.count(
            "keys_misspelt",
            f"await_join: {unknown[0]!r} cannot be joined, and is not awaited. Expected some of {', '.join(JOINABLE)}.",
        )
    return [name for name in awaited if name in JOINABLE]


def batches_of_call(batch: Any, call: str, warnings: Warnings) -> list[RolloutBatch]:
    """The batches of one call of `log_rollouts`.

    Args:
        batch: a `RolloutBatch`, one dict of tensors, or a list of dicts, each one group.
        call: the call's id; the parts of a list are named after it.
        warnings: where elements of a list that cannot be understood, and misspelt keys, are counted.

    Raises:
        BatchError: a single batch cannot be understood. An element of a list does not take its siblings.
    """
    if not isinstance(batch, (list, tuple)):
        _name_left_out(batch, warnings)
        return RolloutBatch.from_any(batch)
    for element in batch[:1]:
        _name_left_out(element, warnings)
    parts: list[RolloutBatch] = []
    for index, element in enumerate(batch):
        if element is None:
            warnings.counters["trajectories_missing"] += 1
            continue
        try:
            parts += [part.as_group(f"{call} part {index}") for part in RolloutBatch.from_any(element)]
        except Exception as error:  # noqa: BLE001  its siblings go on; counted and warned
            warnings.count("batches_refused", f"element {index}: {error}")
    return parts


def _name_left_out(batch: Any, warnings: Warnings) -> None:
    """Names the keys that a batch does not have, each set of them once."""
    unknown = keys_left_out(batch) if isinstance(batch, Mapping) else {}
    if not unknown:
        return
    named = [f"{key} (meant {near}?)" if near else key for key, near in unknown.items()]
    said = f"no keys of a batch, left out: {', '.join(named)}. A scalar of each rollout goes into sample_metrics or extras"
    warnings.count_once("keys_left_out", said, len(unknown))


BESIDE = "/trackio"
"""Below this path an inspector serves Trackio, and takes what runs log (`show --receive-logs`)."""
_said: set[str] = set()
"""Ids of the runs of this process that it was said of."""


def where_to_open(run: Any) -> str:
    """The command that opens a run, or the address of the inspector that it logs to; neither holds a token.

    Args:
        run: a `trackio.Run`.
    """
    space, server = getattr(run, "_space_id", None), getattr(run, "_server_base_url", None)
    inspector = inspector_of(None, server)
    if inspector is not None:
        return page_address(inspector, project=run.project, tab="run", run=run.name)
    place = ["--space", space] if space else ["--server-url", server] if server else []
    return shlex.join(["rollout-traces", "show", *place, "--project", run.project, "--run", run.name])


def inspector_of(given: str | None, server_url: str | None) -> str | None:
    """The address of the inspector that a run is opened in, without query and slash at its end.

    Args:
        given: what a user said.
        server_url: where the run logs to, which an inspector may serve.

    Raises:
        ConfigError: what was given is no such address.
    """
    if given is None:
        base = (server_url or "").partition("?")[0].rstrip("/")
        return base.removesuffix(BESIDE) if base.endswith(BESIDE) else None
    parts = urlsplit(given)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
        raise ConfigError(
            f"inspector_url: seen {given.partition('?')[0][:MOST]!r}. Expected the http or https address of an inspector, without a "
            "query: a token in it would be stored with the run."
        )
    if parts.username or parts.password:
        raise ConfigError(
            "inspector_url: has a user or password in it, which would be stored with the run. Expected none."
        )
    return given.rstrip("/")


def say_where_to_open(run: Any) -> None:
    """Prints it below what Trackio prints of the run, once a run and process."""
    if run.id not in _said:
        _said.add(run.id)
        print(f"* Rollouts of this run: {harmless(where_to_open(run))}", flush=True)
