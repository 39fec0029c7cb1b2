"""Servers on a cluster, made and deleted by `kubectl`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from agentload.experiment.errors import ExperimentError
from agentload.experiment.overlay import Overlay, OverlayError, read_overlay
from agentload.experiment.plan import KubernetesTarget
from agentload.kubernetes.kubectl import CALL_S, Kubectl, KubectlError, kustomize

DELETE_S = 600.0


@dataclass(frozen=True, slots=True)
class Cluster:
    """One namespace of one cluster. Every call raises ExperimentError with kubectl's own words."""

    kubectl: Kubectl

    @classmethod
    def of(cls, target: KubernetesTarget) -> Cluster:
        return cls(Kubectl(target.context, target.namespace))

    def apply(self, folder: Path) -> None:
        self._run("apply", "-k", str(folder))

    def delete_workload(self, overlay: Overlay) -> None:
        """Delete a server that is there already: its cache may be warm."""
        wait = ("--ignore-not-found", "--wait=true", f"--timeout={DELETE_S:.0f}s")
        self._run("delete", overlay.workload, *wait, timeout_s=DELETE_S + CALL_S)

    def delete(self, overlay: Overlay) -> None:
        """Delete what the overlay made, less what other things may need (`KEPT`)."""
        wait = ("--ignore-not-found", "--wait=true", f"--timeout={DELETE_S:.0f}s")
        self._run("delete", "-f", "-", *wait, text=overlay.removable, timeout_s=DELETE_S + CALL_S)

    def wait_rolled_out(self, overlay: Overlay, timeout_s: float) -> None:
        """Until the workload's pods are ready by their own probes."""
        limit = f"--timeout={timeout_s:.0f}s"
        self._run("rollout", "status", overlay.workload, limit, timeout_s=timeout_s + CALL_S)

    def logs(self, overlay: Overlay) -> str:
        """The log of one of its pods from the start on; empty when it cannot be had."""
        try:
            return self._run("logs", overlay.workload, "--tail=-1")
        except ExperimentError:
            return ""

    def events(self) -> str:
        """The namespace's last events, for the message about a server that does not start."""
        try:
            text = self._run("get", "events", "--sort-by=.lastTimestamp")
        except ExperimentError as error:
            return str(error)
        return "\n".join(text.splitlines()[-12:])

    def forward_command(self, overlay: Overlay, port: int) -> list[str]:
        """The words of `kubectl port-forward` from a local port to the overlay's Service."""
        to = f"service/{overlay.service}"
        ports = f"{port}:{overlay.port}"
        return self.kubectl.command("port-forward", "--address=127.0.0.1", to, ports)

    def _run(self, *words: str, text: str | None = None, timeout_s: float = CALL_S) -> str:
        try:
            return self.kubectl.call(*words, text=text, timeout_s=timeout_s)
        except KubectlError as error:
            raise ExperimentError(str(error)) from None


def render(folder: Path) -> Overlay:
    """The overlay as `kubectl kustomize` makes it; ExperimentError says what is wrong with it."""
    try:
        return read_overlay(kustomize(folder))
    except (KubectlError, OverlayError) as error:
        raise ExperimentError(f"{folder}: {error}") from None
