"""Many workers in one light process: they speak all messages of real ones but load nothing."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import metadata
from typing import Any

import msgpack
import zmq

from agentload.recording.csvfile import row_line
from agentload.recording.record import ChunkTrace, TurnRecord
from agentload.recording.relay import COLUMNS_CRC

ROWS_EVERY_S = 1.0
HEARTBEAT_EVERY_S = 1.0
PING_EVERY_S = 2.0
REPORT_EVERY_S = 3.0
_ID = b"@" * 32


def turn_template(run_id: str, worker_id: str, gaps: int) -> tuple[bytes, bytes]:
    """The rows of a turn of an 8K-token answer's beginning, with a place for the request id."""
    empty: dict[str, Any] = dict.fromkeys(TurnRecord.__dataclass_fields__)
    known = {
        "run_id": run_id, "worker_id": worker_id, "session_id": "s-000001", "turn_index": 3,
        "turn_class": "tool", "request_id": _ID.decode(), "stage": "steady",
        "intended_start_s": 10.0, "call_start_s": 10.0, "send_start_s": 10.001,
        "send_end_s": 10.002, "headers_s": 10.5, "first_chunk_s": 10.6, "last_chunk_s": 16.6,
        "end_s": 16.6, "lag_s": 0.0, "ttft_s": 0.599, "ttfo_s": 0.599, "tpot_s": 0.02,
        "itl_p50_s": 0.02, "itl_p99_s": 0.03, "itl_max_s": 0.04, "jitter_s": 0.01,
        "stall_count": 0, "e2e_s": 6.599, "prompt_tokens": 100_000, "cached_tokens": 99_000,
        "planned_prompt_tokens": 100_000, "planned_prefix_tokens": 99_000,
        "output_tokens": gaps + 1, "output_chunks": gaps + 1, "first_chunk_tokens": 1,
        "token_source": "usage", "stamp_source": "kernel", "merged_reads": 0,
        "append_chars": 1_400, "turns_in_flight": 5, "finish_reason": "stop",
        "status": "success", "http_status": 200, "attempt": 1,
    }  # fmt: skip
    lengths = tuple(20_000 + i * 7_001 % 900 for i in range(gaps))
    trace = ChunkTrace(_ID.decode(), 10.6, lengths, (1,) * (gaps + 1), "")
    return row_line(TurnRecord(**{**empty, **known})), row_line(trace)


@dataclass
class Peer:
    """One simulated worker. `made` are turns that it recorded; all of them have to arrive."""

    client_id: str
    socket: Any
    spec: dict[str, Any] | None = None
    made: int = 0
    made_before: int = 0
    stopping: bool = False
    stopped: bool = False
    delivered: bool = False
    quit: bool = False
    seq: int = 0
    answered: int = 0
    final_after: int = 0  # messages with a higher number are final
    refused: str | None = None
    users: int = 0
    last_s: dict[str, float] = field(default_factory=dict)
    offsets: dict[str, int] = field(default_factory=dict)
    waiting: dict[str, bytes] = field(default_factory=dict)
    templates: tuple[bytes, bytes] = (b"", b"")

    def send(self, kind: str, data: Any) -> None:
        self.socket.send(msgpack.dumps((kind, data, self.client_id)))

    def due(self, what: str, every_s: float, now_s: float) -> bool:
        if now_s - self.last_s.get(what, -1e9) < every_s:
            return False
        self.last_s[what] = now_s
        return True

    @property
    def sizes(self) -> dict[str, int]:
        names = ("turns.csv", "chunks.csv", "loadgen.csv", "events.csv")
        return {n: self.offsets.get(n, 0) + len(self.waiting.get(n, b"")) for n in names}


class Fleet:
    """`count` peers of a master. `rows_per_s` of all together; 0 = only Locust's own messages."""

    def __init__(self, port: int, count: int, rows_per_s: float, gaps: int = 300) -> None:
        self.rows_per_s = rows_per_s
        self.gaps = gaps
        self.keep_rows = False  # as with --record-on worker
        self.as_floats = False  # rows as lists of numbers in a message of their own
        self.quiet = False  # nothing but Locust's own messages
        self.float_rows = 0
        self._context = zmq.Context()
        self._context.set(zmq.MAX_SOCKETS, count + 1_000)
        self._poller = zmq.Poller()
        self.peers = [self._peer(port, i) for i in range(count)]
        self._by_socket = {peer.socket: peer for peer in self.peers}
        self._since_s = time.monotonic()

    def _peer(self, port: int, number: int) -> Peer:
        client_id = f"peer{number}_{number:032x}"
        socket = self._context.socket(zmq.DEALER)
        socket.setsockopt(zmq.IDENTITY, client_id.encode())
        socket.setsockopt(zmq.LINGER, 0)
        socket.connect(f"tcp://127.0.0.1:{port}")
        self._poller.register(socket, zmq.POLLIN)
        peer = Peer(client_id, socket)
        peer.last_s["rows"] = time.monotonic() + number * 0.618 % 1.0  # not all at one moment
        peer.send("client_ready", metadata.version("locust"))
        return peer

    @property
    def made(self) -> int:
        return sum(peer.made for peer in self.peers)

    def run_until(self, condition: Callable[[], bool], what: str, deadline_s: float) -> None:
        end_s = time.monotonic() + deadline_s
        while not condition():
            if time.monotonic() > end_s:
                raise AssertionError(f"never: {what}")
            self.step()

    def run_for(self, seconds: float) -> None:
        end_s = time.monotonic() + seconds
        while time.monotonic() < end_s:
            self.step()

    def change_rate(self, rows_per_s: float) -> None:
        """From now on; what was made stays made."""
        self.rows_per_s, self._since_s = rows_per_s, time.monotonic()
        for peer in self.peers:
            peer.made_before = peer.made

    def step(self) -> None:
        for socket, _ in self._poller.poll(20):
            peer = self._by_socket[socket]
            while socket.poll(0):
                self._receive(peer, *msgpack.loads(socket.recv())[:2])
        now_s = time.monotonic()
        for peer in self.peers:
            if not peer.quit:
                self._speak(peer, now_s)

    def close(self) -> None:
        self._context.destroy(linger=0)

    # -- what a peer hears --------------------------------------------------------------------

    def _receive(self, peer: Peer, kind: str, data: Any) -> None:
        if kind == "spawn":
            self._spawn(peer, data)
        elif kind == "stop":
            peer.stopping = True
        elif kind == "quit":
            peer.quit = True
        elif kind == "agentload_ack":
            self._acknowledged(peer, data)

    def _spawn(self, peer: Peer, job: dict[str, Any]) -> None:
        if peer.spec is None:
            peer.spec = job["parsed_options"]["agentload_run"]
            rank = peer.spec["ranks"][peer.client_id]
            peer.templates = turn_template(peer.spec["run_id"], f"w{rank}", self.gaps)
            self._since_s = time.monotonic()
        peer.users = sum(job["user_classes_count"].values())
        peer.send("spawning", None)
        told = {"user_classes_count": job["user_classes_count"], "user_count": peer.users}
        peer.send("spawning_complete", told)

    def _acknowledged(self, peer: Peer, answer: dict[str, Any]) -> None:
        peer.answered = max(peer.answered, answer["seq"])
        peer.refused = answer["refused"]
        for name, offset in answer.get("offsets", {}).items():
            before = peer.offsets.get(name, 0)
            peer.waiting[name] = peer.waiting.get(name, b"")[offset - before :]
            peer.offsets[name] = offset
        nothing_waits = self.keep_rows or not any(peer.waiting.values())
        if peer.stopped and nothing_waits and peer.answered > peer.final_after:
            peer.delivered = True
        elif peer.stopped and peer.answered == peer.seq:
            self._send_rows(peer)

    # -- what a peer says ---------------------------------------------------------------------

    def _speak(self, peer: Peer, now_s: float) -> None:
        if peer.due("heartbeat", HEARTBEAT_EVERY_S, now_s):
            state = "running" if peer.spec is not None and not peer.stopped else "ready"
            told = {"state": state, "current_cpu_usage": 1.0, "current_memory_usage": 10**8}
            peer.send("heartbeat", told)
        if not self.quiet and peer.due("ping", PING_EVERY_S, now_s):
            peer.send("agentload_ping", {"sent_ns": time.monotonic_ns()})
        if peer.spec is None or peer.stopped:
            return
        if peer.due("report", REPORT_EVERY_S, now_s):
            peer.send("stats", _report(peer.users))
        if peer.stopping:
            self._make_rows(peer, now_s)
            peer.stopped = True
            peer.final_after = peer.seq  # what is still under way is answered, too
            self._send_rows(peer)
            peer.send("client_stopped", None)
            peer.send("client_ready", metadata.version("locust"))
        elif not self.quiet and peer.due("rows", ROWS_EVERY_S, now_s):
            self._make_rows(peer, now_s)
            if peer.answered == peer.seq:
                self._send_rows(peer)

    def _make_rows(self, peer: Peer, now_s: float) -> None:
        per_peer = self.rows_per_s / len(self.peers)
        wanted = peer.made_before + int((now_s - self._since_s) * per_peer)
        new = range(peer.made, max(peer.made, wanted))
        if self.as_floats and new:
            rows = [[1.0] * 8 + [0.02 + i * 1e-6 for i in range(self.gaps)] for _ in new]
            peer.send("bench_floats", rows)
            self.float_rows += len(new)
            peer.made_before -= len(new)  # they are not of the run
            return
        ids = [f"{int(peer.client_id[4:].split('_')[0]):08x}{n:024x}".encode() for n in new]
        for name, template in zip(("turns.csv", "chunks.csv"), peer.templates, strict=True):
            made = b"".join(template.replace(_ID, id_, 1) for id_ in ids)
            if not self.keep_rows:
                peer.waiting[name] = peer.waiting.get(name, b"") + made
        peer.made += len(new)

    def _send_rows(self, peer: Peer) -> None:
        assert peer.spec is not None
        peer.seq += 1
        parts = [(n, peer.offsets.get(n, 0), rows) for n, rows in peer.waiting.items() if rows]
        status: dict[str, Any] = {
            "planned": peer.made, "sent": peer.made, "recorded": peer.made, "dropped": 0,
            "in_flight": 0, "at_gate": peer.users, "final": peer.stopped, "refused": None,
            "clock_offset_s": 0.0, "clock_offset_error_s": 0.0, "sizes": peer.sizes,
        }  # fmt: skip
        if self.keep_rows:
            status["kept_in"] = f"/elsewhere/{peer.client_id}"
            status["kept_rows"] = {"turns.csv": peer.made, "chunks.csv": peer.made}
        message = {
            "run_id": peer.spec["run_id"], "worker_id": peer.client_id, "seq": peer.seq,
            "token": peer.spec["rows_token"], "columns": COLUMNS_CRC, "parts": parts,
            "status": status,
        }  # fmt: skip
        peer.send("agentload_rows", message)


def _report(users: int) -> dict[str, Any]:
    """Locust's own statistics of three seconds, one name with 60 response times."""
    entry = {
        "name": "turn", "method": "POST", "last_request_timestamp": time.time(),
        "start_time": time.time() - 3, "num_requests": 300, "num_none_requests": 0,
        "num_failures": 0, "total_response_time": 600_000.0, "max_response_time": 4_000.0,
        "min_response_time": 500.0, "total_content_length": 0,
        "response_times": {500 + 10 * i: 5 for i in range(60)},
        "num_reqs_per_sec": {int(time.time()): 300}, "num_fail_per_sec": {},
    }  # fmt: skip
    return {
        "stats": [entry], "stats_total": {**entry, "name": "Aggregated"}, "errors": {},
        "user_classes_count": {"CodingAgent": users}, "user_count": users,
    }  # fmt: skip
