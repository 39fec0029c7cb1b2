"""A timer that is true to microseconds.

Event loops count in whole milliseconds, which is longer than an engine step of a fast GPU at a
raised speed. Linux has timers that are files; Python wraps them from 3.13 on.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import sys
from collections.abc import Callable
from typing import Final, Protocol

_CLOCK_MONOTONIC: Final = 1
_TFD_NONBLOCK: Final = os.O_NONBLOCK
_TFD_CLOEXEC: Final = os.O_CLOEXEC
_NS_PER_S: Final = 1_000_000_000


class Timer(Protocol):
    """Calls one function, once, when the time last set has passed; never before."""

    def set(self, wait_s: float) -> None: ...

    def cancel(self) -> None: ...


class _TimerSpec(ctypes.Structure):
    """`struct itimerspec`."""

    _fields_ = (
        ("interval_s", ctypes.c_long),
        ("interval_ns", ctypes.c_long),
        ("value_s", ctypes.c_long),
        ("value_ns", ctypes.c_long),
    )


class FileTimer:
    """A Linux timer file in the running event loop."""

    def __init__(self, call: Callable[[], None]) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._fd = self._libc.timerfd_create(_CLOCK_MONOTONIC, _TFD_NONBLOCK | _TFD_CLOEXEC)
        if self._fd < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create")
        self._call = call
        asyncio.get_running_loop().add_reader(self._fd, self._expired)

    def set(self, wait_s: float) -> None:
        wait_ns = max(1, round(wait_s * _NS_PER_S))  # 0 would stop the timer
        self._settime(*divmod(wait_ns, _NS_PER_S))

    def cancel(self) -> None:
        self._settime(0, 0)

    def _settime(self, seconds: int, nanoseconds: int) -> None:
        spec = _TimerSpec(0, 0, seconds, nanoseconds)
        self._libc.timerfd_settime(self._fd, 0, ctypes.byref(spec), None)

    def _expired(self) -> None:
        try:
            os.read(self._fd, 8)
        except BlockingIOError:  # set anew since the loop saw it
            return
        self._call()


class LoopTimer:
    """The event loop's own timer, up to a millisecond late."""

    def __init__(self, call: Callable[[], None]) -> None:
        self._call = call
        self._handle: asyncio.TimerHandle | None = None

    def set(self, wait_s: float) -> None:
        self.cancel()
        # A loop that rounds down would call too early, and the caller would set it again at once.
        wait_s = max(wait_s, 0.001)
        self._handle = asyncio.get_running_loop().call_later(wait_s, self._call)

    def cancel(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None


def best_timer(call: Callable[[], None]) -> Timer:
    """The most exact timer of this system, for the running event loop."""
    return FileTimer(call) if sys.platform == "linux" else LoopTimer(call)
