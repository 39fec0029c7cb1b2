"""The server's own account of each request: one JSON line, written when its response is over."""

from __future__ import annotations

import os
from pathlib import Path

import orjson

from agentload.sim.server.exchange import Exchange
from agentload.sim.server.live import LiveEngine


class RequestLog:
    """Appends to a file. `*_ns` are this machine's monotonic clock (`time.perf_counter_ns` of any
    process on it), `*_s` the same instants in seconds since the server's start; null: not reached.
    """

    def __init__(self, path: Path, live: LiveEngine) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        self._live = live

    def write(self, exchange: Exchange, outcome: str, faults: list[str]) -> None:
        """`outcome`: finished, aborted, refused, error or cut."""
        choice = exchange.choices[0]
        request = choice.request
        line: dict[str, object] = {
            "request_id": exchange.identity.response_id,
            "outcome": outcome,
            "finish_reason": choice.answer.finish_reason if outcome == "finished" else None,
            "stream": exchange.delivery.stream,
            "choices": len(exchange.choices),
            "prompt_tokens": exchange.prompt_tokens,
            "cached_tokens": request.cached_tokens if request.scheduled_s is not None else None,
            "output_tokens": sum(one.generated for one in exchange.choices),
            "preemptions": request.preemptions,
            "chunks": exchange.chunks,
            "faults": faults,
        }
        last_s = choice.last_token_s if choice.generated else None
        line |= self._instants("arrival", self._ns(request.arrival_s))
        line |= self._instants("queued", self._ns(choice.ready_s))
        line |= self._instants("scheduled", self._ns(request.scheduled_s))
        line |= self._instants("first_token", self._ns(request.first_token_s))
        line |= self._instants("last_token", self._ns(last_s))
        line |= self._instants("first_chunk_sent", exchange.first_sent_ns)
        line |= self._instants("last_chunk_sent", exchange.last_sent_ns)
        os.write(self._fd, orjson.dumps(line) + b"\n")

    def close(self) -> None:
        os.close(self._fd)

    def _ns(self, at_s: float | None) -> int | None:
        return None if at_s is None else self._live.wall_ns(at_s)

    def _instants(self, name: str, wall_ns: int | None) -> dict[str, object]:
        seconds = None if wall_ns is None else self._live.seconds_since_start(wall_ns)
        return {f"{name}_ns": wall_ns, f"{name}_s": seconds}
