"""The search for rollouts in files and folders: which files they are, of which format, run, step and split."""

from __future__ import annotations

import os
import stat
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rollout_traces.errors import ConfigError
from rollout_traces.model.text import SAID, words
from rollout_traces.sources.base import HEAD, Claim, Format, Found, Head, number_in, split_of
from rollout_traces.sources.formats import format_named, formats
from rollout_traces.sources.lines import PACKED, is_json_by_name
from rollout_traces.sources.problems import Problems

MAX_FILES = 2_000_000
"""Files looked at below one path."""
_BESIDE = words(
    ".manifest.json metadata.json config.json batch_summary.json aggregated_results.jsonl .md .txt .log"
)
"""Endings of files that lie beside rollouts and are none."""


@dataclass(frozen=True)
class FoundRun:
    """The files of one run.

    Attributes:
        root: the folder or file that it is called after.
        name: what it is called.
        files: its files in the order in which they are imported: by step, then as their format sorts them.
    """

    root: Path
    name: str
    files: tuple[Found, ...]

    @property
    def formats(self) -> Mapping[str, int]:
        """Files of each format, by title."""
        return Counter(found.format.title for found in self.files)

    @property
    def lacks(self) -> tuple[str, ...]:
        """Parts that some of its files do not have, each once."""
        return tuple(dict.fromkeys(text for found in self.files for text in found.claim.lacks))

    @property
    def steps(self) -> tuple[int, int] | None:
        """First and last step that names of files say; None where only their records do."""
        known = [found.claim.step for found in self.files if found.claim.step is not None]
        return (min(known), max(known)) if known else None

    @property
    def size(self) -> int:
        """Bytes of its files."""
        return sum(found.size for found in self.files)


def scan(paths: Sequence[Path], problems: Problems, file_format: str = "auto") -> list[FoundRun]:
    """Looks into files and folders.

    Args:
        paths: what to look into.
        problems: where files that cannot be read and folders without rollouts are noted.
        file_format: a format's name, which every file is read as that is named itself, and in folders those that
            it recognises and those of JSON; `auto`: the first that claims a file.

    Returns:
        The runs, in the order of their folders.

    Raises:
        ConfigError: a path is not there, or the format is unknown.
    """
    asked = list(formats().values()) if file_format == "auto" else [format_named(file_format)]
    runs: dict[Path, list[Found]] = {}
    for path in paths:
        if not path.exists():
            raise ConfigError(f"{path}: no such file or folder.")
        n_found = 0
        unclaimed: list[Path] = []
        for file, info in files_below(path, problems):
            found = recognise(file, asked, problems, info)
            if (
                found is None
                and file_format != "auto"
                and (file == path or (asked[0].lines and is_json_by_name(file)))
            ):
                found = Found(file, asked[0], _forced(file), info.st_size, info.st_mtime_ns)
            if found is None:
                unclaimed.append(file)
            else:
                n_found += 1
                runs.setdefault(found.claim.root, []).append(found)
        if n_found:
            _say_damaged(unclaimed, runs.values(), problems)
        else:
            what = _why_not(Head(path)) if path.is_file() else _nothing_in(path, unclaimed)
            problems.add(path, "nothing_found", f"{what}. Known: {', '.join(formats())}.")
    names = _names(list(runs))
    return [
        FoundRun(root, files[0].claim.run or names[root], _ordered(files))
        for root, files in sorted(runs.items())
    ]


def _say_damaged(unclaimed: Iterable[Path], claimed: Iterable[Sequence[Found]], problems: Problems) -> None:
    """Notes files that no format knows by their beginning, which is damaged, among rollouts that end as they do."""
    endings = {found.path.suffix for files in claimed for found in files}
    for path in unclaimed:
        head = Head(path)
        if path.suffix not in endings or not path.suffix.startswith(".json"):
            continue
        if 0 < len(head.raw) < HEAD and head.record is None:
            text = "is passed over: what its format is cannot be told, since no whole JSON object is in it."
            problems.add(path, "files_not_recognised", f"{text} --format NAME reads it.")


def _nothing_in(folder: Path, files: Sequence[Path]) -> str:
    """Says what a folder holds in none of whose files a format saw rollouts."""
    if not files:
        return "is empty"
    first = next((file for file in files if ".json" in file.name), files[0])
    held = "holds a file" if len(files) == 1 else f"holds {len(files):,} files"
    return f"{held} and no rollouts of a format that is known; {first.relative_to(folder)} {_why_not(Head(first))}"


def _why_not(head: Head) -> str:
    """Says what a file is that no format claims."""
    if not head.raw:
        is_cut = head.path.suffix in PACKED and head.path.stat().st_size
        return "cannot be unpacked: it is damaged, or cut off in its beginning" if is_cut else "is empty"
    keys = ", ".join(sorted(head.keys))[:SAID]
    if head.record is None and keys and len(head.raw) >= HEAD:
        return f"begins with a record above {HEAD:,} bytes ({keys}, ...), of which no format is told; --format NAME reads it"
    return f"is of no format that is known; its first record has {'the keys ' + keys if keys else 'no keys'}"


def _forced(path: Path) -> Claim:
    """Makes a claim to a file that a format does not recognise and is to read."""
    step = number_in(r"(?:^|[_\-.])(?:step|iter|iteration)[_\-]?(\d+)", path.stem, path.parent.name)
    return Claim(path.parent, step, split_of(path.name, path.parent.name))


def recognise(path: Path, asked: Iterable[Format], problems: Problems, info: os.stat_result) -> Found | None:
    """Finds the first format that claims a file.

    Args:
        asked: formats to show it to.
        problems: where a format's failure is noted.
        info: the file's status.

    Returns:
        The file with its format, None where no format claims it. At most `base.HEAD` bytes of it are read.
    """
    head = Head(path)
    for one in asked:
        try:
            claim: Claim | None = one.claim(head)
        except Exception as error:  # noqa: BLE001  a format of another package must not end the scan; it is said
            text = f"the format {one.name} failed to look at it ({error!r})."
            problems.add(path, "formats_that_failed", text)
            continue
        if claim is not None:
            return Found(path, one, claim, info.st_size, info.st_mtime_ns)
    return None


def files_below(path: Path, problems: Problems) -> Iterator[tuple[Path, os.stat_result]]:
    """Regular files of a folder and all below it, sorted, each folder once however it is linked.

    Args:
        path: a file or a folder.
        problems: where folders that cannot be read are noted.

    Yields:
        Each file that may hold rollouts, and its status.
    """
    seen: set[tuple[int, int]] = set()
    waiting = [path]
    n = 0
    while waiting:
        one = waiting.pop()
        try:
            info = one.stat()
        except OSError as error:
            problems.add(one, "unreadable_files", f"cannot be read ({error}).")
            continue
        if stat.S_ISREG(info.st_mode):
            if one != path and one.name.endswith(_BESIDE):
                continue
            n += 1
            if n > MAX_FILES:
                problems.add(
                    path, "too_many_files", f"more than {MAX_FILES:,} files; the rest is not looked at."
                )
                return
            yield one, info
        elif stat.S_ISDIR(info.st_mode):
            place = (info.st_dev, info.st_ino)
            if place in seen:
                continue
            seen.add(place)
            try:
                children = sorted(
                    (child for child in one.iterdir() if not child.name.startswith(".")), reverse=True
                )
            except OSError as error:
                problems.add(one, "unreadable_files", f"cannot be read ({error}).")
                continue
            waiting.extend(children)


def _ordered(files: Sequence[Found]) -> tuple[Found, ...]:
    def place(found: Found) -> tuple[int, str, str]:
        step = found.claim.step
        return (step if step is not None else -1, found.claim.split, found.claim.order or found.path.name)

    return tuple(sorted(files, key=place))


def _names(roots: Sequence[Path]) -> dict[Path, str]:
    """A name a run: its folder's, with as many folders above as it takes to distinguish it from others."""
    names: dict[Path, str] = {}
    for root in roots:
        parts = root.resolve().parts
        for n in range(1, len(parts) + 1):
            name = "/".join(parts[-n:])
            if not any(other != root and "/".join(other.resolve().parts[-n:]) == name for other in roots):
                break
        names[root] = name.lstrip("/") or "run"
    return names
