"""Checks of the load: what Locust's flags have to be for a run that loses nothing."""

from __future__ import annotations

from collections.abc import Iterator

from agentload.kubernetes.objects import Rendered, Workload, option

REGISTER_S = 4  # a worker sleeps for the stop timeout before it hears of the end
GRACE_S = 10  # for the summary after the last stream


def _seconds(line: list[str], name: str) -> float | None:
    try:
        return float(option(line, name) or "")
    except ValueError:
        return None


def _masters(rendered: Rendered) -> list[tuple[Workload, list[str]]]:
    return [
        (one, rendered.command_line(container))
        for one in rendered.workloads("master")
        for container in one.pod.get("containers", ())
    ]


def masters_wait_for_the_end(rendered: Rendered, _: frozenset[str]) -> Iterator[str]:
    for one, line in _masters(rendered):
        stop_s, quit_s = _seconds(line, "--stop-timeout"), _seconds(line, "--autoquit")
        if stop_s is None:
            yield f"{one}: --stop-timeout must be given, above the longest answer"
            continue
        if one.kind == "Job" and (quit_s is None or quit_s <= stop_s + REGISTER_S):
            yield f"{one}: --autoquit {quit_s} must be above --stop-timeout {stop_s:g} + 4 s"
        for pod in (one, *rendered.workloads("worker")):
            grace_s = pod.pod.get("terminationGracePeriodSeconds", 30)
            if grace_s <= stop_s + GRACE_S:
                yield (
                    f"{pod}: terminationGracePeriodSeconds {grace_s} must be above the stop "
                    f"timeout {stop_s:g} + {GRACE_S} s"
                )


def masters_wait_for_all_workers(rendered: Rendered, _: frozenset[str]) -> Iterator[str]:
    for one, line in _masters(rendered):
        if one.kind != "Job":
            continue
        expected = option(line, "--expect-workers")
        for worker in rendered.workloads("worker"):
            made = (worker.spec.get("parallelism", 1), worker.spec.get("completions", 1))
            if [str(number) for number in made] != [expected, expected]:
                yield (
                    f"{one}: --expect-workers is {expected}, parallelism and completions of "
                    f"{worker} are {made[0]} and {made[1]}"
                )
        if _seconds(line, "--expect-workers-max-wait") is None:
            yield f"{one}: --expect-workers-max-wait must be given, else it waits for ever"


def flags_that_spoil_a_run(rendered: Rendered, _: frozenset[str]) -> Iterator[str]:
    for one, line in _masters(rendered):
        if "--enable-rebalancing" in line:
            yield f"{one}: --enable-rebalancing can leave more users than wanted after a cut"
        if "--headless" in line:
            yield f"{one}: --headless leaves before the last results; use --autostart, --autoquit"
        if one.kind == "Job" and "--autostart" not in line:
            yield f"{one}: --autostart must be given, else the run never begins"
        if one.kind == "Deployment" and "--web-login" not in line:
            yield f"{one}: a web page needs --web-login: whoever reaches it can start a load"


def one_process_for_each_pod(rendered: Rendered, _: frozenset[str]) -> Iterator[str]:
    for one in rendered.workloads("worker"):
        for container in one.pod.get("containers", ()):
            line = rendered.command_line(container)
            if "--processes" in line or option(line, "--processes"):
                yield f"{one}: --processes: of a forked worker that dies nobody would hear"


def workers_find_the_master_early(rendered: Rendered, _: frozenset[str]) -> Iterator[str]:
    """Its Service has to be headless, with addresses before the pod is ready."""
    for made in rendered.of_kind("Service"):
        ports = {port.get("port") for port in made["spec"].get("ports", ())}
        if 5557 in ports and (
            made["spec"].get("clusterIP") != "None"
            or not made["spec"].get("publishNotReadyAddresses")
        ):
            name = made["metadata"]["name"]
            yield f"Service/{name}: needs clusterIP None and publishNotReadyAddresses"


CHECKS = (
    masters_wait_for_the_end,
    masters_wait_for_all_workers,
    flags_that_spoil_a_run,
    one_process_for_each_pod,
    workers_find_the_master_early,
)
