"""Servers on a cluster, made and deleted by `kubectl`."""

from __future__ import annotations

import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from agentload.experiment.errors import ExperimentError
from agentload.experiment.overlay import Overlay, OverlayError, read_overlay
from agentload.experiment.plan import KubernetesTarget

KUBECTL = "kubectl"
SHORT_S = 120.0
DELETE_S = 600.0


@dataclass(frozen=True, slots=True)
class Cluster:
    """One namespace of one cluster. Every call raises ExperimentError with kubectl's own words."""

    namespace: str
    context: str | None

    @classmethod
    def of(cls, target: KubernetesTarget) -> Cluster:
        return cls(target.namespace, target.context)

    def apply(self, folder: Path) -> None:
        self._run("apply", "-k", str(folder))

    def delete_workload(self, overlay: Overlay) -> None:
        """Delete a server that is there already: its cache may be warm."""
        wait = ("--ignore-not-found", "--wait=true", f"--timeout={DELETE_S:.0f}s")
        self._run("delete", overlay.workload, *wait, timeout_s=DELETE_S + SHORT_S)

    def delete(self, overlay: Overlay) -> None:
        """Delete what the overlay made, less what other things may need (`KEPT`)."""
        wait = ("--ignore-not-found", "--wait=true", f"--timeout={DELETE_S:.0f}s")
        self._run("delete", "-f", "-", *wait, text=overlay.removable, timeout_s=DELETE_S + SHORT_S)

    def wait_rolled_out(self, overlay: Overlay, timeout_s: float) -> None:
        """Until the workload's pods are ready by their own probes."""
        limit = f"--timeout={timeout_s:.0f}s"
        self._run("rollout", "status", overlay.workload, limit, timeout_s=timeout_s + SHORT_S)

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
        return [*self._words(), "port-forward", "--address=127.0.0.1", to, f"{port}:{overlay.port}"]

    def _words(self) -> list[str]:
        context = [] if self.context is None else [f"--context={self.context}"]
        return [kubectl(), *context, f"--namespace={self.namespace}"]

    def _run(self, *words: str, text: str | None = None, timeout_s: float = SHORT_S) -> str:
        return _output([*self._words(), *words], text, timeout_s)


def kubectl() -> str:
    """The command: of the PATH, else of this Python environment; ExperimentError without one."""
    beside = Path(sys.executable).parent
    found = shutil.which(KUBECTL) or shutil.which(KUBECTL, path=str(beside))
    if found is None:
        raise ExperimentError("kubectl is not on the PATH, and target kind 'kubernetes' needs it")
    return found


def render(folder: Path) -> Overlay:
    """The overlay as `kubectl kustomize` makes it; ExperimentError says what is wrong with it."""
    try:
        return read_overlay(_output([kubectl(), "kustomize", str(folder)], None, SHORT_S))
    except OverlayError as error:
        raise ExperimentError(f"{folder}: {error}") from None


def _output(words: list[str], text: str | None, timeout_s: float) -> str:
    shown = " ".join(words)
    try:
        done = subprocess.run(
            words,
            input=text or "",
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise ExperimentError(f"{shown}: no answer within {timeout_s:.0f} s") from None
    except OSError as error:
        raise ExperimentError(f"{shown}: {error.strerror}") from None
    if done.returncode:
        last = "\n".join(done.stderr.strip().splitlines()[-8:])
        raise ExperimentError(f"{shown} ended with code {done.returncode}: {last}")
    return done.stdout
