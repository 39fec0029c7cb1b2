"""How well the embedded server keeps its schedule: many streams of 25 tokens/s on one core.

    python tests/bench/bench_sim_server.py [--streams 200] [--seconds 10] [--cores 0,1]

The server runs on one core, the client on another, reading raw sockets. A decode step gives every
stream its token at the same moment, so the last of N chunks cannot leave before N - 1 others.

Printed: what the server says of itself (`agentload_sim_lateness_seconds`: the end of a step until
the kernel has its chunk), and what the client sees: each chunk against the earliest chunk of
its step, and each stream's last chunk against the instant in the request log. CPU is of a core.
On a busy machine the client's figures are the machine's, not the server's.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import re
import select
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

STEP_S = 0.040
SETTLE_S = 2.0  # connecting, and the first steps
TEXT = re.compile(rb'"content":"(?!")')


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--cores", default="0,1", help="server's, client's")
    parser.add_argument("--client", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.client is not None:
        client(given.client, given.streams, round(given.seconds / STEP_S))
        return
    with tempfile.TemporaryDirectory() as folder:
        measure(given, Path(folder) / "requests.jsonl")


def measure(given: argparse.Namespace, log: Path) -> None:
    server_core, client_core = given.cores.split(",")
    # A step of 200 such streams takes 10.7 simulated ms on this profile, so 25 tokens/s need a
    # speed of 0.27; other numbers of streams give nearly the same.
    speed = (0.0077 + given.streams * 15e-6) / STEP_S
    command = ["taskset", "-c", server_core, sys.executable, "-m", "agentload.sim.server"]
    command += ["--port", "0", "--speed", f"{speed:.4f}", "--request-log", str(log)]
    command += ["--tokenizer-base-ms", "0", "--tokenizer-us-per-token", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as server:
        try:
            assert server.stdout is not None
            ready = json.loads(server.stdout.readline())
            cpu_s, start_s = cpu_seconds(server.pid), time.monotonic()
            run = ["taskset", "-c", client_core, sys.executable, __file__]
            run += ["--client", str(ready["port"]), "--streams", str(given.streams)]
            run += ["--seconds", str(given.seconds)]
            with subprocess.Popen(run, stdout=subprocess.PIPE) as load:
                pages = []
                for wait_s in (SETTLE_S, given.seconds - SETTLE_S):
                    time.sleep(wait_s)  # the streams run meanwhile
                    pages.append(urllib.request.urlopen(f"{ready['url']}/metrics").read().decode())
                cpu_share = (cpu_seconds(server.pid) - cpu_s) / (time.monotonic() - start_s)
                assert load.stdout is not None
                seen = json.load(load.stdout)
        finally:
            server.terminate()
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    table(given.streams, cpu_share, pages, seen, lines)


def table(
    streams: int,
    cpu_share: float,
    pages: list[str],
    seen: dict[str, list[int]],
    lines: list[dict],
) -> None:
    chunks = sum(len(stamps) for stamps in seen.values())
    rate = streams / STEP_S
    print(
        f"{streams} streams, {chunks} chunks, about {rate:.0f}/s; server {cpu_share:.0%} of a core"
    )
    print(f"{'ms':38} {'p50':>8} {'p99':>8} {'max':>8}")
    typical, tail, worst = (edge(pages, share) for share in (0.5, 0.99, 1.0))
    print(f"{'server: chunk after its schedule':38} {typical:>8} {tail:>8} {worst:>8}")
    row("client: chunk after first of its step", spread(seen, streams))
    last = {line["request_id"]: line["last_token_ns"] for line in lines}
    row("client: last chunk after its schedule", [(seen[r][-1] - last[r]) / 1e6 for r in seen])


def spread(seen: dict[str, list[int]], streams: int) -> list[float]:
    """ms from the first chunk of each step that serves all streams; steps are apart by far more."""
    stamps = sorted(stamp for one in seen.values() for stamp in one)
    steps = [[stamps[0]]]
    for before, stamp in itertools.pairwise(stamps):
        if stamp - before > STEP_S * 1e9 / 4:
            steps.append([])
        steps[-1].append(stamp)
    return [(stamp - one[0]) / 1e6 for one in steps if len(one) == streams for stamp in one]


def row(name: str, values: list[float]) -> None:
    values = sorted(values)
    at = [values[min(len(values) - 1, int(len(values) * q))] for q in (0.5, 0.99)] + values[-1:]
    print(f"{name:38} " + " ".join(f"{value:8.2f}" for value in at))


def edge(pages: list[str], share: float) -> str:
    """The smallest bucket edge, in ms, that holds this share of what came between two pages."""
    pattern = r'^agentload_sim_lateness_seconds_bucket\{le="(\S+)"\} (\S+)$'
    first, last = (dict(re.findall(pattern, page, re.M)) for page in pages)
    grown = {le: float(last[le]) - float(first[le]) for le in last}
    found = next(le for le, count in grown.items() if count >= share * grown["+Inf"])
    return found if found == "+Inf" else f"<={float(found) * 1000:g}"


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def client(port: int, streams: int, tokens: int) -> None:
    """Read `streams` streams of `tokens` tokens; print the stamps (ns) of each one's chunks."""
    poll = select.epoll()
    open_ones: dict[int, socket.socket] = {}
    stamps: dict[int, list[int]] = {}
    heads: dict[int, bytes] = {}
    for index in range(streams):
        body = {"messages": [{"role": "user", "content": f"stream {index}"}], "stream": True,
                "max_tokens": tokens, "ignore_eos": True}  # fmt: skip
        data = json.dumps(body).encode()
        one = socket.create_connection(("127.0.0.1", port))
        one.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: sim\r\nConnection: close\r\n"
                    b"Content-Length: %d\r\n\r\n" % len(data) + data)  # fmt: skip
        open_ones[one.fileno()] = one
        stamps[one.fileno()] = []
        heads[one.fileno()] = b""
        poll.register(one, select.EPOLLIN)
    while open_ones:
        for number, _ in poll.poll():
            data = open_ones[number].recv(1 << 16)
            now = time.perf_counter_ns()
            stamps[number] += [now] * len(TEXT.findall(data))
            if len(heads[number]) < 600:
                heads[number] += data
            if not data:
                poll.unregister(number)
                open_ones.pop(number)
    ids = {n: re.search(rb'"id":"([^"]+)"', head)[1].decode() for n, head in heads.items()}
    print(json.dumps({ids[number]: found for number, found in stamps.items()}))


if __name__ == "__main__":
    main()
