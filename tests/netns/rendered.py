"""What `kubectl kustomize` says, as pods: their containers, environment, volumes and names."""

from __future__ import annotations

import base64
import re
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from agentload.kubernetes import kubectl

NAMESPACE = "default"
_VARIABLE = re.compile(r"\$\$|\$\(([A-Za-z_][A-Za-z0-9_.-]*)\)")


def render(overlay: Path) -> str:
    done = subprocess.run(
        [kubectl.find(), "kustomize", str(overlay)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def expanded(text: str, env: Mapping[str, str]) -> str:
    """`$(NAME)` as the kubelet replaces it: an unknown name stays, `$$` is one dollar sign."""

    def value(match: re.Match[str]) -> str:
        if match[0] == "$$":
            return "$"
        return env.get(match[1], match[0])

    return _VARIABLE.sub(value, text)


@dataclass(frozen=True)
class Container:
    """One container with its environment resolved."""

    name: str
    image: str
    command: list[str]
    env: dict[str, str]
    mounts: list[dict[str, Any]]
    read_only: bool


@dataclass
class PodPlan:
    """One pod of a Job or a Deployment."""

    name: str
    labels: dict[str, str]
    init: list[Container]
    main: Container
    volumes: dict[str, dict[str, Any]]  # by name
    user: int
    group: int
    fs_group: int | None


@dataclass
class Objects:
    """All rendered objects. Names are unique for each kind: there is one namespace."""

    found: list[dict[str, Any]]
    pods: list[PodPlan] = field(default_factory=list)

    @classmethod
    def of(cls, text: str) -> Objects:
        made = cls([one for one in yaml.safe_load_all(text) if one])
        made.pods = list(made._pods())
        return made

    def kind(self, kind: str) -> list[dict[str, Any]]:
        return [one for one in self.found if one["kind"] == kind]

    def named(self, kind: str, name: str) -> dict[str, Any]:
        (one,) = [one for one in self.kind(kind) if one["metadata"]["name"] == name]
        return one

    def data(self, kind: str, name: str) -> dict[str, str]:
        """The texts of a ConfigMap or a Secret."""
        one = self.named(kind, name)
        data = one.get("data", {})
        if kind == "Secret":
            data = {key: base64.b64decode(value).decode() for key, value in data.items()}
        return {**data, **one.get("stringData", {})}

    def pods_of(self, service: Mapping[str, Any]) -> list[PodPlan]:
        selector = service["spec"]["selector"].items()
        return [pod for pod in self.pods if selector <= pod.labels.items()]

    # -- pods -------------------------------------------------------------------------------

    def _pods(self) -> Iterator[PodPlan]:
        for one in self.found:
            spec = one.get("spec", {})
            if one["kind"] not in ("Job", "Deployment"):
                continue
            count = spec["parallelism"] if one["kind"] == "Job" else spec["replicas"]
            for number in range(count):
                yield self._pod(f"{one['metadata']['name']}-{number}", spec["template"])

    def _pod(self, name: str, template: Mapping[str, Any]) -> PodPlan:
        spec = template["spec"]
        security = spec["securityContext"]
        (main,) = spec["containers"]
        return PodPlan(
            name=name,
            labels=template["metadata"]["labels"],
            init=[self._container(name, one) for one in spec.get("initContainers", [])],
            main=self._container(name, main),
            volumes={volume["name"]: volume for volume in spec.get("volumes", [])},
            user=security["runAsUser"],
            group=security["runAsGroup"],
            fs_group=security.get("fsGroup"),
        )

    def _container(self, pod: str, one: Mapping[str, Any]) -> Container:
        env = self._environment(pod, one)
        command = [*one["command"], *one.get("args", [])]
        return Container(
            name=one["name"],
            image=one["image"],
            command=[expanded(part, env) for part in command],
            env=env,
            mounts=one.get("volumeMounts", []),
            read_only=one["securityContext"]["readOnlyRootFilesystem"],
        )

    def _environment(self, pod: str, one: Mapping[str, Any]) -> dict[str, str]:
        env = {"HOSTNAME": pod}
        for source in one.get("envFrom", []):
            for kind, key in (("ConfigMap", "configMapRef"), ("Secret", "secretRef")):
                if key in source:
                    env |= self.data(kind, source[key]["name"])
        for entry in one.get("env", []):
            value = self._value(pod, entry)
            if value is not None:
                env[entry["name"]] = expanded(value, env)
        return env

    def _value(self, pod: str, entry: Mapping[str, Any]) -> str | None:
        source = entry.get("valueFrom")
        if source is None:
            return str(entry.get("value", ""))
        for kind, key in (("ConfigMap", "configMapKeyRef"), ("Secret", "secretKeyRef")):
            if key in source:
                wanted = source[key]
                if wanted.get("optional") and not self._has(kind, wanted["name"]):
                    return None
                return self.data(kind, wanted["name"])[wanted["key"]]
        assert source["fieldRef"]["fieldPath"] == "metadata.name", source
        return pod

    def _has(self, kind: str, name: str) -> bool:
        return any(one["metadata"]["name"] == name for one in self.kind(kind))
