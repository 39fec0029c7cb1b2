"""Hosts that are not there: each a network namespace on one bridge, with a name of its own."""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

PREFIX = "agentload-test-"
TOOLS = ("ip", "iptables", "nsenter", "unshare", "setpriv", "mount", "hostname")
END_S = 120.0

# Arguments: hosts file, host name, command. Every step is an exec, so the pid stays the same.
_ENTER = 'mount --bind "$1" /etc/hosts && hostname "$2" && shift 2 && exec "$@"'


def what_is_missing() -> str | None:
    """Why no namespace can be made here; None when all is there."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if missing:
        return f"not installed: {', '.join(missing)} (apt-get install iproute2 iptables)"
    return None


def run(*command: str) -> str:
    """Output of a command that has to succeed."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise AssertionError(f"{' '.join(command)}: {done.returncode}: {done.stderr.strip()}")
    return done.stdout


class Process:
    """A command on one of the hosts, in a session of its own; its output goes to a file."""

    def __init__(self, command: Sequence[str], log: Path, env: dict[str, str]) -> None:
        self.log = log
        with log.open("wb") as out:
            self._process = subprocess.Popen(
                command,
                stdout=out,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                env=env,
                start_new_session=True,
            )
        self.pid = self._process.pid

    @property
    def output(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace")

    @property
    def code(self) -> int | None:
        """The exit code; None while it runs."""
        return self._process.poll()

    def signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def wait(self, deadline_s: float = END_S) -> int:
        try:
            return self._process.wait(deadline_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self.log.name} did not end:\n{self.output}") from None

    def kill_group(self) -> None:
        """Nothing that was started outlives its test."""
        for number in (signal.SIGCONT, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, number)
        self._process.wait(30)


@dataclass
class Host:
    """One namespace. `name` is what the others call it."""

    name: str
    namespace: str
    address: str
    network: Network
    started: list[Process] = field(default_factory=list)

    def command(self, command: Sequence[str]) -> list[str]:
        """The command as it is run from outside."""
        enter = ["nsenter", f"--net=/run/netns/{self.namespace}"]
        own = ["unshare", "--mount", "--uts", "--propagation", "private"]
        shell = ["sh", "-c", _ENTER, "sh", str(self.network.hosts_file), self.name]
        return [*enter, *own, *shell, *command]

    def start(
        self, command: Sequence[str], env: dict[str, str] | None = None, before: Sequence[str] = ()
    ) -> Process:
        return self.start_exactly([*before, *command], clean_env(env))

    def start_exactly(self, command: Sequence[str], env: dict[str, str]) -> Process:
        """With this environment and nothing else in it."""
        log = self.network.folder / f"{self.name}-{len(self.started)}.log"
        process = Process(self.command(command), log, env)
        self.started.append(process)
        return process

    def said(self) -> str:
        """What all commands on this host said."""
        return "".join(process.output for process in self.started)

    def run(self, *command: str) -> str:
        return run("nsenter", f"--net=/run/netns/{self.namespace}", *command)

    def cut(self, port: int) -> None:
        """From now on nothing goes to or comes from this port; nobody is told."""
        for chain, side in itertools.product(("INPUT", "OUTPUT"), ("--sport", "--dport")):
            self.run("iptables", "-w", "-A", chain, "-p", "tcp", side, str(port), "-j", "DROP")

    def heal(self) -> None:
        self.run("iptables", "-w", "-F")


def clean_env(more: dict[str, str] | None) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("OPENAI_", "LOCUST_"))}
    return {**kept, **(more or {})}


class Network:
    """Hosts on one bridge, which has a namespace of its own: the machine's network is untouched."""

    _numbers = itertools.count(1)

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.hosts: dict[str, Host] = {}
        self.hosts_file = folder / "hosts"
        self._base = f"{PREFIX}{os.getpid()}-{next(self._numbers)}"
        self._bridge = f"{self._base}-bridge"
        self._aliases: list[str] = []
        run("ip", "netns", "add", self._bridge)
        run("ip", "-n", self._bridge, "link", "add", "br0", "type", "bridge")
        run("ip", "-n", self._bridge, "link", "set", "br0", "up")
        self._write_hosts()

    def host(self, name: str) -> Host:
        """A new host, which all can reach by its name from now on."""
        number = len(self.hosts) + 1
        namespace = f"{self._base}-{number}"
        address = f"10.77.{number // 250}.{number % 250 + 1}"
        run("ip", "netns", "add", namespace)
        run(
            "ip", "-n", self._bridge, "link", "add", f"v{number}", "type", "veth",
            "peer", "name", "eth0", "netns", namespace,
        )  # fmt: skip
        run("ip", "-n", self._bridge, "link", "set", f"v{number}", "master", "br0", "up")
        run("ip", "-n", namespace, "address", "add", f"{address}/16", "dev", "eth0")
        for device in ("lo", "eth0"):
            run("ip", "-n", namespace, "link", "set", device, "up")
        self.hosts[name] = Host(name, namespace, address, self)
        self._write_hosts()
        return self.hosts[name]

    def alias(self, name: str, address: str) -> None:
        """Another name for an address, as a Service has."""
        self._aliases.append(f"{address} {name}")
        self._write_hosts()

    def _write_hosts(self) -> None:
        own = [f"{host.address} {host.name}" for host in self.hosts.values()]
        lines = ["127.0.0.1 localhost", *own, *self._aliases]
        # In place: it is bound into the namespaces of those that run already.
        self.hosts_file.write_text("\n".join(lines) + "\n", encoding="ascii")

    def close(self) -> None:
        for host in self.hosts.values():
            for process in host.started:
                process.kill_group()
        for namespace in [*(host.namespace for host in self.hosts.values()), self._bridge]:
            remove_namespace(namespace)


@contextlib.contextmanager
def network_in(folder: Path) -> Iterator[Network]:
    made = Network(folder)
    try:
        yield made
    finally:
        made.close()


def sweep() -> list[str]:
    """Remove what test processes left that were killed themselves; their pid is in the name."""
    stale = []
    for line in run("ip", "netns", "list").splitlines():
        name = line.split()[0]
        pid = name.removeprefix(PREFIX).split("-")[0]
        if name.startswith(PREFIX) and pid.isdigit() and not Path(f"/proc/{pid}").exists():
            remove_namespace(name)
            stale.append(name)
    return stale


def remove_namespace(name: str) -> None:
    """The namespace with the processes that are left in it."""
    with contextlib.suppress(AssertionError):
        for pid in run("ip", "netns", "pids", name).split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
    with contextlib.suppress(AssertionError):
        run("ip", "netns", "delete", name)


def until(condition: Any, what: str, deadline_s: float = END_S) -> Any:
    """The condition's first true value. Waits for a state of another process."""
    end_s = time.monotonic() + deadline_s
    while time.monotonic() < end_s:
        value = condition()
        if value:
            return value
        time.sleep(0.1)
    raise AssertionError(f"never: {what}")
