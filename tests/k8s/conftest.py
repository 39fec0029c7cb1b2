"""The project's overlays as the real `kubectl` renders them."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from agentload.kubernetes import kubectl
from agentload.kubernetes.objects import Rendered

ROOT = Path(__file__).parents[2]
K8S = ROOT / "k8s"

Render = Callable[[Path], str]


@cache
def render_folder(folder: Path) -> str:
    done = subprocess.run(
        [kubectl.find(), "kustomize", str(folder)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{folder}: {done.stderr}"
    return done.stdout


def overlay_folders() -> list[Path]:
    found = sorted((K8S / "overlays").rglob("kustomization.yaml"))
    assert found
    return [path.parent for path in found]


@pytest.fixture(scope="session")
def ci() -> Rendered:
    return Rendered.from_yaml(render_folder(K8S / "overlays" / "ci"))


@pytest.fixture(scope="session")
def variant() -> Rendered:
    return Rendered.from_yaml(render_folder(K8S / "overlays/variants/chunked-on-cache-on"))
