"""Destinations to which a run's manifest may send data: this machine, and targets that this user named.

A manifest is a file. It may have come with a project that someone else made, and the environment holds tokens:
neither goes to a server, a Space or a folder only because a manifest names it.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rollout_traces.errors import StoreError
from rollout_traces.spool.run_folder import RunManifest


@dataclass(frozen=True)
class NamedTargets:
    """The targets that this user named, in a run's own settings or on a command line.

    Attributes:
        remotes: Spaces and servers that runs may be sent to.
        folders: folders that may get a file a step with the text of all its rows.
    """

    remotes: tuple[str, ...] = ()
    folders: tuple[str, ...] = ()

    @classmethod
    def of(cls, manifest: RunManifest) -> NamedTargets:
        """The targets that a run's own process named."""
        folder = manifest.options.get("all_rows_folder")
        return cls(
            (manifest.remote,) if manifest.remote else (),
            (str(folder),) if folder else (),
        )

    def has_remote(self, manifest: RunManifest) -> bool:
        """True when a run stays on this machine or goes where this user said."""
        return manifest.remote is None or manifest.remote in self.remotes

    def check_remote(self, manifest: RunManifest) -> None:
        """Refuses a run that goes elsewhere.

        Raises:
            StoreError: its Space or server was not named.
        """
        if not self.has_remote(manifest):
            raise StoreError(
                f"run {manifest.run_name} of {manifest.project} goes to {manifest.remote}, which nobody named here. "
                f"To send it there: rollout-traces recover --remote {manifest.remote}"
            )

    def all_rows_folder(self, options: Mapping[str, Any], trackio_folder: Path) -> str | None:
        """The folder for files of all rows.

        Args:
            options: a manifest's settings of the worker.
            trackio_folder: Trackio's folder, below which any folder may be written.

        Returns:
            None where the manifest names none.

        Raises:
            StoreError: it is elsewhere and was not named.
        """
        folder = options.get("all_rows_folder")
        if folder is None:
            return None
        inside = Path(folder).resolve().is_relative_to(trackio_folder.resolve())
        if not inside and str(folder) not in self.folders:
            raise StoreError(
                f"all_rows_folder: the manifest names {folder}, outside of {trackio_folder}, and nobody named it here: "
                f"no such files. To have them: rollout-traces recover --all-rows-folder {folder}"
            )
        return str(folder)

    def as_arguments(self) -> list[str]:
        """Command line arguments that `parse_arguments` reads."""
        remotes = [part for remote in self.remotes for part in ("--remote", remote)]
        return remotes + [part for folder in self.folders for part in ("--all-rows-folder", folder)]


def parse_arguments(arguments: Sequence[str]) -> tuple[Path, NamedTargets]:
    """Parses a run's folder and the targets that it may send to."""
    parser = argparse.ArgumentParser(prog="python -m rollout_traces.worker.main")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--remote", action="append", default=[])
    parser.add_argument("--all-rows-folder", action="append", default=[])
    given = parser.parse_args(arguments)
    return given.folder, NamedTargets(tuple(given.remote), tuple(given.all_rows_folder))
