"""Makes or updates a Hugging Face Space that runs the inspector beside Trackio."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rollout_traces.deploy.app_files import FOLDER
from rollout_traces.errors import ConfigError, RolloutTracesError

if TYPE_CHECKING:
    from huggingface_hub import HfApi, Volume

MOUNT = "/data"
"""Where the bucket is mounted; Trackio mounts its own there, too."""
TRACKIO_DIR = f"{MOUNT}/trackio"


class DeployError(RolloutTracesError):
    """The Space could not be made or updated; the message says how far it came."""


@dataclass(frozen=True)
class SpaceOptions:
    """What is made.

    Attributes:
        space_id: the Space, `user/name`.
        private: whether a Space and a bucket that have to be made are private; one that exists stays as it is.
        bucket_id: the bucket that keeps the projects; `<space_id>-bucket`, as Trackio names its own, when None.
        secrets: value by name, kept by the Hub and given to the app.
    """

    space_id: str
    private: bool = True
    bucket_id: str | None = None
    secrets: Mapping[str, str] | None = None


@dataclass(frozen=True)
class Deployed:
    """What was made.

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
    options: SpaceOptions, files: Mapping[str, bytes], report: Callable[[str], None] = lambda step: None
) -> Deployed:
    """Makes the Space where there is none, mounts its bucket and puts the app there in one commit.

    Nothing of a project is sent. Until the commit, which the Hub takes whole or not at all, a Space that
    exists goes on with the app that it has.

    Args:
        options: what is made.
        files: content by path.
        report: is called with every step before it is done.

    Raises:
        ConfigError: the Space's name cannot be understood.
        DeployError: the Hub refused a step, or could not be reached.
    """
    from huggingface_hub import HfApi

    _check_id(options.space_id, "a Space")
    if options.bucket_id is not None:
        _check_id(options.bucket_id, "a bucket")
    api = HfApi()
    with _step("looking for the Space", "Nothing was changed."):
        report(f"looking for {options.space_id}")
        made = not api.repo_exists(options.space_id, repo_type="space")
    with _step("making the Space", "Nothing was changed."):
        if made:
            report("making the Space")
            api.create_repo(
                options.space_id,
                repo_type="space",
                space_sdk="gradio",
                private=options.private,
                exist_ok=True,
            )
    done = "The Space is there and still empty" if made else "The Space goes on with the app that it had"
    again = f"{done}; the same command continues."
    with _step("mounting the bucket", again):
        report("mounting the bucket")
        bucket_id = _mount_bucket(api, options)
    with _step("looking at the Space", again):
        private = bool(api.space_info(options.space_id).private)
    with _step("setting variables and secrets", again):
        report("setting variables and secrets")
        _set_variables(api, options, {"TRACKIO_DIR": TRACKIO_DIR, "TRACKIO_BUCKET_ID": bucket_id})
    with _step("sending the app", again):
        report(f"sending {len(files)} files")
        _commit(api, options.space_id, files)
    return Deployed(f"{api.endpoint}/spaces/{options.space_id}", bucket_id, len(files), private, made)


def _mount_bucket(api: HfApi, options: SpaceOptions) -> str:
    """The bucket at `/data`; one that is mounted there is kept, with what runs have logged."""
    from huggingface_hub import Volume

    volumes = _volumes(api, options.space_id)
    mounted = next((v.source for v in volumes if v.type == "bucket" and v.mount_path == MOUNT), None)
    wanted = options.bucket_id or mounted or f"{options.space_id}-bucket"
    if mounted == wanted:
        return wanted
    if mounted is not None:
        raise ConfigError(
            f"--bucket {wanted}: {mounted} is mounted at {MOUNT}, with what runs have logged. "
            "Leave --bucket out to keep it, or take it off the Space first."
        )
    api.create_bucket(wanted, private=options.private, exist_ok=True)
    api.set_space_volumes(
        options.space_id, [*volumes, Volume(type="bucket", source=wanted, mount_path=MOUNT)]
    )
    return wanted


def _volumes(api: HfApi, space_id: str) -> list[Volume]:
    """The Space's volumes; the Hub gives them with its runtime or with its description."""
    found = api.get_space_runtime(space_id).volumes
    if not found:
        runtime = api.space_info(space_id).runtime
        found = runtime.volumes if runtime is not None else None
    return list(found or ())


def _set_variables(api: HfApi, options: SpaceOptions, wanted: Mapping[str, str]) -> None:
    """Sets what differs: every change starts the Space anew. Whether a Space takes labels is its owner's."""
    known = api.get_space_variables(options.space_id)
    for name, value in wanted.items():
        if name not in known or known[name].value != value:
            api.add_space_variable(options.space_id, name, value)
    for name, value in (options.secrets or {}).items():
        api.add_space_secret(options.space_id, name, value)


def _commit(api: HfApi, space_id: str, files: Mapping[str, bytes]) -> None:
    """One commit with every file; files of an older version of the package go."""
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete

    old = {
        path
        for path in api.list_repo_files(space_id, repo_type="space")
        if path.startswith(f"{FOLDER}/") and path not in files
    }
    operations: list[CommitOperationAdd | CommitOperationDelete] = [
        CommitOperationAdd(path_in_repo=path, path_or_fileobj=content) for path, content in files.items()
    ]
    operations += [CommitOperationDelete(path_in_repo=path) for path in sorted(old)]
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
    """Turns what the Hub or the way there did into one sentence."""
    from huggingface_hub.errors import HfHubHTTPError, LocalTokenNotFoundError, OfflineModeIsEnabled

    try:
        yield
    except LocalTokenNotFoundError as error:
        raise DeployError(f"{doing}: no Hub token here. Log in with `hf auth login`. {state}") from error
    except OfflineModeIsEnabled as error:
        raise DeployError(f"{doing}: HF_HUB_OFFLINE is set, so that the Hub is not asked. {state}") from error
    except HfHubHTTPError as error:
        raise DeployError(f"{doing}: {_why(error)} {state}") from error
    except RolloutTracesError:
        raise
    except Exception as error:
        raise DeployError(
            f"{doing}: no answer of the Hub ({type(error).__name__}: {error}). {state}"
        ) from error


def _why(error: object) -> str:
    response = getattr(error, "response", None)
    status = getattr(response, "status_code", None)
    known = {
        401: "the Hub does not know the token (401). Log in with `hf auth login`.",
        403: "the token may not write there (403). It needs the write role.",
        404: "the Hub does not know the name, or the token may not see it (404).",
        409: "the Hub says that it changed meanwhile (409). Try again.",
        429: "too many requests (429). Wait a while.",
    }
    return known.get(status or 0) or f"the Hub answered {status}. Try again later."
