"""One HTTP/1.1 request with its answer, read by the hub while its greenlet waits."""

from __future__ import annotations

import ssl
import zlib
from typing import Any, Protocol

import gevent
import httptools
from gevent.event import Event

from agentload.client.answer import FirstTokenWatch
from agentload.client.connection import Connection
from agentload.client.deadlines import Deadlines
from agentload.client.errors import RequestFailure
from agentload.client.reader import ANCILLARY_BYTES, Reader
from agentload.client.sse import SseError
from agentload.client.stamps import Reads
from agentload.clock import NS_PER_S, Clock

READ_BYTES = 16_384
MAX_BODY_BYTES = 256 << 20
DONE_GRACE_S = 1.0  # how long a body may stay open after [DONE]


class _Decompressor(Protocol):
    def decompress(self, data: bytes, /) -> bytes: ...


class Exchange:
    """Stamps of every read, and how much of the body each read completed.

    Nothing is parsed
    beyond the HTTP framing while the stream runs, except until the first token is seen.
    """

    def __init__(
        self, connection: Connection, reader: Reader, deadlines: Deadlines, clock: Clock
    ) -> None:
        self.connection = connection
        self.reads = Reads()
        self.late_reads: set[int] = set()
        self.body = bytearray()
        self.headers: list[tuple[str, str]] = []
        self.status = 0
        self.headers_read: int | None = None  # index of the read that completed the headers
        self.send_start_ns: int | None = None
        self.send_end_ns: int | None = None
        self.end_ns = 0  # end of the body, or the deadline; 0 before it is over
        self.error: RequestFailure | None = None
        self.first_token_ns: int | None = None
        self.clean_end = False
        self._reader = reader
        self._deadlines = deadlines
        self._now = clock.now_ns
        self._recvmsg = connection.sock.recvmsg
        self._decrypt = connection.decrypt
        self._parser: Any = httptools.HttpResponseParser(self)
        self._changed = Event()
        self._timer: Any = None
        self._over = False
        self._complete = False
        self._keep_alive = False
        self._left_over = False
        self._decompressor: _Decompressor | None = None
        self._first_token = FirstTokenWatch()
        self._looked_at = 0
        self._has_length = False

    # -- the caller's greenlet ------------------------------------------------------------

    def start(self, buffers: list[bytes | memoryview]) -> None:
        """Send the request; from here on the hub reads and the deadlines run."""
        self.send_start_ns = self._now()
        self._reader.add(self.connection.fd, self._on_readable)
        self._arm()
        try:
            if not self.connection.send(buffers, self._changed, lambda: self._over):
                self._left_over = True
        except OSError as error:
            # The server may have answered and closed before it took the whole body.
            self._changed.clear()
            if not self._over and not self._changed.wait(0.5):
                self._fail(self._reset_class(), f"while sending: {type(error).__name__}")
        self.send_end_ns = self._now()

    def wait_headers(self) -> None:
        """Return when the status and headers are there. Raises `RequestFailure`."""
        self._wait_for(lambda: self.headers_read is not None)
        if self.headers_read is None:
            raise self.error or RequestFailure(self._reset_class(), "no answer")

    def wait_end(self) -> None:
        """Return when the body ended, cleanly or not: see `error` and `clean_end`."""
        self._wait_for(lambda: False)

    def whole_body(self) -> bytes:
        """The body, waiting for its end; raises `RequestFailure` when it was cut."""
        self.wait_end()
        if self.error is not None:
            raise self.error
        return bytes(self.body)

    @property
    def reusable(self) -> bool:
        """Whether the connection can carry another request."""
        return self._complete and self._keep_alive and not self._left_over

    def stop(self) -> None:
        """Read no more; called in every case, also when the greenlet is killed."""
        if not self._over:
            self._finish()

    def release(self) -> None:
        """Drop the parser, which refers back to this object."""
        self._parser = None

    def _wait_for(self, condition: Any) -> None:
        while not self._over and not condition():
            self._changed.clear()
            self._changed.wait()

    # -- the hub --------------------------------------------------------------------------

    def _on_readable(self) -> None:
        try:
            data, ancillary, _, _ = self._recvmsg(READ_BYTES, ANCILLARY_BYTES)
        except BlockingIOError:
            return
        except OSError as error:
            self._fail(self._reset_class(), f"while reading: {type(error).__name__}")
            return
        now_ns = self._now()
        if not data:
            self._on_eof(now_ns)
            return
        try:
            if self._decrypt is not None:
                data = self._decrypt(data)
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade, ssl.SSLError) as error:
            self._on_broken(error, now_ns)
            return
        reads = self.reads
        reads.add(now_ns, ancillary[0][2] if ancillary else b"", len(self.body))
        if self._reader.late:
            self.late_reads.add(len(reads) - 1)
        if self._complete:
            self._finish(now_ns)
            return
        if self.first_token_ns is None:
            self._look_for_first_token(now_ns)
        if data[-20:].find(b"[DONE]") >= 0:
            self._arm_for(now_ns + round(DONE_GRACE_S * NS_PER_S))

    def _look_for_first_token(self, now_ns: int) -> None:
        if self.headers_read is None:
            return
        start, self._looked_at = self._looked_at, len(self.body)
        try:
            found = self._first_token.seen_in(self.body[start:])
        except SseError as error:
            self._fail("bad_event", str(error))
            return
        if found:
            self.first_token_ns = now_ns
            self._arm()

    def _on_eof(self, now_ns: int) -> None:
        if self.headers_read is None:
            self._fail(self._reset_class(), "the server closed before it answered")
            return
        # Without a length the close is the end of the body.
        self.clean_end = not self._has_length
        self._finish(now_ns)

    def _on_broken(self, error: Exception, now_ns: int) -> None:
        if self._complete:  # bytes after the end of the answer
            self._left_over = True
            self.reads.add(now_ns, b"", len(self.body))
            self._finish(now_ns)
        elif isinstance(error, ssl.SSLError):
            self._fail("tls_error", f"broken TLS record: {error.reason}")
        elif self.headers_read is None:
            self._fail("not_a_stream", f"the answer is not HTTP/1.1: {type(error).__name__}")
        else:
            self._fail("stream_cut", f"broken HTTP body: {type(error).__name__}")

    def _reset_class(self) -> str:
        if self.connection.reused and not self.reads:
            return "connection_reset_on_reuse"
        return "connection_reset"

    def _fail(self, error_class: str, text: str, end_ns: int | None = None) -> None:
        if not self._over:
            self.error = RequestFailure(error_class, text)
            self._finish(end_ns)

    def _finish(self, end_ns: int | None = None) -> None:
        self._over = True
        self.end_ns = self._now() if end_ns is None else end_ns
        self._reader.remove(self.connection.fd)
        self._disarm()
        self._changed.set()

    # -- deadlines ------------------------------------------------------------------------

    def _due(self) -> tuple[int, str]:
        start_ns = self.send_start_ns or 0
        last_ns = self.reads.at_ns[-1] if self.reads else start_ns
        return self._deadlines.next_due(start_ns, self.first_token_ns, last_ns)

    def _arm(self) -> None:
        self._arm_for(self._due()[0])

    def _arm_for(self, due_ns: int) -> None:
        self._disarm()
        if not self._over:
            seconds = max(0.0, (due_ns - self._now()) / NS_PER_S) + 0.001
            self._timer = gevent.get_hub().loop.timer(seconds)
            self._timer.start(self._on_timer)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.stop()
            self._timer.close()
            self._timer = None

    def _on_timer(self) -> None:
        if not self._over:
            self._on_readable()  # after a freeze the bytes may be there already
        if self._over:
            return
        due_ns, error_class = self._due()
        if self._now() >= due_ns:
            self._fail(error_class, "stopped by the client", due_ns)
        elif self._ended_by_done():
            self.clean_end = True
            self._finish(self.reads.at_ns[-1])
        else:
            self._arm_for(due_ns)

    def _ended_by_done(self) -> bool:
        tail = self.body[-20:]
        idle_ns = self._now() - self.reads.at_ns[-1] if self.reads else 0
        return tail.rstrip().endswith(b"[DONE]") and idle_ns >= DONE_GRACE_S * NS_PER_S

    # -- what httptools calls -------------------------------------------------------------

    def on_header(self, name: bytes, value: bytes) -> None:
        if self.headers_read is None:  # else a trailer
            self.headers.append((name.decode("latin-1").lower(), value.decode("latin-1")))

    def on_headers_complete(self) -> None:
        if self._complete:  # a second answer to one request
            self._left_over = True
            return
        self.status = self._parser.get_status_code()
        if self.status < 200:  # 100 Continue, 103 Early Hints
            self.headers.clear()
            return
        self.headers_read = len(self.reads)
        names = dict(self.headers)
        self._has_length = "content-length" in names or "transfer-encoding" in names
        encoding = names.get("content-encoding", "identity").lower()
        if encoding in ("gzip", "x-gzip", "deflate"):
            self._decompressor = zlib.decompressobj(zlib.MAX_WBITS | 32)  # zlib or gzip
        elif encoding not in ("identity", "") and self.status == 200:
            self._fail("not_a_stream", f"content-encoding {encoding!r} was not asked for")
        self._changed.set()

    def on_body(self, body: bytes) -> None:
        if self._complete:
            return
        if self._decompressor is not None:
            body = self._decompressor.decompress(body)
        self.body += body
        if len(self.body) > MAX_BODY_BYTES:
            self._fail("bad_event", f"the body is longer than {MAX_BODY_BYTES} bytes")

    def on_message_complete(self) -> None:
        if self.headers_read is not None:
            self._complete = self.clean_end = True
            self._keep_alive = bool(self._parser.should_keep_alive())  # known only here
