"""At which priority a worker process works: below the trainer's, and at the trainer's own while somebody waits for it.

An unprivileged process cannot take its niceness back, but Linux keeps one for each thread. So the worker has two threads
and one loop: the main thread is never niced, and a second one lowers itself. One of them goes round at a time, under a
lock, with the same objects: there is one writer, nothing is read again, and no process is started at the end, which is
when somebody waits. A second process was the alternative: it would have to load the run's state anew at every `flush`,
and two would have to agree who writes. The niced thread is called away within a step, at the next row that it would
read: a step's judgement has no effect before it is complete. Trackio's own sender is started by the main thread and is
not niced either, since whoever waits waits for it too.

Where Linux also weighs sessions against each other (autogroup), a thread's niceness counts within its session alone.
The session's own may be taken back by anybody; but of processes without privilege Linux takes ten changes a second from
all of them together, and refuses the others.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

NICENESS = 10
AUTOGROUP = Path("/proc/self/autogroup")
"""The file in which Linux keeps the niceness of a session, where it shares the processor between sessions."""
ASK_AGAIN = 0.02
"""Seconds after which a change that Linux refused as one too many is tried again."""
PATIENCE = 2.0
"""Seconds in which it is tried."""
LOOK_EVERY = 0.25
"""Seconds between two looks whether somebody waits, and between two rounds of the niced thread that find nothing to do."""


class CalledAway(BaseException):
    """Another thread takes over: what was begun is left as it was and is begun again there.

    No `Exception`: code that contains the failure of a part must not take this for one.
    """


def stay() -> None:
    """Never calls anybody away."""


class TwoPriorities:
    """Runs a loop on the thread that suits who waits.

    Args:
        somebody_waits: asked four times a second.
    """

    def __init__(self, somebody_waits: Callable[[], bool]) -> None:
        self._somebody_waits = somebody_waits
        self._turning = threading.Lock()
        self._in_front = threading.Event()
        self._in_front.set()
        self._over = threading.Event()
        self._failure: BaseException | None = None
        self._niced: threading.Thread | None = None

    def checkpoint(self) -> None:
        """Raises `CalledAway` on the niced thread once somebody waits."""
        if self._in_front.is_set() and threading.current_thread() is self._niced:
            raise CalledAway

    def run(
        self, run_until: Callable[..., None], is_over: Callable[[], bool], after_turn: Callable[[], None]
    ) -> None:
        """Runs a loop until it is over; its first rounds on the calling thread, which must not be niced.

        Args:
            run_until: `SpoolConsumer.run_until`.
            is_over: asked after every turn.
            after_turn: called after every turn.

        Raises:
            Exception: what a turn raised.
        """
        waits = self._somebody_waits
        self._niced = threading.Thread(
            target=self._go_round_niced, args=(run_until, is_over, after_turn), name="niced", daemon=True
        )
        while not self._over.is_set():
            give_way(0)
            with self._turning:
                run_until(lambda: self._is_over(is_over) or not waits(), after_turn)
            self._in_front.clear()
            if not self._over.is_set():
                give_way(NICENESS)
                if self._niced.ident is None:
                    self._niced.start()
            while not waits() and not self._over.wait(LOOK_EVERY):
                pass
            self._in_front.set()
        give_way(0)
        if self._niced.ident is not None:
            self._niced.join()
        if self._failure is not None:
            raise self._failure

    def _is_over(self, is_over: Callable[[], bool]) -> bool:
        if is_over():
            self._over.set()
        return self._over.is_set()

    def _rest(self, seconds: float) -> None:
        """Rests where nobody waits, and no longer than nobody does."""
        self._in_front.wait(max(seconds, LOOK_EVERY))

    def _go_round_niced(
        self, run_until: Callable[..., None], is_over: Callable[[], bool], after_turn: Callable[[], None]
    ) -> None:
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)
        try:
            while not self._over.is_set():
                with self._turning, contextlib.suppress(CalledAway):
                    run_until(
                        lambda: self._in_front.is_set() or self._is_over(is_over), after_turn, self._rest
                    )
                while self._in_front.is_set() and not self._over.wait(LOOK_EVERY):
                    pass
        except BaseException as error:  # noqa: BLE001  raised again on the main thread
            self._failure = error
            self._over.set()


def give_way(niceness: int) -> None:
    """Sets the niceness of this process's session, where it leads one: the logger starts a worker in a new session.

    A worker that was started by hand does not change its shell's session.
    """
    if os.getsid(0) != os.getpid():
        return
    deadline = time.monotonic() + PATIENCE
    with contextlib.suppress(OSError):
        while time.monotonic() < deadline:
            try:
                AUTOGROUP.write_text(str(niceness))
                return
            except BlockingIOError:
                time.sleep(ASK_AGAIN)
