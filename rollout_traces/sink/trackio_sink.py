"""The only module that writes to Trackio.

Measured against Trackio 0.43: `run.log` works from any thread while `trackio.log` does not; one value that
cannot be encoded drops its whole key; only lists of traces get useful ids; a lock held for 10 s or a full disk
drops a batch; what is logged faster than its sender stores is given up after 30 s. So everything is plain,
in lists, paced, and read back.
"""

from __future__ import annotations

import itertools
import logging
import tempfile
import time
import weakref
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from rollout_traces.model.names import EARLIER_KEY
from rollout_traces.model.plain_values import NOT_FINITE, plain
from rollout_traces.model.transcript import Alert
from rollout_traces.model.units import MB, MINUTE
from rollout_traces.sink.folder import DiskUse, make_trackio_folder
from rollout_traces.sink.stored import Stored, query_of, scalar_signature
from rollout_traces.sink.webhook import AlertWebhook
from rollout_traces.trace.conversion import ATTEMPT_KEY, DETAILS_KEY, TraceRecord
from rollout_traces.trace.images import IMAGES_KEY, TraceImage

log = logging.getLogger("rollout_traces")

BINS = 32
"""Bins of as many values or more; of fewer values, as many as there are values: Trackio goes through every count and
edge, number by number, several times."""
QUEUE_BYTES = 16 * MB
"""Bytes that may wait in Trackio's own queue before we wait for its sender."""
QUEUE_CALLS = 2000
"""Log calls that may, however small."""
LONGEST_SEND = 0.5
"""Seconds that one batch of Trackio's sender is waited for at most."""
EARLIER_KEPT = 50
"""Configs of earlier attempts that are kept, the newest ones."""
_made_here: weakref.WeakSet[Any] = weakref.WeakSet()
"""Runs that this process created for a logger."""
Token = str | int
"""The identity of what was logged: a trace's uid, or the signature of scalars."""


class TrackioSink:
    """Writes scalars and traces to one Trackio run, and knows what of it was stored.

    Args:
        run: the `trackio.Run` to write to.
        owned: True when this process created the run and has to finish it.

    Attributes:
        stored: what the store holds, as of the last `confirm`.
        webhook: where alerts are also sent; None for nowhere.
        counters: counts by name.
    """

    def __init__(self, run: Any, *, owned: bool) -> None:
        self.run = run
        self.owned = owned
        self.stored = Stored(query_of(run), run.project, run.id)
        self._logged: set[Token] = set()
        self._raised: set[tuple[int, str, str]] = set()
        self._sizes: deque[int] = deque(maxlen=QUEUE_CALLS + 1)
        self._seen_sending = (0, 0.0)
        self._disk = DiskUse(run.project)
        self._remote_settled = run.url is None
        self.webhook: AlertWebhook | None = None
        self.counters: Counter[str] = Counter()

    @classmethod
    def open(
        cls,
        *,
        project: str,
        name: str | None,
        run: Any = None,
        run_id: str | None = None,
        resume: str = "allow",
        space_id: str | None = None,
        server_url: str | None = None,
        private: bool | None = None,
        group: str | None = None,
        config: Mapping[str, Any] | None = None,
    ) -> TrackioSink:
        """Joins the given or the current Trackio run, and creates one only when there is none.

        A second `trackio.init` in a process would finish the trainer's own run. A run that was created here stays
        open when a second run of another name is created.

        Args:
            project: project name.
            name: run name; Trackio makes one up when None.
            run: a `trackio.Run` to write to.
            run_id: Trackio's id of a run that another process holds; this one then writes to the same,
                whether or not the other has logged yet.
            resume: `allow`, `must` or `never`, as in `trackio.init`.
            space_id: Hugging Face Space to log to.
            server_url: self-hosted Trackio server to log to.
            private: whether a Space that has to be created is private.
            group: the run's group, for a run that is created here.
            config: stored with a run that is created here.
        """
        import trackio
        import trackio.utils
        from trackio import context_vars

        current = context_vars.current_run.get()
        if run is None and current in _made_here and not _is_asked_for(current, project, name):
            context_vars.current_run.set(None)
        elif run is not None or current is not None:
            run = run if run is not None else current
            if not _is_asked_for(run, project, name):
                log.warning(
                    "asked for run %s of %r, but this process writes to run %s of %r: so do its rollouts. Finish that "
                    "run first, or give `run=`.",
                    name or "(any)",
                    project,
                    run.name,
                    run.project,
                )
            return cls(run, owned=False)
        make_trackio_folder(Path(trackio.utils.TRACKIO_DIR))
        run = trackio.init(
            project=project,
            name=name,
            resume=resume,
            space_id=space_id,
            server_url=server_url,
            private=private,
            group=group,
            config=with_earlier(
                _without_empty(plain(config or {})), project, name if resume != "never" else None
            ),
            embed=False,
            auto_log_gpu=False,
            auto_log_cpu=False,
        )
        _made_here.add(run)
        if run_id is not None:
            run.id = run_id
        return cls(run, owned=True)

    def announce(self) -> None:
        """Makes the run known to its readers before anything of it is logged: Trackio stores none without an entry."""
        self.run.log({}, step=0)

    def log_scalars(
        self, scalars: Mapping[str, Any], *, step: int, attempt: str = "", again: bool = False
    ) -> list[str]:
        """Logs numbers at a step.

        Args:
            scalars: key -> number.
            step: the trainer's global step.
            attempt: the run's attempt that they belong to; empty when unknown.
            again: they may have been logged before; what is stored already is not logged twice.

        Returns:
            The keys that were left out, because their value is unknown or no number.
        """
        values = _entry(scalars, attempt)
        left_out = [str(key) for key in scalars if str(key) not in values]
        if not values:
            return left_out
        token = scalar_signature(int(step), values)
        self._logged.add(token)
        if again and token in self.stored.scalars:
            return left_out
        self.stored.expect(int(step), values)
        self._log(values, step)
        return left_out

    def has_scalars(self, scalars: Mapping[str, Any], *, step: int, attempt: str = "") -> bool:
        """Tells whether the store was seen to hold what `log_scalars` logs of some numbers."""
        return scalar_signature(int(step), _entry(scalars, attempt)) in self.stored.scalars

    def log_traces(
        self,
        key: str,
        records: Sequence[TraceRecord],
        *,
        step: int,
        attempt: str = "",
        scalars: Mapping[str, Any] | None = None,
        histograms: Mapping[str, np.ndarray] | None = None,
    ) -> None:
        """Logs traces under one key at a step, as one list: Trackio stores all of them or none.

        Args:
            key: under 34 characters; longer ones overwrite each other's session files.
            records: the traces; those that are stored already are left out.
            step: the trainer's global step.
            attempt: the run's attempt, which the numbers are marked with; empty when unknown.
            scalars: numbers that are stored with them or not at all.
            histograms: key -> the values behind a histogram, stored likewise; one is left out where its
                values are so large and so close together that no bins part them.
        """
        self._logged.update(record.metadata["uid"] for record in records)
        fresh = [record for record in records if record.metadata["uid"] not in self.stored.uids]
        if fresh:
            numbers = _entry(scalars or {}, attempt)
            shapes = {
                name: shape
                for name, values in (histograms or {}).items()
                if (shape := _as_histogram(values)) is not None
            }
            traces = [_as_trace(record, saved_images(record.images, self.run, int(step))) for record in fresh]
            self._log({**numbers, **shapes, key: traces}, step)

    def alert(self, alert: Alert, *, step: int) -> None:
        """Raises an alert in the run, and sends it to the webhook.

        A step that Trackio dropped is judged again. What it raises again is sent once, and stored once.
        """
        from trackio import AlertLevel

        raised = int(step), alert.title, alert.text
        is_new = raised not in self._raised
        self._raised.add(raised)
        if not is_new and self._has_alert(*raised):
            return
        level = {"error": AlertLevel.ERROR, "warn": AlertLevel.WARN, "info": AlertLevel.INFO}[alert.level]
        self.run.alert(title=alert.title, text=alert.text, level=level, step=int(step))
        if self.webhook is not None and is_new:
            self.webhook.send(alert, step=int(step))

    def _has_alert(self, step: int, title: str, text: str) -> bool:
        """True when an alert is stored; False also where the store cannot be read: better twice than never."""
        try:
            return self.stored.has_alert(step, title, text)
        except Exception as error:  # noqa: BLE001  counted and warned
            self.counters["alerts_perhaps_twice"] += 1
            log.warning("an alert of step %d may be stored twice: the alerts cannot be read: %r", step, error)
            return False

    def take_logged(self) -> set[Token]:
        """Takes the tokens of what was logged since the last call."""
        logged, self._logged = self._logged, set()
        return logged

    def is_stored(self, token: Token) -> bool:
        """True when the store was seen to hold it."""
        return token in self.stored.uids or token in self.stored.scalars

    def idle(self) -> bool:
        """True when Trackio holds nothing back: what is not stored now has been dropped by it."""
        return not self.is_sending() and not self._kept_for_later()

    def is_sending(self) -> bool:
        """True while Trackio's sender has something to store or to send."""
        return any(
            getattr(self.run, name, ()) for name in ("_queued_logs", "_queued_alerts", "_sending_batch")
        )

    def settle(self) -> bool:
        """Makes Trackio send the records that an earlier process left in its buffer for a server.

        Trackio does not do that by itself for a self-hosted server; until it is done, sending records
        again would double them.

        Returns:
            True when nothing is left there.
        """
        if not self._remote_settled:
            if self._kept_for_later():
                self.run._has_local_buffer = True
                return False
            self._remote_settled = True
        return True

    def disk_bytes(self) -> int:
        """Bytes that the project takes on this machine's disk; 0 where it is on a server."""
        return self._disk.bytes() if self.run.url is None else 0

    def room_text(self) -> str:
        """Says how much room this machine's disk has for the project; "" where it is on a server."""
        return self._disk.room_text() if self.run.url is None else ""

    def finish(self) -> None:
        """Finishes the run when it was created here; a later logger of this process then makes its own."""
        self.stored.close()
        if not self.owned:
            return
        from trackio import context_vars

        self.run.finish()
        if context_vars.current_run.get() is self.run:
            context_vars.current_run.set(None)

    def _log(self, values: dict[str, Any], step: int) -> None:
        """Logs, and waits while more waits in Trackio's queue than it should hold in memory."""
        self._let_send()
        self.run.log(values, step=int(step))
        self._sizes.append(_n_bytes(values))
        deadline = time.monotonic() + MINUTE
        while self._is_too_full() and time.monotonic() < deadline:
            time.sleep(0.02)

    def _let_send(self) -> None:
        """Waits while Trackio's sender writes to this machine's disk, for each of its batches no longer than a slow
        disk should delay what is next.

        Two threads of Python that both want the processor take a quarter more of it than one after the other.
        """
        while self.run.url is None and (batch := getattr(self.run, "_sending_batch", None)):
            if self._seen_sending[0] != id(batch):
                self._seen_sending = id(batch), time.monotonic()
            if time.monotonic() - self._seen_sending[1] > LONGEST_SEND:
                return
            time.sleep(0.005)
        self._seen_sending = 0, 0.0

    def _is_too_full(self) -> bool:
        n_queued = len(getattr(self.run, "_queued_logs", ()))
        newest = itertools.islice(reversed(self._sizes), n_queued)
        return n_queued > QUEUE_CALLS or (n_queued > 1 and sum(newest) > QUEUE_BYTES)

    def _kept_for_later(self) -> bool:
        """True when rows for a server wait in Trackio's local buffer."""
        if self.run.url is None:
            return False
        from trackio.sqlite_storage import SQLiteStorage

        return bool(SQLiteStorage.has_pending_data(self.run.project))


def _numbers(scalars: Mapping[str, Any]) -> dict[str, Any]:
    """The numbers among scalars, and the texts for those that are not finite."""
    return {
        str(key): value
        for key, value in plain(scalars).items()
        if isinstance(value, (int, float)) or (isinstance(value, str) and value in NOT_FINITE)
    }


def _entry(scalars: Mapping[str, Any], attempt: str) -> dict[str, Any]:
    """What is logged of scalars: their numbers, marked with the attempt where it is known; empty without a number."""
    numbers = _numbers(scalars)
    return {**numbers, ATTEMPT_KEY: attempt} if numbers and attempt else numbers


def _without_empty(values: Mapping[str, Any]) -> dict[str, Any]:
    """Leaves out empty mappings: Trackio's parquet files refuse them."""
    nested = {key: _without_empty(item) if isinstance(item, dict) else item for key, item in values.items()}
    return {key: item for key, item in nested.items() if item != {}}


def _is_asked_for(run: Any, project: str, name: str | None) -> bool:
    return bool(run.project == project and name in (None, run.name))


def _n_bytes(values: Mapping[str, Any]) -> int:
    """About how many bytes values take in Trackio's queue."""
    return sum(
        len(orjson.dumps(item, default=_written)) for value in values.values() for item in _each(value)
    )


def _each(value: Any) -> Sequence[Any]:
    """The items of a list, one by one, so that no long text of all of them is made."""
    return value if isinstance(value, list) else (value,)


def _written(value: Any) -> Any:
    """Picks the parts of a trace that take room in the queue; of media their paths do."""
    return (value.messages, value.metadata, value.spans) if hasattr(value, "messages") else None


def _as_histogram(values: np.ndarray) -> Any:
    """The histogram of some values; None where no bins part them."""
    import trackio

    found = binned(values)
    return None if found is None else trackio.Histogram(np_histogram=found)


def _as_trace(record: TraceRecord, images: Sequence[Any]) -> Any:
    import trackio

    spans = plain(record.spans)
    if images:
        next(span[DETAILS_KEY] for span in spans if DETAILS_KEY in span)[IMAGES_KEY] = list(images)
    made = trackio.Trace if images else _plain_trace()
    return made(messages=plain(record.messages), metadata=plain(record.metadata), spans=spans)


@cache
def _plain_trace() -> type[Any]:
    """A `trackio.Trace` without media, which Trackio need not search every value for."""
    import trackio

    class PlainTrace(trackio.Trace):
        def _to_dict(self, project: str, run: str, step: int = 0) -> dict[str, Any]:
            return {
                "_type": self.TYPE,
                "messages": self.messages,
                "metadata": self.metadata,
                "spans": self.spans,
            }

    return PlainTrace


def with_earlier(config: dict[str, Any], project: str, name: str | None) -> dict[str, Any]:
    """A config with those of the run's earlier attempts, where Trackio's local store has them.

    Args:
        config: of the attempt that begins.
        name: the run that it may resume; None for a new one.
    """
    if name is None:
        return config
    try:
        from trackio.sqlite_storage import SQLiteStorage

        before = dict(SQLiteStorage.get_run_config(project, name) or {})
        if not before:
            return config
        earlier = orjson.loads(before.pop(EARLIER_KEY, "[]"))
        return {**config, EARLIER_KEY: orjson.dumps([*earlier, before][-EARLIER_KEPT:]).decode()}
    except Exception:
        log.warning(
            "the settings of earlier attempts of run %s cannot be read and are not kept", name, exc_info=True
        )
        return config


def saved_images(images: Sequence[TraceImage], run: Any, step: int) -> list[Any]:
    """Images in Trackio's media folder of the run.

    Args:
        run: a `trackio.Run`.
        step: the step that they are of.

    Returns:
        A `trackio.Image` each, or `{"left_out": sentence}`.
    """
    return [{"left_out": image.left_out} if image.left_out else _saved(image, run, step) for image in images]


def _saved(image: TraceImage, run: Any, step: int) -> Any:
    import trackio

    try:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / f"image.{image.suffix}"
            path.write_bytes(image.data)
            media = trackio.Image(path)
            media._save(run.project, run.name, step)
    except Exception as error:  # noqa: BLE001  a full disk or a changed Trackio must not take the trace; said in it
        log.warning("an image of step %d was not saved: %r", step, error)
        return {"left_out": f"it could not be saved: {error}"}
    return media


def binned(values: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
    """Counts values in min(N, `BINS`) bins of one width, as `np.histogram` does.

    Args:
        values: [N], numbers.

    Returns:
        Counts [K] and edges [K + 1]; None where a value is not finite, where there is none, or where they are so large
        and so close together that no bins part them.
    """
    wide = np.asarray(values, np.float64)
    if not len(wide) or not np.isfinite(wide).all():
        return None
    try:
        with np.errstate(over="ignore", invalid="ignore"):
            counts, edges = np.histogram(wide, min(len(wide), BINS))
    except (ValueError, IndexError):  # bins without a width; numpy 1 says it by an index
        return None
    return (counts, edges) if (edges[1:] > edges[:-1]).all() else None
