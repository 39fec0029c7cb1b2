"""Calls `kubectl`, with its failures told as one sentence that has the mend."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CALL_S = 120.0
_SHOWN = 400


class KubectlError(Exception):
    """What `kubectl` could not do, and what mends it."""


class NotFoundError(KubectlError):
    """The object asked for is not there."""


def find() -> str:
    """The program: of the PATH, else of this Python environment. Raises `KubectlError`."""
    beside = str(Path(sys.executable).parent)
    found = shutil.which("kubectl") or shutil.which("kubectl", path=beside)
    if found is None:
        raise KubectlError(
            "kubectl is not on the PATH: install it from https://kubernetes.io/docs/tasks/tools"
        )
    return found


_UNREACHABLE = (
    r"connection to the server .* refused|Unable to connect to the server|dial tcp|i/o timeout|"
    r"no configuration has been provided|couldn't get current server API group list"
)
_MENDS = {
    r"context .* does not exist|no context exists": "`kubectl config get-contexts` lists them",
    r'namespaces? "[^"]+" not found': "make it: kubectl create namespace NAME",
    _UNREACHABLE: "`kubectl config current-context` says which cluster is asked",
    r"\((?:Forbidden|Unauthorized)\)|must be logged in": "the account of this context may not",
    r'Name:\\?"agentload-run\\?".* does not exist': (
        "the overlay has no load in it (a server alone is applied by kubectl apply -k):"
        " take one with Jobs, as k8s/overlays/run-jobs"
    ),
    r"field is immutable": "objects of an earlier run have these names: take a new run id",
}
_NOT_FOUND = re.compile(r"\(NotFound\)")


@dataclass(frozen=True, slots=True)
class Kubectl:
    """`kubectl` with a context and a namespace; None = what its configuration says."""

    context: str | None = None
    namespace: str | None = None

    def command(self, *args: str) -> list[str]:
        """The whole command. Raises `KubectlError` where there is no `kubectl`."""
        where = [] if self.context is None else ["--context", self.context]
        where += [] if self.namespace is None else ["--namespace", self.namespace]
        return [find(), *where, *args]

    def call(self, *args: str, text: str | None = None, timeout_s: float = CALL_S) -> str:
        """Run it; its standard output. Raises `KubectlError`."""
        try:
            done = subprocess.run(
                self.command(*args),
                input=text or "",
                capture_output=True,
                encoding="utf-8",
                errors="replace",
                timeout=timeout_s,
                check=False,
            )
        except OSError as error:
            raise KubectlError(f"kubectl cannot be started: {error.strerror}") from None
        except subprocess.TimeoutExpired:
            raise KubectlError(
                f"kubectl {args[0]} did not answer within {timeout_s:.0f} s"
            ) from None
        if done.returncode:
            raise _error(args[0], done.stderr)
        return done.stdout

    def get(self, *args: str) -> dict[str, Any]:
        """`kubectl get ... -o json`, read."""
        answer = self.call("get", *args, "-o", "json")
        try:
            return dict(json.loads(answer))
        except ValueError:
            raise KubectlError(f"kubectl get {args[0]} answered no JSON") from None

    def is_there(self, kind: str, name: str) -> bool:
        try:
            self.call("get", kind, name, "-o", "name")
        except NotFoundError:
            return False
        return True


def kustomize(folder: Path) -> str:
    """The rendering of a folder; needs no cluster. Raises `KubectlError`."""
    return Kubectl().call("kustomize", str(folder))


def _error(verb: str, stderr: str) -> KubectlError:
    said = " ".join(stderr.split())[-_SHOWN:] or "failed without a word"
    mends = [mend for pattern, mend in _MENDS.items() if re.search(pattern, said, re.IGNORECASE)]
    kind = NotFoundError if _NOT_FOUND.search(said) else KubectlError
    return kind("\n  ".join([f"kubectl {verb}: {said}", *mends[:1]]))
