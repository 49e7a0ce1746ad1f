"""What a run said of its rollouts in flight, as somebody sees it who looks while it runs."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from types import TracebackType

import orjson

from rollout_traces.model.live_lines import ENDED, LIVE_FOLDER, SUFFIX


class Watched:
    """Follows the live files of a project from a thread of its own.

    Args:
        trackio_folder: Trackio's folder.
        project: the project.
    """

    def __init__(self, trackio_folder: Path, project: str) -> None:
        self.lines: dict[str, list[dict]] = {}
        self._folder = trackio_folder / LIVE_FOLDER / project
        self._read: dict[tuple[str, int], int] = {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Watched:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()
        self._look()

    def stages(self, key: str) -> list[str]:
        """The stages of a rollout in their order, what is said of one several times once."""
        said = [" ".join(filter(None, (line["stage"], line.get("detail")))) for line in self.lines[key]]
        return [stage for at, stage in enumerate(said) if at == 0 or stage != said[at - 1]]

    def last(self, key: str, name: str):
        """What was said last under a name; None where nothing was."""
        return next((line[name] for line in reversed(self.lines[key]) if name in line), None)

    def ended(self) -> int:
        """How many rollouts came to an end."""
        return sum(lines[-1]["stage"] in ENDED for lines in self.lines.values())

    def _run(self) -> None:
        while not self._over.is_set():
            self._look()
            time.sleep(0.02)

    def _look(self) -> None:
        for path in self._folder.glob(f"*/*{SUFFIX}"):
            with path.open("rb") as file:
                place = (path.name, path.stat().st_ino)
                file.seek(self._read.get(place, 0))
                data = file.read()
                whole = data[: data.rfind(b"\n") + 1]
                self._read[place] = self._read.get(place, 0) + len(whole)
            for line in map(orjson.loads, whole.splitlines()):
                known = self.lines.setdefault(line["id"], []) if "id" in line else []
                if not known or line["at"] >= known[-1]["at"]:
                    known.append(line)
