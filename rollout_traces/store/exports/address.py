"""Addresses of exports: a folder of this machine, or a bucket or data set reached through fsspec."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rollout_traces.errors import ConfigError, StoreError, extra

PROTOCOLS = ("file", "s3", "gs", "gcs", "az", "abfs", "abfss", "hf")
"""What an address may begin with; fsspec knows more, among them some that run or unpack what they find."""
_PACKAGES = {"s3": "s3fs", "gs": "gcsfs", "gcs": "gcsfs", "az": "adlfs", "abfs": "adlfs", "abfss": "adlfs"}


def is_address(text: str) -> bool:
    """Whether a text is the address of an export and no name of a project."""
    return isinstance(text, str) and ("://" in text or text.startswith((".", "~")) or os.sep in text)


def holds_export(folder: Path) -> bool:
    """Whether a folder of this machine holds parquet files, at any depth."""
    return folder.is_dir() and next(folder.rglob("*.parquet"), None) is not None


@dataclass(frozen=True)
class FoundFile:
    """A file below an address.

    Attributes:
        path: its path inside the file system.
        name: its path below the address, with `/`.
        size: bytes.
        stamp: changes with its content, as far as the file system says.
    """

    path: str
    name: str
    size: int
    stamp: str


class Folder:
    """A folder that fsspec reaches, read only.

    Args:
        address: a folder of this machine, `s3://bucket/path`, `hf://datasets/user/name/path` and the like.
        options: for fsspec's file system, such as `endpoint_url`; credentials come from the environment.

    Raises:
        ConfigError: the package for this kind of address is missing.
        StoreError: it is no address that is read.
    """

    def __init__(self, address: str, options: Mapping[str, Any] | None = None) -> None:
        protocol, there, _ = address.partition("://")
        protocol = protocol if there else "file"
        if protocol not in PROTOCOLS or "::" in address:
            raise StoreError(f"{address}: seen {protocol}://, expected one of {', '.join(PROTOCOLS)}.")
        self.address = address if there else str(Path(address).expanduser().resolve())
        self._protocol = protocol
        with extra("reading", f"reading {address}"):
            import fsspec
        try:
            self.fs, root = fsspec.core.url_to_fs(self.address, **dict(options or {}))
        except ImportError as error:
            package = _PACKAGES.get(protocol, "huggingface_hub")
            raise ConfigError(
                f"{address}: reading it needs {package}: pip install 'rollout-traces[remote]'"
                + ("." if package in ("s3fs", "huggingface_hub") else f" {package}.")
            ) from error
        except Exception as error:
            raise self._unreachable(error) from error
        self.root = str(root).rstrip("/")

    @property
    def is_local(self) -> bool:
        """Whether it is of this machine."""
        return self._protocol == "file"

    def files(self, suffix: str, below: str = "") -> list[FoundFile]:
        """The files whose names end in something, by name; those below `_` and `.` folders are left out.

        Args:
            suffix: the ending.
            below: look below this folder of it alone.

        Raises:
            StoreError: it cannot be listed, or is not there.
        """
        top = f"{self.root}/{below}" if below else self.root
        try:
            self.fs.invalidate_cache()
            found = self.fs.find(top, detail=True)
            if not found and not below:
                self.fs.info(top)
        except FileNotFoundError:
            if below:
                return []
            raise StoreError(f"{self.address}: nothing there.") from None
        except Exception as error:
            raise self._unreachable(error) from error
        files = []
        for path, info in sorted(found.items(), key=lambda each: _in_order(each[0])):
            name = path[len(top) :].lstrip("/")
            hidden = any(part.startswith(("_", ".")) for part in name.split("/"))
            if path.endswith(suffix) and not hidden:
                files.append(FoundFile(path, name, int(info.get("size") or 0), _stamp(info)))
        return files

    def read(self, path: str) -> bytes:
        """A whole file.

        Args:
            path: inside the file system.

        Raises:
            StoreError: it cannot be read.
        """
        try:
            return bytes(self.fs.cat_file(path))
        except Exception as error:
            raise self._unreachable(error) from error

    def read_named(self, name: str) -> bytes | None:
        """A file below the address by its name; None where there is none."""
        path = f"{self.root}/{name}"
        try:
            return bytes(self.fs.cat_file(path))
        except FileNotFoundError:
            return None
        except Exception as error:
            raise self._unreachable(error) from error

    def _unreachable(self, error: Exception) -> StoreError:
        said = str(error).strip().splitlines()[:1] or [""]
        return StoreError(
            f"{self.address} cannot be read: {type(error).__name__}: {said[0][:300]}. Look at the address, the"
            " network and the credentials in the environment."
        )


def _in_order(path: str) -> list[tuple[int, str]]:
    """Sorts `step=2` before `step=10`."""
    return [
        (int(part), "") if part.isascii() and part.isdigit() else (-1, part)
        for part in re.split(r"([0-9]{1,15})", path)
    ]


def _stamp(info: Mapping[str, Any]) -> str:
    keys = ("ETag", "etag", "blob_id", "md5Hash", "mtime", "LastModified", "last_modified", "created")
    return str(next((info[key] for key in keys if info.get(key) is not None), ""))
