"""Checks of names and of what refers to what."""

from __future__ import annotations

import re
from collections.abc import Iterator

from agentload.kubernetes.objects import (
    Object,
    Rendered,
    Workload,
    option,
    references,
    selects,
    words,
)

MAX_NAME = 63  # of a label: the DNS name of a Service, the job-name label of a pod
MAX_DATA_NAME = 253
_NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_LAST_PORT = 65_535
_HOST_VARIABLES = ("MASTER_HOST", "TARGET_HOST", "TARGET_PODS_HOST")


def _label(made: Object) -> str:
    return f"{made.get('kind')}/{made['metadata'].get('name')}"


def names_are_short(rendered: Rendered, _: frozenset[str]) -> Iterator[str]:
    for made in rendered.objects:
        name = made["metadata"].get("name", "")
        most = MAX_DATA_NAME if made.get("kind") in ("ConfigMap", "Secret") else MAX_NAME
        if len(name) > most or not _NAME.fullmatch(name):
            yield f"{_label(made)}: a name has at most {most} lower-case letters, digits and '-'"
        if made.get("kind") == "Service" and (name == "vllm" or name.startswith("locust-")):
            yield (
                f"{_label(made)}: a Service of this name gives pods variables that "
                f"{name.partition('-')[0]} reads as its own"
            )


def names_are_used_once(rendered: Rendered, _: frozenset[str]) -> Iterator[str]:
    seen: set[str] = set()
    for made in rendered.objects:
        if _label(made) in seen:
            yield f"{_label(made)}: is there twice"
        seen.add(_label(made))


def selectors_match(rendered: Rendered, _: frozenset[str]) -> Iterator[str]:
    for one in rendered.workloads():
        chosen = (one.spec.get("selector") or {}).get("matchLabels") or {}
        if one.kind == "Deployment" and not selects(chosen, one.labels):
            yield f"{one}: its selector {chosen} does not match the labels of its pods"
    for kind, path in (("PodDisruptionBudget", "selector"), ("NetworkPolicy", "podSelector")):
        for made in rendered.of_kind(kind):
            chosen = (made["spec"].get(path) or {}).get("matchLabels") or {}
            if not _chosen(rendered, chosen):
                yield f"{_label(made)}: its {path} {chosen} selects no pod"


def services_lead_to_ports(rendered: Rendered, _: frozenset[str]) -> Iterator[str]:
    for made in rendered.of_kind("Service"):
        pods = _chosen(rendered, made["spec"].get("selector") or {})
        if not pods:
            yield f"{_label(made)}: its selector selects no pod"
        for port in made["spec"].get("ports", ()):
            target = port.get("targetPort", port.get("port"))
            for pod in pods:
                if target not in _declared(pod):
                    yield f"{_label(made)}: port {target} is declared by no container of {pod}"


def _chosen(rendered: Rendered, selector: dict[str, str]) -> list[Workload]:
    return [one for one in rendered.workloads() if selects(selector, one.labels)]


def _declared(pod: Workload) -> set[object]:
    ports = [port for one in pod.containers for port in one.get("ports", ())]
    return {port.get("containerPort") for port in ports} | {port.get("name") for port in ports}


def ports_are_ports(rendered: Rendered, _: frozenset[str]) -> Iterator[str]:
    for made in rendered.of_kind("Service"):
        for port in made["spec"].get("ports", ()):
            yield from _bad_port(_label(made), port.get("port"))
    for one in rendered.workloads():
        for container in one.containers:
            for port in container.get("ports", ()):
                yield from _bad_port(str(one), port.get("containerPort"))
            for kind in ("startupProbe", "readinessProbe", "livenessProbe"):
                probe = container.get(kind) or {}
                asked = (probe.get("httpGet") or probe.get("tcpSocket") or {}).get("port")
                if asked is not None and asked not in _declared(one):
                    yield f"{one}: {kind} asks port {asked}, which no container declares"


def _bad_port(where: str, port: object) -> Iterator[str]:
    if not isinstance(port, int) or not 1 <= port <= _LAST_PORT:
        yield f"{where}: {port!r} is no port from 1 to {_LAST_PORT}"


def references_exist(rendered: Rendered, there: frozenset[str]) -> Iterator[str]:
    for one in rendered.workloads():
        for kind, name, key in _used(one):
            found = rendered.find(kind, name)
            if found is None and f"{kind}/{name}" not in there:
                yield f"{one}: uses {kind}/{name}, which is not there"
            elif found is not None and key is not None and key not in found.get("data", {}):
                yield f"{one}: {kind}/{name} has no key {key!r}"


def needed(rendered: Rendered) -> set[str]:
    """`Kind/name` of all that the pods use and the rendering does not have."""
    used = {(kind, name) for one in rendered.workloads() for kind, name, _ in _used(one)}
    used |= {("Service", host) for _, _, host in _hosts(rendered)}
    return {f"{kind}/{name}" for kind, name in used if rendered.find(kind, name) is None}


def _used(one: Workload) -> Iterator[tuple[str, str, str | None]]:
    """Kind, name and key (None: the whole) of all that a pod needs to start."""
    for container in one.containers:
        for source in container.get("envFrom", ()):
            yield from _named(source, {"configMapRef": "ConfigMap", "secretRef": "Secret"})
        for variable in container.get("env", ()):
            kinds = {"configMapKeyRef": "ConfigMap", "secretKeyRef": "Secret"}
            yield from _named(variable.get("valueFrom") or {}, kinds)
    for volume in one.pod.get("volumes", ()):
        if "configMap" in volume:
            yield "ConfigMap", volume["configMap"]["name"], None
        if "secret" in volume:
            yield "Secret", volume["secret"]["secretName"], None
        if "persistentVolumeClaim" in volume:
            yield "PersistentVolumeClaim", volume["persistentVolumeClaim"]["claimName"], None


def _named(source: Object, kinds: dict[str, str]) -> Iterator[tuple[str, str, str | None]]:
    for field, kind in kinds.items():
        if field in source:
            yield kind, source[field]["name"], source[field].get("key")


def variables_are_defined(rendered: Rendered, _: frozenset[str]) -> Iterator[str]:
    """`$(NAME)` of an unknown name stays as it is, and the program gets it literally."""
    for one in rendered.workloads():
        for container in one.containers:
            env = rendered.environment(container)
            texts = [*words(container), *env.values()]
            for name in sorted({name for text in texts for name in references(str(text))}):
                if name not in env:
                    yield f"{one}: $({name}) is not defined in container {container.get('name')}"


def hosts_are_services(rendered: Rendered, there: frozenset[str]) -> Iterator[str]:
    """A name suffix that did not reach a host name sends the load somewhere else."""
    for one, variable, host in _hosts(rendered):
        if rendered.find("Service", host) is None and f"Service/{host}" not in there:
            yield f"{one}: {variable} is {host!r}, and there is no Service of this name"


def _hosts(rendered: Rendered) -> Iterator[tuple[Workload, str, str]]:
    """Pod, variable and name of each host of the cluster that a command line uses."""
    for one in rendered.workloads():
        for container in one.pod.get("containers", ()):
            line = " ".join(rendered.command_line(container))
            env = rendered.environment(container)
            for variable in _HOST_VARIABLES:
                host = env.get(variable, "")
                if host and "." not in host and host in line:
                    yield one, variable, host


def run_id_is_in_names(rendered: Rendered, _: frozenset[str]) -> Iterator[str]:
    """A second run over a finished Job is refused by the API: its template is immutable."""
    for one in rendered.workloads("master"):
        for container in one.pod.get("containers", ()):
            run_id = option(rendered.command_line(container), "--run-id")
            if one.kind != "Job":
                continue
            for job in rendered.workloads():
                if job.kind == "Job" and not (run_id and job.name.endswith(f"-{run_id}")):
                    yield f"{job}: its name does not end in the run id {run_id!r}"


CHECKS = (
    names_are_short,
    names_are_used_once,
    selectors_match,
    services_lead_to_ports,
    ports_are_ports,
    references_exist,
    variables_are_defined,
    hosts_are_services,
    run_id_is_in_names,
)
