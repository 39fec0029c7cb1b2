"""The server of one cell: started, waited for, ended."""

from __future__ import annotations

import socket
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from agentload.experiment import cpus, readback
from agentload.experiment.cluster import Cluster, render
from agentload.experiment.errors import ExperimentError
from agentload.experiment.overlay import Overlay
from agentload.experiment.plan import (
    OF_OVERLAY,
    Arm,
    CommandTarget,
    EmbeddedTarget,
    Experiment,
    Flag,
    KubernetesTarget,
    flags_of,
)
from agentload.experiment.process import Child
from agentload.experiment.reaper import Reaper

EMBEDDED_READY_TIMEOUT_S = 60.0
FORWARD_READY_TIMEOUT_S = 60.0
END_GRACE_S = 10.0
POLL_S = 0.2


@dataclass(frozen=True, slots=True)
class Around:
    """What a server is started with: where its log goes, who waits, who ends what is left over."""

    folder: Path  # of the experiment file
    log: Path
    sleep: Callable[[float], None]
    reaper: Reaper | None


@dataclass(frozen=True, slots=True)
class Served:
    """A server that answers: where it is, which model it serves, what its arm asked for.

    `owns_log` says whether `log` is the server's own. `load_cpus` are left for the load.
    """

    base_url: str
    model: str
    wished: dict[str, Flag]
    owns_log: bool
    end: Callable[[], None]
    load_cpus: frozenset[int] | None = None
    forwarded: bool = False


def command_line(flags: Mapping[str, Flag]) -> list[str]:
    """vLLM's spelling of flags: `True` is `--name`, `False` is `--no-name`."""
    words: list[str] = []
    for name, value in flags.items():
        if isinstance(value, bool):
            words.append(f"--{name}" if value else f"--no-{name}")
        else:
            words += [f"--{name}", str(value)]
    return words


def start(experiment: Experiment, arm: Arm, around: Around) -> Served:
    """Start the arm's server and return when it serves its model; it is ended on any failure."""
    target, flags = experiment.target, flags_of(experiment, arm)
    if isinstance(target, KubernetesTarget):
        return _start_on_cluster(target, arm, flags, around)
    if isinstance(target, EmbeddedTarget | CommandTarget):
        return _start_here(target, flags, around)
    assert arm.base_url is not None  # seen to when the file was read
    return Served(arm.base_url, target.model, flags, False, lambda: None)


def _start_here(
    target: EmbeddedTarget | CommandTarget, flags: dict[str, Flag], around: Around
) -> Served:
    port = free_port()
    command, timeout_s, model = _command(target, flags, port)
    pinned = cpus.split(target.cpus)
    server_cpus, load_cpus = pinned if pinned is not None else (None, None)
    child = _child(command, around, server_cpus)
    root = f"http://127.0.0.1:{port}"
    try:
        served = _wait_ready(child, root, timeout_s, model, around.sleep)
    except BaseException:
        child.end(END_GRACE_S)
        raise
    end = lambda: child.end(END_GRACE_S)  # noqa: E731
    return Served(f"{root}/v1", served, flags, True, end, load_cpus)


def _child(command: list[str], around: Around, server_cpus: frozenset[int] | None) -> Child:
    try:
        return Child(command, around.log, cpus=server_cpus, reaper=around.reaper)
    except OSError as error:
        raise ExperimentError(f"{command[0]}: cannot be started: {error.strerror}") from None


def _command(
    target: EmbeddedTarget | CommandTarget, flags: Mapping[str, Flag], port: int
) -> tuple[list[str], float, str | None]:
    """The words to start it, how long it may take, and the model it has to serve."""
    if isinstance(target, CommandTarget):
        command = [word.replace("{port}", str(port)) for word in target.command]
        return [*command, *command_line(flags)], target.ready_timeout_s, target.model
    simulator = [sys.executable, "-m", "agentload.sim.server", "--port", str(port)]
    return [*simulator, *command_line(flags)], EMBEDDED_READY_TIMEOUT_S, None


def _start_on_cluster(
    target: KubernetesTarget, arm: Arm, flags: dict[str, Flag], around: Around
) -> Served:
    assert arm.overlay is not None
    folder = around.folder / arm.overlay
    overlay, cluster = render(folder), Cluster.of(target)
    told = {name: value for name, value in flags.items() if not name.startswith(OF_OVERLAY)}
    if any(told.get(name) != value for name, value in overlay.flags.items()):
        raise ExperimentError(f"{folder}: its flags were changed since the experiment began")
    cluster.delete_workload(overlay)
    forward: list[Child] = []

    def end() -> None:
        for child in forward:
            child.end(END_GRACE_S)
        _keep_log(cluster, overlay, around.log)
        cluster.delete(overlay)

    try:
        cluster.apply(folder)
        _wait_rolled_out(cluster, overlay, target.ready_timeout_s)
        root = _reach(target, overlay, cluster, around, forward)
        served = _wait_ready(
            forward[0] if forward else None,
            root,
            FORWARD_READY_TIMEOUT_S,
            target.model,
            around.sleep,
        )
        _keep_log(cluster, overlay, around.log)
    except BaseException:
        end()
        raise
    return Served(f"{root}/v1", served, told, True, end, forwarded=bool(forward))


def _wait_rolled_out(cluster: Cluster, overlay: Overlay, timeout_s: float) -> None:
    try:
        cluster.wait_rolled_out(overlay, timeout_s)
    except ExperimentError as error:
        raise ExperimentError(f"{error}\nthe namespace's events:\n{cluster.events()}") from None


def _reach(
    target: KubernetesTarget,
    overlay: Overlay,
    cluster: Cluster,
    around: Around,
    forward: list[Child],
) -> str:
    """The root address; a port-forward that it needs is put into `forward`."""
    if target.base_url is not None:
        return target.base_url.rstrip("/").removesuffix("/v1")
    port = free_port()
    log = around.log.with_suffix(".forward.log")
    command = cluster.forward_command(overlay, port)
    forward.append(Child(command, log, reaper=around.reaper))
    return f"http://127.0.0.1:{port}"


def _keep_log(cluster: Cluster, overlay: Overlay, log: Path) -> None:
    text = cluster.logs(overlay)
    if text:
        log.write_text(text, encoding="utf-8", errors="replace")


def free_port() -> int:
    """A port that was free a moment ago on the loopback interface."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _wait_ready(
    child: Child | None,
    root: str,
    timeout_s: float,
    model: str | None,
    sleep: Callable[[float], None],
) -> str:
    """The served model's name, once it is served; ExperimentError with the log's last lines."""
    for _ in range(round(timeout_s / POLL_S)):
        if child is not None and child.exit_code is not None:
            raise ExperimentError(
                f"the server ended with code {child.exit_code} before it was ready; its last"
                f" lines ({child.log}):\n{child.last_lines()}"
            )
        try:
            models = readback.served_models(root)
        except readback.NoKeyError as error:
            raise ExperimentError(str(error)) from None
        if models and model is not None and model not in models:
            raise ExperimentError(
                f"the server serves {', '.join(models)}, not {model!r} (target.model)"
            )
        if models:
            return model or models[0]
        sleep(POLL_S)
    last = "" if child is None else f"; its last lines ({child.log}):\n{child.last_lines()}"
    raise ExperimentError(f"{root}/v1/models did not answer within {timeout_s:.0f} s{last}")
