"""A stream that comes through httpx2's own transport, with user-space stamps."""

from __future__ import annotations

import gevent
import httpx2

from agentload.client.answer import FirstTokenWatch
from agentload.client.deadlines import Deadlines
from agentload.client.errors import RequestFailure, of_exception
from agentload.client.sse import SseError
from agentload.client.stamps import Reads
from agentload.clock import NS_PER_S, Clock


class ProxiedExchange:
    """Reads a response to its end at once; the same fields as `Exchange` has for its reads."""

    def __init__(
        self, response: httpx2.Response, deadlines: Deadlines, start_ns: int, clock: Clock
    ) -> None:
        self.reads = Reads()
        self.late_reads: set[int] = set()
        self.body = bytearray()
        self.headers = [(name.lower(), value) for name, value in response.headers.items()]
        self.headers_read: int | None = None  # the library does not say when they came
        self.error: RequestFailure | None = None
        self.clean_end = False
        self.end_ns = 0
        self._now = clock.now_ns
        self._first_token = FirstTokenWatch()
        self._first_token_ns: int | None = None
        self._deadlines = deadlines
        self._start_ns = start_ns
        self._follow(response)
        if not self.end_ns:
            self.end_ns = self._now()

    def _follow(self, response: httpx2.Response) -> None:
        pieces = response.iter_bytes()
        while True:
            due_ns, error_class = self._due()
            stop = RequestFailure(error_class, "stopped by the client")
            seconds = max(0.001, (due_ns - self._now()) / NS_PER_S)
            try:
                with gevent.Timeout(seconds, stop):
                    piece = next(pieces, None)
            except RequestFailure as error:
                self.error, self.end_ns = error, due_ns
                return
            except httpx2.HTTPError as error:
                self.error = RequestFailure(of_exception(error), type(error).__name__)
                return
            if piece is None:
                self.clean_end = True
                return
            self._take(piece)
            if self.error is not None:
                return

    def _due(self) -> tuple[int, str]:
        last_ns = self.reads.at_ns[-1] if self.reads else self._start_ns
        return self._deadlines.next_due(self._start_ns, self._first_token_ns, last_ns)

    def _take(self, piece: bytes) -> None:
        now_ns = self._now()
        self.body += piece
        self.reads.add(now_ns, b"", len(self.body))
        self.late_reads.add(len(self.reads) - 1)
        try:
            if self._first_token_ns is None and self._first_token.seen_in(piece):
                self._first_token_ns = now_ns
        except SseError as error:
            self.error = RequestFailure("bad_event", str(error))
