"""A sink whose store holds what a test lets through, when the test says so."""

from __future__ import annotations

from collections import Counter

import numpy as np

from rollout_traces.capture.hand_over import HandOver
from rollout_traces.errors import Warnings
from rollout_traces.model.batch import RolloutBatch
from rollout_traces.sink.stored import Stored, scalar_signature
from rollout_traces.spool.folder import MemorySpool
from rollout_traces.spool.patient_writer import PatientWriter
from rollout_traces.spool.record import Record, encode
from rollout_traces.steps.processor import StepProcessor
from rollout_traces.steps.run_state import StepOptions
from rollout_traces.trace.conversion import read_ledger
from rollout_traces.worker.consumer import SpoolConsumer
from rollout_traces.worker.replay import CloseLog


class HeldSink:
    """What Trackio is to the consumer, without Trackio: logged traces wait until they are let through or dropped."""

    def __init__(self):
        self.stored = Stored(lambda sql: [], "p", "run")
        self.waiting, self.rows, self.alerts, self.scalars = [], [], [], []
        self.drops = 0
        self._logged = set()

    def log_scalars(self, scalars, *, step, attempt="", again=False):
        self._logged.add(token := scalar_signature(step, dict(scalars)))
        if again and token in self.stored.scalars:
            return []
        self.stored.scalars.add(token)
        self.scalars.append((step, dict(scalars)))
        return []

    def has_scalars(self, scalars, *, step, attempt=""):
        return scalar_signature(step, dict(scalars)) in self.stored.scalars

    def log_traces(self, key, records, *, step, attempt="", scalars=None, histograms=None):
        uids = [record.metadata["uid"] for record in records]
        self._logged.update(uids)
        fresh = [record for record in records if record.metadata["uid"] not in self.stored.uids]
        self.waiting += [(key, record, step, scalars) for record in fresh]

    def alert(self, alert, *, step):
        self.alerts.append((alert.title, step))

    def disk_bytes(self):
        return 0

    def take_logged(self):
        logged, self._logged = self._logged, set()
        return logged

    def is_stored(self, token):
        return token in self.stored.uids or token in self.stored.scalars

    def idle(self):
        """Trackio holds nothing back once all was let through or dropped."""
        return not self.waiting

    def is_sending(self):
        return bool(self.waiting)

    def settle(self):
        return True

    def room_text(self):
        return ""

    def let_through(self):
        """The store holds all that was logged."""
        for key, record, step, _ in self.waiting:
            assert record.metadata["uid"] not in self.stored.uids, "stored twice"
            self.rows.append((key, record, step))
            row = dict.fromkeys(("selected_by", "selected_probability", "prompt_key", "batches", "late"))
            self.stored._take_trace({**row, **record.metadata, "key": key, "step": step, "attempt": ""})
        self.waiting.clear()

    def drop(self):
        """Trackio gave up on all that was logged."""
        self.drops += len(self.waiting)
        self.waiting.clear()

    @property
    def summaries(self):
        """(step, late, rows) of each stored step summary, in order."""
        return [
            (step, int(record.metadata.get("late") or 0), read_ledger(record).n_rows)
            for key, record, step in self.rows
            if key.endswith("/steps")
        ]


class WritePath:
    """Hand-over, spool in memory and consumer of one run; the store is a `HeldSink`."""

    def __init__(self, closes=None, decoder=None, **options):
        self.sink = HeldSink()
        self.spool = MemorySpool(1 << 28)
        self.counters = Counter()
        warnings = Warnings(self.counters)
        self.hand_over = HandOver(PatientWriter(self.spool, warnings, 0.5), warnings, 1 << 27)
        self.options = StepOptions.of(**{"quiet_seconds": 0.0, **options})
        self.closes = closes or CloseLog()
        self.decoder = decoder
        self.checkpoint = lambda: None
        self.start()

    def start(self):
        """A new worker, which knows the spool, the closes and the store alone."""
        fresh = Stored(lambda sql: [], "p", "run")
        for name in ("uids", "summarised", "scalars", "_rows", "_traced", "_closes", "_n_closed"):
            setattr(fresh, name, getattr(self.sink.stored, name))
        fresh.reload = lambda: None
        fresh.chosen_in_summary = lambda batch_id: {}
        self.sink.stored = fresh
        self.sink.waiting.clear()
        self.consumer = SpoolConsumer(
            lambda: [self.spool],
            lambda: StepProcessor(
                self.sink, self.decoder, self.options, self.counters, checkpoint=lambda: self.checkpoint()
            ),
            self.sink,
            self.counters,
            self.closes,
        )

    def log(
        self, step, n=4, *, split="rollout", name=None, await_join=(), attempt="", announced=False, told=False
    ):
        """Hands rows of one group over; with a conversation each, of which traces are made, where they are told."""
        ids = np.arange(n * 4).reshape(n, 4)
        mask = np.tile([False, True, True, True], (n, 1))
        batch = RolloutBatch(
            input_ids=ids,
            attention_mask=np.ones_like(mask),
            loss_mask=mask,
            rewards=np.arange(n, dtype=float),
            group_ids=np.zeros(n, np.int64),
            messages=[
                [{"role": "user", "content": "?"}, {"role": "assistant", "content": str(b)}] for b in range(n)
            ]
            if told
            else None,
        )
        captured = self.hand_over.rollouts(
            [batch],
            step=step,
            split=split,
            batch_id=name or f"{step:06d}{self.counters['rollouts_handed_over']:06d}",
            await_join=list(await_join),
            attempt=attempt,
            announced=announced,
        )
        return captured

    def put(self, kind, **meta):
        return self.spool.append(encode(Record(kind, meta)))

    def close(self, step, split="rollout", attempt=""):
        return self.put("close", step=step, split=split, attempt=attempt)

    def turns(self, n=8):
        """Some turns of the worker, without its pauses between looks at the store."""
        for _ in range(n):
            self.consumer._not_before = 0.0
            self.consumer._looked_at = 0.0
            self.consumer.turn()

    def kinds(self):
        """The kinds of the records that wait."""
        return [self.spool.read(name).kind for name in self.spool.names()]
