"""Rows of a step as transcripts, redacted."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from rollout_traces.counted_warnings import Warnings
from rollout_traces.packed_batch import PackedBatch
from rollout_traces.steps.images import images_of
from rollout_traces.steps.redact import Redaction
from rollout_traces.trace.images import TraceImage
from rollout_traces.transcript import Transcript

log = logging.getLogger(__name__)

Hide = Callable[[Mapping[str, Any]], Mapping[str, Any]]
"""Hides in what goes with a transcript what was hidden in it."""


class Decoder(Protocol):
    """`TranscriptDecoder` or `MessagesDecoder`."""

    def decode_batch(self, batch: PackedBatch, rows: Sequence[int], /) -> Sequence[Transcript]: ...

    def readable(self, batch: PackedBatch, /) -> np.ndarray: ...


class RowReader:
    """Reads rows of a batch.

    Args:
        decoder: decodes rows; None where the run has neither tokenizer nor messages.
        counters: rows that cannot be decoded are counted here.
        redaction: hides text, or None.
    """

    def __init__(
        self, decoder: Decoder | None, counters: Counter[str], redaction: Redaction | None = None
    ) -> None:
        self.decoder = decoder
        self.tokenizer = getattr(decoder, "tokenizer", None)
        self._counters = counters
        self._warnings = Warnings(counters)
        self._redaction = redaction

    def label(self, batch: PackedBatch) -> PackedBatch:
        """A hand-over whose rows' names are redacted."""
        return batch if self._redaction is None else self._redaction.labels(batch)

    def images(self, batch: PackedBatch, row: int) -> Sequence[TraceImage]:
        """The images of a row; redacted images, and files that are no image, are left out with a sentence."""
        return images_of(
            batch, row, self._counters, None if self._redaction is None else self._redaction.hook
        )

    def readable(self, batch: PackedBatch) -> np.ndarray:
        """bool [B]: the row can become a transcript."""
        return np.zeros(batch.n_rows, bool) if self.decoder is None else self.decoder.readable(batch)

    def read(self, batch: PackedBatch, rows: Sequence[int]) -> dict[int, tuple[Transcript, Hide]]:
        """Row -> its transcript, and a function that hides the same pieces elsewhere; rows that cannot be decoded are absent."""
        read: dict[int, tuple[Transcript, Hide]] = {}
        for row, transcript in self._decode(batch, rows).items():
            read[row] = (
                (transcript, as_it_is) if self._redaction is None else self._redaction.apply(transcript)
            )
        return read

    def transcripts(self, batch: PackedBatch, rows: Sequence[int]) -> dict[int, Transcript]:
        """Row -> its transcript; rows that cannot be decoded are absent."""
        return {row: transcript for row, (transcript, _) in self.read(batch, rows).items()}

    def _decode(self, batch: PackedBatch, rows: Sequence[int]) -> dict[int, Transcript]:
        decoded: dict[int, Transcript] = {}
        if self.decoder is None:
            return decoded
        for row in rows:
            try:
                decoded[row] = self.decoder.decode_batch(batch, [row])[0]
            except Exception as error:  # noqa: BLE001  one bad row must not take its siblings; it is counted
                self._warnings.count("decode_errors", f"{batch.uid(row)}, its siblings go on: {error!r}")
        return decoded


def as_it_is(fields: Mapping[str, Any]) -> Mapping[str, Any]:
    """Hides nothing."""
    return fields
