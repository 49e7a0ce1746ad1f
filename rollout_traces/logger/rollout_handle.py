"""RolloutHandle: returned by `log_rollouts`, to join columns that exist only later in the step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from rollout_traces.capture.device_copy import flat, on_gpu, owned_copy
from rollout_traces.capture.hand_over import HandOver
from rollout_traces.capture.host_copy import Captured
from rollout_traces.capture.join import join_record
from rollout_traces.model.counted_warnings import Warnings


@dataclass(frozen=True, eq=False)
class RolloutHandle:
    """One hand-over, to which columns can be joined later in the same step.

    Attributes:
        batch_id: the hand-over's id; None when it was refused.
    """

    batch_id: str | None
    _captured: Captured | Future[Captured] | None = None
    _joins: Joins | None = None

    def join(self, **columns: Any) -> None:
        """Adds columns to the rollouts handed over; they reach the ledger, and traces that await them.

        Args:
            **columns: canonical keys: per-token float tracks [B, T] in the batch's own layout
                (`advantages`, `prox_logprobs`, `new_logprobs`, ...), one array or one a part;
                `advantages` or `losses` [B]; `attention_mask` [B, T] when the padding is another;
                `sample_ids` when the rows come in another order.
        """
        if self._joins is not None and self._captured is not None:
            self._joins.add(self._captured, columns)


class Joins:
    """Writes what a logger's handles join to its spool.

    Args:
        hand_over: writes the records.
        warnings: where joins are counted, and refused ones warned about.
        check_open: raises where nothing can be logged any more.
    """

    def __init__(self, hand_over: HandOver, warnings: Warnings, check_open: Callable[[], None]) -> None:
        self._hand_over = hand_over
        self._warnings = warnings
        self._check_open = check_open

    def add(self, captured: Captured | Future[Captured], columns: Mapping[str, Any]) -> None:
        """Joins columns to a hand-over; those on a GPU, or of a hand-over that still comes from one, later."""
        try:
            self._check_open()
            if isinstance(captured, Captured) and not any(map(on_gpu, flat(columns))):
                self._hand_over.post(join_record(captured, columns))
            else:
                owned = {key: owned_copy(value) for key, value in columns.items()}

                def join() -> str | None:
                    known = captured if isinstance(captured, Captured) else captured.result()
                    return self._hand_over.put(join_record(known, owned))

                warn_of_failure(self._hand_over.later(join), self._warnings)
            self._warnings.counters["joins_handed_over"] += 1
        except Exception as error:  # noqa: BLE001  logging never raises into training; counted and warned
            self._warnings.count("joins_refused", error)


def warn_of_failure(future: Future[Any], warnings: Warnings) -> None:
    """Counts and warns when work on the device's thread fails."""

    def look(done: Future[Any]) -> None:
        error = done.exception()
        if error is not None:
            warnings.count("batches_refused", error)

    future.add_done_callback(look)
