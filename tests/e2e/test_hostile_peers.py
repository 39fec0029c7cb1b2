"""Port 5557 has no authentication: whoever reaches it can end, fill or falsify nothing."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgpack
import pytest
import zmq

from tests.e2e.locust_process import Bench, RunFolder, free_port, until

pytestmark = pytest.mark.slow

ROWS, PING = "agentload_rows", "agentload_ping"
HUGE = 2**62
DEEP = b"\x91" * 5000 + b"\xc0"
FRAMES: list[list[bytes]] = [
    [b""],
    [b"\xc1"],
    [os.urandom(300)],
    [b"one", b"two", b"three"],
    [msgpack.dumps(7)],
    [msgpack.dumps([])],
    [msgpack.dumps(["heartbeat"])],
    [msgpack.dumps(["heartbeat", None, "x", "y"])],
    [msgpack.dumps([ROWS, {"__datetime__": True}, "x"])],
    [msgpack.dumps([ROWS, {"__ObjectId__": True, "as_str": "x"}, "x"])],
    [msgpack.dumps([["list"], None, "peer"])],
    [msgpack.dumps([{}, {}, {}])],
    [DEEP],
    [b"\xdb\xff\xff\xff\xff"],  # a text of 4 GB, without the text
]


class Peer:
    """Speaks the format of Locust's messages, and what is none."""

    def __init__(self, context: zmq.Context[Any], port: int, identity: str) -> None:
        self.identity = identity
        self._socket = context.socket(zmq.DEALER)
        self._socket.setsockopt(zmq.IDENTITY, identity.encode())
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.connect(f"tcp://127.0.0.1:{port}")

    def frames(self, *frames: bytes) -> None:
        self._socket.send_multipart(frames)

    def say(self, kind: Any, data: Any, node_id: Any = None) -> None:
        id_ = self.identity if node_id is None else node_id
        self.frames(msgpack.dumps((kind, data, id_)))

    def lives_on(self) -> None:
        """Locust counts a worker that says nothing for four seconds as missing."""
        self.say("heartbeat", {"state": "ready", "current_cpu_usage": 0.0})

    def hear(self, kind: str) -> dict[str, Any]:
        """The next message of this kind."""
        while self._socket.poll(60_000):
            got, data, _ = msgpack.loads(self._socket.recv())
            if got == kind:
                return dict(data)
        raise AssertionError(f"no {kind} came")

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def peers() -> Iterator[Callable[[int, str], Peer]]:
    context = zmq.Context()
    made: list[Peer] = []

    def make(port: int, identity: str) -> Peer:
        made.append(Peer(context, port, identity))
        return made[-1]

    try:
        yield make
    finally:
        for peer in made:
            peer.close()
        context.term()


def forged(run: RunFolder, worker: str) -> list[Any]:
    """Batches that are none, of which the last ones know everything but the run's token."""
    row = b"forged," + b"," * 54 + b"\n"
    good = {
        "run_id": run.path.name, "worker_id": worker, "token": "", "seq": 1, "columns": 0,
        "parts": [["turns.csv", 0, row]], "status": {"final": True, "sent": 1e300},
    }  # fmt: skip
    changes: list[dict[str, Any]] = [
        {}, {"token": "0" * 32}, {"token": None}, {"token": 7}, {"token": "\N{SNOWMAN}"},
        {"seq": -5}, {"seq": HUGE}, {"seq": "1"}, {"seq": None},
        {"run_id": "../../x"}, {"run_id": None}, {"run_id": ["x"]},
        {"worker_id": "../../victim"}, {"worker_id": 3}, {"worker_id": "x" * 100_000},
        {"parts": [["turns.csv", HUGE, row]]}, {"parts": [["turns.csv", -1, row]]},
        {"parts": [["../../victim/turns.csv", 0, row]]}, {"parts": [["/etc/passwd", 0, row]]},
        {"parts": {"turns.csv": row}}, {"parts": [None]}, {"parts": [["turns.csv", 0, "text"]]},
        {"status": None}, {"status": {"refused": "run no more"}}, {"columns": "x"},
    ]  # fmt: skip
    return [None, 7, [], {}, "text", *({**good, **change} for change in changes)]


def test_what_strangers_send_changes_nothing(
    bench: Bench, tmp_path: Path, peers: Callable[[int, str], Peer]
) -> None:
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / "turns.csv").write_text("not yours\n" * 200)
    port = free_port()
    wait = ("--expect-workers", "3", "--expect-workers-max-wait", "60")
    master = bench.owner(
        "--headless", "--master", "--master-bind-port", str(port), *wait,
        "-u", "4", "-r", "4", "-t", "10s",
    )  # fmt: skip
    # It counts as a worker before the run, and would be a path once folders are named after it.
    early = peers(port, "../../victim")
    early.say("client_ready", "2.47.0")
    early.hear("ack")
    workers = [
        bench.start("--worker", "--master-host", "127.0.0.1", "--master-port", str(port))
        for _ in range(2)
    ]
    until(lambda: early.lives_on() or bench.folders(), "the run begins")
    run = bench.running_folder(rows=8)
    ids = [worker["client_id"] for worker in run.manifest["workers"]]
    assert len(ids) == 2
    peer = peers(port, "stranger")
    for frames in FRAMES:
        peer.frames(*frames)
    for batch in forged(run, ids[0]):
        peer.say(ROWS, batch)
        assert peer.hear("agentload_ack")["refused"]
    for data in (None, 7, {}, {"sent_ns": "x"}, {"sent_ns": 5}):
        peer.say(PING, data)
    assert peer.hear("agentload_pong")["sent_ns"] == 5
    for node_id in (ids[0], 5, [], "x" * 100_000):  # in another's name
        peer.say(ROWS, None, node_id)
        peer.say("quit", None, node_id)
    peer.say("client_ready", "2.47.0")
    for kind in ("heartbeat", "stats", "spawning_complete", "exception", "logs", "locustfile"):
        for data in (None, 7, {"user_classes_count": {"CodingAgent": "many"}}):
            peer.say(kind, data)
    peer.say("no such type", {"x": 1})
    peers(port, "large").frames(b"x" * 70_000_000)
    peer.say(PING, {"sent_ns": 6})
    assert peer.hear("agentload_pong")["sent_ns"] == 6  # it still listens
    peak_kb = memory_peak_kb(master.process.pid)
    assert master.wait() == 0, master.output
    assert [worker.wait() for worker in workers] == [0, 0]
    assert peak_kb < 400_000
    assert (victim / "turns.csv").read_text() == "not yours\n" * 200
    rows, counts = run.rows(), run.manifest["counts"]
    assert counts["sent"] == counts["recorded"] == len(rows) > 8
    assert all(row["request_id"] != "" and row["run_id"] == run.path.name for row in rows)
    assert {row["worker_id"] for row in rows} == {"w0", "w1"}
    assert [worker["client_id"] for worker in run.manifest["workers"]] == ids
    assert run.manifest["verdict"]["level"] == "suspect"
    assert "Traceback" not in master.output


def memory_peak_kb(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0])
