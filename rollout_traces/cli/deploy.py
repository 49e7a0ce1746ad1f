"""`rollout-traces deploy`: the inspector on a Hugging Face Space, or as a folder for a container."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import metadata
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from packaging.requirements import Requirement

from rollout_traces.errors import ConfigError, RolloutTracesError
from rollout_traces.model.text import one_line
from rollout_traces.model.units import MINUTE
from rollout_traces.model.whole_files import unfinished

if TYPE_CHECKING:
    from huggingface_hub import HfApi, Volume


LONGEST_WHY = 500
"""Characters of an error of the Hub's client that are shown."""
HUB_SECONDS = 1.0 * MINUTE
"""Seconds after which a Hub that says nothing is given up."""
MOUNT = "/data"
"""The folder at which the bucket is mounted; Trackio mounts its own there, too."""
TRACKIO_DIR = f"{MOUNT}/trackio"
PYTHON = f"{sys.version_info[0]}.{sys.version_info[1]}"
"""The version of Python that is asked for: this one, for which the requirements are pinned."""
EXTRAS = ("inspector", "reading")
NOT_READING = frozenset({"torch", "transformers", "tokenizers"})
"""Requirements of the package that reading does without, gigabytes of them."""
FOLDER = "rollout_traces"
"""The package's folder in the Space; what is there and no longer belongs to it is taken away."""

_APP = '''"""The rollout inspector, with Trackio's dashboard at /trackio/."""

from rollout_traces.inspector.hosted import serve_hosted

serve_hosted()
'''
_README = """---
title: {title}
emoji: 🔎
sdk: gradio
sdk_version: {gradio}
python_version: "{python}"
app_file: app.py
tags:
 - trackio
 - rollout-traces
---

Rollouts of RL training as conversations, token for token, with Trackio's dashboard at `/trackio/`.
Made by `rollout-traces deploy`; the same command updates it.
"""
_DOCKERFILE = """FROM python:{python}-slim
RUN useradd --create-home --uid 1000 reader && mkdir /data && chown reader /data
WORKDIR /app
COPY requirements.txt .
RUN pip install --no-cache-dir -r requirements.txt
COPY . .
USER reader
ENV TRACKIO_DIR=/data/trackio PYTHONUNBUFFERED=1
VOLUME /data
EXPOSE 7860
# ROLLOUT_TRACES_TOKEN opens the pages, ROLLOUT_TRACES_TOKENS too (name=token pairs), TRACKIO_WRITE_TOKEN lets runs
# log to <address>/trackio/, ROLLOUT_TRACES_LABELS=1 lets readers label, ROLLOUT_TRACES_HOSTS are the names it answers, ROLLOUT_TRACES_PROXIES the proxies in front of it.
CMD ["python", "app.py"]
"""


def deploy(
    space: Annotated[str | None, typer.Argument(show_default=False)] = None,
    *,
    public: Annotated[bool, typer.Option("--public/--private")] = False,
    bucket: str | None = None,
    secret: list[str] | None = None,
    to_folder: Path | None = None,
) -> None:
    """Put the inspector on a Hugging Face Space beside Trackio, or update it there.

    Runs log to it with space_id="user/name"; `show --space user/name` reads from it. Nothing of a project is sent.

    Example: rollout-traces deploy ada/rollouts --private

    Args:
        space: The Space, user/name.
        public: Who may read a Space that has to be made.
        bucket: The bucket that keeps the projects; <space>-bucket by default.
        secret: Give the app this variable of the environment as a secret; repeatable.
        to_folder: Write the app here instead, with a Dockerfile; asks nobody.
    """
    from rollout_traces.store.http_source import give_the_hub_up_after

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
    files_of_app = app_files(space.rpartition("/")[2])
    secrets = _secrets(secret or [])
    done = deploy_space(space, files_of_app, private=not public, bucket_id=bucket, secrets=secrets)
    typer.echo(
        f"{'Made' if done.made else 'Updated'} {done.address}: {done.n_files} files; projects in {done.bucket_id}."
    )
    if not done.private:
        typer.secho("The Space is public: everybody can read every rollout there.", err=True, fg="yellow")
    typer.echo(f'Log to it with space_id="{space}"; the Hub takes a few minutes to build it.')


def _secrets(names: list[str]) -> dict[str, str]:
    missing = [name for name in names if not os.environ.get(name)]
    if missing:
        raise ConfigError(f"--secret {missing[0]}: no such variable in the environment, or it is empty.")
    return {name: os.environ[name] for name in names}


class DeployError(RolloutTracesError):
    """The Space could not be made or updated; the message says how far it came."""


@dataclass(frozen=True)
class Deployed:
    """The Space that was made.

    Attributes:
        address: the Space's page on the Hub.
        bucket_id: the bucket that keeps the projects.
        n_files: files in the Space now.
        private: whether the Space is private.
        made: whether the Space was made now; False: it was updated.
    """

    address: str
    bucket_id: str
    n_files: int
    private: bool
    made: bool


def deploy_space(
    space_id: str,
    files: Mapping[str, bytes],
    *,
    private: bool = True,
    bucket_id: str | None = None,
    secrets: Mapping[str, str] | None = None,
) -> Deployed:
    """Makes the Space where there is none, mounts its bucket and puts the app there in one commit.

    Nothing of a project is sent. Until the commit, which the Hub takes whole or not at all, a Space that
    exists goes on with the app that it has.

    Args:
        space_id: the Space, `user/name`.
        files: content by path.
        private: whether a Space and a bucket that have to be made are private; one that exists stays as it is.
        bucket_id: the bucket that keeps the projects; `<space_id>-bucket`, as Trackio names its own, when None.
        secrets: value by name, kept by the Hub and given to the app.

    Raises:
        ConfigError: the Space's name cannot be understood.
        DeployError: the Hub refused a step, or could not be reached.
    """
    from huggingface_hub import HfApi

    _check_id(space_id, "a Space")
    if bucket_id is not None:
        _check_id(bucket_id, "a bucket")
    api = HfApi()
    with _step(f"looking for {space_id}", "Nothing was changed."):
        made = not api.repo_exists(space_id, repo_type="space")
    if made:
        with _step("making the Space", "Nothing was changed."):
            api.create_repo(space_id, repo_type="space", space_sdk="gradio", private=private, exist_ok=True)
    done = "The Space is there and still empty" if made else "The Space goes on with the app that it had"
    again = f"{done}; the same command continues."
    with _step("mounting the bucket", again):
        mounted = _mount_bucket(api, space_id, bucket_id, private)
        is_private = bool(api.space_info(space_id).private)
    with _step("setting variables and secrets", again):
        _set_variables(api, space_id, mounted, secrets or {})
    with _step(f"sending {len(files)} files", again):
        _commit(api, space_id, files)
    return Deployed(f"{api.endpoint}/spaces/{space_id}", mounted, len(files), is_private, made)


def _mount_bucket(api: HfApi, space_id: str, bucket_id: str | None, private: bool) -> str:
    """The bucket at `/data`; one that is mounted there is kept, with what runs have logged."""
    from huggingface_hub import Volume

    volumes = _volumes(api, space_id)
    mounted = next((v.source for v in volumes if v.type == "bucket" and v.mount_path == MOUNT), None)
    wanted = bucket_id or mounted or f"{space_id}-bucket"
    if mounted == wanted:
        return wanted
    if mounted is not None:
        raise ConfigError(
            f"--bucket {wanted}: {mounted} is mounted at {MOUNT}, with what runs have logged. "
            "Leave --bucket out to keep it, or take it off the Space first."
        )
    api.create_bucket(wanted, private=private, exist_ok=True)
    api.set_space_volumes(space_id, [*volumes, Volume(type="bucket", source=wanted, mount_path=MOUNT)])
    return wanted


def _volumes(api: HfApi, space_id: str) -> list[Volume]:
    """The Space's volumes; the Hub gives them with its runtime or with its description."""
    found = api.get_space_runtime(space_id).volumes
    if not found:
        runtime = api.space_info(space_id).runtime
        found = runtime.volumes if runtime is not None else None
    return list(found or ())


def _set_variables(api: HfApi, space_id: str, bucket_id: str, secrets: Mapping[str, str]) -> None:
    """Sets what differs: every change starts the Space anew. Whether a Space takes labels is its owner's."""
    known = api.get_space_variables(space_id)
    for name, value in {"TRACKIO_DIR": TRACKIO_DIR, "TRACKIO_BUCKET_ID": bucket_id}.items():
        if name not in known or known[name].value != value:
            api.add_space_variable(space_id, name, value)
    for name, value in secrets.items():
        api.add_space_secret(space_id, name, value)


def _commit(api: HfApi, space_id: str, files: Mapping[str, bytes]) -> None:
    """One commit with every file, where an upload of a folder may be several; files of an older version of the package go."""
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete

    there = api.list_repo_files(space_id, repo_type="space")
    old = sorted(path for path in there if path.startswith(f"{FOLDER}/") and path not in files)
    operations: list[CommitOperationAdd | CommitOperationDelete] = [
        *(CommitOperationAdd(path_in_repo=path, path_or_fileobj=content) for path, content in files.items()),
        *(CommitOperationDelete(path_in_repo=path) for path in old),
    ]
    api.create_commit(space_id, operations, commit_message="rollout-traces deploy", repo_type="space")


def _check_id(given: str, what: str) -> None:
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id

    try:
        validate_repo_id(given)
        if given.count("/") != 1:
            raise HFValidationError("no owner")
    except HFValidationError as error:
        raise ConfigError(f"{what}: seen {given!r}. Expected owner/name.") from error


@contextmanager
def _step(doing: str, state: str) -> Iterator[None]:
    """Says what is done, and turns what the Hub or the way there did into one sentence."""
    typer.echo(f"  {doing}", err=True)
    try:
        yield
    except RolloutTracesError:
        raise
    except Exception as error:
        why = one_line(f"{type(error).__name__}: {error}", LONGEST_WHY)
        raise DeployError(f"{doing}: {why} {state} `hf auth login` gives a token that may write.") from error


def app_files(title: str) -> dict[str, bytes]:
    """Every file of the hosted inspector.

    Args:
        title: what the Space is called.

    Returns:
        Content by path.

    Raises:
        ConfigError: a requirement is not installed here, so that its version is not known.
    """
    versions = pinned_versions()
    values = {"title": json.dumps(title), "gradio": versions["gradio"], "python": PYTHON}
    listed = "".join(f"{name}=={version}\n" for name, version in sorted(versions.items()))
    return {
        "README.md": _README.format(**values).encode(),
        "app.py": _APP.encode(),
        "requirements.txt": listed.encode(),
        "Dockerfile": _DOCKERFILE.format(**values).encode(),
        **_package_files(),
    }


def pinned_versions() -> dict[str, str]:
    """Lists what reading needs, at the versions that are installed here.

    Raises:
        ConfigError: one is not installed, or the package itself is not.
    """
    try:
        declared = [Requirement(line) for line in metadata.requires("rollout-traces") or ()]
    except metadata.PackageNotFoundError as error:
        raise ConfigError(
            "rollout-traces is not installed here, only its files are; pip install it to deploy."
        ) from error
    environments: tuple[dict[str, str], ...] = ({"extra": ""}, *({"extra": name} for name in EXTRAS))
    versions = {}
    for requirement in declared:
        name = requirement.name.lower().replace("_", "-")
        wanted = any(requirement.marker is None or requirement.marker.evaluate(e) for e in environments)
        if not wanted or name in NOT_READING or name == "rollout-traces":
            continue
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError as error:
            raise ConfigError(
                f"{name} is not installed, so the version to run there is not known: "
                "pip install 'rollout-traces[inspector]'."
            ) from error
    return versions


def write_app(folder: Path, files_by_path: Mapping[str, bytes]) -> None:
    """Writes the files into a folder, for a container.

    Raises:
        ConfigError: there is something in the folder already.
        NotWritten: it cannot be written.
    """
    with unfinished(folder, folder=True) as made:
        for path, content in files_by_path.items():
            target = made / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)


def _package_files() -> dict[str, bytes]:
    root = Path(str(files("rollout_traces")))
    return {
        f"{FOLDER}/{path.relative_to(root).as_posix()}": path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts and path.suffix != ".pyc"
    }
