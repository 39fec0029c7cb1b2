"""TCP and TLS connections that the hub can read raw."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable
from typing import Any

import gevent
from gevent import monkey
from gevent import socket as gevent_socket

from agentload.client.errors import RequestFailure
from agentload.client.reader import request_kernel_stamps
from agentload.client.tls import TlsChannel
from agentload.clock import NS_PER_S, Clock

BATCH_BUFFERS = 256  # of one system call; IOV_MAX is 1024
Buffer = bytes | memoryview
Origin = tuple[str, int, bool]  # host, port, whether TLS


class Connection:
    """One non-blocking connection to one origin."""

    def __init__(
        self, sock: Any, tls: TlsChannel | None, kernel_stamps: bool, origin: Origin
    ) -> None:
        self.origin = origin
        self.sock = sock
        self.fd: int = sock.fileno()
        self.tls = tls
        self.kernel_stamps = kernel_stamps
        self.reused = False
        self.idle_since_ns = 0
        self.decrypt: Callable[[bytes], bytes] | None = tls.decrypt if tls else None

    def send(self, buffers: list[Buffer], changed: Any, is_over: Callable[[], bool]) -> bool:
        """Send all buffers in batches, waiting in between while the socket is full.

        False when the answer was over before the request was sent: `is_over` says so, and
        `changed` is set when it may. Raises `OSError`.
        """
        for start in range(0, len(buffers), BATCH_BUFFERS):
            batch = buffers[start : start + BATCH_BUFFERS]
            if self.tls is not None:
                batch = [self.tls.encrypt(b"".join(batch))]
            size = sum(map(len, batch))
            while size:
                try:
                    sent = self.sock.sendmsg(batch, [], socket.MSG_NOSIGNAL)
                except BlockingIOError:
                    self._wait_writable(changed)
                    if is_over():
                        return False
                    continue
                size -= sent
                if size:
                    batch = _rest(batch, sent)
        return True

    def _wait_writable(self, changed: Any) -> None:
        watcher = gevent.get_hub().loop.io(self.fd, 2)
        changed.clear()
        watcher.start(changed.set)
        try:
            changed.wait()
        finally:
            watcher.stop()
            watcher.close()

    def is_open(self) -> bool:
        """Whether an idle connection is still open on the other side, with nothing unread."""
        try:
            self.sock.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return True
        except OSError:
            return False
        return False  # closed, or bytes nobody asked for

    def close(self) -> None:
        self.sock.close()


def open_connection(
    host: str, port: int, context: ssl.SSLContext | None, timeout_s: float
) -> Connection:
    """Connect, and shake hands when a TLS context is given. Raises `RequestFailure`."""
    late = RequestFailure("timeout_connect", f"no connection within {timeout_s:g} s")
    with gevent.Timeout(timeout_s, late):
        sock = _tcp(host, port)
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            stamps = request_kernel_stamps(sock)
            tls = _handshake(sock, context, host) if context is not None else None
        except BaseException:
            sock.close()
            raise
    return Connection(sock, tls, stamps, (host, port, context is not None))


def _tcp(host: str, port: int) -> Any:
    try:
        cooperative = gevent_socket.create_connection((host, port))
    except socket.gaierror as error:
        raise RequestFailure("dns_error", f"host name not found: {error.strerror}") from None
    except TimeoutError:
        raise RequestFailure("timeout_connect", "the system gave up connecting") from None
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise RequestFailure("connect_error", f"cannot connect: {reason}") from None
    original: Any = monkey.get_original("socket", "socket")
    sock = original(fileno=cooperative.detach())
    sock.setblocking(False)
    return sock


def _handshake(sock: Any, context: ssl.SSLContext, host: str) -> TlsChannel:
    channel = TlsChannel(context, host)
    try:
        while not channel.handshake():
            _flush(sock, channel)
            gevent_socket.wait_read(sock.fileno())
            channel.receive(sock.recv(16_384))
        _flush(sock, channel)
    except ssl.SSLError as error:
        text = getattr(error, "verify_message", None) or error.reason or type(error).__name__
        raise RequestFailure("tls_error", f"TLS handshake failed: {text}") from None
    except OSError as error:
        raise RequestFailure("tls_error", f"TLS handshake: {type(error).__name__}") from None
    return channel


def _flush(sock: Any, channel: TlsChannel) -> None:
    data = memoryview(channel.outgoing())
    while data:
        try:
            data = data[sock.send(data) :]
        except BlockingIOError:
            gevent_socket.wait_write(sock.fileno())


def _rest(batch: list[Buffer], sent: int) -> list[Buffer]:
    """What is left of a batch after its first `sent` bytes, fewer than all."""
    for index, buffer in enumerate(batch):
        if sent < len(buffer):
            return [memoryview(buffer)[sent:], *batch[index + 1 :]]
        sent -= len(buffer)
    return []


class IdleConnections:
    """Connections kept between two turns, dropped earlier than the server drops them."""

    def __init__(self, expiry_s: float, clock: Clock) -> None:
        self._expiry_ns = round(expiry_s * NS_PER_S)
        self._now = clock.now_ns
        self._idle: list[Connection] = []

    def take(self, origin: Origin) -> Connection | None:
        """The connection to this server used last that is still good, or None.

        Those to other servers stay: a metrics page or a redirect can lie elsewhere.
        """
        for connection in [c for c in reversed(self._idle) if c.origin == origin]:
            self._idle.remove(connection)
            if self._now() - connection.idle_since_ns < self._expiry_ns and connection.is_open():
                connection.reused = True
                return connection
            connection.close()
        return None

    def give(self, connection: Connection) -> None:
        connection.idle_since_ns = self._now()
        self._idle.append(connection)

    def close(self) -> None:
        while self._idle:
            self._idle.pop().close()
