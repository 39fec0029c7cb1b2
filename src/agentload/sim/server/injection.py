"""What each fault does to a request."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from agentload.sim.server.errors import ApiError
from agentload.sim.server.exchange import Exchange
from agentload.sim.server.faults import Fault
from agentload.sim.server.http import Call

_STATUS_NAMES: Final = {
    429: "Too Many Requests",
    500: "Internal Server Error",
    503: "Service Unavailable",
}


def inject(call: Call, hit: Sequence[Fault], make: Callable[[], Exchange]) -> Exchange | None:
    """Make the exchange with its faults in place; None when a fault answered in its stead."""
    for fault in hit:
        if fault.kind == "status":
            _answer_status(call, fault)
            return None
    held = [fault for fault in hit if fault.kind in ("slow-headers", "buffer")]
    for _ in held:
        call.response.hold()
    try:
        exchange = make()
    except ApiError:
        for _ in held:
            call.response.release()
        raise
    for fault in held:
        if fault.kind == "slow-headers":
            _later(fault.number("seconds"), call.response.release)
        if fault.kind == "buffer":
            exchange.before_end = call.response.release
    disturbing = [fault for fault in hit if fault.kind in _IN_STREAM]
    if disturbing:
        exchange.on_chunk = lambda: _disturb(call, exchange, disturbing)
    return exchange


def _answer_status(call: Call, fault: Fault) -> None:
    status = int(fault.number("code"))
    name = _STATUS_NAMES.get(status, "Error")
    error = ApiError(status, f"{name} (injected by the simulator)", name)
    extra = list(call.extra)
    retry_after = fault.settings["retry_after"]
    if retry_after is not None:
        extra.append((b"retry-after", b"%d" % round(retry_after)))
    call.response.whole(status, error.body(), extra)


def _disturb(call: Call, exchange: Exchange, faults: Sequence[Fault]) -> None:
    for fault in faults:
        if exchange.chunks == max(1, fault.number("after")):
            _IN_STREAM[fault.kind](call, exchange, fault)


def _stall(call: Call, _: Exchange, fault: Fault) -> None:
    call.response.hold()
    _later(fault.number("seconds"), call.response.release)


def _cut(call: Call, exchange: Exchange, _: Fault) -> None:
    exchange.give_up("cut")
    call.cut()


def _error(_: Call, exchange: Exchange, fault: Fault) -> None:
    code = int(fault.number("code"))
    message = "The engine failed (injected by the simulator)"
    exchange.end_with_error(ApiError(code, message, "InternalServerError"))


def _later(seconds: float, do: Callable[[], None]) -> None:
    asyncio.get_running_loop().call_later(seconds, do)


_IN_STREAM: Final = {"stall": _stall, "cut": _cut, "error": _error}
