"""Whose turn it is to parse, so that finished streams do not stop the running ones."""

from __future__ import annotations

from types import TracebackType
from typing import Self

import gevent
from gevent.lock import BoundedSemaphore

from agentload.clock import Clock, MonotonicClock

SLICE_NS = 1_000_000
# A timer, not `sleep(0)`: gevent runs up to 50 ready greenlets before it looks at sockets again,
# which is 50 ms of parsing when two hundred streams end in the same step.
_A_LOOP_ROUND_S = 1e-6


class ParsingTurn:
    """One greenlet parses at a time; after each millisecond of parsing the loop goes round.

    Parses that follow each other at once share their millisecond.
    """

    def __init__(self, clock: Clock) -> None:
        self._now = clock.now_ns
        self._lock = BoundedSemaphore(1)
        self._busy_since_ns = 0
        self._ended_ns = 0

    def __enter__(self) -> Self:
        self._lock.acquire()
        now_ns = self._now()
        if now_ns - self._ended_ns > SLICE_NS:
            self._busy_since_ns = now_ns
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._ended_ns = self._now()
        self._lock.release()

    def pause(self) -> None:
        """Let the loop go round if the slice is used up."""
        if self._now() - self._busy_since_ns > SLICE_NS:
            gevent.sleep(_A_LOOP_ROUND_S)
            self._busy_since_ns = self._now()


PARSING = ParsingTurn(MonotonicClock())  # of the process
