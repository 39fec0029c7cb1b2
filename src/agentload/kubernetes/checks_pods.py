"""Checks of single pods: what they may do, what they need, what must not be in them."""

from __future__ import annotations

import re
from collections.abc import Iterator

from agentload.kubernetes.objects import Object, Rendered, Workload, words
from agentload.kubernetes.quantity import parse_quantity

SHELLS = ("sh", "bash", "dash", "ash")
START_BUDGET_S = 600
_SECRET_NAME = re.compile(r"(^|[_-])(api[_-]?key|key|token|password|secret)$", re.IGNORECASE)
_SECRET_FLAG = re.compile(r"--[a-z-]*(api-key|token|password|secret)(=|$)")
_SECRET_TEXT = re.compile(r"\b(sk-[A-Za-z0-9_-]{8,}|hf_[A-Za-z0-9]{8,}|Bearer [A-Za-z0-9._-]{8,})")
_SPREAD = ("DoNotSchedule", "ScheduleAnyway")
_SWITCHES = ("enable-chunked-prefill", "enable-prefix-caching")


def pods_are_locked_down(rendered: Rendered, _: frozenset[str]) -> Iterator[str]:
    for one in rendered.workloads():
        pod = one.pod
        if pod.get("enableServiceLinks") is not False:
            yield f"{one}: enableServiceLinks must be false: links set variables Locust reads"
        if pod.get("automountServiceAccountToken") is not False:
            yield f"{one}: automountServiceAccountToken must be false"
        if not (pod.get("securityContext") or {}).get("runAsNonRoot"):
            yield f"{one}: securityContext.runAsNonRoot must be true"
        if one.labels.get("sidecar.istio.io/inject") != "false":
            yield f'{one}: its pods need the label sidecar.istio.io/inject: "false"'
        for container in one.containers:
            yield from _unlocked(one, container)


def _unlocked(one: Workload, container: Object) -> Iterator[str]:
    context = container.get("securityContext") or {}
    wanted = {"readOnlyRootFilesystem": True, "allowPrivilegeEscalation": False}
    for field, value in wanted.items():
        if context.get(field) is not value:
            yield f"{one}: {field} of {container.get('name')} must be {str(value).lower()}"
    if (context.get("capabilities") or {}).get("drop") != ["ALL"]:
        yield f"{one}: {container.get('name')} must drop ALL capabilities"


def no_shell_is_first(rendered: Rendered, _: frozenset[str]) -> Iterator[str]:
    """A shell as first process keeps SIGTERM to itself: the pod dies by SIGKILL after its grace."""
    for one in rendered.workloads():
        for container in one.containers:
            first = container.get("command", [""])[0].rpartition("/")[2]
            if first in SHELLS:
                yield f"{one}: {container.get('name')} starts a shell, which swallows SIGTERM"


def images_are_pinned(rendered: Rendered, _: frozenset[str]) -> Iterator[str]:
    for one in rendered.workloads():
        for container in one.containers:
            image = container.get("image", "")
            tag = image.rpartition("/")[2].partition(":")[2]
            if "@sha256:" not in image and tag in ("", "latest"):
                yield f"{one}: image {image!r} is not pinned to a version"


def jobs_end_once(rendered: Rendered, _: frozenset[str]) -> Iterator[str]:
    for one in rendered.workloads():
        if one.kind != "Job":
            continue
        if one.pod.get("restartPolicy") != "Never":
            yield f"{one}: restartPolicy must be Never: a restarted run overwrites its files"
        if one.spec.get("backoffLimit") != 0:
            yield f"{one}: backoffLimit must be 0"
        for field in ("activeDeadlineSeconds", "ttlSecondsAfterFinished"):
            if not one.spec.get(field):
                yield f"{one}: {field} must be given"


def quantities_are_quantities(rendered: Rendered, _: frozenset[str]) -> Iterator[str]:
    for where, quantity in _quantities(rendered):
        try:
            parse_quantity(quantity)
        except ValueError as error:
            yield f"{where}: {error}"


def _quantities(rendered: Rendered) -> Iterator[tuple[str, str]]:
    for one in rendered.workloads():
        for container in one.containers:
            for which in ("requests", "limits"):
                for value in ((container.get("resources") or {}).get(which) or {}).values():
                    yield str(one), str(value)
        for volume in one.pod.get("volumes", ()):
            if limit := (volume.get("emptyDir") or {}).get("sizeLimit"):
                yield str(one), str(limit)
    for claim in rendered.of_kind("PersistentVolumeClaim"):
        requests = (claim["spec"].get("resources") or {}).get("requests") or {}
        for value in requests.values():
            yield f"PersistentVolumeClaim/{claim['metadata']['name']}", str(value)


def resources_are_asked_for(rendered: Rendered, _: frozenset[str]) -> Iterator[str]:
    """Requests for CPU and memory, a memory limit, and no CPU quota, which stops a process."""
    for one in rendered.workloads():
        for container in one.containers:
            resources = container.get("resources") or {}
            for field in ("cpu", "memory"):
                if field not in (resources.get("requests") or {}):
                    yield f"{one}: {container.get('name')} requests no {field}"
            limits = resources.get("limits") or {}
            if "memory" not in limits:
                yield f"{one}: {container.get('name')} has no memory limit"
            if "cpu" in limits:
                yield f"{one}: {container.get('name')} has a CPU limit: its quota delays stamps"


def volumes_fit(rendered: Rendered, _: frozenset[str]) -> Iterator[str]:
    for one in rendered.workloads():
        volumes = {volume.get("name") for volume in one.pod.get("volumes", ())}
        for container in one.containers:
            for mount in container.get("volumeMounts", ()):
                if mount.get("name") not in volumes:
                    yield f"{one}: mounts {mount.get('name')!r}, which is no volume of the pod"


def spread_is_known(rendered: Rendered, _: frozenset[str]) -> Iterator[str]:
    for one in rendered.workloads():
        for rule in one.pod.get("topologySpreadConstraints", ()):
            if rule.get("whenUnsatisfiable") not in _SPREAD:
                wrong = rule.get("whenUnsatisfiable")
                yield f"{one}: whenUnsatisfiable {wrong!r} is none of {', '.join(_SPREAD)}"


def servers_say_their_switches(rendered: Rendered, _: frozenset[str]) -> Iterator[str]:
    """A default that changes with the version would be measured under the wrong name."""
    for one in rendered.workloads("server"):
        line = [word for container in one.containers for word in words(container)]
        for switch in _SWITCHES:
            given = [word for word in line if word in (f"--{switch}", f"--no-{switch}")]
            if len(given) != 1:
                yield f"{one}: needs --{switch} or --no-{switch} once, has {given or 'neither'}"


def servers_have_time_to_start(rendered: Rendered, _: frozenset[str]) -> Iterator[str]:
    for one in rendered.workloads("server"):
        for container in one.pod.get("containers", ()):
            probe = container.get("startupProbe") or {}
            budget_s = probe.get("periodSeconds", 10) * probe.get("failureThreshold", 3)
            if not probe or budget_s < START_BUDGET_S:
                yield f"{one}: its startupProbe must allow {START_BUDGET_S} s for the model"
            ready = container.get("readinessProbe") or {}
            if "/v1/models" not in str(ready):
                yield f"{one}: its readinessProbe must ask /v1/models"


def only_dead_pods_are_killed(rendered: Rendered, _: frozenset[str]) -> Iterator[str]:
    for one in rendered.workloads():
        for container in one.containers:
            if "livenessProbe" in container:
                yield f"{one}: a livenessProbe takes a pod that is late for dead, and ends the run"


def gpu_servers_have_what_they_need(rendered: Rendered, _: frozenset[str]) -> Iterator[str]:
    for one in rendered.workloads("server"):
        container = one.pod["containers"][0]
        if words(container)[:1] != ["vllm"]:
            continue
        limits = (container.get("resources") or {}).get("limits") or {}
        if "nvidia.com/gpu" not in limits:
            yield f"{one}: nvidia.com/gpu must be in the limits: a request alone is refused"
        mounted = {m.get("name") for m in _mounts(container) if m.get("mountPath") == "/dev/shm"}
        volumes = [v for v in one.pod.get("volumes", ()) if v.get("name") in mounted]
        if [(v.get("emptyDir") or {}).get("medium") for v in volumes] != ["Memory"]:
            yield f"{one}: needs an emptyDir of medium Memory at /dev/shm"


def _mounts(container: Object) -> list[Object]:
    return list(container.get("volumeMounts", ()))


def no_secret_is_written_down(rendered: Rendered, _: frozenset[str]) -> Iterator[str]:
    """A key belongs into a Secret, and from there into the environment; the text is not shown."""
    for one in rendered.workloads():
        for container in one.containers:
            name = container.get("name")
            for variable in container.get("env", ()):
                if _SECRET_NAME.search(variable["name"]) and "value" in variable:
                    yield f"{one}: {variable['name']} of {name} has its value written down"
            for word in words(container):
                if _SECRET_FLAG.search(word) or _SECRET_TEXT.search(word):
                    yield f"{one}: the command line of {name} carries a secret"
    for made in rendered.of_kind("ConfigMap"):
        for key, text in (made.get("data") or {}).items():
            if _SECRET_NAME.search(key) or _SECRET_TEXT.search(str(text)):
                yield f"ConfigMap/{made['metadata']['name']}: {key} holds a secret"


CHECKS = (
    pods_are_locked_down,
    no_shell_is_first,
    images_are_pinned,
    jobs_end_once,
    quantities_are_quantities,
    resources_are_asked_for,
    volumes_fit,
    spread_is_known,
    servers_say_their_switches,
    servers_have_time_to_start,
    only_dead_pods_are_killed,
    gpu_servers_have_what_they_need,
    no_secret_is_written_down,
)
