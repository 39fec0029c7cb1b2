"""Who reads the sockets: the gevent hub itself, on a tick or on a watcher for each socket."""

from __future__ import annotations

import select
import socket
from collections.abc import Callable
from typing import Any, Literal, Protocol

import gevent
from gevent import monkey

from agentload.clock import Clock, MonotonicClock

SO_TIMESTAMPNS = 35  # asm-generic; not in Python's socket module
ANCILLARY_BYTES = 64
TICK_S = 0.002
# A tick that comes this much after the one before came late: what it reads together may have
# arrived well apart.
LATE_NS = 6_000_000

OnReadable = Callable[[], None]


class Reader(Protocol):
    """Calls back in the hub when a socket has bytes; callbacks must not block."""

    late: bool  # whether the bytes of the current callback may have waited longer than meant

    def add(self, fd: int, on_readable: OnReadable) -> None: ...

    def remove(self, fd: int) -> None: ...


class WatcherReader:
    """One persistent libev watcher for each socket: woken for each arrival."""

    def __init__(self) -> None:
        self.late = True  # unknown: the loop does not say when it last looked
        self._watchers: dict[int, Any] = {}

    def add(self, fd: int, on_readable: OnReadable) -> None:
        watcher = gevent.get_hub().loop.io(fd, 1)
        watcher.start(on_readable)
        self._watchers[fd] = watcher

    def remove(self, fd: int) -> None:
        watcher = self._watchers.pop(fd, None)
        if watcher is not None:
            watcher.stop()
            watcher.close()


class TickReader:
    """One look at all sockets every `tick_s`, half the CPU of a wake-up for each arrival.

    Only for sockets with kernel stamps, since the moment of the read no longer tells the arrival.
    """

    def __init__(self, tick_s: float = TICK_S, clock: Clock | None = None) -> None:
        self._now = (clock or MonotonicClock()).now_ns
        # gevent's patch takes epoll out of `select`; this one never blocks.
        self._epoll = monkey.get_original("select", "epoll")()
        self._callbacks: dict[int, OnReadable] = {}
        self._tick_s = tick_s
        self._timer: Any = None
        self._last_ns = 0
        self.late = False

    def add(self, fd: int, on_readable: OnReadable) -> None:
        self._callbacks[fd] = on_readable
        self._epoll.register(fd, select.EPOLLIN if hasattr(select, "EPOLLIN") else 1)
        if self._timer is None:
            self._last_ns = self._now()
            self._timer = gevent.get_hub().loop.timer(self._tick_s, self._tick_s)
            self._timer.start(self._tick, update=False)

    def remove(self, fd: int) -> None:
        if self._callbacks.pop(fd, None) is not None:
            self._epoll.unregister(fd)
        if not self._callbacks and self._timer is not None:
            self._timer.stop()
            self._timer.close()
            self._timer = None

    def _tick(self) -> None:
        now_ns = self._now()
        self.late = now_ns - self._last_ns > LATE_NS
        self._last_ns = now_ns
        callbacks = self._callbacks
        for fd, _ in self._epoll.poll(0, 4096):
            on_readable = callbacks.get(fd)
            if on_readable is not None:
                on_readable()


class HubReader:
    """What clients read with: the tick for stamped sockets, else watchers.

    Streams whose tokens come closer together than a few ticks get a watcher, so that the tick
    itself merges none of them.
    """

    def __init__(self, kind: Literal["auto", "tick", "watcher"] = "auto") -> None:
        self._probe = KernelStampProbe()
        self._watcher = WatcherReader()
        use_tick = self._probe.works if kind == "auto" else kind == "tick"
        self._tick = TickReader() if use_tick else None

    def pick(self, stamped: bool, close_gaps: bool) -> Reader:
        """The reader of one exchange."""
        if self._tick is None or not stamped or close_gaps:
            return self._watcher
        return self._tick

    @property
    def kernel_stamps(self) -> bool:
        return self._probe.works


def request_kernel_stamps(sock: socket.socket) -> bool:
    """Ask the kernel to stamp what arrives on this socket; False where it cannot."""
    try:
        sock.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
    except OSError:
        return False
    return True


class KernelStampProbe:
    """Finds out once whether received TCP bytes carry a kernel stamp on this system.

    Its sockets stay open: while one stamped socket exists the kernel stamps from the first packet
    of the next one on.
    """

    def __init__(self) -> None:
        original: Any = monkey.get_original("socket", "socket")
        listener = original(socket.AF_INET, socket.SOCK_STREAM)
        self._sockets = [listener]
        try:
            listener.bind(("127.0.0.1", 0))
            listener.listen(1)
            sender = original(socket.AF_INET, socket.SOCK_STREAM)
            self._sockets.append(sender)
            sender.connect(listener.getsockname())
            receiver, _ = listener.accept()
            self._sockets.append(receiver)
            self.works = request_kernel_stamps(receiver) and self._stamped(sender, receiver)
        except OSError:
            self.works = False

    @staticmethod
    def _stamped(sender: Any, receiver: Any) -> bool:
        receiver.settimeout(1.0)
        sender.sendall(b"x")
        _, ancillary, _, _ = receiver.recvmsg(1, ANCILLARY_BYTES)
        return bool(ancillary) and len(ancillary[0][2]) == 16

    def close(self) -> None:
        for sock in self._sockets:
            sock.close()
