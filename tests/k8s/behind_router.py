"""The router's own configuration in real HAProxy, between this program and two replicas.

    unshare --mount --net python behind_router.py < settings

Standard input: a JSON object with `config` (the text), `env`, `sessions` and `turns`. Standard
output: for each session the replicas that its turns were answered by, and whether a chunk came
through while the answer was still being made. Replicas are 127.0.0.2 and 127.0.0.3; their name is
resolved by a name server on 127.0.0.1, which is all that /etc/resolv.conf knows here.
"""

from __future__ import annotations

import http.client
import json
import socket
import socketserver
import struct
import subprocess
import sys
import tempfile
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

REPLICAS = ("127.0.0.2", "127.0.0.3")
PORT = 8000
DEADLINE_S = 60.0
A, HEADER = 1, 12
go_on = threading.Event()


class Replica(BaseHTTPRequestHandler):
    """/health, and a chat whose second chunk waits until the client says it has the first."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        self.wfile.write(b"5\r\nfirst\r\n")
        self.wfile.flush()
        go_on.wait(DEADLINE_S)
        self.wfile.write(b"4\r\nlast\r\n0\r\n\r\n")

    def log_message(self, *_: object) -> None:
        """Silence."""


class Names(socketserver.BaseRequestHandler):
    """Answers the one name with both addresses, for IPv6 with none."""

    name = b""

    def handle(self) -> None:
        data, sock = self.request
        end = data.index(b"\0", HEADER) + 5
        question = data[HEADER:end]
        (kind,) = struct.unpack("!H", question[-4:-2])
        asked = question[:-4]
        known = asked.lower() == self.name
        found = REPLICAS if known and kind == A else ()
        flags = 0x8180 if known else 0x8183
        reply = data[:2] + struct.pack("!HHHHH", flags, 1, len(found), 0, 0) + question
        for address in found:
            reply += b"\xc0\x0c" + struct.pack("!HHIH", A, 1, 5, 4) + socket.inet_aton(address)
        sock.sendto(reply, self.client_address)


def wire(name: str) -> bytes:
    return b"".join(bytes([len(p)]) + p.encode().lower() for p in name.split(".")) + b"\0"


def serve(server: socketserver.BaseServer) -> None:
    threading.Thread(target=server.serve_forever, daemon=True).start()


def turn(session: str) -> tuple[str, bool]:
    """The replica that answered, and whether the first chunk came before the last was made."""
    go_on.clear()
    router = http.client.HTTPConnection("127.0.0.1", PORT, timeout=DEADLINE_S)
    router.request("POST", "/v1/chat/completions", b"{}", {"X-Session-ID": session})
    answer = router.getresponse()
    if answer.status != 200:
        raise ConnectionError(answer.status)
    streamed = answer.read(5) == b"first" and not go_on.is_set()
    go_on.set()
    whole = answer.read() == b"last"
    router.close()
    return str(answer.headers["X-Replica"]), streamed and whole


def wait_for_both() -> None:
    """Until turns of many sessions have reached both replicas."""
    end_s = time.monotonic() + DEADLINE_S
    seen: set[str] = set()
    number = 0
    while len(seen) < len(REPLICAS):
        if time.monotonic() > end_s:
            raise TimeoutError(f"only {seen} answered")
        number += 1
        try:
            seen.add(turn(f"probe-{number}")[0])
        except (OSError, http.client.HTTPException):
            time.sleep(0.05)


def main() -> int:
    told = json.load(sys.stdin)
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    with tempfile.TemporaryDirectory() as folder:
        resolv, config = Path(folder, "resolv.conf"), Path(folder, "haproxy.cfg")
        resolv.write_text("nameserver 127.0.0.1\n")
        subprocess.run(["mount", "--bind", str(resolv), "/etc/resolv.conf"], check=True)
        config.write_text(told["config"].replace("bind :8000", f"bind 127.0.0.1:{PORT}"))
        Names.name = wire(told["env"]["SERVERS"])
        serve(socketserver.ThreadingUDPServer(("127.0.0.1", 53), Names))
        for address in REPLICAS:
            serve(ThreadingHTTPServer((address, PORT), Replica))
        env = {"PATH": "/usr/sbin:/usr/bin:/bin", **told["env"]}
        router = subprocess.Popen(
            ["haproxy", "-W", "-db", "-f", str(config)], env=env, stdout=sys.stderr
        )
        try:
            wait_for_both()
            answers = {
                name: [turn(name) for _ in range(told["turns"])] for name in told["sessions"]
            }
        finally:
            router.terminate()
            router.wait(DEADLINE_S)
    json.dump(answers, sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main())
