"""Rows of a step as transcripts, redacted."""

from __future__ import annotations

import base64
import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from rollout_traces.decode.decoder import TranscriptDecoder
from rollout_traces.decode.messages import MessagesDecoder
from rollout_traces.errors import Warnings
from rollout_traces.model.packed_batch import PackedBatch
from rollout_traces.model.spans import MOST_OF_A_ROW, OF_TIME, checked, longest
from rollout_traces.model.transcript import Transcript
from rollout_traces.steps.redact import Redact, Redaction
from rollout_traces.trace.images import TraceImage, image_suffix, read_file

log = logging.getLogger("rollout_traces")

Decoder = TranscriptDecoder | MessagesDecoder
Hide = Callable[[Mapping[str, Any]], Mapping[str, Any]]
"""Hides in what goes with a transcript what was hidden in it."""


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
        """A hand-over with spans of time that can be understood, whose rows' names are redacted."""
        batch = self._with_good_spans(batch)
        return batch if self._redaction is None else self._redaction.labels(batch)

    def _with_good_spans(self, batch: PackedBatch) -> PackedBatch:
        """Leaves out spans that cannot be understood, and the shortest of too many; both are counted."""
        given = batch.row_lists.get("timings")
        if not any(isinstance(row, list) for row in given or ()):
            return batch
        timings = []
        n_given = n_refused = n_left_out = 0
        for row, value in enumerate(given or ()):
            if isinstance(value, list):
                n_given += len(value)
                value, refused = checked(value)
                n_refused += len(refused)
                if refused:
                    what = (
                        f"{len(refused)} of the timings of {batch.uid(row)}, its others go on: {refused[0]}"
                    )
                    self._warnings.count("spans_refused", what, len(refused))
                kept = longest(value, MOST_OF_A_ROW)
                n_left_out += len(value) - len(kept)
                value = list(kept)
            timings.append(value)
        self._counters["spans_left_out"] += n_left_out
        notes = list(batch.notes)
        if n_refused:
            notes.append(
                f"{OF_TIME}: {n_refused:,} of {n_given:,} could not be understood and are left out; the logger's warning says why."
            )
        if n_left_out:
            notes.append(
                f"{OF_TIME}: {n_left_out:,} of {n_given:,}, the shortest of rollouts with more than {MOST_OF_A_ROW:,}, are left out, "
                "also of the seconds that they add up to."
            )
        return replace(batch, row_lists={**batch.row_lists, "timings": timings}, notes=tuple(notes))

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
            read[row] = (transcript, dict) if self._redaction is None else self._redaction.apply(transcript)
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


def extra_metadata(batch: PackedBatch, group_size: int, row: int) -> dict[str, Any]:
    """Metadata of a row that its ledger lacks; `group_size` rows of the step are of its group."""
    extras = batch.row_value("extras", row)
    extras = dict(extras) if isinstance(extras, Mapping) else {}
    came_without_tokens = not batch.has_tokens[row] and not batch.n_tokens[row]
    return {
        "n_tokens": None if came_without_tokens else int(batch.n_tokens[row]),
        "ids_from": "unobserved" if came_without_tokens else extras.pop("ids_from", None),
        "group_size": group_size,
        "train_version": batch.train_version,
        "response_mask_from": None if came_without_tokens else batch.response_mask_source,
        "population": batch.n_rows,
        "parsed_answer": _short(batch.row_value("parsed_answers", row)),
        "ground_truth": _short(batch.row_value("ground_truths", row)),
        **{f"extra/{name}": value for name, value in extras.items() if isinstance(value, (str, int, float))},
    }


def details_of(batch: PackedBatch, row: int) -> dict[str, Any]:
    """Data that only a reader of the whole trace needs."""
    known = {
        "timings": batch.row_value("timings", row),
        "ground_truth": batch.row_value("ground_truths", row),
        "engine_id": batch.row_value("engine_ids", row),
        "sample_id": batch.row_value("sample_ids", row),
    }
    return {name: value for name, value in known.items() if value is not None}


def _short(value: Any, limit: int = 200) -> Any:
    """Metadata stays small: long answers are cut here and kept whole in the details."""
    if isinstance(value, (int, float)) or value is None:
        return value
    text = str(value)
    return text if len(text) <= limit else f"{text[:limit]}…"


def images_of(
    batch: PackedBatch, row: int, counters: Counter[str], redact: Redact | None = None
) -> Sequence[TraceImage]:
    """The images of a row.

    Args:
        batch: B rollouts.
        counters: `images_left_out`, `images_redacted`, `redact_errors`.
        redact: sees each image as a message of the role `image` whose content is its path, empty for bytes; an image
            for which it names anything, or fails, is left out.

    Returns:
        The images in order, with a sentence in place of each that was left out.
    """
    given = batch.row_value("images", row)
    if not isinstance(given, list):
        return ()
    found = []
    for number, image in enumerate(given, 1):
        taken = _hidden(image, counters, redact) or _read(image)
        if taken.left_out:
            counters["images_left_out"] += 1
            log.warning("image %d of %s was left out: %s", number, batch.uid(row), taken.left_out)
        found.append(taken)
    return found


def _hidden(image: Any, counters: Counter[str], redact: Redact | None) -> TraceImage | None:
    if redact is None:
        return None
    path = image.get("path", "") if isinstance(image, Mapping) else ""
    try:
        if not any(redact({"role": "image", "content": str(path)})):
            return None
        counters["images_redacted"] += 1
    except Exception:  # noqa: BLE001  a hook that fails must not let anything through; counted
        counters["redact_errors"] += 1
    return TraceImage(left_out="hidden by the run's redact hook.")


def _read(image: Any) -> TraceImage:
    if not isinstance(image, Mapping):
        return TraceImage(left_out=f"seen {type(image).__name__}. Expected a path or bytes.")
    try:
        if "left_out" in image:
            return TraceImage(left_out=str(image["left_out"]))
        data = (
            read_file(str(image["path"]))
            if "path" in image
            else base64.b64decode(image["data"], validate=True)
        )
        return TraceImage(data, image_suffix(data))
    except (OSError, ValueError, KeyError, TypeError) as error:
        return TraceImage(left_out=str(error) or type(error).__name__)
