"""Why pods do not run, from what `kubectl get pods -o json` says."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from agentload.kubernetes.objects import COMPONENT

# Waiting for these ends by itself only when somebody mends something.
STUCK = {
    "ImagePullBackOff": "the image cannot be pulled",
    "ErrImageNeverPull": "the image is not on the node",
    "InvalidImageName": "the image's name cannot be read",
    "CreateContainerConfigError": "something it refers to is not there",
    "CreateContainerError": "the container cannot be made",
    "RunContainerError": "the container cannot be started",
    "CrashLoopBackOff": "it ends again and again",
}
OOM = "OOMKilled"
_SHOWN = 240


@dataclass(frozen=True, slots=True)
class Trouble:
    """What is wrong with one pod; `hopeless` = waiting does not help."""

    pod: str
    component: str
    reason: str
    detail: str
    hopeless: bool

    def __str__(self) -> str:
        return f"pod {self.pod}: {self.reason}: {self.detail}"


def troubles(pods: Mapping[str, Any]) -> list[Trouble]:
    """All that is wrong with a list of pods, in its order."""
    return [one for pod in pods.get("items", ()) for one in _of_pod(pod)]


def _of_pod(pod: Mapping[str, Any]) -> Iterator[Trouble]:
    metadata = pod["metadata"]
    name, component = metadata["name"], (metadata.get("labels") or {}).get(COMPONENT, "")

    def trouble(reason: str, detail: str, hopeless: bool) -> Trouble:
        return Trouble(name, component, reason, detail.strip()[:_SHOWN], hopeless)

    status = pod.get("status") or {}
    for condition in status.get("conditions") or ():
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            detail = condition.get("message") or "no node takes it"
            yield trouble(condition.get("reason") or "Pending", detail, False)
        if condition.get("type") == "DisruptionTarget" and condition.get("status") == "True":
            detail = condition.get("message") or condition.get("reason") or ""
            # While it runs it closes its run and can be collected.
            yield trouble("Disrupted", detail, status.get("phase") != "Running")
    if status.get("phase") == "Failed" and status.get("reason"):
        yield trouble(status["reason"], status.get("message") or "", True)
    for field in ("initContainerStatuses", "containerStatuses"):
        for container in status.get(field) or ():
            for reason, detail in _of_container(pod, container):
                yield trouble(reason, detail, True)


def _of_container(pod: Mapping[str, Any], status: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Reason and detail of what keeps a container from running."""
    name = status.get("name", "")
    state = status.get("state") or {}
    waiting = state.get("waiting") or {}
    ended = state.get("terminated") or {}
    before = (status.get("lastState") or {}).get("terminated") or {}
    if OOM in (ended.get("reason"), before.get("reason")):
        yield OOM, f"container {name} used more than its memory limit {_memory_limit(pod, name)}"
    elif ended and ended.get("exitCode"):
        detail = f"container {name} ended with exit code {ended['exitCode']}"
        yield ended.get("reason") or "Error", detail
    if (reason := waiting.get("reason")) in STUCK:
        yield reason, f"container {name}: {STUCK[reason]}: {waiting.get('message') or ''}"


def _memory_limit(pod: Mapping[str, Any], container: str) -> str:
    spec = pod.get("spec") or {}
    for one in (*spec.get("initContainers", ()), *spec.get("containers", ())):
        if one.get("name") == container:
            limits = (one.get("resources") or {}).get("limits") or {}
            return str(limits.get("memory", "of its node"))
    return "of its node"
