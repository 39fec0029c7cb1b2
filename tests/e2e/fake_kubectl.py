#!/usr/bin/env python3
"""A `kubectl` whose cluster is one folder: a server is a process, a port-forward a relay.

FAKE_CLUSTER names the folder; `calls.jsonl` there has every call. `kustomize` is the real one's, by
REAL_KUBECTL. A file `deaf` in the folder makes the cluster start servers with prefix caching on
whatever the manifests say.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import urllib.request
from pathlib import Path

FOLDER = Path(os.environ["FAKE_CLUSTER"])
REAL = os.environ["REAL_KUBECTL"]
STATE = FOLDER / "server.json"
LOG = FOLDER / "server.log"


def main() -> int:
    words = sys.argv[1:]
    while words[0] in ("--context", "--namespace"):
        del words[:2]
    text = sys.stdin.read() if "-f" in words else ""
    with (FOLDER / "calls.jsonl").open("a") as file:
        file.write(json.dumps({"words": sys.argv[1:], "stdin": text}) + "\n")
    return {
        "kustomize": kustomize,
        "apply": apply,
        "delete": delete,
        "rollout": rollout,
        "logs": logs,
        "port-forward": forward,
    }[words[0]](words[1:])


def kustomize(words: list[str]) -> int:
    return subprocess.run([REAL, "kustomize", *words], check=False).returncode


def apply(words: list[str]) -> int:
    import yaml

    if STATE.exists():
        print("Error: a server is there already", file=sys.stderr)
        return 1
    made = subprocess.run(
        [REAL, "kustomize", words[1]], capture_output=True, text=True, check=True
    ).stdout
    (deployment,) = (d for d in yaml.safe_load_all(made) if d["kind"] == "Deployment")
    container = deployment["spec"]["template"]["spec"]["containers"][0]
    flags = [a for a in container["args"] if not a.startswith("--port")]
    deaf = ["--enable-prefix-caching"] if (FOLDER / "deaf").exists() else []
    command = [sys.executable, "-m", "agentload.sim.server", "--port", "0", *flags, *deaf]
    with LOG.open("wb") as log:
        server = subprocess.Popen(
            command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True
        )
    STATE.write_text(json.dumps({"pid": server.pid}))
    return 0


def delete(_words: list[str]) -> int:
    if STATE.exists():
        os.killpg(json.loads(STATE.read_text())["pid"], signal.SIGKILL)
        STATE.unlink()
    return 0


def rollout(_words: list[str]) -> int:
    port = server_port()
    url = f"http://127.0.0.1:{port}/health"
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    opener.open(url, timeout=60).close()
    print("successfully rolled out")
    return 0


def server_port() -> int:
    pause = threading.Event()
    for _ in range(600):
        for line in LOG.read_text().splitlines():
            if line.startswith('{"event":"ready"'):
                return int(json.loads(line)["port"])
        pause.wait(0.1)
    raise SystemExit("the server did not start")


def logs(_words: list[str]) -> int:
    print(LOG.read_text(), end="")
    return 0


def forward(words: list[str]) -> int:
    local = int(words[-1].partition(":")[0])
    port = server_port()
    listener = socket.create_server(("127.0.0.1", local))
    while True:
        client, _ = listener.accept()
        server = socket.create_connection(("127.0.0.1", port))
        for a, b in ((client, server), (server, client)):
            threading.Thread(target=relay, args=(a, b), daemon=True).start()


def relay(source: socket.socket, target: socket.socket) -> None:
    try:
        while data := source.recv(1 << 16):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)
    except OSError:
        pass


sys.exit(main())
