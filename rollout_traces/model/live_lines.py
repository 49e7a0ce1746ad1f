"""Rollouts in flight as lines of JSON: what a logger appends, and what a reader makes of any bytes.

```
<Trackio's folder>/rollout-live/<project>/<run id>/<node>-<rank>-<token>.jsonl
```

A file begins with a line that says whose it is. Each further line tells what is new of one rollout, by its `id`;
`beat` is the writer's clock when it wrote, `finished` its end. Times are seconds since the epoch, by the writer's clock.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from rollout_traces.model.plain_values import from_json
from rollout_traces.model.spans import LATEST
from rollout_traces.model.text import encodable
from rollout_traces.model.units import KB, MB

LIVE_FOLDER = "rollout-live"
"""Beside the projects."""
SUFFIX = ".jsonl"
MAX_BYTES = 10 * MB
"""Bytes of the live files of a run."""
STAGES = ("queued", "booting", "sampling", "tool", "scoring", "done", "aborted")
ENDED = ("done", "aborted")
MAX_TEXT = 200
"""Characters of a prompt's beginning and of the last words."""
MAX_NAME = 100
"""Characters of an id, a detail, a source, a group."""
MAX_LINE = 16 * KB
"""Bytes of a line; a longer one is none of ours."""
STAGES_KEPT = 200
"""Stages of one rollout that are remembered, the newest ones."""
_NAMES = ("source", "group", "split", "attempt")
_TEXTS = ("prompt", "words")
_COUNTS = ("turns", "tokens", "step", "n_stages")


def live_folder(trackio_folder: Path, project: str, run_id: str) -> Path:
    """The folder of a run's live files.

    Args:
        trackio_folder: Trackio's folder.
        project: the project's name as Trackio writes it in file names.
        run_id: the run's id, safe as one folder's name.
    """
    return trackio_folder / LIVE_FOLDER / project / run_id


@dataclass(frozen=True)
class LivePlace:
    """The folder for the live files of a process, and what they belong to.

    Attributes:
        folder: the run's, or the node's own where its files are sent on.
        top: the first folder on the way to it that has to be this user's.
        project: Trackio project.
        run: Trackio run.
        run_id: Trackio's id of it.
    """

    folder: Path
    top: Path
    project: str
    run: str
    run_id: str


@dataclass(slots=True)
class StageSaid:
    """A stage of a rollout, and what was said of it last.

    Attributes:
        at: when it began.
        until: when something was said last.
    """

    at: float
    until: float
    stage: str
    detail: str | None
    turns: int | None
    tokens: int | None
    words: str | None


@dataclass(slots=True)
class InFlight:
    """A rollout in flight, as far as its lines say.

    Attributes:
        id: unique in the run.
        begun: when it began.
        at: when something was said of it last.
        stage: one of `STAGES`.
        since: when the stage began.
        detail: what the stage is about: a tool's name, why it was aborted.
        turns: assistant turns so far.
        tokens: tokens sampled so far.
        words: the last words that were written, `MAX_TEXT` characters at most.
        prompt: the beginning of the prompt.
        source: environment or data set.
        group: rollouts of one prompt share it.
        step: the trainer's global step that it is sampled for.
        split: `rollout` or `eval-rollout`.
        attempt: the run's attempt.
        n_stages: stages so far.
        stages: the newest of them.
    """

    id: str
    begun: float
    at: float
    stage: str = "queued"
    since: float = 0.0
    detail: str | None = None
    turns: int | None = None
    tokens: int | None = None
    words: str | None = None
    prompt: str | None = None
    source: str | None = None
    group: str | None = None
    step: int | None = None
    split: str | None = None
    attempt: str | None = None
    n_stages: int = 0
    stages: deque[StageSaid] = field(default_factory=deque)

    @property
    def has_ended(self) -> bool:
        """True when it is done or aborted."""
        return self.stage in ENDED

    def take(self, line: Mapping[str, Any]) -> None:
        """Takes what a line says; values that are none of the expected kind are passed over."""
        at = _time(line.get("at"))
        self.at = self.at if at is None else max(self.at, at)
        said = line.get("stage")
        changes = isinstance(said, str) and said in STAGES
        detail = _text(line.get("detail"), MAX_NAME) if changes else self.detail
        is_new = changes and (not self.n_stages or (said, detail) != (self.stage, self.detail))
        if changes:
            self.stage, self.detail = str(said), detail
        if is_new:
            self.since = self.at if (since := _time(line.get("since"))) is None else since
            self.n_stages += 1
        for name in (*_NAMES, *_TEXTS, *_COUNTS, "begun"):
            value = _read(name, line.get(name))
            if value is not None:
                setattr(self, name, value)
        if is_new or not self.stages:
            self.stages.append(StageSaid(self.since, self.at, self.stage, self.detail, None, None, None))
        newest = self.stages[-1]
        newest.until, newest.turns, newest.tokens, newest.words = self.at, self.turns, self.tokens, self.words

    def as_line(self) -> bytes:
        """One line that says all of it but its earlier stages."""
        names = ("id", "at", "begun", "stage", "since", "detail", *_NAMES, *_TEXTS, *_COUNTS)
        return line_of({name: value for name in names if (value := getattr(self, name)) is not None})


class LiveFile:
    """The rollouts that the lines of one file tell of, however they are cut into pieces; nothing that it holds raises.

    Args:
        stages_kept: stages of one rollout that are remembered, the newest ones.

    Attributes:
        head: what the file says of its writer: `run`, `run_id`, `node`, `rank`, `pid`.
        rollouts: by id, in the order in which they were begun.
        beat: the writer's clock when it wrote last; None before.
        is_finished: the writer ended.
        n_unreadable: lines that are none of ours.
    """

    def __init__(self, stages_kept: int = STAGES_KEPT) -> None:
        self._stages_kept = stages_kept
        self.head: dict[str, Any] = {}
        self.rollouts: dict[str, InFlight] = {}
        self.beat: float | None = None
        self.is_finished = False
        self.n_unreadable = 0
        self._rest = b""

    def feed(self, data: bytes) -> None:
        """Takes bytes that follow those before; a line that is not whole yet waits for its end."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        self._rest = self._rest[:MAX_LINE]  # one that is longer is unreadable anyway
        for line in lines:
            if line:
                self._take(line)

    def _take(self, line: bytes) -> None:
        said = from_json(line) if len(line) < MAX_LINE else None
        if not isinstance(said, dict):
            self.n_unreadable += 1
            return
        beat = _time(said.get("beat"))
        if beat is not None:
            self.beat = beat
            self.is_finished = said.get("finished") is True
        elif "live" in said:
            self.head = said
        elif isinstance(said.get("id"), str) and (at := _time(said.get("at"))) is not None:
            self._take_update(said["id"][:MAX_NAME], at, said)
        else:
            self.n_unreadable += 1

    def _take_update(self, key: str, at: float, said: dict[str, Any]) -> None:
        rollout = self.rollouts.get(key)
        if rollout is None:
            rollout = self.rollouts[key] = InFlight(
                key, begun=at, at=at, since=at, stages=deque(maxlen=self._stages_kept)
            )
        rollout.take(said)


def line_of(values: Mapping[str, Any]) -> bytes:
    """A line of plain values, with its end."""
    return orjson.dumps(values, option=orjson.OPT_APPEND_NEWLINE)


def _read(name: str, value: Any) -> Any:
    if name in _COUNTS:
        return value if isinstance(value, int) and not isinstance(value, bool) else None
    if name == "begun":
        return _time(value)
    return _text(value, MAX_TEXT if name in _TEXTS else MAX_NAME)


def _text(value: Any, limit: int) -> str | None:
    return encodable(value[:limit]) if isinstance(value, str) else None


def _time(value: Any) -> float | None:
    """A time that can be compared; None for anything else."""
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return None
    return float(value) if math.isfinite(value) and 0 <= value < LATEST else None
