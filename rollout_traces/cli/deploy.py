"""`rollout-traces deploy`: the inspector on a Hugging Face Space, or as a folder for a container."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

HUB_SECONDS = 60.0
"""Seconds after which a Hub that says nothing is given up."""


def deploy(
    space: Annotated[str | None, typer.Argument(help="The Space, user/name.", show_default=False)] = None,
    public: Annotated[
        bool, typer.Option("--public/--private", help="Who may read a Space that has to be made.")
    ] = False,
    bucket: Annotated[
        str | None, typer.Option(help="The bucket that keeps the projects; <space>-bucket by default.")
    ] = None,
    secret: Annotated[
        list[str] | None,
        typer.Option(help="Give the app this variable of the environment as a secret; repeatable."),
    ] = None,
    to_folder: Annotated[
        Path | None, typer.Option(help="Write the app here instead, with a Dockerfile; asks nobody.")
    ] = None,
) -> None:
    """Put the inspector on a Hugging Face Space beside Trackio, or update it there.

    Runs log to it with space_id="user/name"; `show --space user/name` reads from it. Nothing of a project is sent.

    Example: rollout-traces deploy ada/rollouts --private
    """
    from rollout_traces.deploy.app_files import app_files, write_app
    from rollout_traces.deploy.space import SpaceOptions, deploy_space
    from rollout_traces.errors import ConfigError
    from rollout_traces.store.server_client import give_the_hub_up_after

    if (space is None) == (to_folder is None):
        raise ConfigError("deploy: name a Space, user/name, or a folder with --to-folder, one of the two.")
    if to_folder is not None:
        write_app(to_folder, app_files("Rollouts"))
        typer.echo(
            f"{to_folder}: docker build -t rollouts {to_folder}, and run it with ROLLOUT_TRACES_TOKEN set."
        )
        return
    assert space is not None
    give_the_hub_up_after(HUB_SECONDS)
    options = SpaceOptions(space, private=not public, bucket_id=bucket, secrets=_secrets(secret or []))
    done = deploy_space(options, app_files(space.rpartition("/")[2]), report=_report)
    typer.echo(
        f"{'Made' if done.made else 'Updated'} {done.address}: {done.n_files} files; projects in {done.bucket_id}."
    )
    if not done.private:
        typer.secho("The Space is public: everybody can read every rollout there.", err=True, fg="yellow")
    typer.echo(f'Log to it with space_id="{space}"; the Hub takes a few minutes to build it.')


def _report(step: str) -> None:
    typer.echo(f"  {step}", err=True)


def _secrets(names: list[str]) -> dict[str, str]:
    from rollout_traces.errors import ConfigError

    missing = [name for name in names if not os.environ.get(name)]
    if missing:
        raise ConfigError(f"--secret {missing[0]}: no such variable in the environment, or it is empty.")
    return {name: os.environ[name] for name in names}
