"""Rendered Kubernetes objects, as the checks and the runner look at them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import yaml

Object = dict[str, Any]
NAME = "app.kubernetes.io/name"
PROJECT = "agentload"
COMPONENT = "app.kubernetes.io/component"
INSTANCE = "app.kubernetes.io/instance"
_REFERENCE = re.compile(r"\$\(([A-Za-z_][A-Za-z0-9_]*)\)")
# What only a running pod knows; stands for a value so that references to it are defined.
OF_THE_POD = "<of the pod>"
SECRET = "<secret>"


class RenderError(ValueError):
    """Text that is no list of Kubernetes objects."""


@dataclass(frozen=True, slots=True)
class Workload:
    """What makes pods: a Job or a Deployment with its pod template."""

    kind: str
    name: str
    spec: Object
    labels: Mapping[str, str]  # of its pods
    pod: Object  # the pod's spec

    @property
    def component(self) -> str | None:
        return self.labels.get(COMPONENT)

    @property
    def containers(self) -> list[Object]:
        return [*self.pod.get("initContainers", ()), *self.pod.get("containers", ())]

    def __str__(self) -> str:
        return f"{self.kind}/{self.name}"


@dataclass(frozen=True, slots=True)
class Rendered:
    """All objects of a rendering."""

    objects: tuple[Object, ...]

    @classmethod
    def from_yaml(cls, text: str) -> Rendered:
        """Read the output of `kubectl kustomize`; raises `RenderError`."""
        try:
            found = [one for one in yaml.safe_load_all(text) if one is not None]
        except yaml.YAMLError as error:
            raise RenderError(f"not YAML: {error}") from None
        for one in found:
            if not isinstance(one, dict) or not isinstance(one.get("metadata"), dict):
                raise RenderError(f"no Kubernetes object: {str(one)[:80]!r}")
        return cls(tuple(found))

    def of_kind(self, kind: str) -> list[Object]:
        return [one for one in self.objects if one.get("kind") == kind]

    def find(self, kind: str, name: str) -> Object | None:
        return next((o for o in self.of_kind(kind) if o["metadata"].get("name") == name), None)

    def workloads(self, component: str | None = None) -> list[Workload]:
        """Jobs and Deployments, those of one component if one is named."""
        found = [_workload(o) for kind in ("Job", "Deployment") for o in self.of_kind(kind)]
        return [w for w in found if component in (None, w.component)]

    def environment(self, container: Object) -> dict[str, str]:
        """What the container's variables are, references expanded as the kubelet does it.

        A secret's value is the text `<secret>`. A variable of an object that is not here is left
        out.
        """
        env: dict[str, str] = {}
        for source in container.get("envFrom", ()):
            env.update(self._data(source.get("configMapRef"), "ConfigMap"))
            env.update(dict.fromkeys(self._data(source.get("secretRef"), "Secret"), SECRET))
        for one in container.get("env", ()):
            value = one.get("value")
            if value is None:
                value = self._value_from(one.get("valueFrom", {}))
            if value is not None:
                env[one["name"]] = expand(str(value), env)
        return env

    def command_line(self, container: Object) -> list[str]:
        """Command and arguments with the references that are defined expanded."""
        env = self.environment(container)
        return [expand(str(word), env) for word in words(container)]

    def _data(self, reference: Object | None, kind: str) -> dict[str, str]:
        found = self.find(kind, reference.get("name", "")) if reference else None
        if found is None:
            return {}
        return {**found.get("data", {}), **found.get("stringData", {})}

    def _value_from(self, source: Object) -> str | None:
        if "configMapKeyRef" in source:
            reference = source["configMapKeyRef"]
            return self._data(reference, "ConfigMap").get(reference.get("key"))
        return SECRET if "secretKeyRef" in source else OF_THE_POD


def words(container: Object) -> list[str]:
    """Command and arguments as written."""
    return [*container.get("command", ()), *container.get("args", ())]


def references(text: str) -> Iterator[str]:
    """Names in `$(NAME)`."""
    return iter(_REFERENCE.findall(text.replace("$$(", "")))


def expand(text: str, env: Mapping[str, str]) -> str:
    """`$(NAME)` replaced where the name is defined; else it stays, as in Kubernetes."""
    return _REFERENCE.sub(lambda found: env.get(found[1], found[0]), text)


def option(command_line: list[str], name: str) -> str | None:
    """The value of `--name=value` on a command line, the last one given."""
    values = [word.partition("=")[2] for word in command_line if word.startswith(f"{name}=")]
    return values[-1] if values else None


def selects(selector: Mapping[str, str], labels: Mapping[str, str]) -> bool:
    return bool(selector) and all(labels.get(key) == value for key, value in selector.items())


def _workload(made: Object) -> Workload:
    spec = made.get("spec") or {}
    template = spec.get("template") or {}
    labels = (template.get("metadata") or {}).get("labels") or {}
    name = made["metadata"].get("name", "")
    return Workload(made["kind"], name, spec, labels, template.get("spec") or {})
