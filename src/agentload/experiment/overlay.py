"""What a rendered kustomization says of the server that it makes."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from agentload.experiment.plan import Flag

WORKLOADS = ("Deployment", "StatefulSet")
LOADS = ("Job", "CronJob")
# What stays when an arm's server is deleted: others may use it, or it holds the model's weights.
KEPT = frozenset(
    {
        "Namespace",
        "PersistentVolume",
        "PersistentVolumeClaim",
        "CustomResourceDefinition",
        "StorageClass",
        "Secret",
    }
)
SERVER_LABEL = ("app.kubernetes.io/component", "server")
_VARIABLE = re.compile(r"\$\(([A-Za-z_][A-Za-z0-9_]*)\)")

Document = dict[str, Any]


class OverlayError(ValueError):
    """The manifests are not what an experiment can run; the text says what is missing."""


@dataclass(frozen=True, slots=True)
class Overlay:
    """One server: its workload as `kind/name`, how to reach it, its flags, and all the rest.

    `rest` maps a path in the manifests to its text, without names, labels and the server's flags.
    `removable` is what is deleted after the arm, as YAML.
    """

    workload: str
    replicas: int
    service: str | None
    port: int | None
    flags: dict[str, Flag]
    rest: dict[str, str]
    removable: str


def read_overlay(rendered: str) -> Overlay:
    """The server in the output of `kubectl kustomize`; raises OverlayError."""
    documents = _documents(rendered)
    loads = [f"{d['kind']}/{_name(d)}" for d in documents if d["kind"] in LOADS]
    if loads:
        raise OverlayError(
            f"it would start a load of its own ({', '.join(loads)}); name an overlay that has the"
            " server alone"
        )
    server = _server(documents)
    pod = _at(server, "spec", "template", "spec") or {}
    container = _containers(pod)[0]
    service, port = _service(documents, server)
    return Overlay(
        workload=f"{server['kind'].lower()}/{_name(server)}",
        replicas=int(_at(server, "spec", "replicas") or 1),
        service=service,
        port=port,
        flags=flags_of_words(_words(container, documents)),
        rest=_rest(documents, server),
        removable=yaml.safe_dump_all([d for d in documents if d["kind"] not in KEPT]),
    )


def flags_of_words(words: Sequence[str]) -> dict[str, Flag]:
    """The flags among a command's words: `--a=1`, `--a 1`, `--a`, `--no-a`."""
    flags: dict[str, Flag] = {}
    for word, after in zip(words, [*words[1:], "--"], strict=True):
        if not word.startswith("--") or len(word) < 3:
            continue
        name, given, value = word[2:].partition("=")
        if given:
            flags[name] = _value(value)
        elif not after.startswith("-"):
            flags[name] = _value(after)
        elif name.startswith("no-"):
            flags[name[3:]] = False
        else:
            flags[name] = True
    return flags


def _value(text: str) -> Flag:
    for kind in (int, float):
        try:
            value = kind(text)
        except ValueError:
            continue
        return value if math.isfinite(value) else text
    return {"true": True, "false": False}.get(text.lower(), text)


def _documents(rendered: str) -> list[Document]:
    try:
        found = [d for d in yaml.safe_load_all(rendered) if d is not None]
    except yaml.YAMLError as error:
        raise OverlayError(f"is not valid YAML: {str(error)[:200]}") from None
    if not all(isinstance(d, dict) and isinstance(d.get("kind"), str) for d in found):
        raise OverlayError("has a document that is no Kubernetes object")
    return found


def _server(documents: Sequence[Document]) -> Document:
    """The one workload, or the one that is labelled as the server."""
    found = [d for d in documents if d["kind"] in WORKLOADS]
    label, wanted = SERVER_LABEL
    marked = [d for d in found if (_at(d, "metadata", "labels") or {}).get(label) == wanted]
    chosen = found if len(found) == 1 else marked
    if len(chosen) != 1:
        names = ", ".join(f"{d['kind']}/{_name(d)}" for d in found) or "none"
        raise OverlayError(
            f"needs one Deployment or StatefulSet, or one with the label {label}: {wanted};"
            f" it has: {names}"
        )
    if not _containers(_at(chosen[0], "spec", "template", "spec") or {}):
        raise OverlayError(f"{_name(chosen[0])} has no container")
    return chosen[0]


def _service(documents: Sequence[Document], server: Document) -> tuple[str | None, int | None]:
    """Name and port of the Service that selects the server's pods, one with an address first."""
    labels = _at(server, "spec", "template", "metadata", "labels") or {}
    found = []
    for document in documents:
        selector = _at(document, "spec", "selector")
        if document["kind"] == "Service" and isinstance(selector, dict) and selector:
            ports = _at(document, "spec", "ports") or []
            if selector.items() <= labels.items() and ports:
                headless = _at(document, "spec", "clusterIP") == "None"
                found.append((headless, _name(document), int(ports[0]["port"])))
    return min(found)[1:] if found else (None, None)


def _words(container: Document, documents: Sequence[Document]) -> list[str]:
    """Command and arguments, with `$(NAME)` put in as the kubelet does."""
    known = _environment(container, documents)
    words = [str(w) for key in ("command", "args") for w in container.get(key) or []]
    return [_VARIABLE.sub(lambda m: known.get(m[1], m[0]), word) for word in words]


def _environment(container: Document, documents: Sequence[Document]) -> dict[str, str]:
    maps = {_name(d): d.get("data") or {} for d in documents if d["kind"] == "ConfigMap"}
    known: dict[str, str] = {}
    for source in container.get("envFrom") or []:
        name = str((source.get("configMapRef") or {}).get("name"))
        known |= {str(k): str(v) for k, v in maps.get(name, {}).items()}
    for one in container.get("env") or []:
        if "value" in one:
            known[str(one["name"])] = str(one["value"])
    return known


def _rest(documents: Sequence[Document], server: Document) -> dict[str, str]:
    """All else that could make two arms differ: image, resources, environment, replicas."""
    spec = _at(server, "spec", "template", "spec") or {}
    first = _containers(spec)[0]
    found = {"replicas": _at(server, "spec", "replicas"), **dict(_flat("", spec))}
    found = {k: v for k, v in found.items() if not re.match(r"containers\.0\.(args|envFrom)\.", k)}
    environment = {f"env.{k}": v for k, v in _environment(first, documents).items()}
    in_args = set(_VARIABLE.findall(str([first.get("command"), first.get("args")])))
    environment = {k: v for k, v in environment.items() if k.removeprefix("env.") not in in_args}
    names = sorted({_name(d) for d in documents}, key=len, reverse=True)
    return {k: _nameless(str(v), names) for k, v in {**found, **environment}.items()}


def _nameless(text: str, names: Sequence[str]) -> str:
    """A text in which the names of this overlay's own objects do not show."""
    for name in names:
        text = text.replace(name, "NAME") if name else text
    return text


def _flat(path: str, value: Any) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict):
        for key, below in value.items():
            yield from _flat(f"{path}.{key}" if path else str(key), below)
    elif isinstance(value, list):
        for i, below in enumerate(value):
            yield from _flat(f"{path}.{i}", below)
    else:
        yield path, str(value)


def _containers(pod: Document) -> list[Document]:
    return [c for c in pod.get("containers") or [] if isinstance(c, dict)]


def _name(document: Document) -> str:
    return str(_at(document, "metadata", "name") or "")


def _at(value: Any, *keys: str) -> Any:
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value
