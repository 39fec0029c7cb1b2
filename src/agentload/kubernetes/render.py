"""A run's own rendering: an overlay with the run id in its names."""

from __future__ import annotations

import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from agentload.kubernetes.objects import COMPONENT, INSTANCE, NAME, PROJECT

MAX_RUN_ID = 26  # so that the longest name of an overlay with it has at most 63 characters
_RUN_ID = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_MASTER_ENV = "/spec/template/spec/containers/0/env"
_INIT_ENV = "/spec/template/spec/initContainers/0/env"
_URL_INDEX, _METRICS_INDEX = 2, 3  # of the master's variables; the patch tests the names


class WishError(ValueError):
    """What was wished cannot be rendered; one line for each fault."""


@dataclass(frozen=True, slots=True)
class Wishes:
    """What a run has otherwise than its overlay; None = as the overlay has it."""

    run_id: str
    overlay: Path
    components: tuple[Path, ...] = ()
    scenario: Path | None = None
    arm: str | None = None
    workers: int | None = None
    base_url: str | None = None
    metrics_url: str | None = None
    image: str | None = None

    def faults(self) -> list[str]:
        """What is wrong with them, all at once."""
        found = []
        if len(self.run_id) > MAX_RUN_ID or not _RUN_ID.fullmatch(self.run_id):
            found.append(
                f"--run-id {self.run_id!r}: it becomes part of names: at most {MAX_RUN_ID} "
                "lower-case letters, digits and '-' inside are allowed"
            )
        for folder in (self.overlay, *self.components):
            if not (folder / "kustomization.yaml").is_file():
                found.append(f"{folder}: there is no kustomization.yaml in it")
        if self.scenario is not None and not self.scenario.is_file():
            found.append(f"--scenario {self.scenario}: no such file")
        if self.workers is not None and self.workers < 1:
            found.append(f"--workers {self.workers}: at least 1")
        return found


def write(wishes: Wishes, folder: Path) -> None:
    """Put a kustomization into an empty folder that renders to the run. Raises `WishError`."""
    if faults := wishes.faults():
        raise WishError("\n".join(faults))
    if wishes.scenario is not None:
        shutil.copyfile(wishes.scenario, folder / "scenario.yaml")
    text = yaml.safe_dump(kustomization(wishes, folder), sort_keys=False)
    (folder / "kustomization.yaml").write_text(text, encoding="utf-8")


def kustomization(wishes: Wishes, folder: Path) -> dict[str, Any]:
    """Its content; paths are relative to `folder`, as kustomize demands."""
    literals = {"RUN_ID": wishes.run_id, "ARM": wishes.arm}
    if wishes.workers is not None:
        literals["WORKERS"] = str(wishes.workers)
    if wishes.scenario is not None:
        literals["SCENARIO"] = "/own-scenario/scenario.yaml"
    made: dict[str, Any] = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "nameSuffix": f"-{wishes.run_id}",
        "labels": [
            {
                "pairs": {INSTANCE: wishes.run_id},
                "includeSelectors": True,
                "includeTemplates": True,
            },
            {"pairs": {NAME: PROJECT}},  # of what an overlay generates: else it would stay behind
        ],
        "resources": [_relative(wishes.overlay, folder)],
        "components": [_relative(component, folder) for component in wishes.components],
        "configMapGenerator": [
            {
                "name": "agentload-run",
                "behavior": "merge",
                "literals": [f"{k}={v}" for k, v in literals.items() if v is not None],
            }
        ],
        "patches": [*_worker_patches(wishes), *_target_patches(wishes)],
    }
    if wishes.scenario is not None:
        made["configMapGenerator"].append(
            {"name": "agentload-own-scenario", "files": ["scenario.yaml"]}
        )
        made["patches"].append(_scenario_patch())
    if wishes.image is not None:
        made["images"] = [_image(wishes.image)]
    return made


def _relative(path: Path, folder: Path) -> str:
    return os.path.relpath(path.resolve(), folder.resolve())


def _patch(component: str, operations: list[dict[str, Any]]) -> dict[str, Any]:
    target = {"kind": "Job", "labelSelector": f"{COMPONENT}={component}"}
    return {"target": target, "patch": yaml.safe_dump(operations, sort_keys=False)}


def _replace(path: str, value: object) -> dict[str, Any]:
    return {"op": "replace", "path": path, "value": value}


def _worker_patches(wishes: Wishes) -> list[dict[str, Any]]:
    if wishes.workers is None:
        return []
    fields = ("parallelism", "completions")
    return [_patch("worker", [_replace(f"/spec/{field}", wishes.workers) for field in fields])]


def _target_patches(wishes: Wishes) -> list[dict[str, Any]]:
    """Another target; without pages of its own the ones at the root of its address are read."""
    if wishes.base_url is None and wishes.metrics_url is None:
        return []
    values = {}
    if wishes.base_url is not None:
        values[_URL_INDEX] = ("OPENAI_BASE_URL", wishes.base_url)
    values[_METRICS_INDEX] = ("METRICS_URL", wishes.metrics_url or "")
    operations: list[dict[str, Any]] = []
    for env in (_MASTER_ENV, _INIT_ENV):
        for index, (name, value) in values.items():
            operations.append({"op": "test", "path": f"{env}/{index}/name", "value": name})
            operations.append(_replace(f"{env}/{index}/value", value))
    return [_patch("master", operations)]


def _scenario_patch() -> dict[str, Any]:
    """Beside what the overlay may have mounted."""
    pod = "/spec/template/spec"
    volume = {"name": "own-scenario", "configMap": {"name": "agentload-own-scenario"}}
    mount = {"name": "own-scenario", "mountPath": "/own-scenario", "readOnly": True}
    return _patch(
        "master",
        [
            {"op": "add", "path": f"{pod}/volumes/-", "value": volume},
            {"op": "add", "path": f"{pod}/containers/0/volumeMounts/-", "value": mount},
        ],
    )


def _image(reference: str) -> dict[str, str]:
    """`registry/name:tag` or `...@sha256:...` as an entry of `images`."""
    name, at, digest = reference.partition("@")
    if at:
        return {"name": "agentload", "newName": name, "digest": digest}
    head, _, last = name.rpartition("/")
    last, _, tag = last.partition(":")
    new_name = f"{head}/{last}" if head else last
    return {"name": "agentload", "newName": new_name, "newTag": tag}
