"""The files of a hosted inspector: the app, what it needs at fixed versions, and this package itself."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from importlib import metadata
from importlib.resources import files
from pathlib import Path

from packaging.requirements import Requirement

from rollout_traces.errors import ConfigError

PYTHON = f"{sys.version_info[0]}.{sys.version_info[1]}"
"""The version of Python that is asked for: this one, for which the requirements are pinned."""
EXTRAS = ("inspector", "reading")
NOT_READING = frozenset({"torch", "transformers", "tokenizers"})
"""Requirements of the package that reading does without, gigabytes of them."""
FOLDER = "rollout_traces"
"""Where the package lies in the Space; what is there and no longer belongs to it is taken away."""

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


def app_files(title: str, pinned: Mapping[str, str] | None = None) -> dict[str, bytes]:
    """Every file of the hosted inspector.

    Args:
        title: what the Space is called.
        pinned: version by requirement; those installed here by default.

    Returns:
        Content by path.

    Raises:
        ConfigError: a requirement is not installed here, so that its version is not known.
    """
    versions = dict(pinned) if pinned is not None else pinned_versions()
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
    """What reading needs, at the versions that are installed here.

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
    """
    if folder.exists() and any(folder.iterdir()):
        raise ConfigError(f"{folder}: is not empty. Name a new folder.")
    for path, content in files_by_path.items():
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)


def _package_files() -> dict[str, bytes]:
    root = Path(str(files("rollout_traces")))
    return {
        f"{FOLDER}/{path.relative_to(root).as_posix()}": path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts and path.suffix != ".pyc"
    }
