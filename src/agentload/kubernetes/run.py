"""The steps of a run on a cluster, each one a few calls of `kubectl`."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from agentload.clock import NS_PER_S, MonotonicClock
from agentload.kubernetes.checks import faults
from agentload.kubernetes.checks_wiring import needed
from agentload.kubernetes.kubectl import Kubectl, KubectlError
from agentload.kubernetes.objects import COMPONENT, INSTANCE, NAME, PROJECT, Rendered
from agentload.kubernetes.troubles import Trouble, troubles

POLL_S = 2.0
NAME_LABEL = f"{NAME}={PROJECT}"
KINDS = "jobs,deployments,services,configmaps,secrets,poddisruptionbudgets,networkpolicies"
RESULTS = "/results"
SPOOL = "/spool"
_FOLDERS = {"master": RESULTS, "worker": SPOOL}
_MAKE = {
    "Secret/agentload-api-key": "kubectl create secret generic agentload-api-key "
    "--from-file=api-key=FILE",
    "Secret/agentload-web-login": "kubectl create secret generic agentload-web-login "
    "--from-file=user=FILE --from-file=password=FILE",
    "PersistentVolumeClaim/agentload-models": "kubectl apply -k k8s/claims, then fill it",
    "PersistentVolumeClaim/agentload-results": "kubectl apply -k k8s/claims",
}


class RunError(Exception):
    """A step that did not come to its end; the text says which one and why."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """One run in one namespace. `say` shows the user a line."""

    kubectl: Kubectl
    run_id: str
    say: Callable[[str], None]

    @property
    def label(self) -> str:
        return f"{NAME_LABEL},{INSTANCE}={self.run_id}"

    # -- before -----------------------------------------------------------------------------

    def check(self, rendered: Rendered) -> None:
        """The rendering is right, and what it needs is there; raises `RunError` with all faults."""
        if self.kubectl.namespace is not None and not self.kubectl.is_there(
            "namespace", self.kubectl.namespace
        ):
            name = self.kubectl.namespace
            raise RunError(f"there is no namespace {name!r}: kubectl create namespace {name}")
        missing = needed(rendered)
        there = frozenset(one for one in missing if self.kubectl.is_there(*one.split("/")))
        found = faults(rendered, there)
        found += [f"to make {one}: {_MAKE[one]}" for one in sorted(missing - there) if one in _MAKE]
        if found:
            raise RunError("the run is not started:\n  " + "\n  ".join(found))

    def apply(self, text: str) -> None:
        """Make all objects; standard output of kubectl names them, never their content."""
        for line in self.kubectl.call("apply", "-f", "-", text=text).splitlines():
            self.say(line)

    # -- while it runs ----------------------------------------------------------------------

    def wait_servers(self, rendered: Rendered, limit_s: float) -> None:
        """Until every Deployment of the run has all of its replicas ready."""
        names = [one.name for one in rendered.workloads() if one.kind == "Deployment"]

        def ready() -> bool:
            return all(map(self._is_ready, names))

        self._poll("the server to be ready", limit_s, ready, ("server", "router"))

    def _is_ready(self, name: str) -> bool:
        made = self.kubectl.get("deployment", name)
        wished = made["spec"].get("replicas", 1)
        return bool(made.get("status", {}).get("readyReplicas", 0) >= wished)

    def wait_done(self, limit_s: float) -> dict[str, Any]:
        """Until the master's `done.json` is there; its content."""
        found: dict[str, Any] = {}

        def is_done() -> bool:
            pod = self.master_pod()
            if pod is not None:
                found.update(self._done(pod) or {})
            return bool(found)

        self._poll("the run to end", limit_s, is_done, ("master",))
        return found

    def _done(self, pod: dict[str, Any]) -> dict[str, Any] | None:
        """The done file of a pod that runs; None while there is none."""
        phase = pod.get("status", {}).get("phase")
        if phase == "Succeeded":
            raise RunError(
                "the master's pod has ended before it was collected: its own disk cannot be read "
                "any more, the claim agentload-results can"
            )
        if phase != "Running":
            return None
        try:
            text = self.in_master(pod, "cat", f"{RESULTS}/done.json")
        except KubectlError:
            return None  # not written yet, or the container does not run yet
        try:
            return dict(json.loads(text))
        except ValueError:
            raise RunError(f"{RESULTS}/done.json of {pod['metadata']['name']} is no JSON") from None

    def master_pod(self) -> dict[str, Any] | None:
        """The pod that has the run, if there is one."""
        return next(iter(self.master_pods()), None)

    def master_pods(self) -> list[dict[str, Any]]:
        """Those that run, then the others; the oldest first.

        A Job replaces a master that is deleted: beside the one that closes its run stands another
        that gets no workers.
        """
        pods = self.kubectl.get("pods", "-l", f"{self.label},{COMPONENT}=master")["items"]
        return sorted(map(dict, pods), key=_running_then_oldest)

    def in_master(self, pod: dict[str, Any], *command: str) -> str:
        name = pod["metadata"]["name"]
        return self.kubectl.call("exec", name, "-c", "master", "--", *command)

    def wait_workers(self, limit_s: float) -> list[str]:
        """Until every worker that still runs has its `done.json`; the names of those pods."""
        found: list[str] = []

        def are_done() -> bool:
            pods = self.kubectl.get("pods", "-l", f"{self.label},{COMPONENT}=worker")["items"]
            running = [p for p in pods if p.get("status", {}).get("phase") == "Running"]
            found[:] = [p["metadata"]["name"] for p in running]
            return all(map(self._worker_is_done, found))

        self._poll("the workers to end", limit_s, are_done, ())
        return found

    def _worker_is_done(self, pod: str) -> bool:
        try:
            self.in_worker(pod, "cat", f"{SPOOL}/done.json")
        except KubectlError:
            return False
        return True

    def in_worker(self, pod: str, *command: str) -> str:
        return self.kubectl.call("exec", pod, "-c", "worker", "--", *command)

    def wait_jobs(self, limit_s: float) -> None:
        """Until every Job of the run has ended, well or not; only after the collection."""

        def ended() -> bool:
            if all(map(_has_ended, self.kubectl.get("jobs", "-l", self.label)["items"])):
                return True
            self.give_up("master")  # a replacement, which has nothing, would wait to be collected
            return False

        self._poll("the Jobs to end", limit_s, ended, ())

    def _poll(
        self, what: str, limit_s: float, is_so: Callable[[], bool], waited_for: tuple[str, ...]
    ) -> None:
        """Look until it is so, saying what is wrong with pods; raises `RunError`.

        A hopeless pod ends the wait when it is of a component that is waited for: a worker that
        died makes the run invalid, which is for the master to say.
        """
        clock = MonotonicClock()
        end_ns = clock.now_ns() + round(limit_s * NS_PER_S)
        told: set[str] = set()
        while not is_so():
            wrong = troubles(self.kubectl.get("pods", "-l", self.label)) if waited_for else []
            for one in wrong:
                if str(one) not in told:
                    self.say(str(one))
                told.add(str(one))
            hopeless = [one for one in wrong if one.hopeless and one.component in waited_for]
            if hopeless and not is_so():
                raise RunError(f"waiting for {what} is of no use:\n  {self._last_words(hopeless)}")
            if clock.now_ns() >= end_ns:
                reasons = "\n  ".join(map(str, wrong)) or "no pod says why"
                raise RunError(f"waited {limit_s:.0f} s for {what}:\n  {reasons}")
            time.sleep(POLL_S)

    def _last_words(self, wrong: list[Trouble]) -> str:
        """The reasons, and the end of the log of the first pod that ended."""
        lines = list(map(str, wrong))
        try:
            log = self.kubectl.call("logs", wrong[0].pod, "--all-containers", "--tail=5")
        except KubectlError:
            log = ""
        return "\n  ".join([*lines, *(f"| {line}" for line in log.splitlines())])

    # -- after ------------------------------------------------------------------------------

    def give_up(self, *components: str) -> None:
        """Tell pods of `master` or `worker` that nobody will collect from them any more."""
        for component in components:
            pods = self.kubectl.get("pods", "-l", f"{self.label},{COMPONENT}={component}")["items"]
            for pod in (p for p in pods if p.get("status", {}).get("phase") == "Running"):
                name, mark = pod["metadata"]["name"], f"{_FOLDERS[component]}/collected"
                with contextlib.suppress(KubectlError):  # it has ended, or does not run yet
                    self.kubectl.call("exec", name, "-c", component, "--", "touch", mark)

    def delete(self) -> None:
        """All objects of the run; claims and what was made by hand stay."""
        said = self.kubectl.call("delete", KINDS, "-l", self.label, "--ignore-not-found")
        for line in said.splitlines():
            self.say(line)


def _running_then_oldest(pod: dict[str, Any]) -> tuple[bool, str]:
    runs = pod.get("status", {}).get("phase") == "Running"
    return not runs, pod["metadata"].get("creationTimestamp") or ""


def _has_ended(job: dict[str, Any]) -> bool:
    conditions = job.get("status", {}).get("conditions") or ()
    return any(
        c.get("type") in ("Complete", "Failed") and c["status"] == "True" for c in conditions
    )
